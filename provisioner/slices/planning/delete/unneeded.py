"""Decides which pools are deleted, when, and for which reason. Pure.

A pool that no pod uses and no slice counts on is deleted after the deletion delay (`find_unneeded` has exceptions).
The gate checks each delete live before it is sent (`slices.gate`). If many workloads vanish and this process saw no
delete of them, an incomplete list or a restored etcd may be the cause: their pools are deleted one at a time.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.workloads import GroupKey, ObjectRef, Workload, WorkloadKind, WorkloadUid, workload_ref
from provisioner.slices.demand import SliceId
from provisioner.slices.demand.owners import groups_of_pods
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.state import CallState
from provisioner.slices.planning.plan import Delete, DeleteReason, DeleteWait
from provisioner.slices.planning.round import OwnedPool, Round

#: Time within which the scheduler binds a pod to a node that it chose before the node was labelled as free.
_BINDING = timedelta(seconds=20)
#: Maximum difference between two correct clocks of one cluster.
_CLOCKS_APART = timedelta(seconds=60)
#: Statuses in which no pool is deleted: GKE is already deleting the pool, or this release does not know the status.
_UNTOUCHED = frozenset({PoolStatus.STOPPING, PoolStatus.UNKNOWN})
#: Accelerator and topology of a node or of a node selector. An empty text in a selector matches any value.
_Selected = tuple[str, str]
#: Deletes are slowed down if more pools than this number, and more than half of all pools, lost their workloads.
_VANISHED_AT_ONCE = 3
BRAKE_PAUSE = timedelta(seconds=60)


class Due(NamedTuple):
    """Time and reason of a planned delete."""

    at: datetime
    reason: DeleteReason
    waits_for: DeleteWait | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unneeded:
    """The pools to delete, now or later, and their deletes."""

    deletes: tuple[Delete, ...]
    #: Planned deletes by pool, without deletes that are in progress or accepted.
    due: Mapping[PoolName, Due]
    since: Mapping[PoolName, datetime]
    uncordons: tuple[str, ...]
    due_at: tuple[datetime, ...]
    #: Number of pools whose deletes are slowed down; 0 if no delete is slowed down.
    vanished: int = 0
    braked_delete_at: datetime | None


def find_unneeded(
    ctx: Round,
    matching: Matching,
    stuck_slices: Mapping[PoolName, SliceId],
    releasing: Collection[WorkloadUid],
    evicted: Collection[PoolName],
) -> Unneeded:
    """Find the pools that no slice needs, and plan their deletes.

    No deletion delay applies to pools that have status ERROR, were given up or are in an ended reservation, to pools in
    `stuck_slices` without pods of another slice, to pools of workloads in `releasing`, and to `evicted` pools.
    """
    memory, now = ctx.memory, ctx.now
    deletes: list[Delete] = []
    since_of: dict[PoolName, datetime] = {}
    uncordons: list[str] = []
    due_of: dict[PoolName, Due] = {}
    awaited = _selected_by_pending_pods(ctx)
    for pool in ctx.owned.values():
        if not pool.listed:
            continue
        entry, holders = memory.pool(pool.name), matching.holders.get(pool.name, frozenset())
        if pool.pool.status in _UNTOUCHED:
            # `unneeded_since` is kept, because the pool may become usable again.
            if entry.unneeded_since is not None and not holders:
                since_of[pool.name] = entry.unneeded_since
            continue
        failed, stuck = pool.pool.status is PoolStatus.ERROR, stuck_slices.get(pool.name)
        stuck = stuck if holders <= {stuck} else None
        counted_on = not failed and (pool.name in matching.claimed or _may_replace(pool, ctx, matching))
        if stuck is None and (holders or counted_on):
            uncordons += [] if pool.leaving else _cordoned_by_us(pool)
            continue
        # A time in the future was written by a clock that was ahead, and counts as `now`.
        since_of[pool.name] = min(now, entry.unneeded_since or now)
        if pool.leaving:
            continue
        owner = ctx.created_for.get(pool.name)
        released = owner is not None and owner.workload_uid in releasing and owner in ctx.slices
        at_once = failed or stuck is not None or released or pool.ended or pool.lost or pool.name in evicted
        at = _due(pool, since_of[pool.name], ctx, at_once=at_once)
        settle = not failed and _may_be_chosen(pool, awaited, ctx)
        delete = _delete(pool, stuck, ctx, matching, released=released, settle=settle)
        due_of[pool.name] = Due(at, delete.reason)
        if at <= now:
            deletes.append(delete)
        elif entry.delete is not None and entry.delete.needed:
            # The workload of the pool exists, so nodes that an earlier attempt cordoned are uncordoned.
            uncordons += _cordoned_by_us(pool)
    unneeded = Unneeded(
        deletes=tuple(deletes),
        due=due_of,
        since=since_of,
        uncordons=tuple(uncordons),
        due_at=tuple(due.at for due in due_of.values() if due.at > now),
        braked_delete_at=memory.braked_delete_at,
    )
    return _braked(ctx, unneeded)


def _reason(
    pool: OwnedPool, workload: Workload | None, stuck: SliceId | None, ctx: Round, matching: Matching, *, released: bool
) -> DeleteReason:
    """Return the reason of a delete; `workload` is the creator of the pool, None if it is not in the snapshot."""
    owner, keep_suspended = ctx.created_for.get(pool.name), ctx.settings.keep_suspended
    suspended = workload is not None and not workload.keeps_pools(while_suspended=keep_suspended)
    reasons = (
        (DeleteReason.POOL_FAILED, pool.pool.status is PoolStatus.ERROR),
        (DeleteReason.SLICE_STUCK, stuck is not None),
        (DeleteReason.WORKLOAD_GONE, workload is None or workload.deleting),
        (DeleteReason.WORKLOAD_FINISHED, workload is not None and workload.finished),
        (DeleteReason.WORKLOAD_SUSPENDED, suspended),
        (DeleteReason.RESERVATION_ENDED, pool.ended),
        # For an unknown machine type, WORKLOAD_GONE makes the gate keep the pool if its workload exists.
        (DeleteReason.WORKLOAD_GONE, not pool.in_catalogue),
        (DeleteReason.NO_READY_NODES, pool.lost),
        (DeleteReason.SLICE_ELSEWHERE, owner in matching.held or owner in matching.elsewhere),
        (DeleteReason.GIVEN_BACK, released),
    )
    return next((reason for reason, holds in reasons if holds), DeleteReason.NOT_NEEDED)


def _may_be_chosen(pool: OwnedPool, awaited: Collection[_Selected], ctx: Round) -> bool:
    """Whether the scheduler may have chosen a node of the pool for a pod that is not bound yet."""
    # Pods for which a node was chosen before the pool became free are bound within `_BINDING`.
    free_since = ctx.memory.pool(pool.name).free_since
    if not pool.nodes or (pool.free and free_since is not None and free_since <= ctx.now - _BINDING):
        return False
    accelerator, topology = _selected(pool.view.labels)
    selections = {(accelerator, topology), (accelerator, ""), ("", topology), ("", "")}
    return not selections.isdisjoint(awaited)


def _may_replace(pool: OwnedPool, ctx: Round, matching: Matching) -> bool:
    """Whether a pool that is not ready is kept for its unmarked slice, whose claim names another pool.

    The scheduler may bind pods of another workload to that other pool before the pods of the slice.
    """
    owner = ctx.created_for.get(pool.name)
    slice_ = ctx.slices.get(owner) if owner is not None and pool.usable and not pool.ready else None
    if slice_ is None or slice_.mark or not (slice_.pending and slice_.workload.kind.has_pods):
        return False
    return slice_.id in matching.claims and slice_.id not in matching.held


def _cordoned_by_us(pool: OwnedPool) -> list[str]:
    return [node.name for node in pool.nodes if node.cordoned_by_us]


def _selected_by_pending_pods(ctx: Round) -> Collection[_Selected]:
    pending = (pod for pod in ctx.snapshot.pods if not pod.node_name and not pod.finished)
    asking = (pod.requirements for pod in pending if pod.requirements.has_chips)
    return {_selected(requirements.node_selector) for requirements in asking}


def _selected(labels: Mapping[str, str]) -> _Selected:
    return labels.get(constants.TPU_ACCELERATOR, ""), labels.get(constants.TPU_TOPOLOGY, "")


def _delete(
    pool: OwnedPool, stuck: SliceId | None, ctx: Round, matching: Matching, *, released: bool, settle: bool
) -> Delete:
    replaced_groups: frozenset[GroupKey] = frozenset()
    named, uid, *_ = pool.ownership
    workload = ctx.workloads.by_uid.get(uid or ctx.workloads.uid_of_name.get(named, WorkloadUid("")))
    reason = _reason(pool, workload, stuck, ctx, matching, released=released)
    if reason is DeleteReason.SLICE_STUCK and stuck is not None:
        # The delete is for the workload of the stuck slice, even if the pool was created for another slice.
        slice_ = ctx.slices[stuck]
        workload, replaced_groups = slice_.workload, groups_of_pods(slice_)
        named, uid = workload.full_name, workload.uid
    refs = (ObjectRef(kind="Node", api_version="v1", namespace="", name=node.name, uid=node.uid) for node in pool.nodes)
    return Delete(
        name=pool.name,
        reason=reason,
        named=named,
        workload_uid=uid,
        workload=workload_ref(workload) if workload is not None else None,
        node=next(refs, None),
        hosts=pool.pool.hosts,
        membership=ctx.memory.membership,
        replaced_groups=replaced_groups,
        kind_absent=named.kind in ctx.snapshot.absent_kinds,
        settle=settle,
    )


def _due(pool: OwnedPool, since: datetime, ctx: Round, *, at_once: bool) -> datetime:
    settings, now, call = ctx.settings, ctx.now, ctx.memory.pool(pool.name).delete
    due = since
    if not at_once:
        due += timedelta(seconds=settings.deletion_delay_seconds)
        lifespan = timedelta(seconds=settings.node_min_lifespan_seconds)
        # A creation time far in the future is ignored, because a clock is wrong.
        ages = (node.created_at for node in pool.nodes if node.created_at <= now + max(lifespan, _CLOCKS_APART))
        due = max(due, max(ages, default=due - lifespan) + lifespan)
    # A postponed delete waits until `retry_at`, unless the pool's status has changed: the cause may have ended.
    held_up = call is not None and call.state is CallState.POSTPONED and call.status is pool.pool.status
    if held_up and call is not None and call.retry_at is not None:
        due = max(due, call.retry_at)
    return due


def _braked(ctx: Round, found: Unneeded) -> Unneeded:
    """Return `found`; if many workloads vanished, with at most one delete of their pools."""
    now, last_at, owned = ctx.now, found.braked_delete_at, ctx.owned
    vanished = {
        name for name, pool in owned.items() if name in found.since and not pool.leaving and _vanished(pool, ctx)
    }
    few = max(_VANISHED_AT_ONCE, len(owned) // 2)
    if len(vanished) <= few:
        return found
    next_at = now if last_at is None else max(now, last_at + BRAKE_PAUSE)
    # Pools whose deletes failed come last: otherwise one of them could block the deletes of all other pools.
    failures = {name: call.failures for name, call in ctx.memory.deletes.items()}
    queue = sorted(
        (delete for delete in found.deletes if delete.name in vanished), key=lambda delete: failures.get(delete.name, 0)
    )
    let_go = queue[:1] if next_at <= now else []
    next_at = now + BRAKE_PAUSE if let_go else next_at
    # Number of further deletes until only `few` pools are left, whose deletes are not slowed down.
    steps = len(vanished) - len(let_go) - few
    at = {
        delete.name: next_at + min(index, steps - 1) * BRAKE_PAUSE if steps else now
        for index, delete in enumerate(queue[len(let_go) :])
    }
    held_back = (vanished & found.due.keys()) - {delete.name for delete in let_go}
    return replace(
        found,
        deletes=tuple(delete for delete in found.deletes if delete.name not in vanished or delete in let_go),
        due={
            name: due._replace(at=at.get(name, due.at), waits_for=DeleteWait.BRAKE) if name in held_back else due
            for name, due in found.due.items()
        },
        due_at=(*found.due_at, *((next_at,) if queue else ())),
        vanished=len(vanished),
        braked_delete_at=now if let_go else last_at,
    )


def _vanished(pool: OwnedPool, ctx: Round) -> bool:
    """Whether no workload has the UID or name in a pool's labels, and this process saw no delete of the workload."""
    # Workloads of kind POD end with their pods, so it is usual that they vanish.
    if pool.unwatched or pool.ownership.workload.kind is WorkloadKind.POD:
        return False
    workloads, (named, uid, *_) = ctx.workloads, pool.ownership
    exists = uid in workloads.by_uid or named in workloads.uid_of_name
    return not exists and uid not in ctx.snapshot.deleted_workloads and pool.pool.status is not PoolStatus.ERROR
