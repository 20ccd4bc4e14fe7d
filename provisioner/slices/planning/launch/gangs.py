"""All or nothing: the slices of one workload start together, and what is only partly there is given back.

Pools of such a workload carry a taint. It is taken off their nodes when every slice of the workload that wants a pool
has a ready one, so no pod is bound before, and what is there can be given back: when no further slice has come for
PARTIAL_HOLD and none is being made, the workload lets its pools go and queues. Of those that queue for one accelerator
one tries at a time: the one that had the fewest turns, of these the oldest. So two half-served workloads do not wait
for each other for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.workloads import WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch import wishes
from provisioner.slices.planning.launch.feasibility import problem_of_all
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory.state import Gang
from provisioner.slices.planning.moments import clock
from provisioner.slices.planning.notices import notice
from provisioner.slices.planning.plan import Notice
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: Each turn that ended with slices given back doubles the wait for the next, so many times at most.
_MOST_DOUBLINGS = 2
#: However short the hold is: who holds nothing must not try without a pause.
_SHORTEST_TURN = timedelta(seconds=60)
#: From a pool's being up to its nodes' being ready with their chips, with room to spare.
_BOOT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Whose turn it is."""

    #: The slices of each workload that starts with all of them or not at all.
    members: Mapping[WorkloadUid, list[Slice]]
    #: Those that may neither take nor buy a pool now, and why.
    sidelined: Mapping[WorkloadUid, str]
    #: Those that gave back what they had, and that can never have all: they take nothing, and keep nobody waiting.
    unsatisfiable: frozenset[WorkloadUid]
    #: Those whose turn it is while others wait for them.
    awaited: frozenset[WorkloadUid]
    #: Those that are sidelined after they gave back what they had.
    giving_back: frozenset[WorkloadUid]
    #: When the next turn begins.
    wake_at: tuple[datetime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has become of the workloads that start together."""

    #: For `Memory.gangs`.
    gangs: Mapping[WorkloadUid, Gang]
    #: Nodes whose taint is to be taken off.
    releases: tuple[str, ...]
    #: Workloads of which some slices are ready and held back for the others.
    held: frozenset[WorkloadUid]
    notices: tuple[Notice, ...]
    wake_at: tuple[datetime, ...]


def take_turns(round_: Round) -> Turns:
    """Decide which workloads may take and buy pools; one whose slices can never be had all together takes no turns."""
    settings, memory, now, owned = round_.settings, round_.memory, round_.now, round_.owned
    members = _members(round_.slices, settings)
    hold = timedelta(seconds=settings.partial_hold_seconds)
    queued = {uid: gang for uid, gang in memory.gangs.items() if uid in members and gang.turns > 0}
    unsatisfiable = frozenset(uid for uid in queued if problem_of_all(round_, members[uid]))
    sidelined: dict[WorkloadUid, str] = {}
    awaited: set[WorkloadUid] = set()
    wake_at: list[datetime] = []
    for accelerator, uids in _by_accelerator(members).items():
        queue = sorted(
            (uid for uid in uids if uid in queued and uid not in unsatisfiable),
            key=lambda uid: _order(uid, queued[uid], members[uid]),
        )
        if not queue:
            continue
        head, *rest = queue
        begins = _begins(queued[head], hold, alone=not rest)
        if begins > now:
            wake_at.append(begins)
            sidelined[head] = f"its slices were given back, next try {clock(begins, now)}"
        first = members[head][0].workload
        name = f"{first.kind.value} {first.namespace}/{first.name}"
        for place, uid in enumerate(rest, start=2):
            which = f"number {place} of the workloads that wait for all their {accelerator} slices"
            sidelined[uid] = f"{which}, after {name}"
        # Before its turn begins, those that have not tried yet may.
        others = uids - set(queue) - unsatisfiable if begins <= now else set()
        newcomers = [uid for uid in others if not _begun(members[uid], owned)]
        for uid in newcomers:
            sidelined[uid] = f"{name} has waited longer for all its {accelerator} slices"
        if rest or newcomers:
            awaited.add(head)
    return Turns(
        members=members,
        sidelined=sidelined,
        awaited=frozenset(awaited),
        unsatisfiable=unsatisfiable,
        giving_back=frozenset(queued.keys() & sidelined.keys()) | unsatisfiable,
        wake_at=tuple(wake_at),
    )


def progress_of(round_: Round, turns: Turns, matching: Matching) -> Progress:
    """See which workloads have all their slices, and which have waited too long for the rest."""
    slices, supply, memory, now = round_.slices, round_.supply, round_.memory, round_.now
    hold = timedelta(seconds=round_.settings.partial_hold_seconds)
    place = {slice_id: name for name, slice_id in matching.claimed.items()}
    gangs: dict[WorkloadUid, Gang] = {}
    partial: dict[WorkloadUid, tuple[int, int]] = {}
    wake_at: list[datetime] = []
    for uid, members in turns.members.items():
        there = sum(_is_there(each, place, supply, matching) for each in members)
        before = memory.gangs.get(uid, Gang())
        if there == len(members):
            continue
        partial[uid] = (there, len(members))
        waiting = [supply[place[each.id]] for each in members if each.id in place and not matching.held.get(each.id)]
        # A pool whose nodes come and go holds its chips all the time.
        holds = any(each.ready or each.unready_since is not None for each in waiting)
        if uid in turns.sidelined or uid in turns.unsatisfiable or not (holds or uid in turns.awaited):
            gangs[uid] = replace(before, there=0, since=None)
            continue
        since = before.since if before.since is not None and there <= before.there else now
        there = max(there, before.there)
        # What is being made is waited for, however long GKE takes: it may be there in a moment.
        if since + hold > now or any(_is_coming(each, now, hold) for each in waiting):
            gangs[uid] = replace(before, there=there, since=since)
            wake_at += [since + hold] if since + hold > now else []
        else:
            gangs[uid] = Gang(turns=before.turns + 1, gave_back_at=now)
            wake_at.append(now)
    return Progress(
        gangs={uid: gang for uid, gang in gangs.items() if gang != Gang()},
        releases=tuple(sorted(_releases(slices, supply, matching, place, partial.keys()))),
        held=frozenset(uid for uid, (there, _) in partial.items() if there),
        notices=tuple(_notices(slices, supply, place, partial)),
        wake_at=tuple(wake_at),
    )


def _members(slices: Mapping[SliceId, Slice], settings: Settings) -> dict[WorkloadUid, list[Slice]]:
    """List the slices that start together, by workload: those that have pods to run, not those that come later."""
    members: dict[WorkloadUid, list[Slice]] = defaultdict(list)
    for each in slices.values():
        if each.served and each.pods and wishes.wants_all_or_nothing(each, settings):
            members[each.workload.uid].append(each)
    return dict(members)


def _by_accelerator(members: Mapping[WorkloadUid, list[Slice]]) -> dict[str, set[WorkloadUid]]:
    found: dict[str, set[WorkloadUid]] = defaultdict(set)
    for uid, slices in members.items():
        for each in slices:
            if each.shape is not None:
                found[each.shape.accelerator.label].add(uid)
    return found


def _order(uid: WorkloadUid, gang: Gang, members: Iterable[Slice]) -> tuple[int, float, str]:
    waits = [each.leader.unschedulable_since for each in members if each.leader is not None]
    oldest = min((since.timestamp() for since in waits if since is not None), default=0.0)
    return gang.turns, oldest, uid


def _begins(gang: Gang, hold: timedelta, *, alone: bool) -> datetime:
    """Return when a workload may try again; at once where another has just made room for it."""
    gave_back_at = gang.gave_back_at
    if gave_back_at is None:
        raise ValueError("only a workload that gave back its slices queues")
    if gang.turns == 1 and not alone:
        return gave_back_at
    return gave_back_at + max(hold, _SHORTEST_TURN) * float(2 ** min(gang.turns - 1, _MOST_DOUBLINGS))


def _begun(members: Iterable[Slice], owned: Mapping[SliceId, Sequence[Supply]]) -> bool:
    return any(owned.get(each.id) or any(pod.node_name for pod in each.pods) for each in members)


def _is_there(
    slice_: Slice, place: Mapping[SliceId, PoolName], supply: Mapping[PoolName, Supply], matching: Matching
) -> bool:
    if matching.held.get(slice_.id) or slice_.id in matching.elsewhere:
        return True
    name = place.get(slice_.id)
    return name is not None and supply[name].ready


def _is_coming(each: Supply, now: datetime, hold: timedelta) -> bool:
    """Whether a pool is being made, or has just been: its nodes get ready a little after GKE calls it up."""
    if each.pool.status is PoolStatus.PROVISIONING:
        return True
    if each.late_since is not None:
        # Its time to come begins now, however long others have been ready by then.
        return now - each.late_since < hold
    young = all(now - node.created_at < _BOOT for node in each.nodes)
    return each.unready_since is not None and now - each.unready_since < _BOOT and young


def _releases(
    slices: Mapping[SliceId, Slice],
    supply: Mapping[PoolName, Supply],
    matching: Matching,
    place: Mapping[SliceId, PoolName],
    partial: Iterable[WorkloadUid],
) -> Iterable[str]:
    waiting = set(partial)
    used = [(slice_id, name) for slice_id, name in place.items()]
    used += [(slice_id, name) for slice_id, names in matching.held.items() for name in names]
    for slice_id, name in used:
        if slice_id not in slices or slice_id.workload_uid in waiting or name not in supply:
            continue
        if slices[slice_id].workload.suspended:
            # Nobody knows whether all are there before it is resumed.
            continue
        for node in supply[name].nodes:
            for taint in node.taints:
                if taint.key in constants.HELD_KEYS:
                    yield node.name
                    break


def _notices(
    slices: Mapping[SliceId, Slice],
    supply: Mapping[PoolName, Supply],
    place: Mapping[SliceId, PoolName],
    partial: Mapping[WorkloadUid, tuple[int, int]],
) -> Iterable[Notice]:
    for slice_id, name in place.items():
        waits = slice_id in slices and slices[slice_id].pending
        if waits and slice_id.workload_uid in partial and supply[name].ready:
            there, wanted = partial[slice_id.workload_uid]
            message = (
                f"Node pool {name} is ready and is held until all slices of the {slices[slice_id].workload.kind} are "
                f"ready: {there} of {wanted} are ready"
            )
            yield notice(slices[slice_id], constants.HELD_FOR_OTHERS, message, key=name, warning=False)
