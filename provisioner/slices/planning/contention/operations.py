"""Bounds the number of the provisioner's concurrent node pool operations, learning from GKE's rejections. Pure.

GKE rejects operations beyond an undocumented number, which also counts operations of other clients. After a rejection,
the number of the provisioner's operations at that time is the bound. Every 10 s without another rejection, more are
tried (1, 3, 7, ...), and after 60 s the bound is dropped. Creates and deletes share the free slots.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import CallState, OperationLimit
from provisioner.slices.planning.round import Round

_STEP = timedelta(seconds=10)
#: Number of steps without a rejection after which the bound is dropped.
_STEPS = 6
#: Maximum number of creates, and of deletes, per thread, running or queued. More would delay later, urgent calls.
_CALLS_PER_THREAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Numbers of calls that one decision may start."""

    learned: OperationLimit
    #: Maximum number of operations to start; None if unlimited.
    operations: int | None
    #: Maximum number of creates that the threads accept.
    calls: int
    delete_calls: int
    #: Time at which more operations are tried even if none has ended; None without a bound.
    more_at: datetime | None

    def for_creates(self, deletes: int) -> int:
        """Return the number of creates that may be started if `deletes` deletes are due."""
        if self.operations is None:
            return self.calls
        half = (self.operations + self.learned.deletes_last) // 2
        return min(self.calls, max(half, self.operations - deletes))

    def for_deletes(self, creates: int) -> int:
        """Return the number of deletes that may be started in addition to `creates` creates."""
        return (
            self.delete_calls if self.operations is None else min(self.delete_calls, max(0, self.operations - creates))
        )


def find_slots(ctx: Round) -> Slots:
    """Return the slots of this decision, with the bound on concurrent operations that was learned so far."""
    memory, now = ctx.memory, ctx.now
    creates = {name for name, call in memory.creates.items() if call.state is CallState.UNDER_WAY}
    deletes = {name for name, call in memory.deletes.items() if call.state is CallState.UNDER_WAY}
    listed = (pool.pool for pool in ctx.owned.values() if pool.listed)
    # `answers.confirm` has ended each create whose pool is listed, so `creates` contains no listed pool.
    running = operations_under_way(listed, memory) - creates
    coming = (creates | deletes) - running
    learned = _learnt(memory.operations, len(running), now)
    steps = 0 if learned.rejected_at is None else max(0, (now - learned.rejected_at) // _STEP)
    free = None if learned.limit is None else learned.limit - len(running) - len(coming)
    calls = _CALLS_PER_THREAD * ctx.settings.concurrency
    return Slots(
        learned=learned,
        operations=free if free is None or free > 0 else max(0, free + 2**steps - 1),
        calls=max(0, calls - len(creates)),
        delete_calls=max(0, calls - len(deletes)),
        more_at=None if learned.rejected_at is None else learned.rejected_at + (steps + 1) * _STEP,
    )


def _learnt(bound: OperationLimit, running: int, now: datetime) -> OperationLimit:
    at = bound.rejected_at
    if bound.rejected:
        # An operation may have ended since the rejection, so the bound is at least the number at the last decision.
        limit = max(running, bound.running)
        bound = replace(bound, limit=limit, rejected_at=now, rejected=False)
    elif bound.limit is not None and at is not None and now - at >= _STEPS * _STEP:
        bound = replace(bound, limit=None, rejected_at=None)
    elif bound.limit is not None:
        # GKE runs `running` operations at the same time, so the bound is at least this number.
        bound = replace(bound, limit=max(bound.limit, running))
    return replace(bound, running=running)
