"""Kubernetes Events on pods: their texts, and limits on their repetition and number. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provisioner.model import bounds
from provisioner.model.capacity import Failure
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.queue import Candidate, Wait
from provisioner.partitions.vipu.records import Partition

#: The pod waits, for example for IPUs, older pods, its namespace's limit, or the ledger.
WAITING = "PartitionWaiting"
#: The partition is active, so the pod's scheduling gate is removed.
CREATED = "PartitionCreated"
#: The partition cannot be created or removed, is unusable, or is on a V-IPU server that cannot be read or is no longer
#: in `VIPU_SERVERS`. Or the pod may not use the server's nodes, or its gate cannot be removed.
FAILED = "PartitionFailed"
#: The server lost the partition of a pod, or another client, such as a copy of this cluster, removed it. The partition
#: is created again under the same id.
LOST = "PartitionLost"
#: The pod has ended or released its partition. As a warning: no node was found within `UNSCHEDULED_TIMEOUT`, and the
#: partition is given to other pods.
RELEASED = "PartitionReleased"
#: For example, the pod's annotation is not a power of two, `SERVED_NAMESPACES` does not contain its namespace, its
#: partition was released before it ran, or the webhook did not prepare it.
REJECTED = "PartitionRejected"

#: Topics of Events that are repeated if their cause recurs after the partition was active.
_REPEATABLE = frozenset({"lost", "broken"})
#: Maximum number of Events in a round. Later rounds emit the remaining Events.
MAX_PER_ROUND = 200
#: Reasons to wait that may last until a user or another cluster changes something. Their Events are warnings.
_WARNINGS = frozenset({Wait.IMPOSSIBLE, Wait.OTHERS, Wait.REFUSED})


@dataclass(frozen=True, slots=True)
class Event:
    """An Event on a pod."""

    #: A process emits at most one Event of a topic for each pod; see `_REPEATABLE` for exceptions.
    topic: str
    pod: Pod
    reason: str
    message: str
    warning: bool = False


def waiting(candidate: Candidate) -> Event:
    """Return the Event with the reason why a pod waits."""
    warning = candidate.wait in _WARNINGS
    return Event(candidate.wait.value, candidate.pod, WAITING, candidate.why, warning=warning)


def why_limited(pod: Pod) -> str:
    """Return the reason for a pod that waits because of the limit of its namespace."""
    return f"Namespace {pod.namespace} has used its limit of IPUs, or its older pods wait for the rest."


def late(pod: Pod, entry: Entry, max_changes: int) -> Event:
    """Return the Event for a partition whose create is not sent yet, because of other changes on its server."""
    message = (
        f"Partition {entry.id} waits for other creates and removes on {entry.server}, of which at most {max_changes} "
        "run at the same time. Wait; pods with a higher spec.priority come first."
    )
    return Event("late", pod, WAITING, message)


def created(pod: Pod, entry: Entry) -> Event:
    """Return the Event for an active partition."""
    where = f"allocation {entry.allocation} of {entry.server}" if entry.allocation else entry.server
    return Event("created", pod, CREATED, f"Partition {entry.id} of {entry.size} IPUs is active in {where}.")


def failed(pod: Pod, entry: Entry, failure: Failure) -> Event:
    """Return the Event for a failed create."""
    words = bounds.cut(failure.message, bounds.HINTED_WORDS)
    message = f"Partition {entry.id} is not created on {entry.server}, and is retried: {words}"
    return Event(f"failed {failure.kind.value}", pod, FAILED, message, warning=True)


def broken(pod: Pod, entry: Entry, partition: Partition | None) -> Event:
    """Return the Event for a partition that exists but is unusable."""
    state = bounds.cut(partition.state_text, bounds.QUOTED) if partition is not None else ""
    outcome = "The pod may be using it, so it stays." if pod.begun else "It is removed and created again."
    message = f"Partition {entry.id} on {entry.server} is not usable (state {state or 'unknown'}). {outcome}"
    return Event("broken", pod, FAILED, message, warning=True)


def not_removed(pod: Pod, entry: Entry, failure: Failure) -> Event:
    """Return the Event for a partition that is still listed after MAX_REMOVES removes."""
    words = bounds.cut(failure.message, bounds.HINTED_WORDS)
    message = f"Partition {entry.id} is not removed from {entry.server}, and this is retried: {words}"
    return Event("not removed", pod, FAILED, message, warning=True)


def misplaced(pod: Pod, entry: Entry) -> Event:
    """Return the Event for a partition on a server whose nodes the pod may no longer use."""
    message = (
        f"Partition {entry.id} is on {entry.server}, whose nodes the pod may not use any more by its node selector or "
        "affinity. It is removed, and the pod waits again."
    )
    return Event("misplaced", pod, FAILED, message, warning=True)


def lost(pod: Pod, entry: Entry) -> Event:
    """Return the Event for a partition that has vanished from its server."""
    message = f"Partition {entry.id} is gone from {entry.server}, and is created again under the same id."
    return Event("lost", pod, LOST, message, warning=True)


def unnamed(pod: Pod, entry: Entry) -> Event:
    """Return the Event for a partition on a server that is no longer in the settings."""
    message = f"Partition {entry.id} is on {entry.server}, which VIPU_SERVERS no longer names: its state is unknown."
    return Event("unnamed", pod, FAILED, message, warning=True)


def unreadable(pod: Pod, entry: Entry, failure: Failure, max_seconds: float) -> Event:
    """Return the Event for a partition that a pod waits for, on a server that cannot be read."""
    if pod.gated:
        outcome = f"After {max_seconds / 60:g} minutes without an answer the pod waits for IPUs of other servers, too."
    else:
        outcome = "The pod waits for it on its node; delete it and create it again to get IPUs of another server."
    words = bounds.cut(failure.message, bounds.HINTED_WORDS)
    message = f"Partition {entry.id} is for {entry.server}, which cannot be read ({words}). {outcome}"
    return Event("unreadable", pod, FAILED, message, warning=True)


def released(pod: Pod, entry: Entry) -> Event:
    """Return the Event for a partition that was removed because its pod no longer needs it."""
    return Event("released", pod, RELEASED, f"Partition {entry.id} on {entry.server} is removed.")


def choose(
    events: Iterable[Event], emitted: Mapping[str, frozenset[str]], uids: Iterable[str], active: frozenset[str]
) -> tuple[list[Event], dict[str, frozenset[str]], bool]:
    """Return Events to emit now, topics emitted so far by UID, and whether Events are left for later rounds.

    `uids` are the UIDs of all pods, and `active` the UIDs of pods whose partition is active.
    """
    known = {uid: emitted[uid] for uid in uids if uid in emitted}
    for uid in active & known.keys():
        known[uid] -= _REPEATABLE
    chosen: list[Event] = []
    for event in events:
        before = known.get(event.pod.uid, frozenset())
        if event.topic in before:
            continue
        if len(chosen) >= MAX_PER_ROUND:
            return chosen, known, True
        known[event.pod.uid] = before | {event.topic}
        chosen.append(event)
    return chosen, known, False
