"""How far each entry of the ledger is, by what pods and servers show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import PartitionMemory, Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.vipu.protocol import Partition, PartitionState


class Phase(Enum):
    """How far a partition is; the words are those that people are shown (`PartitionLine.phase`)."""

    #: It is not there, and is to be made.
    WANTED = "wanted"
    #: It is being created, or a reading has yet to show what there is.
    CREATING = "creating"
    ACTIVE = "active"
    #: It says that it failed, is another one than was asked for, or takes too long.
    BROKEN = "broken"
    #: Its pod, which was told nothing of it, may not be scheduled to the nodes of its server any more.
    MISPLACED = "misplaced"
    #: Its pod was told of it, and it is not there any more.
    LOST = "lost"
    #: Its server had no place for it, or fails for long, and it is not there: its pod waits again.
    WITHDRAWN = "withdrawn"
    #: Nobody needs it any more.
    RELEASING = "releasing"
    #: Nobody needs it any more, and it is not there.
    GONE = "gone"


#: Entries of these take no IPUs, and leave the ledger.
OVER = frozenset({Phase.WITHDRAWN, Phase.GONE})
_USELESS = frozenset({Phase.BROKEN, Phase.MISPLACED})
#: Creates that have failed so often may fail for ever, and hold up nobody.
MOST_TRIES = 3
#: The same of removes. One that succeeds counts, too, until a reading shows it: these take about half a minute.
MOST_REMOVES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One entry."""

    entry: Entry
    pod: Pod | None
    phase: Phase
    known: PartitionMemory
    #: As its server lists it; None: it does not, or cannot be read.
    partition: Partition | None = None
    #: Its server can be read: what the phase says may be acted on.
    certain: bool = True
    #: A reading that is asked for from now on tells more.
    reads: bool = False
    #: Something was changed here since the reading was asked for.
    outdated: bool = False

    @property
    def site(self) -> Site:
        """Where it is, as far as that is known."""
        listed = self.partition.allocation if self.partition is not None else ""
        return self.entry.server, listed or self.entry.allocation

    @property
    def ipus(self) -> int:
        """The IPUs that it takes or is about to take."""
        return max(self.entry.size, self.partition.size if self.partition is not None else 0)

    @property
    def stays(self) -> bool:
        """Whether nobody needs it, and it cannot be removed."""
        return self.phase is Phase.RELEASING and cannot_be_removed(self.known)


def standing_of(entry: Entry, round_: Round) -> Standing:
    """Say how far an entry is."""
    known = known_of(entry, round_)
    pod = round_.pods.get(entry.pod_uid)
    wanted = pod is not None and round_.may_use(pod, entry.id)
    reading = round_.reading(entry.server)
    if reading is None:
        phase = _phase_unread(entry, pod if wanted else None, known, round_)
        return Standing(entry=entry, pod=pod, phase=phase, known=known, certain=False)
    partition = round_.listed[entry.server].get(entry.id)
    # Nothing was changed after this was asked for.
    shows_changes = known.changed_at is None or reading.asked_at >= known.changed_at
    shows_all = shows_changes and reading.asked_at >= known.since
    reads = False
    if pod is None or not wanted:
        gone = partition is None and shows_all and round_.change_of(entry) is None
        phase = Phase.GONE if gone else Phase.RELEASING
        reads = not shows_all
    elif not shows_changes:
        phase, reads = Phase.CREATING, True
    elif _is_misplaced(entry, pod):
        there = partition is not None or round_.change_of(entry) is not None
        phase = Phase.MISPLACED if there else Phase.WITHDRAWN
    elif partition is not None:
        phase = _phase_of(entry, partition, known, round_)
    elif _is_given_up(entry, pod, known, round_):
        phase = Phase.WITHDRAWN
    elif pod.told_server and not round_.told_elsewhere(pod, entry.server):
        phase = Phase.LOST if shows_all else Phase.CREATING
        reads = not shows_all
    else:
        phase = Phase.WANTED
    if phase in _USELESS and pod is not None and pod.gated and cannot_be_removed(known):
        # Its pod waits for another one, of another server.
        phase = Phase.RELEASING
    outdated = not shows_changes
    return Standing(entry=entry, pod=pod, phase=phase, known=known, partition=partition, reads=reads, outdated=outdated)


def cannot_be_removed(known: PartitionMemory) -> bool:
    """Whether removes of it have failed so often that this may go on for ever."""
    return known.removing is not None and known.removing.failures >= MOST_REMOVES and not known.kept


def _is_misplaced(entry: Entry, pod: Pod) -> bool:
    """Whether a pod that has its gate may not use the nodes of its server: selectors can be added to it until then."""
    return pod.gated and pod.servers is not None and entry.server not in pod.servers


def _phase_unread(entry: Entry, wanted: Pod | None, known: PartitionMemory, round_: Round) -> Phase:
    """Say how far an entry is whose server cannot be read; `wanted` is its pod, where that needs it."""
    if entry.server not in round_.servers:
        # No setting names it any more; a pod that was told of it has it there, for all anybody knows.
        return Phase.GONE if wanted is None else Phase.WITHDRAWN if wanted.gated else Phase.CREATING
    if wanted is None:
        return Phase.RELEASING
    return Phase.WITHDRAWN if wanted.gated and _is_away(entry, known, round_) else Phase.CREATING


def _is_away(entry: Entry, known: PartitionMemory, round_: Round) -> bool:
    reading, began_at = round_.servers[entry.server].reading, known.changed_at or known.since
    return _is_long_ago(max(began_at, reading.asked_at) if reading is not None else began_at, round_)


def _is_given_up(entry: Entry, pod: Pod, known: PartitionMemory, round_: Round) -> bool:
    """Whether a pod waits for another place; told of this one, on the same server, after some tries."""
    if pod.told_server and pod.told_server not in round_.servers:
        # Which server that is nobody knows.
        return False
    if known.refused:
        is_refused_often = known.backoff is not None and known.backoff.failures >= MOST_TRIES
        return pod.gated or pod.uid in round_.memory.refusals or is_refused_often
    # Creates of it have failed for long.
    is_in_vain = known.backoff is not None and _is_long_ago(known.since, round_)
    return pod.gated and is_in_vain and round_.change_of(entry) is None


def _is_long_ago(moment: datetime, round_: Round) -> bool:
    return (round_.now - moment).total_seconds() >= round_.settings.stuck_seconds


def known_of(entry: Entry, round_: Round) -> PartitionMemory:
    """Return what is remembered of an entry; nothing yet of one that was moved or recorded again."""
    mark = f"{entry.server} {entry.allocation} {entry.recorded_at.isoformat()}"
    known = round_.memory.partitions.get(entry.id)
    return known if known is not None and known.mark == mark else PartitionMemory(mark=mark, since=round_.now)


def _phase_of(entry: Entry, partition: Partition, known: PartitionMemory, round_: Round) -> Phase:
    if partition.size != entry.size or partition.state is PartitionState.ERROR:
        return Phase.BROKEN
    if partition.state is PartitionState.ACTIVE:
        return Phase.ACTIVE
    began_at = max(known.changed_at or known.since, known.active_at or known.since)
    return Phase.BROKEN if _is_long_ago(began_at, round_) else Phase.CREATING
