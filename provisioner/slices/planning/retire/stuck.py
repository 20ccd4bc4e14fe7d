"""Which slices are stuck: their pods stay unschedulable although they have their pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, PoolName, PoolStatus
from provisioner.model.choices import QUEUED_NOT_SERVED
from provisioner.model.fit import trusted
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.notices import notice
from provisioner.slices.planning.plan import Notice
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: What should not last long and does is told after this time.
_STUCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A slice whose pods stay unschedulable although it has its pool."""

    slice_id: SliceId
    pool: PoolName
    #: All its nodes are ready: nothing that waits for them helps.
    ready: bool
    #: What the pods select and its nodes lack: those of another pool would lack it too.
    lacking: tuple[str, ...] = ()
    notice: Notice


def find_stuck(round_: Round, matching: Matching, held: Collection[WorkloadUid]) -> tuple[Stuck, ...]:
    """Find pods that stay unschedulable although their slice has its pool, and tell of them in the scheduler's words.

    Slices of workloads in `held` are kept waiting on purpose.
    """
    slices, supply = round_.slices, round_.supply
    # Of the last round: what this one finds of a pool says nothing of how long it has been so.
    entries = round_.memory.phases
    limit = round_.now - timedelta(seconds=_STUCK_SECONDS)
    place = {slice_id: name for name, slice_id in matching.claimed.items()}
    place |= {slice_id: min(names) for slice_id, names in matching.held.items()}
    found = []
    for slice_id, name in place.items():
        slice_ = slices.get(slice_id)
        if slice_ is None or not slice_.served or slice_.workload.uid in held:
            continue
        waiting = [pod for pod in slice_.pods if pod.unschedulable_since and pod.unschedulable_since <= limit]
        if not waiting:
            continue
        pool, entry = supply.get(name), entries.get(name)
        if pool is None or entry is None or pool.pool.status is PoolStatus.PROVISIONING:
            continue
        if pool.ready and entry.since <= limit:
            first = min(waiting, key=lambda pod: pod.name)
            message = (
                f"{len(waiting)} pod(s) of {slice_.title} are unschedulable although node pool {name} is "
                f"ready for them; the scheduler's message for {first.name}: {first.unschedulable_message}"
            )
            lacking = _lacking(slice_, pool)
            if lacking:
                message += f"; its nodes do not have {', '.join(map(bounds.cut, lacking))}: remove that selector"
            said = notice(slice_, constants.STUCK, message, key=name)
            found.append(Stuck(slice_id=slice_id, pool=name, ready=True, lacking=lacking, notice=said))
        elif pool.unready_since is not None and pool.unready_since <= limit:
            message = (
                f"{slice_.title} waits for node pool {name}, which has status {pool.pool.status.value}: only "
                f"{pool.ready_nodes} of {pool.pool.hosts} nodes are ready with all their chips"
            )
            said = notice(slice_, constants.STUCK, message, key=f"unready {name}")
            found.append(Stuck(slice_id=slice_id, pool=name, ready=False, notice=said))
        elif pool.pool.capacity is CapacityKind.QUEUED and not pool.nodes:
            message = (
                f"{slice_.title} waits for node pool {name}, which an earlier release created with queued "
                f"capacity, and {QUEUED_NOT_SERVED}; then delete that node pool"
            )
            said = notice(slice_, constants.STUCK, message, key=f"queued {name}")
            found.append(Stuck(slice_id=slice_id, pool=name, ready=False, notice=said))
    return tuple(found)


def _lacking(slice_: Slice, pool: Supply) -> tuple[str, ...]:
    """List what was expected of the nodes without knowing it, where the pod selects none of them as they are."""
    if pool.as_is.selected(slice_.requirements):
        return ()
    return trusted(slice_.requirements, pool.view)


def to_replace(stuck: Iterable[Stuck], round_: Round) -> dict[PoolName, SliceId]:
    """Choose the pools to replace under stuck slices, none unless the settings say so, and never many at once."""
    settings, supply = round_.settings, round_.supply
    if not settings.replace_stuck_slices:
        return {}
    going = sum(each.leaving or each.lost or each.pool.status is PoolStatus.STOPPING for each in supply.values())
    most = max(1, len(supply) * settings.replaced_share_percent // 100)
    # Where the nodes lack a label that GKE does not set, another pool would be made again and again.
    ready = [(each.pool, each.slice_id) for each in stuck if each.ready and not each.lacking]
    return dict(ready[: max(0, most - going)])
