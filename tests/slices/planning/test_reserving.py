"""Chips are kept only for slices that can have them, and no more pools are closed than that takes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.model.workloads import PodGroup, Workload
from provisioner.slices.demand import group_key
from tests.slices.planning.test_starvation import Market, jobset_of
from tests.support.models import CHIP_TOLERATION, make_jobset, make_pod, make_requirements
from tests.support.settings import settings
from tests.support.world import World

#: Some of these tests live through hours of rounds.
pytestmark = pytest.mark.timeout(30)


def wait(market: Market, *, minutes: int) -> None:
    """Let time pass in steps of a quarter of a minute."""
    for _ in range(minutes * 4):
        market.step(seconds=15)


def closed(world: World) -> set[str]:
    """Name the pools with nodes that the provisioner has cordoned."""
    return {node.pool_name for node in world.nodes.values() if node.cordoned_by_us}


def test_a_jobset_that_the_limit_never_allows_in_full_reserves_nothing() -> None:
    """Its third slice waits for its own first two: what is left is for others."""
    world = World(jobset_of("big", "2x4x4", replicas=3), settings_=settings(max_chips=90))
    market = Market(world, seconds=5)
    wait(market, minutes=20)
    world.add(jobset_of("small", "2x2x1"))
    wait(market, minutes=2)
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
    wait(market, minutes=1)
    world.settings = replace(world.settings, **obstacle)  # type: ignore[arg-type]
    wait(market, minutes=20)
    assert not world.memory.turns
    assert not closed(world)


def mixed(name: str) -> Workload:
    """Return a JobSet that starts all together: 32 chips of one accelerator, and 32 of another."""
    jobs = tuple(
        PodGroup(
            name=group_name,
            replicas=1,
            parallelism=8,
            template=make_requirements(accelerator=accelerator, topology="2x4x4", tolerations=()),
        )
        for group_name, accelerator in (("slice", "tpu-v4-podslice"), ("other", "tpu-v5p-slice"))
    )
    return make_jobset(name, annotations={constants.ALL_OR_NOTHING: "true"}, groups=jobs)


def test_slices_of_two_accelerators_count_only_in_the_limit_of_their_own() -> None:
    """A gang asks for 32 chips of each, and 36 of one are allowed: it can be had, so chips are kept for it."""
    limits = (("tpu-v4-podslice", 36), ("tpu-v5p-slice", 64))
    world = World(jobset_of("full", "2x2x2"), settings_=settings(max_chips_per_accelerator=limits))
    market = Market(world, seconds=5)
    wait(market, minutes=1)
    gang = mixed("gang")
    world.add(gang)
    other = replace(gang.groups[1].template, tolerations=(CHIP_TOLERATION,))
    leader = make_pod(gang, requirements=other, unschedulable_since=world.now)
    key = group_key("default", "gang-other-0")
    world.put(replace(leader, name="gang-other-0-0-abcde", uid="uid-of-other", group_key=key))
    wait(market, minutes=11)
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
    wait(market, minutes=1)
    world.add(jobset_of("large", "2x4x4"))
    wait(market, minutes=2)
    assert len(closed(world)) == 20
    for workload in small[:8]:
        world.remove_jobset(workload)
    wait(market, minutes=3)
    assert "large" in market.ran_at
    assert not closed(world)


def test_pools_that_are_closed_stay_so_until_the_turn_is_over() -> None:
    """They are in use, so each round would open what an earlier one has closed; the pause opens them."""
    world = World(jobset_of("long", "2x4x4"), settings_=settings(max_chips=32))
    market = Market(world, seconds=5)
    wait(market, minutes=1)
    world.add(jobset_of("waits", "2x2x1", namespace="others"))
    wait(market, minutes=2)
    assert len(closed(world)) == 1
    plans = len(world.plans)
    wait(market, minutes=12)
    assert not any(plan.uncordons for plan in world.plans[plans:])
    wait(market, minutes=2)
    assert not closed(world)


def test_however_many_large_slices_wait_the_rest_is_not_kept_from_others() -> None:
    """A long run has 64 of 90 chips, and thirty slices of 64 come one after the other, all of them older."""
    world = World(jobset_of("long", "4x4x4"), settings_=settings(max_chips=90))
    market = Market(world, seconds=5)
    wait(market, minutes=1)
    for number in range(30):
        world.add(jobset_of(f"waits{number}", "4x4x4"))
        for _ in range(8):
            market.step(seconds=60)
    for number in range(3):
        world.add(jobset_of(f"small{number}", "2x2x1", namespace="others"))
        applied = world.now
        for _ in range(30):
            market.step(seconds=60)
        assert market.ran_at[f"small{number}"] - applied <= timedelta(minutes=16)
