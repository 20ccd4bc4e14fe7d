"""How long waits are told to whoever waits.

Progress is for people: its wording is not an interface, and it may be lost without harm.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

Progress = Callable[[str], None]
"""Takes one line of plain text, without a line end."""

_log = structlog.get_logger(__name__)


def log_progress(text: str, /) -> None:
    """Write progress to the log: what is done with it where the caller says nothing."""
    _log.info("localcluster.progressed", text=text)
