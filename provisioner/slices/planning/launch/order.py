"""In which order slices that want a pool have their turn: whoever failed longest ago, or came first since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.gangs import Turns
from provisioner.slices.planning.launch.reserving import turn_of
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import Memory, Pace
from provisioner.slices.planning.round import Round


def by_turn(round_: Round, unserved: Iterable[Slice], turns: Turns) -> list[Slice]:
    """Sort slices by whose turn it is.

    Those that failed take turns together with others of their workload that compete for the same: a thousand slices of
    one workload that is refused must not try before one slice of another. For the pace, where all compete with all, the
    namespaces take turns first; for capacity, only slices of one shape do, also those that have not tried yet.
    """
    memory = round_.memory
    # One that starts all together and holds some of its slices goes on with the others: it gives them back in time.
    begun = {slice_id.workload_uid for slice_id, pools in round_.owned.items() if pools} & turns.members.keys()
    nothing_failed = replace(memory, last_failure_at={})
    unserved = tuple(unserved)
    moments = {each.id: turn_of(each, nothing_failed if each.workload.uid in begun else memory) for each in unserved}
    if not memory.last_failure_at:
        return sorted(unserved, key=lambda each: moments[each.id])
    groups: dict[SliceId, tuple[tuple[object, ...], ...]] = {}
    latest: dict[tuple[object, ...], datetime] = {}
    for each in unserved:
        failed_at = memory.last_failure_at.get(each.id)
        alike: tuple[object, ...] = (each.workload.uid, each.shape, each.nodes)
        if failed_at is None or moments[each.id] < failed_at:
            groups[each.id] = (alike,)
            continue
        if paced_until(each, memory.pace, memory) is not None:
            groups[each.id] = ((each.workload.namespace,), (each.workload.namespace, each.workload.uid))
        else:
            groups[each.id] = (alike,)
        for group in groups[each.id]:
            latest[group] = max(moments[each.id], latest.get(group, moments[each.id]))

    def key(each: Slice) -> tuple[datetime, datetime, datetime]:
        moment = moments[each.id]
        outer, *inner = [max(moment, latest.get(group, moment)) for group in groups[each.id]]
        return outer, (inner or [outer])[0], moment

    return sorted(unserved, key=key)


def paced_until(slice_: Slice, pace: Pace, memory: Memory) -> datetime | None:
    """Return before when a slice must not try again; None where it is not among those that are paced."""
    own, failed_at = memory.slice_backoffs.get(slice_.id), memory.last_failure_at.get(slice_.id)
    return backoff.paced_until(pace, own, failed_at)
