"""What GKE's answers teach: folding them into the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from provisioner.model.capacity import Failure, FailureKind, NodePool, Operation, OperationName, PoolName, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.model.writes import LOST_SECONDS
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import CallState, CreateCall, DeleteCall, Memory
from provisioner.slices.planning.plan import LookUp

#: Whether a workload still lives that the caches do not show is asked this often.
_NEEDED_SECONDS = 60.0
_NOT_MADE = Failure(kind=FailureKind.UNAVAILABLE, message="A create was sent, but the node pool was not created.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAnswer:
    """How a create call ended."""

    name: PoolName
    at: datetime
    operation: OperationName = OperationName("")
    #: None: GKE took it.
    failure: Failure | None = None


class DeleteResult(Enum):
    """How far a delete got."""

    #: GKE took it.
    ACCEPTED = "accepted"
    #: The pool is not there (any more).
    GONE = "gone"
    #: The live proof failed, or a pod is on the pool: nothing was sent.
    KEPT = "kept"
    #: The workload that the pool was made for lives, although the caches do not show it so.
    NEEDED = "needed"
    #: It is cordoned, and pods may still be on their way to it: nothing was sent yet.
    SETTLING = "settling"
    #: GKE or Kubernetes failed.
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAnswer:
    """How a delete, its proof and gate included, ended."""

    name: PoolName
    at: datetime
    result: DeleteResult
    operation: OperationName = OperationName("")
    failure: Failure | None = None
    #: Why it was kept or failed, in words.
    reason: str = ""
    #: The same for Events on the workload, where that must not name others; empty where they may have the reason.
    told: str = ""
    #: For SETTLING: how long it is cordoned before it goes.
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpAnswer:
    """What GKE says of a call whose effect the list did not show."""

    look_up: LookUp
    at: datetime
    #: For a pool: whether it exists.
    exists: bool = False
    #: For an operation; None where GKE does not know it.
    operation: Operation | None = None
    #: The look-up itself failed.
    failure: Failure | None = None


Answer = CreateAnswer | DeleteAnswer | LookUpAnswer


def fold(memory: Memory, answer: Answer, pools: Mapping[PoolName, NodePool]) -> Memory:
    """Fold one answer into the memory."""
    match answer:
        case CreateAnswer():
            return _created(memory, answer)
        case DeleteAnswer():
            return _deleted(memory, answer, pools.get(answer.name))
        case LookUpAnswer():
            return _looked_up(memory, answer, pools.get(answer.look_up.name))


def _created(memory: Memory, answer: CreateAnswer) -> Memory:
    call, making = memory.creates.get(answer.name), memory.in_making.get(answer.name)
    failure = answer.failure
    taken_call = call or making
    if failure is None and taken_call is not None:
        memory = replace(
            memory,
            slice_backoffs=backoff.forget(memory.slice_backoffs, taken_call.slice_id),
            tallies=backoff.create_taken(memory.tallies, taken_call.slice_id, taken_call.namespace),
            operations=replace(memory.operations, delete_accepted_last=False),
        )
        if call is None and making is not None:
            # The list was faster than the answer.
            told = replace(making, operation=answer.operation)
            return replace(memory, in_making={**memory.in_making, answer.name: told})
    if call is None:
        return memory
    if failure is None:
        taken = replace(call, state=CallState.ACCEPTED, since=answer.at, operation=answer.operation, looked_up_at=None)
        return replace(memory, creates={**memory.creates, answer.name: taken})
    if failure.kind in (FailureKind.UNKNOWN_OUTCOME, FailureKind.ALREADY_EXISTS):
        # Either way the next list tells; until then nothing but this name is sent.
        unknown = replace(call, state=CallState.UNKNOWN, since=answer.at)
        return replace(memory, creates={**memory.creates, answer.name: unknown})
    # Only a create that GKE refused did not count: one with an unknown outcome may have made a pool that is gone again.
    created_at = list(memory.created_at)
    if call.since in created_at:
        created_at.remove(call.since)
    without = replace(_without_create(memory, answer.name), created_at=tuple(created_at))
    return _failed_create(without, memory, answer.name, failure, answer.at)


def _failed_create(without: Memory, memory: Memory, name: PoolName, failure: Failure, at: datetime) -> Memory:
    call = memory.creates[name]
    if failure.kind is FailureKind.TOO_MANY_OPERATIONS:
        # It says nothing of the slice: it tries again when there is room.
        return replace(without, operations=replace(without.operations, rejected=True))
    if failure.kind is FailureKind.INVALID:
        return _operation_failed(without, call, failure, at)
    without = _counted(without, call, at)
    capacity = capacity_key(call.request)
    if backoff.concerns_capacity(failure):
        return replace(without, backoffs=backoff.create_failed(without.backoffs, failure, capacity, at))
    own = backoff.slice_failed(
        without.slice_backoffs, failure, call.slice_id, at, reserved=capacity if call.request.reservation else ""
    )
    return replace(without, slice_backoffs=own)


def _counted(memory: Memory, call: CreateCall, at: datetime) -> Memory:
    return replace(memory, tallies=backoff.create_counted(memory.tallies, call.slice_id, call.namespace, at))


def _without_create(memory: Memory, name: PoolName) -> Memory:
    return replace(memory, creates={other: call for other, call in memory.creates.items() if other != name})


def _deleted(memory: Memory, answer: DeleteAnswer, pool: NodePool | None) -> Memory:
    call = memory.deletes.get(answer.name)
    if call is None:
        return memory
    if answer.result in (DeleteResult.ACCEPTED, DeleteResult.GONE):
        accepted = DeleteCall(
            state=CallState.ACCEPTED, since=answer.at, operation=answer.operation, failures=call.failures
        )
        operations = replace(memory.operations, delete_accepted_last=True)
        return replace(memory, operations=operations, deletes={**memory.deletes, answer.name: accepted})
    operations = memory.operations
    if answer.failure is not None and answer.failure.kind is FailureKind.TOO_MANY_OPERATIONS:
        operations = replace(operations, rejected=True)
    if answer.result is DeleteResult.NEEDED:
        # All such pools are looked at together, with one list: there may be as many as workloads that nobody watches.
        wait: float | None = _NEEDED_SECONDS - answer.at.timestamp() % _NEEDED_SECONDS
    else:
        wait = answer.wait_seconds
    settling = answer.result is DeleteResult.SETTLING
    postponed = postpone(answer.name, call, pool, answer.at, answer.reason, wait_seconds=wait, settling=settling)
    return replace(memory, deletes={**memory.deletes, answer.name: postponed}, operations=operations)


def _looked_up(memory: Memory, answer: LookUpAnswer, pool: NodePool | None) -> Memory:
    look_up, name = answer.look_up, answer.look_up.name
    if answer.failure is not None:
        return memory
    create, making, delete = memory.creates.get(name), memory.in_making.get(name), memory.deletes.get(name)
    if create is not None and create.state is CallState.UNDER_WAY:
        # Sent again since: its own answer counts.
        return memory
    if not look_up.operation:
        if answer.exists or create is None:
            return memory
        # It had no effect after all: its name is sent again, after those that wait for longer.
        own = backoff.slice_failed(memory.slice_backoffs, _NOT_MADE, create.slice_id, answer.at)
        return replace(_counted(_without_create(memory, name), create, answer.at), slice_backoffs=own)
    operation = answer.operation
    if create is not None and create.operation == look_up.operation:
        if operation is None:
            # GKE has forgotten the operation: the pool itself is asked for next.
            forgotten = replace(create, operation=OperationName(""), looked_up_at=None)
            return replace(memory, creates={**memory.creates, name: forgotten})
        if not operation.done:
            return memory
        return _operation_failed(_without_create(memory, name), create, operation.failure, answer.at)
    if making is not None and making.operation == look_up.operation:
        return _operation_failed(memory, making, operation.failure if operation is not None else None, answer.at)
    if delete is not None and delete.operation == look_up.operation and (operation is None or operation.done):
        failure = operation.failure if operation is not None else None
        reason = failure.message if failure is not None else "the pool is still there"
        return replace(memory, deletes={**memory.deletes, name: postpone(name, delete, pool, answer.at, reason)})
    return memory


def _operation_failed(memory: Memory, call: CreateCall, failure: Failure | None, at: datetime) -> Memory:
    """Learn from how the operation of a create that GKE took has ended."""
    if failure is None:
        return memory
    memory = _counted(memory, call, at)
    capacity, digest = capacity_key(call.request), call.request.digest
    backoffs = backoff.pool_failed(memory.backoffs, failure, capacity, digest, at, call.slice_id)
    return replace(memory, backoffs=backoffs)


#: A create that GKE took should be listed at once; a delete that it took should show as STOPPING.
_LATE_SECONDS = 20.0
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
    """Take calls that should be under way, and that nobody makes, for calls whose outcome nobody knows."""
    limit = now - timedelta(seconds=LOST_SECONDS)

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
    settling: bool = False,
) -> DeleteCall:
    """Put a delete off; with `wait_seconds` for a workload that lives, else as long as its failures say.

    While its pool is `settling`, that is no failure, and holds nothing up unless it begins anew.
    """
    failures = call.failures + (not settling)
    wait = backoff.wait_seconds(backoff.DELETE_DELAY, failures, name) if wait_seconds is None else wait_seconds
    held_up_now = at if not settling or call.retry_at is not None else None
    return DeleteCall(
        state=CallState.POSTPONED,
        since=at,
        retry_at=at + timedelta(seconds=wait),
        status=pool.status if pool is not None else None,
        failures=failures,
        postponed_since=call.postponed_since or held_up_now,
        reason=reason,
        needed=wait_seconds is not None and not settling,
    )


def confirm(
    memory: Memory, pools: Mapping[PoolName, NodePool], listed_at: datetime, now: datetime
) -> tuple[Memory, tuple[LookUp, ...]]:
    """Close the calls that the list of pools confirms; return look-ups for what it should show by now and does not."""
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
            look_ups.append(LookUp(name=name, operation=create.operation))
            in_making[name] = replace(create, looked_up_at=now)
    for name, create in memory.creates.items():
        if name in pools:
            del creates[name]
            in_making[name] = replace(create, looked_up_at=None)
        elif create.state is CallState.UNDER_WAY or listed_at <= create.since:
            continue
        elif _look_up_due(create.looked_up_at, create.since, now, late=create.state is CallState.ACCEPTED):
            look_ups.append(LookUp(name=name, operation=create.operation))
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
                look_ups.append(LookUp(name=name, operation=delete.operation))
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
