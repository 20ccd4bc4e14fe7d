"""What is measured of each round beyond its plan: start-up times, limits and their use, chip-seconds and their cost.

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
from typing import NamedTuple

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import FailureKind, PoolName
from provisioner.model.choices import capacity_key
from provisioner.model.snapshot import Snapshot
from provisioner.settings import Settings
from provisioner.settings.forms import Prices
from provisioner.slices.demand import SliceId
from provisioner.slices.metrics import NOT_READY, OTHERS, Account, Metrics, Stage, Use
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import Plan, PoolState
from provisioner.slices.planning.round import Supply

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
    """Return the slices that wait, and what slices reached since the last round.

    The latter each with the seconds since their leader pod was unschedulable.
    """
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
    known = tpu.machine_type(supply.pool.machine_type)
    if known is None or not supply.nodes:
        return None
    accelerator, capacity, chips = known[0].label, supply.pool.capacity, known[1].chips * len(supply.nodes)
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
        unwatched = {state.name for state in plan.pools if state.unwatched}
        since = min((at for name, at in memory.unneeded_since.items() if name not in unwatched), default=now)
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
