"""State that is remembered between rounds, and how the results of calls and writes change it. Pure.

The state may be lost: it is read again from Compute Engine and the status of objects, and repeated requests have the
same ids. A failure delays only calls for the same resource or machines, unless Google requests a pause for the project.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind, Operation
from provisioner.model.waits import Backoff
from provisioner.model.writes import AnsweredWrite, OpenActions, answered
from provisioner.nodegroups.api.statuses import OperationRef, OperationType
from provisioner.nodegroups.compute.records import Instance, ManagedInstance, Manager, Resource
from provisioner.nodegroups.planning import actions

#: Time before all others. Unlike datetime.min, it can be shifted to an earlier time when the clock is set back.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a resource as last seen; for a project, its last list of managed instance groups."""

    asked_at: datetime
    #: None if the resource does not exist, and in the reading of a project.
    resource: Resource | None
    #: Managed instance groups of a project, of any cluster, without an object here. Empty in the reading of a resource.
    managers: tuple[Manager, ...] = ()
    #: Names of the `managers` that the previous reading of the project had as well.
    repeated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Machines in the last list of a managed instance group; empty if the group does not exist."""

    asked_at: datetime
    machines: tuple[ManagedInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMemory:
    """State of a resource and of the calls for it. The status of its object stores `operation` and `attempts`."""

    operation: OperationRef | None = None
    #: Time of the last poll of the operation, or of its start; None if unknown. `polls` is the number of polls.
    polled_at: datetime | None = None
    polls: int = 0
    attempts: int = 0
    reading: Reading | None = None
    listing: Listing | None = None
    #: Time of the last change to the resource. Readings and lists that were requested before this time are ignored.
    changed_at: datetime = LONG_AGO
    #: Time of the last insert with an unknown outcome, which may still take effect. None without such an insert.
    unsure_at: datetime | None = None
    #: Back-offs by kind of attempt: `READ`, `LIST`, `POLL`, `INSERT` or `DELETE`.
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)
    #: Back-off of the last delete if the gate did not permit it, otherwise None.
    kept: Backoff | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """Metadata of a machine that has not joined, and the result of the last call for the metadata."""

    #: Compute Engine's number of the machine. A new machine of the same name has another number and an empty memory.
    id: str
    #: Time of the last read or change of the metadata. None if the metadata must be read.
    read_at: datetime | None = None
    #: All items at `read_at`. None if they were not read, or the machine did not exist.
    items: Mapping[str, str] | None = field(default=None, repr=False)
    #: Fingerprint that a change must contain. None if unknown, as after each change until the next read.
    fingerprint: str | None = None
    backoff: Backoff | None = None
    #: Whether the last change failed. If so, a successful read does not end the back-off.
    change_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Times from which a machine counts as lost."""

    since: datetime
    #: Time from which the machine counts as without a ready node. None if its node is ready.
    stopped_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Number of calls of one bucket (`decide.bucket_of`) that may be sent immediately at the time `at`."""

    spare: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(OpenActions[actions.Call, actions.Write]):
    """State that decisions remember between rounds. Decisions and results replace it as a whole."""

    #: Time of this process's first decision; LONG_AGO before that. Calls of earlier processes are unknown.
    began_at: datetime = LONG_AGO
    #: State of resources by `Target.uid`. The next field is the state of machines by provider id.
    resources: Mapping[str, ResourceMemory] = field(default_factory=dict)
    machines: Mapping[str, MachineMemory] = field(default_factory=dict)
    #: Pace by bucket (`decide.bucket_of`). A bucket that is missing may send the maximum.
    pace: Mapping[str, Pace] = field(default_factory=dict)
    #: Time of the last call of each party (see `decide`), plus a minute if the call was a poll, read or list.
    turns: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    #: Lost machines by UID of the group, then by name: the node's name if unlisted, and "" for all unlisted together.
    lost: Mapping[str, Mapping[str, Lost]] = field(default_factory=dict)
    #: Time until which calls pause because Compute Engine requested it, by project.
    paused: Mapping[str, datetime] = field(default_factory=dict)


READ = "read"
LIST = "list"
POLL = "poll"
INSERT = OperationType.CREATE.value
DELETE = OperationType.DELETE.value

#: Number of consecutive failures that count as lasting. One is not enough: new permissions are effective after a delay.
LASTING_FAILURES = 3


#: First and maximum wait in seconds after a failed call, by kind of failure.
DELAYS: Mapping[FailureKind, tuple[float, float]] = {
    **waits.DELAYS,
    # The resource is read immediately to find its owner. This wait applies if the reading does not show the resource.
    FailureKind.ALREADY_EXISTS: (2, 60),
    FailureKind.INVALID: (60, 600),
}
#: Maximum pause in seconds that Google can request. A longer requested pause is cut to this.
LONGEST_WISH_SECONDS = 600.0


def failed(
    before: Backoff | None, failure: Failure, key: str, now: datetime, wish_seconds: float | None = None
) -> Backoff:
    """Return the back-off after one more failure; `wish_seconds` is the pause that Google requested."""
    least = min(wish_seconds or 0.0, LONGEST_WISH_SECONDS)
    return waits.backed_off(before, failure, key, now, DELAYS[failure.kind], min_seconds=least)


def fold(memory: Memory, answer: actions.Answer) -> Memory:
    """Return the memory after the result of a call or a write."""
    if isinstance(answer, AnsweredWrite):
        return answered(memory, answer)
    call = answer.call
    if answer.asked_at > answer.at:
        # The clock was set back during the call. The start in the memory was shifted with the clock, so it is used.
        under_way = memory.calls.get(call.key)
        answer = replace(answer, asked_at=under_way.since if under_way is not None else LONG_AGO)
    memory = _paused(answered(memory, answer), answer)
    if isinstance(call, actions.ReadMachines | actions.SetMetadata):
        return replace(memory, machines={**memory.machines, **_of_machines(memory, call, answer)})
    resource = memory.resources.get(call.target.uid)
    if resource is None:
        # The object has been deleted, so the result no longer matters.
        return memory
    return replace(memory, resources={**memory.resources, call.target.uid: _of_resource(resource, call, answer)})


def _paused(memory: Memory, answer: actions.CallAnswer) -> Memory:
    if answer.failure is None or not answer.retry_after_seconds:
        return memory
    until = answer.at + timedelta(seconds=min(answer.retry_after_seconds, LONGEST_WISH_SECONDS))
    project = answer.call.target.scope.project
    going_on = {name: end for name, end in memory.paused.items() if end > answer.at}
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


def _failing(known: ResourceMemory, kind: str, failure: Failure, answer: actions.CallAnswer) -> ResourceMemory:
    wait = failed(known.backoffs.get(kind), failure, f"{kind} {answer.call.key}", answer.at, answer.retry_after_seconds)
    return replace(known, backoffs={**known.backoffs, kind: wait})


def _without(backoffs: Mapping[str, Backoff], kind: str) -> Mapping[str, Backoff]:
    return {attempt: wait for attempt, wait in backoffs.items() if attempt != kind}


def _read(known: ResourceMemory, answer: actions.CallAnswer) -> ResourceMemory:
    if answer.failure is not None:
        return _failing(known, READ, answer.failure, answer)
    known = replace(known, backoffs=_without(known.backoffs, READ))
    if known.reading is not None and known.reading.asked_at > answer.asked_at:
        return known
    if answer.result is not None and answer.asked_at >= known.changed_at:
        # The resource exists, so failed creates no longer matter.
        known = replace(known, backoffs=_without(known.backoffs, INSERT))
    if isinstance(answer.call, actions.ListManagers):
        managers = tuple(manager for manager in answer.result or () if manager.name not in answer.call.own)
        before = {manager.name for manager in known.reading.managers} if known.reading is not None else set()
        repeated = frozenset(manager.name for manager in managers if manager.name in before)
        reading = Reading(asked_at=answer.asked_at, resource=None, managers=managers, repeated=repeated)
        return replace(known, reading=reading)
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
        return replace(known, reading=Reading(asked_at=answer.asked_at, resource=None), changed_at=answer.asked_at)
    known = _failing(known, DELETE, failure, answer)
    return replace(known, changed_at=answer.at) if failure.kind is FailureKind.UNKNOWN_OUTCOME else known


def _taken(
    known: ResourceMemory, kind: OperationType, attempt: int, operation: Operation, answer: actions.CallAnswer
) -> ResourceMemory:
    """Record the operation of an accepted request, or of an earlier request with the same id."""
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
        # Google has forgotten the operation, so the resource is read to learn the outcome.
        return replace(known, operation=None, changed_at=answer.at)
    return _ended(known, call.type, operation.failure, answer) if operation.done else known


def _ended(
    known: ResourceMemory, kind: OperationType, failure: Failure | None, answer: actions.CallAnswer
) -> ResourceMemory:
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
    instances = (
        {instance.name: instance for instance in answer.result or ()} if isinstance(call, actions.ReadMachines) else {}
    )
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
        # The change may have taken effect, so the metadata is read before the next attempt.
        return MachineMemory(id=known.id, backoff=_wait(known, answer.failure, answer), change_failed=True)
    if answer.result is None:
        return MachineMemory(id=known.id)
    return MachineMemory(id=known.id, read_at=answer.at, items=call.items)


def _read_of(known: MachineMemory, instance: Instance | None, answer: actions.CallAnswer) -> MachineMemory:
    if answer.failure is not None:
        return replace(known, backoff=_wait(known, answer.failure, answer))
    # The time of the request would be outdated: reading the machines of a large group takes minutes.
    known = replace(known, read_at=answer.at, backoff=known.backoff if known.change_failed else None)
    if instance is None or (instance.id and instance.id != known.id):
        return replace(known, items=None, fingerprint=None)
    return replace(known, items=instance.items, fingerprint=instance.fingerprint)


def _wait(known: MachineMemory, failure: Failure, answer: actions.CallAnswer) -> Backoff:
    return failed(known.backoff, failure, answer.call.key, answer.at, answer.retry_after_seconds)
