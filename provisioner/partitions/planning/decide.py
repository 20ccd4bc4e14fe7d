"""Decides which partitions are created and removed: makes a plan from a snapshot of pods, ledger and servers. Pure.

A decision may be repeated or skipped. At most `max_changes_per_server` creates and removes are open at the same time on
a server. If both kinds wait, each gets about half of this number: removes free IPUs, and creates use them. Creates of a
higher priority are sent first. At equal priority, namespaces take turns: those with the fewest open calls of the same
kind come first, then those whose last call is oldest, then changes that have been due for longest.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from provisioner.model import bounds
from provisioner.model.turns import in_turns, with_turns
from provisioner.model.writes import Proposed, WriteFailure, choose_writes, with_open, without_lost
from provisioner.partitions import names
from provisioner.partitions.planning import actions, events, making
from provisioner.partitions.planning.entry_status import OVER, EntryStatus, Phase
from provisioner.partitions.planning.events import Event
from provisioner.partitions.planning.ledger import MAX_CHARACTERS, Entry, characters_of
from provisioner.partitions.planning.making import Step, Stray
from provisioner.partitions.planning.memory import Memory, PartitionMemory, fold
from provisioner.partitions.planning.picture import Picture, View, look, view_of
from provisioner.partitions.planning.queue import Wait
from provisioner.partitions.planning.round import Fault, Guard, Round, Snapshot, begin_round
from provisioner.settings.partitions import PartitionSettings

#: Seconds until the next round if a round has more Events than it may emit.
_MORE_SECONDS = 1.0
#: Interval in seconds between two reads of a server that must be read soon, such as after a change.
_SHORTEST_SECONDS = 1.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SETTLED = frozenset({Phase.ACTIVE, Phase.GONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Result of a decision. `memory` contains the calls and writes of this plan as open, before they are sent."""

    memory: Memory
    #: Most urgent call first.
    calls: tuple[actions.Call, ...] = ()
    writes: tuple[actions.Write, ...] = ()
    events: tuple[Event, ...] = ()
    view: View = field(default_factory=View)
    faults: tuple[Fault, ...] = ()
    #: Latest time of the next decision if nothing changes before; None if only a change requires a decision.
    wake_at: datetime | None = None


def decide(snapshot: Snapshot, memory: Memory, settings: PartitionSettings, now: datetime) -> Plan:
    """Return the plan for a snapshot. While pods, ledger or cluster UID are unknown, the plan has only the memory."""
    if snapshot.not_synced or snapshot.ledger is None or not snapshot.cluster_uid:
        return Plan(memory=memory)
    memory = without_lost(memory, snapshot.live, now, fold)
    guard = Guard()
    picture, ctx = look(begin_round(snapshot, snapshot.ledger, memory, settings, now), guard)
    steps = tuple(_steps(picture, ctx, guard))
    calls, late = _choose([step for step in steps if isinstance(step, actions.Wanted)], ctx)
    entries = entries_of(picture, ctx)
    unrecorded = unrecorded_of(entries, picture, ctx)
    writes, later = _writes(
        entries, (step for step in steps if isinstance(step, actions.OpenGate | actions.TakeBack)), ctx
    )
    chosen, known, more = events.choose(
        (*(step for step in steps if isinstance(step, Event)), *late, *_notices(picture, unrecorded, ctx)),
        memory.told,
        ctx.pods,
        frozenset(status.entry.pod_uid for status in picture.statuses.values() if status.phase is Phase.ACTIVE),
    )
    reasons = {**unrecorded, **{event.pod.uid: event.message for event in late}}
    moments = [*(step for step in steps if isinstance(step, datetime)), *later]
    if more:
        moments.append(now + timedelta(seconds=_MORE_SECONDS))
    moments += [candidate.until for candidate in picture.queue if candidate.until is not None]
    return Plan(
        memory=replace(_remembered(picture, ctx, calls, writes), told=known),
        calls=calls,
        writes=tuple(proposed.write for proposed in writes),
        events=tuple(chosen),
        view=guard.run("view", partial(view_of, picture, reasons, ctx), View()),
        faults=tuple(guard.faults),
        wake_at=min((moment for moment in moments if moment > now), default=None),
    )


def _steps(picture: Picture, ctx: Round, guard: Guard) -> Iterator[Step]:
    on: dict[str, list[EntryStatus]] = {}
    for status in picture.statuses.values():
        on.setdefault(status.entry.server, []).append(status)
        part = partial(making.steps_of, status, ctx)
        yield from _guarded(f"entry {status.entry.id}", part, guard)
    for stray in picture.strays:
        yield from _guarded(f"partition {stray.partition.id}", partial(making.clear, stray, ctx), guard)
    yield from _guarded("pods without a node", partial(_take_back, picture, ctx), guard)
    waits = any(candidate.wait is not Wait.IMPOSSIBLE for candidate in picture.queue)
    for address in ctx.servers:
        strays = [stray for stray in picture.strays if stray.server == address]
        read = partial(_read, address, on.get(address, ()), strays, ctx, waits=waits)
        yield from _guarded(f"server {address}", read, guard)


def _guarded(subject: str, part: Callable[[], Iterable[Step]], guard: Guard) -> tuple[Step, ...]:
    nothing: tuple[Step, ...] = ()
    return guard.run(subject, lambda: tuple(part()), nothing)


def _unscheduled_since(status: EntryStatus, now: datetime) -> datetime | None:
    pod = status.pod
    if pod is None or status.phase in (*OVER, Phase.RELEASING) or pod.gated or pod.node:
        return None
    return status.known.unscheduled_since or now


def _take_back(picture: Picture, ctx: Round) -> Iterator[Step]:
    """Yield the release of each partition whose pod has no node and whose IPUs other pods need, or when it is due."""
    seconds, schedule = ctx.settings.unscheduled_seconds, picture.schedule
    if not seconds:
        return
    served = schedule.limited.union(pod.uid for pod, _ in schedule.placed)
    waiting = [
        candidate for candidate in picture.queue if candidate.wait is Wait.QUEUE and candidate.pod.uid not in served
    ]
    wanted = {site for candidate in waiting for site in candidate.sites}
    for status in picture.statuses.values():
        since, pod = _unscheduled_since(status, ctx.now), status.pod
        if pod is None or since is None or pod.deletion_deadline is not None:
            continue
        if status.site not in wanted and pod.namespace not in schedule.full:
            continue
        due_at = since + timedelta(seconds=seconds)
        if due_at > ctx.now:
            yield due_at
        else:
            yield actions.TakeBack(pod=pod, partition_id=status.entry.id)


def _read(
    address: str, statuses: Sequence[EntryStatus], strays: Sequence[Stray], ctx: Round, *, waits: bool
) -> Iterator[Step]:
    """Yield the next read of a server, or the time of the read. `waits`: whether a pod waits that may be served."""
    settings, view = ctx.settings, ctx.servers[address]
    backoff = ctx.memory.servers.get(address)
    if backoff is not None:
        due_at = backoff.until
    elif view.reading is None or view.failure is not None:
        due_at = ctx.now
    else:
        if any(status.reads for status in statuses) or any(stray.known.changed_at is not None for stray in strays):
            seconds = _SHORTEST_SECONDS
        elif waits or strays or any(status.phase not in _SETTLED for status in statuses):
            seconds = settings.busy_read_seconds
        else:
            seconds = settings.idle_read_seconds
        due_at = view.reading.asked_at + timedelta(seconds=seconds)
    yield due_at if due_at > ctx.now else actions.Wanted(actions.ReadServer(server=address), due_at)


def _choose(wanted: Iterable[actions.Wanted], ctx: Round) -> tuple[tuple[actions.Call, ...], tuple[Event, ...]]:
    """Return the calls to send, at most one for each key, and Events for pods whose creates are not sent yet."""
    memory, most = ctx.memory, ctx.settings.max_changes_per_server
    changes = Counter(sent.call.server for sent in memory.calls.values() if isinstance(sent.call, actions.Change))
    due = {step.call.key: step for step in wanted if step.call.key not in memory.calls}
    chosen, late = list[actions.Call](), list[Event]()
    for call in _in_turn(due.values(), memory):
        if not isinstance(call, actions.Change) or changes[call.server] < most:
            chosen.append(call)
            changes[call.server] += isinstance(call, actions.Change)
        elif isinstance(call, actions.CreatePartition):
            entry = ctx.entries[call.request.id]
            late.append(events.late(ctx.pods[entry.pod_uid], entry, most))
    return tuple(chosen), tuple(late)


def _in_turn(due: Iterable[actions.Wanted], memory: Memory) -> list[actions.Call]:
    """Sort calls as the module docstring says. On a tie between a remove and a create, the remove is first."""
    in_flight = [_party(sent.call) for sent in memory.calls.values()]
    queue = sorted(due, key=lambda step: (-step.priority, step.due_at, step.call.key))
    queue = in_turns(queue, lambda step: _party(step.call), lambda party: memory.turns.get(party, _LONG_AGO), in_flight)
    queue.sort(key=lambda step: -step.priority)
    calls = [step.call for step in queue]
    return in_turns(
        calls, lambda call: _party(call)[:2], lambda kind: kind[1] == "create", (kind[:2] for kind in in_flight)
    )


def _party(call: actions.Call) -> tuple[str, str, str]:
    return call.server, call.name, call.pod[0] if call.pod is not None else ""


def _notices(picture: Picture, unrecorded: Mapping[str, str], ctx: Round) -> Iterator[Event]:
    placed = {pod.uid for pod, _ in picture.schedule.placed}
    for candidate in picture.queue:
        pod = candidate.pod
        if pod.uid in picture.schedule.limited:
            yield Event(Wait.LIMIT.value, pod, events.WAITING, events.why_limited(pod))
        elif pod.uid in unrecorded:
            yield Event("unrecorded", pod, events.WAITING, unrecorded[pod.uid], warning=True)
        elif pod.uid not in placed:
            yield events.waiting(candidate)
    for uid, why in picture.rejected.items():
        yield Event("rejected", ctx.pods[uid], events.REJECTED, why, warning=True)


def entries_of(picture: Picture, ctx: Round) -> tuple[Entry, ...]:
    """Return the entries of the new ledger: kept entries, then entries for placed pods while there is space."""
    kept = {
        status.entry.id: picture.restored.get(status.entry.id) or _as_listed(status)
        for status in picture.statuses.values()
        if status.phase not in OVER or status.entry.id in picture.restored
    }
    kept |= {key: entry for key, entry in picture.restored.items() if key not in kept}
    room = MAX_CHARACTERS - sum(map(characters_of, kept.values()))
    room -= sum(len(key) + len(text) for key, text in ctx.ledger.unreadable.items())
    for pod, (server, allocation) in picture.schedule.placed:
        partition_id = pod.partition_annotation or names.partition_id(ctx.snapshot.cluster_uid, pod.uid, server)
        entry = making.entry_of(pod, partition_id, (server, allocation), ctx)
        room -= characters_of(entry)
        if room < 0:
            break
        kept[entry.id] = entry
    return tuple(kept.values())


def unrecorded_of(entries: Iterable[Entry], picture: Picture, ctx: Round) -> Mapping[str, str]:
    """Return the reasons, by UID, why the ledger cannot record pods for which IPUs are free."""
    write = ctx.memory.writes.get(actions.LEDGER)
    if write is not None and write.failure is WriteFailure.REFUSED:
        words = bounds.cut(write.message, bounds.HINTED_WORDS)
        why = f"IPUs are free for it, but the ledger cannot be written: {words}"
        return {pod.uid: why for pod, _ in picture.schedule.placed}
    recorded = {entry.pod_uid for entry in entries}
    why = "IPUs are free for it, but the ledger is full."
    return {pod.uid: why for pod, _ in picture.schedule.placed if pod.uid not in recorded}


def _as_listed(status: EntryStatus) -> Entry:
    entry, (_, allocation) = status.entry, status.site
    return entry if entry.allocation == allocation else replace(entry, allocation=allocation)


def _writes(
    entries: tuple[Entry, ...], of_pods: Iterable[actions.OpenGate | actions.TakeBack], ctx: Round
) -> tuple[list[Proposed[actions.Write]], list[datetime]]:
    of_ledger = [actions.SaveLedger(before=ctx.ledger, entries=entries)] if entries != ctx.ledger.entries else []
    proposals = (Proposed(write=write, seen=_seen_by(write)) for write in (*of_ledger, *of_pods))
    return choose_writes(proposals, ctx.memory.writes, ctx.now)


def _remembered(
    picture: Picture, ctx: Round, calls: Iterable[actions.Call], writes: Iterable[Proposed[actions.Write]]
) -> Memory:
    memory, now = ctx.memory, ctx.now
    return replace(
        with_open(memory, now, calls=calls, writes=writes),
        turns=with_turns(memory.turns, {_party(call): now for call in calls}, now),
        partitions={status.entry.id: _known(status, now) for status in picture.statuses.values()},
        servers={address: backoff for address, backoff in memory.servers.items() if address in ctx.servers},
        strays={(stray.server, stray.partition.id): stray.known for stray in picture.strays},
    )


def _known(status: EntryStatus, now: datetime) -> PartitionMemory:
    """Return the new memory of an entry, without failed creates if the partition is listed as creating or active."""
    known = replace(status.known, unscheduled_since=_unscheduled_since(status, now))
    if status.phase is Phase.ACTIVE:
        known = replace(known, active_at=now)
    if status.partition is None or status.outdated or status.phase not in (Phase.CREATING, Phase.ACTIVE):
        return known
    return replace(known, refused=False, backoff=None)


def _seen_by(write: actions.Write) -> str:
    return write.before.resource_version if isinstance(write, actions.SaveLedger) else write.pod.resource_version
