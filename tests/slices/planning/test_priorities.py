"""Tests of priorities: a slice of a higher priority is first, and blocks lower priorities for up to 12 hours."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from provisioner.model.workloads import Workload
from provisioner.slices.messages.waits import note_of
from provisioner.slices.planning.contention.limits import KEPT_AT_MOST
from provisioner.slices.planning.contention.line import CREATES
from tests.support.market import jobset_of
from tests.support.models import make_pod
from tests.support.settings import settings
from tests.support.world import World

HIGH = 1000


def add(world: World, workload: Workload, priority: int) -> None:
    world.workloads[workload.uid] = workload
    for job in range(workload.groups[0].replicas):
        since = world.now
        world.put(make_pod(workload, job=job, unschedulable_since=since, marked=world.marked, priority=priority))


def full_world(*workloads: Workload, chips: int = 8) -> World:
    world = World(*workloads, settings_=settings(max_chips=chips, deletion_delay_seconds=30.0), marked=True)
    world.live(4)
    assert sum(map(world.bound, workloads)) == len(workloads)
    return world


@pytest.mark.parametrize("topology", ["2x2x2", "2x2x1"], ids=["a freed pool", "a limit"])
def test_slice_of_a_higher_priority_is_served_before_older_slices(topology: str) -> None:
    first = jobset_of("first")
    world = full_world(first)
    waiting = [jobset_of(f"batch{number}", topology, namespace=f"n{number % 2}") for number in range(4)]
    for batch in waiting:
        add(world, batch, 10)
        world.live(2, seconds=5)
    urgent = jobset_of("urgent", namespace="n0", topology="2x2x2")
    add(world, urgent, HIGH)
    world.live(2, seconds=5)
    world.finish(first)
    world.live(12, seconds=5)
    assert [world.bound(workload) for workload in (urgent, *waiting)] == [1, 0, 0, 0, 0]
    assert {wait.position for wait in world.plans[-1].waits.values()} == {1, 2, 3, 4}


def test_large_slice_of_a_higher_priority_gets_the_chips_that_small_jobs_leave() -> None:
    small = [jobset_of(f"small{number:02}", "2x2x1", namespace="stream") for number in range(24)]
    world = full_world(*small[:8], chips=32)
    large = jobset_of("large", "2x2x4", namespace="honest")
    add(world, large, HIGH)
    for job in small[8:]:
        add(world, job, 0)
    for job in small[:4]:
        world.finish(job)
        world.live(6, seconds=10)
    plan = world.plans[-1]
    waiting = (state for state in plan.pools if "small" in state.named.name and state.phase.before_create)
    assert "kept for pods of higher priority" in note_of(next(waiting), plan) or world.bound(large)
    world.live(8, seconds=10)
    assert (world.bound(large), sum(map(world.bound, small[8:]))) == (1, 0)


def test_never_served_slice_of_a_higher_priority_keeps_its_chips_for_12_hours() -> None:
    """A PriorityClass whose pods can never be served must not block all other slices for longer."""
    full = jobset_of("full", "2x2x2")
    world = full_world(full, chips=20)
    add(world, jobset_of("never", "2x2x4"), HIGH)
    low = jobset_of("low", "2x2x1", namespace="other")
    add(world, low, 0)
    began = world.now
    world.live(24, seconds=KEPT_AT_MOST.total_seconds() / 24 - 10)
    assert world.now - began < KEPT_AT_MOST
    assert world.bound(low) == 0
    world.live(4, seconds=300)
    assert (world.bound(low), world.now - began < KEPT_AT_MOST + timedelta(hours=1)) == (1, True)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_chips_per_namespace": (("team", 8),)}, id="namespace"),
        pytest.param({"max_pools_per_jobset": 1}, id="workload"),
    ],
)
def test_slice_beyond_a_limit_of_its_own_namespace_or_workload_keeps_no_other_chips(limits: dict[str, Any]) -> None:
    """Only the namespace itself can make room for the slice, so chips that are kept for the slice would be idle."""
    world = World(settings_=settings(max_chips=16, **limits), marked=True)
    add(world, jobset_of("urgent", namespace="team", replicas=2), HIGH)
    world.live(4)
    low = jobset_of("low", namespace="other")
    add(world, low, 0)
    world.live(4)
    assert world.bound(low) == 1


def test_slice_beyond_the_limit_of_its_namespace_keeps_the_chips_of_the_namespace() -> None:
    """Otherwise small jobs of the namespace would take the chips that the slice of the higher priority waits for."""
    small = [jobset_of(f"small{number}", "2x2x1", namespace="team") for number in range(4)]
    world = World(*small[:2], settings_=settings(max_chips_per_namespace=(("team", 8),)), marked=True)
    world.live(4)
    urgent = jobset_of("urgent", "2x2x2", namespace="team")
    add(world, urgent, HIGH)
    for job in small[2:]:
        add(world, job, 0)
    for job in small[:2]:
        world.finish(job)
        world.live(6, seconds=60)
    assert (world.bound(urgent), sum(map(world.bound, small[2:]))) == (1, 0)


def test_restarted_slice_of_a_lower_priority_returns_to_its_pool() -> None:
    """Only slices without a pool are queued, so a workload is not preempted between two attempts either."""
    first = jobset_of("first")
    world = full_world(first)
    add(world, jobset_of("urgent", namespace="other"), HIGH)
    world.live(2)
    world.end_pods(first)
    world.live(2)
    world.start_pods(first)
    world.live(3)
    assert world.bound(first) == 1


def test_grants_are_remembered_while_workloads_wait() -> None:
    first = jobset_of("first")
    world = full_world(first)
    for name in ("a", "b"):
        world.add(jobset_of(name, namespace=name))
    world.finish(first)
    world.live(4)
    assert {(CREATES, "a", ""), (CREATES, "a", "uid-of-a-a")} <= world.memory.stamps.keys()
    world.finish(jobset_of("a", namespace="a"))
    world.live(6)
    assert world.bound(jobset_of("b", namespace="b")) == 1
    assert not world.memory.stamps
