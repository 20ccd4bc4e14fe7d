"""Tests of whole decisions over many rounds of a simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import FailureKind, PoolStatus
from provisioner.slices.demand import group_key
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.messages.waits import note_of
from provisioner.slices.planning.memory.state import CallState, DeleteCall, Memory, OperationLimit
from provisioner.slices.planning.plan import DeleteReason
from tests.support.clock import after
from tests.support.models import make_jobset, make_node, make_pod, make_pool, strange_taint
from tests.support.settings import settings as base_settings
from tests.support.world import World, failure


def stocked_out(world: World, name: str) -> None:
    pool = next(pool for pool in world.pools.values() if pool.name == name)
    world.put(replace(pool, status=PoolStatus.ERROR, failure=failure(FailureKind.STOCKOUT, "No v4 left.")))


def test_gated_gang_gets_its_pools_and_gated_exclusive_jobset_is_reported() -> None:
    """With exclusive placement, the gates are never removed: followers are created only after the leader is bound."""
    world = World()
    gang = make_jobset("gang", replicas=4)
    apart = make_jobset("apart", annotations={constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL})
    world.add(gang, apart)
    world.pods = {uid: replace(pod, gated=True) for uid, pod in world.pods.items()}
    world.step()
    assert len(world.pools) == 5
    assert [notice.objects[0].name for notice in world.told(EventReason.NEVER_STARTS)] == ["apart"]


def test_jobset_passes_all_phases_and_leaves_the_memory_empty() -> None:
    workload = make_jobset()
    world = World(workload)
    world.run(2)
    world.finish_creates()
    world.run(1)
    world.schedule()
    world.run(2)
    world.remove_jobset(workload)
    world.run(35)
    world.finish_deletes()
    world.run(1)
    steps = [transition.new.value for plan in world.plans for transition in plan.transitions]
    assert steps == ["wanted", "provisioning", "ready", "in_use", "idle", "deleting", "gone"]
    assert (world.plans[-1].pools, world.pools) == ((), {})
    assert replace(world.memory, operations=Memory().operations, last_creation_duration=None) == Memory()


def test_decision_with_a_stale_watch_changes_nothing() -> None:
    world = World(make_jobset())
    world.put_pool(make_pool(make_jobset("gone")))
    world.memory = world.memory.with_pool(make_pool(make_jobset("gone")).name, unneeded_since=after(-1000))
    before = world.memory
    plan = world.look(not_synced=("the JobSet watch is stale",))
    assert (plan.creates, plan.deletes, plan.look_ups, plan.notices, plan.transitions) == ((), (), (), (), ())
    assert plan.memory is before


def test_jobset_that_requests_slice_resources_is_reported_and_gets_no_pool() -> None:
    """The newest release of the Go provisioner serves the JobSet by Slice resources, not by node pools."""
    workload = make_jobset(labels={constants.SLICE_AUTOPROVISIONING: "sync"})
    plan = World(workload).step()
    assert (plan.creates, plan.deletes) == ((), ())
    (said,) = plan.notices
    assert said.reason == "SliceAutoprovisioningNotServed"
    assert [(object_.kind, object_.name) for object_ in said.objects] == [("JobSet", "train")]
    assert "slice-autoprovisioning=sync requests Slice resources" in said.message


def test_old_pool_that_is_ready_again_does_not_end_the_back_off() -> None:
    """Only a newly created pool proves that capacity is available."""
    running, waiting = make_jobset("running"), make_jobset("waiting")
    world = World(running)
    pool = world.put_pool(make_pool(running))
    world.run(2)
    world.workloads[waiting.uid] = waiting
    world.start_pods(waiting)
    world.run(2)
    stocked_out(world, world.created[0])
    world.put(make_node(pool, 0, ready=False))
    world.run(3)
    world.put(make_node(pool, 0))
    world.run(15)
    assert len(world.created) == 1


def test_a_pool_with_errors_and_without_all_its_hosts_is_replaced_with_back_off() -> None:
    """GKE may repair the pool within NODEPOOL_READY_TIMEOUT. The create after its delete waits for the back-off."""
    workload = make_jobset()
    world = World(workload)
    world.run(2)
    (name,) = world.created
    pool = replace(world.pools[name], status=PoolStatus.RUNNING_WITH_ERROR)
    world.put(pool, make_node(pool, 0))
    world.run(88, seconds=10)
    assert (len(world.created), world.deleted) == (1, [])
    assert world.states()[name] == "provisioning"
    world.run(5, seconds=10)
    assert world.deleted == [name]
    assert len(world.created) == 1
    world.run(20)
    assert len(world.created) == 2
    assert world.deleted == [name]


def test_pool_whose_delete_failed_halfway_counts_as_failed_immediately() -> None:
    """GKE does not recreate the nodes that the failed delete removed."""
    workload = make_jobset()
    world = World(workload)
    world.run(2)
    (name,) = world.created
    half = replace(world.pools[name], status=PoolStatus.RUNNING_WITH_ERROR)
    world.put(half, make_node(half, 0))
    world.run(2)
    assert world.states()[name] == "provisioning"
    failed = DeleteCall(state=CallState.POSTPONED, since=world.now)
    world.memory = world.memory.with_pool(name, delete=failed)
    world.run(1)
    assert world.states()[name] == "failed"


def test_unused_pool_whose_nodes_keep_an_unknown_taint_is_deleted_after_10_minutes() -> None:
    """The next create waits, so a controller that taints all new nodes does not cause endless creates."""
    workload = make_jobset()
    world = World(workload)
    world.run(2)
    pool = replace(next(iter(world.pools.values())), status=PoolStatus.RUNNING)
    taints = (*make_node(pool).taints, strange_taint())
    world.put_pool(pool, taints=taints, created_at=world.now)
    world.run(58, seconds=10)
    assert not any(plan.notices for plan in world.plans)
    world.run(10, seconds=10)
    (message,) = {notice.message for notice in world.told(EventReason.STUCK)}
    assert "0/9 nodes are available: 9 Insufficient google.com/tpu." in message
    world.run(20, seconds=60)
    assert (len(world.created), world.deleted) == (1, world.created)


def stuck_world(**changes: Any) -> World:
    """Return a world in which a leader runs and its follower has been unschedulable for 601 s."""
    workload = make_jobset()
    world = World(workload, settings_=base_settings(**changes))
    pool = world.put_pool(make_pool(workload))
    world.put(make_pod(workload, node=make_node(pool).name), make_pod(workload, index=1, unschedulable=True))
    world.look()
    world.pass_time(601)
    return world


@pytest.mark.parametrize("replaced", [False, True])
def test_stuck_slice_is_replaced_only_if_the_setting_allows_it(*, replaced: bool) -> None:
    """A pod still runs on the pool, so without the setting its owner has to decide whether to end the job."""
    deletes = stuck_world(replace_stuck_slices=replaced).look().deletes
    want = [(DeleteReason.SLICE_STUCK, {group_key("default", "train-slice-0")})] if replaced else []
    assert [(delete.reason, delete.replaced_groups) for delete in deletes] == want


@pytest.mark.parametrize("changes", [{"labels": {constants.DISABLE: "true"}}, {}], ids=["unserved", "provisioning"])
def test_unserved_or_newly_served_slice_is_not_reported_as_stuck(changes: dict[str, Any]) -> None:
    world = World(make_jobset(**changes), settings_=base_settings(replace_stuck_slices=True))
    status = PoolStatus.RUNNING if changes else PoolStatus.PROVISIONING
    world.put_pool(make_pool(make_jobset(), status=status), ready=bool(changes))
    world.look()
    world.pass_time(601)
    assert world.look().notices == ()
    world.finish_creates()
    assert world.look().deletes == ()
    assert world.told(EventReason.STUCK) == []


def test_pools_are_polled_more_often_while_changes_are_expected() -> None:
    assert World(make_jobset()).look().poll_seconds == 2
    assert World().look().poll_seconds == 60
    full = World(make_jobset(replicas=4))
    full.memory = replace(full.memory, operations=OperationLimit(limit=2, rejected_at=full.now))
    plan = full.look()
    assert len(plan.creates) == 2
    assert plan.poll_seconds == 1
    assert "waits for other node pool operations" in note_of(plan.pools[-1], plan)


def test_next_decision_is_due_when_the_first_of_two_deletes_is() -> None:
    workloads = make_jobset("first"), make_jobset("second")
    world = World(*workloads)
    for workload in workloads:
        world.put_pool(make_pool(workload))
    world.schedule()
    world.remove_jobset(workloads[0])
    assert world.look().wake_at == after(30)
    world.pass_time(10)
    world.remove_jobset(workloads[1])
    assert world.look().wake_at == after(30)
    world.pass_time(20)
    plan = world.look()
    assert ([delete.name for delete in plan.deletes], plan.wake_at) == ([make_pool(workloads[0]).name], after(40))


@pytest.mark.parametrize("state", [CallState.UNDER_WAY, CallState.ACCEPTED])
def test_pool_name_is_not_used_again_while_its_delete_is_open(state: CallState) -> None:
    """Otherwise the delete would be attributed to the new pool, which would be deleted or replaced by a third pool."""
    workload = make_jobset()
    world = World(workload)
    world.memory = world.memory.with_pool(make_pool(workload).name, delete=DeleteCall(state=state, since=after(1)))
    world.run(4)
    assert world.created == [make_pool(workload, attempt=1).name]


def test_pool_name_is_not_used_again_while_nodes_of_the_earlier_pool_exist() -> None:
    """Pods of another slice on the old nodes would count as bound to the new pool, so a third pool would follow."""
    workload, other = make_jobset(), make_jobset("other")
    world = World(workload)
    world.workloads[other.uid] = other
    left = make_node(make_pool(workload))
    world.put(left, make_pod(other, node=left.name))
    world.run(4)
    assert world.created == [make_pool(workload, attempt=1).name]


def test_last_user_of_a_pool_is_forgotten_when_the_pool_is_deleted() -> None:
    """Otherwise the next pool of that name, which is created for another slice, would be kept for the last user."""
    workload, other = make_jobset(), make_jobset("other")
    world = World(workload)
    world.workloads[other.uid] = other
    lent = world.put_pool(make_pool(workload))
    world.pods.clear()
    world.put(make_pod(other, node=make_node(lent).name))
    world.run(2)
    assert {name for name, known in world.memory.pools.items() if known.last_user} == {lent.name}
    world.remove_pool(lent.name)
    world.end_pods(other)
    world.run(2)
    assert not any(known.last_user for known in world.memory.pools.values())
    world.start_pods(workload)
    world.run(4)
    assert world.created == [lent.name]


def test_given_up_pool_in_use_does_not_prevent_the_replacement_of_another() -> None:
    """A given-up pool in use is not replaced, so it must not count in the maximum share of pools being replaced."""
    used, other = make_jobset("used"), make_jobset("other")
    world = World(used, other)
    for workload in (used, other):
        pool = make_pool(workload)
        world.put(pool, make_node(pool, 0))
    for workload in (used, other):
        world.memory = world.memory.with_pool(
            make_pool(workload).name, given_up=workload is used, unready_since=after(-1000)
        )
    leader = make_pod(used, node=make_node(make_pool(used), 0).name)
    world.put(leader)
    world.run(4, seconds=20)
    assert make_pool(other).name in world.deleted
    assert make_pool(used).name not in world.deleted
