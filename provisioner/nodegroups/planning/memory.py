"""What is remembered between rounds, and what answers change in it. Pure.

The truth is in Compute Engine and in the status of objects, so losing all of it is safe: requests keep their ids. A
failure delays this call for this object only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import LOST, OpenCall, OpenWrite, lost_calls, with_answer
from provisioner.nodegroups.api.statuses import OperationRef, OperationType
from provisioner.nodegroups.compute.records import Instance, ManagedInstance, Manager, Operation, Resource
from provisioner.nodegroups.planning import actions

#: Before everything, and still a moment that can be moved when the clock is set.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The same is not tried again before `until`."""

    failure: Failure
    failures: int
    #: When it failed last.
    at: datetime
    until: datetime
    #: Of a change: the request was accepted, and its operation failed.
    accepted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was last read of a resource."""

    #: When the request was sent.
    asked_at: datetime
    #: None if it does not exist.
    resource: Resource | None
    #: Of a project.
    managers: tuple[Manager, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What was last read of the machines of a managed instance group; none where it is not there."""

    asked_at: datetime
    machines: tuple[ManagedInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMemory:
    """One resource. Operation and attempts begin as the object's status has them, and go there when they change."""

    operation: OperationRef | None = None
    #: When the operation was last asked for.
    polled_at: datetime | None = None
    polls: int = 0
    attempts: int = 0
    reading: Reading | None = None
    listing: Listing | None = None
    #: What was asked for before this is out of date: something has changed since.
    changed_at: datetime = LONG_AGO
    #: When an insert may last have been sent of which nobody knows whether it arrives.
    unsure_at: datetime | None = None
    #: By what was tried in vain (`READ` and those below it).
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)
    #: The last delete was not sent: its proof failed.
    kept: Backoff | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """The metadata of one machine, by its provider id."""

    #: Number of the machine: another one under the same name starts anew.
    id: str
    #: When it was last read or set; None: it has to be read.
    read_at: datetime | None = None
    #: All items since then; None: there was no such machine.
    items: Mapping[str, str] | None = field(default=None, repr=False)
    #: What a change has to carry; None where it was set and not read since.
    fingerprint: str | None = None
    backoff: Backoff | None = None
    #: The back-off began with a change, so that only a change that succeeds ends it: the machine is read before each.
    change_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A machine that is lost."""

    since: datetime
    #: Since when nothing can run on it; None: only chips of it are gone.
    stopped_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many calls of one sort to Compute Engine may be made at once, and since when."""

    spare: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of it. Replaced as a whole by each decision and each answer."""

    #: When the first decision was made, LONG_AGO before it; what was sent before, nobody knows.
    began_at: datetime = LONG_AGO
    #: By the UID of the object (`Target.uid`).
    resources: Mapping[str, ResourceMemory] = field(default_factory=dict)
    machines: Mapping[str, MachineMemory] = field(default_factory=dict)
    calls: Mapping[str, OpenCall[actions.Call]] = field(default_factory=dict)
    writes: Mapping[str, OpenWrite[actions.Write]] = field(default_factory=dict)
    #: By what Compute Engine counts together (`decide.bucket_of`); as much as there can be where there is none.
    pace: Mapping[str, Pace] = field(default_factory=dict)
    #: Machines that are lost, by the UID of the group and their names; "" stands for those that have none.
    lost: Mapping[str, Mapping[str, Lost]] = field(default_factory=dict)
    #: By project: Compute Engine asked for a pause of all calls until then.
    paused: Mapping[str, datetime] = field(default_factory=dict)


#: What is tried, as `ResourceMemory.backoffs` calls it.
READ = "read"
LIST = "list"
POLL = "poll"
INSERT = OperationType.CREATE.value
DELETE = OperationType.DELETE.value


Answer = actions.CallAnswer | actions.WriteAnswer


#: The first wait after a failure of Compute Engine, and the longest.
DELAYS: Mapping[FailureKind, tuple[float, float]] = {
    FailureKind.STOCKOUT: (30, 600),
    FailureKind.QUOTA: (60, 900),
    FailureKind.OPERATION_IN_THE_WAY: (2, 30),
    FailureKind.TOO_MANY_OPERATIONS: (1, 30),
    FailureKind.UNKNOWN_OUTCOME: (1, 60),
    # Read at once, to see whose it is; this is for one that no reading shows.
    FailureKind.ALREADY_EXISTS: (2, 60),
    FailureKind.UNAVAILABLE: (1, 60),
    # Somebody may change what is in the way of these at any time, and nothing tells us.
    FailureKind.INVALID: (60, 600),
    FailureKind.PERMISSION: (30, 600),
    FailureKind.NOT_FOUND: (10, 600),
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
    if isinstance(answer, actions.WriteAnswer):
        return replace(memory, writes=with_answer(memory.writes, answer))
    call = answer.call
    if answer.asked_at > answer.at:
        # The clock was set back meanwhile, and what is remembered has moved along.
        under_way = memory.calls.get(call.key)
        answer = replace(answer, asked_at=under_way.since if under_way is not None else LONG_AGO)
    known = {key: each for key, each in memory.calls.items() if key != call.key}
    memory = _paused(replace(memory, calls=known), answer)
    if isinstance(call, actions.ReadMachines | actions.SetMetadata):
        return replace(memory, machines={**memory.machines, **_of_machines(memory, call, answer)})
    resource = memory.resources.get(call.target.uid)
    if resource is None:
        # The object is gone, and with it all that could be done.
        return memory
    return replace(memory, resources={**memory.resources, call.target.uid: _of_resource(resource, call, answer)})


def give_up_lost_calls(memory: Memory, live: frozenset[str], now: datetime) -> Memory:
    """Take calls that should be under way, and that nobody makes, for calls whose outcome nobody knows."""
    for key, each in lost_calls(memory.calls, live, now).items():
        try:
            memory = fold(memory, actions.CallAnswer(call=each.call, asked_at=each.since, at=now, failure=LOST))
        except Exception:  # noqa: BLE001 - one call must not cost the others their turn
            memory = replace(memory, calls={other: call for other, call in memory.calls.items() if other != key})
    return memory


def _paused(memory: Memory, answer: actions.CallAnswer) -> Memory:
    """Pause all calls of a project where Compute Engine wants a pause: it counts those of the whole project."""
    if answer.failure is None or not answer.retry_after_seconds:
        return memory
    until = answer.at + timedelta(seconds=min(answer.retry_after_seconds, LONGEST_WISH_SECONDS))
    project = answer.call.target.scope.project
    going_on = {each: end for each, end in memory.paused.items() if end > answer.at}
    return replace(memory, paused={**going_on, project: max(until, going_on.get(project, until))})


def _of_resource(known: ResourceMemory, call: actions.Call, answer: actions.CallAnswer) -> ResourceMemory:
    match call:
        case actions.Read() | actions.ListManagers():
            return _read(known, answer)
        case actions.ListMachines():
            return _listed(known, answer)
        case actions.Insert():
            return _inserted(known, call, answer)
        case actions.Delete():
            return _deleted(known, call, answer)
        case actions.Poll():
            return _polled(known, call, answer)
    return known


def _failing(known: ResourceMemory, what: str, failure: Failure, answer: actions.CallAnswer) -> ResourceMemory:
    wait = failed(known.backoffs.get(what), failure, f"{what} {answer.call.key}", answer.at, answer.retry_after_seconds)
    return replace(known, backoffs={**known.backoffs, what: wait})


def _without(backoffs: Mapping[str, Backoff], what: str) -> Mapping[str, Backoff]:
    return {each: wait for each, wait in backoffs.items() if each != what}


def _read(known: ResourceMemory, answer: actions.CallAnswer) -> ResourceMemory:
    if answer.failure is not None:
        return _failing(known, READ, answer.failure, answer)
    known = replace(known, backoffs=_without(known.backoffs, READ))
    if known.reading is not None and known.reading.asked_at > answer.asked_at:
        return known
    if answer.result is not None and answer.asked_at >= known.changed_at:
        # It is there: why it could not be made is over.
        known = replace(known, backoffs=_without(known.backoffs, INSERT))
    if isinstance(answer.call, actions.ListManagers):
        return replace(known, reading=Reading(asked_at=answer.asked_at, resource=None, managers=answer.result or ()))
    return replace(known, reading=Reading(asked_at=answer.asked_at, resource=answer.result))


def _listed(known: ResourceMemory, answer: actions.CallAnswer) -> ResourceMemory:
    if answer.failure is not None:
        return _failing(known, LIST, answer.failure, answer)
    ordered = tuple(sorted(answer.result or (), key=lambda machine: (machine.name, machine.provider_id)))
    listing = Listing(asked_at=answer.asked_at, machines=ordered)
    return replace(known, backoffs=_without(known.backoffs, LIST), listing=listing)


def _inserted(known: ResourceMemory, call: actions.Insert, answer: actions.CallAnswer) -> ResourceMemory:
    if answer.result is not None:
        return _taken(known, OperationType.CREATE, call.attempt, answer.result, answer)
    failure = answer.failure or Failure(
        kind=FailureKind.INVALID, message="The request refers to something that does not exist."
    )
    known = _failing(known, INSERT, failure, answer)
    if failure.kind is FailureKind.UNKNOWN_OUTCOME:
        return replace(known, unsure_at=answer.at, changed_at=answer.at)
    if failure.kind is FailureKind.ALREADY_EXISTS:
        return replace(known, changed_at=answer.at)
    return known


def _deleted(known: ResourceMemory, call: actions.Delete, answer: actions.CallAnswer) -> ResourceMemory:
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
    known: ResourceMemory, kind: OperationType, attempt: int, operation: Operation, answer: actions.CallAnswer
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


def _polled(known: ResourceMemory, call: actions.Poll, answer: actions.CallAnswer) -> ResourceMemory:
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


def _ended(
    known: ResourceMemory, kind: OperationType, failure: Failure | None, answer: actions.CallAnswer
) -> ResourceMemory:
    """Take note of an operation's end. What there is now, a reading tells."""
    known = replace(known, operation=None, changed_at=answer.at)
    gone = kind is OperationType.DELETE and failure is not None and failure.kind is FailureKind.NOT_FOUND
    if failure is None or gone:
        return replace(known, backoffs=_without(known.backoffs, kind.value))
    known = _failing(known, kind.value, failure, answer)
    wait = replace(known.backoffs[kind.value], accepted=True)
    return replace(known, backoffs={**known.backoffs, kind.value: wait})


def _of_machines(
    memory: Memory, call: actions.ReadMachines | actions.SetMetadata, answer: actions.CallAnswer
) -> dict[str, MachineMemory]:
    """Return what has changed of what is remembered, by provider id."""
    instances = {each.name: each for each in answer.result or ()} if isinstance(call, actions.ReadMachines) else {}
    changed = {}
    for machine in call.machines:
        known = memory.machines.get(machine.provider_id)
        if known is None or known.id != machine.id:
            known = MachineMemory(id=machine.id)
        if isinstance(call, actions.SetMetadata):
            changed[machine.provider_id] = _set(known, call, answer)
        else:
            changed[machine.provider_id] = _read_of(known, instances.get(machine.name), answer)
    return changed


def _set(known: MachineMemory, call: actions.SetMetadata, answer: actions.CallAnswer) -> MachineMemory:
    if answer.failure is not None:
        # Whether it counted or not: it is read before it is set again.
        return MachineMemory(id=known.id, backoff=_wait(known, answer.failure, answer), change_failed=True)
    if answer.result is None:
        return MachineMemory(id=known.id)
    return MachineMemory(id=known.id, read_at=answer.at, items=call.items)


def _read_of(known: MachineMemory, instance: Instance | None, answer: actions.CallAnswer) -> MachineMemory:
    if answer.failure is not None:
        return replace(known, backoff=_wait(known, answer.failure, answer))
    # Not when it was asked for: the machines of a large group take minutes to read.
    known = replace(known, read_at=answer.at, backoff=known.backoff if known.change_failed else None)
    if instance is None or (instance.id and instance.id != known.id):
        return replace(known, items=None, fingerprint=None)
    return replace(known, items=instance.items, fingerprint=instance.fingerprint)


def _wait(known: MachineMemory, failure: Failure, answer: actions.CallAnswer) -> Backoff:
    return failed(known.backoff, failure, answer.call.key, answer.at, answer.retry_after_seconds)
