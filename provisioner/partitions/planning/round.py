"""What one decision goes by, put together once: the snapshot, the settings, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from provisioner.model import bounds, waits
from provisioner.model.capacity import Failure
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import Call, partition_key
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.planning.memory import Memory
from provisioner.partitions.vipu.protocol import Partition, Reading
from provisioner.settings.partitions import PartitionSettings, Server

_T = TypeVar("_T")
#: More faults of one round tell nothing new.
_MOST_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """A V-IPU server, and how it was last seen."""

    server: Server
    #: The last that succeeded; None: there was none yet.
    reading: Reading | None = None
    #: Of readings since then.
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Kubernetes as it was at one moment, and the servers as they were last read."""

    #: UID of the namespace kube-system.
    cluster_uid: str
    pods: tuple[Pod, ...] = ()
    #: None: it is not known, and nothing may be made or removed.
    ledger: Ledger | None = None
    servers: tuple[ServerView, ...] = ()
    #: Keys of calls and writes that are being sent, or have been answered and the answer not read (`key`).
    live: frozenset[str] = frozenset()
    #: Why nothing may be decided on this snapshot, such as a cache that is not synced; empty: it may.
    not_synced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that could not be decided about, because of a mistake in this program; nothing else was held up."""

    #: The pod, the entry or the server.
    subject: str
    error: str


class Guard:
    """Runs parts of a decision, and takes note of what they raise."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def run(self, subject: str, part: Callable[[], _T], instead: _T) -> _T:
        """Return what a part comes to, and `instead` where it raises."""
        try:
            return part()
        except Exception as error:  # noqa: BLE001 - whatever the mistake is, others must have their turn
            if len(self.faults) < _MOST_FAULTS:
                self.faults.append(Fault(subject=subject, error=bounds.cut(repr(error), bounds.CONDITION_MESSAGE)))
            return instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round."""

    snapshot: Snapshot
    settings: PartitionSettings
    now: datetime
    memory: Memory
    ledger: Ledger
    #: By UID.
    pods: Mapping[str, Pod]
    #: By id.
    entries: Mapping[str, Entry]
    #: By HOST:PORT.
    servers: Mapping[str, ServerView]
    #: By HOST:PORT and id: as last read.
    listed: Mapping[str, Mapping[str, Partition]]

    def reading(self, server: str) -> Reading | None:
        """Return the last reading of a server that can be read; None: nothing may be concluded about it."""
        view = self.servers.get(server)
        return view.reading if view is not None and view.failure is None else None

    def change_of(self, entry: Entry) -> Call | None:
        """Return the create or the remove of a partition that is under way; None: there is none."""
        under_way = self.memory.calls.get(partition_key(entry.server, entry.id))
        return under_way.call if under_way is not None else None

    def told_elsewhere(self, pod: Pod, server: str) -> bool:
        """Whether a pod was told another server than this one; a name that no setting has may be an old one of it."""
        return pod.told_server != server and pod.told_server in self.servers

    def wants(self, pod: Pod) -> bool:
        """Whether a pod needs a partition, or may still use the one that it has."""
        return not (pod.finished or pod.released or self.has_had_its_grace(pod))

    def may_use(self, pod: Pod, partition_id: str) -> bool:
        """Whether a pod needs this partition or may use it: one that was told of another does not."""
        return self.wants(pod) and pod.told_partition in ("", partition_id)

    def has_had_its_grace(self, pod: Pod) -> bool:
        """Whether a pod has been seen to be deleted for so long that it loses its partition, whatever it does."""
        lets_go_at = self.lets_go_at(pod)
        return lets_go_at is not None and self.now >= lets_go_at

    def past_deletion(self, pod: Pod | None) -> datetime | None:
        """Return the deletionTimestamp of a pod that has had its grace; None: it has not, or there is none."""
        return pod.deletion_deadline if pod is not None and self.has_had_its_grace(pod) else None

    def lets_go_at(self, pod: Pod) -> datetime | None:
        """Return when a pod that is being deleted loses its partition; None: it is not being deleted."""
        since = self.memory.ending.get(_deletion_of(pod))
        if since is None or pod.deletion_deadline is None:
            return None
        return waits.after(since, pod.deletion_grace_seconds + self.settings.past_grace_seconds)


def begin_round(
    snapshot: Snapshot, ledger: Ledger, memory: Memory, settings: PartitionSettings, now: datetime
) -> Round:
    """Sort what there is."""
    views = [_dated(view, now) for view in snapshot.servers]
    deletions = [_deletion_of(pod) for pod in snapshot.pods if pod.deletion_deadline is not None]
    return Round(
        snapshot=snapshot,
        settings=settings,
        now=now,
        memory=replace(memory, ending={each: memory.ending.get(each, now) for each in deletions}),
        ledger=ledger,
        pods={pod.uid: pod for pod in snapshot.pods},
        entries={entry.id: entry for entry in ledger.entries},
        servers={view.server.address: view for view in views},
        listed={
            view.server.address: {partition.id: partition for partition in view.reading.partitions}
            for view in views
            if view.reading is not None
        },
    )


def _deletion_of(pod: Pod) -> tuple[str, str]:
    return pod.uid, str(pod.deletion_deadline)


def _dated(view: ServerView, now: datetime) -> ServerView:
    """Leave out a reading that is yet to be asked for: the clock was set, and what it is older than nobody knows."""
    return replace(view, reading=None) if view.reading is not None and view.reading.asked_at > now else view
