"""Everything that one decision sees."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import Failure
from provisioner.partitions.demand import Pod, Server
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.vipu.records import Allocation, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a V-IPU server has. A change that was answered after `asked_at` may or may not be in it."""

    asked_at: datetime
    at: datetime
    allocations: tuple[Allocation, ...]
    partitions: tuple[Partition, ...]


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
