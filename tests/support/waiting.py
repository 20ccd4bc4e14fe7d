"""Waits for actions of other threads or processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

_POLL_SECONDS = 0.01
#: Maximum interval in seconds between checks of a condition; a check that calls an API server takes 7 ms of CPU time.
_LONGEST_POLL_SECONDS = 0.25
_POLL_SHARE = 0.1


def wait_for(condition: Callable[[], Any], *, what: str = "the condition", seconds: float = 30) -> Any:
    """Wait until the condition returns a true value; return the value. Fails the test after `seconds`."""
    started = time.monotonic()
    while not (result := condition()):
        waited = time.monotonic() - started
        if waited > seconds:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(min(max(waited * _POLL_SHARE, _POLL_SECONDS), _LONGEST_POLL_SECONDS))
    return result
