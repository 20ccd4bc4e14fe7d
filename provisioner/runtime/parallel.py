"""Many small calls at once, and never more than so many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
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
        calls: list[Future[R]] = []
        running: set[Future[R]] = set()
        try:
            for item in items:
                if len(running) >= self.at_once:
                    running = _go_on(running)
                call = self.executor.submit(function, item)
                calls.append(call)
                running.add(call)
            while running:
                running = _go_on(running)
        finally:
            for call in running:
                call.cancel()
            wait(running)
        return [call.result() for call in calls]


def _go_on(running: set[Future[R]]) -> set[Future[R]]:
    """Wait for one call at least; return those that are still running."""
    done, rest = wait(running, return_when=FIRST_COMPLETED)
    for call in done:
        if call.exception() is not None:
            # The others are waited for by the caller.
            running.difference_update(done)
            call.result()
    return rest
