"""Tests of idle and warm pools that are deleted for slices that need their chips, and of the cost to find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolStatus
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Create, Delete
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.counting import counted
from tests.support.market import jobset_of
from tests.support.models import make_jobset, make_pod, make_pool, make_requirements
from tests.support.objects import raw_buffer
from tests.support.settings import settings
from tests.support.world import World, failure

HOURS = 6


def warm_world() -> Asking:
    """Return a world in which the ready warm slice of a buffer uses up the limit on chips."""
    world = Asking(raw_buffer(replicas=1), max_chips=8)
    world.live(4)
    assert [pool.status for pool in world.pools.values()] == [PoolStatus.RUNNING]
    return world


def live_for_hours(world: World, before_round: Callable[[int], None] = lambda _minute: None) -> float:
    """Run rounds for HOURS; return the share of the time for which the buffer had its slice, from 0 to 1."""
    warm = 0
    for minute in range(HOURS * 60):
        before_round(minute)
        world.live(1, seconds=60)
        warm += any(pool.status is PoolStatus.RUNNING and "warm" in pool.name for pool in world.pools.values())
    return warm / (HOURS * 60)


ACCOUNT = {constants.NODE_SERVICE_ACCOUNT: "x@p.iam.gserviceaccount.com"}


@pytest.mark.parametrize("minutes", [pytest.param(0, id="one JobSet"), pytest.param(5, id="recreated JobSet")])
@pytest.mark.parametrize(
    ("kind", "annotations"),
    [
        pytest.param(FailureKind.STOCKOUT, {}, id="capacity out of stock"),
        pytest.param(FailureKind.PERMISSION, ACCOUNT, id="403"),
        pytest.param(FailureKind.NOT_FOUND, ACCOUNT, id="404"),
        pytest.param(FailureKind.INVALID, ACCOUNT, id="400"),
    ],
)
def test_warm_pool_is_deleted_at_most_once_an_hour_for_slices_whose_creates_fail(
    kind: FailureKind, annotations: dict[str, str], minutes: int
) -> None:
    """In the past, a warm pool was recreated 348 times in 23 h."""
    world = warm_world()

    def refuse(create: Create) -> Failure | None:
        return failure(kind) if create.workload.namespace == "other" else None

    world.refuse_create = refuse
    template = make_requirements(
        accelerator="tpu-v5-lite-podslice", topology="2x4", tolerations=(), annotations=annotations
    )
    scarce = make_jobset("scarce", namespace="other", template=template)
    world.add(scarce)

    def recreate(minute: int) -> None:
        if minutes and minute % minutes == 0:
            old = next(workload for workload in world.workloads.values() if workload.namespace == "other")
            world.remove_jobset(old)
            world.add(replace(old, uid=WorkloadUid(f"scarce-{minute}")))

    assert live_for_hours(world, recreate) > 0.9
    assert 1 <= len(world.deleted) <= HOURS + 1


def test_warm_pool_is_deleted_for_a_slice_that_needs_its_chips() -> None:
    world = warm_world()
    waits = jobset_of("waits", "2x2x1")
    world.add(waits)
    world.live(4)
    assert world.bound(waits) == 1


def test_idle_pool_whose_delete_was_rejected_is_tried_after_the_others() -> None:
    """GKE rejects the delete of a pool with a running operation; the next idle pool frees as many chips."""
    world = World(settings_=settings(max_chips=8, deletion_delay_seconds=3600.0))
    names = []
    for number in range(2):
        gone = jobset_of(f"gone{number}", "2x2x1")
        names.append(world.put_pool(make_pool(gone)).name)
        world.deleted_workloads.add(gone.uid)
        world.step(seconds=60)

    def refuse(delete: Delete) -> Failure | None:
        return failure(FailureKind.OPERATION_IN_THE_WAY) if delete.name == names[0] else None

    world.refuse_delete = refuse
    waits = jobset_of("waits", "2x2x1", namespace="other", accelerator="tpu-v5p-slice")
    world.add(waits)
    world.live(6)
    assert (world.deleted, world.bound(waits)) == (names[1:], 1)


def crowded(units: int, pools: int) -> World:
    """Return a world with idle pools, and with slices that would exceed the limit even without these pools."""
    world = World(settings_=settings(max_chips=2048, max_pools_per_jobset=100, deletion_delay_seconds=3600.0))
    over = jobset_of("over", "2x2x1", replicas=pools)
    world.workloads[over.uid] = over
    for job in range(pools):
        world.put_pool(make_pool(over, job=job))
    used = jobset_of("used", "2x2x1")
    world.workloads[used.uid] = used
    pool = world.put_pool(make_pool(used))
    world.put(make_pod(used, node=f"gke-{pool.name}-0"))
    world.finish(over)
    for number in range(units):
        large = jobset_of(f"large{number}", "8x16x16", namespace="other")
        world.workloads[large.uid] = large
        world.put(make_pod(large, unschedulable_since=world.now))
    world.look()
    world.pass_time(5)
    world.look()
    return world


def test_work_of_a_decision_grows_linearly_with_waiting_slices_and_idle_pools() -> None:
    """In the past, a decision took 2.4 s with 1,000 slices and 400 pools."""

    def calls(size: int) -> int:
        world = crowded(size, size)
        snapshot = world.snapshot()
        plan, found = counted(
            lambda: decide(snapshot, world.memory, world.settings, world.rules, world.now, world.last_round)
        )
        assert (plan.creates, plan.deletes, len(plan.waits)) == ((), (), size)
        return found

    assert calls(80) < 2.2 * calls(40)


def test_no_further_idle_pool_is_deleted_while_a_delete_frees_enough_chips() -> None:
    world = World(settings_=settings(max_chips=16, deletion_delay_seconds=3600.0))
    for number in range(2):
        gone = jobset_of(f"gone{number}", "2x2x2")
        world.put_pool(make_pool(gone))
        world.deleted_workloads.add(gone.uid)
        world.step(seconds=60)
    world.add(jobset_of("a", "2x2x1"), jobset_of("b", "2x2x1", namespace="other"))
    started = world.now
    while world.now - started < timedelta(minutes=10):
        world.step(seconds=20)
    assert len(world.deleted) == 1
    world.finish_deletes()
    world.step()
    assert len(world.created) == 2


def test_warm_pool_is_not_deleted_for_a_slice_while_creation_is_paused() -> None:
    world = warm_world()
    world.settings = replace(world.settings, pause_creation=True)
    world.add(jobset_of("waits", "2x2x1"))
    world.run(20, seconds=60)
    assert world.deleted == []
