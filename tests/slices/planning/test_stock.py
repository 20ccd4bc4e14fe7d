"""Tests of capacity that was out of stock: few creates are in flight, and more after each pool that comes up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner.model.capacity import Failure, FailureKind, PoolName, PoolStatus, Zone
from provisioner.model.choices import CapacityKey
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Backoff
from provisioner.slices.planning.plan import Create
from tests.support.clock import NOW, after
from tests.support.market import jobset_of
from tests.support.models import make_jobset, make_requirements
from tests.support.world import World, failure

STOCKOUT = failure(FailureKind.STOCKOUT)
KEY = CapacityKey(Zone("us-central2-b"), "ct4p-hightpu-4t", "2x2x2 on 2", "on-demand")


def failed(**changes: object) -> dict[str, Backoff]:
    (found,) = backoff.create_failed({}, STOCKOUT, KEY, NOW).values()
    return {KEY: replace(found, **changes)}  # type: ignore[arg-type]


def test_bound_on_creates_in_flight_doubles_with_each_pool_and_ends_after_64() -> None:
    backoffs: Mapping[str, Backoff] = failed()
    numbers = []
    while (last := backoff.probing(backoffs, KEY)) is not None:
        numbers.append(backoff.max_in_flight(last))
        backoffs = backoff.came_up(backoffs, KEY, NOW)
        assert backoff.blocking(backoffs, KEY, None, NOW) is None
    assert numbers == [1, 2, 4, 8, 16, 32, 64]


def test_failure_after_pools_came_up_begins_again_with_one_create() -> None:
    backoffs = backoff.came_up(backoff.came_up(failed(), KEY, after(60)), KEY, after(60))
    last = backoff.create_failed(backoffs, STOCKOUT, KEY, after(120))[KEY]
    assert (backoff.max_in_flight(last), last.until > after(120)) == (1, True)


@pytest.mark.parametrize(
    ("place", "kind", "due"),
    [
        pytest.param(("us-central2-b", "ct4p-hightpu-4t"), FailureKind.STOCKOUT, True, id="the same machines"),
        pytest.param(("us-central2-b", "ct4p-hightpu-4t"), FailureKind.QUOTA, True, id="the same machines, a quota"),
        pytest.param(("us-central2-a", "ct4p-hightpu-4t"), FailureKind.STOCKOUT, False, id="another zone"),
        pytest.param(("us-central2-b", "ct5p-hightpu-4t"), FailureKind.STOCKOUT, False, id="another machine type"),
        pytest.param(("us-central2-b", "ct4p-hightpu-4t"), FailureKind.PERMISSION, False, id="another kind of failure"),
    ],
)
def test_vanished_pool_makes_capacity_of_its_zone_and_machine_type_due(
    place: tuple[str, str], kind: FailureKind, due: bool
) -> None:
    """The back-off of the capacity ends, because the machines of the deleted pool may be available."""
    backoffs = backoff.freed(failed(failure=failure(kind)), {place}, after(1))
    assert (backoff.blocking(backoffs, KEY, None, after(1)) is None) is due


def making(world: World) -> int:
    return sum(pool.status is PoolStatus.PROVISIONING for pool in world.pools.values())


def test_creates_after_a_stockout_grow_with_the_pools_that_came_up() -> None:
    """In the past, each pool that came up was followed by 32 failing creates, which took up to 35 minutes."""
    world = World(*(jobset_of(f"job{number:02}", namespace=f"n{number % 3}") for number in range(24)))
    world.refuse_create = lambda _: STOCKOUT
    world.run(3)
    world.refuse_create = lambda _: None
    in_flight = list[int]()
    while not in_flight or in_flight[-1]:
        world.run(4, seconds=15)
        in_flight.append(making(world))
        world.finish_creates()
        world.schedule()
    assert in_flight == [1, 2, 8, 13, 0]


def test_pool_that_fails_late_leaves_one_create_in_flight() -> None:
    """A create without capacity may end in ERROR only after 35 minutes."""
    world = World(*(jobset_of(f"job{number}") for number in range(8)))
    world.refuse_create = lambda _: STOCKOUT
    world.run(3)
    world.refuse_create = lambda _: None
    for _ in range(3):
        world.run(30, seconds=30)
        assert making(world) == 1
        (name,) = [name for name, pool in world.pools.items() if pool.status is PoolStatus.PROVISIONING]
        world.fail_pool(name, STOCKOUT)
        world.step()
        world.finish_deletes()


def test_probe_is_sent_while_pools_of_the_same_capacity_are_being_deleted() -> None:
    """In the past, the probe waited for up to 61 min while pools of a tenant were deleted one after the other."""
    pools, delete_seconds, every_seconds = 8, 300.0, 240.0
    template = make_requirements(tolerations=(), selector={"team": "other"})
    others = [make_jobset(f"other{number}", namespace="other", template=template) for number in range(pools)]
    world = World(*others)
    world.live(8, seconds=5)
    world.refuse_create = lambda _: STOCKOUT if len(world.pools) >= pools else None
    world.add(make_jobset("honest", namespace="honest"))
    world.run(4, seconds=15)
    began, stopping = world.now, dict[PoolName, object]()
    free_at = None
    while not any("honest" in name for name in world.pools):
        seconds = (world.now - began).total_seconds()
        for other in others[: int(seconds // every_seconds) + 1]:
            if other.uid in world.workloads:
                world.remove_jobset(other)
                world.deleted_workloads.add(other.uid)
        for name, pool in list(world.pools.items()):
            since = stopping.setdefault(name, world.now) if pool.status is PoolStatus.STOPPING else None
            if since is not None and world.now - since >= timedelta(seconds=delete_seconds):  # type: ignore[operator]
                world.remove_pool(name)
                free_at = free_at or world.now
        world.step(seconds=15)
    assert free_at is not None
    assert world.now - free_at <= timedelta(minutes=1)


@pytest.mark.parametrize("slow", [False, True], ids=["rejected at once", "pools that fail"])
def test_flood_of_one_namespace_does_not_prevent_probes_of_another(slow: bool) -> None:
    world = World(*(jobset_of(f"flood{number:02}", namespace="flood") for number in range(30)))
    tried: list[str] = []

    def refuse(create: Create) -> Failure | None:
        tried.append(create.workload.namespace)
        return None if slow else STOCKOUT

    world.refuse_create = refuse
    world.run(3)
    world.add(jobset_of("honest", namespace="honest"))
    tried.clear()
    for _ in range(90):
        world.step(seconds=60)
        for name, pool in list(world.pools.items()):
            if pool.status is PoolStatus.PROVISIONING:
                world.fail_pool(name, STOCKOUT)
        world.finish_deletes()
    assert len(tried) >= 8
    assert abs(tried.count("honest") - tried.count("flood")) <= 2
