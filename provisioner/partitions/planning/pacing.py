"""How many calls are made at once: a server works on a few changes, and the rest waits for its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from provisioner.partitions.planning.calls import Call, ReadServer
from provisioner.partitions.planning.memory import Memory
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.step import Wanted


def choose(wanted: Iterable[Wanted], memory: Memory, settings: PlanningSettings) -> tuple[Call, ...]:
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
