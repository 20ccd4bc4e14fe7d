"""Defines metrics of the controller of slices, and measures each round.

Labels never contain names of workloads or pools. They contain a namespace only if a limit names it, or if it is among
the first 100 that use chips (`account_of`). `make docs` copies the descriptions to docs/metrics.md.

Use and cost of a chip are counted while its node exists, so a pool that cannot be created costs nothing. A start-up
begins when the leader pod becomes unschedulable; the pod's condition keeps this time when the provisioner restarts.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily

from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, FailureKind, NodePool, PoolName
from provisioner.model.choices import capacity_key
from provisioner.runtime.metrics import LoopMetrics, Registry, RequestMetrics, Shown
from provisioner.settings import Settings
from provisioner.settings.forms import Prices
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.contention.waits import WaitKind
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import CallState, Memory, Phase
from provisioner.slices.planning.plan import DeleteReason, Plan, PoolState
from provisioner.slices.planning.round import OwnedPool, Snapshot
from provisioner.slices.view.types import State, state_of

PREFIX = "tpu_provisioner_"
#: Value of the label `state` of the metric `chips`, by phase of the pool.
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
#: Value of the labels `phase` and `state` for pools and slices in state `State.SPLIT`.
SPLIT = "split"
#: Phases for which `time_to_phase_seconds` is measured, in the order in which a pool enters them.
TIMED_PHASES = (Phase.PROVISIONING, Phase.READY, Phase.IN_USE)

#: Upper bounds in seconds of the histogram of start-ups: from a start on an existing pool to hours of a stockout.
_STARTUP_BUCKETS = (15, 30, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700, 3600, 7200, 14400, 28800)
#: Value of the label `kind` for pools whose nodes were not ready in time, although GKE reports no failure.
NOT_READY = "not_ready"
_USAGE_LABELS = ("workload_namespace", "accelerator", "capacity", "use")
#: Upper bounds in seconds of the histogram of phases: from 0.1 s with a simulator to two hours with scarce capacity.
_PHASE_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 180, 300, 450, 600, 900, 1800, 2700, 3600, 5400, 7200)
#: Label value for unknown namespaces, and for namespaces beyond the maxima. No namespace name contains "_".
OTHERS = "_other"


class Use(Enum):
    """Use of a chip."""

    #: A slice counts on the pool, and usually no pod is bound to it, such as before or between runs of the workload.
    STARTING = "starting"
    RUNNING = "running"
    #: Nothing needs the pool, or the pool has failed.
    IDLE = "idle"
    DRAINING = "draining"


# Each round hashes an account for each pool. Members of enumerations hash slowly, so the fields are strings.
class Account(NamedTuple):
    """Values of the labels by which the use of chips is counted."""

    namespace: str
    accelerator: str
    capacity: str
    use: str


class Stage(Enum):
    """Stage of a slice's start-up."""

    #: The pool is listed.
    CREATED = "created"
    #: All nodes of the pool are ready with their chips, or pods are bound to the pool.
    READY = "ready"
    #: The leader pod is bound.
    RUNNING = "running"


def _values(values: Iterable[Enum]) -> str:
    return ", ".join(f"`{enum.value}`" for enum in values)


LABELS = {
    "phase": f"the phase of a node pool, or `{SPLIT}`: {_values(Phase)}",
    "stage": "the stage of a slice's start",
    "state": "the state of the chips' node pool: "
    + ", ".join(f"`{state}`" for state in dict.fromkeys((*CHIP_STATES.values(), SPLIT))),
    "use": "`starting`: no pod is bound to the node pool (yet, or between two restarts); `running`; `idle`: nothing "
    "needs it, or it failed; `draining`: it is being deleted",
    "kind": f"the kind of a failure: {_values(FailureKind)}, `unexpected`, `{NOT_READY}`; of alerts "
    "`mass_disappearance`, `pool_stuck`, `node_change_rejected`",
    "reason": f"why a node pool is deleted: {_values(DeleteReason)}; of notices the Event's reason",
    "limit": "the setting, such as `MAX_CHIPS`",
    "scope": "`all`, a namespace or accelerator that the setting names, or `*` for all others",
    "workload_namespace": f"the namespace of the workload that has the node pool; after the first "
    f"{bounds.METERED_NAMESPACES} `{OTHERS}`",
    "accelerator": "the accelerator label that pods select",
    "capacity": f"the capacity type: {_values(CapacityKind)}",
    "cause": "the kind of a failure, or the setting of a limit",
    "source": "a resource, `hints` or `reservations`",
}


class Metrics(LoopMetrics):
    """Metrics of one process. Any thread may change counters and histograms; only the loop's thread calls `show`."""

    def __init__(self, *, version: str) -> None:
        registry = Registry(PREFIX, version=version)
        super().__init__(registry)
        self.gke = RequestMetrics(registry, "gke", "GKE")
        self.list_age = registry.gauge("pool_list_age_seconds", "Age of the list of node pools at the last decision.")
        self.creates = registry.counter("creates", "Creates of node pools, by result.", "result")
        self.deletes = registry.counter("deletes", "Deletes of node pools, by reason and result.", "reason", "result")
        self.phase_seconds = registry.histogram(
            "time_to_phase_seconds", "Time from the plan of a node pool to each phase.", _PHASE_BUCKETS, "phase"
        )
        self.startup_seconds = registry.histogram(
            "slice_startup_seconds",
            "Time from an unschedulable leader pod to a node pool that GKE lists (created), ready nodes (ready), and a "
            "bound leader pod (running). An existing pool is measured to running only.",
            _STARTUP_BUCKETS,
            "stage",
        )
        text = f"Node pools that failed after GKE accepted the create; {NOT_READY}: nodes were not ready in time."
        self.pool_failures = registry.counter("node_pool_failures", text, "kind")
        self.proven = registry.gauge(
            "cluster_proven",
            "1 when kubeconfig and GCP_CLUSTER are proven to be one cluster; 0: nothing is created or deleted.",
        )
        self.show(values_of(Plan(memory=Memory()), (), {}, datetime.now(UTC), deletion_delay_seconds=0.0))
        self.show(usage_of({}, {}, ()))
        self.set_unknown_sources(())
        # Rare results begin at 0, because Prometheus' `increase` and `rate` ignore the first value of a time series.
        for result in ("ok", *(kind.value for kind in FailureKind)):
            self.creates.labels(result)
        for reason in DeleteReason:
            self.deletes.labels(reason.value, "ok")
        for phase in TIMED_PHASES:
            self.phase_seconds.labels(phase.value)
        for stage in Stage:
            self.startup_seconds.labels(stage.value)
        for kind in (*(failure.value for failure in FailureKind), NOT_READY):
            self.pool_failures.labels(kind)

    def set_unknown_sources(self, names: Iterable[str]) -> None:
        """Show the optional sources (`model.sources`) that are unknown at the moment."""
        text = "1 while an optional source of facts, which the cluster has, is forbidden, fails or is not read yet."
        self.show([Shown("source_unknown", text, dict.fromkeys(names, 1), ("source",))])


_STAGES = {
    Phase.PROVISIONING: frozenset({Stage.CREATED}),
    Phase.READY: frozenset({Stage.CREATED, Stage.READY}),
    Phase.IN_USE: frozenset({Stage.CREATED, Stage.READY}),
}
_USE: Mapping[Phase, Use] = {
    Phase.IN_USE: Use.RUNNING,
    Phase.IDLE: Use.IDLE,
    Phase.FAILED: Use.IDLE,
    Phase.DELETING: Use.DRAINING,
    Phase.GONE: Use.DRAINING,
}
_TRYING = frozenset({Phase.WANTED, Phase.CREATING, Phase.PROVISIONING})


class Startup(NamedTuple):
    """Start-up of a slice whose leader pod is not bound yet."""

    leader_uid: str
    since: datetime
    #: Stages that were measured, or that had been reached when this record began.
    reached: frozenset[Stage]


class PoolUse(NamedTuple):
    """Existing chips of one pool."""

    account: Account
    chips: int
    #: Cost of the chips per hour, in the currency of CHIP_HOUR_PRICES; None without a price.
    cost_per_hour: float | None = None


def follow(
    before: Mapping[SliceId, Startup], pools: Iterable[PoolState], now: datetime
) -> tuple[dict[SliceId, Startup], list[tuple[Stage, float]]]:
    """Return the start-ups of waiting slices, and newly reached stages with the seconds since the start-up began."""
    waiting: dict[SliceId, Startup] = {}
    measured: list[tuple[Stage, float]] = []
    started: set[SliceId] = set()
    for state in pools:
        leader, slice_id = state.leader, state.slice_id
        if leader is None or slice_id is None or slice_id in started:
            continue
        reached = _STAGES.get(state.phase, frozenset()) | ({Stage.RUNNING} if leader.node_name else frozenset())
        last = waiting.get(slice_id) or before.get(slice_id)
        if last is None or last.leader_uid != leader.uid:
            if leader.unschedulable_since is None or leader.node_name:
                continue
            last = Startup(leader.uid, leader.unschedulable_since, reached)
        seconds = max(0.0, (now - last.since).total_seconds())
        measured += [(stage, seconds) for stage in Stage if stage in reached - last.reached]
        if Stage.RUNNING in reached:
            waiting.pop(slice_id, None)
            started.add(slice_id)
            continue
        waiting[slice_id] = last._replace(reached=last.reached | reached)
    return waiting, measured


def use_of(owned: OwnedPool, state: PoolState, prices: Prices) -> PoolUse | None:
    """Return the use of a pool's chips; None if the pool has no nodes, or if the number of their chips is unknown."""
    accelerator, host_chips = owned.machine
    capacity, chips = owned.pool.capacity, host_chips * len(owned.nodes)
    if not chips:
        return None
    use = _USE.get(state.phase, Use.STARTING)
    account = Account(state.named.namespace or OTHERS, accelerator, capacity.value, use.value)
    return PoolUse(account, chips, prices.per_hour(accelerator, capacity, chips))


def account_of(accounts: Collection[Account], wanted: Account) -> Account:
    """Return `wanted`, with namespace OTHERS if it would exceed the maximum number of accounts or namespaces."""
    if wanted in accounts or wanted.namespace == OTHERS:
        return wanted
    namespaces = {account.namespace for account in accounts} - {OTHERS}
    full = len(accounts) >= bounds.METERED_ACCOUNTS or (
        wanted.namespace not in namespaces and len(namespaces) >= bounds.METERED_NAMESPACES
    )
    return wanted._replace(namespace=OTHERS) if full else wanted


@dataclass(slots=True, kw_only=True)
class Meter:
    """Measures rounds. Used by the loop's thread only."""

    settings: Settings
    metrics: Metrics
    monotonic: Callable[[], float] = time.monotonic
    _waiting: Mapping[SliceId, Startup] = field(default_factory=dict)
    _uses: tuple[PoolUse, ...] = ()
    #: Chip-seconds since the start of the process, by account. `_costs` has their costs.
    _chip_seconds: dict[Account, float] = field(default_factory=dict)
    _costs: dict[Account, float] = field(default_factory=dict)
    _counted_monotonic: float = 0.0

    def look(self, plan: Plan, snapshot: Snapshot, now: datetime) -> None:
        """Measure one round."""
        pools = plan.round.owned if plan.round is not None else {}
        self._measure_usage(plan.pools, pools)
        self._waiting, measured = follow(self._waiting, plan.pools, now)
        for stage, seconds in measured:
            self.metrics.startup_seconds.labels(stage.value).observe(seconds)
        for transition in plan.transitions:
            if transition.new is Phase.FAILED:
                failed = pools.get(transition.pool)
                failure = failed.pool.failure if failed is not None else None
                self.metrics.pool_failures.labels(failure.kind.value if failure is not None else NOT_READY).inc()
        waits = {
            startup.leader_uid: max(0.0, (now - startup.since).total_seconds()) for startup in self._waiting.values()
        }
        delay = self.settings.deletion_delay_seconds
        self.metrics.show(values_of(plan, snapshot.pools, waits, now, deletion_delay_seconds=delay))
        costs, priced = (self._costs, self._uses) if self.settings.prices else ({}, ())
        self.metrics.show(usage_of(self._chip_seconds, costs, priced))

    def _measure_usage(self, states: tuple[PoolState, ...], pools: Mapping[PoolName, OwnedPool]) -> None:
        prices, now = self.settings.prices, self.monotonic()
        seconds = now - self._counted_monotonic
        for before in self._uses:
            self._chip_seconds[before.account] += before.chips * seconds
            self._costs[before.account] += (before.cost_per_hour or 0.0) * seconds / 3600
        self._counted_monotonic = now
        uses = []
        for state in states:
            use = use_of(pools[state.name], state, prices) if state.name in pools else None
            if use is not None:
                account = account_of(self._chip_seconds, use.account)
                uses.append(use._replace(account=account))
                self._chip_seconds.setdefault(account, 0.0)
                self._costs.setdefault(account, 0.0)
        self._uses = tuple(uses)


def usage_of(
    chip_seconds: Mapping[Account, float], costs: Mapping[Account, float], priced: Iterable[PoolUse]
) -> Iterator[Shown]:
    """Yield the metrics of chips used since the process started, and of the current cost of the pools in `priced`."""
    per_hour: defaultdict[Account, float] = defaultdict(float)
    unpriced = 0
    for use in priced:
        per_hour[use.account] += use.cost_per_hour or 0.0
        unpriced += use.chips if use.cost_per_hour is None else 0
    text = "Chips of nodes, times the seconds that the nodes have existed."
    yield Shown("chip_seconds", text, chip_seconds, _USAGE_LABELS, CounterMetricFamily)
    text = "Cost of those chip-seconds, by the CHIP_HOUR_PRICES of their time."
    yield Shown("cost", text, costs, _USAGE_LABELS, CounterMetricFamily)
    yield Shown("cost_per_hour", "Cost of the existing chips an hour.", per_hour, _USAGE_LABELS)
    yield Shown("unpriced_chips", "Chips for which CHIP_HOUR_PRICES has no price.", unpriced)


def values_of(
    plan: Plan, pools: Iterable[NodePool], waits: Mapping[str, float], now: datetime, *, deletion_delay_seconds: float
) -> Iterator[Shown]:
    """Yield the metrics of one round; `waits` has the seconds that each leader pod has waited, by UID of the pod."""
    memory = plan.memory
    text = "Slices that workloads request, by phase; split: a pool of the slice is not its own alone."
    slices = (state for state in plan.pools if state.slice_id is not None and state.workload is not None)
    yield Shown("slices", text, Counter(map(_phase_of, slices)), ("phase",))
    created = (state for state in plan.pools if not state.phase.before_create)
    text = "Node pools of the provisioner, by phase, as for slices."
    yield Shown("node_pools", text, Counter(map(_phase_of, created)), ("phase",))
    text = "TPU chips, by state. Chips of failed node pools are idle, those of creating ones provisioning."
    chips = dict.fromkeys((*CHIP_STATES.values(), SPLIT), 0)
    for state in plan.pools:
        chips[SPLIT if _is_split(state) else CHIP_STATES[state.phase]] += state.chips
    yield Shown("chips", text, chips, ("state",))
    text = "Slices of several hosts that have pods on several node pools, or share one with another slice."
    yield Shown("split_slices", text, len(plan.split_slices))
    # A postponed delete also counts as blocked during another attempt; otherwise the value would drop at each attempt.
    deletes = [call for call in memory.deletes.values() if call.state is not CallState.ACCEPTED]
    blocked = sum(call.postponed_since is not None for call in deletes)
    yield Shown("deletes_blocked", "Node pools that are not deleted because of unfinished pods.", blocked)
    text = "How long the leader pod that waits longest has been unschedulable."
    yield Shown("longest_wait_seconds", text, max(waits.values(), default=0.0))
    text = "How long the leader pod that waits longest has been unschedulable, by what its slice waits for."
    causes = ((cause, waits[uid]) for cause, uid in _causes(plan) if uid in waits)
    yield Shown("waiting_oldest_seconds", text, _largest(causes), ("cause",))
    # A pool whose workload or machine type is unknown may still be needed, so it does not count as overdue.
    undecided = {state.name for state in plan.pools if state.undecided}
    moments = (remembered.unneeded_since for name, remembered in memory.pools.items() if name not in undecided)
    unneeded_since = min(filter(None, moments), default=now)
    text = "The longest time beyond NODEPOOL_DELETION_DELAY that an unneeded node pool has existed."
    overdue = (now - unneeded_since).total_seconds() - deletion_delay_seconds
    yield Shown("unneeded_overdue_seconds", text, max(0.0, overdue))
    reasons = Counter(notice.reason for notice in plan.notices)
    yield Shown("notices", "Events that slices have now, by reason.", reasons, ("reason",))
    yield Shown("alerts", "Alerts, by kind.", Counter(alert.kind for alert in plan.alerts), ("kind",))
    backoffs = (*memory.backoffs.values(), *memory.refusals.values())
    text = "Kinds of capacity whose last attempt failed, until an hour after the next allowed attempt."
    yield Shown("backoff_active", text, Counter(entry.failure.kind.value for entry in backoffs), ("kind",))
    blocking: Counter[str] = Counter()
    for entry in backoffs:
        blocking[entry.failure.kind.value] += entry.until > now
    yield Shown("backoff_blocking", "Kinds of capacity, and slices, that have to wait now.", blocking, ("kind",))
    text = "The longest time that creates of one capacity or slice have failed without a success."
    oldest = _largest((entry.failure.kind.value, (now - entry.since).total_seconds()) for entry in backoffs)
    yield Shown("backoff_oldest_seconds", text, oldest, ("kind",))
    limits, scopes = {(limit.name, limit.scope): limit for limit in plan.limits}, ("limit", "scope")
    yield Shown("limit", "The limits that are set.", {key: limit.most for key, limit in limits.items()}, scopes)
    text = "How much of each limit is used; scope `*`: the largest use of every other namespace or accelerator."
    yield Shown("limit_used", text, {key: limit.used for key, limit in limits.items()}, scopes)
    refused = (wait for wait in plan.waits.values() if wait.kind in (WaitKind.PAUSE, WaitKind.LIMIT))
    limited = Counter(cause for wait in refused for cause in wait.causes)
    waiting = {limit.name: 0 for limit in plan.limits} | limited
    yield Shown("limit_waiting_slices", "Slices that wait because of a limit.", waiting, ("limit",))
    text = "Node pool operations in progress in the cluster, as far as known."
    yield Shown("gke_operations_in_flight", text, len(operations_under_way(pools, memory)))
    text = "Own concurrent operations that GKE accepts, learned from rejections; 0 a minute after the last."
    yield Shown("gke_operations_limit", text, memory.operations.limit or 0)


def _largest(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for key, value in values:
        largest[key] = max(largest.get(key, 0.0), value)
    return largest


def _is_split(state: PoolState) -> bool:
    return state_of(state) is State.SPLIT


def _phase_of(state: PoolState) -> str:
    return SPLIT if _is_split(state) else state.phase.value


def _causes(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield each cause of a wait (a kind of failure or a setting) with the UID of the waiting slice's leader pod."""
    memory, ctx = plan.memory, plan.round
    if ctx is None:
        return
    for slice_id, wait in plan.waits.items():
        leader = ctx.slices[slice_id].leader
        if leader is not None and not wait.silent:
            yield from ((cause, leader.uid) for cause in wait.causes)
    # A slice whose pool is being created from capacity that failed before is not in `plan.waits`, but waits as well.
    requests = {name: call.request for name, call in (*memory.coming_up.items(), *memory.creates.items())}
    pools = {name: owned.pool for name, owned in ctx.owned.items()} | requests
    for state in plan.pools if memory.backoffs else ():
        if state.leader is not None and state.name in pools and state.phase in _TRYING:
            last = backoff.probing(memory.backoffs, capacity_key(pools[state.name]))
            if last is not None:
                yield last.failure.kind.value, state.leader.uid
