"""Computes the next memory from a decision, without entries of pools and slices that are no longer needed. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from provisioner.model import bounds
from provisioner.model.capacity import PoolName
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.contention import limits
from provisioner.slices.planning.contention.line import CREATES, granted, still_contended
from provisioner.slices.planning.contention.operations import Slots
from provisioner.slices.planning.create.gangs import GangProgress, GangTurns
from provisioner.slices.planning.create.launches import Launches
from provisioner.slices.planning.delete.unneeded import Unneeded
from provisioner.slices.planning.match import Matching, running_gangs
from provisioner.slices.planning.memory import backoff, refused
from provisioner.slices.planning.memory.state import (
    Backoff,
    BackoffKey,
    CallState,
    Claim,
    CreateCall,
    DeleteCall,
    Memory,
    Phase,
    PhaseEntry,
    PoolMemory,
    Refusals,
    RefusedPods,
    SliceMemory,
    Stamps,
)
from provisioner.slices.planning.pool_states import Phases
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.stuck import Stuck


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
    #: Pools to delete; `deletes` has only the deletes that start now.
    unneeded: Unneeded
    stuck: tuple[Stuck, ...]
    slots: Slots
    #: Whether creates or deletes wait because there are more of them than `slots` allows.
    waits: bool


def next_memory(decision: Decision, phases: Phases, refusals: Mapping[SliceId, str]) -> Memory:
    """Return the next memory; `refusals` has a message for each slice that was refused in this decision."""
    ctx, launches = decision.round, decision.launches
    memory, creates, deletes = ctx.memory, launches.creates, decision.unneeded.deletes
    operations = decision.slots.learned
    if creates or deletes:
        operations = replace(operations, deletes_last=len(deletes) > len(creates))
    return replace(
        memory,
        pools=_pools(decision, phases.entries),
        slices=_slices(ctx, decision.matching, launches),
        refusals=_refusals(ctx, decision.matching, refusals),
        operations=operations,
        backoffs={key: last for key, last in memory.backoffs.items() if _is_needed(key, last, ctx)},
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


def _is_needed(key: BackoffKey, last: Backoff, ctx: Round) -> bool:
    slice_id = key if isinstance(key, SliceId) else last.slice_id
    return slice_id is None or slice_id in ctx.slices


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
    claimed, partial = decision.matching.claimed, decision.progress.partial
    # These pools may have labels for pods, or get them now, although the caches show the labels of free pools.
    # Pools of workloads in `partial` keep the labels of free pools until all slices are ready.
    opening = {
        name
        for name, user in claimed.items()
        if ctx.slices[user].workload.kind.has_pods and user.workload_uid not in partial
    }
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
        pools[name] = entry._replace(
            delete=delete,
            phase=entries[name],
            unneeded_since=unneeded_since,
            free_since=(entry.free_since or now) if pool.free and name not in opening else None,
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
    # A delete that is not postponed is kept until `answers.confirm` removes it.
    pools |= {
        name: pools.get(name, PoolMemory())._replace(delete=call)
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
    # Kinds without pods never hold a pool, and neither do slices whose bound pods are all being deleted.
    users |= {
        name: user
        for name, user in matching.claimed.items()
        if not ctx.slices[user].workload.kind.has_pods or user in matching.holders.get(name, ())
    }
    # If a pool is the only one that was created for its user, its labels are enough to find the user again.
    return {name: user for name, user in users.items() if [pool.name for pool in ctx.pools_of.get(user, ())] != [name]}


def _slices(ctx: Round, matching: Matching, launches: Launches) -> dict[SliceId, SliceMemory]:
    slices = {
        slice_id: replace(entry, claim=None)
        for slice_id, entry in ctx.memory.slices.items()
        if slice_id in ctx.slices and entry.attempt
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


def _refusals(ctx: Round, matching: Matching, messages: Mapping[SliceId, str]) -> Refusals:
    """Return the refusals; `messages` has a message for each slice that was refused in this decision.

    If a pod of a refused slice is bound later, all refused slices of its workload may be tried immediately. If a slice
    of a gang that does not run yet is refused, all `pending` slices of the gang are refused.
    """
    known, new = ctx.memory.refusals, defaultdict[tuple[str, str], set[RefusedPods]](set)
    bound = set()
    holders = filter(None, map(ctx.slices.get, matching.held))
    for slice_, key, last in refused.refusals_of(holders, known):
        # Without a group, the key is also the key of pods that ran before, and of pods that replace these.
        pools = (ctx.owned[name] for name in matching.held[slice_.id] if name in ctx.owned)
        nodes = (node for pool in pools for node in pool.nodes)
        new_nodes = {node.name for node in nodes if node.created_at > last.since}
        if key.group or any(pod.node_name in new_nodes for pod in slice_.pods):
            bound.add(key.family)
    refusals = {key: last for key, last in known.items() if key.family not in bound}
    if not messages:
        return refusals
    message_of = {ctx.slices[id_].gang: message for id_, message in messages.items()}
    gangs = message_of.keys() - {None, *running_gangs(ctx)}
    # Message and key of the wait, by family. With an equal key, the waits of a gang end together.
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for slice_ in ctx.slices.values():
        waits = slice_.pending and slice_.gang in gangs
        if waits or slice_.id in messages:
            key = refused.key_of(slice_)
            new[key.family].add(key)
            message = messages.get(slice_.id) or message_of.get(slice_.gang, "")
            found[key.family] = message, str(slice_.gang if waits else key.family)
    for key in refusals:
        if key.family in new:
            new[key.family].add(key)
    for family, keys in new.items():
        message, wait_key = found[family]
        before = max((refusals[key] for key in keys & refusals.keys()), key=lambda last: last.failures, default=None)
        refusals |= dict.fromkeys(sorted(keys), backoff.refused(before, wait_key, message, ctx.now))
    return _bounded(refusals)


def _bounded(refusals: Refusals) -> Refusals:
    """Return at most `bounds.NAMESPACE_REFUSALS` refusals of each namespace, those that end last."""
    if len(refusals) <= bounds.NAMESPACE_REFUSALS:
        return refusals
    kept: dict[str, list[RefusedPods]] = defaultdict(list)
    for key in sorted(refusals, key=lambda key: refusals[key].until, reverse=True):
        if len(kept[key.namespace]) < bounds.NAMESPACE_REFUSALS:
            kept[key.namespace].append(key)
    return {key: refusals[key] for keys in kept.values() for key in keys}


def _stamps(decision: Decision) -> Stamps:
    """Return the stamps (times of last grants) to remember.

    A slice that takes a free pool gets no stamp while slices that start together with it are unready, because the stamp
    would put them behind other workloads. A workload that releases its pools gets a stamp.
    """
    ctx, progress, launches = decision.round, decision.progress, decision.launches
    units = launches.units
    taken = [slice_id for slice_id in decision.matching.taken if slice_id.workload_uid not in progress.partial]
    taken += [slice_id for slice_id in units if slice_id.workload_uid in progress.released]
    stamps = granted(launches.stamps, CREATES, [units[slice_id] for slice_id in taken], ctx.now)
    return still_contended(stamps, launches.contended | decision.turns.contended, ctx.slices.values())
