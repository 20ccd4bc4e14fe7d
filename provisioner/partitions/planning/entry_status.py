"""Derives the state of each ledger entry from its pod, the last reading of its server, and the memory. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import PartitionMemory, Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.vipu.records import Partition, PartitionState


class Phase(Enum):
    """State of a recorded partition. Users see the values (`PartitionLine.phase`)."""

    #: The server does not list the partition: its create will be sent, or is in flight.
    WANTED = "wanted"
    #: The server lists the partition as not yet active, or the state of the partition is unknown.
    CREATING = "creating"
    ACTIVE = "active"
    #: The partition has failed, has another size than requested, or takes too long to become active.
    BROKEN = "broken"
    #: The pod still has its gate, and may no longer be scheduled to the nodes of the partition's server.
    MISPLACED = "misplaced"
    #: The pod has the partition in its annotations, but the server no longer lists the partition.
    LOST = "lost"
    #: The entry is given up, for example because the partition was rejected. The pod waits again.
    WITHDRAWN = "withdrawn"
    #: No pod needs the partition, or its pod waits for another partition, because this partition cannot be removed.
    RELEASING = "releasing"
    #: No pod needs the partition. The partition does not exist, or its server is no longer in the settings.
    GONE = "gone"


#: Phases whose entries count as using no IPUs, and are usually removed from the ledger.
OVER = frozenset({Phase.WITHDRAWN, Phase.GONE})
_USELESS = frozenset({Phase.BROKEN, Phase.MISPLACED})
#: Number of failed creates of a partition after which other pods no longer wait for the next create. A rejected
#: partition is usually given up by then.
MAX_TRIES = 3
#: Number of removes, successful or not, after which a partition that is still listed counts as permanent.
MAX_REMOVES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryStatus:
    """State of one entry of the ledger in one round."""

    entry: Entry
    pod: Pod | None
    phase: Phase
    known: PartitionMemory
    #: Partition as its server lists it; None if it is not listed, or `certain` is false.
    partition: Partition | None = None
    #: Whether the phase is reliable. False without a reading (`Round.reading`), or if its evaluation raised an error.
    certain: bool = True
    #: Whether the last reading is too old to determine the phase, so that the server must be read soon.
    reads: bool = False
    #: Whether the last reading was requested before `PartitionMemory.changed_at`.
    outdated: bool = False

    @property
    def site(self) -> Site:
        """Server and allocation of the partition; the allocation is empty if unknown."""
        listed = self.partition.allocation if self.partition is not None else ""
        return self.entry.server, listed or self.entry.allocation

    @property
    def ipus(self) -> int:
        """IPUs that the partition uses or will use."""
        return max(self.entry.size, self.partition.size if self.partition is not None else 0)

    @property
    def stays(self) -> bool:
        """Whether the partition must be removed, but cannot be removed."""
        return self.phase is Phase.RELEASING and cannot_be_removed(self.known)


def status_of_entry(entry: Entry, ctx: Round) -> EntryStatus:
    """Return the state of an entry."""
    known = known_of(entry, ctx)
    pod = ctx.pods.get(entry.pod_uid)
    wanted = pod is not None and ctx.may_use(pod, entry.id)
    reading = ctx.reading(entry.server)
    if reading is None:
        phase = _phase_unread(entry, pod if wanted else None, known, ctx)
        return EntryStatus(entry=entry, pod=pod, phase=phase, known=known, certain=False)
    partition = ctx.listed[entry.server].get(entry.id)
    shows_changes = known.changed_at is None or reading.asked_at >= known.changed_at
    shows_all = shows_changes and reading.asked_at >= known.since
    reads = False
    if pod is None or not wanted:
        gone = partition is None and shows_all and ctx.change_of(entry) is None
        phase = Phase.GONE if gone else Phase.RELEASING
        reads = not shows_all
    elif not shows_changes:
        phase, reads = Phase.CREATING, True
    elif _is_misplaced(entry, pod):
        there = partition is not None or ctx.change_of(entry) is not None
        phase = Phase.MISPLACED if there else Phase.WITHDRAWN
    elif partition is not None:
        phase = _phase_of(entry, partition, known, ctx)
    elif _is_given_up(entry, pod, known, ctx):
        phase = Phase.WITHDRAWN
    elif pod.server_annotation and not ctx.uses_other_server(pod, entry.server):
        phase = Phase.LOST if shows_all else Phase.CREATING
        reads = not shows_all
    else:
        phase = Phase.WANTED
    if phase in _USELESS and pod is not None and pod.gated and cannot_be_removed(known):
        # The pod no longer waits for this partition, but for a partition on another server.
        phase = Phase.RELEASING
    outdated = not shows_changes
    return EntryStatus(
        entry=entry, pod=pod, phase=phase, known=known, partition=partition, reads=reads, outdated=outdated
    )


def cannot_be_removed(known: PartitionMemory) -> bool:
    """Return whether MAX_REMOVES removes of a partition had no effect, and no check blocked the last of them."""
    return known.removing is not None and known.removing.failures >= MAX_REMOVES and not known.kept


def _is_misplaced(entry: Entry, pod: Pod) -> bool:
    """Return whether a pod may no longer use the server's nodes: while a pod has its gate, its selectors can change."""
    return pod.gated and pod.servers is not None and entry.server not in pod.servers


def _phase_unread(entry: Entry, wanted: Pod | None, known: PartitionMemory, ctx: Round) -> Phase:
    """Return the phase of an entry without a reading. `wanted` is the pod; None if no pod needs the partition."""
    if entry.server not in ctx.servers:
        # The server is no longer in the settings. A pod without its gate may still use the partition.
        return Phase.GONE if wanted is None else Phase.WITHDRAWN if wanted.gated else Phase.CREATING
    if wanted is None:
        return Phase.RELEASING
    return Phase.WITHDRAWN if wanted.gated and _is_away(entry, known, ctx) else Phase.CREATING


def _is_away(entry: Entry, known: PartitionMemory, ctx: Round) -> bool:
    reading, began_at = ctx.servers[entry.server].reading, known.changed_at or known.since
    return _is_long_ago(max(began_at, reading.asked_at) if reading is not None else began_at, ctx)


def _is_given_up(entry: Entry, pod: Pod, known: PartitionMemory, ctx: Round) -> bool:
    if pod.server_annotation and pod.server_annotation not in ctx.servers:
        # The server in the annotation may be an old name of the entry's server, so the entry is kept.
        return False
    if known.refused:
        is_refused_often = known.backoff is not None and known.backoff.failures >= MAX_TRIES
        return pod.gated or pod.uid in ctx.memory.refusals or is_refused_often
    # A create that fails for other reasons is given up after `stuck_seconds`, but only for a pod with its gate.
    is_in_vain = known.backoff is not None and _is_long_ago(known.since, ctx)
    return pod.gated and is_in_vain and ctx.change_of(entry) is None


def _is_long_ago(moment: datetime, ctx: Round) -> bool:
    return (ctx.now - moment).total_seconds() >= ctx.settings.stuck_seconds


def known_of(entry: Entry, ctx: Round) -> PartitionMemory:
    """Return the memory of an entry; empty if the entry is new or has another server, allocation or recording time."""
    mark = f"{entry.server} {entry.allocation} {entry.recorded_at.isoformat()}"
    known = ctx.memory.partitions.get(entry.id)
    return known if known is not None and known.mark == mark else PartitionMemory(mark=mark, since=ctx.now)


def _phase_of(entry: Entry, partition: Partition, known: PartitionMemory, ctx: Round) -> Phase:
    if partition.size != entry.size or partition.state is PartitionState.ERROR:
        return Phase.BROKEN
    if partition.state is PartitionState.ACTIVE:
        return Phase.ACTIVE
    began_at = max(known.changed_at or known.since, known.active_at or known.since)
    return Phase.BROKEN if _is_long_ago(began_at, ctx) else Phase.CREATING
