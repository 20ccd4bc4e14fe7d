"""What answers teach: folding them into the memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import with_answer
from provisioner.partitions.planning import backoff
from provisioner.partitions.planning.calls import (
    Answer,
    CallAnswer,
    CreatePartition,
    ReadServer,
    RemovePartition,
    WriteAnswer,
)
from provisioner.partitions.planning.memory import Memory, PartitionMemory, StrayMemory

#: A call that nobody makes is given up so long after it was decided: then it is surely not about to be sent.
LOST_SECONDS = 60.0

_LOST = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="The call was lost inside the provisioner.")
_NOT_LISTED = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="It was made, and its server does not list it.")
_STILL_LISTED = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="It was removed, and its server lists it still.")
_WAS_BROKEN = Failure(kind=FailureKind.UNAVAILABLE, message="The partition was broken, and is removed.")
#: What a create ends in for which this is not the place, or not now: the pod may go elsewhere meanwhile.
_REFUSALS = frozenset(
    {FailureKind.STOCKOUT, FailureKind.QUOTA, FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.NOT_FOUND}
)
#: What may have changed what is there, or shows that something else is there than was thought.
_UNSURE = frozenset({FailureKind.UNKNOWN_OUTCOME, FailureKind.ALREADY_EXISTS, FailureKind.NOT_FOUND})


def fold(memory: Memory, answer: Answer) -> Memory:
    """Fold one answer into the memory."""
    if isinstance(answer, WriteAnswer):
        return replace(memory, writes=with_answer(memory.writes, answer))
    memory = replace(memory, calls={key: each for key, each in memory.calls.items() if key != answer.call.key})
    match answer.call:
        case ReadServer():
            return _read(memory, answer.call, answer)
        case CreatePartition():
            return _created(memory, answer.call, answer)
        case RemovePartition():
            return _removed(memory, answer.call, answer)


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


def _read(memory: Memory, call: ReadServer, answer: CallAnswer) -> Memory:
    servers = {address: each for address, each in memory.servers.items() if address != call.server}
    if answer.failure is not None:
        servers[call.server] = backoff.failed(memory.servers.get(call.server), answer.failure, call.key, answer.at)
    return replace(memory, servers=servers)


def _created(memory: Memory, call: CreatePartition, answer: CallAnswer) -> Memory:
    request, failure = call.request, answer.failure
    known = memory.partitions.get(request.id)
    if known is None:
        return memory
    # Success, too, is followed by a wait that grows, should the server not list what it says that it made.
    wait = backoff.failed(known.backoff, failure or _NOT_LISTED, call.key, answer.at)
    known = replace(known, backoff=wait)
    if failure is None or failure.kind in _UNSURE:
        known = replace(known, changed_at=answer.at)
    if failure is not None and failure.kind in _REFUSALS:
        known = replace(known, refused=True, changed_at=answer.at)
    return _with_partition(memory, request.id, known)


def _removed(memory: Memory, call: RemovePartition, answer: CallAnswer) -> Memory:
    failure = answer.failure
    gone = not answer.kept and (failure is None or failure.kind is FailureKind.NOT_FOUND)
    stray = memory.strays.get((call.server, call.id))
    if stray is not None:
        return replace(memory, strays={**memory.strays, (call.server, call.id): _of_stray(stray, call, answer)})
    known = memory.partitions.get(call.id)
    if known is None:
        return memory
    if answer.kept:
        wait = backoff.kept(known.removing, answer.kept, call.key, answer.at)
        return _with_partition(memory, call.id, replace(known, kept=answer.kept, removing=wait))
    if gone:
        if call.unused:
            known = replace(known, refused=True, backoff=backoff.failed(None, _WAS_BROKEN, call.key, answer.at))
        wait = backoff.failed(known.removing, _STILL_LISTED, call.key, answer.at)
        return _with_partition(memory, call.id, replace(known, kept="", removing=wait, changed_at=answer.at))
    wait = backoff.failed(known.removing, failure or _LOST, call.key, answer.at)
    known = replace(known, kept="", removing=wait)
    if failure is not None and failure.kind in _UNSURE:
        known = replace(known, changed_at=answer.at)
    return _with_partition(memory, call.id, known)


def _of_stray(known: StrayMemory, call: RemovePartition, answer: CallAnswer) -> StrayMemory:
    if answer.kept:
        return replace(known, backoff=backoff.kept(known.backoff, answer.kept, call.key, answer.at))
    if answer.failure is None or answer.failure.kind is FailureKind.NOT_FOUND:
        wait = backoff.failed(known.backoff, _STILL_LISTED, call.key, answer.at)
        return replace(known, backoff=wait, changed_at=answer.at)
    known = replace(known, backoff=backoff.failed(known.backoff, answer.failure, call.key, answer.at))
    return replace(known, changed_at=answer.at) if answer.failure.kind in _UNSURE else known


def _with_partition(memory: Memory, partition_id: str, known: PartitionMemory) -> Memory:
    return replace(memory, partitions={**memory.partitions, partition_id: known})
