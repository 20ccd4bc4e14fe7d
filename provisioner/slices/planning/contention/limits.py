"""Counts chips, pools and creates against the limits of the administrator.

The provisioner's pools count in any status, also pools whose create was sent but that are not listed yet. The chips of
a pool count for the namespaces of its unfinished pods (`usage.is_guest` has exceptions); without such pods, for the
workload whose slice counts on the pool; without such a slice, for the workload that the pool was created for.

If a limit refuses a slice, slices of equal priority may use the rest of the limit. The amount that the slice requests
may be withheld from lower priorities (`options.keep_from_lower`), for at most `KEPT_AT_MOST`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from provisioner.model.capacity import PoolName
from provisioner.model.workloads import WorkloadName
from provisioner.settings import Settings
from provisioner.settings.forms import OTHERS
from provisioner.slices.demand import Slice
from provisioner.slices.planning.contention.line import Unit
from provisioner.slices.planning.contention.usage import (
    ALL,
    CREATES_PER_HOUR,
    Charge,
    LimitScope,
    LimitUse,
    ScopeKind,
    charge_of,
    users_of,
)
from provisioner.slices.planning.contention.waits import Limit, WaitKind, WaitsFor
from provisioner.slices.planning.round import OwnedPool, Round

HOUR = timedelta(hours=1)
#: Time after which an unschedulable leader pod that a limit refuses no longer withholds chips, pools and creates from
#: lower priorities. Without this bound, a pod that can never be served would block all pods of lower priority.
KEPT_AT_MOST = timedelta(hours=12)
#: Limits in which only the namespace or the workload of a slice can make room for the slice.
_OWN = (ScopeKind.NAMESPACE, ScopeKind.REQUESTS, ScopeKind.WORKLOAD)


@dataclass(slots=True, kw_only=True)
class Budget:
    """Chips, pools and creates that the limits count. The current decision adds its claims and creates."""

    settings: Settings
    now: datetime
    #: Whether a ProvisioningRequest or a CapacityBuffer has slices.
    requests: bool = False
    #: Reason to wait while the creation of pools is paused; None if it is not paused.
    paused: WaitsFor | None = None
    used: Counter[LimitScope] = field(default_factory=Counter)
    #: Part of `used` that will soon be free: pools that are being deleted, or have failed and have no pods.
    going: Counter[LimitScope] = field(default_factory=Counter)
    charges: dict[PoolName, Charge] = field(default_factory=dict)
    created: list[datetime] = field(default_factory=list)
    #: Amounts withheld for refused units, by scope and priority of these units. Lower priorities may not use them.
    kept: dict[LimitScope, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def of(cls, ctx: Round) -> Budget:
        """Return the budget at the beginning of a decision, before slices count on pools."""
        paused_since = ctx.snapshot.paused_since
        paused = WaitsFor(kind=WaitKind.PAUSE) if paused_since or ctx.settings.pause_creation else None
        requests = any(not slice_.workload.kind.has_pods for slice_ in ctx.slices.values())
        budget = cls(settings=ctx.settings, now=ctx.now, requests=requests, paused=paused)
        budget.created = sorted(at for at in ctx.memory.created_at if at > ctx.now - HOUR)
        budget.used[CREATES_PER_HOUR] = len(budget.created)
        if budget.counts:
            users = users_of(ctx)
            for pool in ctx.owned.values():
                charge = charge_of(pool, users.get(pool.name, Counter()))
                budget._charge(pool.name, charge)
                if pool.going or (pool.broken and pool.name not in users):
                    budget.going.update(dict(charge.amounts()))
        return budget

    @property
    def counts(self) -> bool:
        """Whether a limit on chips or pools applies."""
        settings = self.settings
        amounts = settings.max_chips_per_namespace or settings.max_chips_per_accelerator
        amounts = amounts or (settings.max_requested_chips_per_namespace if self.requests else ())
        return bool(amounts) or settings.max_chips is not None or settings.max_pools_per_jobset is not None

    def refusal(self, slices: Sequence[Slice], unit: Unit) -> WaitsFor | None:
        """Return the pause or limit that does not allow new pools for all these slices together; None if allowed."""
        if self.paused is not None:
            return self.paused
        for limit in limits_of(slices, self.settings):
            kept = self._kept_from(unit, limit.scope)
            excess = self.used[limit.scope] + kept + limit.requested - limit.maximum
            if excess > 0:
                ends = limit.scope == CREATES_PER_HOUR and excess <= len(self.created)
                used, going = self.used[limit.scope], self.going[limit.scope]
                return WaitsFor(
                    kind=WaitKind.LIMIT,
                    limit=limit._replace(slices=len(slices), used=used, going=going, kept=kept),
                    until=self.created[excess - 1] + HOUR if ends else None,
                    final=limit.requested > limit.maximum,
                )
        return None

    def keep(self, slices: Iterable[Slice], unit: Unit) -> None:
        """Withhold the chips, pools and creates of a refused unit from lower priorities, for at most `KEPT_AT_MOST`.

        While a limit of the unit's own namespace or workload stays exceeded, only the amounts of such limits are
        withheld, because the unit could not use other chips.
        """
        if self.now - unit.since >= KEPT_AT_MOST:
            return
        limits = limits_of(slices, self.settings)
        own = [limit for limit in limits if limit.scope.kind in _OWN and self._stays_exceeded(limit, unit)]
        for limit in own or limits:
            self.kept[limit.scope][unit.priority] += limit.requested

    def take(self, slice_: Slice) -> None:
        """Count a create that has been decided."""
        workload = slice_.workload
        if slice_.shape is not None and self.counts:
            chips = {workload.namespace: slice_.chips}
            self._count(Charge(chips, slice_.shape.accelerator.label, workload.full_name, workload.uid), 1)
        self.created.append(self.now)
        self.used[CREATES_PER_HOUR] += 1

    def allows_claim(self, slice_: Slice, unit: Unit, pool: OwnedPool, *, again: bool = False) -> bool:
        """Whether the limits allow a slice to count on a pool, whose chips then count for the slice.

        With `again`, the slice had the pool before, and amounts that are withheld for higher priorities are ignored.
        """
        charge = self.charges.get(pool.name)
        if charge is None:
            return True
        limits = {limit.scope: limit for limit in limits_of([slice_], self.settings)}
        for limit in limits.values() if self.kept and not again else ():
            kept = self._kept_from(unit, limit.scope)
            if kept and self.used[limit.scope] + kept > limit.maximum:
                return False
        new = Charge({unit.namespace: pool.chips}, charge.accelerator, slice_.workload.full_name, slice_.workload.uid)
        before = dict(charge.amounts())
        more = ((scope, amount - before.get(scope, 0)) for scope, amount in new.amounts() if scope in limits)
        return all(amount <= 0 or self.used[scope] + amount <= limits[scope].maximum for scope, amount in more)

    def claim(self, slice_: Slice, pool: OwnedPool) -> None:
        """Charge a pool to the workload of `slice_` instead of the previous workload."""
        charge, workload = self.charges.get(pool.name), slice_.workload
        if charge is not None and charge.uid != workload.uid:
            self._count(charge, -1)
            chips = {workload.namespace: pool.chips}
            self._charge(pool.name, Charge(chips, charge.accelerator, workload.full_name, workload.uid))

    def users(self) -> Mapping[LimitScope, Counter[str]]:
        """Return the number of chips or pools of each workload, by scope."""
        by_workload: dict[LimitScope, Counter[str]] = defaultdict(Counter)
        for charge in self.charges.values():
            for scope, amount in charge.amounts():
                by_workload[scope]["/".join(charge.workload)] += amount
        return by_workload

    def uses(self) -> tuple[LimitUse, ...]:
        """Return the used amounts of limits that are set."""
        settings, uses = self.settings, list[LimitUse]()
        if settings.max_chips is not None:
            uses.append(LimitUse("MAX_CHIPS", "all", self.used[ALL], settings.max_chips))
        uses += self._uses("MAX_CHIPS_PER_NAMESPACE", settings.max_chips_per_namespace, ScopeKind.NAMESPACE)
        if self.requests:
            requested = settings.max_requested_chips_per_namespace
            uses += self._uses("MAX_REQUESTED_CHIPS_PER_NAMESPACE", requested, ScopeKind.REQUESTS)
        uses += self._uses("MAX_CHIPS_PER_ACCELERATOR", settings.max_chips_per_accelerator, ScopeKind.ACCELERATOR)
        if settings.max_pools_per_jobset is not None:
            max_used = max((used for scope, used in self.used.items() if scope.kind is ScopeKind.WORKLOAD), default=0)
            uses.append(LimitUse("MAX_POOLS_PER_JOBSET", OTHERS, max_used, settings.max_pools_per_jobset))
        if settings.max_creates_per_hour is not None:
            uses.append(LimitUse("MAX_CREATES_PER_HOUR", "all", len(self.created), settings.max_creates_per_hour))
        return tuple(uses)

    def _kept_from(self, unit: Unit, scope: LimitScope) -> int:
        return sum(amount for by, amount in self.kept[scope].items() if by > unit.priority) if self.kept else 0

    def _stays_exceeded(self, limit: Limit, unit: Unit) -> bool:
        used = self.used[limit.scope] - self.going[limit.scope] + self._kept_from(unit, limit.scope)
        return used + limit.requested > limit.maximum

    def _charge(self, name: PoolName, charge: Charge) -> None:
        self.charges[name] = charge
        self._count(charge, 1)

    def _count(self, charge: Charge, sign: int) -> None:
        for scope, amount in charge.amounts():
            self.used[scope] += sign * amount

    def _uses(self, setting: str, amounts: Iterable[tuple[str, int]], kind: ScopeKind) -> Iterator[LimitUse]:
        named = dict(amounts)
        for name, maximum in named.items():
            others = (used for scope, used in self.used.items() if scope.kind is kind and scope.name not in named)
            used = max(others, default=0) if name == OTHERS else self.used[LimitScope(kind, name)]
            yield LimitUse(setting, name, used, maximum)


def limits_of(slices: Iterable[Slice], settings: Settings) -> Iterable[Limit]:
    """Return each limit that applies to at least one of the slices, with the total amount that they request."""
    limits: dict[LimitScope, Limit] = {}
    for slice_ in slices:
        if slice_.shape is None:
            continue
        for setting, maximum, kind, name, amount in _limits_of(slice_, slice_.shape.accelerator.label, settings):
            scope = LimitScope(kind, name)
            before = limits[scope].requested if scope in limits else 0
            limits[scope] = Limit(setting, scope, maximum, before + amount)
    return limits.values()


def _limits_of(
    slice_: Slice, accelerator: str, settings: Settings
) -> Iterator[tuple[str, int, ScopeKind, str | WorkloadName, int]]:
    workload, namespace, chips = slice_.workload, slice_.workload.namespace, slice_.chips
    if settings.max_chips is not None:
        yield "MAX_CHIPS", settings.max_chips, *ALL, chips
    if (maximum := _amount(settings.max_chips_per_namespace, namespace)) is not None:
        yield "MAX_CHIPS_PER_NAMESPACE", maximum, ScopeKind.NAMESPACE, namespace, chips
    requested = settings.max_requested_chips_per_namespace if not workload.kind.has_pods else ()
    if (maximum := _amount(requested, namespace)) is not None:
        yield "MAX_REQUESTED_CHIPS_PER_NAMESPACE", maximum, ScopeKind.REQUESTS, namespace, chips
    if (maximum := _amount(settings.max_chips_per_accelerator, accelerator)) is not None:
        yield "MAX_CHIPS_PER_ACCELERATOR", maximum, ScopeKind.ACCELERATOR, accelerator, chips
    if settings.max_creates_per_hour is not None:
        yield "MAX_CREATES_PER_HOUR", settings.max_creates_per_hour, *CREATES_PER_HOUR, 1
    if settings.max_pools_per_jobset is not None:
        yield "MAX_POOLS_PER_JOBSET", settings.max_pools_per_jobset, ScopeKind.WORKLOAD, workload.full_name, 1


def problem_of(slices: Sequence[Slice], settings: Settings) -> tuple[str, ...]:
    """Return why the limits can never allow pools for all the slices together; empty if the limits can allow them."""
    exceeded = next((limit for limit in limits_of(slices, settings) if limit.requested > limit.maximum), None)
    return (f"{exceeded.setting} does not allow all of them at once",) if exceeded is not None else ()


def remembered(created_at: Iterable[datetime], started: int, settings: Settings, now: datetime) -> tuple[datetime, ...]:
    """Return the times of creates to remember, with `now` per started create; empty without MAX_CREATES_PER_HOUR."""
    if settings.max_creates_per_hour is None:
        return ()
    # A time far in the future was written by a clock that was ahead, and is dropped.
    return (*(at for at in created_at if now - HOUR < at <= now + HOUR), *(now,) * started)


def _amount(amounts: Iterable[tuple[str, int]], name: str) -> int | None:
    by_name = dict(amounts)
    return by_name.get(name, by_name.get(OTHERS))
