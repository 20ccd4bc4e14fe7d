"""The operations of the simulated GKE: their begin, end and retention.

Not thread-safe: the model holds the lock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta

from rehearsal.simulators.gke import names
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.records import Operation, OperationStatus, OperationType
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.gke.validation import Failure
from rehearsal.simulators.http.world import Timeline


class Ledger:
    """All operations that are retained, oldest first."""

    def __init__(self, *, settings: Callable[[], SimulatorSettings], timeline: Timeline, rng: random.Random) -> None:
        self._settings = settings
        self._timeline = timeline
        self._rng = rng
        self._operations: dict[str, Operation] = {}

    def all(self) -> list[Operation]:
        """Return all operations that are retained."""
        return list(self._operations.values())

    def find(self, name: str) -> Operation | None:
        """Return the operation with a name; None if it does not exist."""
        return self._operations.get(name)

    def check_quota(self, cluster: ClusterName, *, but: Operation | None = None) -> None:
        """Raise ApiError if the cluster has the maximum number of running operations; `but` is not counted."""
        quota = self._settings().operations_quota
        if quota is None:
            return
        same_cluster = [op for op in self._operations.values() if op.cluster == cluster]
        if sum(not op.is_done and op is not but for op in same_cluster) >= quota:
            raise ApiError(
                "RESOURCE_EXHAUSTED",
                f'Too many operations: cluster "{cluster.cluster}" hits the concurrent operations quota {quota}, '
                "please try again later.",
            )

    def begin(self, kind: OperationType, cluster: ClusterName, pool: str, now: datetime) -> Operation:
        """Begin an operation on a pool."""
        pending = self._settings().pending_seconds
        operation = Operation(
            name=names.operation_name(now, self._rng),
            cluster=cluster,
            kind=kind,
            pool=pool,
            started=now,
            status=OperationStatus.PENDING if pending else OperationStatus.RUNNING,
        )
        self._operations[operation.name] = operation
        if pending:
            self._timeline.at(now + timedelta(seconds=pending), lambda _: _start(operation))
        self._forget()
        return operation

    def end(self, operation: Operation, when: datetime, failure: Failure | None = None) -> None:
        """End an operation, with an error if `failure` is given."""
        operation.status, operation.ended, operation.failure = OperationStatus.DONE, when, failure
        operation.held_by = None

    def _forget(self) -> None:
        surplus = len(self._operations) - self._settings().operations_kept
        if surplus > 0:
            done = [name for name, operation in self._operations.items() if operation.is_done]
            for name in done[:surplus]:
                del self._operations[name]


def _start(operation: Operation) -> None:
    if operation.status is OperationStatus.PENDING:
        operation.status = OperationStatus.RUNNING
