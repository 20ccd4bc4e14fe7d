"""How much of each limit is used: for people, who want to see a limit before it is in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner import tpu
from provisioner.model.workloads import WorkloadName
from provisioner.settings import Settings
from provisioner.settings.forms import OTHERS
from provisioner.slices.planning.launch.limits import Budget, is_lent
from provisioner.slices.planning.plan import Plan

#: The scope of a limit on everything.
ALL = "all"
_HOUR = timedelta(hours=1)


class LimitUse(NamedTuple):
    """One limit, and how much of it is used."""

    #: The setting's name.
    limit: str
    #: `ALL`, a namespace or accelerator that the setting names, or "*": of all others the one that uses most.
    scope: str
    most: int
    used: int


def uses_of_limits(plan: Plan, settings: Settings, now: datetime) -> tuple[LimitUse, ...]:
    """Count what there is, and is being created, against each limit that is set.

    Its chips count for the workload that a pool was made for, also where only pods of others are on it; then the pool
    is none of that workload's.
    """
    if settings.max_creates_per_hour is None and not Budget(settings=settings, now=now).counts:
        return ()
    by_namespace: Counter[str] = Counter()
    by_accelerator: Counter[str] = Counter()
    by_workload: Counter[WorkloadName] = Counter()
    holders = {state.name: state.holders for state in plan.pools}
    for each in plan.derived.supply.values() if plan.derived is not None else ():
        known = tpu.machine_type(each.pool.machine_type)
        by_namespace[each.workload_name.namespace] += each.chips
        by_accelerator[known[0].label if known is not None else ""] += each.chips
        by_workload[each.workload_name] += not is_lent(each, holders.get(each.name, frozenset()))
    uses: list[LimitUse] = []
    if settings.max_chips is not None:
        uses.append(LimitUse("MAX_CHIPS", ALL, settings.max_chips, by_namespace.total()))
    uses += _by_name("MAX_CHIPS_PER_NAMESPACE", settings.max_chips_per_namespace, by_namespace)
    uses += _by_name("MAX_CHIPS_PER_ACCELERATOR", settings.max_chips_per_accelerator, by_accelerator)
    if settings.max_pools_per_jobset is not None:
        most_pools = max(by_workload.values(), default=0)
        uses.append(LimitUse("MAX_POOLS_PER_JOBSET", OTHERS, settings.max_pools_per_jobset, most_pools))
    if settings.max_creates_per_hour is not None:
        recent = sum(moment > now - _HOUR for moment in plan.memory.created_at.values())
        uses.append(LimitUse("MAX_CREATES_PER_HOUR", ALL, settings.max_creates_per_hour, recent))
    return tuple(uses)


def _by_name(limit: str, amounts: Iterable[tuple[str, int]], used: Counter[str]) -> Iterator[LimitUse]:
    named = dict(amounts)
    for name, most in named.items():
        others = (chips for other, chips in used.items() if other not in named)
        yield LimitUse(limit, name, most, max(others, default=0) if name == OTHERS else used[name])
