"""Metrics and retries around a `Gke`, so that neither the client nor the controller has code for them.

A healthy GKE gets exactly the calls that were made. Only a read that found GKE unavailable is repeated, and a call that
changes something never. Every try is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, TypeVar

import structlog

from provisioner.model.capacity import (
    FailureKind,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    WorkloadPolicy,
)
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.protocol import Cluster, Gke

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)

_FIRST_DELAY_SECONDS = 0.3
_LONGEST_DELAY_SECONDS = 5.0
_OK = "200"
_NO_CODE = "none"
_OTHER_CODE = "other"
_STATUSES = frozenset(map(int, HTTPStatus))


class CallMetrics(Protocol):
    """What the instrumentation reports to."""

    def observe_gke_call(self, method: str, *, seconds: float, error_kind: str | None, code: str) -> None:
        """Take note of one call; the kind is None when it succeeded, the code is HTTP's, or "none"."""
        ...


class RetryingGke:
    """Repeats reads of the inner `Gke` while it is unavailable; sends creates and deletes once."""

    def __init__(
        self,
        inner: Gke,
        metrics: CallMetrics | None = None,
        *,
        tries: int = 3,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._tries = tries
        self._sleep = sleep
        self._monotonic = monotonic
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, guards nothing

    def get_cluster(self) -> Cluster:
        """Implement `Gke.get_cluster`."""
        return self._retried("get_cluster", self._inner.get_cluster)

    def list_node_pools(self) -> tuple[NodePool, ...]:
        """Implement `Gke.list_node_pools`."""
        return self._retried("list_node_pools", self._inner.list_node_pools)

    def get_node_pool(self, name: PoolName) -> NodePool:
        """Implement `Gke.get_node_pool`."""
        return self._retried("get_node_pool", lambda: self._inner.get_node_pool(name))

    def create_node_pool(self, request: NodePoolRequest) -> OperationName:
        """Implement `Gke.create_node_pool`: once."""
        return self._measured("create_node_pool", lambda: self._inner.create_node_pool(request))

    def delete_node_pool(self, name: PoolName) -> OperationName:
        """Implement `Gke.delete_node_pool`: once."""
        return self._measured("delete_node_pool", lambda: self._inner.delete_node_pool(name))

    def get_operation(self, name: OperationName) -> Operation:
        """Implement `Gke.get_operation`."""
        return self._retried("get_operation", lambda: self._inner.get_operation(name))

    def get_workload_policy(self, name: str) -> WorkloadPolicy:
        """Implement `Gke.get_workload_policy`."""
        return self._retried("get_workload_policy", lambda: self._inner.get_workload_policy(name))

    def create_workload_policy(self, policy: WorkloadPolicy) -> None:
        """Implement `Gke.create_workload_policy`: once."""
        return self._measured("create_workload_policy", lambda: self._inner.create_workload_policy(policy))

    def _retried(self, method: str, call: Callable[[], _T]) -> _T:
        for attempt in range(1, self._tries):
            try:
                return self._measured(method, call)
            except GkeError as error:
                delay_seconds = self._delay_seconds(error, attempt)
                if delay_seconds is None:
                    raise
                _log.debug(
                    "gke_call.retried", method=method, attempt=attempt, delay_seconds=delay_seconds, error=str(error)
                )
                self._sleep(delay_seconds)
        return self._measured(method, call)

    def _measured(self, method: str, call: Callable[[], _T]) -> _T:
        started = self._monotonic()
        # Anything but a GkeError is a mistake of ours, and counted as such.
        error_kind: str | None = "unexpected"
        code = _NO_CODE
        try:
            result = call()
            error_kind, code = None, _OK
        except GkeError as error:
            error_kind = error.failure.kind.value
            code = _code(error.code)
            raise
        finally:
            seconds = self._monotonic() - started
            if self._metrics is not None:
                self._metrics.observe_gke_call(method, seconds=seconds, error_kind=error_kind, code=code)
        return result

    def _delay_seconds(self, error: GkeError, attempt: int) -> float | None:
        """Return how long to wait, or None where waiting here is of no use."""
        if error.failure.kind is not FailureKind.UNAVAILABLE:
            return None
        wanted = error.retry_after_seconds or 0.0
        if wanted > _LONGEST_DELAY_SECONDS:
            # The next round comes sooner than GKE wants to be asked again.
            return None
        jittered = _FIRST_DELAY_SECONDS * 2.0 ** (attempt - 1) * self._rng.uniform(0.5, 1.5)
        return min(max(wanted, jittered), _LONGEST_DELAY_SECONDS)


def _code(status: int) -> str:
    """Return an HTTP status as a label: whatever answers, only the statuses that there are become one."""
    if not status:
        return _NO_CODE
    return str(status) if status in _STATUSES else _OTHER_CODE
