"""Tests of the waits after failures, of capacity that was out of stock, and of the bound on concurrent operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from provisioner.model.capacity import CapacityKind, Failure, FailureKind, PoolName, PoolStatus, Zone
from provisioner.model.choices import CapacityChoice, CapacityKey
from provisioner.slices.planning.contention.operations import Slots
from provisioner.slices.planning.contention.waits import ChoiceBlocker, distinct
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.answers import CreateAnswer
from provisioner.slices.planning.memory.state import Backoff, CallState, DeleteCall, OperationLimit
from provisioner.slices.planning.plan import Create
from tests.support.clock import NOW, after
from tests.support.market import Market, jobset_of
from tests.support.models import foreign_pool, make_jobset, make_pool, make_requirements, make_slice
from tests.support.settings import settings
from tests.support.world import World, failure

KEY = CapacityKey(Zone("us-central2-b"), "ct4p-hightpu-4t", "2x2x2 on 2", "on-demand")
STOCKOUT = failure(FailureKind.STOCKOUT)
REJECTED = failure(FailureKind.TOO_MANY_OPERATIONS)
DIGEST = "0123456789abcdef"
SLICE = make_slice(make_jobset()).id


def making(world: World) -> int:
    return sum(pool.status is PoolStatus.PROVISIONING for pool in world.pools.values())


@pytest.mark.parametrize(
    ("kind", "first", "cap"),
    [
        (FailureKind.STOCKOUT, 30, 600),
        (FailureKind.QUOTA, 60, 1800),
        (FailureKind.OPERATION_IN_THE_WAY, 2, 30),
        (FailureKind.UNAVAILABLE, 1, 60),
        (FailureKind.PERMISSION, 60, 600),
        (FailureKind.NOT_FOUND, 60, 600),
    ],
)
def test_waits_double_up_to_a_cap(kind: FailureKind, first: float, cap: float) -> None:
    """Each wait is shortened by up to a fifth, so the test allows 80 to 100 % of the expected time."""

    def failed(backoffs: Mapping[Any, Backoff], now: datetime) -> Mapping[Any, Backoff]:
        if kind in backoff.OF_CAPACITY:
            return backoff.create_failed(backoffs, failure(kind), KEY, now)
        return backoff.slice_failed(backoffs, failure(kind), SLICE, now)

    now = NOW
    backoffs = failed({}, NOW)
    ((_, wait),) = backoffs.items()
    assert first * 0.8 <= (wait.until - now).total_seconds() <= first
    for _ in range(12):
        ((_, wait),) = backoffs.items()
        now = wait.until
        backoffs = failed(backoffs, now)
    ((_, wait),) = backoffs.items()
    assert cap * 0.8 <= (wait.until - now).total_seconds() <= cap
    assert wait.since == NOW
    assert (wait.until - now).total_seconds() <= backoff.longest_wait_seconds(wait.failure)


@pytest.mark.parametrize(
    "kind", [FailureKind.INVALID, FailureKind.ALREADY_EXISTS, FailureKind.UNKNOWN_OUTCOME], ids=lambda kind: kind.value
)
def test_invalid_already_exists_and_unknown_outcome_cause_no_slice_back_off(kind: FailureKind) -> None:
    assert kind not in backoff.OF_CAPACITY
    assert backoff.slice_failed({}, failure(kind), SLICE, NOW) == {}


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_pool_that_failed_delays_its_capacity_or_its_request(kind: FailureKind) -> None:
    key = KEY if kind in (FailureKind.STOCKOUT, FailureKind.QUOTA) else DIGEST
    assert set(backoff.pool_failed({}, failure(kind), KEY, DIGEST, NOW)) == {key}
    # Pools of the Go provisioner have no label with the digest of their request, so their capacity waits instead.
    assert set(backoff.pool_failed({}, failure(kind), KEY, "", NOW)) == {KEY}


def test_failures_of_concurrent_creates_count_once() -> None:
    once = backoff.pool_failed({}, failure(FailureKind.STOCKOUT), KEY, DIGEST, NOW)
    twice = backoff.pool_failed(once, failure(FailureKind.STOCKOUT, "newer words"), KEY, DIGEST, after(5))
    assert twice[KEY] == replace(once[KEY], failure=failure(FailureKind.STOCKOUT, "newer words"))


def test_names_of_a_tenant_are_removed_from_stockout_messages() -> None:
    """GKE's message contains the name of an instance and thus of the workload, and other tenants see the message."""
    message = (
        "Not all instances running. [GCE_STOCKOUT]: Instance 'gke-c-secret-plan-0a1b2c3d4e-3c60-0000' creation failed"
    )
    backoffs = backoff.pool_failed({}, failure(FailureKind.STOCKOUT, message), KEY, DIGEST, NOW)
    assert "secret" not in backoffs[KEY].failure.message
    assert "[GCE_STOCKOUT]: Instance '…' creation failed" in backoffs[KEY].failure.message


def test_known_reason_is_preferred_to_an_unknown_one() -> None:
    known, unknown = failure(FailureKind.STOCKOUT), failure(FailureKind.UNAVAILABLE, "GKE gives no reason.")
    for reasons in ((known, unknown), (unknown, known)):
        backoffs: Mapping[str, Backoff] = {}
        for reason in reasons:
            backoffs = backoff.pool_failed(backoffs, reason, KEY, "", after(1))
        assert (backoffs[KEY].failure, backoffs[KEY].failures) == (known, 1)


def test_stockout_replaces_a_failure_without_a_reason() -> None:
    backoffs = backoff.pool_failed({}, failure(FailureKind.UNAVAILABLE), KEY, DIGEST, NOW)
    found = backoff.pool_failed(backoffs, failure(FailureKind.STOCKOUT), KEY, DIGEST, after(1))
    assert {key: last.failures for key, last in found.items()} == {KEY: 1}


def test_concurrent_failures_of_two_kinds_count_once_and_wait_for_the_longer_time() -> None:
    """A restart reads the same failed pools again, in any order."""
    quota, stockout = failure(FailureKind.QUOTA), failure(FailureKind.STOCKOUT)
    backoffs = backoff.pool_failed({}, stockout, KEY, DIGEST, NOW)
    for seconds, reason in enumerate((quota, stockout, quota, stockout)):
        backoffs = backoff.pool_failed(backoffs, reason, KEY, DIGEST, after(seconds))
    longest = backoff.pool_failed({}, quota, KEY, DIGEST, NOW)[KEY]
    assert backoffs == {KEY: longest}


def test_longest_wait_of_capacity_and_slice_blocks() -> None:
    backoffs = backoff.create_failed({}, failure(FailureKind.STOCKOUT), KEY, NOW)
    own = backoff.slice_failed({}, failure(FailureKind.UNAVAILABLE), SLICE, NOW)[SLICE]
    blocking = backoff.blocking(backoffs, KEY, own, NOW)
    assert blocking is not None
    assert blocking.failure.kind is FailureKind.STOCKOUT
    elsewhere = backoff.blocking(backoffs, "another capacity", own, NOW)
    assert elsewhere is not None
    assert elsewhere.failure.kind is FailureKind.UNAVAILABLE
    assert backoff.blocking(backoffs, "another capacity", None, NOW) is None
    assert backoff.blocking(backoffs, KEY, own, after(60)) is None


def test_missing_permission_for_a_reservation_does_not_lengthen_the_next_wait() -> None:
    """In the past, all choices of the slice waited as long as the reservation without permission."""
    refused = backoff.slice_failed({}, failure(FailureKind.PERMISSION), SLICE, NOW, reserved=KEY)
    both = backoff.slice_failed(refused, failure(FailureKind.OPERATION_IN_THE_WAY), SLICE, after(1))
    assert (both[SLICE].failure.kind, both[SLICE].capacities) == (FailureKind.OPERATION_IN_THE_WAY, frozenset())
    assert both[SLICE].until <= after(5)


def test_waits_of_two_choices_that_fail_by_turns_grow() -> None:
    """The first choice lacks the permission for its reservation in each try."""
    backoffs: backoff.Backoffs = {}
    at = NOW
    for _ in range(10):
        backoffs = backoff.slice_failed(backoffs, failure(FailureKind.PERMISSION), SLICE, at, reserved=KEY)
        backoffs = backoff.slice_failed(backoffs, failure(FailureKind.UNAVAILABLE), SLICE, at)
        waited, at = backoffs[SLICE].until - at, backoffs[SLICE].until
    assert waited >= timedelta(seconds=40)


def test_forget_removes_only_the_back_off_of_the_key() -> None:
    backoffs = backoff.create_failed({}, failure(FailureKind.STOCKOUT), KEY, NOW)
    assert backoff.forget(backoffs, "other") == backoffs
    assert backoff.forget(backoffs, KEY) == {}


@pytest.mark.parametrize(("quota", "slices", "poll"), [(5, 24, 1.0), (1, 6, 1.0), (9, 60, 1.0), (5, 24, 0.25)], ids=str)
def test_unknown_quota_is_used_with_few_rejected_calls(quota: int, slices: int, poll: float) -> None:
    """GKE does not report its limit on concurrent operations. On average, at least 95 % of the limit must be used."""
    world = World(*(make_jobset(f"job{index}") for index in range(slices)))
    market, refusals = Market(world, seconds=20), 0

    def refuse(_create: Create) -> Failure | None:
        nonlocal refusals
        if making(world) < quota:
            return None
        refusals += 1
        return REJECTED

    used: list[int] = []
    world.refuse_create = refuse
    while len(world.created) < slices:
        market.step(seconds=poll)
        used.append(min(quota, making(world)))
        assert len(used) < 5000, "the creates never end"
    assert sum(used) / (quota * len(used)) >= 0.95
    # Each create of the first burst is rejected at most once, and later only creates that try a higher limit.
    assert refusals <= slices + len(used) * poll / 5


def test_rejection_after_a_pool_failure_starts_with_the_shortest_wait() -> None:
    """A pool failure after a rejection starts with the shortest wait as well: the causes are independent."""
    failed = backoff.pool_failed({}, failure(FailureKind.UNAVAILABLE), KEY, DIGEST, NOW)
    refused = backoff.pool_failed(failed, failure(FailureKind.INVALID), KEY, DIGEST, after(5), SLICE)[DIGEST]
    assert (refused.failures, refused.slice_id) == (1, SLICE)
    again = backoff.pool_failed({DIGEST: refused}, failure(FailureKind.UNAVAILABLE), KEY, DIGEST, after(10))[DIGEST]
    assert (again.failures, again.slice_id) == (1, None)


# --- Capacity that was out of stock ---


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
def test_vanished_pool_ends_back_offs_of_its_zone_and_machine_type(
    place: tuple[str, str], kind: FailureKind, due: bool
) -> None:
    """The machines of the deleted pool may be available."""
    backoffs = backoff.freed(failed(failure=failure(kind)), {place}, after(1))
    assert (backoff.blocking(backoffs, KEY, None, after(1)) is None) is due


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


def test_create_after_a_stockout_is_sent_while_pools_of_its_capacity_are_deleted() -> None:
    """In the past, this create waited for up to 61 min while pools of a tenant were deleted one after the other."""
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
def test_flood_of_one_namespace_does_not_prevent_creates_of_another(slow: bool) -> None:
    world = World(*(jobset_of(f"flood{number:02}", namespace="flood") for number in range(30)))
    world.refuse_create = lambda _: None if slow else STOCKOUT
    world.run(3)
    world.add(jobset_of("honest", namespace="honest"))
    world.plans.clear()
    for _ in range(90):
        world.step(seconds=60)
        for name, pool in list(world.pools.items()):
            if pool.status is PoolStatus.PROVISIONING:
                world.fail_pool(name, STOCKOUT)
        world.finish_deletes()
    tried = [create.workload.namespace for create in world.sent()]
    assert len(tried) >= 8
    assert abs(tried.count("honest") - tried.count("flood")) <= 2


# --- Concurrent operations ---


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


@pytest.mark.parametrize("making", [0, 1], ids=["ready pool", "pool in creation"])
def test_delete_in_flight_counts_as_one_operation(making: int) -> None:
    """A delete that the gate still checks will be an operation, but only when the create of its pool has ended."""
    world = world_with(rejected(2) if making else OperationLimit(rejected=True, running=2), making=making)
    if not making:
        world.put_pool(make_pool(make_jobset("gone")))
    (name,) = world.pools
    call = DeleteCall(state=CallState.UNDER_WAY, since=after(-1))
    world.memory = world.memory.with_pool(name, delete=call)
    plan = world.look()
    assert (plan.memory.operations.limit, len(plan.creates)) == (2, 1)


def test_deletes_in_flight_are_at_most_twice_the_number_of_threads() -> None:
    """Deletes of many unneeded pools must not delay deletes that slices wait for."""
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


def test_equal_failures_are_reported_for_the_preferred_choice() -> None:
    """In the past, the message named the last choice."""
    last = Backoff(failure=STOCKOUT, failures=1, since=NOW, until=after(9))
    spot, on_demand = (CapacityChoice(kind=kind) for kind in (CapacityKind.SPOT, CapacityKind.ON_DEMAND))
    blockers = [ChoiceBlocker(spot, last), ChoiceBlocker(on_demand, last)]
    assert distinct(blockers) == blockers[:1]
