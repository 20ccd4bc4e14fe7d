"""Tests of whole decisions over many rounds of a simulated cluster, and of the data that a round derives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import FailureKind, Node, NodePool, PoolName, PoolStatus
from provisioner.model.workloads import Pod, Workload
from provisioner.slices.demand import group_key
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.messages.waits import note_of
from provisioner.slices.planning.memory.state import CallState, DeleteCall, Memory, OperationLimit, PoolMemory
from provisioner.slices.planning.plan import DeleteReason
from provisioner.slices.planning.round import OwnedPool, Round, Snapshot, begin_round, find_pools
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.clock import NOW, after
from tests.support.models import make_jobset, make_node, make_nodes, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure


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
    world.fail_pool(world.created[0], failure(FailureKind.STOCKOUT))
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


@pytest.mark.parametrize("replaced", [False, True])
def test_stuck_slice_with_a_pod_and_ready_nodes_is_replaced_only_by_setting(*, replaced: bool) -> None:
    """A pod still runs on the pool, so without the setting its owner has to decide whether to end the job."""
    workload = make_jobset()
    world = World(workload, settings_=settings(replace_stuck_slices=replaced))
    pool = world.put_pool(make_pool(workload))
    world.put(make_pod(workload, node=make_node(pool).name), make_pod(workload, index=1, unschedulable=True))
    world.look()
    world.pass_time(601)
    deletes = world.look().deletes
    want = [(DeleteReason.SLICE_STUCK, {group_key("default", "train-slice-0")})] if replaced else []
    assert [(delete.reason, delete.replaced_groups) for delete in deletes] == want


@pytest.mark.parametrize("changes", [{"labels": {constants.DISABLE: "true"}}, {}], ids=["unserved", "provisioning"])
def test_unserved_slice_or_slice_with_a_new_pool_is_not_reported_as_stuck(changes: dict[str, Any]) -> None:
    world = World(make_jobset(**changes), settings_=settings(replace_stuck_slices=True))
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


# --- Data that a round derives from a snapshot ---


OPT_IN = settings(opt_in_label=("tpu", "yes"))


class CountedLabels(dict[str, dict[str, str]]):
    """Namespace labels that count how often they are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedLabels.compared += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def round_after(last: Round | None, world: World, labels: dict[str, dict[str, str]]) -> Round:
    snapshot = replace(world.snapshot(), namespace_labels=labels)
    return begin_round(snapshot, world.memory, OPT_IN, GKE_RULES, world.now, last)


def waiting(count: int) -> tuple[list[Workload], World]:
    workloads = [make_jobset(f"train-{index}", replicas=1) for index in range(count)]
    return workloads, World(*workloads)


def test_namespace_labels_are_compared_once_per_round() -> None:
    """Otherwise a user who may create namespaces could slow down every decision."""
    _, world = waiting(20)
    last = round_after(None, world, CountedLabels(default={"tpu": "yes"}))
    CountedLabels.compared = 0
    now = round_after(last, world, CountedLabels(default={"tpu": "yes"}))
    assert all(now.slices[slice_id] is slice_ for slice_id, slice_ in last.slices.items())
    assert CountedLabels.compared == 1


def test_slices_of_a_namespace_that_is_no_longer_served_are_unserved() -> None:
    _, world = waiting(2)
    before = round_after(None, world, {"default": {"tpu": "yes"}})
    after = round_after(before, world, {"default": {}})
    assert [slice_.served for slice_ in before.slices.values()] == [True, True]
    assert [slice_.served for slice_ in after.slices.values()] == [False, False]


def test_changed_pod_changes_only_the_slices_of_its_workload() -> None:
    workloads, world = waiting(3)
    labels = {"default": {"tpu": "yes"}}
    before = round_after(None, world, labels)
    pod: Pod = make_pod(workloads[0], node="somewhere")
    world.put(pod)
    after = round_after(before, world, labels)
    changed: list[Any] = [
        slice_id for slice_id in after.slices if after.slices[slice_id] is not before.slices[slice_id]
    ]
    assert [slice_id.workload_uid for slice_id in changed] == [workloads[0].uid]
    assert not after.slices[changed[0]].pending


FOUR_CHIPS = make_pool(make_jobset())
ONE_CHIP = make_pool(
    make_jobset(parallelism=1, template=make_requirements(accelerator="tpu-v5-lite-podslice", topology="1x1", chips=1))
)


def found(
    pool: NodePool, *, nodes: Iterable[Node] = (), memory: Memory | None = None, seconds: float = 0, last: Any = None
) -> OwnedPool:
    """Return the facts of a pool, `seconds` after NOW; `last` is its result in the round before."""
    snapshot = Snapshot(pools=(pool,), nodes=tuple(nodes), pools_listed_at=NOW)
    before = {pool.name: last} if last is not None else {}
    return find_pools(snapshot, memory or Memory(), settings(), GKE_RULES, after(seconds), before)[pool.name]


@pytest.mark.parametrize(
    ("pool", "chips", "ready"),
    [
        pytest.param(ONE_CHIP, 1, True, id="a host of one chip with its chip"),
        pytest.param(ONE_CHIP, 0, False, id="a host of one chip before its device plugin has started"),
        pytest.param(FOUR_CHIPS, 4, True, id="hosts of four chips with all"),
        pytest.param(FOUR_CHIPS, 3, False, id="hosts of four chips, one of which is broken"),
        pytest.param(replace(ONE_CHIP, machine_type="ct99-new"), 0, False, id="an unknown machine without chips"),
        pytest.param(replace(ONE_CHIP, machine_type="ct99-new"), 1, True, id="an unknown machine with a chip"),
    ],
)
def test_a_host_is_ready_with_all_its_chips(pool: NodePool, chips: int, *, ready: bool) -> None:
    """A node is Ready before its device plugin reports the chips, and pods that request chips do not fit yet."""
    assert found(pool, nodes=make_nodes(pool, allocatable_chips=chips)).ready is ready


def test_chips_of_a_pool_are_the_chips_of_all_its_hosts() -> None:
    pools = (ONE_CHIP, FOUR_CHIPS, replace(FOUR_CHIPS, machine_type="ct99-new"))
    assert [found(pool, nodes=make_nodes(pool)).chips for pool in pools] == [1, 8, 0]


def test_unready_time_of_a_running_pool_is_the_first_round_without_all_hosts() -> None:
    partly = replace(FOUR_CHIPS, hosts=3)
    nodes = make_nodes(FOUR_CHIPS)
    known = Memory(pools={PoolName(FOUR_CHIPS.name): PoolMemory(unready_since=after(-60))})
    for pool, memory, want in (
        (partly, Memory(), NOW),
        (partly, known, after(-60)),
        (FOUR_CHIPS, known, None),
        (replace(partly, status=PoolStatus.PROVISIONING), known, None),
    ):
        assert found(pool, nodes=nodes, memory=memory).unready_since == want


def test_facts_of_a_pool_in_creation_are_reused_until_its_status_changes() -> None:
    """Otherwise each round during a burst of creates would derive the facts of all pools in creation again."""
    creating = replace(FOUR_CHIPS, status=PoolStatus.PROVISIONING)
    first = found(creating)
    memory = Memory(pools={creating.name: PoolMemory(passing=first.passing)})
    assert found(creating, memory=memory, seconds=60, last=first) is first
    stopping = found(replace(creating, status=PoolStatus.STOPPING), memory=memory, seconds=60, last=first)
    assert stopping.passing == (PoolStatus.STOPPING, after(60))
    # The clock was set back, and the times in the memory were shifted as well.
    earlier = Memory(pools={creating.name: PoolMemory(passing=(PoolStatus.PROVISIONING, after(-60)))})
    assert found(creating, memory=earlier, seconds=60, last=first).passing == (PoolStatus.PROVISIONING, after(-60))
