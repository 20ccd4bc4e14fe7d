"""Tests of the deletion costs that are written to the pods of Deployments on several shared pools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import constants
from provisioner.slices.planning.plan import Plan
from tests.support.pod_world import Cluster
from tests.support.settings import settings

#: Number of pods, larger than the number of pods to which one decision writes costs.
_MANY = 40


def scaled(number: int, *, kind: str = "ReplicaSet", on: bool = True) -> Cluster:
    world = Cluster(settings_=settings(concurrency=64, pod_deletion_cost=on))
    world.scale(number, kind=kind)
    world.settle()
    assert all(pod.node_name for pod in world.pods.values())
    return world


def carry_out(world: Cluster, plan: Plan) -> None:
    by_name = {pod.name: pod for pod in world.pods.values()}
    for entry in plan.costs:
        pod = by_name[entry.name]
        annotations = {**pod.requirements.annotations, constants.POD_DELETION_COST: str(entry.cost)}
        world.put(replace(pod, requirements=replace(pod.requirements, annotations=annotations)))


def test_pods_of_small_pools_have_lower_costs_and_each_pod_is_written_once() -> None:
    """After pods that are not ready, a ReplicaSet that scales in deletes the pods with the lowest cost."""
    world = scaled(_MANY)
    written = 0
    while costs := (plan := world.look()).costs:
        written += len(costs)
        carry_out(world, plan)
    assert written == _MANY
    costs_of: dict[str, set[int]] = {}
    for pod in world.pods.values():
        pool = world.nodes[pod.node_name].pool_name
        costs_of.setdefault(pool, set()).add(int(pod.requirements.annotations[constants.POD_DELETION_COST]))
    assert {len(pool_costs) for pool_costs in costs_of.values()} == {1}
    assert len(set.union(*costs_of.values())) == len(costs_of) == 3
    smallest = min(world.pools.values(), key=lambda pool: pool.hosts)
    assert costs_of[smallest.name] == {min(set.union(*costs_of.values()))}
    assert max(set.union(*costs_of.values())) < 2**31


def test_rejected_writes_do_not_block_writes_to_other_pods() -> None:
    """A webhook may reject all writes to the pods of one namespace, which may be the first pods of each plan."""
    world = scaled(_MANY)
    before = world.look().costs
    rejected = frozenset(f"Pod {entry.namespace}/{entry.name}" for entry in before)
    after = {entry.name for entry in world.look(rejected=rejected).costs}
    assert after == {pod.name for pod in world.pods.values()}


@pytest.mark.parametrize(
    ("number", "kind", "on"),
    [
        pytest.param(16, "ReplicaSet", True, id="one pool"),
        pytest.param(20, "StatefulSet", True, id="controller that ignores costs"),
        pytest.param(20, "ReplicaSet", False, id="disabled by the setting"),
    ],
)
def test_no_costs_are_written_if_they_have_no_effect(number: int, kind: str, on: bool) -> None:
    assert scaled(number, kind=kind, on=on).look().costs == ()


def test_cost_that_a_user_has_set_is_kept() -> None:
    world = scaled(20)
    uid, pod = next(iter(world.pods.items()))
    annotations = {constants.POD_DELETION_COST: "-7"}
    world.pods[uid] = replace(pod, requirements=replace(pod.requirements, annotations=annotations))
    assert pod.name not in {entry.name for entry in world.look().costs}
