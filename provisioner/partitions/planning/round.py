"""Input of one decision: snapshot, settings and memory, indexed once."""

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
from provisioner.partitions.vipu.records import Partition, Reading
from provisioner.settings.partitions import PartitionSettings, Server

_T = TypeVar("_T")
_MAX_FAULTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """A V-IPU server, its last reading, and the failure of the last read."""

    server: Server
    #: Last successful reading; None if there was none, or if it was dropped (`_dated`).
    reading: Reading | None = None
    #: Failure of the last read; None if it succeeded, or none was tried.
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of Kubernetes and of the V-IPU servers, as last read."""

    cluster_uid: str
    pods: tuple[Pod, ...] = ()
    #: Ledger as last read or written. While it is unknown (None), nothing is decided.
    ledger: Ledger | None = None
    servers: tuple[ServerView, ...] = ()
    #: Keys of submitted calls and writes whose outcomes have not been processed.
    live: frozenset[str] = frozenset()
    #: Reasons why no decision is possible, such as a cache that is not synced; otherwise empty.
    not_synced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A part of a decision that raised an exception because of a bug. The remaining parts still run."""

    #: Name of the part, such as "pod UID" or "supply".
    subject: str
    error: str


class Guard:
    """Runs parts of a decision, and records up to _MAX_FAULTS of their exceptions."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def run(self, subject: str, part: Callable[[], _T], instead: _T) -> _T:
        """Return the result of a part, or `instead` if the part raises an exception."""
        try:
            return part()
        except Exception as error:  # noqa: BLE001 - a bug in one part must not stop the others
            if len(self.faults) < _MAX_FAULTS:
                self.faults.append(Fault(subject=subject, error=bounds.cut(repr(error), bounds.CONDITION_MESSAGE)))
            return instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Input of one decision."""

    snapshot: Snapshot
    settings: PartitionSettings
    now: datetime
    memory: Memory
    ledger: Ledger
    #: Pods by UID.
    pods: Mapping[str, Pod]
    #: Entries by id.
    entries: Mapping[str, Entry]
    #: Servers by HOST:PORT.
    servers: Mapping[str, ServerView]
    #: Partitions of the last readings, by HOST:PORT and id.
    listed: Mapping[str, Mapping[str, Partition]]

    def reading(self, server: str) -> Reading | None:
        """Return the last reading of a server; None without a reading, or if the last read failed."""
        view = self.servers.get(server)
        return view.reading if view is not None and view.failure is None else None

    def change_of(self, entry: Entry) -> Call | None:
        """Return the open create or remove of an entry's partition; None if no such call is open."""
        under_way = self.memory.calls.get(partition_key(entry.server, entry.id))
        return under_way.call if under_way is not None else None

    def uses_other_server(self, pod: Pod, server: str) -> bool:
        """Return whether a pod's annotation names another server of the settings. Other names may be aliases."""
        return pod.server_annotation != server and pod.server_annotation in self.servers

    def wants(self, pod: Pod) -> bool:
        """Return whether a pod may have a partition: not if it is finished or released, or had its grace period."""
        return not (pod.finished or pod.released or self.has_had_its_grace(pod))

    def may_use(self, pod: Pod, partition_id: str) -> bool:
        """Return whether a pod may have this partition. A pod with a partition in its annotation may have no other."""
        return self.wants(pod) and pod.partition_annotation in ("", partition_id)

    def has_had_its_grace(self, pod: Pod) -> bool:
        """Return whether a pod that is being deleted loses its partition now, even if the pod still runs."""
        lets_go_at = self.lets_go_at(pod)
        return lets_go_at is not None and self.now >= lets_go_at

    def past_deletion(self, pod: Pod | None) -> datetime | None:
        """Return the deletionTimestamp of a pod that is being deleted and loses its partition now; otherwise None."""
        return pod.deletion_deadline if pod is not None and self.has_had_its_grace(pod) else None

    def lets_go_at(self, pod: Pod) -> datetime | None:
        """Return the time at which a pod that is being deleted loses its partition; None if it is not being deleted."""
        since = self.memory.ending.get(_deletion_of(pod))
        if since is None or pod.deletion_deadline is None:
            return None
        return waits.after(since, pod.deletion_grace_seconds + self.settings.past_grace_seconds)


def begin_round(
    snapshot: Snapshot, ledger: Ledger, memory: Memory, settings: PartitionSettings, now: datetime
) -> Round:
    """Return the indexed input of a decision."""
    views = [_dated(view, now) for view in snapshot.servers]
    deletions = [_deletion_of(pod) for pod in snapshot.pods if pod.deletion_deadline is not None]
    return Round(
        snapshot=snapshot,
        settings=settings,
        now=now,
        memory=replace(memory, ending={deletion: memory.ending.get(deletion, now) for deletion in deletions}),
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
    """Drop the reading if its time is in the future: the clock was set back, so the age of the reading is unknown."""
    return replace(view, reading=None) if view.reading is not None and view.reading.asked_at > now else view
