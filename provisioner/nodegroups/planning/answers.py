"""What answers teach: folding them into the memory, and how long to wait after which failure of Compute Engine.

A failure delays the one thing that failed: this call for this object. Nothing is given up: whatever the cause was, it
may be gone by the next try, which comes after a wait that has a cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import LOST_SECONDS, with_answer
from provisioner.nodegroups.api.statuses import OperationRef, OperationType
from provisioner.nodegroups.compute.records import Instance, Operation
from provisioner.nodegroups.planning.actions import (
    Call,
    CallAnswer,
    Delete,
    Insert,
    ListMachines,
    Poll,
    Read,
    ReadMachines,
    SetMetadata,
    WriteAnswer,
)
from provisioner.nodegroups.planning.memory import (
    Backoff,
    Listing,
    MachineMemory,
    Memory,
    Reading,
    ResourceMemory,
)

#: What is tried, as `ResourceMemory.backoffs` calls it.
READ = "read"
LIST = "list"
POLL = "poll"
INSERT = OperationType.CREATE.value
DELETE = OperationType.DELETE.value
_LOST = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="The call was lost inside the provisioner.")


Answer = CallAnswer | WriteAnswer


class Delay(NamedTuple):
    """First and longest wait."""

    first_seconds: float
    cap_seconds: float


DELAYS: Mapping[FailureKind, Delay] = {
    FailureKind.STOCKOUT: Delay(30, 600),
    FailureKind.QUOTA: Delay(60, 900),
    FailureKind.OPERATION_IN_THE_WAY: Delay(2, 30),
    FailureKind.TOO_MANY_OPERATIONS: Delay(1, 30),
    FailureKind.UNKNOWN_OUTCOME: Delay(1, 60),
    # Read at once, to see whose it is; this is for one that no reading shows.
    FailureKind.ALREADY_EXISTS: Delay(2, 60),
    FailureKind.UNAVAILABLE: Delay(1, 60),
    # Somebody may change what is in the way of these at any time, and nothing tells us.
    FailureKind.INVALID: Delay(60, 600),
    FailureKind.PERMISSION: Delay(30, 600),
    FailureKind.NOT_FOUND: Delay(10, 600),
}
#: Longest that Google's own wish is followed.
LONGEST_WISH_SECONDS = 600.0


def failed(
    before: Backoff | None, failure: Failure, key: str, now: datetime, wish_seconds: float | None = None
) -> Backoff:
    """Return the back-off after one more failure; `wish_seconds` is the pause that Google asked for."""
    failures = before.failures + 1 if before is not None else 1
    wait = waits.doubled_seconds(*DELAYS[failure.kind], failures, key)
    if wish_seconds is not None:
        wait = max(wait, min(wish_seconds, LONGEST_WISH_SECONDS))
    return Backoff(failure=failure, failures=failures, at=now, until=now + timedelta(seconds=wait))


def fold(memory: Memory, answer: Answer) -> Memory:
    """Fold one answer into the memory."""
    if isinstance(answer, WriteAnswer):
        return replace(memory, writes=with_answer(memory.writes, answer))
    call = answer.call
    known = {key: each for key, each in memory.calls.items() if key != call.key}
    memory = _paused(replace(memory, calls=known), answer)
    if isinstance(call, ReadMachines | SetMetadata):
        return replace(memory, machines={**memory.machines, **_of_machines(memory, call, answer)})
    resource = memory.resources.get(call.target.uid)
    if resource is None:
        # The object is gone, and with it all that could be done.
        return memory
    return replace(memory, resources={**memory.resources, call.target.uid: _of_resource(resource, call, answer)})


def give_up_lost_calls(memory: Memory, live: frozenset[str], now: datetime) -> Memory:
    """Take calls that should be under way, and that nobody makes, for calls whose outcome nobody knows."""
    limit = now - timedelta(seconds=LOST_SECONDS)
    for key, each in sorted(memory.calls.items()):
        if each.since <= limit and key not in live:
            try:
                memory = fold(memory, CallAnswer(call=each.call, asked_at=each.since, at=now, failure=_LOST))
            except Exception:  # noqa: BLE001 - one call must not cost the others their turn
                memory = replace(memory, calls={other: call for other, call in memory.calls.items() if other != key})
    return memory


def _paused(memory: Memory, answer: CallAnswer) -> Memory:
    """Pause all calls of a project where Compute Engine wants a pause: it counts those of the whole project."""
    if answer.failure is None or not answer.retry_after_seconds:
        return memory
    seconds = min(max(answer.retry_after_seconds, 0.0), LONGEST_WISH_SECONDS)
    until = answer.at + timedelta(seconds=seconds)
    project = answer.call.target.scope.project
    going_on = {each: end for each, end in memory.paused.items() if end > answer.at}
    return replace(memory, paused={**going_on, project: max(until, going_on.get(project, until))})


def _of_resource(known: ResourceMemory, call: Call, answer: CallAnswer) -> ResourceMemory:
    match call:
        case Read():
            return _read(known, answer)
        case ListMachines():
            return _listed(known, answer)
        case Insert():
            return _inserted(known, call, answer)
        case Delete():
            return _deleted(known, call, answer)
        case Poll():
            return _polled(known, call, answer)
    return known


def _failing(known: ResourceMemory, what: str, failure: Failure, answer: CallAnswer) -> ResourceMemory:
    wait = failed(known.backoffs.get(what), failure, f"{what} {answer.call.key}", answer.at, answer.retry_after_seconds)
    return replace(known, backoffs={**known.backoffs, what: wait})


def _without(backoffs: Mapping[str, Backoff], what: str) -> Mapping[str, Backoff]:
    return {each: wait for each, wait in backoffs.items() if each != what}


def _read(known: ResourceMemory, answer: CallAnswer) -> ResourceMemory:
    if answer.failure is not None:
        return _failing(known, READ, answer.failure, answer)
    known = replace(known, backoffs=_without(known.backoffs, READ))
    if known.reading is not None and known.reading.asked_at > answer.asked_at:
        return known
    if answer.result is not None and answer.asked_at >= known.changed_at:
        # It is there: why it could not be made is over.
        known = replace(known, backoffs=_without(known.backoffs, INSERT))
    return replace(known, reading=Reading(asked_at=answer.asked_at, resource=answer.result))


def _listed(known: ResourceMemory, answer: CallAnswer) -> ResourceMemory:
    if answer.failure is not None:
        return _failing(known, LIST, answer.failure, answer)
    known = replace(known, backoffs=_without(known.backoffs, LIST))
    if known.listing is not None and known.listing.asked_at > answer.asked_at:
        return known
    ordered = tuple(sorted(answer.result or (), key=lambda machine: (machine.name, machine.provider_id)))
    return replace(known, listing=Listing(asked_at=answer.asked_at, machines=ordered))


def _inserted(known: ResourceMemory, call: Insert, answer: CallAnswer) -> ResourceMemory:
    if answer.result is not None:
        return _taken(known, OperationType.CREATE, call.attempt, answer.result, answer)
    failure = answer.failure or Failure(kind=FailureKind.INVALID, message="What the request refers to is not there.")
    known = _failing(known, INSERT, failure, answer)
    if failure.kind is FailureKind.UNKNOWN_OUTCOME:
        return replace(known, unsure_at=answer.at, changed_at=answer.at)
    if failure.kind is FailureKind.ALREADY_EXISTS:
        # Whose it is, a reading tells.
        return replace(known, changed_at=answer.at)
    return known


def _deleted(known: ResourceMemory, call: Delete, answer: CallAnswer) -> ResourceMemory:
    if answer.kept:
        in_use = Failure(kind=FailureKind.OPERATION_IN_THE_WAY, message=answer.kept)
        return replace(known, kept=failed(known.kept, in_use, call.key, answer.at))
    known = replace(known, kept=None)
    if answer.result is not None:
        return _taken(known, OperationType.DELETE, call.attempt, answer.result, answer)
    failure = answer.failure
    if failure is None or failure.kind is FailureKind.NOT_FOUND:
        # It is not there, as a reading would say.
        return replace(known, reading=Reading(asked_at=answer.asked_at, resource=None), changed_at=answer.asked_at)
    known = _failing(known, DELETE, failure, answer)
    return replace(known, changed_at=answer.at) if failure.kind is FailureKind.UNKNOWN_OUTCOME else known


def _taken(
    known: ResourceMemory, kind: OperationType, attempt: int, operation: Operation, answer: CallAnswer
) -> ResourceMemory:
    """Take note of an operation that has begun, or of one that had when the request was first sent."""
    known = replace(
        known,
        operation=OperationRef(name=operation.name, type=kind, attempt=attempt),
        attempts=max(known.attempts, attempt),
        polled_at=answer.at,
        polls=0,
        changed_at=answer.at,
    )
    return _ended(known, kind, operation.failure, answer) if operation.done else known


def _polled(known: ResourceMemory, call: Poll, answer: CallAnswer) -> ResourceMemory:
    if known.operation is None or known.operation.name != call.operation:
        return known
    known = replace(known, polled_at=answer.at, polls=known.polls + 1)
    failure = answer.failure
    if failure is not None and failure.kind is not FailureKind.NOT_FOUND:
        return _failing(known, POLL, failure, answer)
    known = replace(known, backoffs=_without(known.backoffs, POLL))
    operation = answer.result
    if operation is None:
        # Forgotten, which says nothing about how it ended: the resource is read instead.
        return replace(known, operation=None, changed_at=answer.at)
    return _ended(known, call.type, operation.failure, answer) if operation.done else known


def _ended(known: ResourceMemory, kind: OperationType, failure: Failure | None, answer: CallAnswer) -> ResourceMemory:
    """Take note of an operation's end. What there is now, a reading tells."""
    known = replace(known, operation=None, changed_at=answer.at)
    gone = kind is OperationType.DELETE and failure is not None and failure.kind is FailureKind.NOT_FOUND
    if failure is None or gone:
        return replace(known, backoffs=_without(known.backoffs, kind.value))
    known = _failing(known, kind.value, failure, answer)
    wait = replace(known.backoffs[kind.value], accepted=True)
    return replace(known, backoffs={**known.backoffs, kind.value: wait})


def _of_machines(memory: Memory, call: ReadMachines | SetMetadata, answer: CallAnswer) -> dict[str, MachineMemory]:
    """Return what has changed of what is remembered, by provider id."""
    instances = {each.name: each for each in answer.result or ()} if isinstance(call, ReadMachines) else {}
    changed = {}
    for machine in call.machines:
        known = memory.machines.get(machine.provider_id)
        if known is None or known.id != machine.id:
            # The first call for this machine.
            known = MachineMemory(id=machine.id)
        if isinstance(call, SetMetadata):
            changed[machine.provider_id] = _set(known, call, answer)
        else:
            changed[machine.provider_id] = _read_of(known, instances.get(machine.name), answer)
    return changed


def _set(known: MachineMemory, call: SetMetadata, answer: CallAnswer) -> MachineMemory:
    # Whether it counted or not, the metadata is another one now or will be: it is read before it is set again.
    known = replace(known, asked_at=None, instance=None, sent=_sent(call, answer), sent_at=answer.at)
    if answer.failure is None:
        return replace(known, backoff=None, change_failed=False)
    return replace(known, backoff=_wait(known, answer.failure, answer), change_failed=True)


def _read_of(known: MachineMemory, instance: Instance | None, answer: CallAnswer) -> MachineMemory:
    if answer.failure is not None:
        return replace(known, backoff=_wait(known, answer.failure, answer))
    wait_of_change = known.backoff if known.change_failed else None
    return replace(known, asked_at=answer.asked_at, instance=instance, backoff=wait_of_change)


def _wait(known: MachineMemory, failure: Failure, answer: CallAnswer) -> Backoff:
    return failed(known.backoff, failure, answer.call.key, answer.at, answer.retry_after_seconds)


def _sent(call: SetMetadata, answer: CallAnswer) -> Mapping[str, str] | None:
    return dict(call.items) if answer.failure is None and answer.result is not None else None
