"""Every metric of the provisioner: a definition, and the method that sets it.

Labels are bounded: kinds, phases, methods, reasons, never names of workloads or pools; of namespaces the first hundred
(see `provisioner.slices.usage`) and those that limits name. Callers speak of what happened; that it becomes a counter
or a gauge is known here only. docs/metrics.md is made from the texts here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provisioner.model.capacity import FailureKind
from provisioner.runtime.metrics import LoopMetrics, Registry
from provisioner.slices.planning.plan import DeleteReason, LimitUse
from provisioner.slices.startups import Stage
from provisioner.slices.usage import Account

PREFIX = "tpu_provisioner_"
#: States of chips, from asked for to going away.
CHIP_STATES = ("wanted", "provisioning", "ready", "in_use", "idle", "deleting")
#: The phases that slices are timed to.
TIMED_PHASES = ("provisioning", "ready", "in_use")

_CALL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
#: From a pool that is there already to the hours that a stockout takes.
_STARTUP_BUCKETS = (15, 30, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700, 3600, 7200, 14400, 28800)
#: A pool that failed without a word from GKE: given up because its nodes do not get ready.
NOT_READY = "not_ready"
_USAGE_LABELS = ("workload_namespace", "accelerator", "capacity", "use")
#: From a simulator's tenth of a second to the two hours that scarce capacity takes.
_PHASE_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 180, 300, 450, 600, 900, 1800, 2700, 3600, 5400, 7200)


class Metrics(LoopMetrics):
    """The metrics of one process; setters may be called from any thread."""

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
            "Calls to GKE, by method and HTTP status; `none`: there was no answer, or none with a status.",
            "method",
            "code",
        )
        self._operations = registry.gauge(
            "gke_operations_in_flight",
            "Node pool operations in progress in the cluster, as far as node pools and accepted calls show them.",
        )
        self._operations_limit = registry.gauge(
            "gke_operations_limit",
            "How many operations of ours ran when GKE last rejected one; 0 a minute after the last rejection.",
        )

        self._list_age = registry.gauge(
            "pool_list_age_seconds", "How old the list of node pools is that the last decision was made on."
        )

        self._slices = registry.picture("slices", "Slices that workloads request, by phase.", "phase")
        self._node_pools = registry.picture("node_pools", "Node pools of the provisioner, by phase.", "phase")
        self._chips = registry.picture("chips", "TPU chips, by state.", "state")
        self._chips.replace(dict.fromkeys(CHIP_STATES, 0))

        self._creates = registry.counter("creates", "Node pool creates that were submitted, by result.", "result")
        self._deletes = registry.counter(
            "deletes", "Node pool deletes that were submitted, by reason and result.", "reason", "result"
        )
        self._deletes_blocked = registry.gauge(
            "deletes_blocked", "Node pools that should be deleted and are not, because unfinished pods are on them."
        )
        self._phase_seconds = registry.histogram(
            "time_to_phase_seconds",
            "Time from a slice being wanted to its pool being provisioned, ready, and in use.",
            _PHASE_BUCKETS,
            "phase",
        )
        self._startup_seconds = registry.histogram(
            "slice_startup_seconds",
            "Time from a slice's leader pod being unschedulable to its node pool being listed by GKE (created), to all "
            "nodes being ready (ready), and to the leader pod being bound (running).",
            _STARTUP_BUCKETS,
            "stage",
        )
        self._longest_wait = registry.gauge(
            "longest_wait_seconds", "For how long the longest waiting leader pod of a slice has been unschedulable."
        )
        self._pool_failures = registry.counter(
            "node_pool_failures",
            f"Node pools that failed after GKE had accepted their create, by kind of failure; {NOT_READY}: nodes did "
            "not become ready in time.",
            "kind",
        )
        self._overdue = registry.gauge(
            "unneeded_overdue_seconds",
            "For how long a node pool that nothing needs has been there beyond NODEPOOL_DELETION_DELAY; the longest.",
        )
        self._notices = registry.picture(
            "notices", "What slices are told by Events now, by the Event's reason.", "reason"
        )
        self._alerts = registry.picture("alerts", "Alerts that the administrator must look at, by kind.", "kind")
        self._backoff = registry.picture(
            "backoff_active",
            "Kinds of capacity whose last attempt failed, until an hour after the next attempt is allowed.",
            "kind",
        )
        self._backoff_blocking = registry.picture(
            "backoff_blocking", "Kinds of capacity, and slices, for which no create is allowed right now.", "kind"
        )
        self._backoff_oldest = registry.picture(
            "backoff_oldest_seconds",
            "Since when creates of a kind of capacity, or of a slice, have failed without a success; the longest.",
            "kind",
        )

        self._limit = registry.picture("limit", "The limits that are set, by setting and scope.", "limit", "scope")
        self._limit_used = registry.picture(
            "limit_used",
            "How much of each limit is used; scope `*`: by the one that uses most of those that are not named.",
            "limit",
            "scope",
        )
        self._limit_waiting = registry.picture(
            "limit_waiting_slices", "Slices that get no node pool because of a limit, by limit.", "limit"
        )

        self._chip_seconds = registry.counter(
            "chip_seconds", "Chips of nodes that exist, times the seconds that they have existed.", *_USAGE_LABELS
        )
        self._cost = registry.counter(
            "cost",
            "What those chip-seconds cost, in the currency of CHIP_HOUR_PRICES, by the prices of their time.",
            *_USAGE_LABELS,
        )
        self._cost_per_hour = registry.picture(
            "cost_per_hour",
            "What the chips that are there cost an hour, in the currency of CHIP_HOUR_PRICES.",
            *_USAGE_LABELS,
        )
        self._unpriced = registry.gauge("unpriced_chips", "Chips for which CHIP_HOUR_PRICES has no price.")

        self._proven = registry.gauge(
            "cluster_proven", "1 when kubeconfig and GKE settings are proven to be of one cluster."
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Export at 0 what is rare: Prometheus' `increase` and `rate` miss what a series begins with."""
        for result in ("ok", *(kind.value for kind in FailureKind)):
            self._creates.labels(result)
        for reason in DeleteReason:
            self._deletes.labels(reason.value, "ok")
        for phase in TIMED_PHASES:
            self._phase_seconds.labels(phase)
        for stage in Stage:
            self._startup_seconds.labels(stage.value)
        for kind in (*(each.value for each in FailureKind), NOT_READY):
            self._pool_failures.labels(kind)

    # --- GKE ---

    def observe_gke_call(self, method: str, *, seconds: float, error_kind: str | None, code: str = "200") -> None:
        """Take note of one call to GKE; the kind is None when it succeeded, the code is HTTP's, or "none"."""
        self._gke_seconds.labels(method).observe(seconds)
        self._gke_requests.labels(method, code).inc()
        if error_kind is not None:
            self._gke_errors.labels(method, error_kind).inc()

    # --- The loop ---

    def set_pool_list_age(self, *, seconds: float) -> None:
        """Set how old the list of pools is that was decided on."""
        self._list_age.set(seconds)

    def set_operations(self, in_flight: int, *, limit: int | None) -> None:
        """Set how many operations are in progress, and how many GKE takes; None: not known."""
        self._operations.set(in_flight)
        self._operations_limit.set(limit or 0)

    # --- What there is: each call replaces the whole picture ---

    def set_slices(self, by_phase: Mapping[str, int]) -> None:
        """Set the number of slices in each phase; phases that are not named become 0."""
        self._slices.replace(by_phase)

    def set_node_pools(self, by_phase: Mapping[str, int]) -> None:
        """Set the number of pools in each phase; phases that are not named become 0."""
        self._node_pools.replace(by_phase)

    def set_chips(self, by_state: Mapping[str, int]) -> None:
        """Set the number of chips in each of `CHIP_STATES`; states that are not named become 0."""
        unknown = set(by_state) - set(CHIP_STATES)
        if unknown:
            raise ValueError(f"chip states {sorted(unknown)}: known are {', '.join(CHIP_STATES)}")
        self._chips.replace(by_state)

    def set_deletes_blocked(self, pools: int) -> None:
        """Set how many deletes are blocked by unfinished pods."""
        self._deletes_blocked.set(pools)

    def set_alerts(self, by_kind: Mapping[str, int]) -> None:
        """Set how many alerts of each kind there are; kinds that are not named become 0."""
        self._alerts.replace(by_kind)

    def set_backoff(self, by_kind: Mapping[str, int]) -> None:
        """Set how many kinds of capacity are backed off from, by kind of failure."""
        self._backoff.replace(by_kind)

    def set_waiting_creates(self, *, blocking: Mapping[str, int], oldest_seconds: Mapping[str, float]) -> None:
        """Set, by kind of failure, how many back-offs forbid a create now, and how long the oldest has lasted."""
        self._backoff_blocking.replace(blocking)
        self._backoff_oldest.replace(oldest_seconds)

    def set_longest_wait(self, *, seconds: float) -> None:
        """Set for how long the longest waiting leader pod has been unschedulable."""
        self._longest_wait.set(seconds)

    def set_unneeded_overdue(self, *, seconds: float) -> None:
        """Set how long after its time the most overdue pool is still there."""
        self._overdue.set(seconds)

    def set_notices(self, by_reason: Mapping[str, int]) -> None:
        """Set how many notices of each reason stand; reasons that are not named become 0."""
        self._notices.replace(by_reason)

    def set_limits(self, uses: Iterable[LimitUse], *, waiting: Mapping[str, int]) -> None:
        """Set the limits and their use, and how many slices wait because of each."""
        uses = tuple(uses)
        self._limit.replace({(each.limit, each.scope): each.most for each in uses})
        self._limit_used.replace({(each.limit, each.scope): each.used for each in uses})
        self._limit_waiting.replace({each.limit: 0 for each in uses} | dict(waiting))

    def set_cost_per_hour(self, costs: Mapping[Account, float], *, unpriced_chips: int) -> None:
        """Set what the chips that are there cost an hour, and for how many no price is known."""
        self._cost_per_hour.replace(costs)
        self._unpriced.set(unpriced_chips)

    # --- What happened ---

    def observe_startup(self, stage: Stage, *, seconds: float) -> None:
        """Take note of how long after its leader pod was unschedulable a slice reached a stage."""
        self._startup_seconds.labels(stage.value).observe(seconds)

    def count_usage(self, account: Account, *, chip_seconds: float, cost: float | None) -> None:
        """Count the time of chips, and what it cost where there are prices."""
        self._chip_seconds.labels(*account).inc(chip_seconds)
        if cost is not None:
            self._cost.labels(*account).inc(cost)

    def count_pool_failure(self, kind: str) -> None:
        """Count a pool that failed after its create was taken; the kind is one of failure, or `NOT_READY`."""
        self._pool_failures.labels(kind).inc()

    def count_create(self, result: str) -> None:
        """Count a create that was submitted; the result is "ok" or a kind of failure."""
        self._creates.labels(result).inc()

    def count_delete(self, reason: str, *, result: str) -> None:
        """Count a delete that was submitted; the result is "ok" or a kind of failure."""
        self._deletes.labels(reason, result).inc()

    def observe_time_to_phase(self, phase: str, *, seconds: float) -> None:
        """Take note of how long a slice took from wanted to a phase (provisioning, ready, in_use)."""
        self._phase_seconds.labels(phase).observe(seconds)

    # --- The process ---

    def set_cluster_proven(self, *, proven: bool) -> None:
        """Set whether the two clients are proven to be of one cluster."""
        self._proven.set(proven)
