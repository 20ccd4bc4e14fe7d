"""Remembered times are shifted when the machine's clock is set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from provisioner.model.capacity import Failure, FailureKind, PoolName, PoolStatus
from provisioner.runtime.clock import shifted
from provisioner.slices.planning.memory.state import Backoff, CallState, DeleteCall, Memory, PoolMemory

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BACK = timedelta(hours=-2)
POOL = PoolName("train-0123456789")


def test_nested_times_are_shifted() -> None:
    failure = Failure(kind=FailureKind.STOCKOUT, message="none left")
    before = Memory(
        pools={
            POOL: PoolMemory(
                unneeded_since=NOW,
                delete=DeleteCall(state=CallState.POSTPONED, since=NOW, retry_at=NOW + timedelta(seconds=5)),
                passing=(PoolStatus.STOPPING, NOW),
            )
        },
        backoffs={"a": Backoff(failure=failure, failures=2, since=NOW, until=NOW + timedelta(seconds=60))},
    )
    after = shifted(before, BACK)
    assert after.pool(POOL).unneeded_since == NOW + BACK
    assert after.pool(POOL).passing == (PoolStatus.STOPPING, NOW + BACK)
    assert after.deletes[POOL].since == NOW + BACK
    assert after.deletes[POOL].retry_at == NOW + BACK + timedelta(seconds=5)
    assert after.backoffs["a"].until == NOW + BACK + timedelta(seconds=60)
    assert after.backoffs["a"].failure is failure


def test_time_that_means_never_is_not_shifted() -> None:
    """datetime.min, which means never, cannot be shifted back."""
    never = datetime.min.replace(tzinfo=UTC)
    assert shifted(Memory(pools={POOL: PoolMemory(unneeded_since=never)}), BACK).pool(POOL).unneeded_since == never
