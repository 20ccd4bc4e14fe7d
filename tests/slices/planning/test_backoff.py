"""Tests of the waits after each kind of failure, and of the bound on concurrent operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from provisioner.model.capacity import Failure, FailureKind, PoolStatus, Zone
from provisioner.model.choices import CapacityKey
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Backoff
from provisioner.slices.planning.plan import Create
from tests.support.clock import NOW, after
from tests.support.market import Market
from tests.support.models import make_jobset, make_slice
from tests.support.world import World, failure

KEY = CapacityKey(Zone("us-central2-b"), "ct4p-hightpu-4t", "2x2x2 on 2", "on-demand")
DIGEST = "0123456789abcdef"
SLICE = make_slice(make_jobset()).id


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
        if backoff.concerns_capacity(failure(kind)):
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
def test_rejected_existing_or_unknown_create_causes_no_slice_back_off(kind: FailureKind) -> None:
    assert not backoff.concerns_capacity(failure(kind))
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


def test_failure_without_a_reason_is_replaced_by_a_later_stockout() -> None:
    unknown = backoff.pool_failed({}, failure(FailureKind.UNAVAILABLE), KEY, DIGEST, NOW)
    assert set(backoff.pool_failed(unknown, failure(FailureKind.STOCKOUT), KEY, DIGEST, after(1))) == {KEY}


def test_another_failure_of_the_same_capacity_lengthens_the_wait() -> None:
    backoffs = backoff.pool_failed({}, failure(FailureKind.STOCKOUT), KEY, DIGEST, NOW)
    assert backoff.pool_failed(backoffs, failure(FailureKind.QUOTA), KEY, DIGEST, after(1))[KEY].failures == 2


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


def test_forget_removes_only_the_back_off_of_the_key() -> None:
    backoffs = backoff.create_failed({}, failure(FailureKind.STOCKOUT), KEY, NOW)
    assert backoff.forget(backoffs, "other") == backoffs
    assert backoff.forget(backoffs, KEY) == {}


@pytest.mark.parametrize(("quota", "slices", "poll"), [(5, 24, 1.0), (1, 6, 1.0), (9, 60, 1.0), (5, 24, 0.25)], ids=str)
def test_unknown_quota_is_used_with_few_rejected_calls(quota: int, slices: int, poll: float) -> None:
    """GKE does not report its limit on concurrent operations. On average, at least 95 % of the limit must be used."""
    world = World(*(make_jobset(f"job{index}") for index in range(slices)))
    market, rejected = Market(world, seconds=20), 0

    def making() -> int:
        return sum(pool.status is PoolStatus.PROVISIONING for pool in world.pools.values())

    def refuse(_create: Create) -> Failure | None:
        nonlocal rejected
        if making() < quota:
            return None
        rejected += 1
        return failure(FailureKind.TOO_MANY_OPERATIONS)

    used: list[int] = []
    world.refuse_create = refuse
    while len(world.created) < slices:
        market.step(seconds=poll)
        used.append(min(quota, making()))
        assert len(used) < 5000, "the creates never end"
    assert sum(used) / (quota * len(used)) >= 0.95
    # Each create of the first burst is rejected at most once, and later only creates that try a higher limit.
    assert rejected <= slices + len(used) * poll / 5


def test_rejection_after_a_pool_failure_starts_with_the_shortest_wait() -> None:
    """A pool failure after a rejection starts with the shortest wait as well: the causes are independent."""
    failed = backoff.pool_failed({}, failure(FailureKind.UNAVAILABLE), KEY, DIGEST, NOW)
    refused = backoff.pool_failed(failed, failure(FailureKind.INVALID), KEY, DIGEST, after(5), SLICE)[DIGEST]
    assert (refused.failures, refused.slice_id) == (1, SLICE)
    again = backoff.pool_failed({DIGEST: refused}, failure(FailureKind.UNAVAILABLE), KEY, DIGEST, after(10))[DIGEST]
    assert (again.failures, again.slice_id) == (1, None)
