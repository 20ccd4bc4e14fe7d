"""Every metric of the provisioner, and what is measured of each round beyond its plan.

Labels are bounded: kinds, phases, methods, reasons, never names of workloads or pools; of namespaces the first hundred
(see `account_of`) and those that limits name. docs/metrics.md is made from the texts here.

A chip counts while its node exists, so that a pool which GKE tries in vain to make counts for nothing. A start-up
begins when the scheduler called the leader pod unschedulable: the pod's own condition says it, over restarts of the
provisioner too. What a slice had reached when this process first saw it waiting is not measured.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import FailureKind, PoolName
from provisioner.model.choices import capacity_key
from provisioner.runtime.metrics import LoopMetrics, Registry
from provisioner.settings import Settings
from provisioner.settings.forms import Prices
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import DeleteReason, Plan, PoolState
from provisioner.slices.planning.round import Snapshot, Supply

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
#: The phase and the state of pools that no slice has to itself: nothing in use is whole there.
SPLIT = "split"
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
            "provisioning is joining, in_use is running or draining. split: a pool of the slice is not its own alone."
        )
        self.slices = registry.picture("slices", text, "phase")
        text = "Node pools of the provisioner, by phase, as for slices."
        self.node_pools = registry.picture("node_pools", text, "phase")
        text = (
            "TPU chips, by state. On the status page wanted is waiting, provisioning is creating or joining, in_use is "
            "running or draining, idle is idle or failed."
        )
        self.chips = registry.picture("chips", text, "state")
        self.chips.replace(dict.fromkeys((*CHIP_STATES.values(), SPLIT), 0))
        self.split_slices = registry.gauge(
            "split_slices",
            "Slices of several hosts that have pods on more than one node pool, or share a node pool with pods of "
            "another slice.",
        )

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
        self.source_unknown = registry.picture(
            "source_unknown",
            "1 while an optional source of facts is forbidden, fails or is not read yet. No decision depends on it "
            "then. An API that the cluster does not have is not unknown.",
            "source",
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
_KINDS = frozenset(kind.value for kind in FailureKind)
_TRYING = frozenset({Phase.WANTED, Phase.CREATING, Phase.PROVISIONING})


class Startup(NamedTuple):
    """A slice that waits, or did a moment ago."""

    leader_uid: str
    since: datetime
    #: What need not be measured any more.
    reached: frozenset[Stage]


class PoolUse(NamedTuple):
    """The chips of one pool that exist."""

    account: Account
    chips: int
    #: What they cost an hour; None: no price says.
    cost_per_hour: float | None = None


def follow(
    before: Mapping[SliceId, Startup], pools: Iterable[PoolState], now: datetime
) -> tuple[dict[SliceId, Startup], list[tuple[Stage, float]]]:
    """Return the slices that wait, and what was reached since the last round, after how many seconds of a wait."""
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


def use_of(supply: Supply, state: PoolState, prices: Prices) -> PoolUse | None:
    """Return what the chips of a pool are doing; None where it has none (yet), or nobody knows how many."""
    accelerator, host_chips = supply.machine
    capacity, chips = supply.pool.capacity, host_chips * len(supply.nodes)
    if not chips:
        return None
    use = _USE.get(state.phase, Use.STARTING)
    account = Account(state.named.namespace or OTHERS, accelerator, capacity.value, use.value)
    return PoolUse(account, chips, prices.per_hour(accelerator, capacity, chips))


def account_of(known: Collection[Account], wanted: Account) -> Account:
    """Return the account itself, or the one of all other namespaces where the known ones are too many already."""
    if wanted in known or wanted.namespace == OTHERS:
        return wanted
    namespaces = {account.namespace for account in known} - {OTHERS}
    full = len(known) >= bounds.METERED_ACCOUNTS or (
        wanted.namespace not in namespaces and len(namespaces) >= bounds.METERED_NAMESPACES
    )
    return wanted._replace(namespace=OTHERS) if full else wanted


@dataclass(slots=True, kw_only=True)
class Meter:
    """Used by the loop's thread alone."""

    settings: Settings
    metrics: Metrics
    monotonic: Callable[[], float] = time.monotonic
    _waiting: Mapping[SliceId, Startup] = field(default_factory=dict)
    _uses: tuple[PoolUse, ...] = ()
    #: Those that have a counter, and until when they are counted.
    _accounts: set[Account] = field(default_factory=set)
    _counted_monotonic: float = 0.0

    def look(self, plan: Plan, snapshot: Snapshot, now: datetime) -> None:
        """Measure one round."""
        supply = plan.derived.supply
        self._measure_usage(plan.pools, supply)
        self._measure_startups(plan, supply, now)
        self._measure_waiting(plan, now)
        limited = (each.key for each in plan.notices if each.reason == constants.LIMIT_REACHED)
        waiting = Counter(key.partition(" ")[0] for key in limited)
        self.metrics.limit.replace({(each.name, each.scope): each.most for each in plan.limits})
        self.metrics.limit_used.replace({(each.name, each.scope): each.used for each in plan.limits})
        self.metrics.limit_waiting.replace({each.name: 0 for each in plan.limits} | waiting)
        self.metrics.operations.set(len(operations_under_way(snapshot.pools, plan.memory)))
        self.metrics.operations_limit.set(plan.memory.operations.limit or 0)

    def _measure_startups(self, plan: Plan, supply: Mapping[PoolName, Supply], now: datetime) -> None:
        self._waiting, measured = follow(self._waiting, plan.pools, now)
        for stage, seconds in measured:
            self.metrics.startup_seconds.labels(stage.value).observe(seconds)
        waits = {each.leader_uid: max(0.0, (now - each.since).total_seconds()) for each in self._waiting.values()}
        self.metrics.longest_wait.set(max(waits.values(), default=0.0))
        oldest: dict[str, float] = {}
        for cause, uid in _causes(plan, supply):
            if uid in waits:
                oldest[cause] = max(oldest.get(cause, 0.0), waits[uid])
        self.metrics.waiting_oldest.replace(oldest)
        for transition in plan.transitions:
            if transition.new is Phase.FAILED:
                failed = supply.get(transition.pool)
                failure = failed.pool.failure if failed is not None else None
                self.metrics.pool_failures.labels(failure.kind.value if failure is not None else NOT_READY).inc()

    def _measure_waiting(self, plan: Plan, now: datetime) -> None:
        memory = plan.memory
        blocking: Counter[str] = Counter()
        oldest: dict[str, float] = {}
        for each in (*memory.backoffs.values(), *memory.slice_backoffs.values()):
            kind = each.failure.kind.value
            blocking[kind] += each.until > now
            oldest[kind] = max(oldest.get(kind, 0.0), (now - each.since).total_seconds())
        self.metrics.backoff_blocking.replace(blocking)
        self.metrics.backoff_oldest.replace(oldest)
        self.metrics.notices.replace(Counter(each.reason for each in plan.notices))
        # Of workloads that nobody watches none is overdue.
        undecided = {state.name for state in plan.pools if state.undecided}
        since = min((at for name, at in memory.unneeded_since.items() if name not in undecided), default=now)
        self.metrics.overdue.set(max(0.0, (now - since).total_seconds() - self.settings.deletion_delay_seconds))

    def _measure_usage(self, states: tuple[PoolState, ...], supply: Mapping[PoolName, Supply]) -> None:
        prices, now = self.settings.prices, self.monotonic()
        for before in self._uses:
            seconds = before.chips * (now - self._counted_monotonic)
            cost = (before.cost_per_hour or 0.0) * (now - self._counted_monotonic) / 3600
            self.metrics.count_usage(before.account, chip_seconds=seconds, cost=cost if prices else None)
        self._counted_monotonic = now
        uses = [use_of(supply[each.name], each, prices) for each in states if each.name in supply]
        found = [each for each in uses if each is not None]
        opened = {account: self._opened(account) for account in dict.fromkeys(each.account for each in found)}
        self._uses = tuple(each._replace(account=opened[each.account]) for each in found)
        costs: defaultdict[Account, float] = defaultdict(float)
        for use in self._uses if prices else ():
            costs[use.account] += use.cost_per_hour or 0.0
        self.metrics.cost_per_hour.replace(costs)
        unpriced = sum(each.chips for each in self._uses if each.cost_per_hour is None)
        self.metrics.unpriced.set(unpriced if prices else 0)

    def _opened(self, wanted: Account) -> Account:
        """Begin a counter at zero where there is none: one that begins with a number hides it from `increase`."""
        account = account_of(self._accounts, wanted)
        if account not in self._accounts:
            self._accounts.add(account)
            self.metrics.count_usage(account, chip_seconds=0, cost=0 if self.settings.prices else None)
        return account


def _causes(plan: Plan, supply: Mapping[PoolName, Supply]) -> Iterator[tuple[str, str]]:
    """Yield what slices wait for, the kind of a failure or a limit, with the UIDs of their objects."""
    for notice in plan.notices:
        # The last word is the pool.
        words = notice.key.split()[:-1]
        if notice.reason == constants.LIMIT_REACHED:
            causes = words[:1]
        else:
            causes = [each for each in words if each in _KINDS] if notice.reason == constants.CREATION_WAITING else []
        yield from ((cause, ref.uid) for cause in causes for ref in notice.objects)
    # Nothing is said of the slice that tries whether there is capacity again; it waits for that like the others.
    memory = plan.memory
    requests = {name: call.request for name, call in (*memory.in_making.items(), *memory.creates.items())}
    pools = {name: each.pool for name, each in supply.items()} | requests
    for state in plan.pools if memory.backoffs else ():
        if state.leader is not None and state.name in pools and state.phase in _TRYING:
            last = backoff.probing(memory.backoffs, capacity_key(pools[state.name]))
            if last is not None:
                yield last.failure.kind.value, state.leader.uid
