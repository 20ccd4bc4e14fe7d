"""Which pools without pods go because others wait: for room within the limits, or for stock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.slices.demand import Slice
from provisioner.slices.planning.launch.blockers import problem_of
from provisioner.slices.planning.launch.gangs import Turns
from provisioner.slices.planning.launch.limits import Budget
from provisioner.slices.planning.match.assignment import KEPT_AT_MOST, Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply
from provisioner.slices.planning.turns import unit_of


def to_evict(round_: Round, matching: Matching, turns: Turns, budget: Budget) -> frozenset[PoolName]:
    """Choose idle pools, and those to which no pod of their slice has been bound for long, that others wait for."""
    unbound = _unbound(round_, matching)
    return _for_limits(round_, matching, turns, budget, unbound) | _for_stock(round_, matching, unbound)


def _unbound(round_: Round, matching: Matching) -> list[Supply]:
    """List the ready pools to which no pod of the slices that count on them has been bound for long, longest first."""
    long_ago = round_.now - KEPT_AT_MOST
    found = sorted((since, name) for name, since in matching.unbound_since.items() if since <= long_ago)
    return [round_.supply[name] for _, name in found]


def _for_stock(round_: Round, matching: Matching, unbound: list[Supply]) -> frozenset[PoolName]:
    """Choose one such pool of each capacity that is out of stock and that another slice waits for."""
    backoffs, pools = round_.memory.backoffs, round_.supply.values()
    out = {key for key in backoffs if backoff.probing(backoffs, key) is not None}
    if not (out and unbound):
        return frozenset()
    out -= {capacity_key(each.pool) for each in pools if each.leaving or each.pool.status is PoolStatus.STOPPING}
    shapes = (each.shape for each in matching.unserved)
    wanted = {(shape.machine_type.name, str(shape.topology)) for shape in shapes if shape is not None}
    chosen: dict[str, PoolName] = {}
    for each in unbound:
        key = capacity_key(each.pool)
        if key in out and (each.pool.machine_type, each.pool.topology) in wanted:
            chosen.setdefault(key, each.name)
    return frozenset(chosen.values())


def _for_limits(
    round_: Round, matching: Matching, turns: Turns, budget: Budget, unbound: list[Supply]
) -> frozenset[PoolName]:
    """Choose idle pools, the longest idle first, whose chips a slice waits for that the limits keep from its own.

    Then the unbound ones. What is on its way out already makes room first. No pool goes for slices that would not be
    bought all the same: where one cannot be had anyway, or not all those that start together.
    """
    idle = [*_longest_idle(round_, matching), *unbound]
    if not idle:
        return frozenset()
    together: dict[Hashable, list[Slice]] = defaultdict(list)
    for slice_ in matching.unserved:
        uid = slice_.workload.uid
        if uid not in turns.sidelined:
            together[uid if uid in turns.members else slice_.id].append(slice_)
    room = budget.copy()
    for each in round_.supply.values():
        if each.leaving or each.pool.status is PoolStatus.STOPPING:
            room.give_back(each)
    holders = {each.unit for each in budget.reserved.values()}
    chosen: set[PoolName] = set()
    # What found no room: who asks for as much within the same limits finds none either.
    in_vain: set[Hashable] = set()
    for slices in together.values():
        workload = slices[0].workload
        if budget.refusal(slices[0]) is None and _make_room(slices, (), budget) is not None:
            continue
        whose = workload.namespace if round_.settings.max_pools_per_jobset is None else workload.full_name
        key = whose, tuple((room.refusing(each), id(each.shape), each.nodes) for each in slices)
        has_turn = unit_of(slices[0], together=workload.uid in turns.members) in holders
        if (key in in_vain and not has_turn) or any(problem_of(round_, each, matching.zones) for each in slices):
            continue
        found = _make_room(slices, [each for each in idle if each.name not in chosen], room)
        if found is None:
            in_vain.add(key)
        else:
            chosen |= found[0]
            room = found[1]
    return frozenset(chosen)


def _longest_idle(round_: Round, matching: Matching) -> list[Supply]:
    """List the pools that nothing needed at the last look, nor does now, those that are idle for longest first.

    Last those that could not be deleted so far: they may be in use by somebody who is not seen here.
    """
    supply = round_.supply
    idle_since = {
        name: since
        for name, since in round_.memory.unneeded_since.items()
        if name in supply
        and supply[name].usable
        and not supply[name].unwatched
        and name not in matching.claimed
        and not matching.holders.get(name)
    }
    ordered = sorted(idle_since, key=lambda name: (supply[name].half_deleted, idle_since[name], name))
    return [supply[name] for name in ordered]


def _make_room(
    slices: Iterable[Slice], idle: Iterable[Supply], room: Budget
) -> tuple[frozenset[PoolName], Budget] | None:
    """Choose the pools that go for some slices, and count all of them; None where it would be of no use."""
    room = room.copy()
    left = {each.name: each for each in idle}
    going: set[PoolName] = set()
    for slice_ in slices:
        for name, each in tuple(left.items()):
            if room.refusal(slice_) is None:
                break
            if room.in_the_way(slice_, each):
                room.give_back(each)
                going.add(name)
                del left[name]
        if room.refusal(slice_) is not None:
            return None
        room.take(slice_)
    return frozenset(going), room
