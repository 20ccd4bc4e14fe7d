"""Computes the next memory from a decision, without entries of pools and slices that are no longer needed. Pure."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.model.capacity import PoolName
from provisioner.model.fit import demand_key
from provisioner.model.sources import CLAIMS, STORAGE_CLASSES, VOLUMES
from provisioner.model.workloads import WorkloadKind, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.contention import limits
from provisioner.slices.planning.contention.line import CREATES, granted, still_contended
from provisioner.slices.planning.contention.operations import Slots
from provisioner.slices.planning.create.gangs import GangProgress, GangTurns
from provisioner.slices.planning.create.launches import Launches
from provisioner.slices.planning.delete.unneeded import Unneeded
from provisioner.slices.planning.match import Matching, running_gangs
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.state import (
    Backoff,
    CallState,
    Claim,
    CreateCall,
    DeleteCall,
    Memory,
    Phase,
    PhaseEntry,
    PoolMemory,
    SliceMemory,
    Stamps,
)
from provisioner.slices.planning.pool_states import Phases
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.spec.specification import starts_together
from provisioner.slices.planning.stuck import Stuck

#: Scheduled time in minutes since 1970, which CronJobs append to the names of their Jobs.
_TIME = re.compile(r"-\d{8,10}$")
_OF_VOLUMES = frozenset({CLAIMS, VOLUMES, STORAGE_CLASSES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Results of the stages of one decision."""

    round: Round
    #: The matching, without claims of buffers on pools that are deleted to make room for other slices.
    matching: Matching
    turns: GangTurns
    progress: GangProgress
    broken: frozenset[PoolName]
    hanging: frozenset[PoolName]
    launches: Launches
    #: Pools that no slice needs; `deletes` has only the deletes that start now.
    unneeded: Unneeded
    stuck: tuple[Stuck, ...]
    slots: Slots
    #: Whether creates or deletes wait because there are more of them than `slots` allows.
    waits: bool


def next_memory(decision: Decision, phases: Phases, refusals: Mapping[SliceId, str]) -> Memory:
    """Return the next memory; `refusals` has a message for each slice to whose ready pool no pod was bound."""
    ctx, launches = decision.round, decision.launches
    memory, creates, deletes = ctx.memory, launches.creates, decision.unneeded.deletes
    operations = decision.slots.learned
    if creates or deletes:
        operations = replace(operations, deletes_tried_last=len(deletes) > len(creates))
    backoffs = {
        key: last for key, last in memory.backoffs.items() if last.slice_id is None or last.slice_id in ctx.slices
    }
    return replace(
        memory,
        pools=_pools(decision, phases.entries),
        slices=_with_refusals(ctx, decision.matching, refusals, _slices(ctx, decision.matching, launches)),
        operations=operations,
        backoffs=backoffs,
        created_at=limits.remembered(memory.created_at, len(creates), ctx.settings, ctx.now),
        braked_delete_at=decision.unneeded.braked_delete_at,
        tallies=launches.tallies,
        last_creation_duration=next(
            (
                step.at - step.since
                for step in phases.transitions
                if step.since and (step.old, step.new) == (Phase.PROVISIONING, Phase.READY)
            ),
            memory.last_creation_duration,
        ),
        gangs=decision.progress.gangs,
        holds=decision.progress.holds,
        stamps=_stamps(decision),
    )


def _pools(decision: Decision, entries: Mapping[PoolName, PhaseEntry]) -> dict[PoolName, PoolMemory]:
    ctx, unneeded = decision.round, decision.unneeded
    memory, now = ctx.memory, ctx.now
    started = {
        create.request.name: CreateCall(
            slice_id=create.slice_id,
            request=create.request,
            state=CallState.UNDER_WAY,
            since=now,
            namespace=ctx.slices[create.slice_id].workload.namespace,
        )
        for create in decision.launches.creates
    }
    ending, users = {call.name for call in unneeded.deletes}, _last_users(ctx, decision.matching)
    pools: dict[PoolName, PoolMemory] = {}
    for name, pool in ctx.owned.items():
        entry = memory.pool(name)
        delete, unneeded_since = entry.delete, unneeded.since.get(name)
        if delete is not None and delete.state is CallState.POSTPONED and unneeded_since is None:
            delete = None
        if name in ending:
            delete = delete or DeleteCall(state=CallState.UNDER_WAY, since=now)
            delete = replace(delete, state=CallState.UNDER_WAY, since=now)
        zones = pool.pool.zones
        pools[name] = replace(
            entry,
            delete=delete,
            phase=entries[name],
            unneeded_since=unneeded_since,
            free_since=(entry.free_since or now) if pool.free else None,
            last_user=users.get(name),
            place=(str(zones[0]), pool.pool.machine_type) if pool.nodes and zones else entry.place,
            unready_since=pool.unready_since,
            late_since=pool.late_since,
            passing=pool.passing,
            failed=name in decision.broken or (entry.failed and pool.going),
        )
    for name, phase in entries.items():
        if name not in pools:
            pools[name] = PoolMemory(create=started.get(name), phase=phase)
    # A sent delete is kept until a later list of pools lacks the pool.
    pools |= {
        name: replace(pools.get(name, PoolMemory()), delete=call)
        for name, call in memory.deletes.items()
        if name not in ctx.owned and call.state is not CallState.POSTPONED
    }
    return pools


def _last_users(ctx: Round, matching: Matching) -> dict[PoolName, SliceId]:
    users = {
        name: entry.last_user
        for name, entry in ctx.memory.pools.items()
        if entry.last_user is not None and entry.last_user not in matching.held
    }
    users |= {name: user for user, names in matching.held.items() for name in names}
    # Slices of kinds without pods never hold a pool, so the pools that they count on are remembered.
    users |= {name: user for name, user in matching.claimed.items() if not ctx.slices[user].workload.kind.has_pods}
    # If a pool is the only one that was created for its user, its labels are enough to find the user again.
    return {name: user for name, user in users.items() if [pool.name for pool in ctx.pools_of.get(user, ())] != [name]}


def _slices(ctx: Round, matching: Matching, launches: Launches) -> dict[SliceId, SliceMemory]:
    slices = {
        slice_id: replace(entry, claim=None)
        for slice_id, entry in ctx.memory.slices.items()
        if (slice_id in ctx.slices and (entry.attempt or entry.backoff is not None))
        # `unschedulable` is kept even if the slice does not exist now. Kueue suspends and resumes a workload whose pods
        # do not become ready, and the slice of a single pod of kind POD vanishes until the pod is replaced.
        or entry.unschedulable is not None
    }
    slices |= {
        slice_id: replace(ctx.memory.slice(slice_id), claim=claim) for slice_id, claim in matching.claims.items()
    }
    # Without these claims, other slices could take the nodes of a new shared pool, and a second pool would be created.
    for create in launches.creates:
        claim = Claim(pool=create.request.name, since=None, has_pods=True)
        joined = (ctx.slices[create.slice_id], *launches.joined[create.slice_id][: create.request.hosts - 1])
        ids = (slice_.id for slice_ in joined if slice_.share is not None)
        slices |= {slice_id: replace(ctx.memory.slice(slice_id), claim=claim) for slice_id in ids}
    return slices


def _with_refusals(
    ctx: Round, matching: Matching, refusals: Mapping[SliceId, str], slices: dict[SliceId, SliceMemory]
) -> dict[SliceId, SliceMemory]:
    """Return the memory of slices, with a back-off for slices whose pods the scheduler does not bind to ready nodes.

    The back-off of a slice ends if one of its pods is bound, or if its pods have changed. If a pod is bound, the other
    slices of the workload may try again immediately.
    """
    by_uid: dict[WorkloadUid, dict[SliceId, Backoff]] = defaultdict(dict)
    before = {slice_id: entry.unschedulable for slice_id, entry in slices.items() if entry.unschedulable is not None}
    bound = {slice_id.workload_uid for slice_id in before if slice_id in matching.held}
    for slice_id, last in before.items():
        slice_ = ctx.slices.get(slice_id)
        changed = slice_ is not None and _changed(ctx, slice_, slices[slice_id])
        if slice_id not in matching.held and not changed:
            retry_at = min(last.until, ctx.now) if slice_id.workload_uid in bound else last.until
            by_uid[slice_id.workload_uid][slice_id] = replace(last, until=retry_at)
    by_workload: dict[WorkloadUid, dict[SliceId, str]] = defaultdict(dict)
    for slice_id, message in _with_alike(ctx, refusals).items():
        by_workload[slice_id.workload_uid][slice_id] = message
    for uid, messages in by_workload.items():
        siblings, first = by_uid[uid], ctx.slices[min(messages)]
        together = starts_together(first, ctx.settings)
        groups = {id_: uid if together else _group_of(ctx, id_, first) for id_ in (*siblings, *messages)}
        present = {sibling for sibling in siblings if sibling in ctx.slices and ctx.slices[sibling].pods}
        by_uid[uid] = backoff.refused(siblings, messages, ctx.now, present=present, groups=groups)
    return _with_backoffs(ctx, slices, by_uid.values())


def _with_backoffs(
    ctx: Round, slices: Mapping[SliceId, SliceMemory], backoffs: Iterable[Mapping[SliceId, Backoff]]
) -> dict[SliceId, SliceMemory]:
    """Return the entries of slices, with `unschedulable` set to the back-off in `backoffs`, or to None without one."""
    result = dict(slices)
    before = [slice_id for slice_id, entry in slices.items() if entry.unschedulable is not None]
    after = {slice_id: last for siblings in backoffs for slice_id, last in siblings.items()}
    for slice_id in (*before, *(after.keys() - set(before))):
        entry = slices.get(slice_id) or SliceMemory()
        key = entry.refused
        if slice_id in ctx.slices and (key is None or entry.unschedulable is None):
            key = _refused_key(ctx.slices[slice_id])
        result[slice_id] = replace(entry, unschedulable=after.get(slice_id), refused=key if slice_id in after else None)
    return result


def handed_on(ctx: Round) -> Round:
    """Return `ctx` with a back-off for pods that replace refused pods, also in the next Job of a CronJob."""
    slices = ctx.memory.slices
    by_uid: dict[WorkloadUid, dict[SliceId, Backoff]] = defaultdict(dict)
    families: dict[Hashable, dict[SliceId, Backoff]] = defaultdict(dict)
    for slice_id, entry in slices.items():
        if entry.unschedulable is not None:
            by_uid[slice_id.workload_uid][slice_id] = entry.unschedulable
            if entry.refused is not None:
                families[entry.refused[0]][slice_id] = entry.unschedulable
    if not by_uid:
        return ctx
    new = {slice_.workload.uid: _family(slice_) for slice_ in ctx.slices.values() if slice_.workload.uid not in by_uid}
    heirs = {uid: families[family] for uid, family in new.items() if family in families}
    for uid in {slice_id.workload_uid for ids in heirs.values() for slice_id in ids} - ctx.workloads.by_uid.keys():
        del by_uid[uid]
    after = [_handed_on(ctx, uid, siblings, slices) for uid, siblings in {**by_uid, **heirs}.items()]
    return replace(ctx, memory=replace(ctx.memory, slices=_with_backoffs(ctx, slices, after)))


def _refused_key(slice_: Slice) -> tuple[Hashable, Hashable]:
    return _family(slice_), demand_key(slice_.requirements)


def _family(slice_: Slice) -> Hashable:
    """Return the UID of the workload; for a Job of a CronJob, its namespace and its name without the time."""
    workload = slice_.workload
    stem = _TIME.sub("", workload.owner_name) if workload.owner_kind == "Job" else workload.owner_name
    return (workload.namespace, stem) if stem != workload.owner_name else workload.uid


def _handed_on(
    ctx: Round, uid: WorkloadUid, siblings: dict[SliceId, Backoff], slices: Mapping[SliceId, SliceMemory]
) -> dict[SliceId, Backoff]:
    """Return the back-offs of a workload's slices after the controller replaced some of the pods.

    New pods take over the back-off of equal pods. Among slices with equal pods, one slice has the earliest retry.
    """
    if uid not in ctx.workloads.by_uid:
        return _earliest_and_latest(siblings, slices)
    if uid not in ctx.found or ctx.found[uid].workload.kind not in (WorkloadKind.POD, WorkloadKind.JOB):
        return siblings
    current = ctx.found[uid].slices
    alike: dict[Hashable, list[Backoff]] = defaultdict(list)
    for slice_id, last in siblings.items():
        alike[slices[slice_id].refused].append(last)
    keys = {slice_id: slices[slice_id].refused for slice_id in siblings if slice_id in current}
    # New pods get the back-off immediately: the scheduler needs some time to report them as unschedulable.
    unbound = (slice_ for slice_ in current.values() if slice_.leader is not None and not slice_.leader.node_name)
    new = {slice_.id: _refused_key(slice_) for slice_ in unbound if slice_.served and slice_.id not in keys}
    keys |= {slice_id: key for slice_id, key in new.items() if key in alike}
    result = {slice_id: siblings.get(slice_id) or max(alike[key], key=_until) for slice_id, key in keys.items()}
    firsts: dict[Hashable, SliceId] = {}
    for slice_id in sorted(result, key=lambda id_: (result[id_].until, id_)):
        firsts.setdefault(keys[slice_id], slice_id)
    return result | {slice_id: min(alike[key], key=_until) for key, slice_id in firsts.items()}


def _earliest_and_latest(
    siblings: dict[SliceId, Backoff], slices: Mapping[SliceId, SliceMemory]
) -> dict[SliceId, Backoff]:
    """Return only the earliest and the latest back-off among slices with equal pods: a replacement gets one of them."""
    alike: dict[Hashable, list[SliceId]] = defaultdict(list)
    for slice_id in siblings:
        alike[slices[slice_id].refused].append(slice_id)
    kept = {choose(ids, key=lambda id_: siblings[id_].until) for ids in alike.values() for choose in (min, max)}
    return {slice_id: siblings[slice_id] for slice_id in sorted(kept)}


def _until(last: Backoff) -> datetime:
    return last.until


def _changed(ctx: Round, slice_: Slice, entry: SliceMemory) -> bool:
    """Whether the pods of a refused slice have changed since the refusal; False if this is unknown."""
    # While objects in `_OF_VOLUMES` are unknown, requirements may differ although the pods have not changed.
    if slice_.requirements.volumes is not None and not _OF_VOLUMES.isdisjoint(ctx.snapshot.unknown):
        return False
    # Without pods, the requirements come from a template, which Kueue changes. A restart loses `refused`.
    return bool(slice_.pods) and entry.refused is not None and _refused_key(slice_) != entry.refused


def _with_alike(ctx: Round, refusals: Mapping[SliceId, str]) -> dict[SliceId, str]:
    """Return the refusals, with the same message for waiting slices that depend on a refused slice.

    Such slices could share the pool of a refused slice, or belong to the same gang, of which no slice runs yet.
    """
    if not refusals:
        return {}
    running = running_gangs(ctx)

    def key(slice_: Slice) -> Hashable:
        if slice_.gang is not None and slice_.gang not in running:
            return slice_.gang
        return (slice_.workload.uid, slice_.share) if slice_.share is not None else None

    alike = {key(ctx.slices[slice_id]): message for slice_id, message in refusals.items()}
    keys = {slice_.id: key(slice_) for slice_ in ctx.slices.values() if slice_.pending}
    return {id_: alike[key] for id_, key in keys.items() if key is not None and key in alike} | dict(refusals)


def _group_of(ctx: Round, slice_id: SliceId, first: Slice) -> Hashable:
    """Return the gang of a slice, or the slice itself; without a leader pod, assume the gang of the `first` slice."""
    slice_ = ctx.slices.get(slice_id)
    return (slice_ if slice_ is not None and slice_.leader is not None else first).gang or slice_id


def _stamps(decision: Decision) -> Stamps:
    """Return the stamps (times of last grants) to remember.

    A slice that takes a free pool gets no stamp while slices that start together with it are unready, because the stamp
    would put them behind all workloads of their namespace. A workload that releases its pools gets a stamp.
    """
    ctx, progress, launches = decision.round, decision.progress, decision.launches
    units = launches.units
    taken = [slice_id for slice_id in decision.matching.taken if slice_id.workload_uid not in progress.partial]
    taken += [slice_id for slice_id in units if slice_id.workload_uid in progress.released]
    stamps = granted(launches.stamps, CREATES, [units[slice_id] for slice_id in taken], ctx.now)
    return still_contended(stamps, launches.contended | decision.turns.contended, ctx.slices.values())
