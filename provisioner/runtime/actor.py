"""Carries plans out on pools of threads; each call is answered once, or logged as crashed, and never made late."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

import structlog

_log = structlog.get_logger(__name__)

#: What is said of a change that is not sent for lack of it.
NO_LEASE = "Not sent: too little time is left on the provisioner's leader lease."

_NOT_SENT = "Not sent: the process could not start a thread for it."

A = TypeVar("A")


@dataclass(slots=True, kw_only=True)
class CallingActor(Generic[A]):
    """An actor whose calls are answered by an A each. A product's own says what is called."""

    clock: Callable[[], datetime]
    #: Seconds for which this process surely leads; infinite where there is no election.
    lease_seconds: Callable[[], float]
    #: Called by the threads, whenever an answer has come.
    on_answer: Callable[[], None]
    monotonic: Callable[[], float] = time.monotonic
    _answers: queue.SimpleQueue[tuple[str, A]] = field(default_factory=queue.SimpleQueue, init=False)
    #: Guards all below it.
    _idle: threading.Condition = field(default_factory=threading.Condition, init=False)
    #: How many calls are submitted and have not ended.
    under_way: int = field(default=0, init=False)
    _closing: bool = field(default=False, init=False)
    #: Calls that were submitted and have not begun.
    _waiting: set[object] = field(default_factory=set, init=False)
    _live: set[str] = field(default_factory=set, init=False)

    def submit(
        self,
        call: Callable[[], A | None],
        executor: Executor,
        *,
        key: str = "",
        not_sent: Callable[[str], A] | None = None,
    ) -> bool:
        """Hand a call to its threads; False where that fails, which `not_sent` turns into an answer."""
        ticket = object()
        with self._idle:
            self._waiting.add(ticket)
            self.under_way += 1
            if key:
                self._live.add(key)
        try:
            executor.submit(self._run, ticket, call, key)
        except Exception:  # noqa: BLE001 - whatever it was, the others have their turn
            # A pool of threads that cannot start one more has queued the call all the same, and may come to it.
            if not self._begin(ticket):
                return True
            _log.exception("call.not_submitted")
            self._end()
            if not_sent is not None:
                self.put(not_sent(_NOT_SENT), key=key)
            return False
        return True

    def put(self, answer: A, *, key: str = "") -> None:
        """Hand over an answer."""
        self._answers.put((key, answer))
        self.on_answer()

    def take_answer(self) -> A | None:
        """Return the next answer, None where there is none; its call is not live any more."""
        try:
            key, answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        with self._idle:
            self._live.discard(key)
        return answer

    def live(self) -> frozenset[str]:
        """Return the keys of calls that are submitted, and whose answer nobody has taken yet."""
        with self._idle:
            return frozenset(self._live)

    def wait_until_idle(self, *, timeout_seconds: float) -> bool:
        """Wait until no call is under way; False when the time is up."""
        with self._idle:
            return self._idle.wait_for(lambda: self.under_way == 0, timeout=timeout_seconds)

    def drain(self, *, timeout_seconds: float) -> bool:
        """Drop what has not begun, wait until no call is under way; False when the time is up."""
        self._closing = True
        return self.wait_until_idle(timeout_seconds=timeout_seconds)

    def _begin(self, ticket: object) -> bool:
        """Whether the call is to be made, or given up, by who asks: only the first is told so."""
        with self._idle:
            waits = ticket in self._waiting
            self._waiting.discard(ticket)
            return waits

    def _end(self) -> None:
        with self._idle:
            self.under_way -= 1
            self._idle.notify_all()

    def _run(self, ticket: object, call: Callable[[], A | None], key: str) -> None:
        if not self._begin(ticket):
            return
        answer: A | None = None
        try:
            answer = None if self._closing else call()
            if answer is not None:
                self.put(answer, key=key)
        except Exception:  # noqa: BLE001 - a thread's boundary
            # It has no answer, so it is not live, and its outcome counts as unknown after a while.
            _log.exception("call.crashed")
        finally:
            if answer is None and key:
                with self._idle:
                    self._live.discard(key)
            self._end()
