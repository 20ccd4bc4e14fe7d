"""Tests of which pools are deleted, when, and for which reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provisioner.model.capacity import FailureKind, PoolStatus
from provisioner.model.placement import FREE
from provisioner.slices.planning.memory.answers import DeleteAnswer, DeleteResult
from provisioner.slices.planning.plan import DeleteReason
from tests.support.clock import NOW, after
from tests.support.counting import counted
from tests.support.models import foreign_pool, go_pool, make_jobset, make_node, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure, reasons


def due_world(**jobset_changes: Any) -> World:
    """Return a world with one JobSet without pods, whose pool is RUNNING."""
    workload = make_jobset()
    world = World(workload)
    world.end_pods(workload)
    world.put_pool(make_pool(workload))
    world.workloads[workload.uid] = replace(workload, **jobset_changes)
    return world


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"terminal_state": "Completed"}, DeleteReason.WORKLOAD_FINISHED),
        ({"terminal_state": "Failed"}, DeleteReason.WORKLOAD_FINISHED),
        ({"suspended": True}, DeleteReason.WORKLOAD_SUSPENDED),
        ({"deleting": True}, DeleteReason.WORKLOAD_GONE),
        ({"managed_by": "another"}, DeleteReason.NOT_NEEDED),
        ({"groups": ()}, DeleteReason.NOT_NEEDED),
    ],
)
@pytest.mark.parametrize("keep_suspended", [False, True])
def test_delete_reason_of_a_pool_follows_the_state_of_its_jobset(
    changes: dict[str, Any], reason: DeleteReason, *, keep_suspended: bool
) -> None:
    """KEEP_POOLS_OF_SUSPENDED_JOBSETS keeps the pools of a suspended JobSet only until the JobSet ends."""
    world = due_world(**{"suspended": keep_suspended} | changes)
    world.settings = settings(keep_suspended=keep_suspended)
    kept = keep_suspended and reason is DeleteReason.WORKLOAD_SUSPENDED
    assert reasons(world) == ([] if kept else [reason])


@pytest.mark.parametrize("keep_suspended", [False, True])
def test_pool_of_a_deleted_jobset_is_deleted(*, keep_suspended: bool) -> None:
    """The delete contains the JobSet's identity and a node, which the check with live reads needs."""
    world = due_world(suspended=keep_suspended)
    world.settings = settings(keep_suspended=keep_suspended)
    (workload,) = world.workloads.values()
    world.remove_jobset(workload)
    assert reasons(world) == [DeleteReason.WORKLOAD_GONE]
    (delete,) = world.plans[-1].deletes
    assert (delete.named, delete.workload_uid) == (workload.full_name, workload.uid)
    assert delete.workload is None
    assert delete.node is not None
    assert delete.node.kind == "Node"


def test_newer_of_two_pools_of_a_slice_is_kept() -> None:
    workload = make_jobset()
    world = World(workload)
    old, new = world.put_pool(make_pool(workload)), world.put_pool(make_pool(workload, attempt=1))
    assert reasons(world) == [DeleteReason.NOT_NEEDED]
    # The scheduler may be binding the leader to either pool, so the delete first cordons the old pool and waits.
    assert [(delete.name, delete.settle) for delete in world.plans[-1].deletes] == [(old.name, True)]
    assert world.states()[new.name] == "ready"


@pytest.mark.parametrize("marked", [False, True])
def test_new_pool_of_a_slice_without_placement_is_kept_until_its_pods_are_bound(*, marked: bool) -> None:
    """Without placement, the scheduler may bind pods of other workloads to the first pool at any time."""
    world = World(make_jobset(), settings_=settings(deletion_delay_seconds=0.0), marked=marked)
    (workload,) = world.workloads.values()
    world.put_pool(make_pool(workload))
    new = replace(make_pool(workload, attempt=1), status=PoolStatus.PROVISIONING)
    world.put(new)
    assert [delete.name for delete in world.look().deletes] == ([new.name] if marked else [])
    world.schedule()
    world.look()
    assert list(world.memory.deletes) == [new.name]


def idle_world() -> World:
    world = World(settings_=settings(deletion_delay_seconds=0.0))
    world.put_pool(make_pool(make_jobset("gone")))
    return world


def put_leader(world: World, *, requirements: Any = None, **pod: Any) -> None:
    """Add a JobSet and its leader, which the scheduler has not tried to bind yet."""
    workload = make_jobset(template=requirements or make_requirements(tolerations=()))
    world.add_with_pod(workload, unschedulable=False, created_at=world.now, **pod)


@pytest.mark.parametrize(
    ("leader", "settles"),
    [
        pytest.param({}, True, id="same selectors"),
        pytest.param({"requirements": make_requirements(memory_bytes=2**50)}, True, id="does not fit the nodes"),
        pytest.param({"requirements": make_requirements(topology="2x2x4")}, False, id="another topology"),
        pytest.param({"requirements": make_requirements(accelerator="tpu-v5p-slice")}, False, id="another accelerator"),
        pytest.param({"node": "elsewhere"}, False, id="bound"),
        pytest.param({"phase": "Succeeded"}, False, id="finished"),
    ],
)
def test_pool_settles_before_its_delete_while_a_matching_leader_is_pending(
    leader: dict[str, Any], *, settles: bool
) -> None:
    """The scheduler may have chosen a node, which no object shows yet. The leader's resources have no effect."""
    world = idle_world()
    put_leader(world, **leader)
    assert [delete.settle for delete in world.look().deletes] == [settles]


def test_pool_settles_for_any_pod_that_may_be_bound_to_it() -> None:
    """A pod without a topology or without an object of its workload is not served, but the scheduler may bind it."""
    world = idle_world()
    asked = replace(make_requirements(tolerations=()), node_selector={})
    world.put(make_pod(make_jobset("unseen"), index=1, requirements=asked, created_at=world.now))
    assert [delete.settle for delete in world.look().deletes] == [True]


@pytest.mark.parametrize(
    ("status", "nodes", "labels"),
    [
        pytest.param(PoolStatus.ERROR, 2, {}, id="failed"),
        pytest.param(PoolStatus.RUNNING, 0, {}, id="without nodes"),
        pytest.param(PoolStatus.RUNNING, 2, FREE, id="kept free"),
    ],
)
def test_failed_nodeless_or_free_pool_is_deleted_without_settling(
    status: PoolStatus, nodes: int, labels: Mapping[str, str]
) -> None:
    world = World(settings_=settings(deletion_delay_seconds=20.0, namespaces=("another",)))
    pool = make_pool(make_jobset("gone"), status=status)
    made = (make_node(pool, index) for index in range(nodes))
    world.put(pool, *(replace(node, labels={**node.labels, **labels}) for node in made))
    put_leader(world)
    world.look()
    world.pass_time(20.0)
    assert [delete.settle for delete in world.plans[-1].deletes or world.look().deletes] == [False]


def test_pool_settles_if_it_became_free_a_moment_ago() -> None:
    """The scheduler may have chosen a node for a pod before the node was labelled free."""
    world = idle_world()
    put_leader(world)
    for node in list(world.nodes.values()):
        world.put(replace(node, labels={**node.labels, **FREE}))
    assert [delete.settle for delete in world.look().deletes] == [True]


def test_pool_settles_if_a_slice_counted_on_it_a_moment_ago() -> None:
    """The change of the node labels, which the caches do not show yet, also admits other pods."""
    train = make_jobset("train")
    world = World(settings_=settings(deletion_delay_seconds=15.0, namespaces=("default",)))
    world.put_pool(make_pool(make_jobset("gone")))
    for node in list(world.nodes.values()):
        world.put(replace(node, labels={**node.labels, **FREE}))
    unserved = make_jobset("unserved", namespace="other", template=make_requirements(tolerations=()))
    world.add_with_pod(unserved, unschedulable=False, created_at=world.now)
    world.look()
    world.pass_time(10.0)
    world.add(train)
    assert len(world.look().assignments) == 2
    world.remove_jobset(train)
    world.look()
    world.pass_time(15.0)
    assert [delete.settle for delete in world.look().deletes] == [True]


def test_cost_of_settling_does_not_grow_with_leaders_times_idle_pools() -> None:
    """The selectors of 100 leaders that do not fit are collected once per round, not once for each idle pool."""

    def calls(pools: int, leaders: int) -> int:
        world = World(settings_=settings(keep_suspended=True))
        for number in range(pools):
            kept = make_jobset(f"kept-{number}")
            world.workloads[kept.uid] = replace(kept, suspended=True)
            world.put_pool(make_pool(kept))
        greedy = make_jobset("greedy", replicas=100)
        world.workloads[greedy.uid] = greedy
        for job in range(leaders):
            asked = replace(make_requirements(), cpu_millicores=10**7 + job)
            world.put(replace(make_pod(greedy, job=job, unschedulable_since=world.now), requirements=asked))
        return counted(world.look)[1]

    for_each_pair = (calls(60, 100) - calls(20, 100) - calls(60, 20) + calls(20, 20)) / (40 * 80)
    assert for_each_pair < 5


def test_failed_pool_is_deleted_immediately_although_its_jobset_exists() -> None:
    world = due_world()
    (pool,) = world.pools.values()
    world.put(replace(pool, status=PoolStatus.ERROR, failure=failure(FailureKind.STOCKOUT)))
    assert [delete.reason for delete in world.look().deletes] == [DeleteReason.POOL_FAILED]


def test_pool_with_unready_nodes_for_15_minutes_is_replaced() -> None:
    """All spot VMs of the pool were preempted, or their chips never appear. No other controller replaces the pool."""
    workload = make_jobset()
    world = World(workload)
    pool = world.put_pool(make_pool(workload), ready=False)
    world.run(14, seconds=60)
    assert world.created == world.deleted == []
    world.run(4, seconds=60)
    assert world.deleted == [pool.name]
    assert [delete.reason for plan in world.plans for delete in plan.deletes] == [DeleteReason.NO_READY_NODES]
    assert world.created == [make_pool(workload, attempt=1).name]


def test_the_loop_is_woken_when_a_pool_has_been_unready_for_too_long() -> None:
    """No object changes when NODEPOOL_READY_TIMEOUT ends, so no event would start the next decision."""
    workload = make_jobset()
    world = World(workload, settings_=settings(ready_timeout_seconds=100.0))
    world.put_pool(make_pool(workload), ready=False)
    assert world.look().wake_at == after(100)
    assert reasons(world, 100) == []
    plan = world.look()
    assert plan.wake_at is None or plan.wake_at > world.now
    assert [delete.reason for delete in plan.deletes] == [DeleteReason.NO_READY_NODES]


def test_pool_that_was_given_up_is_deleted_without_the_deletion_delay() -> None:
    """During the delay, the pool would use up NODEPOOL_REPLACED_SHARE, and no other lost pool would be replaced."""
    workloads = [make_jobset(name, namespace=name) for name in ("a", "b")]
    world = World(*workloads, settings_=settings(deletion_delay_seconds=3600.0))
    pools = [world.put_pool(make_pool(workload), ready=False) for workload in workloads]
    for _ in range(20):
        world.step(seconds=60)
        world.finish_deletes()
    assert sorted(world.deleted) == [pool.name for pool in pools]


def test_only_a_share_of_the_pools_is_replaced_at_the_same_time() -> None:
    """If all pools are unready, the cause is probably elsewhere, and replacements do not help."""
    workloads = [make_jobset(f"train-{index}") for index in range(10)]
    world = World(*workloads, settings_=settings(replaced_share_percent=20))
    for workload in workloads:
        world.put_pool(make_pool(workload), ready=False)
    world.run(60, seconds=60)
    assert len(set(world.deleted)) == 2


def test_undeletable_unready_pool_does_not_prevent_other_replacements() -> None:
    """Pods of a tenant that tolerate the taint of cordoned nodes can prevent the delete of a pool."""
    world = World(*(make_jobset(f"train-{index}") for index in range(2)), settings_=settings(replaced_share_percent=20))
    for index, workload in enumerate(list(world.workloads.values())):
        world.put_pool(make_pool(workload), ready=False)
        world.run(1, seconds=60 * (1 - index))
    world.refuse_delete = lambda delete: failure(FailureKind.UNAVAILABLE) if "train-0" in delete.name else None
    world.run(40, seconds=60)
    assert [name for name in world.deleted if "train-1" in name]


def vanished(count: int, *, pools: int, seen: bool = False) -> World:
    """Return a world of `pools` pools. `count` of their JobSets are missing; if `seen`, their deletes were observed."""
    workloads = [make_jobset(f"train-{index}") for index in range(pools)]
    world = World(*workloads)
    for workload in workloads:
        world.put_pool(make_pool(workload))
    for workload in workloads[:count]:
        del world.workloads[workload.uid]
        if seen:
            world.deleted_workloads.add(workload.uid)
    world.pods.clear()
    return world


@pytest.mark.parametrize(
    ("count", "pools", "seen", "want"),
    [
        pytest.param(3, 3, False, 3, id="all of three pools"),
        pytest.param(4, 8, False, 4, id="half of the pools"),
        pytest.param(5, 8, False, 1, id="more than half of the pools"),
        pytest.param(8, 8, False, 1, id="all of the pools"),
        pytest.param(8, 8, True, 8, id="all of the pools, with observed deletes"),
    ],
)
def test_pools_are_deleted_one_at_a_time_if_most_jobsets_vanish(
    *, count: int, pools: int, seen: bool, want: int
) -> None:
    """An incomplete list of JobSets must not end the training jobs that it leaves out."""
    world = vanished(count, pools=pools, seen=seen)
    world.run(2, seconds=40)
    assert len(world.deleted) == want
    assert bool(world.plans[-1].alerts) is (want == 1)


def test_delete_that_fails_for_ten_minutes_raises_an_alert() -> None:
    world = World()
    pool = world.put_pool(make_pool(make_jobset()))
    world.refuse_delete = lambda _: failure(FailureKind.PERMISSION, "Ask your administrator.")
    world.run(9, seconds=60)
    assert world.plans[-1].alerts == ()
    world.run(4, seconds=60)
    (alert,) = world.plans[-1].alerts
    assert alert.kind == "pool_stuck"
    assert pool.name in alert.message
    assert "Ask your administrator." in alert.message


@pytest.mark.parametrize("status", [PoolStatus.STOPPING, PoolStatus.UNKNOWN])
def test_stopping_and_unknown_pools_are_not_deleted(status: PoolStatus) -> None:
    world = World()
    world.put_pool(make_pool(make_jobset(), status=status))
    assert reasons(world, 10_000) == []


def test_foreign_pools_are_never_deleted() -> None:
    world = World()
    world.put_pool(foreign_pool())
    world.put_pool(foreign_pool("half", labels={"google.com/nodepool-manager": "tpu-provisioner"}))
    ours = go_pool(make_jobset())
    other_manager = {**ours.labels, "google.com/nodepool-manager": "somebody-else"}
    world.put_pool(replace(ours, labels=other_manager))
    world.run(5, seconds=10_000)
    assert world.deleted == []
    assert world.plans[-1].pools == ()


def test_deletion_delay_starts_when_the_pool_becomes_unneeded() -> None:
    world = due_world(suspended=True)
    world.settings = settings(deletion_delay_seconds=100.0)
    assert reasons(world, 99) == []
    assert world.plans[-1].wake_at == after(100)
    (workload,) = world.workloads.values()
    world.workloads[workload.uid] = replace(workload, suspended=False)
    world.look()
    world.workloads[workload.uid] = workload
    assert reasons(world, 99) == []
    world.pass_time(1)
    assert len(world.look().deletes) == 1


def test_rejected_delete_is_repeated_at_its_next_try_or_on_a_new_pool_status() -> None:
    """The operation that blocked the delete may have ended when the status changes."""
    world = due_world(suspended=True)
    world.refuse_delete = lambda _: failure(FailureKind.OPERATION_IN_THE_WAY)
    world.run(30)
    assert len(world.step(seconds=0.0).deletes) == 1
    (name,) = world.pools
    retry_at = world.memory.deletes[name].retry_at
    assert retry_at is not None
    assert retry_at > world.now
    plan = world.look()
    assert (plan.deletes, plan.wake_at) == ((), retry_at)
    changed = World(settings_=world.settings)
    changed.workloads, changed.memory, changed.now = world.workloads, world.memory, world.now
    changed.put_pool(replace(world.pools[name], status=PoolStatus.RECONCILING))
    assert len(changed.look().deletes) == 1
    world.now = retry_at
    assert len(world.look().deletes) == 1


def test_unneeded_time_in_the_future_does_not_keep_a_pool() -> None:
    world = due_world(suspended=True)
    (pool,) = world.pools.values()
    world.memory = world.memory.with_pool(pool.name, unneeded_since=after(10**9))
    assert len(reasons(world)) == 1


def test_pool_that_is_needed_again_is_uncordoned() -> None:
    world = due_world(suspended=True)
    (pool,) = world.pools.values()
    world.put(make_node(pool, 0, cordoned=True, cordoned_by_us=True), make_node(pool, 1, cordoned=True))
    assert world.look().uncordons == ()
    (workload,) = world.workloads.values()
    world.workloads[workload.uid] = replace(workload, suspended=False)
    assert world.look().uncordons == (make_node(pool, 0).name,)


def narrowed_world(count: int = 1) -> World:
    """Return a world with pools of JobSets in a namespace that is no longer served."""
    world = World(settings_=settings(namespaces=("served",)))
    for index in range(count):
        world.put_pool(make_pool(make_jobset(f"train-{index}")))
    return world


def run_needed(world: World, seconds: int, *, needed: set[str]) -> list[float]:
    """Run a round each second; return the times of the deletes. Deletes of pools in `needed` fail as NEEDED."""
    tried: list[float] = []
    for _ in range(seconds):
        plan = world.look()
        for delete in plan.deletes:
            tried.append((world.now - NOW).total_seconds())
            result = DeleteResult.NEEDED if delete.name in needed else DeleteResult.ACCEPTED
            world.answer(DeleteAnswer(name=delete.name, at=world.now, result=result, reason="JobSet x lives"))
            if delete.name not in needed:
                world.deleted.append(delete.name)
                world.remove_pool(delete.name)
        world.pass_time(1)
    return tried


def test_unwatched_jobset_keeps_its_pool_without_an_alert() -> None:
    """SERVED_NAMESPACES was narrowed. A live read checks every minute, without limit, whether the JobSet exists."""
    world = narrowed_world(5)
    names = set(world.pools)
    tried = run_needed(world, 1500, needed=names)
    assert world.deleted == []
    assert not [alert for plan in world.plans for alert in plan.alerts]
    moments = sorted(set(tried))
    # All pools are checked in the same round, so that one list of JobSets serves all checks.
    assert 20 <= len(moments) <= 26
    assert len(tried) == 5 * len(moments)
    assert world.plans[-1].pools[0].note == "JobSet x lives"


def test_pool_is_uncordoned_if_a_live_read_finds_its_jobset() -> None:
    """The JobSet may be resumed while its pool is cordoned and settling; the caches do not contain this JobSet."""
    world = narrowed_world()
    (pool,) = world.pools.values()
    world.put(make_node(pool, 0, cordoned=True, cordoned_by_us=True), make_node(pool, 1, cordoned=True))
    run_needed(world, 59, needed={pool.name})
    assert world.plans[-1].uncordons == (make_node(pool, 0).name,)


def test_pool_of_an_unwatched_jobset_is_deleted_when_the_jobset_ends() -> None:
    world = narrowed_world(2)
    name = min(world.pools)
    run_needed(world, 1000, needed=set(world.pools))
    run_needed(world, 61, needed={max(world.pools)})
    assert world.deleted == [name]


def test_many_unwatched_jobsets_do_not_count_as_a_mass_disappearance() -> None:
    """SERVED_NAMESPACES excludes the JobSets from the watch. A live read checks each JobSet before the delete."""
    world = narrowed_world(10)
    run_needed(world, 40, needed=set())
    assert len(world.deleted) == 10
    assert not [alert for plan in world.plans for alert in plan.alerts]


def test_watched_jobset_that_exists_but_is_not_cached_raises_an_alert() -> None:
    """The caches lack a JobSet that they should contain, so the administrator has to find the cause."""
    world = World()
    pool = world.put_pool(make_pool(make_jobset()))
    run_needed(world, 700, needed={pool.name})
    assert {alert.kind for alert in world.plans[-1].alerts} == {"pool_stuck"}


def test_pool_that_is_still_needed_does_not_delay_other_deletes() -> None:
    """At first, one pool per minute is deleted; the tries rotate over all pools."""
    world = World()
    for index in range(6):
        world.put_pool(make_pool(make_jobset(f"train-{index}")))
    needed = {min(world.pools)}
    run_needed(world, 600, needed=needed)
    assert set(world.pools) == needed


@pytest.mark.parametrize("suspended", [False, True])
def test_jobset_that_is_no_longer_opted_in_keeps_its_pool_until_it_ends(*, suspended: bool) -> None:
    """OPT_IN_LABEL restricts which workloads get new pools."""
    world = due_world(suspended=suspended)
    for opt_in in ({}, {"opt_in_label": ("team", "a")}):
        world.settings = settings(keep_suspended=True, **opt_in)
        assert reasons(world, 100) == []
    (workload,) = world.workloads.values()
    world.workloads[workload.uid] = replace(workload, terminal_state="Completed")
    assert reasons(world) == [DeleteReason.WORKLOAD_FINISHED]


def test_vanished_pools_that_are_not_due_cause_no_immediate_wake_up() -> None:
    """Decisions that are due immediately would keep the processor busy until the end of the delay."""
    world = vanished(8, pools=8)
    plan = world.step(seconds=0)
    assert not plan.deletes
    assert plan.wake_at == after(world.settings.deletion_delay_seconds)
