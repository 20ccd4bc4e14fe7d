"""Tests of reservations that end: Events for the owners of slices, and pools that are not reused or are deleted."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from provisioner.model.capacity import CapacityKind, PoolName
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import DeleteReason
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.board import view_of
from tests.support.clock import NOW
from tests.support.models import make_jobset
from tests.support.objects import raw_buffer
from tests.support.world import World, running


def end(world: World, pool: PoolName, at: datetime) -> None:
    reserved = replace(world.pools[pool], capacity=CapacityKind.RESERVATION, reservation="r1", ends_at=at)
    world.put(reserved)


def with_deadline(seconds: int) -> World:
    """Return a world with a slice that has run since NOW; the activeDeadlineSeconds of its Job is `seconds`."""
    workload = make_jobset("train")
    group = replace(workload.groups[0], deadline_seconds=seconds)
    world = running(replace(workload, groups=(group,)))
    world.put(*(replace(pod, created_at=NOW) for pod in world.pods.values()))
    return world


@pytest.mark.parametrize(
    ("hours", "deadline", "words"),
    [
        (2.0, 0, ""),
        (2.0, 3600, ""),
        (2.0, 14400, "ends at 2026-06-01 14:00 UTC, before activeDeadlineSeconds have passed"),
        (0.6, 0, "ends at 2026-06-01 12:36 UTC; the pods on node pool"),
    ],
)
def test_owner_of_a_slice_gets_an_event_on_the_end_of_its_reservation(hours: float, deadline: int, words: str) -> None:
    world = with_deadline(deadline)
    (name,) = world.pools
    end(world, name, NOW + timedelta(hours=hours))
    world.run(2)
    told = world.told(EventReason.RESERVATION_ENDS)
    assert [words in notice.message for notice in told] == [True] * len(told)
    assert bool(told) is bool(words)
    assert words in view_of(world).slices[0].reason


def test_owner_gets_a_second_event_shortly_before_the_reservation_ends() -> None:
    world = with_deadline(14400)
    (name,) = world.pools
    end(world, name, NOW + timedelta(hours=2))
    for rounds, events in ((60, 1), (30, 2)):
        world.run(rounds, seconds=60)
        assert len({notice.key for notice in world.told(EventReason.RESERVATION_ENDS)}) == events


@pytest.mark.parametrize(("hours", "pools"), [(0.6, 2), (2.0, 1)])
def test_an_idle_pool_whose_reservation_ends_soon_is_not_used_again(hours: float, pools: int) -> None:
    first = make_jobset("first")
    world = running(first)
    (name,) = world.pools
    end(world, name, NOW + timedelta(hours=hours))
    world.finish(first)
    world.add(make_jobset("second"))
    world.run(2)
    assert len(world.created) == pools


def test_a_pool_whose_reservation_ends_soon_does_not_count_as_warm() -> None:
    world = Asking(raw_buffer(replicas=1))
    world.live(4)
    (name,) = world.pools
    end(world, name, NOW + timedelta(hours=0.6))
    world.live(40, seconds=2.0)
    assert (len(world.created), world.deleted) == (2, [name])


def test_pool_of_an_ended_reservation_is_deleted_once_its_nodes_are_gone() -> None:
    """GKE cannot recreate nodes of an ended reservation, so the pods get another pool."""
    workload = make_jobset("train")
    world = running(workload)
    (name,) = world.pools
    end(world, name, world.now + timedelta(seconds=30))
    world.run(3, seconds=20)
    assert world.deleted == []
    world.nodes.clear()
    world.end_pods(workload)
    world.start_pods(workload)
    world.run(2)
    (delete,) = [delete for plan in world.plans for delete in plan.deletes]
    assert (delete.name, delete.reason) == (name, DeleteReason.RESERVATION_ENDED)
    assert len(world.created) == 2
