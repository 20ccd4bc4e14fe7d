"""How many operations may be started now: GKE takes only some at once in a cluster, and does not say how many.

Only its rejections show it, and they include operations of others that nobody here sees. So after a rejection no more
operations of ours run than at that moment, and with each 10 s without another rejection more are tried: one, three,
seven. After a minute nothing is known any more. Creates and deletes share what is free, half each where both wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.model.capacity import PoolStatus
from provisioner.slices.planning.memory.state import CallState, Memory, OperationLimit
from provisioner.slices.planning.round import Round

_STEP = timedelta(seconds=10)
#: A limit is forgotten after so many steps.
_STEPS = 6
_BUSY = (PoolStatus.PROVISIONING, PoolStatus.STOPPING)
#: Calls that wait for a thread, for each thread: they keep it busy, and leave room for whoever comes next.
_CALLS_PER_THREAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What one decision may start."""

    #: None: any number.
    operations: int | None
    #: Creates, and deletes, that the threads take before the next decision.
    calls: int
    delete_calls: int
    deletes_last: bool
    #: When more may be tried although nothing ends; None: nothing waits for that.
    more_at: datetime | None

    def for_creates(self, deletes: int) -> int:
        """Return how many creates may be started beside so many deletes that are due."""
        if self.operations is None:
            return self.calls
        # The odd one is for whom it was not for last.
        half = (self.operations + self.deletes_last) // 2
        return min(self.calls, max(half, self.operations - deletes))

    def for_deletes(self, creates: int) -> int:
        """Return how many deletes may be started beside so many creates."""
        return (
            self.delete_calls if self.operations is None else min(self.delete_calls, max(0, self.operations - creates))
        )


def find_slots(round_: Round) -> tuple[Memory, Slots]:
    """Learn from what GKE answered, once a round, and say how much may be started now."""
    memory, now = round_.memory, round_.now
    busy = {name for name, each in round_.supply.items() if each.listed and each.pool.status in _BUSY}
    creates = [name for name, call in memory.creates.items() if call.state is CallState.UNDER_WAY]
    deletes = [name for name, call in memory.deletes.items() if call.state is CallState.UNDER_WAY]
    accepted = (name for name, call in memory.deletes.items() if call.state is CallState.ACCEPTED)
    known_to_run = busy | (memory.creates.keys() - creates) | {*accepted}
    running, coming = len(known_to_run), len({*creates, *deletes} - known_to_run)
    known = _learnt(memory.operations, running, now)
    steps = 0 if known.rejected_at is None else max(0, (now - known.rejected_at) // _STEP)
    free = None if known.limit is None else known.limit - running - coming
    # What has ended is shared by turn before more is tried: a try that GKE rejects must not cost a kind its turn.
    ended = free is not None and free > 0
    calls = _CALLS_PER_THREAD * round_.settings.concurrency
    slots = Slots(
        operations=free if free is None or ended else max(0, free + 2**steps - 1),
        calls=max(0, calls - len(creates)),
        delete_calls=max(0, calls - len(deletes)),
        deletes_last=known.delete_accepted_last if ended else known.deletes_tried_last,
        more_at=None if known.rejected_at is None else known.rejected_at + (steps + 1) * _STEP,
    )
    return replace(memory, operations=known), slots


def _learnt(operations: OperationLimit, running: int, now: datetime) -> OperationLimit:
    at = operations.rejected_at
    if operations.rejected:
        # One of ours may have ended since.
        most = max(running, operations.running)
        operations = replace(operations, limit=most, rejected_at=now, rejected=False)
    elif operations.limit is not None and at is not None and now - at >= _STEPS * _STEP:
        operations = replace(operations, limit=None, rejected_at=None)
    elif operations.limit is not None:
        # What GKE has taken since.
        operations = replace(operations, limit=max(operations.limit, running))
    return replace(operations, running=running)
