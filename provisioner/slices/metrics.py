"""Every metric of the provisioner.

Labels are bounded: kinds, phases, methods, reasons, never names of workloads or pools; of namespaces the first hundred
(see `meter.account_of`) and those that limits name. docs/metrics.md is made from the texts here.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from provisioner.model.capacity import FailureKind
from provisioner.runtime.metrics import LoopMetrics, Registry
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import DeleteReason

PREFIX = "tpu_provisioner_"
#: The chips of a pool count as this state.
CHIP_STATES = {
    Phase.WANTED: "wanted",
    Phase.BLOCKED: "wanted",
    Phase.CREATING: "provisioning",
    Phase.PROVISIONING: "provisioning",
    Phase.READY: "ready",
    Phase.IN_USE: "in_use",
    Phase.IDLE: "idle",
    Phase.DELETING: "deleting",
    Phase.FAILED: "idle",
}
#: The phases that slices are timed to.
TIMED_PHASES = (Phase.PROVISIONING, Phase.READY, Phase.IN_USE)

_CALL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
#: From a pool that is there already to the hours that a stockout takes.
_STARTUP_BUCKETS = (15, 30, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700, 3600, 7200, 14400, 28800)
#: A pool that failed without a word from GKE: given up because its nodes do not get ready.
NOT_READY = "not_ready"
_USAGE_LABELS = ("workload_namespace", "accelerator", "capacity", "use")
#: From a simulator's tenth of a second to the two hours that scarce capacity takes.
_PHASE_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 180, 300, 450, 600, 900, 1800, 2700, 3600, 5400, 7200)
#: The namespace of all that come later. No namespace has this name, since none may contain "_".
OTHERS = "_other"


class Use(Enum):
    """What a chip is doing."""

    #: A slice counts on its pool, and no pod of the slice is bound there (yet, or between two restarts).
    STARTING = "starting"
    #: Unfinished pods are bound to its pool.
    RUNNING = "running"
    #: Nothing needs its pool, or the pool has failed.
    IDLE = "idle"
    #: Its pool is being deleted.
    DRAINING = "draining"


# The values of enumerations, not these themselves: it is a key that is looked up for each pool and round.
class Account(NamedTuple):
    """What chips are counted by, as the labels of a metric have it."""

    namespace: str
    accelerator: str
    #: Of `CapacityKind`.
    capacity: str
    #: Of `Use`.
    use: str


class Stage(Enum):
    """How far a slice has come."""

    #: GKE lists its pool.
    CREATED = "created"
    #: All nodes of the pool are ready, with their chips.
    READY = "ready"
    #: The leader pod is bound.
    RUNNING = "running"


class Metrics(LoopMetrics):
    """The metrics of one process; any thread may change them."""

    def __init__(self, *, version: str) -> None:
        registry = Registry(PREFIX, version=version)
        super().__init__(registry)
        self._gke_seconds = registry.histogram(
            "gke_request_duration_seconds", "Duration of calls to GKE.", _CALL_BUCKETS, "method"
        )
        self._gke_errors = registry.counter(
            "gke_request_errors", "Calls to GKE that failed, by kind of failure.", "method", "kind"
        )
        self._gke_requests = registry.counter(
            "gke_requests",
            "Calls to GKE, by method and HTTP status.",
            "method",
            "code",
        )
        self.operations = registry.gauge(
            "gke_operations_in_flight",
            "Node pool operations in progress in the cluster, as far as known.",
        )
        self.operations_limit = registry.gauge(
            "gke_operations_limit",
            "Own operations that ran when GKE last rejected one; 0 a minute after that.",
        )

        self.list_age = registry.gauge("pool_list_age_seconds", "Age of the list of node pools at the last decision.")

        text = (
            "Slices that workloads request, by phase. States of the status page: wanted and blocked are waiting, "
            "provisioning is joining, in_use is running or draining."
        )
        self.slices = registry.picture("slices", text, "phase")
        text = "Node pools of the provisioner, by phase, as for slices."
        self.node_pools = registry.picture("node_pools", text, "phase")
        text = (
            "TPU chips, by state. On the status page wanted is waiting, provisioning is creating or joining, in_use is "
            "running or draining, idle is idle or failed."
        )
        self.chips = registry.picture("chips", text, "state")
        self.chips.replace(dict.fromkeys(CHIP_STATES.values(), 0))

        self.creates = registry.counter("creates", "Creates of node pools, by result.", "result")
        self.deletes = registry.counter("deletes", "Deletes of node pools, by reason and result.", "reason", "result")
        self.deletes_blocked = registry.gauge(
            "deletes_blocked", "Node pools that are not deleted because of unfinished pods."
        )
        self.phase_seconds = registry.histogram(
            "time_to_phase_seconds",
            "Time from the plan of a node pool to each phase.",
            _PHASE_BUCKETS,
            "phase",
        )
        self.startup_seconds = registry.histogram(
            "slice_startup_seconds",
            "Time from an unschedulable leader pod to a node pool that GKE lists (created), ready nodes (ready), and a "
            "bound leader pod (running).",
            _STARTUP_BUCKETS,
            "stage",
        )
        self.longest_wait = registry.gauge(
            "longest_wait_seconds", "How long the leader pod that waits longest has been unschedulable."
        )
        self.waiting_oldest = registry.picture(
            "waiting_oldest_seconds",
            "For how long the longest waiting leader pod of a slice has been unschedulable, by what its slice waits "
            "for: the kind of a failure, or a limit.",
            "cause",
        )
        self.pool_failures = registry.counter(
            "node_pool_failures",
            f"Node pools that failed after GKE accepted the create; {NOT_READY}: nodes were not ready in time.",
            "kind",
        )
        self.overdue = registry.gauge(
            "unneeded_overdue_seconds",
            "The longest time beyond NODEPOOL_DELETION_DELAY that an unneeded node pool has existed.",
        )
        self.notices = registry.picture("notices", "Events that slices have now, by reason.", "reason")
        self.alerts = registry.picture("alerts", "Alerts, by kind.", "kind")
        self.backoff = registry.picture(
            "backoff_active",
            "Kinds of capacity whose last attempt failed, until an hour after the next allowed attempt.",
            "kind",
        )
        self.backoff_blocking = registry.picture(
            "backoff_blocking", "Kinds of capacity, and slices, that have to wait now.", "kind"
        )
        self.backoff_oldest = registry.picture(
            "backoff_oldest_seconds",
            "The longest time that creates of one capacity or slice have failed without a success.",
            "kind",
        )

        self.limit = registry.picture("limit", "The limits that are set.", "limit", "scope")
        self.limit_used = registry.picture(
            "limit_used",
            "How much of each limit is used; scope `*`: by the one that uses most.",
            "limit",
            "scope",
        )
        self.limit_waiting = registry.picture("limit_waiting_slices", "Slices that wait because of a limit.", "limit")

        self._chip_seconds = registry.counter(
            "chip_seconds", "Chips of nodes, times the seconds that the nodes have existed.", *_USAGE_LABELS
        )
        self._cost = registry.counter(
            "cost",
            "Cost of those chip-seconds, by the CHIP_HOUR_PRICES of their time.",
            *_USAGE_LABELS,
        )
        self.cost_per_hour = registry.picture(
            "cost_per_hour",
            "Cost of the existing chips an hour.",
            *_USAGE_LABELS,
        )
        self.unpriced = registry.gauge("unpriced_chips", "Chips for which CHIP_HOUR_PRICES has no price.")

        self.proven = registry.gauge(
            "cluster_proven",
            "1 when kubeconfig and GCP_CLUSTER are proven to be one cluster; 0: nothing is created or deleted.",
        )
        # What is rare begins at 0: Prometheus' `increase` and `rate` miss what a series begins with.
        for result in ("ok", *(kind.value for kind in FailureKind)):
            self.creates.labels(result)
        for reason in DeleteReason:
            self.deletes.labels(reason.value, "ok")
        for phase in TIMED_PHASES:
            self.phase_seconds.labels(phase.value)
        for stage in Stage:
            self.startup_seconds.labels(stage.value)
        for kind in (*(each.value for each in FailureKind), NOT_READY):
            self.pool_failures.labels(kind)

    def observe_gke_call(self, method: str, *, seconds: float, error_kind: str | None, code: str = "200") -> None:
        """Measure one call to GKE; the kind is None when it succeeded, the code is HTTP's, or "none"."""
        self._gke_seconds.labels(method).observe(seconds)
        self._gke_requests.labels(method, code).inc()
        if error_kind is not None:
            self._gke_errors.labels(method, error_kind).inc()

    def count_usage(self, account: Account, *, chip_seconds: float, cost: float | None) -> None:
        """Count the time of chips, and its cost where there are prices."""
        self._chip_seconds.labels(*account).inc(chip_seconds)
        if cost is not None:
            self._cost.labels(*account).inc(cost)
