"""Somebody sets the clock while the controller runs: what was to happen in a minute happens in a minute."""

from __future__ import annotations

from datetime import timedelta

import pytest

from provisioner.model.capacity import FailureKind, PoolStatus
from tests.support.controller import World, jobset_path

BOTH_WAYS = pytest.mark.parametrize(
    "by",
    [
        pytest.param(timedelta(hours=-2), id="set back by two hours"),
        pytest.param(timedelta(hours=2), id="set forward by two hours"),
    ],
)


class SetClock:
    """A time of day that somebody sets, over a world's steady clock."""

    def __init__(self, world: World) -> None:
        self._now = world.clock.now
        self.by = timedelta()
        world.clock.now = lambda: self._now() + self.by  # type: ignore[method-assign]


@BOTH_WAYS
def test_the_deletion_delay_is_as_long_as_ever(by: timedelta) -> None:
    """A pool goes after its delay: not two hours later, and not at once."""
    world = World()
    clock = SetClock(world)
    world.start()
    pool = world.run_to_use()
    world.remove_leader()
    world.kube.remove_object(jobset_path("train"))
    world.round(after_seconds=3)
    clock.by = by
    world.round(after_seconds=3)
    world.round(after_seconds=3)
    assert world.gke.pools[pool].status is PoolStatus.RUNNING
    world.rounds(4, every_seconds=15)
    assert world.gke.pools[pool].status is PoolStatus.STOPPING


@BOTH_WAYS
def test_a_clock_that_is_set_within_a_round_is_followed_once(by: timedelta) -> None:
    """What is stamped with the new time in that very round is not moved along once more in the next."""
    world = World()
    clock = SetClock(world)
    loop = world.start()
    load = loop.store.load

    def load_meanwhile() -> dict[str, str]:
        clock.by = by
        return load()

    loop.store.load = load_meanwhile  # type: ignore[method-assign]
    world.round()
    assert clock.by == by
    world.round(after_seconds=3)
    assert 0.0 <= loop.pools.age_seconds(world.clock.now()) <= 60.0


@BOTH_WAYS
def test_an_answer_from_before_the_change_counts_from_its_moment(by: timedelta) -> None:
    """A create that was rejected just before the clock was set waits as long as ever."""
    world = World()
    clock = SetClock(world)
    world.start()
    world.gke.fail_always("create_node_pool", FailureKind.PERMISSION)
    world.put_jobset()
    world.round()
    clock.by = by
    world.rounds(4, every_seconds=10)
    assert world.gke.counts()["create_node_pool"] == 1
    world.rounds(4, every_seconds=10)
    assert world.gke.counts()["create_node_pool"] == 2


def test_what_is_stamped_before_the_change_is_noticed_is_stamped_by_the_old_clock() -> None:
    """So that it can be moved along with everything else, once."""
    world = World()
    clock = SetClock(world)
    before = world.time()
    clock.by = timedelta(hours=2)
    assert world.time() == before
    assert world.time.follow() == timedelta(hours=2)
    assert world.time() == before + timedelta(hours=2)
    assert world.time.follow() == timedelta()
