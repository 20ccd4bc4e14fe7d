"""What people are told of their pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioner.model import bounds
from provisioner.model.capacity import Failure
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.queue import Candidate, Wait
from provisioner.partitions.vipu.protocol import Partition

WAITING = "PartitionWaiting"
CREATED = "PartitionCreated"
FAILED = "PartitionFailed"
LOST = "PartitionLost"
RELEASED = "PartitionReleased"
REJECTED = "PartitionRejected"

#: Told again, should it happen again after the partition was active.
_REPEATABLE = frozenset({"lost", "broken"})
#: What a round tells at most; the rest is told in the next ones.
MOST_PER_ROUND = 200
#: What waits for these is not going to change by itself.
_WARNINGS = frozenset({Wait.IMPOSSIBLE, Wait.OTHERS, Wait.REFUSED})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that people are told of a pod once, when it happens."""

    #: Of equal ones of a pod one is told.
    topic: str
    pod: Pod
    reason: str
    message: str
    warning: bool = False


def waiting(candidate: Candidate) -> Event:
    """Say what a pod waits for."""
    warning = candidate.wait in _WARNINGS
    return Event(candidate.wait.value, candidate.pod, WAITING, candidate.why, warning=warning)


def why_limited(pod: Pod) -> str:
    """Say that a pod waits for the limit of its namespace."""
    return f"Namespace {pod.namespace} has used its limit of IPUs, or its older pods wait for the rest."


def created(pod: Pod, entry: Entry) -> Event:
    """Say that a pod's partition is active."""
    where = f"allocation {entry.allocation} of {entry.server}" if entry.allocation else entry.server
    return Event("created", pod, CREATED, f"Partition {entry.id} of {entry.size} IPUs is active in {where}.")


def failed(pod: Pod, entry: Entry, failure: Failure) -> Event:
    """Say why a pod's partition was not made."""
    words = bounds.cut(failure.message, bounds.HINTED_WORDS)
    message = f"Partition {entry.id} is not created on {entry.server}, and is retried: {words}"
    return Event(f"failed {failure.kind.value}", pod, FAILED, message, warning=True)


def broken(pod: Pod, entry: Entry, partition: Partition | None) -> Event:
    """Say that a pod's partition exists and is unusable."""
    state = bounds.cut(partition.state_text, bounds.QUOTED) if partition is not None else ""
    what = "The pod may be using it, so it stays." if pod.begun else "It is removed and created again."
    message = f"Partition {entry.id} on {entry.server} is not usable (state {state or 'unknown'}). {what}"
    return Event("broken", pod, FAILED, message, warning=True)


def not_removed(pod: Pod, entry: Entry, failure: Failure) -> Event:
    """Say why a pod's partition could not be removed, though that was tried again and again."""
    words = bounds.cut(failure.message, bounds.HINTED_WORDS)
    message = f"Partition {entry.id} is not removed from {entry.server}, and this is retried: {words}"
    return Event("not removed", pod, FAILED, message, warning=True)


def misplaced(pod: Pod, entry: Entry) -> Event:
    """Say that a pod may not be where its partition is."""
    message = (
        f"Partition {entry.id} is on {entry.server}, whose nodes the pod may not use any more by its node selector or "
        "affinity. It is removed, and the pod waits again."
    )
    return Event("misplaced", pod, FAILED, message, warning=True)


def lost(pod: Pod, entry: Entry) -> Event:
    """Say that a pod's partition has vanished."""
    message = f"Partition {entry.id} is gone from {entry.server}, and is created again under the same id."
    return Event("lost", pod, LOST, message, warning=True)


def unnamed(pod: Pod, entry: Entry) -> Event:
    """Say that nobody can ask for a pod's partition."""
    message = f"Partition {entry.id} is on {entry.server}, which VIPU_SERVERS no longer names: its state is unknown."
    return Event("unnamed", pod, FAILED, message, warning=True)


def unreadable(pod: Pod, entry: Entry, failure: Failure, most_seconds: float) -> Event:
    """Say that nobody can ask for a partition that a pod waits for."""
    if pod.gated:
        what = f"After {most_seconds / 60:g} minutes without an answer the pod waits for IPUs of other servers, too."
    else:
        what = "The pod waits for it on its node; delete it and create it again to get IPUs of another server."
    words = bounds.cut(failure.message, bounds.HINTED_WORDS)
    message = f"Partition {entry.id} is for {entry.server}, which cannot be read ({words}). {what}"
    return Event("unreadable", pod, FAILED, message, warning=True)


def released(pod: Pod, entry: Entry) -> Event:
    """Say that a pod's partition is gone, as it should be."""
    return Event("released", pod, RELEASED, f"Partition {entry.id} on {entry.server} is removed.")


def choose(
    events: Iterable[Event], told: Mapping[str, frozenset[str]], uids: Iterable[str], active: frozenset[str]
) -> tuple[list[Event], dict[str, frozenset[str]], bool]:
    """Return what is told now, what has been told then, and whether there is more; `uids` are those of all pods."""
    known = {uid: told[uid] for uid in uids if uid in told}
    for uid in active & known.keys():
        known[uid] -= _REPEATABLE
    chosen: list[Event] = []
    for event in events:
        before = known.get(event.pod.uid, frozenset())
        if event.topic in before:
            continue
        if len(chosen) >= MOST_PER_ROUND:
            return chosen, known, True
        known[event.pod.uid] = before | {event.topic}
        chosen.append(event)
    return chosen, known, False
