"""Which slices are stuck: they have their pool and cannot run on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.fit import trusted
from provisioner.model.workloads import Pod, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.notices import notice
from provisioner.slices.planning.plan import Notice
from provisioner.slices.planning.retire.hanging import how_it_hangs
from provisioner.slices.planning.retire.unready import is_one_unit, unschedulable
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: What should not last long and does is told after this time.
_STUCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A slice that has its pool and cannot run on it, or whose pool hangs."""

    slice_id: SliceId
    pool: PoolName
    notice: Notice
    #: All its nodes are ready, nothing can run there, and another pool may help.
    replaceable: bool = False


def find_stuck(
    round_: Round, matching: Matching, held: Collection[WorkloadUid], hanging: Mapping[PoolName, datetime]
) -> tuple[Stuck, ...]:
    """Find slices whose pool hangs, and those whose pods stay unschedulable although they have their pool.

    Slices of workloads in `held` are kept waiting on purpose.
    """
    place = {slice_id: name for name, slice_id in matching.claimed.items()}
    place |= {slice_id: min(names) for slice_id, names in matching.held.items()}
    found = []
    for slice_id, name in place.items():
        slice_, pool = round_.slices.get(slice_id), round_.supply.get(name)
        if slice_ is None or pool is None or not slice_.served:
            continue
        if name in hanging:
            message = (
                f"{slice_.title} waits for node pool {name}, or uses it, which "
                f"{how_it_hangs(pool, hanging[name], round_.now)}; the administrator has an alert"
            )
            said = notice(slice_, constants.STUCK, message, key=f"hangs {name}")
            found.append(Stuck(slice_id=slice_id, pool=name, notice=said))
        elif slice_.workload.uid not in held and (waiting := unschedulable(slice_)):
            stuck = _stuck(slice_, waiting, pool, round_, matching)
            found += [stuck] if stuck is not None else []
    return tuple(found)


def _stuck(slice_: Slice, waiting: Sequence[Pod], pool: Supply, round_: Round, matching: Matching) -> Stuck | None:
    """Say why pods of a slice stay unschedulable although it has its pool."""
    name, limit = pool.name, round_.now - timedelta(seconds=_STUCK_SECONDS)
    # Of the last round: what this one finds of a pool says nothing of how long it has been so.
    entry = round_.memory.phases.get(name)
    if entry is None or pool.pool.status is PoolStatus.PROVISIONING:
        return None
    waiting = [pod for pod in waiting if pod.unschedulable_since and pod.unschedulable_since <= limit]
    if not waiting:
        return None
    key: str = name
    replaceable = False
    if pool.ready and entry.since <= limit and slice_.nodes > pool.pool.hosts:
        kind, field = slice_.workload.kind.value, slice_.pods_field
        message = (
            f"{slice_.title} now has {field} {slice_.parallelism}, for {slice_.nodes} nodes, and its node pool {name} "
            f"has {pool.pool.hosts}; for a {kind} that runs, no node pool is created or resized: set {field} back, or "
            f"suspend the {kind} and resume it when its pods have ended, for a node pool of {slice_.nodes} nodes"
        )
        key = f"small {name}"
    elif pool.ready and entry.since <= limit:
        first = min(waiting, key=lambda pod: pod.name)
        message = (
            f"{len(waiting)} pod(s) of {slice_.title} are unschedulable although node pool {name} is "
            f"ready for them; the scheduler's message for {first.name}: {first.unschedulable_message}"
        )
        lacking = _lacking(slice_, pool)
        if lacking:
            message += f"; its nodes do not have {', '.join(map(bounds.cut, lacking))}: remove that selector"
        # Where the nodes lack a label that nobody sets, another pool would be made again and again. Pods that have a
        # host each run without the others.
        replaceable = not lacking and (not matching.holders.get(name) or is_one_unit(slice_))
    elif pool.unready_since is not None and pool.unready_since <= limit:
        missing = max(0, pool.pool.hosts - len(pool.nodes))
        message = (
            f"{slice_.title} waits for node pool {name}, which has status {pool.pool.status.value}: only "
            f"{pool.ready_nodes} of {pool.pool.hosts} nodes are ready with all their chips; nodes missing: {missing}"
        )
        key = f"unready {name}"
    else:
        return None
    said = notice(slice_, constants.STUCK, message, key=key)
    return Stuck(slice_id=slice_.id, pool=name, notice=said, replaceable=replaceable)


def _lacking(slice_: Slice, pool: Supply) -> tuple[str, ...]:
    """List what was expected of the nodes without knowing it, where the pod selects none of them as they are."""
    if pool.as_is.selected(slice_.requirements):
        return ()
    return trusted(slice_.requirements, pool.view)


def to_replace(stuck: Iterable[Stuck], round_: Round, matching: Matching) -> dict[PoolName, SliceId]:
    """Choose the pools to replace under the pods of stuck slices, never many at once.

    Those that are given up; those that are ready only where the settings say so.
    """
    settings, supply, given_up = round_.settings, round_.supply, round_.memory.given_up
    lost = {
        name: holder for name in sorted(given_up) for holder in matching.holders.get(name, ()) if holder is not None
    }
    if not settings.replace_stuck_slices:
        return lost
    going = sum(
        each.leaving or each.name in given_up or each.pool.status is PoolStatus.STOPPING for each in supply.values()
    )
    most = max(1, len(supply) * settings.replaced_share_percent // 100)
    ready = [(each.pool, each.slice_id) for each in stuck if each.replaceable]
    return {**lost, **dict(ready[: max(0, most - going)])}
