"""The decision: from one snapshot of the world to a plan. Pure: no clock, no randomness, no I/O.

Level-triggered: it can be repeated, skipped or cut short anywhere, and the next one still does the right thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.model.snapshot import Snapshot
from provisioner.model.workloads import Workloads
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId, find_slices, left_to_slices, rejected
from provisioner.slices.demand.serving import ServingPolicy
from provisioner.slices.planning import phases, verdicts
from provisioner.slices.planning.launch import gangs, limits, reserving, wishes
from provisioner.slices.planning.launch.launches import Buying, Shop, buy, gang_problem, problem_of
from provisioner.slices.planning.match.assignment import Matching, Restrictions, match
from provisioner.slices.planning.memory import answers, backoff
from provisioner.slices.planning.memory.state import CallState, CreateCall, DeleteCall, Memory, PhaseEntry
from provisioner.slices.planning.plan import Create, Delete, Plan
from provisioner.slices.planning.retire import arriving, unneeded
from provisioner.slices.planning.supply import Supply, by_owner, find_supply, referred

#: How often the pools are listed: with a backlog that waits for free operations, with operations under way, and idle.
_BACKLOG_POLL_SECONDS = 1.0
_BUSY_POLL_SECONDS = 2.0
_IDLE_POLL_SECONDS = 60.0


def decide(snapshot: Snapshot, memory: Memory, settings: Settings, now: datetime) -> Plan:
    """Decide what to do about one snapshot.

    Where the snapshot is not to be trusted, nothing is decided and nothing is forgotten.
    """
    if snapshot.distrust:
        return Plan(memory=memory, poll_seconds=_IDLE_POLL_SECONDS)
    settings = settings.on_channel(snapshot.release_channel)
    pools = {pool.name: pool for pool in snapshot.pools}
    memory = answers.give_up_lost_calls(memory, snapshot.live_calls, pools, now)
    memory, look_ups = answers.confirm(memory, pools, snapshot.pools_listed_at, now)
    workloads = Workloads.of(snapshot.workloads)
    policy = _serving_policy(snapshot, settings)
    supply = find_supply(snapshot.pools, snapshot.nodes, memory, settings.namespaces, now)
    slices = find_slices(
        workloads,
        snapshot.pods,
        policy,
        referred(supply.values(), workloads, memory),
        keep_suspended=settings.keep_suspended,
    )
    owned = by_owner(slices, supply.values())
    made_for = {each.name: slice_id for slice_id, many in owned.items() for each in many}
    turns = gangs.take_turns(
        slices, owned, lambda each: gang_problem(each, settings, memory, now), memory, settings, now
    )
    one_zone = frozenset(each.workload.uid for each in slices.values() if wishes.wants_one_zone(each, settings))
    matching = match(
        slices,
        supply,
        owned,
        snapshot.pods,
        snapshot.nodes,
        workloads,
        memory.last_held,
        Restrictions(
            one_zone=one_zone,
            sidelined=turns.sidelined.keys() | turns.hopeless,
            yielding=reserving.yielding(slices.values(), memory),
        ),
        now,
    )
    memory = answers.learn_from_pools(memory, supply, matching.holders, made_for, settings, now)
    memory, slots = _operations(snapshot, memory, now)

    standing = gangs.stand(slices, supply, matching, turns, memory, settings, now)
    stuck = verdicts.find_stuck(slices, supply, matching, standing.held, memory.phases, now)
    budget = limits.Budget.of(supply.values(), matching.holders, memory.created_at, settings, now)
    going = unneeded.find_surplus(
        supply.values(),
        matching,
        slices,
        made_for,
        workloads,
        snapshot.deleted_workloads,
        _replaced(stuck, supply, settings),
        turns.giving_back,
        limits.in_the_way(
            (each for each in matching.unserved if each.workload.uid not in turns.sidelined),
            lambda each: not problem_of(each, settings, memory, matching.zones, now),
            turns.members,
            supply,
            _idle_since(supply, matching, memory),
            budget,
        ),
        arriving.held_for_arrivals(supply.values(), matching, slices.values(), memory.surplus_since, now),
        memory,
        settings,
        now,
    )
    deletes = going.deletes if slots is None else going.deletes[:slots]
    slots = None if slots is None else slots - len(deletes)
    # A name is free only when nothing of an earlier pool of that name is left. A delete of ours that is not closed yet,
    # or nodes in the cache with others' pods on them, would be taken for the new pool's: its slice would not count on
    # it and buy another, and the delete might even hit it.
    taken = pools.keys() | memory.creates.keys() | memory.deletes.keys() | {node.pool_name for node in snapshot.nodes}
    shop = Shop(
        owned=owned,
        supply=supply,
        taken=frozenset(taken),
        memory=memory,
        settings=settings,
        zones=matching.zones,
        queued=turns.sidelined,
        gangs=turns.members,
        budget=budget,
        slots=slots,
        now=now,
    )
    buying = buy(matching.unserved, shop)
    closing = reserving.closing(supply.values(), matching, slices, buying.reservations)
    pool_of_node = {node.name: node.pool_name for node in snapshot.nodes}

    observed = {name: phases.phase_of(each, matching) for name, each in supply.items()}
    observed |= {state.name: state.phase for state in buying.wanted}
    owners = {name: phases.owner_of(name, matching, made_for) for name in supply}
    owners |= {state.name: state.slice_id for state in buying.wanted}
    entries, steps = phases.changes(memory.phases, observed, owners, now)
    states = [
        phases.state_of(each, entries[name], owners[name], slices, _note(each, memory)) for name, each in supply.items()
    ]
    states += [replace(state, since=entries[state.name].since) for state in buying.wanted]
    return Plan(
        memory=_remember(
            replace(
                memory,
                gangs=standing.gangs,
                pace=buying.pace,
                reservations=buying.reservations,
                keeping_turns=buying.keeping_turns,
                turns_in_vain=buying.turns_in_vain,
            ),
            buying.creates,
            deletes,
            going,
            matching,
            slices,
            supply,
            entries,
            settings,
            now,
        ),
        creates=tuple(buying.creates),
        deletes=deletes,
        look_ups=look_ups,
        cordons=tuple(node.name for name in sorted(closing) for node in supply[name].nodes if not node.cordoned),
        uncordons=tuple(name for name in going.uncordons if pool_of_node.get(name) not in closing),
        releases=standing.releases,
        verdicts=(
            *buying.verdicts,
            *standing.verdicts,
            *(each.verdict for each in stuck),
            *map(verdicts.too_large, rejected(workloads, policy)),
            *map(verdicts.left_to_slices, left_to_slices(workloads, policy)),
        ),
        alerts=going.alerts,
        transitions=phases.transitions(steps, owners, now),
        pools=tuple(states),
        poll_seconds=_poll_seconds(buying, going, deletes, snapshot, memory),
        wake_at=min(
            (
                *buying.wake_at,
                *going.due_at,
                *turns.wake_at,
                *standing.wake_at,
                *_limit_moments(memory, now),
                *_unready_moments(supply.values(), memory, settings, now),
            ),
            default=None,
        ),
    )


def _serving_policy(snapshot: Snapshot, settings: Settings) -> ServingPolicy:
    return ServingPolicy(
        namespaces=frozenset(settings.namespaces),
        opt_in_label=settings.opt_in_label,
        namespace_labels=snapshot.namespace_labels,
    )


def _operations(snapshot: Snapshot, memory: Memory, now: datetime) -> tuple[Memory, int | None]:
    """Learn GKE's limit from its answers, and count how many operations may be started now.

    Counted are the node pool operations of the cluster: everybody's, as GKE's quota does, as far as pools show them.
    """
    known = {pool.name for pool in snapshot.pools if pool.status in (PoolStatus.PROVISIONING, PoolStatus.STOPPING)}
    known |= memory.creates.keys()
    known |= {name for name, call in memory.deletes.items() if call.state is CallState.ACCEPTED}
    # A delete that is still being proven takes a slot soon; it says nothing of what GKE took.
    coming = {name for name, call in memory.deletes.items() if call.state is CallState.UNDER_WAY} - known
    if not any(call.state is CallState.UNDER_WAY for call in memory.creates.values()):
        memory = replace(memory, operations=backoff.learn(memory.operations, len(known), now))
    return memory, backoff.free_slots(memory.operations, len(known) + len(coming), now)


def _remember(
    memory: Memory,
    creates: Iterable[Create],
    deletes: Iterable[Delete],
    going: unneeded.Surplus,
    matching: Matching,
    slices: Mapping[SliceId, Slice],
    supply: Mapping[PoolName, Supply],
    entries: Mapping[PoolName, PhaseEntry],
    settings: Settings,
    now: datetime,
) -> Memory:
    started = {
        create.request.name: CreateCall(
            slice_id=create.slice_id, request=create.request, state=CallState.UNDER_WAY, since=now
        )
        for create in creates
    }
    ending = {
        delete.name: replace(
            memory.deletes.get(delete.name, DeleteCall(state=CallState.UNDER_WAY, since=now)),
            state=CallState.UNDER_WAY,
            since=now,
        )
        for delete in deletes
    }
    open_deletes = {
        name: call
        for name, call in memory.deletes.items()
        if call.state is not CallState.POSTPONED or name in going.since
    }
    last_held = {**memory.last_held, **{slice_id: min(names) for slice_id, names in matching.held.items()}}
    # It ends with the pool: the next one of that name is another slice's.
    last_held = {slice_id: name for slice_id, name in last_held.items() if slice_id in slices and name in supply}
    return replace(
        memory,
        creates={**memory.creates, **started},
        attempts={slice_id: each for slice_id, each in memory.attempts.items() if slice_id in slices},
        slice_backoffs={slice_id: each for slice_id, each in memory.slice_backoffs.items() if slice_id in slices},
        last_failure_at={slice_id: at for slice_id, at in memory.last_failure_at.items() if slice_id in slices},
        deletes={**open_deletes, **ending},
        refusals={digest: each for digest, each in memory.refusals.items() if each.slice_id in slices},
        created_at=limits.remembered(memory.created_at, started, settings, now),
        surplus_since=going.since,
        braked_delete_at=going.braked_delete_at,
        last_held=last_held,
        phases=entries,
    )


def _replaced(
    stuck: Iterable[verdicts.Stuck], supply: Mapping[PoolName, Supply], settings: Settings
) -> dict[PoolName, SliceId]:
    """Choose the pools to replace under stuck slices, none unless the settings say so, and never many at once."""
    if not settings.replace_stuck_slices:
        return {}
    going = sum(each.leaving or each.lost or each.pool.status is PoolStatus.STOPPING for each in supply.values())
    most = max(1, len(supply) * settings.replaced_share_percent // 100)
    # Where the nodes lack a label that GKE does not set, another pool would be made again and again.
    ready = [(each.pool, each.slice_id) for each in stuck if each.ready and not each.lacking]
    return dict(ready[: max(0, most - going)])


def _idle_since(supply: Mapping[PoolName, Supply], matching: Matching, memory: Memory) -> dict[PoolName, datetime]:
    """List the pools that nothing needed at the last look, nor does now."""
    return {
        name: since
        for name, since in memory.surplus_since.items()
        if name in supply and supply[name].usable and name not in matching.claimed and not matching.holders.get(name)
    }


def _note(supply: Supply, memory: Memory) -> str:
    call = memory.deletes.get(supply.name)
    if call is not None and call.reason:
        return call.reason
    return supply.pool.failure.message if supply.pool.failure is not None else ""


def _poll_seconds(
    buying: Buying,
    going: unneeded.Surplus,
    deletes: tuple[Delete, ...],
    snapshot: Snapshot,
    memory: Memory,
) -> float:
    if buying.waits_for_operations or len(going.deletes) > len(deletes):
        return _BACKLOG_POLL_SECONDS
    changing = (PoolStatus.PROVISIONING, PoolStatus.STOPPING, PoolStatus.RECONCILING)
    ours = (pool for pool in snapshot.pools if pool.labels.get(constants.NODEPOOL_MANAGER) == constants.MANAGER)
    if buying.creates or deletes or memory.creates or any(pool.status in changing for pool in ours):
        return _BUSY_POLL_SECONDS
    accepted = any(call.state is not CallState.POSTPONED for call in memory.deletes.values())
    return _BUSY_POLL_SECONDS if accepted else _IDLE_POLL_SECONDS


def _limit_moments(memory: Memory, now: datetime) -> tuple[datetime, ...]:
    moments = (memory.operations.retry_at, memory.operations.probe_at)
    return tuple(moment for moment in moments if moment is not None and moment > now)


def _unready_moments(supply: Iterable[Supply], memory: Memory, settings: Settings, now: datetime) -> Iterable[datetime]:
    """Moments at which pools have been unready for too long: nothing else happens then that would wake the loop."""
    for each in supply:
        if each.unready_since is None or each.lost:
            continue
        if each.name in memory.given_up:
            # Given up in this very round; the next one replaces it.
            yield now
        elif (due := each.unready_since + timedelta(seconds=settings.ready_timeout_seconds)) > now:
            yield due
