"""Counts function calls and bytes, which do not depend on the speed of the machine."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def counted(work: Callable[[], T]) -> tuple[T, int]:
    """Run a function; return its result and the number of function calls, including calls of functions in C."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return result, calls


def measured(work: Callable[[], T]) -> tuple[T, int, int]:
    """Run a function; return its result, the maximum of allocated bytes, and the bytes that the result keeps."""
    gc.collect()
    tracemalloc.start()
    try:
        result = work()
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, peak, kept
