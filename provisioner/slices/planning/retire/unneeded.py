"""Which pools go, when, and for which reason.

A pool goes when no unfinished pod is on it and no slice counts on it, after the deletion delay; a failed one at once.
What is decided here is proven live before anything is deleted (see `provisioner.slices.gate`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from provisioner.model.capacity import Node, PoolName, PoolStatus
from provisioner.model.workloads import GroupKey, ObjectRef, Workload, Workloads, WorkloadUid, workload_ref
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory.state import CallState, DeleteCall, Memory
from provisioner.slices.planning.plan import Alert, Delete, DeleteReason
from provisioner.slices.planning.supply import Supply

#: With more pools than this, and than half of all, whose JobSets vanished without a trace, something else is wrong: a
#: list that left them out, a restored etcd. Then such pools go one at a time, this far apart.
_VANISHED_AT_ONCE = 3
_BRAKED_SECONDS = 60.0
#: A delete that is held up for this long is an alert.
_HELD_UP_SECONDS = 600.0
#: Clocks of one cluster differ by less than this, or one of them is wrong.
_CLOCKS_APART = timedelta(seconds=60)
#: Pods that keep coming and are never bound there hold a pool for so long beyond its time, and no longer.
_HELD_AT_MOST = timedelta(minutes=10)
#: GKE deletes these itself, or says something that this release does not understand.
_UNTOUCHED = frozenset({PoolStatus.STOPPING, PoolStatus.UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """What is to go, now and later."""

    deletes: tuple[Delete, ...]
    #: Since when nothing needs each pool that nothing needs.
    since: Mapping[PoolName, datetime]
    #: Nodes that we cordoned and whose pool stays after all.
    uncordons: tuple[str, ...]
    #: Moments at which the next pools are due.
    due_at: tuple[datetime, ...]
    alerts: tuple[Alert, ...]
    #: For `Memory.braked_delete_at`.
    braked_delete_at: datetime | None


def find_surplus(
    supply: Collection[Supply],
    matching: Matching,
    slices: Mapping[SliceId, Slice],
    made_for: Mapping[PoolName, SliceId],
    workloads: Workloads,
    seen_deleted: Collection[WorkloadUid],
    stuck: Mapping[PoolName, SliceId],
    giving_back: Collection[WorkloadUid],
    in_the_way: Collection[PoolName],
    arriving: Mapping[PoolName, datetime],
    memory: Memory,
    settings: Settings,
    now: datetime,
) -> Surplus:
    """Find the pools that nothing needs, and those of them whose time has come.

    JobSets of `giving_back` let go at once; pools that are `in_the_way` of others go before their delay is over.
    Pools that pods may be on their way to, as `arriving` says, stay until then, ten minutes at most.
    """
    deletes: list[Delete] = []
    since: dict[PoolName, datetime] = {}
    uncordons: list[str] = []
    due_at: list[datetime] = []
    for each in supply:
        if not each.listed:
            continue
        if each.pool.status in _UNTOUCHED:
            # Should it come back, its time has not begun anew.
            if each.name in memory.surplus_since and not matching.holders.get(each.name):
                since[each.name] = memory.surplus_since[each.name]
            continue
        failed = each.pool.status is PoolStatus.ERROR
        owner = made_for.get(each.name)
        given_up = _given_up_for(each, stuck, matching)
        needed = bool(matching.holders.get(each.name)) or (each.name in matching.claimed and not failed)
        if needed and given_up is None:
            if not each.leaving:
                uncordons += [node.name for node in each.nodes if node.cordoned_by_us]
            continue
        # A moment yet to come was written by a clock that ran wrong.
        since[each.name] = min(now, memory.surplus_since.get(each.name, now))
        if each.leaving:
            continue
        back = owner is not None and owner.workload_uid in giving_back and owner in slices
        at_once = failed or given_up is not None or back or each.name in in_the_way
        due = _due(each, since[each.name], memory.deletes.get(each.name), settings, now, at_once=at_once)
        if not failed:
            due = max(due, min(arriving.get(each.name, due), due + _HELD_AT_MOST))
        if due > now:
            due_at.append(due)
            continue
        delete = _delete(each, given_up, owner, slices, workloads, matching, settings)
        if back and delete.reason is DeleteReason.NOT_NEEDED:
            delete = replace(delete, reason=DeleteReason.GIVEN_BACK)
        deletes.append(delete)
    vanished = {
        each.name
        for each in supply
        if each.name in since and not each.leaving and _vanished(each, workloads, seen_deleted)
    }
    # A JobSet that nobody watches may live for ever, and keeps its pool: that is no trouble.
    unwatched = {each.name for each in supply if each.unwatched}
    alerts = _held_up(memory.deletes, since.keys(), unwatched, now)
    braked_at = memory.braked_delete_at
    if len(vanished) > max(_VANISHED_AT_ONCE, len(supply) // 2):
        alerts = (*alerts, _mass_disappearance(vanished, len(supply)))
        next_at = now if braked_at is None else max(now, braked_at + timedelta(seconds=_BRAKED_SECONDS))
        # Those that were held up come last, or one of them could keep all others waiting.
        queue = sorted(
            (delete for delete in deletes if delete.name in vanished), key=lambda delete: _failures(memory, delete)
        )
        let_go = queue[:1] if next_at <= now else []
        deletes = [delete for delete in deletes if delete.name not in vanished or delete in let_go]
        if queue:
            due_at.append(next_at if not let_go else now + timedelta(seconds=_BRAKED_SECONDS))
        braked_at = now if let_go else braked_at
    return Surplus(
        deletes=tuple(deletes),
        since=since,
        uncordons=tuple(uncordons),
        due_at=tuple(due_at),
        alerts=alerts,
        braked_delete_at=braked_at,
    )


def _vanished(each: Supply, workloads: Workloads, seen_deleted: Collection[WorkloadUid]) -> bool:
    """Whether its JobSet is not there, and was seen neither to be deleted nor to be replaced by a namesake.

    Of a namespace that is not watched none is there, and that is no wonder.
    """
    if each.unwatched:
        return False
    there = each.workload_uid in workloads.by_uid or each.workload_name in workloads.uid_of_name
    return not there and each.workload_uid not in seen_deleted and each.pool.status is not PoolStatus.ERROR


def _failures(memory: Memory, delete: Delete) -> int:
    call = memory.deletes.get(delete.name)
    return 0 if call is None else call.failures


def _mass_disappearance(vanished: Collection[PoolName], pools: int) -> Alert:
    return Alert(
        kind="mass_disappearance",
        message=f"The JobSets of {len(vanished)} of {pools} node pools are gone, and nobody saw them being deleted. "
        f"Check the API server (a restored etcd?). Each pool is confirmed by a read of its JobSet, and they "
        f"are deleted one every {_BRAKED_SECONDS:.0f} s.",
    )


def _held_up(
    deletes: Mapping[PoolName, DeleteCall],
    surplus: Collection[PoolName],
    unwatched: Collection[PoolName],
    now: datetime,
) -> tuple[Alert, ...]:
    limit = now - timedelta(seconds=_HELD_UP_SECONDS)
    return tuple(
        Alert(
            kind="delete_held_up",
            message=f"Node pool {name} should go and does not since {call.postponed_since:%H:%M:%S} UTC: {call.reason}",
        )
        for name, call in deletes.items()
        if name in surplus
        and call.postponed_since is not None
        and call.postponed_since <= limit
        and not (call.needed and name in unwatched)
    )


def _delete(
    each: Supply,
    given_up: SliceId | None,
    owner: SliceId | None,
    slices: Mapping[SliceId, Slice],
    workloads: Workloads,
    matching: Matching,
    settings: Settings,
) -> Delete:
    workload = workloads.by_uid.get(each.workload_uid or workloads.uid_of_name.get(each.workload_name, WorkloadUid("")))
    if each.pool.status is PoolStatus.ERROR:
        reason = DeleteReason.POOL_FAILED
    elif given_up is not None:
        # It may be a pool that was made for another.
        workload, owner, reason = slices[given_up].workload, given_up, DeleteReason.SLICE_STUCK
    else:
        reason = _reason(each, workload, owner, matching, settings)
    namespace, workload_name = each.workload_name
    workload_uid = each.workload_uid
    if reason is DeleteReason.SLICE_STUCK and workload is not None:
        namespace, workload_name, workload_uid = workload.namespace, workload.name, workload.uid
    return Delete(
        name=each.name,
        reason=reason,
        namespace=namespace,
        workload_name=workload_name,
        workload_uid=workload_uid,
        slice_id=owner if owner in slices else None,
        workload=workload_ref(workload) if workload is not None else None,
        node=_node_ref(each.nodes),
        spared_group=given_up.group_key
        if given_up is not None and reason is DeleteReason.SLICE_STUCK
        else GroupKey(""),
    )


def _given_up_for(each: Supply, stuck: Mapping[PoolName, SliceId], matching: Matching) -> SliceId | None:
    """Return the stuck slice that a pool is to be replaced for; never where another one's pods are on it."""
    slice_id = stuck.get(each.name)
    if slice_id is None or not matching.holders.get(each.name, frozenset()) <= {slice_id}:
        return None
    return slice_id


def _due(
    each: Supply, since: datetime, call: DeleteCall | None, settings: Settings, now: datetime, *, at_once: bool
) -> datetime:
    due = since
    if not at_once:
        due += timedelta(seconds=settings.deletion_delay_seconds)
        lifespan = timedelta(seconds=settings.node_min_lifespan_seconds)
        # Made well in the future says that our clock runs late, and nothing about the node's age.
        ages = (node.created_at for node in each.nodes if node.created_at <= now + max(lifespan, _CLOCKS_APART))
        due = max(due, max(ages, default=due - lifespan) + lifespan)
    # What was in the way of the last try may be over as soon as the pool's status changes.
    held_up = call is not None and call.state is CallState.POSTPONED and call.status is each.pool.status
    if held_up and call is not None and call.retry_at is not None:
        due = max(due, call.retry_at)
    return due


def _reason(
    each: Supply, workload: Workload | None, owner: SliceId | None, matching: Matching, settings: Settings
) -> DeleteReason:
    if workload is None or workload.deleting:
        return DeleteReason.WORKLOAD_GONE
    if workload.finished:
        return DeleteReason.WORKLOAD_FINISHED
    if not workload.keeps_pools(while_suspended=settings.keep_suspended):
        return DeleteReason.WORKLOAD_SUSPENDED
    if each.lost:
        return DeleteReason.NO_READY_NODES
    if owner is not None and (matching.held.get(owner) or owner in matching.elsewhere):
        return DeleteReason.SLICE_ELSEWHERE
    return DeleteReason.NOT_NEEDED


def _node_ref(nodes: tuple[Node, ...]) -> ObjectRef | None:
    if not nodes:
        return None
    return ObjectRef(kind="Node", api_version="v1", namespace="", name=nodes[0].name, uid=nodes[0].uid)
