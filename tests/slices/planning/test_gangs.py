"""Tests of all-or-nothing: the slices of a JobSet start together, and partly served JobSets do not deadlock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.capacity import CapacityKind, Failure, FailureKind, PoolName, PoolStatus
from provisioner.model.choices import parse_choices
from provisioner.model.placement import FREE
from provisioner.model.workloads import PodGroup, Workload
from provisioner.slices.demand import SliceId, group_key
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.contention.waits import WaitKind
from provisioner.slices.planning.memory.state import Claim, Gang, Hold, SliceMemory
from provisioner.slices.planning.plan import Create, DeleteReason, Plan
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.clock import after
from tests.support.market import Market, add_mixed, gang
from tests.support.models import SPOT_TOLERATION, make_jobset, make_pod, make_pool, make_requirements, make_slice
from tests.support.objects import raw_buffer
from tests.support.settings import settings
from tests.support.world import World, failure

HOLD = 1200.0
STOCKOUT = failure(FailureKind.STOCKOUT, "No v4 left.")
V4, V5P = "tpu-v4-podslice", "tpu-v5p-slice"


def world_of(*workloads: Workload, pools: float = float("inf"), **changes: Any) -> World:
    world = World(*workloads, settings_=settings(**{"partial_hold_seconds": HOLD} | changes), marked=True)
    world.refuse_create = room_for(world, pools)
    return world


def room_for(world: World, pools: float) -> Callable[[Create], Failure | None]:
    """Return a function for `World.refuse_create`: a stockout while `pools` pools or more exist, also STOPPING ones."""
    return lambda _: STOCKOUT if len(world.pools) >= pools else None


def held(world: World) -> set[PoolName]:
    return {node.pool_name for node in world.nodes.values() if node.labels.get(constants.SLICE) == constants.SLICE_FREE}


def assigned(plan: Plan) -> list[str]:
    return [node for node, labels, _ in plan.assignments if labels != FREE]


def reasons(world: World) -> list[DeleteReason]:
    return [delete.reason for plan in world.plans for delete in plan.deletes]


# --- Slices that start together ---


def test_ready_slice_is_held_until_the_other_slice_is_ready() -> None:
    workload = gang()
    world = world_of(workload, pools=1)
    world.live(100)
    assert (len(world.pools), world.bound(workload)) == (1, 0)
    assert held(world) == set(world.pools)
    world.refuse_create = lambda _: None
    world.live(200)
    assert world.bound(workload) == 2
    assert [len(assigned(plan)) for plan in world.plans if assigned(plan)] == [4]
    assert (held(world), world.deleted, world.memory.gangs) == (set(), [], {})


def test_held_slice_is_reported_under_one_key_during_the_whole_hold() -> None:
    workload = gang(replicas=3)
    world = world_of(workload, pools=1, partial_hold_seconds=7200.0)
    world.live(100)
    world.refuse_create = room_for(world, 2)
    world.live(150, seconds=10)
    said = world.told(EventReason.HELD_FOR_OTHERS)
    assert {notice.key for notice in said} == set(world.pools)
    assert not any(notice.warning for notice in said)
    assert "1 of 3 are" in said[0].message
    assert "2 of 3 are" in said[-1].message
    assert world.told(EventReason.STUCK) == []


@pytest.mark.parametrize(
    ("setting", "annotation", "replicas", "together"),
    [
        pytest.param(False, None, 2, False, id="neither setting nor annotation"),
        pytest.param(True, None, 2, True, id="setting"),
        pytest.param(True, "false", 2, False, id="annotation overrides setting"),
        pytest.param(False, "true", 2, True, id="annotation"),
        pytest.param(True, "true", 1, False, id="JobSet of one slice"),
    ],
)
def test_pool_is_held_only_if_setting_or_annotation_requests_all_or_nothing(
    *, setting: bool, annotation: str | None, replicas: int, together: bool
) -> None:
    annotations = {constants.ALL_OR_NOTHING: annotation} if annotation else {}
    workload = make_jobset(replicas=replicas, annotations=annotations)
    world = world_of(workload, pools=1, all_or_nothing=setting)
    world.live(10)
    assert (held(world) == set(world.pools)) is together
    assert world.bound(workload) == (0 if together else 1)


def test_slices_without_pods_do_not_delay_the_slices_with_pods() -> None:
    """With dependsOn, the JobSet controller creates the pods of the second group later than those of the first."""
    workload = gang()
    (first,) = workload.groups
    later = PodGroup(name="later", replicas=1, parallelism=2, template=first.template)
    workload = replace(workload, groups=(first, later))
    world = world_of(workload)
    world.live(5)
    assert world.bound(workload) == 2
    name = "train-later-0"
    world.put(make_pod(workload, name=f"{name}-0-abcde", uid=name, group_key=group_key("default", name)))
    world.live(5)
    assert world.bound(workload) == 3
    assert (len(world.created), world.deleted) == (3, [])


# --- Release of pools ---


def test_ready_slices_are_released_after_the_hold_if_no_further_slice_is_ready() -> None:
    """The deletion delay does not apply to released pools."""
    workload = gang()
    world = world_of(workload, pools=1, deletion_delay_seconds=3600.0)
    world.live(2)
    world.live(120, seconds=10)
    assert world.deleted == []
    world.live(3, seconds=10)
    assert reasons(world) == [DeleteReason.GIVEN_BACK]
    world.live(5, seconds=10)
    assert len(world.created) == 1
    assert world.pools == {}
    queued = world.plans[-1].notices
    assert [notice.reason for notice in queued] == [EventReason.CREATION_WAITING] * 2
    assert all("were released because not all of them were available; next try" in notice.message for notice in queued)
    assert world.plans[-1].wake_at is not None
    world.refuse_create = lambda _: None
    world.live(200, seconds=10)
    assert world.bound(workload) == 2


def test_released_pool_is_deleted_without_settling() -> None:
    """No pod with chips can be bound to a free pool. In the past, its nodes were cordoned for 60 s before a delete."""
    world = world_of(gang(), pools=1)
    world.live(2)
    world.live(125, seconds=10)
    assert [delete.settle for plan in world.plans for delete in plan.deletes] == [False]


def test_ready_slices_are_held_while_the_pool_of_another_is_in_creation() -> None:
    """The pool in creation may be ready soon. If its create fails instead, the slices that are ready are released."""
    workload = gang(replicas=3)
    world = world_of(workload)
    world.run(2)
    first, second, third = world.created
    world.put_pool(replace(world.pools[first], status=PoolStatus.RUNNING))
    world.run(40, seconds=60)
    world.put_pool(replace(world.pools[second], status=PoolStatus.RUNNING))
    world.run(40, seconds=60)
    assert world.deleted == []
    world.refuse_create = lambda _: STOCKOUT
    world.fail_pool(third, STOCKOUT)
    world.run(3, seconds=60)
    assert set(reasons(world)) == {DeleteReason.POOL_FAILED, DeleteReason.GIVEN_BACK}
    assert sorted(world.deleted) == sorted([first, second, third])


def test_hold_is_not_restarted_by_a_node_that_is_repeatedly_unready() -> None:
    workload = gang()
    world = world_of(workload, pools=1)
    world.live(2)
    node = next(iter(world.nodes.values()))
    for _ in range(15):
        world.put(replace(node, ready=False))
        world.live(1, seconds=50)
        world.put(node)
        world.live(1, seconds=50)
    assert reasons(world) == [DeleteReason.GIVEN_BACK]


def test_bound_pods_keep_running_when_another_slice_loses_its_pool() -> None:
    workload = gang(replicas=3)
    world = world_of(workload)
    world.live(5)
    lost, *others = sorted(world.pools)
    world.refuse_create = room_for(world, 2)
    world.remove_pool(lost)
    world.pods = {uid: pod for uid, pod in world.pods.items() if not pod.node_name.startswith(f"gke-{lost}")}
    job = next(index for index in range(3) if make_pool(workload, job=index).name == lost)
    world.put(make_pod(workload, job=job, unschedulable_since=world.now))
    world.live(200, seconds=60)
    assert (world.bound(workload), world.deleted, sorted(world.pools)) == (2, [], others)
    world.refuse_create = lambda _: None
    world.live(60, seconds=60)
    assert world.bound(workload) == 3
    assert held(world) == set()


@pytest.mark.parametrize("together", [False, True], ids=["one slice", "all-or-nothing"])
def test_unneeded_held_pool_serves_the_next_jobset_with_or_without_all_or_nothing(*, together: bool) -> None:
    workload, other = gang("first"), gang("other") if together else make_jobset("other")
    world = world_of(workload, pools=1, deletion_delay_seconds=3600.0)
    world.live(20)
    world.remove_jobset(workload)
    world.live(2)
    world.add(other)
    world.live(10)
    assert (world.bound(other), len(world.created), len(held(world))) == ((0, 1, 1) if together else (1, 1, 0))
    world.refuse_create = lambda _: None
    world.live(60)
    assert (world.bound(other), len(world.created)) == ((2, 2) if together else (1, 1))


# --- Create all pools or none ---


def test_all_or_nothing_jobset_with_an_impossible_slice_gets_no_pool_and_reports_why() -> None:
    """A JobSet without all-or-nothing gets the pools of its possible slices."""
    together, apart = gang("together"), make_jobset("apart", replicas=2)
    world = world_of(together, apart)
    for workload in (together, apart):
        world.put(make_pod(workload, job=1, requirements=make_requirements(topology="3x3x3"), marked=True))
    plan = world.look()
    assert [create.workload.name for create in plan.creates] == ["apart"]
    said = {notice.objects[0].name.removesuffix("-0-abcde"): notice for notice in plan.notices}
    assert said.keys() == {"together-slice-0", "together-slice-1", "apart-slice-1"}
    assert said["together-slice-1"].reason == EventReason.INVALID_REQUEST
    waits = said["together-slice-0"]
    assert waits.reason == EventReason.CREATION_WAITING
    assert (
        "the slices of JobSet together start together: no choice of capacity is available for slice together-slice-1"
        in waits.message
    )
    assert "3x3x3" in waits.message


def test_other_slices_are_retried_only_when_the_pool_of_the_rejected_slice_is_up() -> None:
    """In the past, the pools of the other slices were created and released up to four times in five hours.

    GKE may accept a create and report the rejection when the operation ends; the other slices wait until then.
    """
    workload = gang(replicas=3)
    world = world_of(workload)
    refused = group_key("default", "train-slice-1")
    world.refuse_create = lambda create: (
        failure(FailureKind.INVALID, "Gang size is 8.") if create.slice_id.group_key == refused else None
    )
    world.live(300, seconds=60)
    assert len(world.created) == 2
    assert reasons(world) == [DeleteReason.GIVEN_BACK] * 2
    tried = [[create.slice_id.group_key for create in plan.creates] for plan in world.plans[1:] if plan.creates]
    assert tried == [[refused]] * len(tried)
    assert len(tried) >= 3
    plan = world.plans[-1]
    assert {notice.reason for notice in plan.notices} == {EventReason.CREATION_WAITING, EventReason.CREATION_FAILED}
    assert all("Gang size is 8." in notice.message for notice in plan.notices)
    world.refuse_create = lambda _: None
    while len(world.created) == 2:
        world.step(seconds=60)
    world.run(20, seconds=60)
    assert len(world.created) == 3
    waits = [notice.message for notice in world.plans[-1].notices]
    assert any(
        "because GKE rejected its node pool before, slice train-slice-1 is tried first" in wait for wait in waits
    )
    world.live(20, seconds=60)
    assert (len(world.created), world.bound(workload)) == (5, 3)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"max_chips": 23}, "MAX_CHIPS"),
        ({"max_chips_per_namespace": (("default", 16),)}, "MAX_CHIPS_PER_NAMESPACE"),
        ({"max_pools_per_jobset": 2}, "MAX_POOLS_PER_JOBSET"),
        ({"max_creates_per_hour": 2}, "MAX_CREATES_PER_HOUR"),
    ],
)
def test_limit_too_low_for_all_slices_prevents_every_create_of_the_jobset(changes: dict[str, Any], limit: str) -> None:
    world = world_of(gang("a", replicas=3), gang("b"), **changes)
    plan = world.look()
    assert [wait.causes for wait in plan.waits.values()] == [(limit,)] * 3
    assert [create.workload.name for create in plan.creates] == ["b", "b"]
    assert all("start together: Limit of " in notice.message and limit in notice.message for notice in plan.notices[:3])


def flex_start() -> tuple[World, Workload]:
    workload = gang(template=make_requirements(accelerator=V5P, tolerations=()))
    return world_of(workload, capacity=parse_choices("flex-start")), workload


def test_flex_start_pools_wait_for_the_first_nodes_without_a_time_limit() -> None:
    """The hold starts when a slice is ready; the second pool then has PARTIAL_HOLD (20 minutes) to get its nodes."""
    world, workload = flex_start()
    world.live(600, seconds=60)
    assert (len(world.created), world.deleted) == (2, [])
    world.bring_nodes(world.created[0])
    world.live(19, seconds=60)
    assert (world.bound(workload), world.deleted) == (0, [])
    world.bring_nodes(world.created[1])
    world.live(3, seconds=60)
    assert (world.bound(workload), world.deleted) == (2, [])


def test_hold_for_a_flex_start_pool_starts_when_gke_has_created_it() -> None:
    """The first slice has been ready for longer than PARTIAL_HOLD when the second pool is RUNNING without nodes."""
    world, _ = flex_start()
    world.run(2)
    first, second = world.created
    world.put(replace(world.pools[first], status=PoolStatus.RUNNING))
    world.bring_nodes(first)
    world.run(40, seconds=60)
    world.put(replace(world.pools[second], status=PoolStatus.RUNNING))
    world.run(19, seconds=60)
    assert world.deleted == []
    world.run(3, seconds=60)
    assert set(reasons(world)) == {DeleteReason.GIVEN_BACK}


# --- Holds and pauses ---


def half_served(*workloads: Workload, pools: int, **changes: Any) -> World:
    """Return a world in which each JobSet has one pool, and whose zone has capacity for `pools` pools in total."""
    world = world_of(*workloads, **changes)
    world.refuse_create = lambda create: (
        None if create.slice_id.group_key == group_key("default", f"{create.workload.name}-slice-0") else STOCKOUT
    )
    world.live(2)
    assert len(world.pools) == len(workloads)
    world.refuse_create = room_for(world, pools)
    return world


def holder(world: World, accelerator: str = V4) -> str:
    """Return the name of the workload that holds an accelerator, "pause" after its release, or empty if none."""
    hold = world.memory.holds.get(accelerator)
    if hold is None:
        return ""
    return "pause" if hold.released else world.workloads[hold.workload].name


def test_workload_that_released_its_pools_gets_the_next_hold_while_others_wait() -> None:
    first, second, other = gang("first", replicas=3), gang("second"), gang("other")
    world = half_served(first, second, pools=2)
    while holder(world) != "first":
        world.live(1, seconds=10)
    world.add(other)
    plan = world.live(1, seconds=10)
    messages = {notice.objects[1].name: notice.message for notice in plan.notices if len(notice.objects) > 1}
    for name in ("second", "other"):
        assert f"another workload that starts together holds slices of {V4}" in messages[name]
    places = {plan.waits[wait].position for wait in plan.waits if wait.workload_uid in (second.uid, other.uid)}
    assert places == {1, 2}
    world.refuse_create = room_for(world, 3)
    world.live(70, seconds=10)
    assert [world.bound(workload) for workload in (first, second, other)] == [3, 0, 0]


def test_complete_workload_keeps_the_free_pools_that_it_counts_on_when_its_hold_ends() -> None:
    """The hold ends as soon as the workload is complete; then the next workload in the queue may take free pools."""
    small, large = gang("small", replicas=1), gang("large", replicas=2)
    world = world_of(small, large, pools=1)
    free = world.put_pool(make_pool(make_jobset("gone")))
    hold = Hold(workload=small.uid, since=world.now)
    queued = {workload.uid: Gang(queues=True) for workload in (small, large)}
    world.memory = replace(world.memory, gangs=queued, holds={V4: hold})
    claims = [world.look().memory.slice(make_slice(small).id).claim for _ in range(3)]
    assert [claim is not None and claim.pool for claim in claims] == [free.name] * 3


@pytest.mark.parametrize("minutes", [1, 7])
def test_workload_waits_for_its_turn_after_its_claim_has_expired(minutes: int) -> None:
    """A claim of a slice with pods expires after 6 minutes."""
    small, large = gang("small", replicas=1), gang("large", replicas=2)
    world = world_of(small, large)
    pool, slice_id = world.put_pool(make_pool(make_jobset("gone"))), make_slice(small).id
    claim = Claim(pool=pool.name, since=after(-60.0 * minutes), has_pods=True, looked=True)
    hold = Hold(workload=large.uid, since=world.now)
    world.memory = replace(
        world.memory,
        gangs={large.uid: Gang(queues=True)},
        holds={V4: hold},
        slices={slice_id: SliceMemory(claim=claim)},
    )
    waits = world.look().waits.get(slice_id)
    assert (waits is not None and waits.kind is WaitKind.HOLD) is (minutes == 7)


def test_hold_passes_on_after_a_pause_without_creates_if_there_is_no_stock() -> None:
    """Spot, which the first JobSet selects, stays out of stock. The second JobSet waits for one hold and one pause."""
    spot = make_requirements(selector={constants.SPOT: "true"}, tolerations=(SPOT_TOLERATION,))
    first, second = gang("first", template=spot), gang("second")
    world = half_served(first, second, pools=2)
    while holder(world) != "first":
        world.live(1, seconds=60)
    world.refuse_create = lambda create: STOCKOUT if create.request.capacity is CapacityKind.SPOT else None
    seen = ["first"]
    for _ in range(60):
        world.live(1, seconds=60)
        seen += [holder(world)] if holder(world) != seen[-1] else []
        if holder(world) == "pause" and world.memory.holds[V4].until is not None:
            assert not world.plans[-1].creates
    assert (seen[:3], world.bound(second)) == (["first", "pause", "second"], 2)


@pytest.mark.parametrize("namespaces", [2, 3])
def test_honest_workload_is_served_within_one_hold_and_pause_per_namespace(namespaces: int) -> None:
    """All namespaces except one permanently request more pools than the zone has."""
    world = world_of(pools=2)
    world.add(*(gang(f"greedy{number}", f"n{number}", 4) for number in range(1, namespaces)))
    world.live(10, seconds=30)
    honest = gang("honest", "honest", 2)
    world.add(honest)
    pause_seconds = 900.0
    bound = namespaces * (HOLD + pause_seconds + 120.0)
    while world.bound(honest) < 2 and bound > 0:
        world.live(1, seconds=30)
        bound -= 30
    assert world.bound(honest) == 2


def test_pause_begins_although_other_pools_of_the_workload_are_in_use() -> None:
    """Two of four slices have lost their pools, and capacity is left for one. The pause lasts 15 minutes."""
    workload = gang(replicas=4)
    world = world_of(workload)
    world.live(5)
    for job in range(2):
        world.remove_pool(make_pool(workload, job=job).name)
        world.end_pods(workload, job)
        world.put(make_pod(workload, job=job, unschedulable_since=world.now, marked=True))
    world.refuse_create = room_for(world, 3)
    while holder(world) != "pause":
        world.live(1, seconds=30)
    world.live(34, seconds=30)
    assert (world.bound(workload), holder(world)) == (2, "train")


def test_pause_begins_although_a_buffer_counts_on_a_pool_of_the_workload() -> None:
    """In the past, the pause began only after 45 minutes, because the pool that the buffer counted on was kept."""
    workload = gang()
    world = Asking(marked=True, partial_hold_seconds=HOLD)
    world.refuse_create = room_for(world, 1)
    world.add(workload)
    world.live(3)
    world.ask(raw_buffer("warm", replicas=1))
    while holder(world) != "pause":
        world.live(1, seconds=30)
    world.live(34, seconds=30)
    assert (len(world.pools), reasons(world), holder(world)) == (1, [], "train")


def test_pause_begins_after_the_delete_of_a_pool_that_an_expired_slice_counted_on() -> None:
    """An expired slice keeps its claim on the pool. In the past, the pause began while the pool was being deleted."""
    world = world_of(gang(replicas=3), pools=2)
    world.live(115, seconds=10)
    world.add(make_jobset("rival", namespace="other"))
    while not all(pool.status is PoolStatus.STOPPING for pool in world.pools.values()):
        world.step(seconds=10)
    first, last = world.deleted
    world.refuse_create = lambda _: STOCKOUT
    begun = []
    for name in (first, last):
        world.remove_pool(name)
        world.run(2)
        begun.append(world.memory.holds[V4].until is not None)
    assert begun == [False, True]


@pytest.mark.parametrize("apart_minutes", [1, 20])
def test_workload_of_two_accelerators_is_served_between_workloads_of_one(apart_minutes: int) -> None:
    """In the past, a JobSet held pools of one accelerator for 66 h while it waited for the second accelerator."""
    world = world_of()
    stock = {"ct4p": 1, "ct5p": 1}

    def refuse(create: Create) -> Failure | None:
        machine = create.request.machine_type[:4]
        used = sum(pool.machine_type.startswith(machine) for pool in world.pools.values())
        return STOCKOUT if used >= stock[machine] else None

    world.refuse_create = refuse
    for number, accelerator in enumerate((V4, V5P)):
        template = make_requirements(accelerator=accelerator, tolerations=())
        world.add(gang(f"greedy{number}", f"n{number}", 2, template=template))
        world.live(apart_minutes, seconds=60)
    mixed = add_mixed(world, "honest", "2x2x2")
    for _ in range(150):
        world.live(1, seconds=60)
        held_by = {hold.workload for hold in world.memory.holds.values() if not hold.released}
        if mixed.uid in held_by:
            # While the JobSet holds an accelerator, no other workload may hold its second accelerator.
            assert held_by == {mixed.uid}
    assert world.bound(mixed) == 2


def test_accelerator_is_not_held_by_a_workload_that_waits_for_another() -> None:
    """In the past, a JobSet that needs v4 and v5p blocked v4 for up to 66 h while v5p was out of stock."""
    world = world_of()
    world.refuse_create = lambda create: STOCKOUT if create.request.machine_type.startswith("ct5p") else None
    world.add(*(gang(f"greedy{n}", "mallory", 2, template=make_requirements(accelerator=V5P)) for n in range(3)))
    add_mixed(world, "mallory", "2x2x2")
    world.live(240, seconds=60)
    honest = gang("honest", "honest", 2)
    world.add(honest)
    world.live(75, seconds=60)
    assert world.bound(honest) == 2


def test_ended_slice_is_not_reported_as_held() -> None:
    """The JobSet keeps the pool of the ended slice for a restart, while another of its slices waits for a pool."""
    workload = gang()
    world = world_of(workload)
    world.live(5)
    assert world.bound(workload) == 2
    lost = make_pool(workload, job=1).name
    world.remove_pool(lost)
    world.pods = {}
    world.put(make_pod(workload, job=1, unschedulable_since=world.now))
    plan = world.look()
    assert [create.request.name for create in plan.creates] == [lost]
    assert EventReason.HELD_FOR_OTHERS not in {notice.reason for notice in plan.notices}


def test_unmarked_all_or_nothing_workload_gets_a_notice_how_to_mark_its_pods() -> None:
    for marked, told in ((False, 1), (True, 0)):
        world = World(gang("train"), marked=marked)
        plan = world.step()
        found = [notice for notice in plan.notices if notice.reason == EventReason.NOT_MARKED]
        assert len(found) == told
        assert all(f"label namespace default {constants.PLACEMENT}=assign" in notice.message for notice in found)
        assert len(plan.creates) == 2


# --- Arbitrary workloads and holds ---


@pytest.mark.timeout(60)  # 40 worlds, each of up to 1,500 rounds
@hypothesis_settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(2, 4), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(0, 2),
    st.integers(0, 3),
)
def test_every_workload_that_starts_together_is_served_and_never_in_part(
    sizes: list[tuple[int, int]], spare: int, slow: int
) -> None:
    world = world_of(pools=max(size for size, _ in sizes) + spare)
    market = Market(world, seconds=60.0 * slow)
    for number in range(1500):
        world.add(*(gang(f"job{index}", replicas=size) for index, (size, comes) in enumerate(sizes) if comes == number))
        market.step(seconds=60)
        for workload in list(world.workloads.values()):
            bound = world.bound(workload)
            assert bound in (0, workload.groups[0].replicas)
            if bound and world.now - market.ran_at[workload.name] >= timedelta(minutes=10):
                world.finish(workload)
        if len(market.ran_at) == len(sizes):
            return
    raise AssertionError(f"{len(market.ran_at)} of {len(sizes)} JobSets were served")


@pytest.mark.parametrize("hold", [0.0, 1.0, 30.0])
def test_decision_that_releases_pools_creates_none_and_creates_remain_rare(hold: float) -> None:
    """In the past, a decision that released pools also created a pool, which was deleted immediately."""
    world = world_of(gang(), pools=1, partial_hold_seconds=hold)
    releases = 0
    for _ in range(300):
        before = world.memory.gangs
        plan = world.live(1)
        for uid, state in plan.memory.gangs.items():
            held_until_now = before.get(uid, Gang()).since is not None
            if held_until_now and state == Gang(queues=True):
                releases += 1
                assert plan.creates == ()
                (said,) = (notice for notice in plan.notices if notice.reason == EventReason.CREATION_WAITING)
                assert "were released because not all of them were available" in said.message
    assert releases >= 2
    # A hold takes at most 30 s and a pause at least 60 s, so only a few pools are created.
    assert 2 <= len(world.created) <= 10


@pytest.mark.parametrize(
    ("impossible", "limits"),
    [
        pytest.param(FailureKind.INVALID, {}, id="GKE rejects a slice"),
        pytest.param(None, {"max_chips": 16}, id="more chips than MAX_CHIPS"),
        pytest.param(None, {"max_pools_per_jobset": 2}, id="more pools than MAX_POOLS_PER_JOBSET"),
    ],
)
def test_workload_that_can_never_be_served_holds_no_pools(
    impossible: FailureKind | None, limits: dict[str, int]
) -> None:
    first, second = gang("first", replicas=3), gang("second", replicas=2)
    world = world_of(first, **limits)

    refused = failure(impossible) if impossible is not None else None
    last = SliceId(first.uid, group_key("default", "first-slice-2"))
    world.refuse_create = lambda create: refused if create.slice_id == last else None
    world.memory = replace(world.memory, gangs={first.uid: Gang(queues=True)})
    world.live(30)
    world.add(second)
    world.live(60)
    assert world.bound(second) == 2
    world.live(130, seconds=10)
    assert {pool.labels[constants.POOL_JOBSET_NAME] for pool in world.pools.values()} == {"second"}


#: Requirements of a buffer whose pools no slice of `gang` can use.
SPOT_REQUIREMENTS = make_requirements(selector={constants.SPOT: "true"}, tolerations=(SPOT_TOLERATION,))


def waiting_for_room(hold: float) -> tuple[World, Workload]:
    """Return a world in which an all-or-nothing JobSet is queued, and pools of a buffer use all chips of the limit."""
    train = gang("train")
    world = Asking(raw_buffer("warm", replicas=2), marked=True, max_chips=16, partial_hold_seconds=hold)
    world.templates = {("default", "template"): SPOT_REQUIREMENTS}
    world.live(5)
    assert len(world.pools) == 2
    world.add(train)
    world.memory = replace(world.memory, gangs={train.uid: Gang(queues=True)})
    return world, train


def test_hold_lasts_while_pools_of_buffers_are_deleted_to_make_room() -> None:
    """In the past, a PARTIAL_HOLD shorter than a delete ended the hold first, and the buffer took the chips again."""
    world, train = waiting_for_room(15.0)
    for _ in range(20):
        world.run(40)
        world.finish_creates()
        world.finish_deletes()
        world.schedule()
    assert world.bound(train) == 2
    assert len(world.created) == 4


def test_chips_of_all_slices_that_start_together_are_withheld_from_buffers() -> None:
    """If the limit has room for one of the slices, a buffer must not use it: its pool would be deleted again."""
    train = gang("train")
    world = Asking(raw_buffer("warm", replicas=3), marked=True, max_chips=24)
    world.templates = {("default", "template"): SPOT_REQUIREMENTS}
    world.live(5)
    assert len(world.pools) == 3
    world.add(train)
    for _ in range(10):
        world.step()
        # GKE deletes the pools of the buffer one after the other.
        stopping = [name for name, pool in world.pools.items() if pool.status is PoolStatus.STOPPING]
        world.remove_pool(min(stopping, default=PoolName("")))
        world.finish_creates()
        world.schedule()
    assert (world.bound(train), len(world.created)) == (2, 5)


@pytest.mark.parametrize("bound", [0, 1])
def test_chips_are_withheld_for_a_missing_slice_while_another_slice_has_a_pool(bound: int) -> None:
    one_host = make_requirements(topology="2x2x1", tolerations=())
    low, lowest = (make_jobset(name, parallelism=1, template=one_host) for name in ("low", "lowest"))
    train, world = gang("train"), world_of(max_chips=20)
    pool = world.put_pool(make_pool(train, job=bound))
    world.workloads[train.uid] = train
    node = next(node.name for node in world.nodes.values() if node.pool_name == pool.name)
    # The leader of the slice with the pool waits again, because its node was lost.
    world.put(make_pod(train, job=bound, index=1, node=node, marked=True, priority=5))
    for job in range(2):
        world.put(make_pod(train, job=job, unschedulable_since=world.now, marked=True, priority=5))
    world.put_pool(make_pool(make_jobset("busy")), labels={constants.SLICE: "of-another"})
    for workload, priority in ((low, -10), (lowest, -20)):
        world.add_with_pod(workload, unschedulable_since=world.now, marked=True, priority=priority)
    assert world.look().creates == ()


@pytest.mark.parametrize("hold", [0.0, 15.0])
def test_deletes_extend_a_hold_by_ten_minutes_at_most_and_cause_no_rapid_decisions(hold: float) -> None:
    """Deletes by other tenants must not extend a hold without limit, and a wait for them must not use a whole core."""
    world, _ = waiting_for_room(hold)
    world.run(2)
    begun = world.now
    while holder(world) == "train":
        now = world.now
        plan = world.step(seconds=15)
        assert plan.wake_at is None or plan.wake_at > now or holder(world) != "train"
    assert timedelta(seconds=590) <= world.now - begun <= timedelta(seconds=645)
