"""Work that an event loop waits for, in threads that do not delay the end of the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")
#: How much of a core a worker may take as long as it is asked, and how many seconds of it at once.
_SHARE = 0.5
_AT_ONCE_SECONDS = 1.0
_LONGEST_REST_SECONDS = 0.5


class Worker:
    """Does one thing after another, in a thread that is there as long as there is something to do.

    What nobody waits for any more is not begun. Whoever asks all the time gets half of a core, and the interpreter half
    of the time: it rests when it has worked for more than that.
    """

    def __init__(
        self,
        *,
        spent_seconds: Callable[[], float] = time.thread_time,
        monotonic: Callable[[], float] = time.monotonic,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        self._spent_seconds = spent_seconds
        self._monotonic = monotonic
        self._rest = rest
        #: What it may still spend without a rest, and when that was.
        self._credit_seconds = _AT_ONCE_SECONDS
        self._credited_at = monotonic()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._works = False

    async def do(self, make: Callable[[], _T]) -> _T:
        """Do something, and return what comes of it."""
        made: Future[_T] = Future()
        with self._lock:
            if not self._works:
                threading.Thread(target=self._work, name="http-page", daemon=True).start()
                self._works = True
            self._waiting.append((made, make))
        return await asyncio.wrap_future(made)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._works = False
                    return
                made, make = self._waiting.popleft()
            if made.set_running_or_notify_cancel():
                before = self._spent_seconds()
                _set(made, make)
                due = self._rest_seconds(self._spent_seconds() - before)
                if due > 0:
                    self._rest(due)

    def _rest_seconds(self, spent: float) -> float:
        now = self._monotonic()
        credit = min(_AT_ONCE_SECONDS, self._credit_seconds + (now - self._credited_at) * _SHARE) - spent
        # What is longer than a rest is forgiven: others wait.
        self._credit_seconds, self._credited_at = max(credit, -_LONGEST_REST_SECONDS * _SHARE), now
        return max(0.0, -self._credit_seconds / _SHARE)


def in_thread(make: Callable[[], _T], release: Callable[[], None]) -> Awaitable[_T]:
    """Do something in a thread of its own; `release` is called when it ends, awaited or not."""
    made: Future[_T] = Future()
    # From now on it cannot be cancelled.
    made.set_running_or_notify_cancel()

    def make_and_release() -> _T:
        try:
            return make()
        finally:
            release()

    try:
        threading.Thread(target=_set, args=(made, make_and_release), name="http-page", daemon=True).start()
    except RuntimeError:
        # The system gives no more threads.
        release()
        raise
    return asyncio.wrap_future(made)


def _set(made: Future[_T], make: Callable[[], _T]) -> None:
    try:
        result = make()
    except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
        made.set_exception(error)
    else:
        made.set_result(result)
