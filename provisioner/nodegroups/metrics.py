"""Metrics of the controller of node groups. Labels have few values. docs/metrics.md is generated from the texts."""

from collections import Counter
from collections.abc import Iterator, Mapping

from provisioner.google.errors import status_label
from provisioner.nodegroups.api.statuses import ConditionType, Reason, condition_of
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.nodegroups.planning.memory import Memory
from provisioner.nodegroups.planning.round import Cluster, Snapshot
from provisioner.runtime.metrics import ActionMetrics, Registry, RequestMetrics, Shown

PREFIX = "tpu_provisioner_nodegroups_"
NODE_STATES = ("ready", "reconciling", "failed")
#: Label `reason` of a group without a condition Ready, or with a reason that this controller does not set.
UNKNOWN = "Unknown"
_REASONS = frozenset(Reason)
#: Meaning of labels, for docs/metrics.md.
LABELS = {
    "project": "a project of `ALLOWED_PROJECTS`",
    "reason": f"the reason of the condition Ready, `{UNKNOWN}` for none",
    "state": f"the state of a node: {', '.join(f'`{state}`' for state in NODE_STATES)}",
    "sort": "`call` to Compute Engine or `write` to Kubernetes",
}


class Metrics(ActionMetrics):
    """Metrics of one process. Thread-safe."""

    def __init__(self, *, version: str) -> None:
        registry = Registry(PREFIX, version=version)
        super().__init__(registry)
        self._compute = RequestMetrics(registry, "compute", "Compute Engine")
        self.kept = registry.counter(
            "deletes_kept", "Deletes of managed instance groups that were not sent because of running pods."
        )
        self.crashed = registry.counter(
            "decisions_crashed", "Decisions that failed because of a mistake in the controller."
        )
        self.strays = registry.gauge(
            "orphans",
            "Managed instance groups with a mark of this cluster and no object, in the last two lists.",
            "project",
        )
        self.show(values_of(Memory(), Snapshot(cluster=Cluster(uid="")), {}))

    def observe_call(self, method: str, *, seconds: float, error_kind: str | None, code: int) -> None:
        """Implement ActionMetrics.observe_call."""
        self._compute.observe(method, seconds=seconds, error_kind=error_kind, code=status_label(code))


def values_of(memory: Memory, snapshot: Snapshot, oldest: Mapping[str, float]) -> Iterator[Shown]:
    """Yield the gauges that each round sets; `oldest` are the values of `reason_oldest_seconds`, by reason."""
    reasons = Counter(reason_of(group) for group in snapshot.groups)
    yield Shown("groups", "TPUNodeGroups, by the reason of their condition Ready.", reasons, ("reason",))
    text = "The longest time that a TPUNodeGroup has had this reason."
    yield Shown("reason_oldest_seconds", text, oldest, ("reason",))
    nodes = Counter(dict.fromkeys(NODE_STATES, 0))
    for group in snapshot.groups:
        if (summary := group.status.node_summary) is not None:
            nodes.update(ready=summary.ready, reconciling=summary.reconciling, failed=summary.failed)
    yield Shown("nodes", "Nodes of all TPUNodeGroups, by state.", nodes, ("state",))
    wanted = sum(group.status.node_count or 0 for group in snapshot.groups if not group.meta.deleting)
    yield Shown("nodes_wanted", "Nodes that all TPUNodeGroups should have.", wanted)
    calls = {"call": len(memory.calls), "write": sum(write.answered_at is None for write in memory.writes.values())}
    yield Shown("open", "Calls and writes that are not answered yet.", calls, ("sort",))
    kinds = ({backoff.failure.kind.value for backoff in of.backoffs.values()} for of in memory.resources.values())
    failing = Counter(kind for of_resource in kinds for kind in of_resource)
    text = "Resources with a call that waits after failures, by kind of failure."
    yield Shown("failing", text, failing, ("kind",))
    cluster = snapshot.cluster
    known = all((cluster.uid, cluster.ca_hash, cluster.api_server, cluster.kubernetes_version))
    yield Shown("cluster_known", "1 when all that machines need to join the cluster is known.", known)


def reason_of(group: TpuNodeGroup) -> str:
    """Return the value of the label `reason` for a group."""
    condition = condition_of(group.status.conditions, ConditionType.READY)
    return condition.reason if condition is not None and condition.reason in _REASONS else UNKNOWN
