"""Many small calls at once, and never more than so many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ForEach(Protocol):
    """Calls a function for each of many items; the results are in their order."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        """Raise what the first failing call raises; then no call is under way any more, and the rest is not made."""


def one_by_one(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
    """Make the calls one after the other."""
    return [function(item) for item in items]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Makes up to `at_once` calls of one caller at once, on threads that all callers share."""

    executor: Executor
    at_once: int

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        """Implement ForEach."""
        found: list[R] = []
        for begin in range(0, len(items), self.at_once):
            calls: list[Future[R]] = []
            try:
                calls.extend(self.executor.submit(function, item) for item in items[begin : begin + self.at_once])
            finally:
                wait(calls)
            found += [call.result() for call in calls]
        return found
