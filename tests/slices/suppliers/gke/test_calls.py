"""Metrics and retries of calls to GKE."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.model.capacity import (
    Failure,
    FailureKind,
    NodePoolRequest,
    OperationName,
    PoolName,
    Zone,
)
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.supplier import Calls, GkeSupplier
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
READS = tuple(method for method in METHODS if not method.startswith(("create", "delete")))


def supplier_of(gke: Any, **options: Any) -> GkeSupplier:
    return GkeSupplier(gke=gke, clock=lambda: datetime.now(UTC), calls=Calls(**options))


def make_fake() -> FakeGke:
    """Return a GKE with one pool and one operation."""
    fake = FakeGke()
    fake.create_node_pool(
        NodePoolRequest(name=PoolName("there"), zone=Zone("z"), machine_type="m", hosts=1, topology="1x1")
    )
    fake.calls.clear()
    return fake


class Recorder:
    """Metrics that remember."""

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


def test_mistakes_are_counted_too() -> None:
    recorder = Recorder()
    fake = make_fake()

    def broken() -> Any:
        raise ZeroDivisionError

    fake.get_cluster = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        supplier_of(fake, observe=recorder.observe_gke_call).get_cluster()
    assert [each[2:] for each in recorder.seen] == [("unexpected", "none")]


@pytest.mark.parametrize(("status", "want"), [(429, "429"), (0, "none"), (299, "other"), (99999, "other")])
def test_the_status_is_counted_where_there_is_one(status: int, want: str) -> None:
    """Whatever answers in GKE's place cannot make labels up."""
    fake, recorder = make_fake(), Recorder()
    failure = Failure(kind=FailureKind.QUOTA, message="no")

    def refused() -> Any:
        raise GkeError(failure, code=status)

    fake.get_cluster = refused  # type: ignore[method-assign]
    with pytest.raises(GkeError):
        supplier_of(fake, observe=recorder.observe_gke_call).get_cluster()
    assert [each[3] for each in recorder.seen] == [want]


def make_retrying(fake: FakeGke, slept: list[float]) -> GkeSupplier:
    """Return a supplier that notes the pauses between its calls."""
    return supplier_of(fake, sleep=slept.append, rng=random.Random(7))


@pytest.mark.parametrize("method", READS)
def test_reads_are_tried_three_times(method: str) -> None:
    fake, slept = make_fake(), list[float]()
    fake.fail_next(method, FailureKind.UNAVAILABLE, times=2)
    CALLS[method](make_retrying(fake, slept))
    assert fake.counts()[method] == 3
    assert 0.15 <= slept[0] <= 0.45
    assert 0.3 <= slept[1] <= 0.9


@pytest.mark.parametrize("method", READS)
def test_third_failure_is_told(method: str) -> None:
    fake, slept = make_fake(), list[float]()
    fake.fail_always(method, FailureKind.UNAVAILABLE)
    with pytest.raises(GkeError):
        CALLS[method](make_retrying(fake, slept))
    assert (fake.counts()[method], len(slept)) == (3, 2)


@pytest.mark.parametrize("kind", FailureKind)
@pytest.mark.parametrize("method", [method for method in METHODS if method not in READS])
def test_changes_are_never_repeated(method: str, kind: FailureKind) -> None:
    fake, slept = make_fake(), list[float]()
    fake.fail_always(method, kind)
    with pytest.raises(GkeError):
        CALLS[method](make_retrying(fake, slept))
    assert (fake.counts()[method], slept) == (1, [])


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.UNAVAILABLE])
def test_other_failures_of_reads_are_told_at_once(kind: FailureKind) -> None:
    """Only an unavailable GKE is worth asking again at once."""
    fake, slept = make_fake(), list[float]()
    fake.fail_always("list_node_pools", kind)
    with pytest.raises(GkeError):
        make_retrying(fake, slept).list_pools()
    assert (fake.counts()["list_node_pools"], slept) == (1, [])


@pytest.mark.parametrize(
    ("wish", "calls", "slept_seconds"),
    [
        pytest.param(3.0, 2, [3.0], id="a short wish is followed"),
        pytest.param(5.0, 2, [5.0], id="the longest wish that is"),
        pytest.param(5.5, 1, [], id="a longer wish is left to the next round"),
        pytest.param(60.0, 1, [], id="a long wish as well"),
    ],
)
def test_wish_of_gke(wish: float, calls: int, slept_seconds: list[float]) -> None:
    fake, slept = make_fake(), list[float]()
    fake.fail_next("list_node_pools", FailureKind.UNAVAILABLE, retry_after_seconds=wish)
    gke = make_retrying(fake, slept)
    if calls == 1:
        with pytest.raises(GkeError):
            gke.list_pools()
    else:
        gke.list_pools()
    assert (fake.counts()["list_node_pools"], slept) == (calls, slept_seconds)


class Spread(random.Random):
    """A chance that always spreads as widely as it may."""

    def uniform(self, a: float, b: float) -> float:
        """Return the upper bound."""
        return b


def test_pauses_double_up_to_the_longest() -> None:
    """Spread by half of each, and cut after that."""
    fake, slept = make_fake(), list[float]()
    fake.fail_always("list_node_pools", FailureKind.UNAVAILABLE)
    with pytest.raises(GkeError):
        supplier_of(fake, tries=6, sleep=slept.append, rng=Spread()).list_pools()
    assert slept == pytest.approx([0.45, 0.9, 1.8, 3.6, 5.0])


def test_a_wish_shorter_than_the_pause_does_not_shorten_it() -> None:
    """GKE's own delay is the least that is waited."""
    fake, slept = make_fake(), list[float]()
    fake.fail_next("list_node_pools", FailureKind.UNAVAILABLE, retry_after_seconds=0.1)
    supplier_of(fake, sleep=slept.append, rng=Spread()).list_pools()
    assert slept == pytest.approx([0.45])
