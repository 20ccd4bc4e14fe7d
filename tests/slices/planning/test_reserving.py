"""Chips are kept only for slices that can have them, and no more pools are closed than that takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.market import Market, add_mixed, jobset_of
from tests.support.settings import settings
from tests.support.world import World


def closed(world: World) -> set[str]:
    """Name the pools with nodes that the provisioner has cordoned."""
    return {node.pool_name for node in world.nodes.values() if node.cordoned_by_us}


def test_a_jobset_that_the_limit_never_allows_in_full_reserves_nothing() -> None:
    """Its third slice waits for its own first two: what is left is for others."""
    world = World(jobset_of("big", "2x4x4", replicas=3), settings_=settings(max_chips=90))
    market = Market(world, seconds=5)
    market.run(80, seconds=15)
    world.add(jobset_of("small", "2x2x1"))
    market.run(8, seconds=15)
    assert "small" in market.ran_at
    assert not world.memory.turns


@pytest.mark.parametrize(
    "obstacle",
    [
        pytest.param({"pause_creation": True}, id="PAUSE_CREATION"),
        pytest.param({"max_pools_per_jobset": 1}, id="MAX_POOLS_PER_JOBSET"),
        pytest.param({"max_creates_per_hour": 0}, id="MAX_CREATES_PER_HOUR"),
    ],
)
def test_who_is_kept_out_by_another_limit_too_reserves_nothing(obstacle: dict[str, object]) -> None:
    """Chips would not help it, and closed pools would hurt others."""
    world = World(jobset_of("full", "2x4x4"), settings_=settings(max_chips=40))
    market = Market(world, seconds=5)
    world.add(jobset_of("waits", "2x2x2", replicas=2))
    market.run(4, seconds=15)
    world.settings = replace(world.settings, **obstacle)  # type: ignore[arg-type]
    market.run(80, seconds=15)
    assert not world.memory.turns
    assert not closed(world)


def test_slices_of_two_accelerators_count_only_in_the_limit_of_their_own() -> None:
    """A gang asks for 32 chips of each, and 36 of one are allowed: it can be had, so chips are kept for it."""
    limits = (("tpu-v4-podslice", 36), ("tpu-v5p-slice", 64))
    world = World(jobset_of("full", "2x2x2"), settings_=settings(max_chips_per_accelerator=limits))
    market = Market(world, seconds=5)
    market.run(4, seconds=15)
    gang = add_mixed(world, "gang", "2x4x4")
    market.run(44, seconds=15)
    # 36 less 32 are missing: the pool of 8 chips is closed.
    ((resource, turn),) = world.memory.turns.items()
    assert resource == "limit accelerator tpu-v4-podslice"
    assert turn.holder is not None
    assert turn.holder.workload_uid == gang.uid
    assert len(closed(world)) == 1


def test_all_pools_in_use_are_closed_until_enough_are_free() -> None:
    """Nobody knows which pods end first: a long run may be among those that would be chosen."""
    small = [jobset_of(f"small{number:02}", "2x2x1") for number in range(20)]
    world = World(*small, settings_=settings(max_chips=80, deletion_delay_seconds=3600.0))
    market = Market(world, seconds=5)
    market.run(4, seconds=15)
    world.add(jobset_of("large", "2x4x4"))
    market.run(8, seconds=15)
    assert len(closed(world)) == 20
    for workload in small[:8]:
        world.remove_jobset(workload)
    market.run(12, seconds=15)
    assert "large" in market.ran_at
    assert not closed(world)


def test_however_many_large_slices_wait_the_rest_is_not_kept_from_others() -> None:
    """A long run has 64 of 90 chips, and thirty slices of 64 come one after the other, all of them older."""
    world = World(jobset_of("long", "4x4x4"), settings_=settings(max_chips=90))
    market = Market(world, seconds=5)
    market.run(4, seconds=15)
    for number in range(30):
        world.add(jobset_of(f"waits{number}", "4x4x4"))
        market.run(8, seconds=60)
    for number in range(3):
        small = jobset_of(f"small{number}", "2x2x1", namespace="others")
        assert market.serves(small, within_seconds=16 * 60, step_seconds=60)
