"""Makes calls in parallel, with a maximum number of calls at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from threading import Event, Semaphore
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ForEach(Protocol):
    """Calls a function for each item, and returns the results in the order of the items."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        """Return the results. If a call fails, skip later items, wait for calls in progress, and raise the error."""


def one_by_one(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
    """Make the calls one after the other."""
    return [function(item) for item in items]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Makes up to `at_once` calls of one caller at the same time, in threads that all callers share."""

    executor: Executor
    at_once: int

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        """Implement ForEach."""
        free, failed = Semaphore(self.at_once), Event()
        calls: list[Future[R]] = []

        def ended(call: Future[R]) -> None:
            if call.cancelled() or call.exception() is not None:
                failed.set()
            free.release()

        try:
            for item in items:
                free.acquire()
                if failed.is_set():
                    break
                calls.append(self.executor.submit(function, item))
                calls[-1].add_done_callback(ended)
        finally:
            wait(calls)
        return [call.result() for call in calls]
