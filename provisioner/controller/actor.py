"""Makes the API calls and Kubernetes writes of plans on thread pools."""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from provisioner.kube.errors import ClusterError, failure_of
from provisioner.kube.live import why_kept
from provisioner.kube.protocol import Timeouts
from provisioner.model.capacity import CallError, Failure, FailureKind
from provisioner.model.writes import AnsweredCall, AnsweredWrite, CallT, WriteFailure, WriteT
from provisioner.runtime.metrics import ActionMetrics

_log = structlog.get_logger(__name__)

NO_LEASE = "Not sent: too little time is left on the provisioner's leader lease."

#: A plan's write is sent only if leadership is guaranteed for more than these seconds. The time-outs add up to them.
WRITE_SECONDS = 10.0
WRITE_TIMEOUTS = Timeouts(connect_seconds=3.0, read_seconds=WRITE_SECONDS - 3.0)
_OK = 200
_NOT_SENT = "Not sent: the process could not start a thread for it."

A = TypeVar("A")


@dataclass(slots=True, kw_only=True)
class CallingActor(Generic[A]):
    """Makes calls in threads, and queues their results of type A. A call that crashes or is dropped has no result."""

    clock: Callable[[], datetime]
    #: Returns the guaranteed seconds of leadership; infinite without leader election.
    lease_seconds: Callable[[], float]
    #: Called by any thread when a result is available.
    on_answer: Callable[[], None]
    monotonic: Callable[[], float] = time.monotonic
    _answers: queue.SimpleQueue[tuple[str, A]] = field(default_factory=queue.SimpleQueue, init=False)
    #: Lock of `under_way`, `_waiting` and `_live`.
    _idle: threading.Condition = field(default_factory=threading.Condition, init=False)
    #: Number of submitted calls that have not ended.
    under_way: int = field(default=0, init=False)
    _closing: bool = field(default=False, init=False)
    _waiting: set[object] = field(default_factory=set, init=False)
    _live: set[str] = field(default_factory=set, init=False)

    def carry_out(self, plan: Any) -> None:
        """Submit all calls of a plan without blocking. A call that cannot be submitted does not prevent the others."""
        raise NotImplementedError

    def submit(
        self,
        call: Callable[[], A | None],
        executor: Executor,
        *,
        key: str = "",
        not_sent: Callable[[str], A] | None = None,
    ) -> bool:
        """Submit a call to an executor. If that fails, queue the result of `not_sent`, if given, and return False."""
        ticket = object()
        with self._idle:
            self._waiting.add(ticket)
            self.under_way += 1
            if key:
                self._live.add(key)
        try:
            executor.submit(self._run, ticket, call, key)
        except Exception:  # noqa: BLE001 - an error must not affect other calls
            # An executor that cannot start a thread has queued the call. Claiming the call prevents a later run.
            if not self._begin(ticket):
                return True
            _log.exception("call.not_submitted")
            self._end()
            if not_sent is not None:
                self.put(not_sent(_NOT_SENT), key=key)
            return False
        return True

    def put(self, answer: A, *, key: str = "") -> None:
        """Queue the result of a call for `take_answer`."""
        self._answers.put((key, answer))
        self.on_answer()

    def take_answer(self) -> A | None:
        """Remove and return the oldest result, and remove its key from `live`; None if no result is available."""
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
        """Claim a submitted call, in order to make or drop it; return False if it was claimed before."""
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
            # The call gets no result. If it has a key, it counts as lost after LOST_SECONDS.
            _log.exception("call.crashed")
        finally:
            if answer is None and key:
                with self._idle:
                    self._live.discard(key)
            self._end()


class Exchange(NamedTuple):
    """Functions and conditions with which an actor sends one call."""

    #: Label of the call in metrics.
    method: str
    #: Sends the call, and returns the value for `AnsweredCall.result`. Raises CallError.
    send: Callable[[], Any]
    executor: Executor
    #: The call is sent only if leadership is guaranteed for more than these seconds; None for a call that only reads.
    lease_seconds: float | None = None
    #: Live check before a delete. Raises DeletionBlockedError if the object must be kept, ClusterError if a read fails.
    check: Callable[[], None] | None = None
    may_be_absent: bool = False


@dataclass(slots=True, kw_only=True)
class PlanActor(CallingActor[AnsweredCall[CallT] | AnsweredWrite[WriteT]], ABC, Generic[CallT, WriteT]):
    """Carries out plans. Each call or write gets one result, even if it crashes, unless `drain` drops it."""

    write_executor: Executor
    metrics: ActionMetrics

    @abstractmethod
    def exchange(self, call: CallT) -> Exchange:
        """Return the exchange that sends a call."""

    @abstractmethod
    def write(self, write: WriteT) -> Any:
        """Make a write; return the value for `AnsweredWrite.result`. Raises ClusterError."""

    def carry_out(self, plan: Any) -> None:
        """Submit all writes and calls of a plan without blocking."""
        for write in plan.writes:
            not_written = partial(self.not_written, write)
            self.submit(partial(self._write, write), self.write_executor, key=write.key, not_sent=not_written)
        for call in plan.calls:
            exchange, not_called = self.exchange(call), partial(self.not_called, call)
            self.submit(partial(self._call, call, exchange), exchange.executor, key=call.key, not_sent=not_called)

    def _call(self, call: CallT, exchange: Exchange) -> AnsweredCall[CallT]:
        if self._lacks_lease(exchange):
            return self.not_called(call, NO_LEASE)
        if exchange.check is not None:
            if (kept := why_kept(exchange.check, call=call.key)) is not None:
                return AnsweredCall(call=call, asked_at=self.clock(), at=self.clock(), kept=kept)
            # The live reads may have taken long, so the lease is checked again.
            if self._lacks_lease(exchange):
                return self.not_called(call, NO_LEASE)
        return self._send(call, exchange)

    def _lacks_lease(self, exchange: Exchange) -> bool:
        return exchange.lease_seconds is not None and self.lease_seconds() <= exchange.lease_seconds

    def _send(self, call: CallT, exchange: Exchange) -> AnsweredCall[CallT]:
        asked_at, started = self.clock(), self.monotonic()
        result, failure, code, retry_after_seconds = None, None, _OK, None
        try:
            result = exchange.send()
        except CallError as error:
            failure, code, retry_after_seconds = error.failure, error.code, error.retry_after_seconds
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            # The outcome is unknown, because the request may have taken effect before the exception.
            _log.exception("call.crashed", call=call.key)
            failure, code = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message=repr(error)), 0
        kind = failure.kind if failure is not None else None
        self.metrics.observe_call(
            exchange.method,
            seconds=self.monotonic() - started,
            error_kind=kind.value if kind is not None else None,
            code=code,
        )
        return AnsweredCall(
            call=call,
            asked_at=asked_at,
            at=self.clock(),
            result=result,
            failure=None if exchange.may_be_absent and kind is FailureKind.NOT_FOUND else failure,
            retry_after_seconds=retry_after_seconds,
        )

    def _write(self, write: WriteT) -> AnsweredWrite[WriteT]:
        if self.lease_seconds() <= WRITE_SECONDS:
            return self.not_written(write, NO_LEASE)
        try:
            return AnsweredWrite(write=write, result=self.write(write), at=self.clock())
        except ClusterError as error:
            return self.not_written(write, str(error), self.failure_of(write, error))
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            _log.exception("write.crashed", write=write.key)
            return self.not_written(write, repr(error))

    def failure_of(self, write: WriteT, error: ClusterError) -> WriteFailure:  # noqa: ARG002 - node groups use it
        """Return the kind of failure of a write."""
        return failure_of(error)

    def not_called(self, call: CallT, why: str, kind: FailureKind = FailureKind.UNAVAILABLE) -> AnsweredCall[CallT]:
        """Return the failed result of a call that was not sent; `why` is its message."""
        failure = Failure(kind=kind, message=why)
        return AnsweredCall(call=call, asked_at=self.clock(), at=self.clock(), failure=failure)

    def not_written(
        self, write: WriteT, why: str, failure: WriteFailure = WriteFailure.UNAVAILABLE
    ) -> AnsweredWrite[WriteT]:
        """Return the result of a write that failed or was not sent; `why` is its message."""
        return AnsweredWrite(write=write, at=self.clock(), failure=failure, message=why)
