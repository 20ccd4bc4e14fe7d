"""Decides from one snapshot of the cluster, and returns a plan. Pure: no clock, no randomness, no I/O.

Level-triggered: a decision may be repeated, skipped or interrupted at any point, and the next one is still right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning import request_status, split
from provisioner.slices.planning.assignment import assignments, label_job_nodes
from provisioner.slices.planning.contention import limits
from provisioner.slices.planning.contention.line import (
    CREATES,
    Unit,
    granted,
    in_line,
    place_of,
    still_contended,
    unit_of,
)
from provisioner.slices.planning.contention.operations import find_slots
from provisioner.slices.planning.contention.waits import OTHER_OPERATIONS, WaitKind
from provisioner.slices.planning.create import gangs
from provisioner.slices.planning.create.launches import Launches
from provisioner.slices.planning.create.options import has_fresh_offer
from provisioner.slices.planning.delete import failing
from provisioner.slices.planning.delete.failing import alerts_of_pools, find_hanging, learn_from_pools, unready
from provisioner.slices.planning.delete.room import make_room
from provisioner.slices.planning.delete.unneeded import Due, Unneeded, find_unneeded
from provisioner.slices.planning.match import Matching, match
from provisioner.slices.planning.memory import answers
from provisioner.slices.planning.memory.state import CallState, CreateCall, DeleteCall, Memory, Phase, PhaseEntry
from provisioner.slices.planning.notices import held_for_others, not_marked, notices_of_workloads, underused
from provisioner.slices.planning.plan import (
    Delete,
    Plan,
    PoolState,
    Transition,
)
from provisioner.slices.planning.round import NOT_DERIVED, Derived, Round, Snapshot, Supply, begin_round
from provisioner.slices.supplier import PoolRules

#: Phases in which pools begin: a pool that is first seen in one of them has entered it in that round.
_BEGUN_HERE = frozenset({Phase.WANTED, Phase.BLOCKED, Phase.CREATING})
#: Intervals in seconds between lists of the pools: while calls wait for operations to end, and while operations run.
_BACKLOG_SECONDS, _BUSY_SECONDS = 1.0, 2.0


def decide(
    snapshot: Snapshot,
    memory: Memory,
    settings: Settings,
    rules: PoolRules,
    now: datetime,
    last: Derived = NOT_DERIVED,
) -> Plan:
    """Return the plan for one snapshot.

    `last` has the derived facts of the last plan (`Plan.derived`): without them the outcome is the same, and takes
    longer. If the snapshot is not synced, the plan changes nothing and keeps the memory.
    """
    if snapshot.not_synced:
        return Plan(memory=memory, poll_seconds=rules.idle_seconds, derived=last)
    pools = {pool.name: pool for pool in snapshot.pools}
    memory = answers.give_up_lost_calls(memory, snapshot.live_calls, pools, now)
    memory, look_ups = answers.confirm(memory, pools, snapshot.pools_listed_at, now)
    round_ = begin_round(snapshot, memory, settings, rules, now, last)
    units = {slice_.id: unit_of(slice_, now) for slice_ in round_.slices.values() if slice_.pending}
    line = in_line(CREATES, units.values(), memory.stamps)
    turns = gangs.take_turns(round_)
    budget = limits.Budget.of(round_)
    lowest = min((unit.priority for unit in line), default=0)
    keep = partial(_keep_from_lower, round_, budget, units, lowest)
    matching = match(round_, budget, line, turns.waiting.keys() | turns.unsatisfiable, keep)
    round_ = replace(round_, memory=learn_from_pools(round_, matching))
    progress = gangs.progress_of(round_, turns, matching)
    turns = replace(turns, waiting={**turns.waiting, **progress.released})
    launches = Launches.begin(round_, matching, turns, budget, line, turns.stamps)
    places = place_of(line)
    refused = sorted(launches.refused, key=lambda slices: places[slices[0].id])
    evicted = make_room(round_, matching, budget, refused)
    matching = matching.without_buffered(evicted, round_.slices)
    hanging = find_hanging(round_)
    stuck = failing.find_stuck(round_, matching, progress.partial.keys(), hanging)
    replaced = failing.to_replace(stuck, round_, matching)
    unneeded = find_unneeded(round_, matching, replaced, turns.releasing, evicted)
    memory, slots = find_slots(round_)
    round_ = replace(round_, memory=memory)
    limits_used = budget.uses()
    launches.serve(slots.for_creates(len(unneeded.deletes)))
    # Pools that refused slices wait for are deleted first, then the pools that have been idle for longest.
    deletes = tuple(sorted(unneeded.deletes, key=lambda each: (each.name not in evicted, unneeded.since[each.name])))
    at_once = slots.for_deletes(len(launches.creates))
    late = {each.name: unneeded.due[each.name]._replace(waits_for=OTHER_OPERATIONS) for each in deletes[at_once:]}
    deletes, due = deletes[:at_once], {**unneeded.due, **late}
    waits = launches.waits_for_operations or len(unneeded.deletes) > len(deletes)
    statuses, expiries = request_status.statuses(round_, matching, launches.waits)
    states, entries, transitions = _phases(round_, matching, launches, due)
    # Slices that start together are granted pools once all have one, or when the workload releases its pools: a stamp
    # for the first pool would put the other slices behind all workloads of their namespace.
    taken = [slice_id for slice_id in matching.taken if slice_id.workload_uid not in progress.partial]
    taken += [slice_id for slice_id in units if slice_id.workload_uid in progress.released]
    stamps = granted(launches.stamps, CREATES, [units[slice_id] for slice_id in taken], now)
    splits = split.find_splits(round_, matching)
    return Plan(
        memory=replace(
            _remember(round_, matching, launches, deletes, unneeded),
            phases=entries,
            usual_creation=next(
                (
                    each.at - each.since
                    for each in transitions
                    if each.since and (each.old, each.new) == (Phase.PROVISIONING, Phase.READY)
                ),
                memory.usual_creation,
            ),
            gangs=progress.gangs,
            holds=progress.holds,
            stamps=still_contended(stamps, launches.contended | turns.contended, round_.slices.values()),
        ),
        creates=tuple(launches.creates),
        deletes=deletes,
        look_ups=look_ups,
        uncordons=unneeded.uncordons,
        releases=progress.releases,
        assignments=(*assignments(round_, matching, progress.partial.keys()), *label_job_nodes(round_)),
        waits=launches.waits,
        notices=(
            *launches.notices,
            *held_for_others(round_, matching.claimed, progress.partial),
            *(each.notice for each in stuck),
            *failing.find_leaderless(round_, matching),
            *failing.find_maintained(round_, matching),
            *failing.find_ending(round_, matching),
            *split.notices(round_, matching, splits),
            *notices_of_workloads(round_),
            *not_marked(round_),
            *(each for slice_ in map(round_.slices.get, matching.held) if slice_ for each in underused(slice_)),
        ),
        statuses=statuses,
        alerts=(*alerts_of_pools(round_, hanging, unneeded.since.keys()), *unneeded.alerts),
        transitions=transitions,
        pools=split.with_splits(states, splits),
        split_slices=splits.affected,
        limits=limits_used,
        derived=round_.derived,
        poll_seconds=_poll_seconds(round_, launches, deletes, waits=waits),
        wake_at=min(
            (
                *launches.wake_at,
                *unneeded.due_at,
                *turns.wake_at,
                *progress.wake_at,
                *([slots.more_at] if slots.more_at is not None and waits else []),
                *_unready_moments(round_),
                *expiries,
            ),
            default=None,
        ),
    )


def _keep_from_lower(
    round_: Round, budget: limits.Budget, units: Mapping[SliceId, Unit], lowest: int, slice_: Slice
) -> None:
    """Keep the chips of a slice that a limit refuses from units of lower priority, if its capacity has not failed."""
    unit = units[slice_.id]
    if slice_.spare or unit.priority <= lowest:
        return
    refusal = budget.refusal([slice_], unit)
    limited = refusal is not None and refusal.kind is WaitKind.LIMIT and not refusal.final
    if limited and has_fresh_offer(round_, slice_, None):
        budget.keep([slice_], unit)


def _phases(
    round_: Round, matching: Matching, launches: Launches, due: Mapping[PoolName, Due]
) -> tuple[tuple[PoolState, ...], dict[PoolName, PhaseEntry], tuple[Transition, ...]]:
    supply, now = round_.supply, round_.now
    observed = {name: phase_of(each, matching) for name, each in supply.items()}
    observed |= {state.name: state.phase for state in launches.wanted}
    entries, transitions = changes(round_.memory.phases, observed, now)
    entries |= {name: drained(entries[name], each, round_, matching) for name, each in supply.items()}
    states = [
        state_of(each, entries[name], round_, matching, _note(each, round_.memory), due.get(name))
        for name, each in supply.items()
    ]
    states += [replace(state, since=entries[state.name].since) for state in launches.wanted]
    return tuple(states), entries, transitions


def _remember(
    round_: Round, matching: Matching, launches: Launches, deletes: Sequence[Delete], unneeded: Unneeded
) -> Memory:
    memory, slices, supply, now = round_.memory, round_.slices, round_.supply, round_.now
    started = {
        create.request.name: CreateCall(
            slice_id=create.slice_id,
            request=create.request,
            state=CallState.UNDER_WAY,
            since=now,
            namespace=slices[create.slice_id].workload.namespace,
        )
        for create in launches.creates
    }
    ending = {
        delete.name: replace(
            memory.deletes.get(delete.name, DeleteCall(state=CallState.UNDER_WAY, since=now)),
            state=CallState.UNDER_WAY,
            since=now,
        )
        for delete in deletes
    }
    operations = memory.operations
    if launches.creates or deletes:
        operations = replace(operations, deletes_tried_last=len(deletes) > len(launches.creates))
    open_deletes = {
        name: call
        for name, call in memory.deletes.items()
        if call.state is not CallState.POSTPONED or name in unneeded.since
    }
    last_users = {name: user for name, user in memory.last_users.items() if user not in matching.held}
    last_users |= {name: user for user, names in matching.held.items() for name in names}
    # Slices of kinds without pods are included, so that they return to their pools after a restart.
    last_users |= {name: user for name, user in matching.claimed.items() if not slices[user].workload.kind.has_pods}
    # An entry ends with its pool, whose name another slice uses next. A slice's only own pool has labels instead.
    last_users = {
        name: user
        for name, user in last_users.items()
        if name in supply and [each.name for each in round_.owned.get(user, ())] != [name]
    }
    return replace(
        memory,
        creates={**memory.creates, **started},
        attempts={slice_id: each for slice_id, each in memory.attempts.items() if slice_id in slices},
        slice_backoffs={slice_id: each for slice_id, each in memory.slice_backoffs.items() if slice_id in slices},
        operations=operations,
        deletes={**open_deletes, **ending},
        backoffs={
            key: each for key, each in memory.backoffs.items() if each.slice_id is None or each.slice_id in slices
        },
        created_at=limits.remembered(memory.created_at, len(started), round_.settings, now),
        unneeded_since=unneeded.since,
        braked_delete_at=unneeded.braked_delete_at,
        last_users=last_users,
        claims=matching.claims,
        tallies=launches.tallies,
    )


def _note(supply: Supply, memory: Memory) -> str:
    call = memory.deletes.get(supply.name)
    # The note of a failed pool is shown to its workload, and must not name pods of other workloads.
    if call is not None and call.reason and not supply.broken:
        return call.reason
    if supply.pool.failure is not None:
        return supply.pool.failure.message
    return unready(supply) if supply.lost else ""


def _poll_seconds(round_: Round, launches: Launches, deletes: Sequence[Delete], *, waits: bool) -> float:
    """Return the maximum age in seconds of the list of pools; `waits` means that calls wait for operations to end."""
    if waits:
        return _BACKLOG_SECONDS
    pools, memory = round_.snapshot.pools, round_.memory
    changing = (PoolStatus.PROVISIONING, PoolStatus.STOPPING, PoolStatus.RECONCILING)
    ours = (pool for pool in pools if pool.labels.get(constants.NODEPOOL_MANAGER) == constants.MANAGER)
    if launches.creates or deletes or memory.creates or any(pool.status in changing for pool in ours):
        return _BUSY_SECONDS
    accepted = any(call.state is not CallState.POSTPONED for call in memory.deletes.values())
    return _BUSY_SECONDS if accepted else round_.rules.idle_seconds


def _unready_moments(round_: Round) -> Iterable[datetime]:
    """Yield the times at which pools will have been unready for too long: no event wakes the loop at these times."""
    for each in round_.supply.values():
        if each.unready_since is None or each.lost:
            continue
        due = each.unready_since + timedelta(seconds=round_.settings.ready_timeout_seconds)
        if each.name in round_.memory.given_up:
            # The pool was given up in this round; the next round replaces it.
            yield round_.now
        elif due > round_.now:
            yield due


def phase_of(supply: Supply, matching: Matching) -> Phase:
    """Return the phase of a pool that exists or is being created."""
    status = supply.pool.status
    if supply.leaving or status is PoolStatus.STOPPING:
        return Phase.DELETING
    if not supply.listed:
        return Phase.CREATING
    if status is PoolStatus.ERROR:
        return Phase.FAILED
    held = bool(matching.holders.get(supply.name))
    if supply.broken and not held:
        return Phase.FAILED
    if not held and supply.name not in matching.claimed:
        return Phase.IDLE
    if supply.ready:
        return Phase.IN_USE if held else Phase.READY
    # A pod on the first nodes of a pool does not end its creation; a node that is lost later does not end its use.
    return Phase.IN_USE if held and status is not PoolStatus.PROVISIONING else Phase.PROVISIONING


def owner_of(name: PoolName, matching: Matching, made_for: Mapping[PoolName, SliceId]) -> SliceId | None:
    """Return the slice of a pool: its holder, otherwise its claimant, otherwise the slice that it was created for."""
    holder = min((each for each in matching.holders.get(name, ()) if each is not None), default=None)
    if holder is not None:
        return holder
    claimant = matching.claimed.get(name)
    return claimant if claimant is not None else made_for.get(name)


def state_of(
    supply: Supply, phase: PhaseEntry, round_: Round, matching: Matching, note: str, due: Due | None
) -> PoolState:
    """Return the entry of one pool in the read model."""
    owner = owner_of(supply.name, matching, round_.made_for)
    slice_ = round_.slices.get(owner) if owner is not None else None
    since, since_start = phase.since, phase.entered_before
    unneeded_since = round_.memory.unneeded_since.get(supply.name)
    if phase.phase is Phase.IDLE and unneeded_since is not None:
        # This time survives restarts, and attempts to delete the pool.
        since, since_start = min(since, unneeded_since), False
    elif phase.draining_since is not None and phase.draining_since > since:
        since, since_start = phase.draining_since, False
    return PoolState(
        name=supply.name,
        phase=phase.phase,
        since=since,
        slice_id=owner,
        leader=slice_.leader if slice_ is not None else None,
        workload=slice_.workload if slice_ is not None else None,
        named=slice_.workload.full_name if slice_ is not None else supply.ownership.workload,
        group_name=slice_.group_name if slice_ is not None else supply.ownership.group_name,
        machine_type=supply.pool.machine_type,
        topology=supply.pool.topology,
        chips=supply.chips,
        nodes=supply.pool.hosts,
        ready_nodes=supply.ready_nodes,
        note=note,
        next_at=due.at if due is not None else None,
        delete_reason=due.reason if due is not None else None,
        delete_waits_for=due.waits_for if due is not None else "",
        undecided=supply.undecided,
        holders=matching.holders.get(supply.name, frozenset()),
        claimant=matching.claimed.get(supply.name),
        draining=phase.draining_since is not None,
        since_start=since_start,
    )


def drained(phase: PhaseEntry, supply: Supply, round_: Round, matching: Matching) -> PhaseEntry:
    """Return the entry of a pool, updated with whether all its pods are of ended or suspended workloads."""
    draining = False
    if phase.phase is Phase.IN_USE and not supply.undecided:
        users = [each for each in matching.holders.get(supply.name, ()) if each is not None]
        if not users:
            owner = owner_of(supply.name, matching, round_.made_for)
            users = [owner] if owner is not None else []
        slices = (round_.slices.get(each) for each in users)
        draining = bool(users) and all(each is None or each.workload.suspended for each in slices)
    if draining is (phase.draining_since is not None):
        return phase
    return replace(phase, draining_since=round_.now if draining else None)


def changes(
    old: Mapping[PoolName, PhaseEntry],
    new: Mapping[PoolName, Phase],
    now: datetime,
) -> tuple[dict[PoolName, PhaseEntry], tuple[Transition, ...]]:
    """Return the phases to remember, and the steps from one phase to the next since the last round."""
    entries: dict[PoolName, PhaseEntry] = {}
    steps: list[Transition] = []
    for name, phase in new.items():
        before = old.get(name)
        if before is not None and before.phase is phase:
            entries[name] = before
            continue
        steps += _steps(name, before, phase, now)
        met = before is None and phase not in _BEGUN_HERE
        entries[name] = PhaseEntry(phase=phase, since=now, entered_before=met)
    for name, before in old.items():
        if name not in new:
            steps += _steps(name, before, Phase.GONE, now)
    return entries, tuple(steps)


def _steps(name: PoolName, before: PhaseEntry | None, phase: Phase, now: datetime) -> Iterable[Transition]:
    """Yield the steps to a phase.

    A pool that vanished and is wanted again was gone in between, and a pool with pods was ready before.
    """
    old, since = (before.phase, before.since) if before is not None else (None, None)
    if old is not None and phase.planned and not old.planned:
        yield Transition(pool=name, old=old, new=Phase.GONE, at=now, since=since)
        old, since = None, None
    if phase is Phase.IN_USE and old is not None and (old.planned or old is Phase.PROVISIONING):
        yield Transition(pool=name, old=old, new=Phase.READY, at=now, since=since)
        old, since = Phase.READY, now
    yield Transition(pool=name, old=old, new=phase, at=now, since=since)
