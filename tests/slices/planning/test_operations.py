"""Tests of the bound on concurrent operations, and of its shares for creates and deletes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model.capacity import FailureKind, PoolStatus
from provisioner.slices.planning.contention.operations import Slots
from provisioner.slices.planning.memory.answers import CreateAnswer
from provisioner.slices.planning.memory.state import CallState, DeleteCall, OperationLimit
from tests.support.clock import after
from tests.support.models import foreign_pool, make_jobset, make_pool
from tests.support.settings import settings
from tests.support.world import World, failure

REJECTED = failure(FailureKind.TOO_MANY_OPERATIONS)


@pytest.mark.parametrize(
    ("free", "deletes_last", "deletes", "want_creates", "want_deletes"),
    [
        pytest.param(None, False, 50, 32, 20, id="no limit"),
        pytest.param(6, False, 0, 6, 0, id="only creates"),
        pytest.param(50, True, 50, 25, 20, id="more free operations than threads"),
        pytest.param(6, False, 2, 4, 2, id="few deletes"),
        pytest.param(6, False, 50, 3, 3, id="many creates and deletes"),
        pytest.param(5, False, 50, 2, 3, id="odd number after creates"),
        pytest.param(5, True, 50, 3, 2, id="odd number after deletes"),
        pytest.param(1, True, 50, 1, 0, id="one free operation"),
        pytest.param(0, True, 50, 0, 0, id="no free operation"),
    ],
)
def test_creates_and_deletes_share_the_free_operations(
    *, free: int | None, deletes_last: bool, deletes: int, want_creates: int, want_deletes: int
) -> None:
    slots = Slots(
        learned=OperationLimit(deletes_last=deletes_last), operations=free, calls=32, delete_calls=20, more_at=None
    )
    creates = slots.for_creates(deletes)
    assert (creates, slots.for_deletes(creates)) == (want_creates, want_deletes)


def world_with(limit: OperationLimit, *, making: int = 0) -> World:
    world = World(make_jobset(replicas=200), settings_=settings(concurrency=64))
    world.put(*(make_pool(make_jobset(f"other-{index}"), status=PoolStatus.PROVISIONING) for index in range(making)))
    world.memory = replace(world.memory, operations=limit)
    return world


def rejected(limit: int, seconds_ago: float = 0.0) -> OperationLimit:
    return OperationLimit(limit=limit, rejected_at=after(-seconds_ago))


@pytest.mark.parametrize(
    ("limit", "making", "want_limit", "want_creates"),
    [
        pytest.param(OperationLimit(), 3, None, 128, id="no rejection"),
        pytest.param(OperationLimit(rejected=True), 3, 3, 0, id="new rejection"),
        pytest.param(
            OperationLimit(rejected=True, running=5), 3, 5, 2, id="new rejection with more operations at its time"
        ),
        pytest.param(rejected(5), 3, 5, 2, id="operations ended"),
        pytest.param(rejected(5), 7, 7, 0, id="GKE accepted more operations"),
        pytest.param(rejected(5, 10), 5, 5, 1, id="after 10 s"),
        pytest.param(rejected(5, 20), 5, 5, 3, id="after 20 s"),
        pytest.param(rejected(5, 59), 5, 5, 31, id="after 59 s"),
        pytest.param(rejected(5, 60), 5, None, 128, id="after 60 s"),
        pytest.param(rejected(0), 0, 0, 0, id="limit of 0"),
        pytest.param(rejected(0, 10), 0, 0, 1, id="limit of 0 after 10 s"),
    ],
)
def test_a_rejection_limits_operations_for_a_minute(
    limit: OperationLimit, making: int, want_limit: int | None, want_creates: int
) -> None:
    plan = world_with(limit, making=making).look()
    assert (plan.memory.operations.limit, len(plan.creates)) == (want_limit, want_creates)


def test_operations_on_foreign_pools_do_not_count() -> None:
    """Operations on foreign pools may hang for days; if they counted, they could prevent all creates for that time."""
    world = world_with(rejected(1))
    world.put(foreign_pool("a", status=PoolStatus.PROVISIONING), foreign_pool("b", status=PoolStatus.STOPPING))
    assert len(world.look().creates) == 1


def test_calls_in_flight_count_as_operations() -> None:
    """A delete that is still being checked counts as well, because it will be an operation."""
    world = world_with(OperationLimit(rejected=True, running=2))
    pool = world.put_pool(make_pool(make_jobset("gone")))
    call = DeleteCall(state=CallState.UNDER_WAY, since=after(-1))
    world.memory = world.memory.with_pool(pool.name, delete=call)
    plan = world.look()
    assert (plan.memory.operations.limit, len(plan.creates)) == (2, 1)


def test_pool_in_creation_with_a_delete_in_flight_counts_once() -> None:
    """The create is running and the delete is still being checked: they are never operations at the same time."""
    world = world_with(rejected(2), making=1)
    (name,) = world.pools
    call = DeleteCall(state=CallState.UNDER_WAY, since=after(-1))
    world.memory = world.memory.with_pool(name, delete=call)
    plan = world.look()
    assert (plan.memory.operations.limit, len(plan.creates)) == (2, 1)


def test_deletes_leave_threads_to_other_calls() -> None:
    """Deletes of many unneeded pools must not delay changes of nodes, or deletes that slices wait for."""
    ended = [make_jobset(f"ended-{index}") for index in range(40)]
    world = World(*ended, settings_=settings(deletion_delay_seconds=0.0))
    for workload in ended:
        world.put_pool(make_pool(workload))
        world.finish(workload)
    assert len(world.look().deletes) == 32


def test_creates_in_flight_are_at_most_twice_the_number_of_threads() -> None:
    """Otherwise slices of other namespaces would wait for thousands of calls."""
    world = World(make_jobset("many", namespace="a", replicas=4096))
    creates = world.look().creates
    assert len(creates) == 32
    world.add(make_jobset("newcomer", namespace="b"))
    assert world.look().creates == ()
    world.answer(CreateAnswer(name=creates[0].request.name, at=world.now))
    (create,) = world.look().creates
    assert create.workload.name == "newcomer"


def test_slice_that_waits_long_for_operations_gets_a_notice() -> None:
    """Until GKE accepts a create, about one create is sent every 10 s."""
    world = World(make_jobset(replicas=3))
    world.refuse_create = lambda _: REJECTED
    world.run(200)
    last = world.plans[-1].notices
    assert {notice.reason for notice in last} == {"NodePoolCreationWaiting"}
    assert all("rejected more than 0 of them at once" in notice.message for notice in last)
    assert not any(notice.warning for notice in last)
    assert sum(len(plan.creates) for plan in world.plans) <= 3 + 200 / 10 + 1
