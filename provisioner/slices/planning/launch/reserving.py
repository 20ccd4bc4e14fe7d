"""Turns on limits: what becomes free within a limit is kept for the unit whose turn it is.

A stream of small workloads could keep a large one out for as long as it lasts, because each takes what the one before
it leaves: by a create, by taking its pool, or by the scheduler, which binds whatever waits to the nodes of a job that
has ended. So during a turn others make no creates and take no pools within the limit that would use what is kept, and
as many pools as are needed are closed for new pods while those on them run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.limits import Budget, breadth
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply
from provisioner.slices.planning.turns import Turn, Unit, next_turn, unit_of

_RESOURCE = "limit "


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
    together: dict[Unit, list[Slice]] = defaultdict(list)
    for each in slices:
        together[unit_of(each, together=each.workload.uid in members)].append(each)
    for scope, holder in turns.items():
        if holder in together:
            budget.reserve(scope, holder, together[holder])


def pass_on(round_: Round, waiting: Mapping[str, Mapping[Unit, datetime]]) -> dict[str, Turn]:
    """Return whose turn it is within each limit from now on; `waiting` are those that it keeps out, by scope.

    A unit that has room within one limit and waits for a turn within a wider one keeps its turn until it has had that.
    """
    memory = round_.memory
    waits_in = {unit: scope for scope, units in waiting.items() for unit in units}
    found: dict[str, Turn] = {}
    for resource in {*memory.turns, *(f"{_RESOURCE}{scope}" for scope in waiting)}:
        if not resource.startswith(_RESOURCE):
            continue
        scope, turn = resource.removeprefix(_RESOURCE), memory.turns.get(resource)
        wider = waits_in.get(turn.holder, "") if turn is not None and turn.holder is not None else ""
        # No two units wait for each other: each waits for wider limits than those that it keeps.
        keeps = wider and breadth(wider) > breadth(scope)
        if turn is None or not keeps or _had_turn(f"{_RESOURCE}{wider}", turn, memory):
            turn = next_turn(turn, resource, waiting.get(scope, {}), memory.last_turns, round_.now)
        found |= {resource: turn} if turn is not None else {}
    return found


def _had_turn(resource: str, since: Turn, memory: Memory) -> bool:
    """Whether the holder of one turn has had another one, at another resource, since that began."""
    now, unit = memory.turns.get(resource), since.holder
    over = now is None or now.holder != unit
    return over and unit is not None and memory.last_turns.get((resource, unit), since.began_at) > since.began_at


def closing(round_: Round, matching: Matching, budget: Budget) -> frozenset[PoolName]:
    """Choose the pools that take no new pods, so that they are free once the pods on them have ended.

    Only pools whose slices have all their pods bound: a follower must always reach its leader. Those that are closed
    already come first, so that the choice does not wander.
    """
    chosen: set[PoolName] = set()
    if not budget.reserved:
        return frozenset()
    pools = sorted(
        round_.supply.values(), key=lambda each: (not any(node.cordoned_by_us for node in each.nodes), each.name)
    )
    for scope, reserved in budget.reserved.items():
        missing = reserved.missing
        in_use: list[Supply] = []
        for each in pools:
            if not budget.counts_in(scope, each):
                continue
            idle = not matching.holders.get(each.name) and each.name not in matching.claimed and not each.unwatched
            if idle or each.leaving or each.pool.status is PoolStatus.STOPPING or each.name in chosen:
                missing -= each.chips
            elif _settled(matching.holders.get(each.name, frozenset()), round_.slices, reserved.unit):
                in_use.append(each)
        for each in in_use:
            if missing <= 0:
                break
            chosen.add(each.name)
            missing -= each.chips
    return frozenset(chosen)


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
