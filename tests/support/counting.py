"""Count what something costs: calls and bytes, which do not depend on the machine."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def counted(work: Callable[[], T]) -> tuple[T, int]:
    """Do some work; return what comes of it and how many functions were called, those written in C included."""
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
    """Do some work; return what comes of it, the most bytes it needed, and the bytes that its result keeps."""
    gc.collect()
    tracemalloc.start()
    try:
        result = work()
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, peak, kept
