"""Calls that GKE's list of pools does not confirm yet: closed by what it shows, looked up, or put off."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from provisioner.model.capacity import FailureKind, NodePool, OperationName, PoolName, PoolStatus
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import CallState, CreateCall, DeleteCall, Memory
from provisioner.slices.planning.plan import LookUp, LookUpKind

#: A create that GKE took should be listed at once; a delete that it took should show as STOPPING.
_LATE_SECONDS = 20.0
#: A call that nobody makes is given up so long after it was decided: then it is surely not about to be submitted.
_LOST_SECONDS = 60.0
#: Look-ups of one call are this far apart.
_LOOK_UP_SECONDS = 10.0


def operations_under_way(pools: Iterable[NodePool], memory: Memory) -> set[PoolName]:
    """List the pools that have an operation: everybody's, as GKE's quota counts them, as far as pools show them."""
    busy = (PoolStatus.PROVISIONING, PoolStatus.STOPPING)
    accepted = (name for name, call in memory.deletes.items() if call.state is CallState.ACCEPTED)
    return {*(pool.name for pool in pools if pool.status in busy), *memory.creates, *accepted}


def give_up_lost_calls(
    memory: Memory, live_calls: Collection[PoolName], pools: Mapping[PoolName, NodePool], now: datetime
) -> Memory:
    """Take calls that should be under way, and that nobody makes, for calls whose outcome nobody knows.

    Something went wrong between the decision and the call, or the answer was lost on its way to the memory.
    """
    limit = now - timedelta(seconds=_LOST_SECONDS)

    def lost(name: PoolName, call: CreateCall | DeleteCall) -> bool:
        return call.state is CallState.UNDER_WAY and call.since <= limit and name not in live_calls

    creates = {
        name: replace(call, state=CallState.UNKNOWN, since=now, looked_up_at=None)
        for name, call in memory.creates.items()
        if lost(name, call)
    }
    deletes = {
        name: postpone(name, call, pools.get(name), now, "the outcome of the last attempt is unknown")
        for name, call in memory.deletes.items()
        if lost(name, call)
    }
    if not creates and not deletes:
        return memory
    return replace(memory, creates={**memory.creates, **creates}, deletes={**memory.deletes, **deletes})


def postpone(
    name: PoolName,
    call: DeleteCall,
    pool: NodePool | None,
    at: datetime,
    reason: str,
    *,
    wait_seconds: float | None = None,
) -> DeleteCall:
    """Put a delete off; with `wait_seconds` for a workload that lives, else as long as its failures say."""
    failures = call.failures + 1
    wait = backoff.wait_seconds(backoff.DELETE_DELAY, failures, name) if wait_seconds is None else wait_seconds
    return DeleteCall(
        state=CallState.POSTPONED,
        since=at,
        retry_at=at + timedelta(seconds=wait),
        status=pool.status if pool is not None else None,
        failures=failures,
        postponed_since=call.postponed_since or at,
        reason=reason,
        needed=wait_seconds is not None,
    )


def let_settle(call: DeleteCall, pool: NodePool | None, at: datetime, reason: str, wait_seconds: float) -> DeleteCall:
    """Put a delete off while its pool settles: that is no failure, and holds nothing up unless it begins anew."""
    return DeleteCall(
        state=CallState.POSTPONED,
        since=at,
        retry_at=at + timedelta(seconds=wait_seconds),
        status=pool.status if pool is not None else None,
        failures=call.failures,
        postponed_since=call.postponed_since or (at if call.retry_at is not None else None),
        reason=reason,
    )


def confirm(
    memory: Memory, pools: Mapping[PoolName, NodePool], listed_at: datetime, now: datetime
) -> tuple[Memory, tuple[LookUp, ...]]:
    """Compare open calls with the list of pools.

    What the list confirms is closed; what it should show by now and does not is looked up.
    """
    creates, deletes, in_making = dict(memory.creates), dict(memory.deletes), dict(memory.in_making)
    look_ups: list[LookUp] = []
    for name, create in memory.in_making.items():
        pool = pools.get(name)
        if pool is None:
            del in_making[name]
            if name not in memory.deletes:
                # GKE took it back: not tried again before it is known why.
                creates[name] = replace(create, state=CallState.UNKNOWN, since=now, looked_up_at=None)
        elif unexplained(pool) and create.operation and create.looked_up_at is None:
            look_ups.append(_look_up(name, create.operation))
            in_making[name] = replace(create, looked_up_at=now)
    for name, create in memory.creates.items():
        if name in pools:
            del creates[name]
            in_making[name] = replace(create, looked_up_at=None)
        elif create.state is CallState.UNDER_WAY or listed_at <= create.since:
            continue
        elif _look_up_due(create.looked_up_at, create.since, now, late=create.state is CallState.ACCEPTED):
            look_ups.append(_look_up(name, create.operation))
            creates[name] = replace(create, looked_up_at=now)
    for name, delete in memory.deletes.items():
        if delete.state is CallState.UNDER_WAY or listed_at <= delete.since:
            continue
        if name not in pools:
            del deletes[name]
        elif (
            delete.state is CallState.ACCEPTED
            and pools[name].status is not PoolStatus.STOPPING
            and _look_up_due(delete.looked_up_at, delete.since, now, late=True)
        ):
            if delete.operation:
                look_ups.append(_look_up(name, delete.operation))
                deletes[name] = replace(delete, looked_up_at=now)
            else:
                # GKE said that the pool is gone, and it is not: try again.
                deletes[name] = postpone(
                    name, delete, pools[name], now, "the delete was accepted, but the pool is still listed"
                )
    return replace(memory, creates=creates, deletes=deletes, in_making=in_making), tuple(look_ups)


def unexplained(pool: NodePool) -> bool:
    """Whether a pool has failed and does not say of what: its operation may."""
    return pool.status is PoolStatus.ERROR and (pool.failure is None or pool.failure.kind is FailureKind.UNAVAILABLE)


def _look_up_due(last: datetime | None, since: datetime, now: datetime, *, late: bool) -> bool:
    if last is not None:
        return (now - last).total_seconds() >= _LOOK_UP_SECONDS
    return not late or (now - since).total_seconds() >= _LATE_SECONDS


def _look_up(name: PoolName, operation: OperationName) -> LookUp:
    kind = LookUpKind.OPERATION if operation else LookUpKind.POOL
    return LookUp(name=name, kind=kind, operation=operation)
