"""Tests that a slice that cannot be created, or that a limit blocks, delays no other slice beyond a bound."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolStatus
from provisioner.slices.planning.plan import Create
from tests.support.market import Market, jobset_of
from tests.support.settings import settings
from tests.support.world import World, failure


def named(create: Create) -> str:
    return create.request.labels[constants.POOL_JOBSET_NAME]


@pytest.mark.parametrize("kind", [FailureKind.PERMISSION, FailureKind.UNAVAILABLE, FailureKind.NOT_FOUND])
def test_permanently_failing_slice_does_not_delay_slices_of_its_shape(kind: FailureKind) -> None:
    """GKE accepts each create, and each pool ends in ERROR for a reason that does not concern the capacity."""
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
def test_shape_that_is_always_out_of_stock_does_not_delay_other_shapes(missing: str, order: tuple[str, ...]) -> None:
    world = World()
    market = Market(world)
    market.fails = lambda name: failure(FailureKind.STOCKOUT) if name == missing else None
    for topology in order:
        world.add(jobset_of(topology, topology))
        market.step()
    market.run(60)
    assert market.ran_at.keys() == {*order} - {missing}


def test_slow_stockouts_of_large_shapes_do_not_block_a_small_slice() -> None:
    """Creates of four slices end in stockouts after 30 minutes, and GKE accepts two operations at the same time."""
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


def test_workload_that_waits_for_operations_does_not_block_the_capacity() -> None:
    world = World(jobset_of("pair", "2x2x1", replicas=2))
    market = Market(world)
    market.fails = lambda _name: failure(FailureKind.STOCKOUT)
    market.run(60)
    market.fails = lambda _name: None
    world.add(jobset_of("odd", "2x2x2"))
    world.refuse_create = lambda create: failure(FailureKind.TOO_MANY_OPERATIONS) if named(create) == "odd" else None
    market.run(180, seconds=10)
    assert "pair" in market.ran_at


def test_slice_blocked_by_its_namespace_limit_does_not_block_the_common_limit() -> None:
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


def test_rejected_slices_of_a_workload_are_tried_at_a_bounded_rate() -> None:
    """All 70 slices are tried once, then 8 more tries are made, then one per minute, even if other JobSets succeed."""
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


def test_failing_creates_of_a_namespace_do_not_block_other_creates() -> None:
    """70 JobSets are rejected. Another namespace gets a pool in the next round, their namespace within 19 minutes."""
    world = World(*(jobset_of(f"refused{number}", "2x2x2", namespace="many") for number in range(70)))
    world.refuse_create = lambda create: (
        failure(FailureKind.PERMISSION) if named(create).startswith("refused") else None
    )
    world.run(60)
    world.add(jobset_of("other", "2x2x1", namespace="other"))
    assert list(map(named, world.step().creates)) == ["other"]
    world.add(jobset_of("own", "2x2x1", namespace="many"))
    created = [named(create) for _ in range(110) for create in world.step(seconds=10).creates]
    # 110 rounds suffice even if all earlier JobSets of the namespace are tried first, at 6 creates per minute.
    assert "own" in created


def test_fifty_slices_are_served_within_seven_rounds_after_an_outage() -> None:
    """One create is sent first. When GKE has accepted it, the other slices follow, at most 32 in each round."""
    world = World(jobset_of("many", "2x2x2", replicas=50))
    world.refuse_create = lambda _create: failure(FailureKind.UNAVAILABLE)
    world.run(40)
    world.pass_time(60)
    world.refuse_create = lambda _create: None
    world.run(7)
    assert len(world.created) == 50


def test_failing_creates_of_a_namespace_in_an_outage_are_bounded() -> None:
    """Regardless of earlier successes, a namespace sends 64 creates that fail, and then 6 per minute."""
    world = World(jobset_of("well", "2x2x1", replicas=50))
    world.run(3)
    assert len(world.created) == 50
    world.add(*(jobset_of(f"refused{number}", "2x2x2", replicas=20) for number in range(6)))
    world.refuse_create = lambda _create: failure(FailureKind.UNAVAILABLE)
    sent = [len(world.step().creates) for _ in range(120)]
    # Up to 32 creates are sent before the first response, so the bound of 64 can be exceeded by 32.
    assert sum(sent[:60]) <= 64 + 32 + 7
    assert sum(sent[60:]) <= 7
