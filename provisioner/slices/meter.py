"""What is measured of each round beyond its plan: start-up times, limits and their use, chip-seconds and their cost.

A start-up begins when the scheduler called the leader pod unschedulable. That moment is the pod's own condition, so a
restart of the provisioner does not begin anew. What a slice had already reached when this process first saw it waiting
is not measured: nobody knows when that was.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from provisioner import constants
from provisioner.model.capacity import PoolName
from provisioner.model.snapshot import Snapshot
from provisioner.settings import Settings
from provisioner.slices import usage
from provisioner.slices.demand import SliceId
from provisioner.slices.metrics import NOT_READY, Metrics, Stage
from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import Memory, Phase
from provisioner.slices.planning.plan import Plan, PoolState
from provisioner.slices.planning.round import Supply
from provisioner.slices.usage import Account, PoolUse

_STAGES = {
    Phase.PROVISIONING: frozenset({Stage.CREATED}),
    Phase.READY: frozenset({Stage.CREATED, Stage.READY}),
    Phase.IN_USE: frozenset({Stage.CREATED, Stage.READY}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """A slice that waits, or did a moment ago."""

    leader_uid: str
    since: datetime
    #: What need not be measured any more.
    reached: frozenset[Stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Startups:
    """What is known after one round."""

    waiting: Mapping[SliceId, Startup] = field(default_factory=dict)
    #: What slices reached since the last round, and how many seconds after their leader pod was unschedulable.
    measured: tuple[tuple[Stage, float], ...] = ()
    #: How long the leader pod that is unschedulable for longest has been so; 0: there is none.
    longest_wait_seconds: float = 0.0


def follow(before: Startups, pools: Iterable[PoolState], now: datetime) -> Startups:
    """Compare what there is with the last round."""
    waiting: dict[SliceId, Startup] = {}
    measured: list[tuple[Stage, float]] = []
    started: set[SliceId] = set()
    longest = 0.0
    for state in pools:
        leader, slice_id = state.leader, state.slice_id
        if leader is None or slice_id is None or slice_id in started:
            continue
        reached = _STAGES.get(state.phase, frozenset()) | ({Stage.RUNNING} if leader.node_name else frozenset())
        last = waiting.get(slice_id) or before.waiting.get(slice_id)
        if last is None or last.leader_uid != leader.uid:
            if leader.unschedulable_since is None or leader.node_name:
                continue
            last = Startup(leader_uid=leader.uid, since=leader.unschedulable_since, reached=reached)
        seconds = max(0.0, (now - last.since).total_seconds())
        measured += [(stage, seconds) for stage in Stage if stage in reached - last.reached]
        if Stage.RUNNING in reached:
            waiting.pop(slice_id, None)
            started.add(slice_id)
            continue
        longest = max(longest, seconds)
        waiting[slice_id] = replace(last, reached=last.reached | reached)
    return Startups(waiting=waiting, measured=tuple(measured), longest_wait_seconds=longest)


@dataclass(slots=True, kw_only=True)
class Meter:
    """Used by the loop's thread alone."""

    settings: Settings
    metrics: Metrics
    monotonic: Callable[[], float] = time.monotonic
    _startups: Startups = field(default_factory=Startups)
    #: What chips were doing in the last round.
    _uses: tuple[PoolUse, ...] = ()
    #: Those that have a counter, and until when they are counted.
    _accounts: set[Account] = field(default_factory=set)
    _counted_monotonic: float = 0.0

    def look(self, plan: Plan, snapshot: Snapshot, now: datetime) -> None:
        """Measure one round."""
        supply = plan.derived.supply if plan.derived is not None else {}
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
        self._startups = follow(self._startups, plan.pools, now)
        for stage, seconds in self._startups.measured:
            self.metrics.startup_seconds.labels(stage.value).observe(seconds)
        self.metrics.longest_wait.set(self._startups.longest_wait_seconds)
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
        self.metrics.overdue.set(_overdue_seconds(memory, plan.pools, self.settings, now))

    def _measure_usage(self, states: tuple[PoolState, ...], supply: Mapping[PoolName, Supply]) -> None:
        """Count the time since the last round for what chips were doing then."""
        prices, now = self.settings.prices, self.monotonic()
        for before in self._uses:
            seconds = before.chips * (now - self._counted_monotonic)
            cost = before.cost_per_hour * (now - self._counted_monotonic) / 3600
            self.metrics.count_usage(before.account, chip_seconds=seconds, cost=cost if prices else None)
        self._counted_monotonic = now
        uses = [usage.use_of(supply[each.name], each, prices) for each in states if each.name in supply]
        found = [each for each in uses if each is not None]
        opened = {account: self._opened(account) for account in dict.fromkeys(each.account for each in found)}
        self._uses = tuple(each._replace(account=opened[each.account]) for each in found)
        costs: defaultdict[Account, float] = defaultdict(float)
        for use in self._uses if prices else ():
            costs[use.account] += use.cost_per_hour
        self.metrics.cost_per_hour.replace(costs)
        self.metrics.unpriced.set(usage.unpriced_chips(self._uses) if prices else 0)

    def _opened(self, wanted: Account) -> Account:
        """Begin a counter at zero where there is none: one that begins with a number hides it from `increase`."""
        account = usage.account_of(self._accounts, wanted)
        if account not in self._accounts:
            self._accounts.add(account)
            self.metrics.count_usage(account, chip_seconds=0, cost=0 if self.settings.prices else None)
        return account


def _overdue_seconds(memory: Memory, pools: tuple[PoolState, ...], settings: Settings, now: datetime) -> float:
    """Return for how long the most overdue pool should have been gone; of workloads that nobody watches none is."""
    unwatched = {state.name for state in pools if state.unwatched}
    since = (moment for name, moment in memory.unneeded_since.items() if name not in unwatched)
    longest = max(((now - moment).total_seconds() for moment in since), default=0.0)
    return max(0.0, longest - settings.deletion_delay_seconds)
