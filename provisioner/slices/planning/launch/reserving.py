"""Slices that the limits on chips keep out for too long: what becomes free is kept for them.

A stream of small workloads could keep a large one out for ever, because each takes what the one before it leaves: by a
create, by taking its pool, or by the scheduler, which binds whatever waits to the nodes of a job that has ended. So
those that came later make no creates and take no pools within the limit, and as many pools as are needed are closed for
new pods while those on them run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch import limits
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory.state import KeepingTurn, Memory, Reservation
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: How long a slice waits before what becomes free is kept for it.
RESERVED_AFTER = timedelta(minutes=10)
#: For how long the first time; each time in vain doubles it, so many times at most.
_FIRST_TURN = timedelta(minutes=10)
_MOST_DOUBLINGS = 12
_SHORTEST_PAUSE = timedelta(minutes=1)


def is_due(waited: timedelta) -> bool:
    """Whether a slice has waited for so long that what becomes free may be kept for it."""
    return waited >= RESERVED_AFTER


def is_open(turn: KeepingTurn | None, now: datetime) -> bool:
    """Whether somebody may be given the next turn now: it is nobody's, and the pause after the last one is over."""
    return turn is None or (turn.workload_uid is None and turn.until <= now)


def pass_turns(
    memory: Memory,
    kept: Collection[str],
    candidates: Mapping[str, Iterable[WorkloadUid]],
    unserved: Collection[WorkloadUid],
    now: datetime,
) -> tuple[dict[str, KeepingTurn], dict[WorkloadUid, int]]:
    """Return whose turn it is within each limit from now on, and how many turns in vain each workload had.

    `kept` are the limits within which chips are kept now, by the turns of the memory; `candidates` those that wait for
    a turn, longest waiting first; `unserved` all that want a pool. After each turn nothing is kept for as long as it
    lasted, however many wait: where what is in their way lasts for weeks, others must not go without the rest for
    weeks. Of those that wait the one has the next turn that had the fewest, and where what is in its way passes, one of
    the longer and longer turns will do.
    """
    turns: dict[str, KeepingTurn] = {}
    in_vain = dict(memory.turns_in_vain)
    for scope in sorted({*memory.keeping_turns, *candidates}):
        turn = memory.keeping_turns.get(scope)
        if turn is not None and turn.workload_uid is not None and (scope not in kept or turn.until <= now):
            in_vain[turn.workload_uid] = in_vain.get(turn.workload_uid, 0) + 1
            lasted = min(now, turn.until) - turn.began_at
            turn = KeepingTurn(workload_uid=None, began_at=now, until=now + max(lasted, _SHORTEST_PAUSE))
        waiting = tuple(candidates.get(scope, ()))
        if turn is not None and turn.until > now:
            turns[scope] = turn
        elif waiting:
            chosen = min(waiting, key=lambda uid: in_vain.get(uid, 0))
            length = _FIRST_TURN * 2 ** min(in_vain.get(chosen, 0), _MOST_DOUBLINGS)
            turns[scope] = KeepingTurn(workload_uid=chosen, began_at=now, until=now + length)
    return turns, {uid: count for uid, count in in_vain.items() if uid in unserved}


def turn_of(slice_: Slice, memory: Memory) -> datetime:
    """Return since when a slice that wants a pool has waited for its next try."""
    if slice_.leader is None or slice_.leader.unschedulable_since is None:
        raise ValueError(f"slice {slice_.id} has no leader that waits: it wants no pool")
    since = slice_.leader.unschedulable_since
    return max(since, memory.last_failure_at.get(slice_.id, since))


def yielding(slices: Iterable[Slice], memory: Memory) -> frozenset[SliceId]:
    """List the slices that came after one for which what becomes free is kept, within the same limit."""
    if not memory.reservations:
        return frozenset()
    return frozenset(each.id for each in slices if each.pending and _yields(each, memory))


def closing(round_: Round, matching: Matching, reservations: Mapping[str, Reservation]) -> frozenset[PoolName]:
    """Choose the pools that take no new pods, so that they are free once the pods on them have ended.

    Only pools whose slices have all their pods bound: a follower must always reach its leader. Those that are closed
    already come first, so that the choice does not wander.
    """
    chosen: set[PoolName] = set()
    if not reservations:
        return frozenset()
    pools = sorted(
        round_.supply.values(), key=lambda each: (not any(node.cordoned_by_us for node in each.nodes), each.name)
    )
    for scope, reservation in reservations.items():
        missing = reservation.missing_chips
        in_use: list[Supply] = []
        for each in pools:
            if scope not in limits.scopes_of(each):
                continue
            idle = not matching.holders.get(each.name) and each.name not in matching.claimed and not each.unwatched
            if idle or each.leaving or each.pool.status is PoolStatus.STOPPING or each.name in chosen:
                missing -= each.chips
            elif _settled(each, matching, round_.slices, reservation):
                in_use.append(each)
        for each in in_use:
            if missing <= 0:
                break
            chosen.add(each.name)
            missing -= each.chips
    return frozenset(chosen)


def _yields(slice_: Slice, memory: Memory) -> bool:
    turn = turn_of(slice_, memory)
    accelerator = slice_.shape.accelerator.label if slice_.shape is not None else ""
    found = (memory.reservations.get(scope) for scope in limits.scopes(slice_.workload.namespace, accelerator))
    return any(each is not None and each.since < turn and each.workload_uid != slice_.workload.uid for each in found)


def _settled(each: Supply, matching: Matching, slices: Mapping[SliceId, Slice], reservation: Reservation) -> bool:
    """Whether all pods of the slices on a pool are bound, none of them of the workload for which chips are kept."""
    holders = matching.holders.get(each.name, frozenset())
    return bool(holders) and all(
        slice_id is not None
        and slice_id.workload_uid != reservation.workload_uid
        and slice_id in slices
        and sum(bool(pod.node_name) for pod in slices[slice_id].pods) >= slices[slice_id].parallelism
        and all(pod.node_name for pod in slices[slice_id].pods)
        for slice_id in holders
    )
