"""Everything that one decision sees of the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import Node, NodePool, PoolName
from provisioner.model.workloads import Pod, Workload, WorkloadKind, WorkloadUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The caches of Kubernetes and the last list of node pools."""

    workloads: Mapping[WorkloadUid, Workload] = field(default_factory=dict)
    #: Kinds that the API server does not show us: of their workloads nothing is known.
    unknown_kinds: frozenset[WorkloadKind] = frozenset()
    #: Of the workloads that pools were made for and that are not there: those that were seen to go.
    deleted_workloads: frozenset[WorkloadUid] = frozenset()
    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    #: All pools of the cluster, foreign ones too: their names are taken.
    pools: tuple[NodePool, ...] = ()
    #: When the request for that list was sent.
    pools_listed_at: datetime
    #: Pools whose create or delete is being sent, or has been answered and the answer not read.
    live_calls: frozenset[PoolName] = frozenset()
    #: Labels of namespaces; only where an opt-in label is set.
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Since when somebody has paused the creation of pools; None: nobody has.
    paused_since: datetime | None = None
    #: Why nothing may be decided on this snapshot (a cache not synced or stale, cluster unproven); empty: it may.
    not_synced: tuple[str, ...] = ()
