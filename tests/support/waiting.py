"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

_POLL_SECONDS = 0.01
#: Who has waited for long polls less often: a look at an API server takes 7 ms of processor time.
_LONGEST_POLL_SECONDS = 0.25
_POLL_SHARE = 0.1


def wait_for(condition: Callable[[], Any], *, what: str = "the condition", seconds: float = 30) -> Any:
    """Wait until the condition is true; return what it returned."""
    started = time.monotonic()
    while not (result := condition()):
        waited = time.monotonic() - started
        if waited > seconds:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(min(max(waited * _POLL_SHARE, _POLL_SECONDS), _LONGEST_POLL_SECONDS))
    return result
