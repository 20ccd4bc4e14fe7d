"""The end of a process that lost its lease: at once, whatever hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

_log = structlog.get_logger(__name__)

#: The last log line may take this long, and no longer.
_SECONDS = 1.0


def exit_with_last_words(exit_process: Callable[[int], object]) -> None:
    """End the process now; the log line that says why gets a second, for its reader may hang as well."""
    try:
        words = threading.Thread(target=_say_lease_lost, name="last-words", daemon=True)
        words.start()
        words.join(_SECONDS)
    finally:
        exit_process(1)


def _say_lease_lost() -> None:
    # Each line is flushed as it is written.
    _log.error("controller.lease_lost", advice="the process ends; Kubernetes restarts it as a follower")
