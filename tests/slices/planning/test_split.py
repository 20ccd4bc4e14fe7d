"""Tests of split slices: slices of several hosts that do not have one node pool to themselves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.model.capacity import NodePool
from provisioner.model.placement import labels_of
from provisioner.model.workloads import Pod, Workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import Notice, Plan
from provisioner.slices.view.types import State
from tests.support.board import view_of
from tests.support.clock import NOW
from tests.support.models import foreign_pool, make_job, make_jobset, make_lws, make_node, make_pod, make_pool
from tests.support.models import make_requirements as asked_for
from tests.support.world import World


def _pod(workload: Workload, index: int, pool: NodePool, host: int, **changes: object) -> Pod:
    return make_pod(workload, index=index, node=make_node(pool, host).name, **changes)  # type: ignore[arg-type]


def _mixed(first: Workload, second: Workload) -> World:
    """Return a world with two slices and two pools of two hosts; each slice has one pod on each pool."""
    world = World(first, second)
    pools = [world.put_pool(make_pool(workload)) for workload in (first, second)]
    for workload in (first, second):
        world.end_pods(workload)
        world.put(*(_pod(workload, index, pool, int(workload is second)) for index, pool in enumerate(pools)))
    return world


def _split(workload: Workload, *pools: NodePool) -> World:
    """Return a world in which a slice has one pod on the first host of each pool."""
    world = World(workload)
    world.end_pods(workload)
    world.put(*(_pod(workload, index, world.put_pool(pool), 0) for index, pool in enumerate(pools)))
    return world


def _splits(plan: Plan) -> list[Notice]:
    return [notice for notice in plan.notices if notice.reason == EventReason.SLICE_SPLIT]


def test_slice_on_two_pools_is_reported_on_its_leader_pod_and_its_workload() -> None:
    world = _mixed(make_jobset("a"), make_jobset("b"))
    plan = world.look()
    first, second = _splits(plan)
    assert [object_.kind for object_ in first.objects] == ["Pod", "JobSet"]
    assert first.warning
    names = ", ".join(sorted(world.pools))
    assert first.message == (
        f"The pods of job a-slice-0 are on 2 node pools: {names}, which pods of other slices use as well; "
        f"restart the JobSet with the annotation {constants.EXCLUSIVE_TOPOLOGY}: {constants.NODE_POOL}, or install the "
        f"placement policy and label namespace default with {constants.PLACEMENT}=assign before the restart"
    )
    assert second.key == first.key, "a pod more on another pool is no other Event"
    assert {slice_.group_key for slice_ in plan.split_slices} == {
        make_pod(jobset).group_key for jobset in (make_jobset("a"), make_jobset("b"))
    }
    assert all(pool.split for pool in plan.pools)


def test_split_slice_is_never_shown_as_running() -> None:
    view = view_of(_mixed(make_jobset("a"), make_jobset("b")))
    assert {slice_.state for slice_ in (*view.slices, *view.pools)} == {State.SPLIT}
    assert all("are on 2 node pools" in slice_.reason for slice_ in (*view.slices, *view.pools))
    assert all(slice_.brief.startswith("Restart the JobSet with the annotation") for slice_ in view.slices)
    assert (view.capacity.chips["split"], view.capacity.chips["running"]) == (16, 0)


def test_slice_on_a_shared_pool_is_reported_and_the_other_slice_is_not_named() -> None:
    """Each slice of two hosts has only one pod, so the pods of both slices fit on one pool."""
    first, second = make_jobset("a", parallelism=1), make_jobset("secret", parallelism=1)
    world = World(first, second)
    pool = world.put_pool(make_pool(make_jobset("a")))
    for host, workload in enumerate((first, second)):
        world.end_pods(workload)
        world.put(_pod(workload, 0, pool, host))
    plan = world.look()
    message = _splits(plan)[0].message
    assert message.startswith(f"The pods of job a-slice-0 share node pool {pool.name} with pods of other slices;")
    assert "secret" not in message
    assert {pool_view.state for pool_view in view_of(world).pools} == {State.SPLIT}


def test_slice_of_one_host_on_a_pool_of_a_split_slice_is_not_split() -> None:
    template = asked_for(topology="2x2x1", tolerations=())
    large, small = make_jobset("large"), make_jobset("small", parallelism=1, template=template)
    world = World(large, small)
    pools = [world.put_pool(make_pool(workload)) for workload in (large, make_jobset("other"))]
    for workload in (large, small):
        world.end_pods(workload)
    world.put(*(_pod(large, index, pool, 0) for index, pool in enumerate(pools)), _pod(small, 0, pools[0], 1))
    states = {slice_.group: slice_.state for slice_ in view_of(world).slices}
    assert states == {"large-slice-0": State.SPLIT, "small-slice-0": State.RUNNING}
    assert [notice.objects[-1].name for notice in _splits(world.look())] == ["large"]


def _of_one_host() -> World:
    workload = make_job(parallelism=2, template=asked_for(topology="2x2x1", tolerations=()))
    return _split(workload, *(make_pool(make_jobset(name, template=workload.groups[0].template)) for name in "ab"))


def _restarting() -> World:
    """Return a world in which old pods are being deleted on one pool, and the new pods run on another pool."""
    workload = make_jobset("a")
    world = World(workload)
    old, new = (world.put_pool(make_pool(workload, attempt=attempt)) for attempt in (0, 1))
    world.end_pods(workload)
    ends = NOW + timedelta(seconds=30)
    world.put(*(_pod(workload, index, old, index, uid=f"old-{index}", deletion_deadline=ends) for index in (0, 1)))
    world.put(*(_pod(workload, index, new, index) for index in (0, 1)))
    return world


def _not_served() -> World:
    world = _mixed(make_jobset("a"), make_jobset("b"))
    for uid, workload in world.workloads.items():
        world.workloads[uid] = replace(workload, annotations={constants.DISABLE: "true"})
    return world


def _on_nodes_of_no_pool() -> World:
    workload = make_jobset("a")
    world = _split(workload, make_pool(workload))
    world.put(make_node(foreign_pool(""), name="bare"), make_pod(workload, index=1, node="bare"))
    return world


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(_of_one_host, id="slices of one host"),
        pytest.param(_restarting, id="old pods of a restart"),
        pytest.param(_not_served, id="unserved workloads"),
        pytest.param(_on_nodes_of_no_pool, id="a node without a node pool"),
    ],
)
def test_slices_to_which_the_rule_does_not_apply_are_not_reported_as_split(world: object) -> None:
    plan = world().look()  # type: ignore[operator]
    assert _splits(plan) == []
    assert not plan.split_slices
    assert not any(pool.split for pool in plan.pools)


def test_slice_on_foreign_pools_is_reported_as_split() -> None:
    world = _split(make_jobset("a"), *map(foreign_pool, ("left", "right")))
    assert "are on 2 node pools: left, right; restart" in _splits(world.look())[0].message
    assert [slice_.state for slice_ in view_of(world).slices] == [State.SPLIT]


def test_message_names_three_of_many_pools_and_counts_the_rest() -> None:
    workload = make_jobset("a", parallelism=16, template=asked_for(topology="4x4x4", tolerations=()))
    world = _split(workload, *(foreign_pool(f"pool-{number}") for number in range(5)))
    assert "are on 5 node pools: pool-0, pool-1, pool-2 and 2 more;" in _splits(world.look())[0].message


@pytest.mark.parametrize(
    ("workload", "remedy"),
    [
        (
            make_lws("a"),
            f"with the annotation {constants.LWS_EXCLUSIVE_TOPOLOGY}: {constants.NODE_POOL}, or install the",
        ),
        (make_job("a"), "; install the placement policy and label namespace default with"),
        (
            make_jobset("a", annotations={constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL}),
            f"the annotation {constants.EXCLUSIVE_TOPOLOGY} did not apply to some of these pods",
        ),
    ],
    ids=["LeaderWorkerSet", "Job, which has no exclusive placement", "JobSet with exclusive placement"],
)
def test_remedy_of_a_split_slice_follows_the_kind_of_its_workload(workload: Workload, remedy: str) -> None:
    world = _split(workload, *map(foreign_pool, ("left", "right")))
    assert remedy in _splits(world.look())[0].message


def test_remedy_of_a_marked_slice_is_a_restart() -> None:
    world = _mixed(make_jobset("a"), make_jobset("b"))
    for uid, pod in world.pods.items():
        marks = labels_of("j-1", pod.namespace)
        asked = replace(pod.requirements, node_selector={**pod.requirements.node_selector, **marks})
        world.pods[uid] = replace(pod, requirements=asked)
    assert "; the placement policy did not apply to some of these pods" in _splits(world.look())[0].message
