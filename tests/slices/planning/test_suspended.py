"""Tests of KEEP_POOLS_OF_SUSPENDED_JOBSETS: which pools a suspended JobSet keeps, and which slices may use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import FailureKind, NodePool
from provisioner.model.workloads import Workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import DeleteReason
from tests.support.models import make_jobset, make_marks, make_node, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure, reasons

_LONG = 100_000


def world_of(*workloads: Workload, **changes: Any) -> World:
    return World(*workloads, settings_=settings(**{"keep_suspended": True} | changes))


def suspend(world: World, workload: Workload, **changes: Any) -> None:
    world.end_pods(workload)
    world.workloads[workload.uid] = replace(workload, suspended=True, **changes)


def resume(world: World, workload: Workload) -> None:
    world.workloads[workload.uid] = workload
    world.start_pods(workload)


def suspended_world(workload: Workload | None = None, **changes: Any) -> tuple[World, Workload, NodePool]:
    workload = workload or make_jobset()
    world = world_of(workload, **changes)
    pool = world.put_pool(make_pool(workload))
    suspend(world, workload)
    return world, workload, pool


def test_suspended_jobset_keeps_its_pools_and_uses_them_when_it_is_resumed() -> None:
    workload = make_jobset(replicas=3)
    world = world_of(workload)
    world.live(5)
    suspend(world, workload)
    world.run(3, seconds=_LONG)
    assert set(world.states().values()) == {"ready"}
    assert all(state.workload == world.workloads[workload.uid] for state in world.plans[-1].pools)
    resume(world, workload)
    world.live(5)
    assert (world.bound(workload), len(world.created), world.deleted) == (3, 3, [])


def _changed(workload: Workload, **changes: Any) -> Workload:
    job = workload.groups[0]
    return replace(workload, groups=(replace(job, template=make_requirements(tolerations=(), **changes)),))


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({"topology": "2x2x4"}, id="another topology"),
        pytest.param({"selector": {constants.TPU_ACCELERATOR: "tpu-v5p-slice"}}, id="another accelerator"),
        pytest.param({"chips": 0}, id="no chips, which a webhook adds to the pods"),
    ],
)
def test_changed_template_of_a_suspended_jobset_does_not_affect_its_pools(template: dict[str, Any]) -> None:
    """Kueue removes selectors from the template of a JobSet that it suspends, and adds selectors on admission."""
    world, workload, _ = suspended_world()
    world.workloads[workload.uid] = replace(_changed(workload, **template), suspended=True)
    assert reasons(world, _LONG) == []
    resume(world, workload)
    world.live(3)
    assert (world.bound(workload), world.created, world.deleted) == (1, [], [])


def test_suspended_jobset_keeps_the_pool_on_which_it_ran() -> None:
    first, second = make_jobset("a"), make_jobset("b")
    world = world_of(first, second)
    pools = {workload.uid: world.put_pool(make_pool(workload)) for workload in (first, second)}
    world.put(make_pod(first, node=make_node(pools[second.uid]).name))
    world.put(make_pod(second, node=make_node(pools[first.uid]).name))
    world.look()
    suspend(world, first)
    assert reasons(world, _LONG) == []
    world.remove_jobset(second)
    assert reasons(world) == [DeleteReason.NOT_NEEDED]
    assert world.plans[-1].deletes[0].name == pools[first.uid].name


def test_recreated_jobset_that_is_suspended_does_not_keep_the_pool_of_the_earlier_one() -> None:
    """In the past, a restarted provisioner kept such a pool for the JobSet that the labels of the nodes name."""
    world = World(settings_=settings(keep_suspended=True), marked=True)
    world.put_pool(make_pool(make_jobset(uid="earlier")), labels=make_marks(make_jobset()))
    recreated = replace(make_jobset(), suspended=True)
    world.workloads[recreated.uid] = recreated
    assert reasons(world, _LONG) == [DeleteReason.WORKLOAD_GONE]


def test_given_up_pool_of_a_suspended_jobset_is_deleted() -> None:
    world, _, pool = suspended_world()
    world.put(make_node(pool, 1, ready=False))
    assert reasons(world, 899) == reasons(world, 2) == []
    assert [delete.reason for delete in world.look().deletes] == [DeleteReason.NO_READY_NODES]


def test_waiting_slice_uses_the_pool_of_a_suspended_jobset() -> None:
    """The scheduler would bind the waiting pods to the pool anyway. The JobSet gets a new pool when it is resumed."""
    world, workload, pool = suspended_world()
    other = make_jobset("other")
    world.add(other)
    assert (world.look().creates, world.states()[pool.name]) == ((), "ready")
    world.live(3)
    assert (world.bound(other), world.created, world.deleted) == (1, [], [])
    resume(world, workload)
    world.live(3)
    assert (world.bound(workload), len(world.created)) == (1, 1)


def test_pool_of_a_suspended_jobset_is_kept_after_another_jobset_used_it() -> None:
    world, _, pool = suspended_world()
    other = make_jobset("other")
    world.add(other)
    world.live(3)
    world.finish(other)
    world.run(3, seconds=_LONG)
    assert (world.states(), world.deleted) == ({pool.name: "ready"}, [])


def test_pool_of_a_suspended_jobset_counts_in_limits_and_is_kept() -> None:
    world, _, pool = suspended_world(max_chips=16)
    template = make_requirements(topology="2x2x4", tolerations=())
    world.add(make_jobset("large", template=template, parallelism=4))
    world.run(50, seconds=60)
    assert (world.created, world.deleted, list(world.pools)) == ([], [], [pool.name])
    (said, *_) = world.told(EventReason.LIMIT_REACHED)
    assert "Limit of all node pools: 8 of 16 chips in use" in said.message


def _complete(world: World, workload: Workload) -> None:
    world.put_pool(make_pool(workload, job=1))


@pytest.mark.parametrize("arrange", [lambda *_: None, _complete], ids=["some slices are there", "all are"])
def test_pools_of_suspended_all_or_nothing_slices_are_kept(
    arrange: Callable[[World, Workload], None],
) -> None:
    asked = make_requirements(tolerations=(), selector={constants.LEGACY_POOL_ID: "train"})
    workload = make_jobset(replicas=2, template=asked, annotations={constants.ALL_OR_NOTHING: "true"})
    world = world_of(workload)
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT) if world.pools else None
    world.live(20)
    suspend(world, workload)
    arrange(world, workload)
    there = set(world.pools)
    world.live(40, seconds=600)
    assert (set(world.pools), [plan.releases for plan in world.plans if plan.releases]) == (there, [])
    world.refuse_create = lambda _: None
    resume(world, workload)
    world.live(50)
    assert (world.bound(workload), len(world.pools), world.deleted) == (2, 2, [])
