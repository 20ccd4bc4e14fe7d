"""Metrics of the controller of node groups, with bounded labels. docs/metrics.md is generated from the texts."""

from __future__ import annotations

from provisioner.google.errors import status_label
from provisioner.model.capacity import FailureKind
from provisioner.model.writes import WriteFailure
from provisioner.runtime.metrics import LoopMetrics, Registry

PREFIX = "tpu_provisioner_nodegroups_"
#: States of nodes, as in `status.nodeSummary`.
NODE_STATES = ("ready", "reconciling", "failed")
#: Label of a group whose Ready is missing, or has a reason that this controller does not set.
UNKNOWN = "Unknown"
DONE = "ok"
WRITE_RESULTS = (DONE, *(failure.value for failure in WriteFailure))
_CALL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)


class Metrics(LoopMetrics):
    """Metrics of one process. Thread-safe."""

    def __init__(self, *, version: str) -> None:
        registry = Registry(PREFIX, version=version)
        super().__init__(registry)
        self.groups = registry.picture("groups", "TPUNodeGroups, by the reason of their condition Ready.", "reason")
        self.nodes = registry.picture("nodes", "Nodes of all TPUNodeGroups, by state.", "state")
        self.nodes.replace(dict.fromkeys(NODE_STATES, 0))
        self.wanted = registry.gauge("nodes_wanted", "Nodes that all TPUNodeGroups should have.")
        self._seconds = registry.histogram(
            "compute_request_duration_seconds", "Duration of calls to Compute Engine.", _CALL_BUCKETS, "method"
        )
        self._errors = registry.counter(
            "compute_request_errors", "Calls to Compute Engine that failed, by kind of failure.", "method", "kind"
        )
        self._requests = registry.counter(
            "compute_requests", "Calls to Compute Engine, by method and HTTP status.", "method", "code"
        )
        self.kept = registry.counter(
            "deletes_kept", "Deletes of managed instance groups that were not sent because of running pods."
        )
        self.crashed = registry.counter(
            "decisions_crashed", "Decisions that failed because of a mistake in the controller."
        )
        self.writes = registry.counter(
            "writes", "Writes to Kubernetes, by what is written and result.", "write", "result"
        )
        self.open = registry.picture("open", "Calls and writes that are not answered yet.", "sort")
        self.failing = registry.picture(
            "failing", "Resources whose last read, create or delete failed, by kind of failure.", "kind"
        )
        self.strays = registry.gauge(
            "orphans",
            "Managed instance groups with a mark of this cluster and no object, at the last hourly list.",
        )
        self.cluster_known = registry.gauge(
            "cluster_known", "1 when all that machines need to join the cluster is known."
        )

    def observe_call(self, method: str, *, seconds: float, failure: FailureKind | None, code: int) -> None:
        """Count a call to Compute Engine. `code` is the HTTP status, 0 without a response."""
        self._seconds.labels(method).observe(seconds)
        self._requests.labels(method, status_label(code)).inc()
        if failure is not None:
            self._errors.labels(method, failure.value).inc()
