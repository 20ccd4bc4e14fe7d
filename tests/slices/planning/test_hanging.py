"""Pools that hang in a status, or whose delete is held up: somebody is told after a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind, FailureKind, Operation, OperationName, PoolStatus
from provisioner.slices.planning.memory.answers import CreateAnswer, DeleteAnswer, DeleteResult, LookUpAnswer
from provisioner.slices.planning.plan import Create, Delete, LookUp
from tests.support.models import make_jobset, make_pool
from tests.support.settings import settings
from tests.support.world import World, failure, running


@pytest.mark.parametrize(
    ("status", "minutes", "words", "used"),
    [
        (PoolStatus.PROVISIONING, 60, "status PROVISIONING", True),
        (PoolStatus.STOPPING, 30, "status STOPPING", True),
        (PoolStatus.STOPPING, 30, "status STOPPING", False),
        (PoolStatus.RECONCILING, 30, "status RECONCILING", True),
        (PoolStatus.UNKNOWN, 10, "a status that this release does not know", True),
        (PoolStatus.UNKNOWN, 10, "a status that this release does not know", False),
    ],
)
def test_a_pool_that_hangs_in_a_status_is_an_alert(status: PoolStatus, minutes: int, words: str, *, used: bool) -> None:
    """It names the pool, the status, since when, and where to look; and ends with the status."""
    workload = make_jobset()
    world = running(workload)
    (pool,) = world.pools.values()
    if not used:
        world.finish(workload)
    world.put(replace(pool, status=status))
    since = world.now
    world.run(minutes, seconds=60)
    assert not any(plan.alerts for plan in world.plans)
    (alert,) = world.look().alerts
    assert (alert.kind, alert.pool) == ("pool_stuck", pool.name)
    assert alert.message == (
        f"Node pool {pool.name} has had {words} since {since:%H:%M:%S} UTC; look at it and at its operations in GKE"
    )
    events = {each.message for each in world.plans[-1].notices if each.reason == constants.STUCK}
    assert bool(events) is used
    assert all(words in message and pool.name in message for message in events)
    world.put(replace(pool, status=PoolStatus.RUNNING))
    assert world.look().alerts == ()


def test_a_pool_that_hangs_while_its_delete_is_refused_is_one_alert() -> None:
    world = World()
    world.put(make_pool(make_jobset(), status=PoolStatus.PROVISIONING))
    world.refuse_delete = lambda _: failure(FailureKind.OPERATION_IN_THE_WAY, "Another operation.")
    world.run(90, seconds=60)
    (alert,) = world.plans[-1].alerts
    assert (alert.kind, "Another operation." in alert.message) == ("pool_stuck", True)


def test_a_slice_that_waits_for_a_pool_that_hangs_is_told() -> None:
    """GKE makes it for ever; nothing else is bought meanwhile."""
    world = World(make_jobset())
    world.run(60, seconds=60)
    assert world.told(constants.STUCK) == []
    world.run(60 * 47, seconds=60)
    assert {each.key for each in world.told(constants.STUCK)} == {f"hangs {world.created[0]}"}
    assert (len(world.created), world.deleted) == (1, [])


@pytest.mark.parametrize(
    ("changes", "wait_seconds"),
    [
        pytest.param({"capacity": CapacityKind.FLEX_START}, 600.0, id="flex-start waits for nodes"),
        pytest.param({"status": PoolStatus.PROVISIONING}, 86400.0, id="the setting waits for machines for a day"),
    ],
)
def test_a_pool_that_waits_for_capacity_by_design_does_not_hang(
    changes: dict[str, object], wait_seconds: float
) -> None:
    workload = make_jobset()
    world = World(workload, settings_=settings(capacity_wait_seconds=wait_seconds))
    world.put(replace(make_pool(workload), **changes))  # type: ignore[arg-type]
    world.run(24 * 12, seconds=300)
    assert (world.created, world.deleted) == ([], [])
    assert not any(plan.alerts for plan in world.plans)
    assert world.told(constants.STUCK) == []


def test_the_time_of_a_status_begins_with_it() -> None:
    """A pool that was made for 50 minutes has as long to be deleted as any other."""
    workload = make_jobset()
    world = World(workload)
    world.run(50, seconds=60)
    (pool,) = world.pools.values()
    world.put(replace(pool, status=PoolStatus.STOPPING))
    world.run(30, seconds=60)
    assert not any(plan.alerts for plan in world.plans)
    assert world.look().alerts != ()


class Accepting(World):
    """GKE accepts creates and deletes, and their operations neither end nor show in the list."""

    def _create(self, create: Create) -> CreateAnswer:
        self.created.append(create.request.name)
        return CreateAnswer(name=create.request.name, at=self.now, operation=OperationName("create"))

    def _delete(self, delete: Delete) -> DeleteAnswer:
        self.deleted.append(delete.name)
        operation = OperationName("delete")
        return DeleteAnswer(name=delete.name, at=self.now, result=DeleteResult.ACCEPTED, operation=operation)

    def _look_up(self, look_up: LookUp) -> LookUpAnswer:
        operation = Operation(name=look_up.operation, done=False, failure=None)
        return LookUpAnswer(look_up=look_up, at=self.now, operation=operation)


def test_a_create_that_is_accepted_and_never_shows_is_an_alert() -> None:
    world = Accepting(make_jobset())
    world.run(62, seconds=60)
    (alert,) = world.plans[-1].alerts
    assert (alert.kind, "status PROVISIONING" in alert.message) == ("pool_stuck", True)
    assert len(world.created) == 1


def test_a_delete_that_is_accepted_and_never_shows_is_an_alert() -> None:
    """Its operation never ends, and the pool stays RUNNING."""
    world = Accepting()
    world.put_pool(make_pool(make_jobset()))
    world.run(33, seconds=60)
    (alert,) = world.plans[-1].alerts
    assert (alert.kind, "status STOPPING" in alert.message) == ("pool_stuck", True)
