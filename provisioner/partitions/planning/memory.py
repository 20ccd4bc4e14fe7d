"""What is remembered between decisions: what calls have taught, and what caches do not show yet.

Losing it is safe: partitions are made again under the same ids. A failure delays the one thing that failed, and nothing
is given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from provisioner.model import waits
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import LOST, OpenCall, OpenWrite, lost_calls, with_answer
from provisioner.partitions.planning import actions

#: A server (HOST:PORT) and the name of an allocation on it: where a partition can be.
Site = tuple[str, str]
_MOST_IN_VAIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The same is not tried again before `until`."""

    failure: Failure
    failures: int
    #: When it failed last.
    at: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMemory:
    """One entry of the ledger, or a partition with our prefix where the ledger has none."""

    #: Of an entry, where it is and when it was recorded, as a text: another mark, another entry.
    mark: str = ""
    #: When it was first seen.
    since: datetime
    #: When a call of ours that changes it was last answered: a reading asked for before says nothing of it.
    changed_at: datetime | None = None
    active_at: datetime | None = None
    #: A create was refused here, and the server is to show that there is no partition.
    refused: bool = False
    #: Of creates, until the partition is listed.
    backoff: Backoff | None = None
    removing: Backoff | None = None
    #: Since when its pod has been seen to have it and no node; None: it is not so.
    unscheduled_since: datetime | None = None
    #: Why the last remove was not sent; empty: it was.
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An allocation where a pod's partition could not be made."""

    backoff: Backoff
    #: When it was refused there first.
    since: datetime
    #: There was no place for it beside these: there may be one as soon as one of them is gone. None: another reason.
    listed: frozenset[str] | None = None
    #: How often there was no place for it although nothing was there.
    in_vain: int = 0

    @property
    def never_fits(self) -> bool:
        """Whether there may never be a place for it: nobody is held up for it any more."""
        return self.in_vain >= _MOST_IN_VAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of it. Replaced as a whole by each decision and each answer."""

    #: By id.
    partitions: Mapping[str, PartitionMemory] = field(default_factory=dict)
    #: By the pod's UID.
    refusals: Mapping[str, Mapping[Site, Refusal]] = field(default_factory=dict)
    #: By server: of readings.
    servers: Mapping[str, Backoff] = field(default_factory=dict)
    #: By server and id: of partitions where the ledger has none.
    strays: Mapping[tuple[str, str], PartitionMemory] = field(default_factory=dict)
    #: Since when a pod is seen to be deleted, by UID and deletionTimestamp, which is by another clock.
    ending: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    calls: Mapping[str, OpenCall[actions.Call]] = field(default_factory=dict)
    writes: Mapping[str, OpenWrite[actions.Write]] = field(default_factory=dict)
    #: By the pod's UID: what its people have been told.
    told: Mapping[str, frozenset[str]] = field(default_factory=dict)


# --- waits ---


#: The first wait after a failure of a V-IPU server, and the longest.
DELAYS: Mapping[FailureKind, tuple[float, float]] = {
    # The free IPUs are not in one place: another partition has to go first, and that is noticed at once.
    FailureKind.STOCKOUT: (30, 300),
    FailureKind.OPERATION_IN_THE_WAY: (2, 30),
    FailureKind.TOO_MANY_OPERATIONS: (1, 30),
    FailureKind.UNKNOWN_OUTCOME: (1, 60),
    FailureKind.ALREADY_EXISTS: (1, 60),
    FailureKind.UNAVAILABLE: (1, 60),
    # Somebody may change what is in the way of these at any time, and nothing tells us.
    FailureKind.INVALID: (30, 600),
    FailureKind.PERMISSION: (30, 600),
    FailureKind.NOT_FOUND: (10, 600),
}
#: Of a place in which creates have failed for long: elsewhere there may be a server that makes it.
IN_VAIN = (300, 600)
#: A remove that was kept from being sent, because its pod is there.
_KEPT = (2, 30)


def failed(
    before: Backoff | None, failure: Failure, key: str, now: datetime, delay: tuple[float, float] | None = None
) -> Backoff:
    """Return the back-off after one more failure, with the delay of its kind or another one."""
    failures = before.failures + 1 if before is not None else 1
    until = waits.after(now, waits.doubled_seconds(*(delay or DELAYS[failure.kind]), failures, key))
    return Backoff(failure=failure, failures=failures, at=now, until=until)


# --- answers ---

_NOT_LISTED = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="It was created, but its server does not list it.")
_STILL_LISTED = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="It was removed, but its server still lists it.")
_WAS_BROKEN = Failure(kind=FailureKind.UNAVAILABLE, message="The partition was broken, and is removed.")
#: What a create ends in for which this is not the place, or not now: the pod may go elsewhere meanwhile.
_REFUSALS = frozenset({FailureKind.STOCKOUT, FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.NOT_FOUND})
#: What may have changed what is there, or shows that something else is there than was thought.
_UNSURE = frozenset({FailureKind.UNKNOWN_OUTCOME, FailureKind.ALREADY_EXISTS, FailureKind.NOT_FOUND})


def fold(memory: Memory, answer: actions.Answer) -> Memory:
    """Fold one answer into the memory."""
    if isinstance(answer, actions.WriteAnswer):
        return replace(memory, writes=with_answer(memory.writes, answer))
    memory = replace(memory, calls={key: each for key, each in memory.calls.items() if key != answer.call.key})
    match answer.call:
        case actions.ReadServer():
            return _read(memory, answer.call, answer)
        case actions.CreatePartition():
            return _created(memory, answer.call, answer)
        case actions.RemovePartition():
            return _removed(memory, answer.call, answer)


def give_up_lost_calls(memory: Memory, live: frozenset[str], now: datetime) -> Memory:
    """Take calls that should be under way, and that nobody makes, for calls whose outcome nobody knows."""
    for key, each in lost_calls(memory.calls, live, now).items():
        try:
            memory = fold(memory, actions.CallAnswer(call=each.call, asked_at=each.since, at=now, failure=LOST))
        except Exception:  # noqa: BLE001 - one call must not cost the others their turn
            memory = replace(memory, calls={other: call for other, call in memory.calls.items() if other != key})
    return memory


def _read(memory: Memory, call: actions.ReadServer, answer: actions.CallAnswer) -> Memory:
    servers = {address: each for address, each in memory.servers.items() if address != call.server}
    if answer.failure is not None:
        servers[call.server] = failed(memory.servers.get(call.server), answer.failure, call.key, answer.at)
    return replace(memory, servers=servers)


def _created(memory: Memory, call: actions.CreatePartition, answer: actions.CallAnswer) -> Memory:
    request, failure = call.request, answer.failure
    known = memory.partitions.get(request.id)
    if known is None:
        return memory
    # Success, too, is followed by a wait that grows, should the server not list what it says that it made.
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
        said = Failure(kind=FailureKind.OPERATION_IN_THE_WAY, message=answer.kept)
        wait = failed(known.removing, said, call.key, answer.at, _KEPT)
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
