"""Nodes that register while the gate looks at the others: open for pods, so the delete has to wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from provisioner import cluster
from provisioner.cluster.protocol import DEFAULT_TIMEOUTS, PAGE_SIZE, Page, Timeouts, collection_path
from provisioner.controller.deleting import Gate, KeptError
from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from tests.cluster.builders import FakeClock
from tests.cluster.fake_kube import FakeKube
from tests.controller.kit import a_delete, raw_node

POOL = NodePool(
    name=PoolName("train-pool"), status=PoolStatus.PROVISIONING, node_count=2, machine_type="ct4p-hightpu-4t"
)


class BusyKube(FakeKube):
    """An API server at which something happens after each list of pods."""

    def __init__(self) -> None:
        super().__init__()
        self.after_pods: Callable[[], None] = lambda: None
        self.before_nodes: Callable[[], None] = lambda: None

    def list_page(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        limit: int = PAGE_SIZE,
        continue_token: str = "",
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> Page:
        """Return the page, then let it happen."""
        if path == collection_path("nodes"):
            self.before_nodes()
        page = super().list_page(path, query, limit=limit, continue_token=continue_token, timeouts=timeouts)
        if path == collection_path("pods"):
            self.after_pods()
        return page


def closed(kube: FakeKube) -> list[bool]:
    """Tell which nodes are closed."""
    return [bool(raw["spec"].get("unschedulable")) for raw in kube.objects(collection_path("nodes"))]


def make(kube: FakeKube, clock: FakeClock) -> Gate:
    """Return the gate; one node of the pool is there."""
    kube.put_object("/api/v1/nodes/first", raw_node("first", POOL, clock))
    return Gate(api=kube, clock=clock.now, monotonic=clock)


def test_a_node_that_registers_during_the_look_keeps_the_pool() -> None:
    """It was not closed, so a pod may be on it by now; what was closed is open again."""
    kube, clock = BusyKube(), FakeClock()
    gate = make(kube, clock)
    kube.after_pods = lambda: kube.put_object("/api/v1/nodes/second", raw_node("second", POOL, clock)) and None
    with pytest.raises(KeptError, match="second has registered"):
        gate.pass_through(a_delete())
    assert closed(kube) == [False, False]


def test_a_last_look_that_takes_long_keeps_the_pool() -> None:
    """A process that was frozen in between does not know what has registered since."""
    kube, clock = BusyKube(), FakeClock()
    gate = make(kube, clock)
    kube.before_nodes = lambda: clock.advance(3.0)
    with pytest.raises(KeptError, match="too long"):
        gate.pass_through(a_delete())
    assert closed(kube) == [False]


def test_a_pool_that_does_not_grow_goes() -> None:
    """The same nodes at both looks, all closed."""
    kube, clock = BusyKube(), FakeClock()
    gate = make(kube, clock)
    gate.pass_through(a_delete())
    assert closed(kube) == [True]
    assert cluster.list_nodes_of_pool(kube, POOL.name)[0].cordoned_by_us
