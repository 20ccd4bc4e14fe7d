"""The decision: from one snapshot of pods, ledger and servers to a plan. Pure.

Level-triggered: it can be repeated, skipped or cut short anywhere, and the next one still does the right thing. A pod,
an entry or a server that makes it raise costs nothing but itself (`Plan.faults`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from provisioner.model.writes import OpenWrite, blocked_until, still_open
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning import (
    answers,
    events,
    making,
    recording,
    sweeping,
)
from provisioner.partitions.planning.calls import Call, OpenGate, ReadServer, SaveLedger, TakeBack, Write
from provisioner.partitions.planning.guard import Guard
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.memory import Memory, OpenCall, PartitionMemory
from provisioner.partitions.planning.picture import Picture, look
from provisioner.partitions.planning.plan import Plan, Rejected, View
from provisioner.partitions.planning.queue import Wait
from provisioner.partitions.planning.round import Round, begin_round
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.snapshot import Snapshot
from provisioner.partitions.planning.standing import OVER, Phase, Standing
from provisioner.partitions.planning.step import NOTHING, Notice, Step, Urgency, Wanted, merged
from provisioner.partitions.planning.sweeping import Stray
from provisioner.partitions.planning.view import view_of

#: What is left to tell is told so soon.
_MORE_SECONDS = 1.0
#: However much depends on it, a server is not read more often.
_SHORTEST_SECONDS = 1.0
_SETTLED = frozenset({Phase.ACTIVE, Phase.GONE})


def decide(snapshot: Snapshot, memory: Memory, settings: PlanningSettings, now: datetime) -> Plan:
    """Decide what to do.

    Where the snapshot is not to be trusted, or the ledger cannot be read, or nobody says which cluster this is, nothing
    is decided and nothing is forgotten.
    """
    if snapshot.not_synced or snapshot.ledger is None or not snapshot.cluster_uid:
        return Plan(memory=memory)
    memory = answers.give_up_lost_calls(memory, snapshot.live, now)
    memory = replace(memory, writes=still_open(memory.writes, snapshot.live, now))
    guard = Guard()
    picture, round_ = look(begin_round(snapshot, snapshot.ledger, memory, settings, now), guard)
    step = merged(_steps(picture, round_, guard))
    calls = _choose(step.calls, round_.memory, settings)
    entries = recording.entries_of(picture, round_)
    unrecorded = recording.unrecorded(entries, picture, round_)
    writes, later = _writes(entries, (*step.gates, *step.returns), round_)
    told, known, more = events.choose(
        (*step.notices, *_notices(picture, unrecorded, round_)),
        memory.told,
        round_.pods,
        frozenset(each.entry.pod_uid for each in picture.standings.values() if each.phase is Phase.ACTIVE),
    )
    moments = [*step.moments, *later]
    if more:
        moments.append(now + timedelta(seconds=_MORE_SECONDS))
    moments += [each.until for each in picture.queue if each.until is not None]
    view = guard.run(
        "view",
        partial(view_of, picture, unrecorded),
        View(),
    )
    return Plan(
        memory=replace(_remembered(picture, round_, calls, writes), told=known),
        calls=calls,
        writes=writes,
        events=tuple(told),
        view=replace(view, rejected=tuple(_rejected(picture, round_))),
        faults=guard.faults,
        wake_at=min((moment for moment in moments if moment > now), default=None),
    )


def _steps(picture: Picture, round_: Round, guard: Guard) -> Iterable[Step]:
    for standing in picture.standings.values():
        yield guard.run(f"entry {standing.entry.id}", partial(making.step_of, standing, round_), NOTHING)
    for stray in picture.strays:
        yield guard.run(f"partition {stray.partition.id}", partial(sweeping.step_of, stray, round_), NOTHING)
    none: tuple[Step, ...] = ()
    yield from guard.run("pods without a node", lambda: tuple(_take_back(picture, round_)), none)
    waits = any(each.wait is not Wait.IMPOSSIBLE for each in picture.queue)
    for address in round_.servers:
        strays = [each for each in picture.strays if each.server == address]
        part = partial(_read, address, picture.on.get(address, ()), strays, round_, waits=waits)
        yield guard.run(f"server {address}", part, NOTHING)


def _unscheduled_since(standing: Standing, now: datetime) -> datetime | None:
    """Return since when a pod has been seen to have its partition and no node; None: it has one, or has none yet."""
    pod = standing.pod
    if pod is None or standing.phase in (*OVER, Phase.RELEASING) or pod.gated or pod.node:
        return None
    return standing.known.unscheduled_since or now


def _take_back(picture: Picture, round_: Round) -> Iterable[Step]:
    """Say from which pods partitions are taken back now, and when from others.

    Who has a node may be about to start, and is left alone: the write fails where it got one meanwhile.
    """
    seconds = round_.settings.unscheduled_seconds
    waiting = [each for each in picture.queue if each.wait is Wait.QUEUE]
    if not seconds or not waiting:
        return
    wanted = {site for each in waiting for site in each.sites}
    short = {each.pod.namespace for each in waiting if _waits_for_its_limit(each.pod, picture, round_)}
    for standing in picture.standings.values():
        since, pod = _unscheduled_since(standing, round_.now), standing.pod
        if pod is None or since is None or pod.deletion_deadline is not None:
            continue
        if standing.site not in wanted and pod.namespace not in short:
            continue
        due_at = since + timedelta(seconds=seconds)
        if due_at > round_.now:
            yield Step(moments=(due_at,))
        else:
            yield Step(returns=(TakeBack(pod=pod, partition_id=standing.entry.id),))


def _waits_for_its_limit(pod: Pod, picture: Picture, round_: Round) -> bool:
    """Whether others of its namespace have what it may have; more than the limit it never gets."""
    limit = round_.settings.limit_of(pod.namespace)
    return pod.uid in picture.schedule.limited and limit is not None and pod.size <= limit


def _read(address: str, standings: Iterable[Standing], strays: Iterable[Stray], round_: Round, *, waits: bool) -> Step:
    """Say when a server is read next; `standings` and `strays` are those on it, `waits`: somebody waits for IPUs."""
    settings, view = round_.settings, round_.servers[address]
    backoff = round_.memory.servers.get(address)
    here, theirs = tuple(standings), tuple(strays)
    if backoff is not None:
        due_at = backoff.until
    elif view.reading is None or view.failure is not None:
        due_at = round_.now
    else:
        if any(each.reads for each in here) or any(each.known.changed_at is not None for each in theirs):
            seconds = _SHORTEST_SECONDS
        elif waits or theirs or any(each.phase not in _SETTLED for each in here):
            seconds = settings.busy_read_seconds
        else:
            seconds = settings.idle_read_seconds
        due_at = view.reading.asked_at + timedelta(seconds=seconds)
    if due_at > round_.now:
        return Step(moments=(due_at,))
    return Step(calls=(Wanted(call=ReadServer(server=address), urgency=Urgency.READ, due_at=due_at),))


def _choose(wanted: Iterable[Wanted], memory: Memory, settings: PlanningSettings) -> tuple[Call, ...]:
    """Choose what is called now: of each server so many changes at once, and one call of a key."""
    under_way = Counter(each.call.server for each in memory.calls.values() if not isinstance(each.call, ReadServer))
    chosen: dict[str, Call] = {}
    for each in sorted(wanted, key=lambda each: (each.urgency, each.due_at, each.call.key)):
        call = each.call
        if call.key in memory.calls or call.key in chosen:
            continue
        if not isinstance(call, ReadServer):
            if under_way[call.server] >= settings.most_changes_per_server:
                continue
            under_way[call.server] += 1
        chosen[call.key] = call
    return tuple(chosen.values())


def _notices(picture: Picture, unrecorded: Mapping[str, str], round_: Round) -> Iterable[Notice]:
    """Say what pods wait for, where they still do."""
    placed = {pod.uid for pod, _ in picture.schedule.placed}
    for candidate in picture.queue:
        pod = candidate.pod
        if pod.uid in picture.schedule.limited:
            yield events.limited(pod)
        elif pod.uid in unrecorded:
            yield events.unrecorded(pod, unrecorded[pod.uid])
        elif pod.uid not in placed:
            yield events.waiting(candidate)
    for uid, why in picture.rejected.items():
        yield events.rejected(round_.pods[uid], why)


def _rejected(picture: Picture, round_: Round) -> Iterable[Rejected]:
    for uid, why in picture.rejected.items():
        yield Rejected(pod=round_.pods[uid], why=why)


def _writes(
    entries: tuple[Entry, ...], of_pods: Iterable[OpenGate | TakeBack], round_: Round
) -> tuple[tuple[Write, ...], list[datetime]]:
    """Choose what is written now; return when the rest may be."""
    proposals: list[tuple[Write, str]] = []
    if entries != round_.ledger.entries:
        save = SaveLedger(before=round_.ledger, entries=entries)
        proposals.append((save, round_.ledger.resource_version))
    proposals += [(each, each.pod.resource_version) for each in of_pods]
    chosen, later, keys = [], [], set[str]()
    for write, seen in proposals:
        if write.key in keys:
            continue
        keys.add(write.key)
        until = blocked_until(round_.memory.writes.get(write.key), seen, round_.now)
        if until is None:
            chosen.append(write)
        else:
            later.append(until)
    return tuple(chosen), later


def _remembered(picture: Picture, round_: Round, calls: Iterable[Call], writes: Iterable[Write]) -> Memory:
    memory, now = round_.memory, round_.now
    return replace(
        memory,
        partitions={each.entry.id: _known(each, now) for each in picture.standings.values()},
        servers={address: each for address, each in memory.servers.items() if address in round_.servers},
        strays={(each.server, each.partition.id): each.known for each in picture.strays},
        calls={**memory.calls, **{call.key: OpenCall(call=call, since=now) for call in calls}},
        writes={**memory.writes, **{write.key: _opened(write, memory, now) for write in writes}},
    )


def _known(standing: Standing, now: datetime) -> PartitionMemory:
    """Return what stays in mind of an entry: a partition that is listed ends what was tried in vain."""
    known = replace(standing.known, unscheduled_since=_unscheduled_since(standing, now))
    if standing.phase is Phase.ACTIVE:
        known = replace(known, active_at=now)
    if standing.partition is None or standing.outdated or standing.phase not in (Phase.CREATING, Phase.ACTIVE):
        return known
    return replace(known, refused=False, backoff=None) if known.refused or known.backoff is not None else known


def _opened(write: Write, memory: Memory, now: datetime) -> OpenWrite[Write]:
    before = memory.writes.get(write.key)
    failures = before.failures if before is not None and before.failure is not None else 0
    seen = write.before.resource_version if isinstance(write, SaveLedger) else write.pod.resource_version
    return OpenWrite(write=write, seen=seen, since=now, failures=failures)
