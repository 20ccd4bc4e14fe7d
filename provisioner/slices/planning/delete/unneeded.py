"""Decides which pools are deleted, when, and for which reason. Pure.

A pool is deleted after the deletion delay if no unfinished pod is on it and no slice counts on it; a failed pool is
deleted immediately. Each reason is verified live before the delete (see `provisioner.slices.gate`). If many workloads
vanish without a trace, their pools are deleted one at a time, because the cause may be an incomplete list or a restored
etcd.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.workloads import GroupKey, ObjectRef, Workload, WorkloadUid, workload_ref
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.state import CallState
from provisioner.slices.planning.plan import Alert, Delete, DeleteReason
from provisioner.slices.planning.round import Round, Supply

#: Maximum difference between the clocks of one cluster, unless one of them is wrong.
_CLOCKS_APART = timedelta(seconds=60)
#: Statuses in which pools are left alone: GKE is deleting the pool, or this release does not know the status.
_UNTOUCHED = frozenset({PoolStatus.STOPPING, PoolStatus.UNKNOWN})
#: Accelerator and topology, as in the labels of nodes.
_Selected = tuple[str, str]
#: Deletes are slowed down if the workloads of more pools than this, and of more than half of all pools, have vanished.
_VANISHED_AT_ONCE = 3
#: Interval between such deletes.
_PAUSE = timedelta(seconds=60)
_HELD_BACK = (
    "its turn: the workloads of many node pools vanished at once, so one node pool every "
    f"{_PAUSE.total_seconds():.0f} s is deleted"
)


class Due(NamedTuple):
    """Time at which a pool that no slice needs is due to be deleted, and the reason."""

    at: datetime
    reason: DeleteReason
    #: Cause of a wait in addition to the delay; empty if there is no cause.
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unneeded:
    """Pools to delete, now and later."""

    deletes: tuple[Delete, ...]
    #: Pools whose delete GKE has not accepted yet, due or not.
    due: Mapping[PoolName, Due]
    #: Time since which no slice needs each of these pools.
    since: Mapping[PoolName, datetime]
    #: Nodes that the provisioner cordoned and whose pool is kept after all.
    uncordons: tuple[str, ...]
    due_at: tuple[datetime, ...]
    alerts: tuple[Alert, ...] = ()
    braked_delete_at: datetime | None


def find_unneeded(
    round_: Round,
    matching: Matching,
    stuck_slices: Mapping[PoolName, SliceId],
    giving_back: Collection[WorkloadUid],
    evicted: Collection[PoolName],
) -> Unneeded:
    """Find the pools that no slice needs, and those of them that are due.

    The deletion delay does not apply to pools that are replaced under stuck slices (whose own pods do not keep them),
    to pools of workloads that release their slices, and to evicted pools, which refused slices need.
    """
    memory, now = round_.memory, round_.now
    deletes: list[Delete] = []
    since: dict[PoolName, datetime] = {}
    uncordons: list[str] = []
    due_of: dict[PoolName, Due] = {}
    awaited = _selected_by_pending_leaders(round_)
    for each in round_.supply.values():
        if not each.listed:
            continue
        if each.pool.status in _UNTOUCHED:
            # If the pool becomes usable again, the time since which it is not needed continues.
            if each.name in memory.unneeded_since and not matching.holders.get(each.name):
                since[each.name] = memory.unneeded_since[each.name]
            continue
        failed = each.pool.status is PoolStatus.ERROR
        owner = round_.made_for.get(each.name)
        stuck, holders = stuck_slices.get(each.name), matching.holders.get(each.name, frozenset())
        # A pool with pods of another slice is not replaced.
        stuck = stuck if holders <= {stuck} else None
        needed = bool(holders) or (each.name in matching.claimed and not failed)
        if needed and stuck is None:
            if not each.leaving:
                uncordons += _cordoned_by_us(each)
            continue
        # A time in the future was written by a clock that was ahead.
        since[each.name] = min(now, memory.unneeded_since.get(each.name, now))
        if each.leaving:
            continue
        back = owner is not None and owner.workload_uid in giving_back and owner in round_.slices
        at_once = failed or stuck is not None or back or each.ended or each.name in evicted
        due = _due(each, since[each.name], round_, at_once=at_once)
        delete = _delete(each, stuck, round_, matching)
        # The scheduler binds no pod with chips to a node that is kept free.
        free = all(node.labels.get(constants.SLICE) == constants.SLICE_FREE for node in each.nodes)
        if not failed and _selected(each.view.labels) in awaited and not free:
            delete = replace(delete, settle=True)
        if back and delete.reason is DeleteReason.NOT_NEEDED:
            delete = replace(delete, reason=DeleteReason.GIVEN_BACK)
        due_of[each.name] = Due(due, delete.reason)
        call = memory.deletes.get(each.name)
        if due <= now:
            deletes.append(delete)
        elif call is not None and call.needed:
            # The workload exists although the caches do not show it, and an earlier attempt may have cordoned nodes.
            uncordons += _cordoned_by_us(each)
    found = Unneeded(
        deletes=tuple(deletes),
        due=due_of,
        since=since,
        uncordons=tuple(uncordons),
        due_at=tuple(each.at for each in due_of.values() if each.at > now),
        braked_delete_at=memory.braked_delete_at,
    )
    return _braked(round_, found)


def _cordoned_by_us(each: Supply) -> list[str]:
    return [node.name for node in each.nodes if node.cordoned_by_us]


def _selected_by_pending_leaders(round_: Round) -> Collection[_Selected]:
    """Return the types that unbound leader pods select: the scheduler may have chosen nodes, which the API hides."""
    leaders = (each.leader for each in round_.slices.values())
    return {
        _selected(leader.requirements.node_selector)
        for leader in leaders
        if leader is not None and leader.kind.has_pods and not leader.node_name and not leader.finished
    }


def _selected(labels: Mapping[str, str]) -> _Selected:
    return labels.get(constants.TPU_ACCELERATOR, ""), labels.get(constants.TPU_TOPOLOGY, "")


def _delete(each: Supply, stuck: SliceId | None, round_: Round, matching: Matching) -> Delete:
    workloads = round_.workloads
    named, uid, spared = each.ownership.workload, each.ownership.workload_uid, GroupKey("")
    workload = workloads.by_uid.get(uid or workloads.uid_of_name.get(named, WorkloadUid("")))
    if each.pool.status is PoolStatus.ERROR:
        reason = DeleteReason.POOL_FAILED
    elif stuck is not None:
        # The pool may have been created for another slice.
        reason, workload = DeleteReason.SLICE_STUCK, round_.slices[stuck].workload
        named, uid, spared = workload.full_name, workload.uid, stuck.group_key
    else:
        reason = _reason(each, workload, round_, matching)
    refs = (ObjectRef(kind="Node", api_version="v1", namespace="", name=one.name, uid=one.uid) for one in each.nodes)
    return Delete(
        name=each.name,
        reason=reason,
        kind=named.kind,
        namespace=named.namespace,
        workload_name=named.name,
        workload_uid=uid,
        workload=workload_ref(workload) if workload is not None else None,
        node=next(refs, None),
        hosts=each.pool.hosts,
        membership=round_.memory.membership,
        spared_group=spared,
        kind_absent=named.kind in round_.snapshot.absent_kinds,
    )


def _due(each: Supply, since: datetime, round_: Round, *, at_once: bool) -> datetime:
    settings, now, call = round_.settings, round_.now, round_.memory.deletes.get(each.name)
    due = since
    if not at_once:
        due += timedelta(seconds=settings.deletion_delay_seconds)
        lifespan = timedelta(seconds=settings.node_min_lifespan_seconds)
        # A creation time far in the future shows that the own clock is behind, and nothing about the node's age.
        ages = (node.created_at for node in each.nodes if node.created_at <= now + max(lifespan, _CLOCKS_APART))
        due = max(due, max(ages, default=due - lifespan) + lifespan)
    # The cause that postponed the last attempt may end as soon as the status of the pool changes.
    held_up = call is not None and call.state is CallState.POSTPONED and call.status is each.pool.status
    if held_up and call is not None and call.retry_at is not None:
        due = max(due, call.retry_at)
    return due


def _reason(each: Supply, workload: Workload | None, round_: Round, matching: Matching) -> DeleteReason:
    owner = round_.made_for.get(each.name)
    if workload is None or workload.deleting:
        return DeleteReason.WORKLOAD_GONE
    if workload.finished:
        return DeleteReason.WORKLOAD_FINISHED
    if not workload.keeps_pools(while_suspended=round_.settings.keep_suspended):
        return DeleteReason.WORKLOAD_SUSPENDED
    if each.ended:
        return DeleteReason.RESERVATION_ENDED
    if not each.in_catalogue:
        # The gate keeps the pool as long as the workload exists.
        return DeleteReason.WORKLOAD_GONE
    if each.lost:
        return DeleteReason.NO_READY_NODES
    if owner is not None and (matching.held.get(owner) or owner in matching.elsewhere):
        return DeleteReason.SLICE_ELSEWHERE
    return DeleteReason.NOT_NEEDED


def _braked(round_: Round, found: Unneeded) -> Unneeded:
    """Return the result with most deletes of pools whose workloads vanished held back, if there are many of them."""
    now, last_at, supply = round_.now, found.braked_delete_at, round_.supply
    vanished = {
        name for name, each in supply.items() if name in found.since and not each.leaving and _vanished(each, round_)
    }
    few = max(_VANISHED_AT_ONCE, len(supply) // 2)
    if len(vanished) <= few:
        return found
    next_at = now if last_at is None else max(now, last_at + _PAUSE)
    # Pools whose deletes failed come last; otherwise one of them could block all others.
    failures = {name: call.failures for name, call in round_.memory.deletes.items()}
    queue = sorted(
        (delete for delete in found.deletes if delete.name in vanished), key=lambda each: failures.get(each.name, 0)
    )
    let_go = queue[:1] if next_at <= now else []
    next_at = now + _PAUSE if let_go else next_at
    # After this number of further deletes the brake ends, and the other pools are deleted immediately.
    steps = len(vanished) - len(let_go) - few
    at = {
        each.name: next_at + min(place, steps - 1) * _PAUSE if steps else now
        for place, each in enumerate(queue[len(let_go) :])
    }
    message = (
        f"The workloads of {len(vanished)} of {len(supply)} node pools are gone, but the provisioner did not see them "
        "being deleted. Check the API server (a restored etcd?). The provisioner confirms each pool by a read of its "
        f"workload, and deletes one pool every {_PAUSE.total_seconds():.0f} s."
    )
    held_back = (vanished & found.due.keys()) - {each.name for each in let_go}
    return replace(
        found,
        deletes=tuple(delete for delete in found.deletes if delete.name not in vanished or delete in let_go),
        due={
            name: each._replace(at=at.get(name, each.at), waits_for=_HELD_BACK) if name in held_back else each
            for name, each in found.due.items()
        },
        due_at=(*found.due_at, *((next_at,) if queue else ())),
        alerts=(Alert(kind="mass_disappearance", message=message),),
        braked_delete_at=now if let_go else last_at,
    )


def _vanished(each: Supply, round_: Round) -> bool:
    """Whether the workload of a pool does not exist, and was not seen being deleted or replaced by one of its name.

    Workloads that are not watched never count as vanished.
    """
    if each.unwatched:
        return False
    workloads, (named, uid, *_) = round_.workloads, each.ownership
    there = uid in workloads.by_uid or named in workloads.uid_of_name
    return not there and uid not in round_.snapshot.deleted_workloads and each.pool.status is not PoolStatus.ERROR
