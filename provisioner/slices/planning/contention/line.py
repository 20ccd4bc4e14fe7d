"""Orders units (slices, or workloads whose slices start together) that wait for a scarce resource. Pure.

This order is the queue (`line` in names). Units with a higher priority of the leader pod come first. Among equal
priorities, the first unit of every namespace comes before the second unit of any namespace. The namespace whose last
grant is longest ago comes first; for a namespace without a grant, the arrival of its first unit counts. The units of a
namespace are ordered by the last grant of their workload; without a grant, by the creation of the workload.

Each capacity that was out of stock or over quota, and each accelerator of workloads whose slices start together, has
its own queue. Times of grants are remembered while units wait for the resource, or the capacity has a back-off.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from provisioner.model.turns import in_turns
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.memory.state import Stamps, TurnResource

#: Priority of slices of buffers. It is lower than the priority of any pod, because buffers hold pools for other slices.
_OF_BUFFERS = -(2**32)
#: Resource that represents free node pools, limits and operations of the supplier, which share one queue.
CREATES = "creates"


class Unit(NamedTuple):
    """One entry of the queue: a slice, or all slices of a workload that start together."""

    id: SliceId
    namespace: str
    #: Priority of the leader pod, 0 without one; `_OF_BUFFERS` for a slice of a buffer.
    priority: int
    #: Time since which the leader pod is unschedulable; year 1 if unknown or in the future.
    since: datetime
    created_at: datetime
    group_name: str


def unit_of(slice_: Slice, now: datetime) -> Unit:
    """Return a slice as an entry of the queue."""
    leader, workload = slice_.leader, slice_.workload
    since = leader.unschedulable_since if leader is not None else None
    priority = _OF_BUFFERS if slice_.from_buffer else leader.priority if leader is not None else 0
    # A time in the future, set by a clock that is ahead, is ignored: it would move the slice back in the queue.
    since = since if since is not None and since <= now else datetime.min.replace(tzinfo=UTC)
    return Unit(slice_.id, workload.namespace, priority, since, workload.created_at, slice_.group_name)


def in_line(resource: TurnResource, units: Iterable[Unit], stamps: Stamps) -> list[Unit]:
    """Return the units in the order in which the resource is granted to them."""
    units = sorted(
        units,
        key=lambda unit: (
            -unit.priority,
            stamps.get((resource, unit.namespace, unit.id.workload_uid), unit.created_at),
            unit.since,
            unit.group_name,
            unit.id,
        ),
    )
    arrived_at: dict[str, datetime] = {}
    for unit in units:
        arrived_at[unit.namespace] = min(unit.since, arrived_at.get(unit.namespace, unit.since))
    granted_at = {name: stamps.get((resource, name, ""), at) for name, at in arrived_at.items()}
    units = in_turns(
        units, lambda unit: (unit.priority, unit.namespace), lambda party: (granted_at[party[1]], party[1])
    )
    return sorted(units, key=lambda unit: -unit.priority)


def granted(stamps: Stamps, resource: TurnResource, units: Iterable[Unit], now: datetime) -> Stamps:
    """Return `stamps` (times of last grants) after a grant of `resource`, at `now`, to each of the units."""
    new = {(resource, unit.namespace, name): now for unit in units for name in ("", unit.id.workload_uid)}
    return {**stamps, **new} if new else stamps


def still_contended(stamps: Stamps, contended: Collection[TurnResource], slices: Iterable[Slice]) -> Stamps:
    """Return the stamps (times of last grants) of `contended` resources, for namespaces and workloads with pods."""
    if not stamps:
        return stamps
    # Slices that do not wait count as well: without a stamp, an old workload that waits again would always be first.
    present = {name for slice_ in slices if slice_.pods for name in (slice_.workload.namespace, slice_.workload.uid)}
    return {key: at for key, at in stamps.items() if key[0] in contended and (key[2] or key[1]) in present}


def place_of(order: Sequence[Unit]) -> dict[SliceId, int]:
    """Return the place of each unit in `order`, from 1."""
    return {unit.id: place for place, unit in enumerate(order, start=1)}
