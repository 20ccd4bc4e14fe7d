"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest


def wait_for(condition: Callable[[], Any], *, what: str = "the condition", seconds: float = 30) -> Any:
    """Wait until the condition is true; return what it returned."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.01)
    return result
