"""Pods that the scheduler may be binding right now hold the idle pools that they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner.model.capacity import PoolStatus
from provisioner.slices.planning.memory.state import Memory
from tests.support.clock import after
from tests.support.counting import counted
from tests.support.models import make_jobset, make_node, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World


def idle_world(**changes: Any) -> World:
    """Return a world with one idle pool, made for a JobSet that is gone, and nothing to wait for but its delay."""
    world = World(settings_=settings(deletion_delay_seconds=0.0, **changes))
    world.put_pool(make_pool(make_jobset("gone")))
    return world


def test_nothing_holds_a_pool_that_nothing_waits_for() -> None:
    """It goes at once."""
    assert len(idle_world().look().deletes) == 1


@pytest.mark.parametrize(
    ("served", "topology", "want_held"),
    [
        pytest.param(True, "2x2x2", True, id="a leader that fits"),
        pytest.param(False, "2x2x2", True, id="a leader that fits and is not served"),
        pytest.param(True, "2x2x4", False, id="a leader of another shape"),
    ],
)
def test_a_leader_that_the_scheduler_has_not_judged_holds_what_it_fits(
    *, served: bool, topology: str, want_held: bool
) -> None:
    """For a minute from its creation, and no longer."""
    world = idle_world(namespaces=() if served else ("another",))
    template = make_requirements(topology=topology, tolerations=())
    workload = make_jobset(parallelism=4 if topology == "2x2x4" else 2, template=template)
    world.workloads[workload.uid] = workload
    world.put(make_pod(workload, unschedulable=False, created_at=world.now))
    assert len(world.look().deletes) == (0 if want_held else 1)
    if want_held:
        assert world.plans[-1].wake_at == after(60)
        world.pass_time(59)
        assert world.look().deletes == ()
        world.pass_time(1)
        assert len(world.look().deletes) == 1


def test_a_leader_that_was_judged_holds_what_becomes_idle_for_a_moment() -> None:
    """The scheduler looks at it once more; that it counts on another pool does not tell where it goes."""
    workload = make_jobset()
    world = idle_world()
    world.add(workload)
    world.put_pool(make_pool(workload))
    assert world.look().deletes == ()
    world.pass_time(61)
    assert [delete.name for delete in world.look().deletes] == [make_pool(make_jobset("gone")).name]


def test_a_pool_that_failed_is_held_for_nobody() -> None:
    """No pod gets there, and it costs."""
    world = World()
    pool = make_pool(make_jobset("gone"), status=PoolStatus.ERROR)
    world.put(pool, make_node(pool, 0))
    workload = make_jobset()
    world.workloads[workload.uid] = workload
    world.put(make_pod(workload, unschedulable=False, created_at=world.now))
    assert len(world.look().deletes) == 1


def test_a_leader_that_is_created_in_the_future_holds_no_longer_than_any() -> None:
    """Clocks differ."""
    world = idle_world()
    workload = make_jobset()
    world.workloads[workload.uid] = workload
    leader = make_pod(workload, unschedulable=False, created_at=after(7200))
    world.put(leader)
    world.look()
    assert world.plans[-1].wake_at == after(60)
    world.put(replace(leader, created_at=after(-61)))
    assert world.look().deletes == ()
    world.pass_time(61)
    assert len(world.look().deletes) == 1


@pytest.mark.parametrize(
    "created",
    [
        pytest.param(lambda seconds: seconds, id="made again and again, and never bound"),
        pytest.param(lambda _seconds: 7200.0, id="made in the future, by a clock that runs wrong"),
    ],
)
def test_leaders_that_never_come_do_not_hold_a_pool_for_ever(created: Callable[[float], float]) -> None:
    """Of a scheduler that nobody runs, or with a gate that nobody opens: the pool costs its owner's money."""
    world = idle_world()
    workload = make_jobset()
    world.workloads[workload.uid] = workload
    for seconds in range(0, 630, 30):
        world.put(make_pod(workload, unschedulable=False, created_at=after(created(seconds))))
        plan = world.look()
        assert len(plan.deletes) == (1 if seconds == 600 else 0)
        world.pass_time(30)


def test_a_pool_that_was_to_go_long_ago_is_held_as_any() -> None:
    """GKE was away, or nobody led, or an earlier leader's clock was slow: nothing was held meanwhile."""
    world = idle_world()
    pool = make_pool(make_jobset("gone"))
    world.memory = Memory(unneeded_since={pool.name: world.now - timedelta(hours=2)})
    workload = make_jobset(template=make_requirements(tolerations=()))
    world.workloads[workload.uid] = workload
    world.put(make_pod(workload, unschedulable=False, created_at=world.now))
    assert world.look().deletes == ()
    world.pass_time(59)
    assert world.look().deletes == ()
    world.pass_time(1)
    assert [delete.name for delete in world.look().deletes] == [pool.name]


def test_pods_that_ask_for_different_amounts_cost_little_for_each_idle_pool() -> None:
    """None of a hundred fits, each asks for an amount of its own, and a hundred pools are idle or kept."""

    def calls(pools: int) -> int:
        world = World(settings_=settings(keep_suspended=True))
        for number in range(pools):
            kept = make_jobset(f"kept-{number}")
            world.workloads[kept.uid] = replace(kept, suspended=True)
            world.put_pool(make_pool(kept))
        greedy = make_jobset("greedy", replicas=100)
        world.workloads[greedy.uid] = greedy
        for job in range(100):
            asked = replace(make_requirements(), cpu_millicores=10**7 + job)
            world.put(replace(make_pod(greedy, job=job, unschedulable_since=world.now), requirements=asked))
        return counted(world.look)[1]

    assert (calls(60) - calls(20)) / (40 * 100) < 12
