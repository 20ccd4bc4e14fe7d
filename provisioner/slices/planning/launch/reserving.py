"""Turns on limits: what becomes free within a limit is kept for the unit whose turn it is.

A stream of small workloads could keep a large one out for as long as it lasts, because each takes what the one before
it leaves: by a create, by taking its pool, or by the scheduler, which binds whatever waits to the nodes of a job that
has ended. So during a turn others make no creates and take no pools within the limit that would use what is kept, and
the pools in use are closed for new pods, all of them until enough are free: nobody knows which one ends first.

It also chooses the pools that are deleted for others that wait: the idle ones whose chips a limit needs, and those to
which no pod has been bound for long, for a limit or for a capacity that is out of stock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.model.workloads import WorkloadKind, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.blocked import problem_of
from provisioner.slices.planning.launch.gangs import Turns
from provisioner.slices.planning.launch.limits import CREATES_PER_HOUR, HOUR, Budget, breadth
from provisioner.slices.planning.match import KEPT_AT_MOST, Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.plan import Create
from provisioner.slices.planning.round import Round, Supply
from provisioner.slices.planning.turns import SLOWEST, TURN, Turn, Unit, had_since, next_turn, unit_of

_RESOURCE = "limit "


def resource_of(scope: str) -> str:
    """Return the resource that turns within a limit are for."""
    return f"{_RESOURCE}{scope}"


def scope_of(resource: str) -> str:
    """Return the scope of a limit from the resource, such as "namespace research"."""
    return resource.removeprefix(_RESOURCE)


def reserve(round_: Round, budget: Budget, slices: Iterable[Slice], members: Mapping[WorkloadUid, object]) -> None:
    """Reserve chips for the units whose turn it is, for what `slices` ask for."""
    budget.reserved.clear()
    turns = {
        resource.removeprefix(_RESOURCE): turn.holder
        for resource, turn in round_.memory.turns.items()
        if resource.startswith(_RESOURCE) and turn.holder is not None
    }
    if not turns:
        return
    units = _by_unit(slices, members)
    for scope, holder in turns.items():
        if holder in units:
            budget.reserve(scope, holder, units[holder])


def pass_on(
    round_: Round,
    budget: Budget,
    waiting: Mapping[str, Mapping[Unit, datetime]],
    matching: Matching,
    members: Mapping[WorkloadUid, object],
    creates: Iterable[Create],
) -> dict[str, Turn]:
    """Return whose turn it is within each limit from now on; `waiting` are those that it keeps out, by scope.

    A unit that has room within one limit and waits for a turn within a wider one keeps its turn until it has had that,
    and has the next turn of its namespace there.
    """
    if not (waiting or round_.memory.turns):
        return {}
    unserved, memory, now = _by_unit(matching.unserved, members), round_.memory, round_.now
    waits_in = {unit: scope for scope, units in waiting.items() for unit in units}
    resources = {each for each in memory.turns if each.startswith(_RESOURCE)}
    turns = {resource.removeprefix(_RESOURCE): memory.turns[resource] for resource in resources}
    kept: dict[str, Turn] = {}
    for scope, turn in turns.items():
        wider = waits_in.get(turn.holder, "") if turn.holder is not None else ""
        later = wider and breadth(wider) > breadth(scope)
        if later and not had_since(resource_of(wider), turn, memory.turns, memory.last_turns):
            kept[scope] = turn
    # Those who have had a turn within a narrower limit, or for stock, and keep it for this one.
    at_stock = (turn for resource, turn in memory.turns.items() if resource not in resources)
    keepers = {turn.holder for turn in (*kept.values(), *at_stock)}
    found, started = dict(kept), {each.slice_id.workload_uid for each in creates}
    for scope in (turns.keys() | waiting.keys()) - kept.keys():
        before, units = turns.get(scope), waiting.get(scope, {})
        first = {unit.namespace for unit in units if unit in keepers}
        queue = {unit: at for unit, at in units.items() if unit in keepers or unit.namespace not in first}
        holder = before.holder if before is not None else None
        tries = holder is not None and holder.workload_uid in started
        if before is not None and holder in unserved and (tries or not budget.forbids(unserved[holder])):
            # Capacity may be missing for a moment, and is not what the turn is about.
            queue.setdefault(holder, now)
            busy = tries or _is_busy(scope, holder, round_, matching, budget)
            if busy and now < before.began_at + SLOWEST:
                found[scope] = before
                continue
        length = TURN + HOUR if scope == CREATES_PER_HOUR else TURN
        after = next_turn(before, resource_of(scope), queue, memory.last_turns, now, length)
        if before is None and after is not None and after.holder is not None:
            # Who comes back soon after a turn begins with the pause: pools would be closed and opened all the time.
            recent = now - memory.last_turns.get((resource_of(scope), after.holder), now - TURN) < TURN
            after = Turn(holder=None, began_at=now) if recent else after
        found |= {scope: after} if after is not None else {}
    return {resource_of(scope): turn for scope, turn in found.items()}


def _is_busy(scope: str, unit: Unit, round_: Round, matching: Matching, budget: Budget) -> bool:
    """Whether GKE deletes what a unit needs to be free, or creates pools for others of its slices."""
    missing = budget.reserved[scope].missing if scope in budget.reserved else 0
    if missing > 0:
        return missing <= _going(scope, round_, matching, budget)
    provisioning = (each for each in round_.supply.values() if each.pool.status is PoolStatus.PROVISIONING)
    owners = (round_.made_for.get(each.name) for each in provisioning)
    return any(owner is not None and owner.workload_uid == unit.workload_uid for owner in owners)


def _by_unit(slices: Iterable[Slice], members: Mapping[WorkloadUid, object]) -> dict[Unit, list[Slice]]:
    units: dict[Unit, list[Slice]] = defaultdict(list)
    for each in slices:
        units[unit_of(each, together=each.workload.uid in members)].append(each)
    return units


def closing(round_: Round, matching: Matching, budget: Budget) -> frozenset[PoolName]:
    """Choose the pools that take no new pods, so that they are free once the pods on them have ended.

    Only pools whose slices have all their pods bound: a follower must always reach its leader.
    """
    chosen: set[PoolName] = set()
    for scope, reserved in budget.reserved.items():
        if reserved.missing > _going(scope, round_, matching, budget):
            chosen.update(
                name
                for name, holders in matching.holders.items()
                if name in round_.supply
                and budget.counts_in(scope, round_.supply[name])
                and _settled(holders, round_.slices, reserved.unit)
            )
    # A request has no pods that the scheduler could prefer: what it counts on stays closed until it is served.
    for name, slice_id in matching.claimed.items():
        slice_ = round_.slices[slice_id]
        waits = slice_.pending and slice_.workload.kind is WorkloadKind.PROVISIONING_REQUEST
        if waits and any(node.cordoned_by_us for node in round_.supply[name].nodes):
            chosen.add(name)
    return frozenset(chosen)


def _going(scope: str, round_: Round, matching: Matching, budget: Budget) -> int:
    """Return how many chips within a limit are about to become free: no pods are on them, and nobody counts on them."""
    used = {*matching.claimed, *matching.holders}
    return sum(
        each.chips
        for each in round_.supply.values()
        if budget.counts_in(scope, each) and (each.going or not (each.unwatched or each.name in used))
    )


def _settled(holders: frozenset[SliceId | None], slices: Mapping[SliceId, Slice], unit: Unit) -> bool:
    """Whether all pods of the slices on a pool are bound, none of them of the workload for which chips are kept."""
    return bool(holders) and all(
        slice_id is not None
        and slice_id.workload_uid != unit.workload_uid
        and slice_id in slices
        and sum(bool(pod.node_name) for pod in slices[slice_id].pods) >= slices[slice_id].parallelism
        and all(pod.node_name for pod in slices[slice_id].pods)
        for slice_id in holders
    )


def to_evict(round_: Round, matching: Matching, turns: Turns, budget: Budget) -> frozenset[PoolName]:
    """Choose idle pools, and those to which no pod of their slice has been bound for long, that others wait for."""
    # Longest first.
    long_ago = round_.now - KEPT_AT_MOST
    since = sorted((since, name) for name, since in matching.unbound_since.items() if since <= long_ago)
    unbound = [round_.supply[name] for _, name in since]
    return _for_limits(round_, matching, turns, budget, unbound) | _for_stock(round_, matching, budget, unbound)


def _for_stock(round_: Round, matching: Matching, budget: Budget, unbound: list[Supply]) -> frozenset[PoolName]:
    """Choose one such pool of each capacity that is out of stock and that another workload waits for."""
    backoffs, pools = round_.memory.backoffs, round_.supply.values()
    out = {key for key in backoffs if backoff.probing(backoffs, key) is not None}
    if not (out and unbound):
        return frozenset()
    out -= {capacity_key(each.pool) for each in pools if each.going}
    wanted: dict[tuple[str, str], set[WorkloadUid]] = defaultdict(set)
    for slice_ in matching.unserved:
        # Who may have none, or failed for a reason of its own, would not use it.
        if slice_.shape is not None and slice_.id not in round_.memory.slice_backoffs and not budget.forbids((slice_,)):
            wanted[slice_.shape.machine_type.name, str(slice_.shape.topology)].add(slice_.workload.uid)
    chosen: dict[str, PoolName] = {}
    for each in unbound:
        key, user = capacity_key(each.pool), matching.claimed[each.name].workload_uid
        if key in out and wanted[each.pool.machine_type, each.pool.topology] - {user}:
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
        if each.going:
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

    Before them those of buffers. Last those that could not be deleted so far: they may be in use by somebody who is not
    seen here.
    """
    supply = round_.supply
    buffered = sorted(name for name, user in matching.claimed.items() if round_.slices[user].spare)
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
    return [supply[name] for name in (*buffered, *ordered) if supply[name].listed]


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
