"""What is measured of each round beyond its plan: start-up times, limits and their use, chip-seconds and their cost.

Chip-seconds are counters that outlast the process. What a scrape has seen must never be taken back, so only what is
kept in the hints is exported: `hints` says what to keep, `kept` that it was.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import PoolName
from provisioner.model.snapshot import Snapshot
from provisioner.settings import Settings
from provisioner.slices import usage
from provisioner.slices.metrics import NOT_READY, Metrics
from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import Memory, Phase
from provisioner.slices.planning.plan import Plan, PoolState
from provisioner.slices.planning.round import Supply
from provisioner.slices.startups import Startups, follow
from provisioner.slices.usage import Account, Amount, Ledger, PoolUse

#: Chip-seconds are written so far apart: about as often as they are scraped.
_KEEP_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Meter:
    """Used by the loop's thread alone."""

    settings: Settings
    metrics: Metrics
    monotonic: Callable[[], float] = time.monotonic
    _startups: Startups = field(default_factory=Startups)
    #: Nothing is counted before it is known where an earlier process ended.
    restored: bool = False
    _ledger: Ledger = field(default_factory=Ledger)
    #: What each pool was made from, so that one that has not changed costs nothing.
    _uses: dict[PoolName, tuple[Supply, Phase, str, PoolUse | None]] = field(default_factory=dict)
    #: As the hints have it, or will once they are written; and what of it is exported.
    _text: str = ""
    _written: Mapping[Account, Amount] = field(default_factory=dict)
    _exported: Mapping[Account, Amount] = field(default_factory=dict)
    _written_monotonic: float = float("-inf")

    def restore(self, hints: Mapping[str, str]) -> None:
        """Go on where an earlier process ended."""
        self._text = hints.get(usage.HINTS_KEY, "")
        self._ledger = usage.from_text(self._text)
        self._written = self._ledger.amounts
        self._written_monotonic = self.monotonic()
        self.restored = True
        self.kept()

    def clock_set(self, by: timedelta) -> None:
        """Take note that the clock was set: only time that has passed counts."""
        self._ledger = usage.shifted(self._ledger, by)

    def look(self, plan: Plan, snapshot: Snapshot, now: datetime) -> None:
        """Measure one round."""
        supply = plan.derived.supply if plan.derived is not None else {}
        if self.restored:
            self._measure_usage(plan.pools, supply, now)
        self._measure_startups(plan, supply, now)
        self._measure_waiting(plan, now)
        limited = (each.key for each in plan.notices if each.reason == constants.LIMIT_REACHED)
        self.metrics.set_limits(plan.limits, waiting=Counter(key.partition(" ")[0] for key in limited))
        in_flight = operations_under_way(snapshot.pools, plan.memory)
        self.metrics.set_operations(len(in_flight), limit=plan.memory.operations.limit)

    def hints(self, *, force: bool = False) -> dict[str, str]:
        """Return what to keep, under its key: the newest where that is due, else what is kept already."""
        due = self.restored and (force or self.monotonic() - self._written_monotonic >= _KEEP_SECONDS)
        if due and self._ledger.amounts != self._written:
            self._text, self._written = usage.to_text(self._ledger), self._ledger.amounts
            self._written_monotonic = self.monotonic()
        return {usage.HINTS_KEY: self._text} if self._text else {}

    def resolve(self, stored: Mapping[str, str], data: Mapping[str, str]) -> Mapping[str, str]:
        """Return what to write where another leader may have written meanwhile: no less than it has exported."""
        if not self.restored:
            return data
        self._ledger = usage.merged(self._ledger, usage.from_text(stored.get(usage.HINTS_KEY)))
        self._text, self._written = usage.to_text(self._ledger), self._ledger.amounts
        return {**data, usage.HINTS_KEY: self._text}

    def kept(self) -> None:
        """Export what `hints` returned last: it is kept now."""
        self._exported = self._written
        self._export()

    def _measure_startups(self, plan: Plan, supply: Mapping[PoolName, Supply], now: datetime) -> None:
        self._startups = follow(self._startups, plan.pools, now)
        for stage, seconds in self._startups.measured:
            self.metrics.observe_startup(stage, seconds=seconds)
        self.metrics.set_longest_wait(seconds=self._startups.longest_wait_seconds)
        for transition in plan.transitions:
            if transition.new is Phase.FAILED:
                failed = supply.get(transition.pool)
                failure = failed.pool.failure if failed is not None else None
                self.metrics.count_pool_failure(failure.kind.value if failure is not None else NOT_READY)

    def _measure_waiting(self, plan: Plan, now: datetime) -> None:
        memory = plan.memory
        blocking: Counter[str] = Counter()
        oldest: dict[str, float] = {}
        for each in (*memory.backoffs.values(), *memory.slice_backoffs.values()):
            kind = each.failure.kind.value
            blocking[kind] += each.until > now
            oldest[kind] = max(oldest.get(kind, 0.0), (now - each.since).total_seconds())
        self.metrics.set_waiting_creates(blocking=blocking, oldest_seconds=oldest)
        self.metrics.set_notices(Counter(each.reason for each in plan.notices))
        self.metrics.set_unneeded_overdue(seconds=_overdue_seconds(memory, plan.pools, self.settings, now))

    def _measure_usage(self, states: tuple[PoolState, ...], supply: Mapping[PoolName, Supply], now: datetime) -> None:
        prices = self.settings.prices
        pools: dict[PoolName, PoolUse] = {}
        uses: dict[PoolName, tuple[Supply, Phase, str, PoolUse | None]] = {}
        for state in states:
            each = supply.get(state.name)
            if each is None:
                continue
            made = self._uses.get(state.name)
            if made is None or made[0] is not each or (made[1], made[2]) != (state.phase, state.namespace):
                made = (each, state.phase, state.namespace, usage.use_of(each, state, prices))
            uses[state.name] = made
            if made[3] is not None:
                pools[state.name] = made[3]
        self._uses = uses
        self._ledger = usage.advance(self._ledger, pools, usage.milliseconds(now))
        costs = usage.costs_per_hour(self._ledger) if prices else {}
        unpriced = usage.unpriced_chips(pools.values()) if prices else 0
        self.metrics.set_cost_per_hour(costs, unpriced_chips=unpriced)
        self._export()

    def _export(self) -> None:
        # An account that is new begins with nothing, which is kept wherever it is not mentioned.
        opened = dict.fromkeys(self._ledger.amounts, Amount()) | dict(self._exported)
        self.metrics.set_usage(opened, with_cost=bool(self.settings.prices))


def _overdue_seconds(memory: Memory, pools: tuple[PoolState, ...], settings: Settings, now: datetime) -> float:
    """Return for how long the most overdue pool should have been gone; of workloads that nobody watches none is."""
    unwatched = {state.name for state in pools if state.unwatched}
    since = (moment for name, moment in memory.unneeded_since.items() if name not in unwatched)
    longest = max(((now - moment).total_seconds() for moment in since), default=0.0)
    return max(0.0, longest - settings.deletion_delay_seconds)
