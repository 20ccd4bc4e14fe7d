"""Tests of how responses of GKE to creates, deletes and look-ups change the memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from provisioner.model.capacity import FailureKind, Operation, OperationName, PoolName, PoolStatus, expected_pool
from provisioner.model.choices import capacity_key
from provisioner.slices.messages.waits import note_of
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.answers import CreateAnswer, DeleteAnswer, DeleteResult, LookUpAnswer
from provisioner.slices.planning.memory.state import CallState, LookUp, Memory
from provisioner.slices.planning.plan import Plan
from tests.support.clock import NOW, after
from tests.support.models import foreign_pool, make_jobset, make_pool
from tests.support.world import World, failure

OPERATION = OperationName("operation-1")


def asked(world: World) -> PoolName:
    """Decide the first create, to which GKE does not respond yet; return the name of its pool."""
    (create,) = world.look().creates
    world.pass_time(1)
    return create.request.name


def create_answer(world: World, name: PoolName, kind: FailureKind | None = None) -> None:
    refused = failure(kind) if kind is not None else None
    operation = OPERATION if refused is None else OperationName("")
    world.answer(CreateAnswer(name=name, at=world.now, operation=operation, failure=refused))
    world.pass_time(1)


def look_up_answer(world: World, look_up: LookUp, **content: object) -> None:
    world.answer(LookUpAnswer(look_up=look_up, at=world.now, **content))  # type: ignore[arg-type]
    world.pass_time(1)


def until_look_up(world: World, *, limit: int = 60) -> tuple[LookUp, Plan]:
    for _ in range(limit):
        plan = world.look()
        world.pass_time(1)
        if plan.look_ups:
            return plan.look_ups[0], plan
    raise AssertionError("nothing was looked up")


def until_sent(world: World, calls: str) -> tuple[Any, ...]:
    for _ in range(200):
        plan = world.look()
        sent: tuple[Any, ...] = getattr(plan, calls)
        if sent:
            return sent
        for look_up in plan.look_ups:
            world.answer(LookUpAnswer(look_up=look_up, at=world.now))
        world.pass_time(1)
    raise AssertionError(f"no {calls}")


@pytest.mark.parametrize("kind", [kind for kind in backoff.DELAYS if kind is not FailureKind.TOO_MANY_OPERATIONS])
def test_failed_create_is_repeated_with_its_name_after_its_back_off(kind: FailureKind) -> None:
    world = World(make_jobset())
    name = asked(world)
    world.answer(CreateAnswer(name=name, at=world.now, failure=failure(kind)))
    assert world.look().creates == ()
    (waiting,) = world.memory.backoffs.values()
    assert world.plans[-1].wake_at == waiting.until
    world.now = waiting.until
    (again,) = world.look().creates
    assert again.request.name == name


def test_invalid_request_is_sent_again_when_it_changes() -> None:
    world = World(make_jobset())
    create_answer(world, asked(world), FailureKind.INVALID)
    world.pass_time(600)
    plan = world.look()
    assert plan.creates == ()
    assert "(next try 12:14:23 UTC, or when the workload or the settings change): GKE's own words. Correct" in (
        plan.notices[0].message
    )
    world.settings = replace(world.settings, node_tags=("changed",))
    assert len(world.look().creates) == 1


def test_rejected_create_is_repeated_at_growing_intervals_of_at_most_4_hours() -> None:
    """The cause may be outside the request, which is repeated after about 15 minutes, then 30, up to 4 hours."""
    world = World(make_jobset())
    world.refuse_create = lambda _: failure(FailureKind.INVALID)
    tries = [world.now for _ in range(24 * 60) if world.step(seconds=60).creates]
    minutes = [(later - earlier).total_seconds() / 60 for earlier, later in itertools.pairwise(tries)]
    assert all(1.5 <= later / earlier <= 2.6 for earlier, later in itertools.pairwise(minutes[:4]))
    assert 12 <= minutes[0] <= 16
    assert max(minutes) <= 4 * 60 + 1
    assert 8 <= len(tries) <= 14
    world.refuse_create = lambda _: None
    world.run(4 * 60, seconds=60)
    assert len(world.created) == 1


@pytest.mark.parametrize("kind", [FailureKind.UNKNOWN_OUTCOME, FailureKind.ALREADY_EXISTS], ids=lambda kind: kind.value)
def test_no_create_is_sent_while_the_outcome_of_the_last_is_unknown(kind: FailureKind) -> None:
    """The create may have taken effect, so the pool is looked up by its name."""
    world = World(make_jobset())
    name = asked(world)
    create_answer(world, name, kind)
    look_up, plan = until_look_up(world)
    assert look_up == LookUp(name=name)
    assert plan.creates == ()
    asked_again = 0
    for _ in range(40):
        asked_again += len(world.look().look_ups)
        world.pass_time(0.5)
    assert 1 <= asked_again <= 2
    assert not any(later.creates for later in world.plans[1:])


def test_look_up_that_failed_or_found_the_pool_causes_no_create() -> None:
    """The slice waits for the pool, which may be missing in the list of pools for a few seconds."""
    world = World(make_jobset())
    name = asked(world)
    create_answer(world, name, FailureKind.UNKNOWN_OUTCOME)
    look_up, _ = until_look_up(world)
    look_up_answer(world, look_up, exists=True)
    look_up_answer(world, look_up, failure=failure(FailureKind.UNAVAILABLE))
    assert world.look().creates == ()
    world.put(make_pool(next(iter(world.workloads.values())), status=PoolStatus.PROVISIONING))
    assert world.look().creates == ()
    assert world.memory.creates == {}


def test_response_to_an_old_look_up_does_not_undo_a_newer_create() -> None:
    world = World(make_jobset())
    name = asked(world)
    create_answer(world, name, FailureKind.UNKNOWN_OUTCOME)
    look_up, _ = until_look_up(world)
    look_up_answer(world, look_up, exists=False)
    assert [again.request.name for again in world.look().creates] == [name]
    look_up_answer(world, look_up, exists=False)
    assert world.look().creates == ()


def test_pool_is_adopted_after_already_exists_when_the_list_shows_it() -> None:
    """GKE returns ALREADY_EXISTS if the process crashed after the create, before it recorded the response."""
    workload = make_jobset()
    world = World(workload)
    name = asked(world)
    create_answer(world, name, FailureKind.ALREADY_EXISTS)
    world.put_pool(make_pool(workload))
    assert world.look().creates == ()
    assert world.states() == {name: "ready"}


def test_name_of_a_foreign_pool_is_not_used() -> None:
    """A pool without the labels of the provisioner belongs to another client, and serves no slice."""
    world = World(make_jobset())
    name = asked(world)
    create_answer(world, name, FailureKind.ALREADY_EXISTS)
    world.put(foreign_pool(name))
    (create,) = world.look().creates
    assert create.request.name != name


@pytest.mark.parametrize("kind", [None, FailureKind.UNKNOWN_OUTCOME], ids=["taken", "unknown"])
def test_create_is_repeated_if_its_operation_and_its_pool_are_unknown_to_gke(
    kind: FailureKind | None,
) -> None:
    world = World(make_jobset())
    create_answer(world, asked(world), kind)
    assert until_sent(world, "creates")


@pytest.mark.parametrize("listed_first", [True, False], ids=["after it was listed", "before it was listed"])
@pytest.mark.parametrize("kind", [FailureKind.STOCKOUT, FailureKind.UNAVAILABLE, FailureKind.INVALID])
def test_operation_explains_a_create_whose_pool_is_not_listed(*, listed_first: bool, kind: FailureKind) -> None:
    """The Go provisioner treated an operation that ended with an error as a success."""
    world = World(make_jobset())
    name = asked(world)
    create_answer(world, name)
    if listed_first:
        world.put(expected_pool(world.memory.creates[name].request))
        world.look()
        world.pass_time(1)
        world.remove_pool(name)
    look_up, plan = until_look_up(world)
    assert look_up.operation == OPERATION
    assert plan.creates == ()
    look_up_answer(world, look_up, operation=Operation(name=OPERATION, done=False))
    assert world.look().creates == ()
    done = Operation(name=OPERATION, done=True, failure=failure(kind))
    look_up_answer(world, look_up, operation=done)
    plan = world.look()
    assert plan.creates == ()
    assert "GKE's own words." in note_of(plan.pools[0], plan)
    assert any(entry.slice_id is not None for entry in plan.memory.backoffs.values()) is (kind is FailureKind.INVALID)


def test_response_after_the_list_shows_the_pool_still_counts() -> None:
    """The operation in the response may explain a later failure of the pool, and the success ends the back-off."""
    workload = make_jobset()
    world = World(workload)
    create_answer(world, asked(world), FailureKind.OPERATION_IN_THE_WAY)
    world.pass_time(2)
    name = asked(world)
    world.put(make_pool(workload, status=PoolStatus.PROVISIONING))
    world.look()
    create_answer(world, name)
    assert world.memory.coming_up[name].operation == OPERATION
    assert world.memory.backoffs == {}


def test_pool_that_was_created_and_deleted_is_created_again() -> None:
    world = World(make_jobset())
    name = asked(world)
    create_answer(world, name)
    look_up, _ = until_look_up(world)
    look_up_answer(world, look_up, operation=Operation(name=OPERATION, done=True))
    assert [create.request.name for create in world.look().creates] == [name]


def test_operation_explains_a_failed_pool_without_a_message() -> None:
    world = World(make_jobset())
    name = asked(world)
    create_answer(world, name)
    pool = expected_pool(world.memory.creates[name].request)
    world.put(pool)
    world.look()
    world.put(replace(pool, status=PoolStatus.ERROR))
    look_up, _ = until_look_up(world)
    stockout = Operation(name=OPERATION, done=True, failure=failure(FailureKind.STOCKOUT, "No v4 left."))
    look_up_answer(world, look_up, operation=stockout)
    assert not world.look().look_ups
    (waiting,) = world.memory.backoffs.values()
    assert (waiting.failure.message, waiting.failures) == ("No v4 left.", 1)


def idle_world() -> tuple[World, PoolName]:
    """Return a world with one unneeded pool, whose delete was just decided, and the name of the pool."""
    world = World()
    pool = world.put_pool(make_pool(make_jobset()))
    world.look()
    world.pass_time(31)
    assert [delete.name for delete in world.look().deletes] == [pool.name]
    world.pass_time(1)
    return world, pool.name


@pytest.mark.parametrize("result", [DeleteResult.KEPT, DeleteResult.FAILED])
def test_failed_delete_is_repeated_at_growing_intervals(result: DeleteResult) -> None:
    world, name = idle_world()
    tries: list[datetime] = []
    for _ in range(400):
        if any(delete.name == name for delete in world.look().deletes) or not tries:
            tries.append(world.now)
            world.answer(DeleteAnswer(name=name, at=world.now, result=result, reason="a pod is on it"))
        world.pass_time(1)
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(tries)]
    assert gaps[0] <= 5
    assert 45 <= gaps[-1] <= 61
    assert world.plans[-1].pools[0].note == "a pod is on it"
    call = world.memory.deletes[name]
    assert call.postponed_since == tries[0]


def settling(world: World, name: PoolName, seconds: float = 60.0) -> None:
    world.answer(
        DeleteAnswer(
            name=name, at=world.now, result=DeleteResult.SETTLING, reason="it is cordoned", wait_seconds=seconds
        )
    )


def test_a_delete_waits_exactly_until_its_pool_has_settled() -> None:
    """The wait after the cordon does not count as a failure, so the wait after the next failure is the shortest."""
    world, name = idle_world()
    settling(world, name)
    until = after((world.now - NOW).total_seconds() + 60)
    plan = world.look()
    assert (plan.deletes, plan.wake_at, plan.pools[0].note) == ((), until, "it is cordoned")
    call = world.memory.deletes[name]
    assert (call.failures, call.postponed_since) == (0, None)
    world.pass_time(59)
    assert world.look().deletes == ()
    world.pass_time(1)
    assert len(world.look().deletes) == 1


def test_pool_that_never_settles_raises_an_alert() -> None:
    """Another client may uncordon the nodes after each cordon."""
    world, name = idle_world()
    for _ in range(11):
        settling(world, name)
        assert world.look().alerts == ()
        world.pass_time(60)
        assert len(world.look().deletes) == 1
    settling(world, name)
    assert [alert.kind for alert in world.look().alerts] == ["pool_stuck"]
    assert world.memory.deletes[name].failures == 0


def test_delete_whose_operation_failed_is_repeated_after_a_wait() -> None:
    world, name = idle_world()
    pool = world.pools[name]
    world.answer(DeleteAnswer(name=name, at=world.now, result=DeleteResult.ACCEPTED, operation=OPERATION))
    world.put(replace(pool, status=PoolStatus.STOPPING))
    assert world.look().deletes == ()
    world.put(pool)
    world.pass_time(1)
    look_up, _ = until_look_up(world)
    assert look_up.operation == OPERATION
    failed = Operation(name=OPERATION, done=True, failure=failure(FailureKind.UNAVAILABLE, "internal"))
    look_up_answer(world, look_up, operation=failed)
    call = world.memory.deletes[name]
    assert (call.state, call.reason, call.failures) == (CallState.POSTPONED, "internal", 1)
    assert call.status is PoolStatus.RUNNING
    world.now = call.retry_at or world.now
    assert len(world.look().deletes) == 1


@pytest.mark.parametrize("operation", [OPERATION, OperationName("")], ids=["forgotten operation", "no operation"])
def test_delete_is_repeated_if_its_operation_is_unknown_to_gke(operation: OperationName) -> None:
    """The list of pools still contains the pool, which would otherwise cost money without limit."""
    world, name = idle_world()
    result = DeleteResult.ACCEPTED if operation else DeleteResult.GONE
    world.answer(DeleteAnswer(name=name, at=world.now, result=result, operation=operation))
    assert until_sent(world, "deletes")


def test_delete_rejected_for_too_many_operations_limits_operations() -> None:
    world, name = idle_world()
    refused = failure(FailureKind.TOO_MANY_OPERATIONS)
    world.answer(DeleteAnswer(name=name, at=world.now, result=DeleteResult.FAILED, failure=refused))
    assert world.look().memory.operations.limit == 0


def test_responses_to_unknown_calls_change_nothing() -> None:
    """A call is unknown if the list of pools has already ended it in the memory."""
    world = World()
    before = world.memory
    name = PoolName("unheard-of")
    world.answer(CreateAnswer(name=name, at=world.now))
    world.answer(DeleteAnswer(name=name, at=world.now, result=DeleteResult.GONE))
    for look_up in (LookUp(name=name), LookUp(name=name, operation=OPERATION)):
        look_up_answer(world, look_up, operation=Operation(name=OPERATION, done=True))
    assert world.memory == before


def test_calls_in_flight_are_not_repeated() -> None:
    """A call may wait for a thread or for GKE for any length of time."""
    world, name = idle_world()
    world.add(make_jobset("new", uid="new"))
    plans = []
    for _ in range(300):
        plans.append(world.look())
        world.pass_time(1)
    assert sum(len(plan.creates) for plan in plans) == 1
    assert sum(len(plan.deletes) for plan in plans) == 0
    assert name in world.memory.deletes


@pytest.mark.parametrize("kind", [FailureKind.STOCKOUT, FailureKind.QUOTA], ids=lambda kind: kind.value)
def test_back_off_from_a_clock_two_hours_ahead_has_no_effect(kind: FailureKind) -> None:
    """Stored back-offs may come from a process with a wrong clock. Past back-offs have no effect either."""
    world = World(make_jobset())
    (create,) = world.look().creates
    capacity = capacity_key(create.request)
    for at, want in ((after(2 * 3600), 1), (world.now, 0), (after(-4 * 3600), 1)):
        world.memory = Memory(backoffs=backoff.create_failed({}, failure(kind), capacity, at))
        assert len(world.look().creates) == want
    assert world.memory.backoffs == {}
