"""What one decision goes by, put together once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.model import waits
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import RemovePartition
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.planning.memory import Ending, Memory
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.snapshot import Reading, ServerView, Snapshot
from provisioner.partitions.vipu.records import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round."""

    snapshot: Snapshot
    settings: PlanningSettings
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

    def is_being_changed(self, entry: Entry) -> bool:
        """Whether a create or a remove of a partition is under way."""
        return RemovePartition(server=entry.server, id=entry.id, pod=None).key in self.memory.calls

    def told_elsewhere(self, pod: Pod, server: str) -> bool:
        """Whether a pod was told another server than this one; a name that no setting has may be an old one of it."""
        return pod.told_server != server and pod.told_server in self.servers

    def wants(self, pod: Pod) -> bool:
        """Whether a pod needs a partition, or may still use the one that it has."""
        if pod.finished or pod.released:
            return False
        return not self.has_had_its_grace(pod)

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
        ending = self.memory.ending.get(pod.uid)
        if ending is None or pod.deletion_deadline is None:
            return None
        return waits.after(ending.since, pod.deletion_grace_seconds + self.settings.past_grace_seconds)


def begin_round(snapshot: Snapshot, ledger: Ledger, memory: Memory, settings: PlanningSettings, now: datetime) -> Round:
    """Sort what there is."""
    views = [_dated(view, now) for view in snapshot.servers]
    return Round(
        snapshot=snapshot,
        settings=settings,
        now=now,
        memory=replace(memory, ending=_ending(snapshot.pods, memory.ending, now)),
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


def _ending(pods: Iterable[Pod], known: Mapping[str, Ending], now: datetime) -> dict[str, Ending]:
    found = {}
    for pod in pods:
        if pod.deletion_deadline is not None:
            mark, before = pod.deletion_deadline.isoformat(), known.get(pod.uid)
            found[pod.uid] = before if before is not None and before.mark == mark else Ending(mark=mark, since=now)
    return found


def _dated(view: ServerView, now: datetime) -> ServerView:
    """Leave out a reading that is yet to be asked for: the clock was set, and what it is older than nobody knows."""
    return replace(view, reading=None) if view.reading is not None and view.reading.asked_at > now else view
