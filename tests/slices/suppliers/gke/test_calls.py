"""Tests of the metrics of calls to GKE."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.model.capacity import Failure, FailureKind, NodePoolRequest, OperationName, PoolName, Zone
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from tests.support.gke import FakeGke

REQUEST = NodePoolRequest(name=PoolName("a"), zone=Zone("z"), machine_type="ct6e-standard-1t", hosts=1, topology="1x1")
CALLS: dict[str, Callable[[GkeSupplier], Any]] = {
    "get_cluster": lambda gke: gke.get_cluster(),
    "list_node_pools": lambda gke: gke.list_pools(),
    "get_node_pool": lambda gke: gke.get_pool(PoolName("there")),
    "create_node_pool": lambda gke: gke.create_pool(REQUEST, lambda: None),
    "delete_node_pool": lambda gke: gke.delete_pool(PoolName("there")),
    "get_operation": lambda gke: gke.get_operation(OperationName("operation-1")),
}
METHODS = tuple(CALLS)


def supplier_of(gke: Any, **options: Any) -> GkeSupplier:
    return GkeSupplier(gke=gke, clock=lambda: datetime.now(UTC), **options)


def make_fake() -> FakeGke:
    fake = FakeGke()
    fake.create_node_pool(
        NodePoolRequest(name=PoolName("there"), zone=Zone("z"), machine_type="m", hosts=1, topology="1x1")
    )
    fake.calls.clear()
    return fake


class Recorder:
    """Metrics that remember the observed calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, str | None, str]] = []

    def observe_gke_call(self, method: str, *, seconds: float, error_kind: str | None, code: str) -> None:
        self.seen.append((method, seconds, error_kind, code))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_measured(method: str) -> None:
    ticks = iter([10.0, 12.5])
    recorder = Recorder()
    want = CALLS[method](supplier_of(make_fake()))
    measured = supplier_of(make_fake(), observe=recorder.observe_gke_call, monotonic=lambda: next(ticks))
    assert CALLS[method](measured) == want
    assert recorder.seen == [(method, 2.5, None, "200")]


@pytest.mark.parametrize("method", METHODS)
def test_failures_are_counted_by_kind(method: str) -> None:
    fake, recorder = make_fake(), Recorder()
    fake.fail_next(method, FailureKind.QUOTA)
    with pytest.raises(GkeError):
        CALLS[method](supplier_of(fake, observe=recorder.observe_gke_call, monotonic=lambda: 0.0))
    assert recorder.seen == [(method, 0.0, "quota", "none")]


def test_unexpected_exception_is_counted() -> None:
    recorder = Recorder()
    fake = make_fake()

    def broken() -> Any:
        raise ZeroDivisionError

    fake.get_cluster = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        supplier_of(fake, observe=recorder.observe_gke_call).get_cluster()
    assert [call[2:] for call in recorder.seen] == [("unexpected", "none")]


@pytest.mark.parametrize(("status", "want"), [(429, "429"), (0, "none"), (299, "other"), (99999, "other")])
def test_http_status_is_counted_with_bounded_labels(status: int, want: str) -> None:
    """An unknown status must not add a label value to the metric, because another server may respond in GKE's place."""
    fake, recorder = make_fake(), Recorder()
    failure = Failure(kind=FailureKind.QUOTA, message="no")

    def refused() -> Any:
        raise GkeError(failure, code=status)

    fake.get_cluster = refused  # type: ignore[method-assign]
    with pytest.raises(GkeError):
        supplier_of(fake, observe=recorder.observe_gke_call).get_cluster()
    assert [call[3] for call in recorder.seen] == [want]
