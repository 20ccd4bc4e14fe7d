"""Decides about workloads whose slices start together or not at all (all-or-nothing). Pure.

The pools of an all-or-nothing workload are kept free (`planning.assignment`) until every slice has a ready pool. Then
all pools are assigned in one decision. If no further slice became ready within PARTIAL_HOLD and no pool is coming up,
the workload releases its pools, which are then deleted. Only ProvisioningRequests, and workloads whose pods admission
has marked, start together.

After a release the workload waits in the queue of its accelerator. Only one workload of this queue may hold pools at a
time. If this workload also releases its pools, or if no other workload holds pools or waits, a pause follows after the
delete of the released pools. A workload that needs several accelerators waits until it can hold all of them.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.model.capacity import PoolName
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.contention.line import Unit, granted, in_line, place_of, unit_of
from provisioner.slices.planning.contention.waits import WaitKind, WaitsFor
from provisioner.slices.planning.create.options import problem_of_all
from provisioner.slices.planning.match import Matching, is_expired
from provisioner.slices.planning.memory.state import Gang, Hold, Phase, Stamps
from provisioner.slices.planning.round import SLOWEST, OwnedPool, Round
from provisioner.slices.planning.spec.capacity import wants_all_or_nothing
from provisioner.slices.planning.spec.specification import is_held

#: Minimum and maximum of the pause after a release of pools, which otherwise is as long as PARTIAL_HOLD.
_MIN_PAUSE, _MAX_PAUSE = timedelta(seconds=60), timedelta(minutes=15)
#: Maximum time after the start of a hold for which deletes of pools extend the hold.
_DELETED_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTurns:
    """The workloads whose slices start together, and which of them may not take or create pools now."""

    members: Mapping[WorkloadUid, list[Slice]]
    #: Holds and pauses by accelerator, for `Memory.holds`.
    holds: Mapping[str, Hold]
    stamps: Stamps
    #: Accelerators with a queue of workloads.
    contended: AbstractSet[str]
    waiting: Mapping[WorkloadUid, WaitsFor]
    #: Workloads in a queue that can never have pools for all slices. They get no hold and delay no workload.
    unsatisfiable: frozenset[WorkloadUid]
    #: Workloads whose pools are deleted, because they wait in a queue after a release or can never be served.
    releasing: frozenset[WorkloadUid]
    wake_at: tuple[datetime, ...]

    def missing_with(self, slice_: Slice, claims: Container[SliceId]) -> list[Slice]:
        """Return a slice that waits for a pool, and the others that start together with it and wait for a pool."""
        members = (member for member in self.members.get(slice_.workload.uid, ()) if member.id != slice_.id)
        waiting = (member for member in members if member.pending and member.id not in claims)
        return [slice_, *(member for member in waiting if not any(pod.node_name for pod in member.pods))]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangProgress:
    """Progress of the workloads whose slices start together."""

    gangs: Mapping[WorkloadUid, Gang]
    holds: Mapping[str, Hold]
    releases: tuple[str, ...]
    #: Workloads whose slices are not all ready, each with the numbers of ready slices and of all slices.
    partial: Mapping[WorkloadUid, tuple[int, int]]
    #: Workloads that release their pools in this decision, each with the reason why it waits.
    released: Mapping[WorkloadUid, WaitsFor]
    wake_at: tuple[datetime, ...]


def take_turns(ctx: Round) -> GangTurns:
    """Decide which workloads may take and create pools: all of them, until a workload has released its pools."""
    memory, now = ctx.memory, ctx.now
    members = _members(ctx)
    accelerators = {uid: _accelerators(slices) for uid, slices in members.items()}
    queued = {uid for uid, gang in memory.gangs.items() if gang.queues and uid in members}
    unsatisfiable = frozenset(uid for uid in queued if problem_of_all(ctx, members[uid]))
    queued -= unsatisfiable
    holds = _kept_holds(ctx, queued)
    contended = set(holds).union(*(accelerators[uid] for uid in queued))
    nodes = {node.name for pool in ctx.owned.values() for node in pool.nodes} if contended else set[str]()
    unqueued = (uid for uid in members.keys() - queued if accelerators[uid] & contended)
    new = {uid for uid in unqueued if _is_new(ctx, members[uid], nodes)}
    rivals = (queued | new) - {hold.workload for hold in holds.values() if not hold.released}
    units = {uid: min(unit_of(slice_, now) for slice_ in members[uid]) for uid in rivals if accelerators[uid]}
    lines: dict[str, list[Unit]] = {}
    for accelerator in set[str]().union(*(accelerators[uid] for uid in units)):
        rival_units = (unit for uid, unit in units.items() if accelerator in accelerators[uid])
        lines[accelerator] = in_line(accelerator, rival_units, memory.stamps)
    ids = {accelerator: [unit.id for unit in line] for accelerator, line in lines.items()}
    places = {accelerator: place_of(line) for accelerator, line in lines.items()}
    worst = {uid: max(places[label][unit.id] for label in accelerators[uid]) for uid, unit in units.items()}
    stamps, taken = memory.stamps, set(holds)
    waiting: dict[WorkloadUid, WaitsFor] = {}
    for uid in sorted(units, key=lambda uid: (worst[uid], units[uid])):
        if taken.isdisjoint(accelerators[uid]):
            for accelerator in accelerators[uid] & contended:
                holds[accelerator] = Hold(workload=uid, since=now)
                stamps = granted(stamps, accelerator, [units[uid]], now)
        else:
            blocking = min(accelerators[uid] & taken)
            held = _held(blocking, holds.get(blocking))
            waiting[uid] = held.in_line(places[blocking][units[uid].id], ids[blocking])
        if worst[uid] == 1:
            # If a workload is first in all its queues, no later workload takes its accelerators until all are free.
            taken |= accelerators[uid]
        taken |= set(holds)
    return GangTurns(
        members=members,
        holds=holds,
        stamps=stamps,
        contended=lines.keys(),
        waiting=waiting,
        unsatisfiable=unsatisfiable,
        releasing=frozenset(queued & waiting.keys()) | unsatisfiable,
        wake_at=tuple(hold.until for hold in holds.values() if hold.until is not None),
    )


def _held(accelerator: str, hold: Hold | None) -> WaitsFor:
    until = hold.until if hold is not None else None
    return WaitsFor(kind=WaitKind.HOLD, accelerator=accelerator, hold=hold, until=until)


def _kept_holds(ctx: Round, queued: AbstractSet[WorkloadUid]) -> dict[str, Hold]:
    """Return the holds and pauses that last. A hold ends if its workload is complete, not served or unsatisfiable."""
    now, kept = ctx.now, {}
    pause = max(_MIN_PAUSE, min(timedelta(seconds=ctx.settings.partial_hold_seconds), _MAX_PAUSE))
    owners = _owners_of_released(ctx) if ctx.memory.holds else set()
    for accelerator, hold in ctx.memory.holds.items():
        if not hold.released and hold.workload not in queued:
            continue
        # After `SLOWEST`, the pause begins even if released pools exist: their deletes may always be rejected.
        gone = hold.workload not in owners or now - hold.since >= SLOWEST
        begins = hold.released and hold.until is None and gone
        until = now + pause if begins else hold.until
        if until is None or until > now:
            kept[accelerator] = replace(hold, until=until)
    return kept


def _owners_of_released(ctx: Round) -> set[WorkloadUid]:
    """Return the workloads whose pools exist.

    Pools with pods, and pools that other workloads count on, are left out: a release does not delete them.
    """
    kept = {name for name, entry in ctx.memory.pools.items() if entry.phase and entry.phase.phase is Phase.IN_USE}
    for slice_id, memory in ctx.memory.slices.items():
        pool = ctx.owned.get(memory.claim.pool) if memory.claim is not None else None
        if pool is not None and pool.ownership.workload_uid != slice_id.workload_uid:
            slice_ = ctx.slices.get(slice_id)
            # An expired slice no longer counts on the pool of its claim.
            if slice_ is not None and not is_expired(slice_, ctx):
                kept.add(pool.name)
    return {pool.ownership.workload_uid for pool in ctx.owned.values() if pool.name not in kept}


def _is_new(ctx: Round, slices: Sequence[Slice], nodes: AbstractSet[str]) -> bool:
    """Whether a workload wants pools, can be served, and has neither usable pools nor pods on `nodes`.

    A usable pool that was created for another slice counts only if each slice of the workload counts on a usable pool.
    """
    if not any(slice_.pending for slice_ in slices):
        return False
    claims = (None if is_expired(slice_, ctx) else ctx.memory.slice(slice_.id).claim for slice_ in slices)
    if all(claim is not None and claim.pool in ctx.owned and ctx.owned[claim.pool].usable for claim in claims):
        return False
    usable = (pool.usable for slice_ in slices for pool in ctx.pools_of.get(slice_.id, ()))
    begun = any(usable) or any(pod.node_name in nodes for slice_ in slices for pod in slice_.pods)
    return not begun and not problem_of_all(ctx, slices)


def progress_of(ctx: Round, turns: GangTurns, matching: Matching) -> GangProgress:
    """Return which workloads are incomplete, which of them release pools now, and which nodes lose their taint."""
    owned, memory, now = ctx.owned, ctx.memory, ctx.now
    limit = timedelta(seconds=ctx.settings.partial_hold_seconds)
    pool_of = {slice_id: name for name, slice_id in matching.claimed.items()}
    holders = {hold.workload: hold.since for hold in turns.holds.values() if not hold.released}
    leaving = any(pool.leaving for pool in owned.values())
    gangs: dict[WorkloadUid, Gang] = {}
    partial: dict[WorkloadUid, tuple[int, int]] = {}
    released: dict[WorkloadUid, WaitsFor] = {}
    wake_at: list[datetime] = []
    for uid, slices in turns.members.items():
        ready = sum(_is_ready(slice_, pool_of, owned, matching) for slice_ in slices)
        if ready == len(slices):
            continue
        partial[uid] = ready, len(slices)
        before = memory.gangs.get(uid, Gang(queues=uid in holders))
        pools = [
            owned[pool_of[slice_.id]] for slice_ in slices if slice_.id in pool_of and not matching.held.get(slice_.id)
        ]
        begun = any(pool.ready or pool.unready_since is not None for pool in pools)
        # PARTIAL_HOLD also limits a hold without pools, because other workloads wait for the accelerator.
        if uid in turns.releasing or not (begun or uid in holders):
            gangs[uid] = replace(before, ready=0, since=None)
            continue
        since = before.since if before.since is not None and ready <= before.ready else now
        extended = leaving and uid in holders and now - holders[uid] < _DELETED_WITHIN
        if extended:
            # The deletes may make room for this workload. If its hold ended now, other workloads would use the room.
            since = now
        # PARTIAL_HOLD lasts at least until the next decision, even if the setting is 0.
        in_time = since == now or since + limit > now
        if in_time or any(pool.is_coming(now, since, limit) for pool in pools):
            gangs[uid] = replace(before, ready=max(ready, before.ready), since=since)
            # The end of the deletes starts the next decision of an extended hold.
            wake_at += [since + limit] if in_time and not extended else []
        else:
            gangs[uid], hold = Gang(queues=True), Hold(workload=uid, since=now, released=True)
            released[uid] = _held(min(_accelerators(slices)), hold)
            wake_at.append(now)
    return GangProgress(
        gangs={uid: gang for uid, gang in gangs.items() if gang != Gang()},
        holds={**turns.holds, **_pauses(released.keys(), gangs, turns, now)},
        releases=tuple(sorted(_releases(ctx, matching, pool_of, partial.keys()))),
        partial=partial,
        released=released,
        wake_at=tuple(wake_at),
    )


def _pauses(
    released: AbstractSet[WorkloadUid], gangs: Mapping[WorkloadUid, Gang], turns: GangTurns, now: datetime
) -> dict[str, Hold]:
    """Return pauses of accelerators that a workload in `released` held, or that no other workload holds or awaits."""
    pauses = {}
    for uid in sorted(released):
        for accelerator in _accelerators(turns.members[uid]):
            hold = turns.holds.get(accelerator)
            rivals = (member for member in turns.members if member != uid and member in gangs and gangs[member].queues)
            alone = not any(accelerator in _accelerators(turns.members[workload_uid]) for workload_uid in rivals)
            if hold.workload == uid if hold is not None else alone:
                pauses[accelerator] = Hold(workload=uid, since=now, released=True)
    return pauses


def _members(ctx: Round) -> dict[WorkloadUid, list[Slice]]:
    """Return the slices with pods that start together, by workload."""
    members: dict[WorkloadUid, list[Slice]] = defaultdict(list)
    marked = {slice_.workload.uid for slice_ in ctx.slices.values() if slice_.mark}
    for slice_ in ctx.slices.values():
        possible = slice_.workload.uid in marked if slice_.workload.kind.has_pods else slice_.pending
        if possible and slice_.served and slice_.pods and wants_all_or_nothing(slice_, ctx.settings):
            members[slice_.workload.uid].append(slice_)
    return dict(members)


def _accelerators(slices: Iterable[Slice]) -> set[str]:
    return {slice_.shape.accelerator.label for slice_ in slices if slice_.shape is not None}


def _is_ready(
    slice_: Slice, pool_of: Mapping[SliceId, PoolName], owned: Mapping[PoolName, OwnedPool], matching: Matching
) -> bool:
    if matching.held.get(slice_.id) or slice_.id in matching.elsewhere:
        return True
    pool = owned.get(pool_of.get(slice_.id, PoolName("")))
    # Until its nodes have lost the labels of another slice, a pool does not count as ready.
    free = pool is not None and pool.assigned_to in (None, (slice_.workload.namespace, slice_.mark))
    return pool is not None and pool.ready and free


def _releases(
    ctx: Round, matching: Matching, pool_of: Mapping[SliceId, PoolName], partial: AbstractSet[WorkloadUid]
) -> Iterable[str]:
    used = [*pool_of.items()]
    used += [(slice_id, name) for slice_id, names in matching.held.items() for name in names]
    for slice_id, name in used:
        slice_ = ctx.slices.get(slice_id)
        # A suspended workload may have other slices when it is resumed, so it never counts as complete.
        if slice_ is None or slice_id.workload_uid in partial or slice_.workload.suspended or name not in ctx.owned:
            continue
        yield from (node.name for node in ctx.owned[name].nodes if is_held(node.taints))
