"""Memory between decisions, such as failed calls. Losing it is safe, because repeated creates have the same ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.waits import Backoff
from provisioner.model.writes import AnsweredWrite, OpenActions, answered
from provisioner.partitions.planning import actions

#: V-IPU server (HOST:PORT) and name of an allocation, which may be empty.
Site = tuple[str, str]
_MAX_IN_VAIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMemory:
    """Memory of one entry of the ledger, or of one stray."""

    #: Server, allocation and recording time of the entry; empty for a stray. A change of these clears the memory.
    mark: str = ""
    #: Time at which this memory was created.
    since: datetime
    #: Time of the last outcome of a create or remove that made earlier readings outdated; None if there was none.
    changed_at: datetime | None = None
    active_at: datetime | None = None
    #: Whether a create was rejected, or an unused partition was removed. Reset once listed as creating or active.
    refused: bool = False
    #: Back-off of creates; None again when `refused` is reset.
    backoff: Backoff | None = None
    removing: Backoff | None = None
    #: Time since which the pod has been seen with this partition, without gate and without node; otherwise None.
    unscheduled_since: datetime | None = None
    #: Reason why a check blocked the last remove; empty if no check blocked it.
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Failed attempts to give a pod a partition in one allocation."""

    backoff: Backoff
    #: Time of the first failure, or of an earlier stockout of the namespace in this allocation (`Memory.stockouts`).
    since: datetime
    #: Ids of the allocation's partitions at the last failure; usually None unless this was a stockout.
    listed: frozenset[str] | None = None
    #: Number of stockouts while no partition was listed in the allocation.
    in_vain: int = 0

    @property
    def never_fits(self) -> bool:
        """Whether the partition may never fit. If so, other pods are not delayed for the partition."""
        return self.in_vain >= _MAX_IN_VAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(OpenActions[actions.Call, actions.Write]):
    """State that is remembered between decisions."""

    partitions: Mapping[str, PartitionMemory] = field(default_factory=dict)
    #: Failed attempts by UID of the pod and by allocation, until a partition of the pod is active or the pod ends.
    refusals: Mapping[str, Mapping[Site, Refusal]] = field(default_factory=dict)
    #: Last stockout by namespace and allocation, for `crowded_seconds` or until a rejected pod gets a partition there.
    #: Without this memory, a namespace that replaces a rejected pod could delay other pods without limit.
    stockouts: Mapping[tuple[str, Site], Refusal] = field(default_factory=dict)
    #: Back-off of reads by HOST:PORT.
    servers: Mapping[str, Backoff] = field(default_factory=dict)
    #: Memory of strays by server and id.
    strays: Mapping[tuple[str, str], PartitionMemory] = field(default_factory=dict)
    #: Time, by this process's clock, at which a pod's deletion was first seen; by UID of the pod and deletionTimestamp.
    ending: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    #: Topics of Events that are not emitted again, by UID of the pod.
    told: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Time of the last call, by server, kind of call and namespace. The namespace is empty for calls without a pod.
    turns: Mapping[tuple[str, str, str], datetime] = field(default_factory=dict)


#: First and maximum wait in seconds after a failed call to a V-IPU server, by kind of failure.
DELAYS: Mapping[FailureKind, tuple[float, float]] = {
    **waits.DELAYS,
    # Usually, the free IPUs are not contiguous. The wait may end early, when a partition there is removed.
    FailureKind.STOCKOUT: (30, 300),
}
#: First and maximum wait in seconds for a pod in an allocation after its entry there was given up without a rejection.
IN_VAIN = (300, 600)
#: First and maximum wait in seconds after a remove that a check blocked.
_KEPT = (2, 30)


def failed(
    before: Backoff | None, failure: Failure, key: str, now: datetime, delay: tuple[float, float] | None = None
) -> Backoff:
    """Return the back-off after one more failure. `delay` replaces the waits of the kind of failure."""
    return waits.backed_off(before, failure, key, now, delay or DELAYS[failure.kind])


_NOT_LISTED = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="It was created, but its server does not list it.")
_STILL_LISTED = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="It was removed, but its server still lists it.")
_WAS_BROKEN = Failure(kind=FailureKind.UNAVAILABLE, message="The partition was broken, and is removed.")
#: Failures of a create after which the pod may get another allocation.
_REFUSALS = frozenset({FailureKind.STOCKOUT, FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.NOT_FOUND})
#: Failures after which the state of the partition is uncertain, so a new reading is necessary.
_UNSURE = frozenset({FailureKind.UNKNOWN_OUTCOME, FailureKind.ALREADY_EXISTS, FailureKind.NOT_FOUND})


def fold(memory: Memory, answer: actions.Answer) -> Memory:
    """Return the memory after the outcome of a call or a write."""
    memory = answered(memory, answer)
    if isinstance(answer, AnsweredWrite):
        return memory
    match answer.call:
        case actions.ReadServer():
            return _read(memory, answer.call, answer)
        case actions.CreatePartition():
            return _created(memory, answer.call, answer)
        case actions.RemovePartition():
            return _removed(memory, answer.call, answer)


def _read(memory: Memory, call: actions.ReadServer, answer: actions.CallAnswer) -> Memory:
    servers = {address: backoff for address, backoff in memory.servers.items() if address != call.server}
    if answer.failure is not None:
        servers[call.server] = failed(memory.servers.get(call.server), answer.failure, call.key, answer.at)
    return replace(memory, servers=servers)


def _created(memory: Memory, call: actions.CreatePartition, answer: actions.CallAnswer) -> Memory:
    request, failure = call.request, answer.failure
    known = memory.partitions.get(request.id)
    if known is None:
        return memory
    # A successful create also starts a wait. If the partition is not listed after the wait, the create is repeated.
    wait = failed(known.backoff, failure or _NOT_LISTED, call.key, answer.at)
    known = replace(known, backoff=wait)
    if failure is None or failure.kind in _UNSURE:
        known = replace(known, changed_at=answer.at)
    if failure is not None and failure.kind in _REFUSALS:
        known = replace(known, refused=True, changed_at=answer.at)
    return _with_partition(memory, request.id, known)


def _removed(memory: Memory, call: actions.RemovePartition, answer: actions.CallAnswer) -> Memory:
    failure, place = answer.failure, (call.server, call.id)
    known = memory.strays.get(place) or memory.partitions.get(call.id)
    if known is None:
        return memory
    if answer.kept:
        kept = Failure(kind=FailureKind.OPERATION_IN_THE_WAY, message=answer.kept)
        wait = failed(known.removing, kept, call.key, answer.at, _KEPT)
    else:
        gone = failure is None or failure.kind is FailureKind.NOT_FOUND
        wait = failed(known.removing, _STILL_LISTED if failure is None or gone else failure, call.key, answer.at)
        if gone and call.unused:
            known = replace(known, refused=True, backoff=failed(None, _WAS_BROKEN, call.key, answer.at))
        if failure is None or failure.kind in _UNSURE:
            known = replace(known, changed_at=answer.at)
    known = replace(known, kept=answer.kept, removing=wait)
    if place in memory.strays:
        return replace(memory, strays={**memory.strays, place: known})
    return _with_partition(memory, call.id, known)


def _with_partition(memory: Memory, partition_id: str, known: PartitionMemory) -> Memory:
    return replace(memory, partitions={**memory.partitions, partition_id: known})
