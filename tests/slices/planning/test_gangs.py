"""All or nothing: the slices of one JobSet start together, and half-served JobSets do not wait for each other."""

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
from provisioner.model.workloads import PodGroup, Workload
from provisioner.slices.demand import group_key
from provisioner.slices.planning.memory.state import Gang
from provisioner.slices.planning.plan import Create, DeleteReason
from tests.support.market import Market, gang
from tests.support.models import SPOT_TOLERATION, make_jobset, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World, failure

HOLD = 1200.0
STOCKOUT = failure(FailureKind.STOCKOUT, "No v4 left.")
#: What any JobSet's pods ask for.
SHARED = make_requirements(tolerations=())


def world_of(*workloads: Workload, pools: float = float("inf"), **changes: Any) -> World:
    """Return a world whose zone has room for so many pools."""
    world = World(*workloads, settings_=settings(**{"partial_hold_seconds": HOLD} | changes), marked=True)
    world.refuse_create = room_for(world, pools)
    return world


def room_for(world: World, pools: float) -> Callable[[Create], Failure | None]:
    """Let GKE run out of stock with so many pools there, those that stop included."""
    return lambda _: STOCKOUT if len(world.pools) >= pools else None


def held(world: World) -> set[PoolName]:
    """Return the pools that are kept free."""
    return {node.pool_name for node in world.nodes.values() if node.labels.get(constants.SLICE) == constants.SLICE_FREE}


def reasons(world: World) -> list[DeleteReason]:
    """Return why pools were deleted."""
    return [delete.reason for plan in world.plans for delete in plan.deletes]


# --- Start together ---


def test_a_slice_that_is_there_is_held_until_the_other_is() -> None:
    """Its leader is not bound; then both are, and both nodes of both pools are let go."""
    workload = gang()
    world = world_of(workload, pools=1)
    world.live(100)
    assert (len(world.pools), world.bound(workload)) == (1, 0)
    assert held(world) == set(world.pools)
    assert not any(plan.releases for plan in world.plans)
    world.refuse_create = lambda _: None
    world.live(200)
    assert world.bound(workload) == 2
    assert [len(plan.releases) for plan in world.plans if plan.releases] == [4]
    assert (held(world), world.deleted, world.memory.gangs) == (set(), [], {})


def test_that_a_slice_is_held_is_told_under_one_key() -> None:
    """However long it lasts and however many others come; it is no warning, and nobody is called stuck."""
    workload = gang(replicas=3)
    world = world_of(workload, pools=1, partial_hold_seconds=7200.0)
    world.live(100)
    world.refuse_create = room_for(world, 2)
    world.live(150, seconds=10)
    said = world.told(constants.HELD_FOR_OTHERS)
    assert {notice.key for notice in said} == set(world.pools)
    assert not any(notice.warning for notice in said)
    assert "1 of 3 are" in said[0].message
    assert "2 of 3 are" in said[-1].message
    assert world.told(constants.STUCK) == []


@pytest.mark.parametrize(
    ("setting", "annotation", "replicas", "together"),
    [
        pytest.param(False, None, 2, False, id="nobody asks for it"),
        pytest.param(True, None, 2, True, id="the setting does"),
        pytest.param(True, "false", 2, False, id="the annotation goes before the setting"),
        pytest.param(False, "true", 2, True, id="the annotation does"),
        pytest.param(True, "true", 1, False, id="a JobSet of one slice has none to wait for"),
    ],
)
def test_only_who_asks_for_it_is_held(*, setting: bool, annotation: str | None, replicas: int, together: bool) -> None:
    """Pools of all others come without the taint."""
    annotations = {constants.ALL_OR_NOTHING: annotation} if annotation else {}
    workload = make_jobset(replicas=replicas, annotations=annotations)
    world = world_of(workload, pools=1, all_or_nothing=setting)
    world.live(10)
    assert [HELD_TAINT in pool.taints for pool in world.pools.values()] == [together]
    assert world.bound(workload) == (0 if together else 1)


def test_slices_that_come_later_do_not_hold_the_others() -> None:
    """Under dependsOn the JobSet controller makes their pods when the first ones run."""
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


# --- Give back ---


def test_what_is_there_is_given_back_when_no_further_slice_comes() -> None:
    """At once when its time is over, not before; then the JobSet waits as long again, is told so, and tries anew."""
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
    assert [notice.reason for notice in queued] == [constants.CREATION_WAITING] * 2
    assert all("were given back, next try" in notice.message for notice in queued)
    assert world.plans[-1].wake_at is not None
    world.refuse_create = lambda _: None
    world.live(200, seconds=10)
    assert world.bound(workload) == 2


def test_a_slice_in_the_making_is_waited_for_however_long_gke_takes() -> None:
    """It may be there in a moment; when it fails instead, the time is over."""
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


def test_a_node_that_comes_and_goes_does_not_begin_the_time_anew() -> None:
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


def test_no_pod_that_is_bound_is_ever_touched() -> None:
    """A slice of a complete JobSet loses its pool and gets no other: those that run go on."""
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


def test_a_held_pool_that_nobody_needs_serves_a_jobset_that_does_not_wait() -> None:
    """Its taint comes off as soon as the other counts on it."""
    workload, other = gang(), make_jobset("other")
    world = world_of(workload, pools=1, deletion_delay_seconds=3600.0)
    world.live(20)
    world.remove_jobset(workload)
    world.live(2)
    world.add(other)
    world.live(3)
    assert (world.bound(other), len(world.created), held(world)) == (1, 1, set())


def test_a_held_pool_that_nobody_needs_is_held_for_the_next_that_waits() -> None:
    """It counts as one of its slices, where nothing keeps the two apart."""
    workload, other = gang("first", template=SHARED), gang("second", template=SHARED)
    world = world_of(workload, pools=1, deletion_delay_seconds=3600.0)
    world.live(20)
    world.remove_jobset(workload)
    world.live(2)
    world.add(other)
    world.live(10)
    assert (world.bound(other), len(world.created)) == (0, 1)
    world.refuse_create = lambda _: None
    world.live(60)
    assert (world.bound(other), len(world.created)) == (2, 2)


# --- Buy all or none ---


def with_pod(world: World, workload: Workload, job: int, **requirements: Any) -> None:
    """Let the leader of one slice ask for something else."""
    world.put(make_pod(workload, job=job, requirements=make_requirements(**requirements)))


def test_a_jobset_with_one_impossible_slice_buys_nothing_and_says_why() -> None:
    """Each slice is told in its own terms; JobSets that do not start together buy what they can."""
    together, apart = gang("together"), make_jobset("apart", replicas=2)
    world = world_of(together, apart)
    for workload in (together, apart):
        with_pod(world, workload, 1, topology="3x3x3")
    plan = world.look()
    assert [create.workload.name for create in plan.creates] == ["apart"]
    said = {notice.objects[0].name.removesuffix("-0-abcde"): notice for notice in plan.notices}
    assert said.keys() == {"together-slice-0", "together-slice-1", "apart-slice-1"}
    assert said["together-slice-1"].reason == constants.INVALID_REQUEST
    waits = said["together-slice-0"]
    assert waits.reason == constants.CREATION_WAITING
    assert (
        "the slices of JobSet together start together: no choice of capacity is available for slice together-slice-1"
        in waits.message
    )
    assert "3x3x3" in waits.message


def test_a_slice_that_gke_refuses_for_good_ends_the_buying_of_the_others() -> None:
    """They would be held for nothing, over and over."""
    workload = gang()
    world = world_of(workload)
    refused = group_key("default", "train-slice-1")
    world.refuse_create = lambda create: (
        failure(FailureKind.INVALID, "Gang size is 8.") if create.slice_id.group_key == refused else None
    )
    world.live(300, seconds=60)
    assert len(world.created) == 1
    assert reasons(world) == [DeleteReason.GIVEN_BACK]
    plan = world.plans[-1]
    assert {notice.reason for notice in plan.notices} == {constants.CREATION_WAITING, constants.CREATION_FAILED}
    assert all("Gang size is 8." in notice.message for notice in plan.notices)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"max_chips": 23}, "MAX_CHIPS"),
        ({"max_chips_per_namespace": (("default", 16),)}, "MAX_CHIPS_PER_NAMESPACE"),
        ({"max_pools_per_jobset": 2}, "MAX_POOLS_PER_JOBSET"),
        ({"max_creates_per_hour": 2}, "MAX_CREATES_PER_HOUR"),
    ],
)
def test_limits_that_cannot_hold_all_slices_let_none_be_bought(changes: dict[str, Any], limit: str) -> None:
    """The limit is named, and another JobSet that fits is served."""
    world = world_of(gang("a", replicas=3), gang("b"), **changes)
    plan = world.look()
    assert [create.workload.name for create in plan.creates] == ["b", "b"]
    assert all(f"start together: {limit} allows" in notice.message for notice in plan.notices[:3])


# --- Late capacity ---


def test_flex_start_pools_without_nodes_are_waited_for_however_long() -> None:
    """Nothing is there that could be given back; once one is there, the other has its time to come."""
    template = make_requirements(accelerator="tpu-v5p-slice", tolerations=())
    workload = gang(template=template)
    world = world_of(workload, capacity=parse_choices("flex-start"))
    world.live(600, seconds=60)
    assert (len(world.created), world.deleted) == (2, [])
    world.bring_nodes(world.created[0])
    world.live(19, seconds=60)
    assert (world.bound(workload), world.deleted) == (0, [])
    world.bring_nodes(world.created[1])
    world.live(3, seconds=60)
    assert (world.bound(workload), world.deleted) == (2, [])


def test_a_flex_start_pool_has_its_time_however_long_gke_took_to_create_it() -> None:
    """The first slice has been ready for longer than that when the other's pool is up: its nodes come after that."""
    template = make_requirements(accelerator="tpu-v5p-slice", tolerations=())
    workload = gang(template=template)
    world = world_of(workload, capacity=parse_choices("flex-start"))
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


# --- Turns ---


def half_served(*workloads: Workload, pools: int, **changes: Any) -> World:
    """Return a world in which each JobSet has got one slice, and no more are to be had."""
    world = world_of(*workloads, **changes)
    world.refuse_create = lambda create: (
        None if create.slice_id.group_key == group_key("default", f"{create.workload.name}-slice-0") else STOCKOUT
    )
    world.live(2)
    assert len(world.pools) == len(workloads)
    world.refuse_create = room_for(world, pools)
    return world


def test_newcomers_wait_while_another_tries_for_all_its_slices() -> None:
    """What becomes free is for the one that waits longer; all are told for whom they wait."""
    first, second, other = gang("first", replicas=3, template=SHARED), gang("second", template=SHARED), gang("other")
    world = half_served(first, second, pools=2)
    world.live(130, seconds=10)
    world.add(other)
    plan = world.live(1, seconds=10)
    words = {notice.objects[1].name: notice.message for notice in plan.notices}
    waits = "another workload has its turn for all its tpu-v4-podslice slices until "
    assert f"{waits}12:35:12 UTC at the latest; this one is number 1 of 2 in the queue" in words["second"]
    assert f"{waits}12:35:12 UTC at the latest; this one is number 2 of 2 in the queue" in words["other"]
    assert "2 of 3 are" in words["first"]
    world.refuse_create = room_for(world, 3)
    world.live(70, seconds=10)
    assert [world.bound(workload) for workload in (first, second, other)] == [3, 0, 0]
    assert world.deleted == [], "what the second gave back served the first"


def test_who_tried_in_vain_in_the_pause_has_the_next_turn() -> None:
    """What it got has failed and is being deleted at the end of the pause: it waits like those that have nothing."""
    large, small = gang("large", replicas=3), gang("small")
    world = world_of(large, small, partial_hold_seconds=60.0)
    world.refuse_create = lambda create: STOCKOUT if create.workload.name == "small" or len(world.pools) >= 2 else None
    while not reasons(world):
        world.live(1, seconds=10)
    world.refuse_create = lambda _: None
    while not any("small" in name for name in world.created):
        world.step(seconds=10)
    world.refuse_create = room_for(world, 0)
    for name in [name for name in world.pools if "small" in name]:
        world.fail_pool(name, STOCKOUT)
    world.step(seconds=10)
    while (turn := next(iter(world.memory.turns.values()))).holder is None:
        world.step(seconds=10)
    assert turn.holder.workload_uid == small.uid


def test_a_turn_ends_in_which_nothing_is_to_be_had() -> None:
    """The first in the queue selects spot, which is taken away and out of stock for days; the next does not."""
    spot = make_requirements(selector={constants.SPOT: "true"}, tolerations=(SPOT_TOLERATION,))
    first, second = gang("first", template=spot), gang("second")
    world = half_served(first, second, pools=2)
    world.live(122, seconds=10)
    assert len(world.memory.turns) == 1
    for name in [name for name, pool in world.pools.items() if pool.capacity is CapacityKind.SPOT]:
        world.remove_pool(name)
    world.refuse_create = lambda create: STOCKOUT if create.request.capacity is CapacityKind.SPOT else None
    world.live(10, seconds=60)
    assert world.bound(second) == 0
    world.live(50, seconds=60)
    assert world.bound(second) == 2


def test_no_leader_of_another_jobset_takes_a_place_that_was_let_go() -> None:
    """Else a JobSet runs in part for ever: what pods are on is not given back."""
    large, small = gang("large", replicas=3), gang("small")
    world = world_of(large, pools=2)
    world.order = str
    world.live(150, seconds=10)
    world.add(small)
    world.live(60, seconds=10)
    assert (world.bound(large), world.bound(small)) == (0, 2)


def test_a_slice_that_has_ended_is_not_told_that_it_is_held() -> None:
    """Its JobSet keeps the pool for a restart, and another slice of it waits for a pool."""
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
    assert constants.HELD_FOR_OTHERS not in {each.reason for each in plan.notices}


def test_jobsets_that_start_together_are_told_when_others_fit_their_nodes() -> None:
    """The scheduler puts any leader that fits on nodes that were let go."""
    shared = make_jobset("shared", replicas=2, annotations={constants.ALL_OR_NOTHING: "true"})
    for workload, want in ((shared, 2), (gang("separate"), 0)):
        plan = World(workload).step()
        told = [each for each in plan.notices if each.reason == constants.NOT_SEPARATE]
        assert len(told) == want
        assert all(f"nodeSelector {constants.LEGACY_POOL_ID}: shared" in each.message for each in told)


# --- Whatever happens ---


@pytest.mark.timeout(60)  # 40 worlds, each of up to 1,500 rounds
@hypothesis_settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(2, 4), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(0, 2),
    st.integers(0, 3),
)
def test_every_jobset_has_its_turn(sizes: list[tuple[int, int]], spare: int, slow: int) -> None:
    """As long as the zone has room for each of them alone; and none runs in part."""
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
def test_a_hold_of_nothing_is_no_loop(hold: float) -> None:
    """What is only partly there goes at once, and the next try waits."""
    world = world_of(gang(), pools=1, partial_hold_seconds=hold)
    world.live(300)
    # A turn takes a few seconds; each pause between them is a minute at least.
    assert 2 <= len(world.created) <= 10


@pytest.mark.parametrize(
    ("impossible", "limits"),
    [
        pytest.param(FailureKind.INVALID, {}, id="GKE refuses one of its slices"),
        pytest.param(None, {"max_chips": 16}, id="its slices are more than MAX_CHIPS"),
        pytest.param(None, {"max_pools_per_jobset": 2}, id="its slices are more than MAX_POOLS_PER_JOBSET"),
    ],
)
def test_who_can_never_be_served_takes_no_turns(impossible: FailureKind | None, limits: dict[str, int]) -> None:
    """A new JobSet does not wait an hour for one that will never start; what that one had is given back."""
    first, second = gang("first", replicas=3), gang("second", replicas=2)
    world = world_of(first, **limits)

    def refuse(create: Create) -> Failure | None:
        mine = create.slice_id.workload_uid == first.uid
        last = create.slice_id.group_key == group_key("default", "first-slice-2")
        if mine and last and impossible is not None:
            return failure(impossible)
        return None

    world.refuse_create = refuse
    world.memory = replace(world.memory, gangs={first.uid: Gang(queues=True)})
    world.live(30)
    world.add(second)
    world.live(60)
    assert world.bound(second) == 2
    world.live(130, seconds=10)
    assert {pool.labels[constants.POOL_JOBSET_NAME] for pool in world.pools.values()} == {"second"}
