"""Tests of host maintenance and of reservations that end: Events for owners, and pools that get no further slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind, PoolName, Taint
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import DeleteReason
from provisioner.slices.view.explain import explain
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.board import view_of
from tests.support.clock import NOW
from tests.support.models import make_jobset
from tests.support.objects import raw_buffer, raw_request
from tests.support.world import World, running

SOON = {constants.SCHEDULED_MAINTENANCE: str(int((NOW + timedelta(hours=2)).timestamp()))}
#: Changes of a node that is not new.
OLD = {"created_at": NOW - timedelta(days=2)}


def announce(world: World, pool: PoolName, labels: dict[str, str] = SOON, **changes: Any) -> None:
    """Add labels to the first node of a pool, by default of maintenance that begins in two hours."""
    node = next(candidate for candidate in world.nodes.values() if candidate.pool_name == pool)
    world.put(replace(node, labels={**node.labels, **labels}, **changes))


def end(world: World, pool: PoolName, at: datetime) -> None:
    reserved = replace(world.pools[pool], capacity=CapacityKind.RESERVATION, reservation="r1", ends_at=at)
    world.put(reserved)


@pytest.mark.parametrize(
    ("labels", "taints", "words"),
    [
        (SOON, (), "begins at 2026-06-01 14:00 UTC"),
        ({constants.ACTIVE_MAINTENANCE: "ONGOING"}, (), "is under way"),
        ({}, (Taint(key=constants.IMPENDING_TERMINATION),), "is under way"),
        ({constants.SCHEDULED_MAINTENANCE: "soon"}, (), ""),
    ],
)
def test_owner_of_a_slice_gets_an_event_on_host_maintenance(
    labels: dict[str, str], taints: tuple[Taint, ...], words: str
) -> None:
    world = running(make_jobset("train"))
    (name,) = world.pools
    announce(world, name, labels, taints=taints)
    if labels and words:
        # Maintenance of another host begins later, so the Event has the time of the first host.
        other = next(node for node in reversed(world.nodes.values()) if node.pool_name == name)
        world.put(replace(other, labels={**other.labels, constants.SCHEDULED_MAINTENANCE: "1896134400"}))
    world.run(2)
    told = world.told(EventReason.HOST_MAINTENANCE)
    assert [words in notice.message for notice in told] == [True] * len(told)
    assert bool(told) is bool(words)
    assert words in view_of(world).slices[0].reason


@pytest.mark.parametrize(("bound", "who"), [(True, "pod {}"), (False, "a pod")])
def test_node_without_chips_after_maintenance_is_shown_as_the_reason(*, bound: bool, who: str) -> None:
    """The kubelet rejects the pods that were on the node, and their replacements wait for a node."""
    workload = make_jobset("train")
    world = running(workload)
    pod = next(iter(world.pods.values()))
    node = next(candidate for candidate in world.nodes.values() if candidate.name == pod.node_name)
    world.put(replace(node, allocatable_chips=0, **OLD))
    if not bound:
        world.end_pods(workload)
        world.start_pods(workload)
    world.run(2)
    view = view_of(world)
    (told,) = explain(view, view.at, (), (), f"pod/{pod.name}")
    words = (
        f"Node {node.name} is ready without its chips, as after maintenance of its host: {who.format(pod.name)} that"
    )
    assert words in told.headline
    assert words in view.pools[0].reason
    world.pass_time(700)
    world.run(2)
    assert [notice.reason for notice in explain(view_of(world), world.now, (), (), "train")[0].notices] == []


def test_new_node_counts_as_without_chips_only_after_ten_minutes() -> None:
    world = World(make_jobset("train"))
    world.run(2)
    (name,) = world.pools
    world.finish_creates()
    world.bring_nodes(name, allocatable_chips=0)
    world.run(2)
    assert "without its chips" not in view_of(world).slices[0].reason
    world.pass_time(10 * 60 - 2)
    assert "without its chips" in view_of(world).slices[0].reason


def end_soon(world: World, pool: PoolName, **_: object) -> None:
    end(world, pool, NOW + timedelta(hours=0.6))


@pytest.mark.parametrize("spoil", [announce, end_soon], ids=["maintenance announced", "reservation ends soon"])
def test_pool_that_will_lose_its_hosts_does_not_count_as_warm(spoil: Callable[..., None]) -> None:
    world = Asking(raw_buffer(replicas=1))
    world.live(4)
    (name,) = world.pools
    spoil(world, name, **OLD)
    world.live(40, seconds=2.0)
    assert (len(world.created), world.deleted) == (2, [name])


@pytest.mark.parametrize("raw", [raw_buffer(replicas=1), raw_request()], ids=["buffer", "request"])
def test_pools_are_not_replaced_if_maintenance_is_announced_for_all_hosts(raw: dict[str, Any]) -> None:
    """Otherwise a request would never be provisioned, and each pool would cost money without being used."""
    world = Asking(raw)
    for _ in range(60):
        world.step(seconds=2.0)
        world.finish_creates()
        for name in world.pools:
            announce(world, name)
        world.finish_deletes()
    assert (len(world.created), world.deleted) == (len(world.pools), [])
    assert world.conditions(raw["metadata"]["name"]).keys() & {"Provisioned", "Provisioning"}


# --- Reservations that end ---


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


def test_pool_of_an_ended_reservation_is_deleted_when_its_nodes_are_gone() -> None:
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
