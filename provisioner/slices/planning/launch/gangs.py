"""All or nothing: the slices of one workload start together, and what is only partly there is given back.

Pools of such a workload carry a taint. It is taken off their nodes when every slice of the workload that wants a pool
has a ready one, so no pod is bound before, and what is there can be given back: when no further slice has come for
PARTIAL_HOLD and none is being created, the workload lets its pools go and queues. Of those that queue for one
accelerator one has its turn at a time (`planning.turns`), so two half-served workloads do not wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.wording import clock
from provisioner.model.workloads import WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.blocked import problem_of_all
from provisioner.slices.planning.launch.capacity import wants_all_or_nothing
from provisioner.slices.planning.launch.specification import is_held
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.backoff import probing
from provisioner.slices.planning.memory.state import Gang, Memory
from provisioner.slices.planning.plan import Notice, notice
from provisioner.slices.planning.round import Round, Supply
from provisioner.slices.planning.turns import (
    SLOWEST,
    TURN,
    LastTurns,
    Turn,
    Unit,
    had_since,
    had_turn,
    in_order,
    next_turn,
    unit_of,
    waits_since,
)

_RESOURCE = "together "
#: Who holds nothing must not try without a pause.
_SHORTEST_PAUSE = timedelta(seconds=60)
#: From a pool's being up to its nodes' being ready with their chips, with room to spare.
_BOOT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Whose turn it is."""

    #: The slices of each workload that starts with all of them or not at all.
    members: Mapping[WorkloadUid, list[Slice]]
    #: By resource.
    turns: Mapping[str, Turn]
    #: Those that may neither take nor buy a pool now, and why.
    sidelined: Mapping[WorkloadUid, str]
    #: Those that gave back what they had, and that can never have all: they take nothing, and keep nobody waiting.
    unsatisfiable: frozenset[WorkloadUid]
    #: Those that are sidelined after they gave back what they had.
    giving_back: frozenset[WorkloadUid]
    wake_at: tuple[datetime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has become of the workloads that start together."""

    #: For `Memory.gangs`, `turns` and `last_turns`.
    gangs: Mapping[WorkloadUid, Gang]
    turns: Mapping[str, Turn]
    last_turns: LastTurns
    releases: tuple[str, ...]
    #: Workloads of which some slices are ready and held back for the others.
    held: frozenset[WorkloadUid]
    notices: tuple[Notice, ...]
    wake_at: tuple[datetime, ...]


def take_turns(round_: Round) -> Turns:
    """Decide which workloads may take and buy pools; one whose slices can never be had all together takes no turns."""
    memory, now = round_.memory, round_.now
    members = _members(round_.slices, round_.settings)
    queued = {uid for uid, gang in memory.gangs.items() if gang.queues and uid in members}
    unsatisfiable = frozenset(uid for uid in queued if problem_of_all(round_, members[uid]))
    nodes = {node.name for each in round_.supply.values() for node in each.nodes} if queued else set[str]()
    alone = _alone(round_, members) if queued else {}
    turns: dict[str, Turn] = {}
    sidelined: dict[WorkloadUid, str] = {}
    for accelerator, uids in sorted(_by_accelerator(members).items()):
        # Who has no turn at one accelerator waits for none at the next.
        queue = (uids & queued) - unsatisfiable - sidelined.keys()
        if not queue:
            continue
        resource = f"{_RESOURCE}{accelerator}"
        new = {uid for uid in uids - queued if any(each.pending for each in members[uid])}
        new = {uid for uid in new if not _begun(members[uid], round_.owned, nodes)}
        # Who can never have all keeps nobody waiting.
        new = {uid for uid in new if not problem_of_all(round_, members[uid])}
        since = {uid: min(waits_since(each, now) for each in members[uid]) for uid in queue | new}
        waiting = {
            unit_of(members[uid][0], together=True): since[uid]
            for uid in sorted(since, key=lambda uid: (since[uid], uid))
        }
        turn = memory.turns.get(resource)
        waiting |= {
            unit: at
            for unit, at in alone.get(accelerator, {}).items()
            if turn is None or turn.holder != unit or not _has_tried(turn, memory)
        }
        kept = turn is not None and turn.holder in waiting and _needs_more(turn, resource, members, memory)
        if turn is None or not (kept or waiting.keys() == {turn.holder} or _creates(turn, members, round_)):
            # Nobody waits for one that is alone: it ends its turn itself, by giving back.
            turn = next_turn(turn, resource, waiting, memory.last_turns, now)
        if turn is None:
            continue
        turns[resource] = turn
        if turn.holder is None:
            # Who has not tried yet may in the pause.
            why = f"its slices were given back, next try after {clock(turn.until, now)}"
            sidelined |= dict.fromkeys(queue, why)
            continue
        order = in_order(resource, {unit: at for unit, at in waiting.items() if unit != turn.holder}, memory.last_turns)
        for place, unit in enumerate(order, start=1):
            if unit.workload_uid not in members:
                # What it waits for may be another stock after all.
                continue
            sidelined[unit.workload_uid] = (
                f"another workload has its turn for all its {accelerator} slices until {clock(turn.until, now)} at "
                f"the latest; this one is number {place} of {len(order)} in the queue"
            )
    return Turns(
        members=members,
        turns=turns,
        sidelined=sidelined,
        unsatisfiable=unsatisfiable,
        giving_back=frozenset(queued & sidelined.keys()) | unsatisfiable,
        wake_at=tuple(turn.until for turn in turns.values() if turn.until > now),
    )


def _alone(round_: Round, members: Collection[WorkloadUid]) -> dict[str, dict[Unit, datetime]]:
    """List, by accelerator, the slices that start alone and have tried more than once capacity that is out of stock.

    Their shape may be another than that of workloads that start together, and the stock the same.
    """
    memory, found = round_.memory, defaultdict[str, dict[Unit, datetime]](dict)
    tried = {unit for resource, unit in memory.last_turns if probing(memory.backoffs, resource) is not None}
    for each in round_.slices.values() if tried else ():
        unit = unit_of(each)
        if unit not in tried or unit.workload_uid in members or each.shape is None or not each.pending:
            continue
        if not any(pool.usable for pool in round_.owned.get(each.id, ())):
            found[each.shape.accelerator.label][unit] = waits_since(each, round_.now)
    return found


def _has_tried(turn: Turn, memory: Memory) -> bool:
    """Whether the holder of a turn has tried capacity that is out of stock since it began."""
    return any(
        unit == turn.holder and at > turn.began_at and probing(memory.backoffs, resource) is not None
        for (resource, unit), at in memory.last_turns.items()
    )


def _needs_more(turn: Turn, resource: str, members: Mapping[WorkloadUid, Sequence[Slice]], memory: Memory) -> bool:
    """Whether the holder of a turn waits for one at a resource that comes later, or has that one now."""
    unit = turn.holder
    if unit is None:
        return False
    shapes = (each.shape for each in members.get(unit.workload_uid, ()))
    others = {f"{_RESOURCE}{shape.accelerator.label}" for shape in shapes if shape is not None}
    later = {each for each in others if each > resource and each in memory.turns}
    # Limits come after all accelerators.
    later |= {each for each, now in memory.turns.items() if now.holder == unit and not each.startswith(_RESOURCE)}
    later |= {memory.waits_for[unit]} if unit in memory.waits_for else set()
    return any(not had_since(each, turn, memory.turns, memory.last_turns) for each in later)


def _creates(turn: Turn, members: Mapping[WorkloadUid, Sequence[Slice]], round_: Round) -> bool:
    """Whether pools of the holder are being created, or all have just come up and are held until its pods are bound.

    For no longer than a create that finds no capacity takes.
    """
    unit = turn.holder
    if unit is None:
        return False
    alone = bool(unit.group_key)
    every = round_.slices.values() if alone else members.get(unit.workload_uid, ())
    slices = [each for each in every if not alone or unit_of(each) == unit]
    pools = [[each for each in round_.owned.get(slice_.id, ()) if each.usable] for slice_ in slices]
    busy = any(each.pool.status is PoolStatus.PROVISIONING for many in pools for each in many)
    complete = not alone and all(pools) and any(each.pending for each in slices)
    return round_.now - turn.began_at < SLOWEST and (busy or complete)


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
        if there < len(members):
            partial[uid] = (there, len(members))
    gave_back: set[WorkloadUid] = set()
    for uid, (there, _) in partial.items():
        members, before = turns.members[uid], memory.gangs.get(uid, Gang())
        waiting = [supply[place[each.id]] for each in members if each.id in place and not matching.held.get(each.id)]
        # A pool whose nodes come and go holds its chips all the time.
        holds = any(each.ready or each.unready_since is not None for each in waiting)
        if uid in turns.sidelined or uid in turns.unsatisfiable or not holds:
            gangs[uid] = replace(before, there=0, since=None)
            continue
        since = before.since if before.since is not None and there <= before.there else now
        # What others have just given back may be for it.
        since = max((since, *(turn.began_at for turn in turns.turns.values() if turn.holder is None)))
        # While another has its turn nothing is held, but what is being created: it may be there in a moment.
        held = since + hold > now and not _is_anothers_turn(uid, members, turns)
        if held or any(_is_coming(each, now, since, hold) for each in waiting):
            gangs[uid] = replace(before, there=max(there, before.there), since=since)
            wake_at += [since + hold] if since + hold > now else []
        else:
            gangs[uid] = Gang(queues=True)
            gave_back.add(uid)
            wake_at.append(now)
    # As long as the hold that was in vain, within reason.
    length = max(_SHORTEST_PAUSE, min(hold, TURN))
    last_turns, pauses = _after(gave_back, gangs, turns, now, length)
    return Progress(
        gangs={uid: gang for uid, gang in gangs.items() if gang != Gang()},
        turns={**turns.turns, **pauses},
        last_turns=last_turns,
        releases=tuple(sorted(_releases(slices, supply, matching, place, partial.keys()))),
        held=frozenset(uid for uid, (there, _) in partial.items() if there),
        notices=tuple(_notices(slices, supply, place, partial)),
        wake_at=tuple(wake_at),
    )


def _after(
    gave_back: AbstractSet[WorkloadUid],
    gangs: Mapping[WorkloadUid, Gang],
    turns: Turns,
    now: datetime,
    length: timedelta,
) -> tuple[dict[tuple[str, tuple[str, ...]], datetime], dict[str, Turn]]:
    """Return the turns that ended because workloads gave back what they had, and the pauses that begin."""
    last_turns: dict[tuple[str, tuple[str, ...]], datetime] = {}
    pauses: dict[str, Turn] = {}
    for accelerator, uids in _by_accelerator(turns.members).items() if gave_back else ():
        resource, queued = f"{_RESOURCE}{accelerator}", sum(uid in gangs and gangs[uid].queues for uid in uids)
        turn = turns.turns.get(resource)
        for uid in gave_back & uids:
            unit = unit_of(turns.members[uid][0], together=True)
            last_turns |= had_turn(resource, unit, now)
            # Of several that give back at the same time one has its turn at once, with what is there.
            if turn.holder == unit if turn is not None else queued == 1:
                pauses[resource] = Turn(holder=None, began_at=now, length=length)
    return last_turns, pauses


def _members(slices: Mapping[SliceId, Slice], settings: Settings) -> dict[WorkloadUid, list[Slice]]:
    """List the slices that start together, by workload: those that have pods to run, not those that come later."""
    members: dict[WorkloadUid, list[Slice]] = defaultdict(list)
    for each in slices.values():
        # A request that has been served holds nothing back any more.
        if (
            each.served
            and each.pods
            and (each.pending or each.workload.kind.has_pods)
            and wants_all_or_nothing(each, settings)
        ):
            members[each.workload.uid].append(each)
    return dict(members)


def _by_accelerator(members: Mapping[WorkloadUid, list[Slice]]) -> dict[str, set[WorkloadUid]]:
    found: dict[str, set[WorkloadUid]] = defaultdict(set)
    for uid, slices in members.items():
        for each in slices:
            if each.shape is not None:
                found[each.shape.accelerator.label].add(uid)
    return found


def _begun(members: Iterable[Slice], owned: Mapping[SliceId, Sequence[Supply]], nodes: AbstractSet[str]) -> bool:
    """Whether a workload has, or is getting, some of its slices: what failed or is being deleted is no beginning.

    Nor is a pod on a node of somebody else: anyone can bind one there.
    """
    pools = (pool for each in members for pool in owned.get(each.id, ()))
    return any(pool.usable for pool in pools) or any(pod.node_name in nodes for each in members for pod in each.pods)


def _is_there(
    slice_: Slice, place: Mapping[SliceId, PoolName], supply: Mapping[PoolName, Supply], matching: Matching
) -> bool:
    if matching.held.get(slice_.id) or slice_.id in matching.elsewhere:
        return True
    name = place.get(slice_.id)
    return name is not None and supply[name].ready


def _is_anothers_turn(uid: WorkloadUid, members: Iterable[Slice], turns: Turns) -> bool:
    """Whether others alone have turns at the accelerators of a workload."""
    resources = {f"{_RESOURCE}{each.shape.accelerator.label}" for each in members if each.shape is not None}
    found = (turns.turns[each].holder for each in resources & turns.turns.keys())
    holders = {each.workload_uid for each in found if each is not None}
    return bool(holders) and uid not in holders


def _is_coming(each: Supply, now: datetime, since: datetime, hold: timedelta) -> bool:
    """Whether a pool is being created, or has just been: its nodes get ready a little after GKE calls it up."""
    if each.pool.status is PoolStatus.PROVISIONING:
        # One choice after the other may be tried in vain.
        return now - since < SLOWEST
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
    used = [*place.items()]
    used += [(slice_id, name) for slice_id, names in matching.held.items() for name in names]
    for slice_id, name in used:
        if slice_id not in slices or slice_id.workload_uid in waiting or name not in supply:
            continue
        if slices[slice_id].workload.suspended:
            # Nobody knows whether all are there before it is resumed.
            continue
        yield from (node.name for node in supply[name].nodes if is_held(node.taints))


def _notices(
    slices: Mapping[SliceId, Slice],
    supply: Mapping[PoolName, Supply],
    place: Mapping[SliceId, PoolName],
    partial: Mapping[WorkloadUid, tuple[int, int]],
) -> Iterable[Notice]:
    for slice_id, name in place.items():
        if slices[slice_id].pending and slice_id.workload_uid in partial and supply[name].ready:
            there, wanted = partial[slice_id.workload_uid]
            message = (
                f"Node pool {name} is ready and is held until all slices of the {slices[slice_id].workload.kind} are "
                f"ready: {there} of {wanted} are ready"
            )
            yield notice(slices[slice_id], constants.HELD_FOR_OTHERS, message, key=name, warning=False)
