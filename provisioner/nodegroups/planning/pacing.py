"""How many calls are made at once: Compute Engine counts the calls of a project by sort and minute.

What is due is made at once as long as that stays within the pace; the rest waits for its turn, changes first, and of
each sort whatever has been due for longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from provisioner.nodegroups.planning.calls import Call, Delete, Insert, ListMachines, Poll, ReadMachine, SetMetadata
from provisioner.nodegroups.planning.memory import MachineMemory, Memory, OpenCall, Pace
from provisioner.nodegroups.planning.round import Wanted
from provisioner.nodegroups.planning.settings import PlanningSettings


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


def pace(wanted: Iterable[Wanted], memory: Memory, settings: PlanningSettings, now: datetime) -> Paced:
    """Choose what is called now, and remember it as being under way."""
    queue = sorted(
        {each.call.key: each for each in wanted}.values(),
        key=lambda each: (_URGENCY[sort_of(each.call)], each.due_at, each.call.key),
    )
    if memory.paused_until is not None and memory.paused_until > now:
        return Paced(memory=memory, calls=(), wake_at=memory.paused_until if queue else None)
    spare = {sort: _spare(memory.pace.get(sort.value), settings, now) for sort in Sort}
    room = settings.most_calls - len(memory.calls)
    chosen: list[Call] = []
    waiting = False
    for each in queue:
        sort = sort_of(each.call)
        if len(chosen) >= room or spare[sort] < 1.0:
            waiting = True
            continue
        spare[sort] -= 1.0
        chosen.append(each.call)
    return Paced(
        memory=replace(
            memory,
            calls={**memory.calls, **{call.key: OpenCall(call=call, since=now) for call in chosen}},
            machines=_with_machines(memory.machines, chosen),
            pace={sort.value: Pace(spare=spare[sort], at=now) for sort in Sort},
        ),
        calls=tuple(chosen),
        wake_at=now + timedelta(seconds=1.0 / settings.calls_per_second) if waiting else None,
    )


def sort_of(call: Call) -> Sort:
    """Say which limit a call counts against."""
    if isinstance(call, Insert | Delete | SetMetadata):
        return Sort.CHANGE
    if isinstance(call, Poll):
        return Sort.POLL
    return Sort.LIST if isinstance(call, ListMachines) else Sort.READ


def _spare(before: Pace | None, settings: PlanningSettings, now: datetime) -> float:
    most = max(1.0, settings.calls_per_second * settings.burst_seconds)
    if before is None:
        return most
    passed = max(0.0, (now - before.at).total_seconds())
    return min(most, before.spare + passed * settings.calls_per_second)


def _with_machines(known: Mapping[str, MachineMemory], calls: Iterable[Call]) -> Mapping[str, MachineMemory]:
    """Begin to remember the machines that are called for the first time."""
    new = {}
    for call in calls:
        if isinstance(call, ReadMachine | SetMetadata):
            before = known.get(call.machine.provider_id)
            if before is None or before.id != call.machine.id:
                new[call.machine.provider_id] = MachineMemory(id=call.machine.id)
    return {**known, **new} if new else known
