"""Updates the memory with the supplier's responses, and with the list of pools. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from provisioner.model.capacity import Failure, FailureKind, NodePool, Operation, OperationName, PoolName, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.model.writes import LOST_SECONDS
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import CallState, CreateCall, DeleteCall, LookUp, Memory, PoolMemory

#: Maximum wait in seconds before the next attempt to delete a pool after the result NEEDED.
_NEEDED_SECONDS = 60.0
#: Kinds of failures that last until the cause is corrected, such as a missing permission.
_LASTING = frozenset({FailureKind.PERMISSION, FailureKind.NOT_FOUND})
_NOT_MADE = Failure(kind=FailureKind.UNAVAILABLE, message="A create was sent, but the node pool was not created.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAnswer:
    """Outcome of a create call."""

    name: PoolName
    at: datetime
    operation: OperationName = OperationName("")
    #: None if the supplier accepted the create.
    failure: Failure | None = None


class DeleteResult(Enum):
    """Result of an attempt to delete a pool."""

    ACCEPTED = "accepted"
    GONE = "gone"
    #: A live check kept the pool, for example because of a pod on it; no delete was sent.
    KEPT = "kept"
    #: The workload that the pool was created for still needs pools; no delete was sent.
    NEEDED = "needed"
    #: The nodes are cordoned, and pods may still be bound to them; no delete was sent yet.
    SETTLING = "settling"
    #: The attempt failed: for example, a call failed, or this process was about to lose its Lease.
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAnswer:
    """Outcome of an attempt to delete a pool, including the checks before the delete (`slices.gate`)."""

    name: PoolName
    at: datetime
    result: DeleteResult
    operation: OperationName = OperationName("")
    #: Failure that ended the attempt; None for other results than FAILED.
    failure: Failure | None = None
    reason: str = ""
    #: `reason` without the names of other users' objects, for Events. Empty for other results than KEPT.
    public: str = ""
    #: Seconds until the delete may be sent; None unless the result is SETTLING.
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpAnswer:
    """Outcome of a look-up (`LookUp`)."""

    look_up: LookUp
    at: datetime
    #: Whether the pool exists; False if an operation was looked up, or after a failure.
    exists: bool = False
    #: Operation that was looked up; None if it is unknown, if a pool was looked up, or after a failure.
    operation: Operation | None = None
    #: Failure of the look-up itself, other than NOT_FOUND.
    failure: Failure | None = None


Answer = CreateAnswer | DeleteAnswer | LookUpAnswer


def fold(memory: Memory, answer: Answer, pools: Mapping[PoolName, NodePool]) -> Memory:
    """Return the memory updated with one response."""
    match answer:
        case CreateAnswer():
            return _created(memory, answer)
        case DeleteAnswer():
            return _deleted(memory, answer, pools.get(answer.name))
        case LookUpAnswer():
            return _looked_up(memory, answer, pools.get(answer.look_up.name))


def _created(memory: Memory, answer: CreateAnswer) -> Memory:
    name, failure = answer.name, answer.failure
    call, coming_up = memory.pool(name).create, memory.pool(name).coming_up
    taken = call or coming_up
    if failure is None and taken is not None:
        memory = replace(
            memory,
            backoffs=backoff.forget(memory.backoffs, taken.slice_id),
            tallies=backoff.create_taken(memory.tallies, taken.slice_id, taken.namespace),
        )
        if call is None and coming_up is not None:
            # The list showed the pool before the response to its create was processed.
            return memory.with_pool(name, coming_up=replace(coming_up, operation=answer.operation))
    if call is None:
        return memory
    if failure is None:
        call = replace(call, state=CallState.ACCEPTED, since=answer.at, operation=answer.operation, looked_up_at=None)
        return memory.with_pool(name, create=call)
    if failure.kind in (FailureKind.UNKNOWN_OUTCOME, FailureKind.ALREADY_EXISTS):
        # Until a list of pools or a look-up shows the outcome, the pool counts as being created.
        unknown = replace(call, state=CallState.UNKNOWN, since=answer.at, error=failure.message)
        return memory.with_pool(name, create=unknown)
    # A create that was rejected or not sent does not count for MAX_CREATES_PER_HOUR.
    created_at = list(memory.created_at)
    if call.since in created_at:
        created_at.remove(call.since)
    without = replace(memory.with_pool(name, create=None), created_at=tuple(created_at))
    return _failed_create(without, call, failure, answer.at)


def _failed_create(memory: Memory, call: CreateCall, failure: Failure, at: datetime) -> Memory:
    if failure.kind is FailureKind.TOO_MANY_OPERATIONS:
        # The bound on concurrent operations delays the next creates, so the slice gets no back-off.
        return replace(memory, operations=replace(memory.operations, rejected=True))
    if failure.kind is FailureKind.INVALID:
        return _operation_failed(memory, call, failure, at)
    memory, capacity = _counted(memory, call, failure, at), capacity_key(call.request)
    if failure.kind in backoff.OF_CAPACITY:
        return replace(memory, backoffs=backoff.create_failed(memory.backoffs, failure, capacity, at))
    reserved = capacity if call.request.reservation else None
    backoffs = backoff.slice_failed(memory.backoffs, failure, call.slice_id, at, reserved=reserved)
    if failure.kind in _LASTING and not backoffs[call.slice_id].capacities:
        memory = _failed_for_good(memory, call, at)
    return replace(memory, backoffs=backoffs)


def _failed_for_good(memory: Memory, call: CreateCall, at: datetime) -> Memory:
    return replace(memory, lasting_failures={**memory.lasting_failures, call.namespace: at})


def _counted(memory: Memory, call: CreateCall, failure: Failure, at: datetime) -> Memory:
    return replace(memory, tallies=backoff.create_counted(memory.tallies, call.slice_id, call.namespace, at, failure))


def _deleted(memory: Memory, answer: DeleteAnswer, pool: NodePool | None) -> Memory:
    call = memory.pool(answer.name).delete
    if call is None:
        return memory
    if answer.result in (DeleteResult.ACCEPTED, DeleteResult.GONE):
        call = DeleteCall(state=CallState.ACCEPTED, since=answer.at, operation=answer.operation, failures=call.failures)
        return memory.with_pool(answer.name, delete=call)
    if answer.failure is not None and answer.failure.kind is FailureKind.TOO_MANY_OPERATIONS:
        memory = replace(memory, operations=replace(memory.operations, rejected=True))
    if answer.result is DeleteResult.NEEDED:
        # Deletes of needed pools are retried at full minutes, so that one list of workloads serves all of them.
        wait: float | None = _NEEDED_SECONDS - answer.at.timestamp() % _NEEDED_SECONDS
    else:
        wait = answer.wait_seconds
    settling = answer.result is DeleteResult.SETTLING
    call = postpone(answer.name, call, pool, answer.at, answer.reason, wait_seconds=wait, settling=settling)
    return memory.with_pool(answer.name, delete=call)


def _looked_up(memory: Memory, answer: LookUpAnswer, pool: NodePool | None) -> Memory:
    look_up, name = answer.look_up, answer.look_up.name
    if answer.failure is not None:
        return memory
    entry = memory.pool(name)
    create, coming_up, delete = entry.create, entry.coming_up, entry.delete
    if create is not None and create.state is CallState.UNDER_WAY:
        # The create was sent again after the look-up had begun, so only the response to the new create counts.
        return memory
    if not look_up.operation:
        if answer.exists or create is None:
            return memory
        # The pool does not exist. After the slice's back-off, a create can be sent again.
        not_made = replace(_NOT_MADE, message=create.error or _NOT_MADE.message)
        backoffs = backoff.slice_failed(memory.backoffs, not_made, create.slice_id, answer.at)
        without = replace(memory.with_pool(name, create=None), backoffs=backoffs)
        return _counted(without, create, not_made, answer.at)
    operation = answer.operation
    if create is not None and create.operation == look_up.operation:
        if operation is None:
            # The supplier no longer knows the operation, so the pool itself is looked up next.
            return memory.with_pool(name, create=replace(create, operation=OperationName(""), looked_up_at=None))
        if not operation.done:
            return memory
        return _operation_failed(memory.with_pool(name, create=None), create, operation.failure, answer.at)
    if coming_up is not None and coming_up.operation == look_up.operation:
        return _operation_failed(memory, coming_up, operation.failure if operation is not None else None, answer.at)
    if delete is not None and delete.operation == look_up.operation and (operation is None or operation.done):
        failure = operation.failure if operation is not None else None
        reason = failure.message if failure is not None else "the pool is still there"
        return memory.with_pool(name, delete=postpone(name, delete, pool, answer.at, reason))
    return memory


def _operation_failed(memory: Memory, call: CreateCall, failure: Failure | None, at: datetime) -> Memory:
    if failure is None:
        return memory
    memory = _counted(memory, call, failure, at)
    memory = _failed_for_good(memory, call, at) if failure.kind is FailureKind.INVALID else memory
    capacity, digest = capacity_key(call.request), call.request.digest
    backoffs = backoff.pool_failed(memory.backoffs, failure, capacity, digest, at, call.slice_id)
    return replace(memory, backoffs=backoffs)


#: Seconds after which an accepted call is looked up if the list of pools does not show its effect.
_LATE_SECONDS = 20.0
#: Minimum seconds before a look-up is repeated.
_LOOK_UP_SECONDS = 10.0


def operations_under_way(pools: Iterable[NodePool], memory: Memory) -> set[PoolName]:
    """Return the names of `pools` in creation or deletion, and of pools with an open create or an accepted delete."""
    busy = (PoolStatus.PROVISIONING, PoolStatus.STOPPING)
    accepted = (name for name, call in memory.deletes.items() if call.state is CallState.ACCEPTED)
    return {*(pool.name for pool in pools if pool.status in busy), *memory.creates, *accepted}


def give_up_lost_calls(
    memory: Memory, live_calls: Collection[PoolName], pools: Mapping[PoolName, NodePool], now: datetime
) -> Memory:
    """Return the memory with the state UNKNOWN for lost creates, and POSTPONED for lost deletes.

    A call without a response is lost if it began at least LOST_SECONDS ago and its pool is not in `live_calls`.
    """
    limit = now - timedelta(seconds=LOST_SECONDS)

    def lost(name: PoolName, call: CreateCall | DeleteCall) -> bool:
        return call.state is CallState.UNDER_WAY and call.since <= limit and name not in live_calls

    changes: dict[PoolName, PoolMemory] = {}
    for name, entry in memory.pools.items():
        create, delete = entry.create, entry.delete
        if create is not None and lost(name, create):
            create = replace(create, state=CallState.UNKNOWN, since=now, looked_up_at=None)
        if delete is not None and lost(name, delete):
            delete = postpone(name, delete, pools.get(name), now, "the outcome of the last attempt is unknown")
        if create is not entry.create or delete is not entry.delete:
            changes[name] = entry._replace(create=create, delete=delete)
    return memory.with_pools(changes)


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
    """Return the delete after an attempt without success. The next attempt follows after a wait.

    Without `wait_seconds`, the wait grows with the number of failures. An attempt that waits after the cordon
    (`settling`) is no failure, and sets `postponed_since` only if an earlier attempt was postponed.
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
    """Return the memory updated with the list of pools, and the look-ups that are due."""
    changes: dict[PoolName, PoolMemory] = {}
    look_ups: list[LookUp] = []
    for name, entry in memory.pools.items():
        pool = pools.get(name)
        if entry.create is not None or entry.coming_up is not None:
            changes[name] = _confirm_create(name, entry, pool, listed_at, now, look_ups)
        if entry.delete is not None:
            delete = _confirm_delete(name, entry.delete, pool, listed_at, now, look_ups)
            changes[name] = changes.get(name, entry)._replace(delete=delete)
    return memory.with_pools(changes), tuple(look_ups)


def _confirm_create(
    name: PoolName, entry: PoolMemory, pool: NodePool | None, listed_at: datetime, now: datetime, due: list[LookUp]
) -> PoolMemory:
    create, coming_up = entry.create, entry.coming_up
    if coming_up is not None and pool is None:
        # Without a delete, a pool that vanished before it was up counts as being created until its failure is known.
        vanished = entry.delete is None
        again = replace(coming_up, state=CallState.UNKNOWN, since=now, looked_up_at=None) if vanished else create
        return entry._replace(coming_up=None, create=again)
    failed = pool is not None and unexplained(pool)
    if coming_up is not None and failed and coming_up.operation and coming_up.looked_up_at is None:
        due.append(LookUp(name=name, operation=coming_up.operation))
        entry = entry._replace(coming_up=replace(coming_up, looked_up_at=now))
    if create is None:
        return entry
    if pool is not None:
        return entry._replace(create=None, coming_up=replace(create, looked_up_at=None))
    if create.state is CallState.UNDER_WAY or listed_at <= create.since:
        return entry
    if _look_up_due(create.looked_up_at, create.since, now, late=create.state is CallState.ACCEPTED):
        due.append(LookUp(name=name, operation=create.operation))
        return entry._replace(create=replace(create, looked_up_at=now))
    return entry


def _confirm_delete(
    name: PoolName, delete: DeleteCall, pool: NodePool | None, listed_at: datetime, now: datetime, due: list[LookUp]
) -> DeleteCall | None:
    if delete.state is CallState.UNDER_WAY or listed_at <= delete.since:
        return delete
    if pool is None:
        return None
    stopping = pool.status is PoolStatus.STOPPING or delete.state is not CallState.ACCEPTED
    if stopping or not _look_up_due(delete.looked_up_at, delete.since, now, late=True):
        return delete
    if delete.operation:
        due.append(LookUp(name=name, operation=delete.operation))
        return replace(delete, looked_up_at=now)
    # The supplier returned NOT_FOUND for the delete, but lists the pool, so the delete is retried.
    return postpone(name, delete, pool, now, "the delete was accepted, but the pool is still listed")


def unexplained(pool: NodePool) -> bool:
    """Whether a pool has status ERROR and no failure more exact than UNAVAILABLE; its create may have one."""
    return pool.status is PoolStatus.ERROR and (pool.failure is None or pool.failure.kind is FailureKind.UNAVAILABLE)


def _look_up_due(last: datetime | None, sent_at: datetime, now: datetime, *, late: bool) -> bool:
    if last is not None:
        return (now - last).total_seconds() >= _LOOK_UP_SECONDS
    return not late or (now - sent_at).total_seconds() >= _LATE_SECONDS
