"""Which pools go, when, and for which reason.

A pool goes when no unfinished pod is on it and no slice counts on it, after the deletion delay; a failed one at once.
What is decided here is proven live before anything is deleted (see `provisioner.controller.deleting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner.demand import Slice, SliceId
from provisioner.model.capacity import Node, PoolName, PoolStatus
from provisioner.model.workloads import JobSet, JobSetUid, ObjectRef, jobset_ref
from provisioner.planning.matching import Matching
from provisioner.planning.memory import CallState, DeleteCall, Memory
from provisioner.planning.plan import Delete, DeleteReason
from provisioner.planning.supply import Supply
from provisioner.settings import Settings

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


def find_surplus(
    supply: Iterable[Supply],
    matching: Matching,
    slices: Mapping[SliceId, Slice],
    made_for: Mapping[PoolName, SliceId],
    jobsets: Mapping[JobSetUid, JobSet],
    memory: Memory,
    settings: Settings,
    now: datetime,
) -> Surplus:
    """Find the pools that nothing needs, and those of them whose time has come."""
    uid_of_name = {(jobset.namespace, jobset.name): jobset.uid for jobset in jobsets.values()}
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
        if matching.holders.get(each.name) or (each.name in matching.claimed and not failed):
            if not each.leaving:
                uncordons += [node.name for node in each.nodes if node.cordoned_by_us]
            continue
        # A moment yet to come was written by a clock that ran wrong.
        since[each.name] = min(now, memory.surplus_since.get(each.name, now))
        if each.leaving:
            continue
        due = _due(each, since[each.name], memory.deletes.get(each.name), settings)
        if due > now:
            due_at.append(due)
            continue
        jobset = jobsets.get(each.jobset_uid or uid_of_name.get(each.jobset_name, JobSetUid("")))
        namespace, jobset_name = each.jobset_name
        deletes.append(
            Delete(
                name=each.name,
                reason=DeleteReason.POOL_FAILED if failed else _reason(each, jobset, owner, matching),
                namespace=namespace,
                jobset_name=jobset_name,
                jobset_uid=each.jobset_uid,
                slice_id=owner if owner in slices else None,
                jobset=jobset_ref(jobset) if jobset is not None else None,
                node=_node_ref(each.nodes),
            )
        )
    return Surplus(deletes=tuple(deletes), since=since, uncordons=tuple(uncordons), due_at=tuple(due_at))


def _due(each: Supply, since: datetime, call: DeleteCall | None, settings: Settings) -> datetime:
    due = since
    if each.pool.status is not PoolStatus.ERROR:
        due += timedelta(seconds=settings.deletion_delay_seconds)
        youngest = max((node.created_at for node in each.nodes), default=None)
        if youngest is not None:
            due = max(due, youngest + timedelta(seconds=settings.node_min_lifespan_seconds))
    # What was in the way of the last try may be over as soon as the pool's status changes.
    held_up = call is not None and call.state is CallState.POSTPONED and call.status is each.pool.status
    if held_up and call is not None and call.retry_at is not None:
        due = max(due, call.retry_at)
    return due


def _reason(each: Supply, jobset: JobSet | None, owner: SliceId | None, matching: Matching) -> DeleteReason:
    if jobset is None or jobset.deleting:
        return DeleteReason.JOBSET_GONE
    if jobset.finished:
        return DeleteReason.JOBSET_FINISHED
    if jobset.suspended:
        return DeleteReason.JOBSET_SUSPENDED
    if each.lost:
        return DeleteReason.NO_READY_NODES
    if owner is not None and (matching.held.get(owner) or owner in matching.elsewhere):
        return DeleteReason.SLICE_ELSEWHERE
    return DeleteReason.NOT_NEEDED


def _node_ref(nodes: tuple[Node, ...]) -> ObjectRef | None:
    if not nodes:
        return None
    return ObjectRef(kind="Node", api_version="v1", namespace="", name=nodes[0].name, uid=nodes[0].uid)
