"""How many calls are made at once: Compute Engine counts the calls of a project by sort, region and minute.

What is due is made at once as long as that stays within the pace; the rest waits for its turn: changes first, of these
whole resources before single machines, and of each sort whatever has been due for longest, by turns of the namespaces,
and of the groups whose machines are changed: many objects of one delay nobody else's. What nobody waits for comes last,
and leaves half of what may be made at once to what may become urgent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType

from provisioner.nodegroups.compute.links import region_of
from provisioner.nodegroups.planning.calls import Call, Delete, Insert, ListMachines, Poll, ReadMachines, SetMetadata
from provisioner.nodegroups.planning.memory import MachineMemory, Memory, OpenCall, Pace
from provisioner.nodegroups.planning.round import Wanted
from provisioner.nodegroups.planning.snapshot import PlanningSettings


class Sort(Enum):
    """Sorts of calls that have limits of their own, most urgent first."""

    CHANGE = "change"
    POLL = "poll"
    READ = "read"
    LIST = "list"


_URGENCY = {sort: place for place, sort in enumerate(Sort)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """What may be called now."""

    memory: Memory
    calls: tuple[Call, ...]
    #: When more may be; None: all that is due is called.
    wake_at: datetime | None = None


def pace(
    wanted: Iterable[Wanted],
    memory: Memory,
    settings: PlanningSettings,
    now: datetime,
    namespaces: Mapping[str, str] = MappingProxyType({}),
) -> Paced:
    """Choose what is called now, and remember it as being under way.

    `namespaces` are those of objects, by UID (`Target.uid`).
    """
    each_once = {each.call.key: each for each in wanted}.values()
    if not each_once and not memory.pace:
        return Paced(memory=memory, calls=())
    paused = {project: until for project, until in memory.paused.items() if until > now}
    free, ends = [], []
    for each in each_once:
        until = paused.get(each.call.target.scope.project)
        if until is None:
            free.append(each)
        else:
            ends.append(until)
    queue = _in_turn(free, memory, namespaces)
    most = max(1.0, settings.calls_per_second * settings.burst_seconds)
    spare = {bucket: _spare(before, most, settings, now) for bucket, before in memory.pace.items()}
    room = settings.most_calls - len(memory.calls)
    chosen: list[Call] = []
    waiting = False
    for each in queue:
        bucket = bucket_of(each.call)
        left = spare.get(bucket, most)
        # What nobody waits for takes neither the last places nor the last calls.
        if room - len(chosen) <= settings.most_calls * each.patient / 2 or left < 1.0 + (most / 2) * each.patient:
            waiting = True
            continue
        spare[bucket] = left - 1.0
        chosen.append(each.call)
    return Paced(
        memory=replace(
            memory,
            calls={**memory.calls, **{call.key: OpenCall(call=call, since=now) for call in chosen}},
            machines=_with_machines(memory.machines, chosen),
            # One that is full is as good as none.
            pace={bucket: Pace(spare=left, at=now) for bucket, left in spare.items() if left < most},
        ),
        calls=tuple(chosen),
        wake_at=now + timedelta(seconds=1.0 / settings.calls_per_second) if waiting else min(ends, default=None),
    )


def _in_turn(wanted: Iterable[Wanted], memory: Memory, namespaces: Mapping[str, str]) -> list[Wanted]:
    """Order what is due: of the same urgency first that of whom the fewest calls are under way or come before."""
    turns = Counter(_party(each.call, namespaces) for each in memory.calls.values())
    queue = []
    for each in sorted(wanted, key=lambda each: (_urgency(each), each.due_at, each.call.key)):
        party = _party(each.call, namespaces)
        queue.append((_urgency(each), turns[party], each.due_at, each.call.key, each))
        turns[party] += 1
    return [each for *_, each in sorted(queue, key=lambda entry: entry[:-1])]


def _urgency(wanted: Wanted) -> tuple[int, bool, bool]:
    call = wanted.call
    return (_URGENCY[sort_of(call)], wanted.patient, isinstance(call, SetMetadata))


def _party(call: Call, namespaces: Mapping[str, str]) -> tuple[str, str]:
    """Say on whose behalf a call is made, for its sort."""
    uid = call.target.uid
    if isinstance(call, SetMetadata):
        return ("machines", uid)
    return (sort_of(call).value, namespaces.get(uid, ""))


def sort_of(call: Call) -> Sort:
    """Say which limit a call counts against."""
    if isinstance(call, Insert | Delete | SetMetadata):
        return Sort.CHANGE
    if isinstance(call, Poll):
        return Sort.POLL
    return Sort.LIST if isinstance(call, ListMachines | ReadMachines) else Sort.READ


def bucket_of(call: Call) -> str:
    """Name the limit that a call counts against: of its sort, in its project, and there in its region or globally."""
    scope = call.target.scope
    place = scope.region or region_of(scope.zone) or "global"
    return f"{sort_of(call).value} {scope.project} {place}"


def _spare(before: Pace, most: float, settings: PlanningSettings, now: datetime) -> float:
    passed = max(0.0, (now - before.at).total_seconds())
    return min(most, before.spare + passed * settings.calls_per_second)


def _with_machines(known: Mapping[str, MachineMemory], calls: Iterable[Call]) -> Mapping[str, MachineMemory]:
    """Begin to remember the machines that are called for the first time."""
    new = {}
    for call in calls:
        called = call.machines if isinstance(call, ReadMachines) else ()
        for machine in (call.machine,) if isinstance(call, SetMetadata) else called:
            before = known.get(machine.provider_id)
            if before is None or before.id != machine.id:
                new[machine.provider_id] = MachineMemory(id=machine.id)
    return {**known, **new} if new else known
