"""Tests of the model under a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.records import Pool, SimulatedNode
from tests.support.clock import FakeClock
from tests.support.simulator import CLUSTER, empty_pool, slice_pool

MakeWorld = Callable[..., World]


class RecordingSink:
    """Records orders without executing them."""

    def __init__(self) -> None:
        self.registered: list[tuple[Pool, SimulatedNode]] = []
        self.removed: list[str] = []

    def register(self, pool: Pool, node: SimulatedNode) -> None:
        self.registered.append((pool, node))

    def remove(self, node_name: str) -> None:
        self.removed.append(node_name)


def status(world: World, pool: str = "slice") -> str:
    """Return a pool's status; "gone" if the pool does not exist."""
    return next((view.status.value for view in world.views() if view.name == pool), "gone")


def test_pool_runs_only_when_all_its_nodes_are_registered(make_world: MakeWorld, clock: FakeClock) -> None:
    """The registrations are spread over the stagger time."""
    world, sink = make_world(create_seconds=20, node_stagger_seconds=4), RecordingSink()
    world.attach(sink)
    world.create_pool(CLUSTER, slice_pool())
    counts = []
    for seconds in (15.9, 0.1, 1, 1, 1):
        clock.advance(seconds)
        world.advance()
        counts.append(len(sink.registered))
    assert counts == [0, 1, 2, 3, 4]
    clock.advance(100)
    assert status(world) == "PROVISIONING"
    for pool, node in sink.registered:
        world.node_registered(pool, node)
    assert status(world) == "RUNNING"


@pytest.mark.parametrize(
    "match",
    [
        pytest.param({"zone": "us-east5-b"}, id="another zone"),
        pytest.param({"topology": "4x8"}, id="another topology"),
        pytest.param({"pool": "sli"}, id="a part of the name only"),
        pytest.param({"count": 0}, id="used up"),
    ],
)
def test_fault_does_not_affect_a_pool_that_does_not_match(
    make_world: MakeWorld, clock: FakeClock, match: dict[str, Any]
) -> None:
    world = make_world(create_seconds=1)
    world.faults.add(Fault(kind=FaultKind.STOCKOUT, **match))
    world.create_pool(CLUSTER, slice_pool())
    clock.advance(1)

    assert status(world) == "RUNNING"


def test_create_that_never_ends_is_provisioning_until_its_fault_is_cleared(
    make_world: MakeWorld, clock: FakeClock
) -> None:
    """The pool is held even if the count of the fault is used up."""
    world = make_world()
    fault = world.faults.add(Fault(kind=FaultKind.CREATE_NEVER_ENDS, count=1))
    operation = world.create_pool(CLUSTER, slice_pool())
    clock.advance(10_000)
    assert (status(world), operation.is_done) == ("PROVISIONING", False)
    world.release()
    assert status(world) == "PROVISIONING"
    world.faults.remove(fault.fault_id)
    world.release()
    assert (status(world), operation.is_done) == ("RUNNING", True)


def test_delete_that_never_ends_is_stopping_until_its_fault_is_cleared(make_world: MakeWorld, clock: FakeClock) -> None:
    world = make_world(create_seconds=0)
    world.create_pool(CLUSTER, slice_pool())
    world.advance()
    world.faults.add(Fault(kind=FaultKind.DELETE_NEVER_ENDS))
    world.delete_pool(CLUSTER, "slice")
    clock.advance(10_000)
    assert status(world) == "STOPPING"
    world.faults.clear()
    world.release()
    assert status(world) == "gone"


@pytest.mark.parametrize(
    ("key", "effect", "nodes"),
    [
        pytest.param("a.example/held", "NO_SCHEDULE", 0, id="a taint that no pod tolerates keeps it off"),
        pytest.param("a.example/held", "PREFER_NO_SCHEDULE", 4, id="a soft one does not"),
        pytest.param("google.com/tpu", "NO_SCHEDULE", 4, id="pods with chips tolerate this one"),
    ],
)
def test_autoscaler_adds_no_nodes_to_a_pool_with_a_taint_no_pod_tolerates(
    make_world: MakeWorld, clock: FakeClock, key: str, effect: str, nodes: int
) -> None:
    """New nodes would fit no pod, regardless of the time that pods wait."""
    world = make_world(create_seconds=1, scale_up_seconds=10)
    body = empty_pool()
    taint = {"key": key, "value": "true", "effect": effect}
    world.create_pool(CLUSTER, {**body, "config": {**body["config"], "taints": [taint]}})
    clock.advance(10_000)
    assert len(world.views()[0].nodes) == nodes


@pytest.mark.parametrize("kind", [FaultKind.STOCKOUT, FaultKind.QUOTA_EXCEEDED])
def test_empty_flex_start_pool_gets_nodes_when_all_capacity_faults_are_cleared(
    make_world: MakeWorld, clock: FakeClock, kind: FaultKind
) -> None:
    """Without capacity it is RUNNING without nodes, even if the count of the fault is used up."""
    world = make_world(create_seconds=1, scale_up_seconds=10)
    first = world.faults.add(Fault(kind=kind, capacity="flex-start", count=1))
    world.create_pool(CLUSTER, empty_pool())
    clock.advance(10_000)
    assert (status(world), world.views()[0].nodes) == ("RUNNING", ())
    second = world.faults.add(Fault(kind=kind))
    for fault, nodes in ((first, 0), (second, 4)):
        world.faults.remove(fault.fault_id)
        world.release()
        assert len(world.views()[0].nodes) == nodes


def test_world_with_a_fixed_cluster_rejects_other_clusters(make_world: MakeWorld) -> None:
    """Another project is forbidden; another location or cluster is not found."""
    world = make_world(project="proj", location="us-east5-a", cluster="main")
    world.cluster(CLUSTER)
    for name, want in (
        (ClusterName("other", "us-east5-a", "main"), "PERMISSION_DENIED"),
        (ClusterName("proj", "us-east5-b", "main"), "NOT_FOUND"),
        (ClusterName("proj", "us-east5-a", "side"), "NOT_FOUND"),
    ):
        with pytest.raises(ApiError) as caught:
            world.cluster(name)
        assert want == caught.value.status
    assert [cluster.name.cluster for cluster in world.clusters("proj", "-")] == ["main"]
