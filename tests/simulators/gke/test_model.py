"""Tests of the model under a fake clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.names import ClusterName
from tests.support.clock import FakeClock
from tests.support.simulator import CLUSTER, empty_pool

MakeWorld = Callable[..., World]


def status(world: World, pool: str = "slice") -> str:
    return next((view.status.value for view in world.views() if view.name == pool), "gone")


@pytest.mark.parametrize(
    ("key", "effect", "nodes"),
    [
        pytest.param("a.example/held", "NO_SCHEDULE", 0, id="a taint that no pod tolerates keeps it off"),
        pytest.param("a.example/held", "PREFER_NO_SCHEDULE", 4, id="a soft one does not"),
        pytest.param("google.com/tpu", "NO_SCHEDULE", 4, id="pods with chips tolerate this one"),
    ],
)
def test_autoscaler_adds_nodes_unless_no_pod_tolerates_the_taint(
    make_world: MakeWorld, clock: FakeClock, key: str, effect: str, nodes: int
) -> None:
    """If no pod tolerates the taint, new nodes would fit no pod, regardless of how long pods wait."""
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
    """Without capacity, the pool is RUNNING without nodes, even if the count of the fault is used up."""
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
