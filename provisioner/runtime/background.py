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
#: The longest pause of a worker.
_LONGEST_PAUSE_SECONDS = 0.5


class Worker:
    """Does one thing after another, in a thread that is there as long as there is something to do.

    What nobody waits for any more is not begun. It rests after each thing for as long as that took of the processor:
    whoever asks all the time gets half of a core, and the interpreter half of the time.
    """

    def __init__(
        self, *, spent_seconds: Callable[[], float] = time.thread_time, rest: Callable[[float], object] = time.sleep
    ) -> None:
        self._spent_seconds = spent_seconds
        self._rest = rest
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
                self._rest(min(_LONGEST_PAUSE_SECONDS, self._spent_seconds() - before))


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
