"""The operations of the simulated Compute Engine: their begin, end, faults and retention, and request IDs.

Operations exist only in the scope of their target (reference of zoneOperations, regionOperations, globalOperations),
and have a limited retention period. The same request ID gives the same operation (AIP 155, and the reference of every
change). Another request with the same ID is rejected here; Google does not document the reaction. VMs of groups are
also created by operations of Google's service agent (fontbakery-dashboard 81). Not thread-safe: the model holds the
lock.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rehearsal.simulators.compute import errors, names
from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.faults import Fault, FaultKind, Target
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.compute.records import Machine, Operation, OperationStatus, Place, Resource
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.faults import FaultBook
from rehearsal.simulators.http.world import Timeline

_USER = "somebody@example.com"
_INTERNAL = "Internal error. Please try again or contact Google Support."


#: Target of an operation.
Subject = Resource | Machine | Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request that begins an operation; `content` distinguishes requests with the same ID."""

    method: str
    request_id: str = ""
    content: object = None


@dataclass(kw_only=True, eq=False)
class _Known:
    operation: Operation
    content: object


class Ledger:
    """All operations within their retention period, oldest first."""

    def __init__(
        self,
        *,
        settings: Callable[[], ComputeSettings],
        timeline: Timeline,
        faults: FaultBook[Fault],
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._timeline = timeline
        self._faults = faults
        self._rng = rng
        self._operations: dict[str, Operation] = {}
        self._known: dict[tuple[str, str], _Known] = {}

    def all(self) -> list[Operation]:
        """Return all operations."""
        return list(self._operations.values())

    def in_scope(self, scope: Scope) -> list[Operation]:
        """Return the operations of a scope."""
        return [operation for operation in self._operations.values() if operation.scope == scope]

    def find(self, scope: Scope, name: str) -> Operation:
        """Return an operation of a scope."""
        found = self._operations.get(name)
        if found is None or found.scope != scope:
            raise errors.not_found(scope.resource("operations", name))
        return found

    def repeated(self, project: str, request_id: str, content: object) -> Operation | None:
        """Return the operation that the same request began before; None for a new request.

        Raises ApiError if the ID is invalid, or was used by another request.
        """
        if not request_id:
            return None
        _check_uuid(request_id)
        known = self._known.get((project, request_id))
        if known is None:
            return None
        if known.content != content:
            raise errors.invalid("requestId", request_id, "The request ID was used by another request.")
        return known.operation

    def begin(self, asked: Asked, subject: Subject, now: datetime) -> Operation:
        """Begin an operation; a fault may decide its result."""
        settings = self._settings()
        pending = settings.pending_seconds
        operation = Operation(
            name=names.operation_name(now, self._rng),
            scope=subject.scope,
            method=asked.method,
            target=subject.path,
            target_number=subject.number,
            user=_USER,
            request_id=asked.request_id,
            inserted=now,
            started=None if pending else now,
            status=OperationStatus.PENDING if pending else OperationStatus.RUNNING,
        )
        self._operations[operation.name] = operation
        if asked.request_id:
            self._remember(asked, operation, now)
        if pending:
            self._timeline.at(now + timedelta(seconds=pending), lambda when: _start(operation, when))
        self._decide(operation, subject)
        return operation

    def note(self, method: str, subject: Subject, now: datetime, failure: Failure | None) -> None:
        """Record a finished operation of Compute Engine itself for a group. No client waits for it."""
        operation = Operation(
            name=names.operation_name(now, self._rng),
            scope=subject.scope,
            method=method,
            target=subject.path,
            target_number=subject.number,
            user=names.service_agent(subject.scope.project),
            request_id="",
            inserted=now,
            started=now,
            ended=now,
            status=OperationStatus.DONE,
            failure=failure,
        )
        self._operations[operation.name] = operation
        self._forget_later(operation, now)

    def _remember(self, asked: Asked, operation: Operation, now: datetime) -> None:
        key = operation.scope.project, asked.request_id
        until = now + timedelta(seconds=self._settings().request_id_seconds)
        known = _Known(operation=operation, content=asked.content)
        self._known[key] = known

        def forget(_when: datetime) -> None:
            if self._known.get(key) is known:
                del self._known[key]

        self._timeline.at(until, forget)

    def _decide(self, operation: Operation, subject: Subject) -> None:
        target = Target(method=operation.method, name=subject.name, location=subject.scope.location)
        fault = self._faults.take((FaultKind.OPERATION_ERROR,), target)
        if fault is not None:
            http_code = fault.code if fault.code >= 400 else 500
            operation.fate = Failure(code=fault.error_code, message=fault.message or _INTERNAL, http_code=http_code)
            operation.fate_seconds = fault.after_seconds

    def finish_later(
        self,
        operation: Operation,
        seconds: float,
        *,
        effect: Callable[[datetime], Failure | None],
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        """End an operation after some time with its effect; if a fault or the effect returns an error, call `undo`."""
        if operation.fate is not None and operation.fate_seconds is not None:
            seconds = operation.fate_seconds

        def finish(when: datetime) -> None:
            failure = operation.fate or effect(when)
            if failure is not None:
                undo()
            operation.started = operation.started or when
            operation.status, operation.ended, operation.failure = OperationStatus.DONE, when, failure
            self._forget_later(operation, when)

        self._timeline.at(operation.inserted + timedelta(seconds=seconds), finish)

    def _forget_later(self, operation: Operation, ended: datetime) -> None:
        def forget(_when: datetime) -> None:
            del self._operations[operation.name]

        self._timeline.at(ended + timedelta(seconds=self._settings().operations_kept_seconds), forget)


def _start(operation: Operation, when: datetime) -> None:
    if operation.status is OperationStatus.PENDING:
        operation.status, operation.started = OperationStatus.RUNNING, when


def _check_uuid(text: str) -> None:
    try:
        value = uuid.UUID(text)
    except ValueError:
        value = None
    if value is None or value.int == 0:
        raise errors.invalid("requestId", text, "Must be a valid UUID other than zero.")
