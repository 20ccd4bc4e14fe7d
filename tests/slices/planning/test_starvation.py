"""While one slice cannot be had, or waits for room, every other one is served within its usual bound."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from provisioner.slices.planning.turns import CREATES

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolStatus
from provisioner.slices.planning.plan import Create
from tests.support.market import Market, Stream, jobset_of
from tests.support.settings import settings
from tests.support.world import World, failure


def named(create: Create) -> str:
    """Return whose slice a create is for."""
    return create.request.labels[constants.POOL_JOBSET_NAME]


@pytest.mark.parametrize("kind", [FailureKind.PERMISSION, FailureKind.UNAVAILABLE, FailureKind.NOT_FOUND])
def test_whose_pools_fail_for_ever_delays_nobody_of_the_same_shape(kind: FailureKind) -> None:
    """GKE makes them and they end in ERROR, again and again, for a reason that says nothing of the capacity."""
    world = World(jobset_of("failing", "2x2x2"))
    market = Market(world)
    market.fails = lambda name: failure(kind) if name == "failing" else None
    market.run(100, seconds=30)
    made = sum(map(bool, (plan.creates for plan in world.plans)))
    assert 5 <= made <= 12
    for number in range(3):
        assert market.serves(jobset_of(f"later-{number}", "2x2x2"), within_seconds=60)


@pytest.mark.parametrize("order", list(itertools.permutations(("2x2x1", "2x2x4", "4x4x4"))), ids=" ".join)
@pytest.mark.parametrize("missing", ["2x2x1", "2x2x4", "4x4x4"])
def test_a_shape_that_is_out_of_stock_for_ever_delays_no_other(missing: str, order: tuple[str, ...]) -> None:
    world = World()
    market = Market(world)
    market.fails = lambda name: failure(FailureKind.STOCKOUT) if name == missing else None
    for topology in order:
        world.add(jobset_of(topology, topology))
        market.step()
    market.run(60)
    assert market.ran_at.keys() == {*order} - {missing}


def test_one_slice_at_a_time_tries_capacity_that_was_out_of_stock() -> None:
    """However long each has waited for its turn; a pool that is created for longer than a turn keeps nobody waiting."""
    world = World(*(jobset_of(f"job{number}", "2x2x2") for number in range(4)))
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT)
    world.run(60, seconds=60)
    world.refuse_create = lambda _: None
    first = len(world.created)
    while len(world.created) == first:
        world.step()
    world.run(14 * 60)
    assert len(world.created) == first + 1
    world.run(2 * 60)
    assert len(world.created) == first + 2


def test_slices_of_one_jobset_take_one_turn_together() -> None:
    """Twenty of one JobSet are out of stock for ever, one of another JobSet is not: it tries after two of theirs."""
    world = World(jobset_of("refused", "2x2x2", replicas=20))
    market = Market(world)
    world.refuse_create = lambda create: failure(FailureKind.STOCKOUT) if named(create) == "refused" else None
    market.run(300, seconds=15)
    assert market.serves(jobset_of("later", "2x2x2"), within_seconds=21 * 60, step_seconds=15)


def test_a_stream_of_newcomers_keeps_nobody_from_trying_again() -> None:
    """A newcomer's turn begins when it comes, not before."""
    world = World(jobset_of("old", "2x2x2"))
    market = Market(world, seconds=5)
    refused_until = world.now + timedelta(minutes=10)
    market.fails = lambda name: failure(FailureKind.STOCKOUT) if name != "old" or world.now < refused_until else None
    for second in range(0, 3600, 10):
        if second % 40 == 0:
            world.add(jobset_of(f"new{second}", "2x2x2"))
        for workload in list(world.workloads.values()):
            if workload.name != "old" and len(world.workloads) > 8:
                world.remove_jobset(workload)
                break
        market.step(seconds=10)
        if "old" in market.ran_at:
            return
    raise AssertionError("it never ran")


def test_stockouts_that_block_leave_operations_to_others() -> None:
    """Six shapes are out of stock for half an hour each, GKE takes five operations: a small slice comes through."""
    shapes = ("2x2x2", "2x2x4", "2x4x4", "4x4x4")
    world = World(*(jobset_of(f"big{number}", shape) for number, shape in enumerate(shapes)))
    market = Market(world, seconds=1800)
    market.fails = lambda name: failure(FailureKind.STOCKOUT) if name.startswith("big") else None

    def refuse(_create: Create) -> Failure | None:
        making = sum(pool.status is PoolStatus.PROVISIONING for pool in world.pools.values())
        return failure(FailureKind.TOO_MANY_OPERATIONS) if making >= 2 else None

    world.refuse_create = refuse
    market.run(360, seconds=30)
    market.seconds = 20
    making = [name for name, pool in world.pools.items() if pool.status is PoolStatus.PROVISIONING]
    later = world.now + timedelta(hours=9)
    market.begun.update({(name, PoolStatus.PROVISIONING): later for name in making})
    assert market.serves(jobset_of("small", "2x2x1"), within_seconds=120)


@pytest.mark.parametrize("first", [0, 1])
def test_who_is_next_for_an_operation_but_not_for_its_capacity_keeps_no_slice_of_its_workload_waiting(
    first: int,
) -> None:
    """GKE takes none of one JobSet for lack of operations: the other's slices try their capacity all the same."""
    world = World(jobset_of("pair", "2x2x1", replicas=2))
    market = Market(world)
    market.fails = lambda _name: failure(FailureKind.STOCKOUT)
    market.run(60)
    market.fails = lambda _name: None
    world.add(jobset_of("odd", "2x2x2"))
    world.refuse_create = lambda create: failure(FailureKind.TOO_MANY_OPERATIONS) if named(create) == "odd" else None
    tried = sorted(unit for resource, unit in world.memory.last_turns if resource == CREATES and len(unit) == 3)
    # Whichever has waited longer for an operation: the other one may be the first for its capacity.
    ago = {(CREATES, unit): world.now - timedelta(seconds=60 - (tried.index(unit) + first) % 2) for unit in tried}
    world.memory = replace(world.memory, last_turns={**world.memory.last_turns, **ago})
    market.run(180, seconds=10)
    assert "pair" in market.ran_at


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_chips": 32}, id="MAX_CHIPS"),
        pytest.param({"max_chips_per_namespace": (("default", 32),)}, id="MAX_CHIPS_PER_NAMESPACE"),
        pytest.param({"max_chips_per_accelerator": (("tpu-v4-podslice", 32),)}, id="MAX_CHIPS_PER_ACCELERATOR"),
    ],
)
def test_small_slices_do_not_keep_a_large_one_out_for_ever(limits: dict[str, object]) -> None:
    """In its turn what becomes free is kept for it; who waits for that is told so."""
    world = World(settings_=settings(deletion_delay_seconds=5.0, **limits))
    stream = Stream(Market(world, seconds=5), most=8, minutes=1, namespace="default")
    stream.run(12, seconds=5)
    world.add(jobset_of("large", "2x4x4"))
    assert stream.served("large", within_minutes=15)
    assert any("are reserved for a slice whose turn it is" in said.message for said in world.told())


def test_two_limits_at_once_do_not_keep_a_large_slice_out() -> None:
    """It keeps its turn within its namespace's limit until it has had one within the limit of all."""
    world = World(settings_=settings(deletion_delay_seconds=5.0, max_chips=64, max_chips_per_namespace=(("own", 32),)))
    market, count, began = Market(world, seconds=5), 0, world.now
    streams = {"own": ("2x2x1", 8, 120)} | {f"other{number}": ("2x2x4", 3, 600) for number in range(4)}
    while "large" not in market.ran_at and world.now - began < timedelta(hours=2):
        for namespace, (topology, most, seconds) in streams.items():
            there = [each for each in world.workloads.values() if each.namespace == namespace and each.name != "large"]
            for each in there:
                ran_at = market.ran_at.get(each.name)
                if ran_at is not None and world.now - ran_at > timedelta(seconds=seconds):
                    world.remove_jobset(each)
            for _ in range(most - len(there)):
                world.add(jobset_of(f"stream{count}", topology, namespace=namespace))
                count += 1
        if began + timedelta(minutes=5) <= world.now < began + timedelta(minutes=5, seconds=5):
            world.add(jobset_of("large", "2x4x4", namespace="own"))
        market.step(seconds=5)
    assert market.ran_at["large"] - began < timedelta(hours=1)


def test_a_limit_of_its_own_namespace_reserves_nothing_of_the_others() -> None:
    """Who is kept out by its namespace's limit must not hold what other namespaces may have."""
    world = World(
        jobset_of("full", "2x2x2", namespace="team-a"),
        settings_=settings(max_chips=24, max_chips_per_namespace=(("team-a", 8),)),
    )
    market = Market(world, seconds=5)
    market.run(30)
    world.add(jobset_of("waits", "2x2x2", namespace="team-a"))
    market.run(80, seconds=15)
    world.add(jobset_of("other", "2x2x4", namespace="team-b"))
    market.run(30)
    assert market.ran_at.keys() == {"full", "other"}


def test_many_slices_that_are_refused_try_no_more_than_their_workload_may() -> None:
    """Each once and eight more, then one a minute, whatever GKE takes of others in their namespace."""
    world = World(jobset_of("refused", "2x2x2", replicas=70))
    world.refuse_create = lambda create: failure(FailureKind.PERMISSION) if named(create) == "refused" else None
    tried: Counter[str] = Counter()
    for minute in range(60):
        if minute % 10 == 5:
            world.add(jobset_of(f"honest-{minute}", "2x2x1"))
        for _ in range(6):
            tried.update(map(named, world.step(seconds=10).creates))
    assert 78 <= tried.pop("refused") <= 78 + 61
    assert tried == {f"honest-{minute}": 1 for minute in range(5, 60, 10)}


def test_a_namespace_in_which_much_fails_keeps_no_other_from_its_creates() -> None:
    """Seventy JobSets are refused, and more come: another namespace's is created at once, their own's soon."""
    world = World(*(jobset_of(f"refused{number}", "2x2x2", namespace="many") for number in range(70)))
    world.refuse_create = lambda create: (
        failure(FailureKind.PERMISSION) if named(create).startswith("refused") else None
    )
    world.run(60)
    world.add(jobset_of("other", "2x2x1", namespace="other"))
    assert list(map(named, world.step().creates)) == ["other"]
    world.add(jobset_of("own", "2x2x1", namespace="many"))
    created = [named(create) for _ in range(110) for create in world.step(seconds=10).creates]
    # After those that came before it.
    assert "own" in created


def test_an_outage_under_many_slices_is_soon_over_for_all() -> None:
    """Each create that GKE takes lets two more try: fifty are served seven rounds after the first."""
    world = World(jobset_of("many", "2x2x2", replicas=50))
    world.refuse_create = lambda _create: failure(FailureKind.UNAVAILABLE)
    world.run(40)
    world.pass_time(60)
    world.refuse_create = lambda _create: None
    world.run(7)
    assert len(world.created) == 50


def test_an_outage_does_not_become_as_many_calls_as_there_are_slices() -> None:
    """Whatever GKE took before it, a namespace sends 64 creates that fail and then six a minute."""
    world = World(jobset_of("well", "2x2x1", replicas=50))
    world.run(3)
    assert len(world.created) == 50
    world.add(*(jobset_of(f"refused{number}", "2x2x2", replicas=20) for number in range(6)))
    world.refuse_create = lambda _create: failure(FailureKind.UNAVAILABLE)
    sent = [len(world.step().creates) for _ in range(120)]
    # What was sent before the first answer came is beyond that.
    assert sum(sent[:60]) <= 64 + 32 + 7
    assert sum(sent[60:]) <= 7
