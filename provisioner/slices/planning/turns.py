"""Turns: who may use a contended resource now.

A resource is contended while several units want it and it cannot serve all of them: capacity that was out of stock, a
limit on chips, GKE's operations, the threads that call GKE, the stock that workloads which start together compete for.
Namespaces take turns first, then the workloads of one namespace, then the slices of one workload: those first whose
last turn, or arrival, is longest ago. So a slice waits for at most (namespaces that wait) x (workloads of its namespace
that wait) x (slices of its workload that wait) turns, whatever fails and whoever comes later.

A unit that needs several resources takes its turns in a fixed order (each accelerator that workloads start together on,
then the limits, narrowest first), and keeps each turn until it has had the next: no two units wait for each other.

A turn ends when the unit is served, or after `TURN`; later where GKE is still busy with what it is for. After a turn in
vain nobody has one for as long, and everyone may use what is free. Units that do not want the resource never wait for
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice

#: How long one turn lasts at most, and the pause after a turn in vain.
TURN = timedelta(minutes=15)
#: A turn lasts so long at most where GKE is still busy with what it is for: a create that finds no capacity ends within
#: 35 minutes.
SLOWEST = 3 * TURN
#: The resource of all creates together: the threads that call the supplier, and its operations.
CREATES = "creates"


class Unit(NamedTuple):
    """What takes a turn: a slice, or a workload whose slices start together."""

    namespace: str
    workload_uid: WorkloadUid
    #: Empty for a workload.
    group_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whose turn it is at one resource; in a pause nobody's."""

    holder: Unit | None
    began_at: datetime
    length: timedelta = TURN

    @property
    def until(self) -> datetime:
        """When it ends at the latest."""
        return self.began_at + self.length


#: When a unit, or all units with the same beginning (their workload, their namespace), last had a turn at a resource.
LastTurns = Mapping[tuple[str, tuple[str, ...]], datetime]
#: Units of one beginning, each with the moment of its last turn.
_Queue = list[tuple[datetime, Unit]]


def unit_of(slice_: Slice, *, together: bool = False) -> Unit:
    """Return the unit of a slice, or of its workload where that starts `together`."""
    return Unit(slice_.workload.namespace, slice_.workload.uid, "" if together else slice_.id.group_key)


def waits_since(slice_: Slice, now: datetime) -> datetime:
    """Return since when the slice's leader pod cannot be scheduled."""
    since = slice_.leader.unschedulable_since if slice_.leader is not None else None
    # A moment to come is one of a clock that is ahead: it says nothing, and must not be the last for ever.
    return since if since is not None and since <= now else datetime.min.replace(tzinfo=UTC)


def in_order(resource: str, waiting: Mapping[Unit, datetime], last: LastTurns) -> list[Unit]:
    """Order units that wait, each since the given moment: the next one first."""
    queues: dict[tuple[str, ...], _Queue] = {
        unit: [(max(since, last.get((resource, unit), since)), unit)] for unit, since in waiting.items()
    }
    # The slices of each workload, the workloads of each namespace, the namespaces.
    for level in (2, 1, 0):
        inner: dict[tuple[str, ...], dict[tuple[str, ...], _Queue]] = defaultdict(dict)
        for key, queue in queues.items():
            inner[key[:level]][key] = queue
        queues = {key: _interleaved(resource, each, last) for key, each in inner.items()}
    return [unit for _, unit in queues.get((), ())]


def _interleaved(resource: str, queues: Mapping[tuple[str, ...], _Queue], last: LastTurns) -> _Queue:
    """Take the first of each queue, then the second of each; those queues first whose last turn is longest ago."""
    placed = []
    for key, queue in queues.items():
        first = queue[0][0]
        own = max(first, last.get((resource, key), first))
        had_one = (resource, key) in last
        placed += [(place, own, had_one, (max(own, each[0]), each[1])) for place, each in enumerate(queue)]
    # Among equals the order in which they came stays.
    placed.sort(key=lambda each: each[:3])
    return [each for *_, each in placed]


def next_turn(
    turn: Turn | None,
    resource: str,
    waiting: Mapping[Unit, datetime],
    last: LastTurns,
    now: datetime,
    length: timedelta = TURN,
) -> Turn | None:
    """Return whose turn it is from now on, for `length` at most; None where nobody waits."""
    if turn is not None and turn.holder in waiting:
        return turn if now < turn.until else Turn(holder=None, began_at=now)
    if turn is not None and turn.holder is None and now < turn.until:
        return turn
    order = in_order(resource, waiting, last)
    return Turn(holder=order[0], began_at=now, length=length) if order else None


def had_since(resource: str, turn: Turn, turns: Mapping[str, Turn], last: LastTurns) -> bool:
    """Whether the holder of one turn has had another one, at another resource, since that began."""
    now, unit = turns.get(resource), turn.holder
    over = now is None or now.holder != unit
    return over and unit is not None and last.get((resource, unit), turn.began_at) > turn.began_at


def had_turn(resource: str, unit: Unit, now: datetime) -> dict[tuple[str, tuple[str, ...]], datetime]:
    """Return what is noted of a turn that a unit has now."""
    return {(resource, unit[:level]): now for level in (1, 2, 3)}


def still_of_use(last: LastTurns, waiting: Iterable[Unit]) -> LastTurns:
    """Drop what is noted of units that wait no more, and of workloads and namespaces without any."""
    kept = {key for unit in waiting for key in (unit[:1], unit[:2], (*unit[:2], ""), tuple(unit))}
    return {key: at for key, at in last.items() if key[1] in kept}
