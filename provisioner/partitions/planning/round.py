"""What one decision goes by, put together once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.model import waits
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import RemovePartition
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.planning.memory import Memory
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
        return pod.deletion_deadline is None or self.now < self.lets_go_at(pod.deletion_deadline)

    def lets_go_at(self, deletion_deadline: datetime) -> datetime:
        """Return when a pod that is being deleted loses its partition, whatever it does."""
        return waits.after(deletion_deadline, self.settings.past_grace_seconds)


def begin_round(snapshot: Snapshot, ledger: Ledger, memory: Memory, settings: PlanningSettings, now: datetime) -> Round:
    """Sort what there is."""
    views = [_dated(view, now) for view in snapshot.servers]
    return Round(
        snapshot=snapshot,
        settings=settings,
        now=now,
        memory=memory,
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


def _dated(view: ServerView, now: datetime) -> ServerView:
    """Leave out a reading that is yet to be asked for: the clock was set, and what it is older than nobody knows."""
    return replace(view, reading=None) if view.reading is not None and view.reading.asked_at > now else view
