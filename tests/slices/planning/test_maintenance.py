"""Tests of host maintenance: Events for the owners of slices, and pools that get no further slices."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import PoolName, Taint
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.view.explain import explain
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.board import view_of
from tests.support.clock import NOW
from tests.support.models import make_jobset
from tests.support.objects import raw_buffer, raw_request
from tests.support.world import World, running

SOON = {constants.SCHEDULED_MAINTENANCE: str(int((NOW + timedelta(hours=2)).timestamp()))}


OLD = {"created_at": NOW - timedelta(days=2)}


def announce(world: World, pool: PoolName, labels: dict[str, str] = SOON, **changes: Any) -> None:
    """Add labels to the first node of a pool, by default of maintenance that begins in two hours."""
    node = next(candidate for candidate in world.nodes.values() if candidate.pool_name == pool)
    world.put(replace(node, labels={**node.labels, **labels}, **changes))


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


def test_idle_pool_with_announced_maintenance_is_not_used_again() -> None:
    first = make_jobset("first")
    world = running(first)
    (name,) = world.pools
    announce(world, name)
    world.finish(first)
    world.add(make_jobset("second"))
    world.run(2)
    assert len(world.created) == 2


def test_pool_with_announced_maintenance_does_not_count_as_warm() -> None:
    world = Asking(raw_buffer(replicas=1))
    world.live(4)
    (name,) = world.pools
    announce(world, name, **OLD)
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
