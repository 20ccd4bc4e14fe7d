"""Makes the calls of plans on thread pools. Each call has one result or is logged as crashed; none is made late."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

import structlog

_log = structlog.get_logger(__name__)

#: Result of a change that is not sent for lack of lease time.
NO_LEASE = "Not sent: too little time is left on the provisioner's leader lease."

_NOT_SENT = "Not sent: the process could not start a thread for it."

A = TypeVar("A")


@dataclass(slots=True, kw_only=True)
class CallingActor(Generic[A]):
    """Base class of the products' actors. Each call has one result of type A."""

    clock: Callable[[], datetime]
    #: Guaranteed seconds of leadership; infinite without leader election.
    lease_seconds: Callable[[], float]
    #: Called by any thread after each result.
    on_answer: Callable[[], None]
    monotonic: Callable[[], float] = time.monotonic
    _answers: queue.SimpleQueue[tuple[str, A]] = field(default_factory=queue.SimpleQueue, init=False)
    #: Guards all fields below.
    _idle: threading.Condition = field(default_factory=threading.Condition, init=False)
    #: Number of submitted calls that have not ended.
    under_way: int = field(default=0, init=False)
    _closing: bool = field(default=False, init=False)
    #: Calls that were submitted and have not begun.
    _waiting: set[object] = field(default_factory=set, init=False)
    _live: set[str] = field(default_factory=set, init=False)

    def carry_out(self, plan: Any) -> None:
        """Submit all calls of a plan without blocking. A call that cannot be submitted does not affect the others."""
        raise NotImplementedError

    def submit(
        self,
        call: Callable[[], A | None],
        executor: Executor,
        *,
        key: str = "",
        not_sent: Callable[[str], A] | None = None,
    ) -> bool:
        """Submit a call; return False if that fails, in which case `not_sent` creates the result."""
        ticket = object()
        with self._idle:
            self._waiting.add(ticket)
            self.under_way += 1
            if key:
                self._live.add(key)
        try:
            executor.submit(self._run, ticket, call, key)
        except Exception:  # noqa: BLE001 - an error must not affect other calls
            # A pool that cannot start a thread has queued the call nevertheless, and may make it later.
            if not self._begin(ticket):
                return True
            _log.exception("call.not_submitted")
            self._end()
            if not_sent is not None:
                self.put(not_sent(_NOT_SENT), key=key)
            return False
        return True

    def put(self, answer: A, *, key: str = "") -> None:
        """Record a result."""
        self._answers.put((key, answer))
        self.on_answer()

    def take_answer(self) -> A | None:
        """Return the next result, whose call is no longer live; None if no result is available."""
        try:
            key, answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        with self._idle:
            self._live.discard(key)
        return answer

    def live(self) -> frozenset[str]:
        """Return the keys of submitted calls whose results have not been taken."""
        with self._idle:
            return frozenset(self._live)

    def wait_until_idle(self, *, timeout_seconds: float) -> bool:
        """Wait until no call is in progress; return False after the time-out."""
        with self._idle:
            return self._idle.wait_for(lambda: self.under_way == 0, timeout=timeout_seconds)

    def drain(self, *, timeout_seconds: float) -> bool:
        """Drop calls that have not begun, and wait until no call is in progress; return False after the time-out."""
        self._closing = True
        return self.wait_until_idle(timeout_seconds=timeout_seconds)

    def _begin(self, ticket: object) -> bool:
        """Claim a submitted call, to make it or to give it up; return whether this is the first claim."""
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
            # Without a result, the call is no longer live, and its outcome counts as unknown after a minute.
            _log.exception("call.crashed")
        finally:
            if answer is None and key:
                with self._idle:
                    self._live.discard(key)
            self._end()
