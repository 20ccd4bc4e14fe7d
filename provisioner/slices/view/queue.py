"""Who waits for a limit, in which order, who has what it allows, and what is about to become free."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.reserving import scope_of
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.turns import Unit, in_order, unit_of, waits_since
from provisioner.slices.view.types import PoolView, QueueView, id_of_slice

#: So many workloads that use a limit are named, and so many slices that are ahead.
_NAMED = 3


def _counts(pool: PoolView, scope: str) -> bool:
    """Whether the chips of a pool count within a limit."""
    kind, _, name = scope.partition(" ")
    return (
        kind == "all"
        or (kind == "namespace" and pool.namespace == name)
        or (kind == "accelerator" and pool.accelerator == name)
    )


def queues(
    memory: Memory, slices: Mapping[SliceId, Slice], pools: Iterable[PoolView], now: datetime
) -> dict[SliceId, QueueView]:
    """Return the place of each slice that waits for a limit; slices that start together have one place."""
    waiting: dict[str, dict[Unit, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    for each in slices.values():
        for unit in (unit_of(each), unit_of(each, together=True)):
            if unit in memory.waits_for:
                waiting[memory.waits_for[unit]][unit].append(each)
    pools = tuple(pools)
    found: dict[SliceId, QueueView] = {}
    for resource, units in waiting.items():
        since = {unit: min(waits_since(each, now) for each in members) for unit, members in units.items()}
        turn = memory.turns.get(resource)
        # Whoever has the turn is next, until it is served.
        order = sorted(
            in_order(resource, since, memory.last_turns), key=lambda unit: turn is None or unit != turn.holder
        )
        scope = scope_of(resource)
        counted = [each for each in pools if _counts(each, scope)]
        used = Counter[str]()
        for pool in counted:
            used[pool.workload or pool.name] += pool.chips
        idle = [each for each in counted if each.delete_at is not None]
        for place, unit in enumerate(order, start=1):
            view = QueueView(
                limit=scope,
                place=place,
                length=len(order),
                ahead=tuple(id_of_slice(units[each][0]) for each in order[: min(place - 1, _NAMED)]),
                users=tuple(f"{name}: {chips} chips" for name, chips in used.most_common(_NAMED)),
                other_users=max(0, len(used) - _NAMED),
                idle_chips=sum(each.chips for each in idle),
                idle_until=min((each.delete_at for each in idle if each.delete_at is not None), default=None),
            )
            found |= {each.id: view for each in units[unit]}
    return found
