"""Decides from one snapshot of the cluster, and returns a plan. Pure: no clock, no randomness, no I/O.

    snapshot, memory
       1 begin     facts of the round: slices, pools, the slice that each pool was created for
       2 contend   who is next: the line, the limits, the workloads that start together
       3 match     which slice has which pool
       4 learn     which pools have failed or hang, which workloads that start together are complete
       5 request   a create for each slice without a pool, or why it waits; pools to delete to make room
       6 retire    pools that no slice needs
       7 start     creates and deletes, as many as the supplier takes now
    plan: changes, reports, and the next memory (`remember.py`)

Level-triggered: a decision may be repeated, skipped or interrupted at any point, and the next one is still right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from provisioner.model.capacity import PoolName
from provisioner.settings import Settings
from provisioner.slices.messages import notices, statuses, waits
from provisioner.slices.planning import assignment, pool_states, remember, scale_in, split, stuck, wake
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import CREATES, Unit, in_line, place_of, unit_of
from provisioner.slices.planning.contention.operations import Slots, find_slots
from provisioner.slices.planning.contention.usage import LimitUse
from provisioner.slices.planning.create import gangs
from provisioner.slices.planning.create.gangs import GangProgress, GangTurns
from provisioner.slices.planning.create.launches import Launches
from provisioner.slices.planning.create.options import keep_from_lower
from provisioner.slices.planning.delete import failing
from provisioner.slices.planning.delete.room import make_room
from provisioner.slices.planning.delete.unneeded import Due, Unneeded, find_unneeded
from provisioner.slices.planning.match import Matching, match
from provisioner.slices.planning.memory import answers
from provisioner.slices.planning.memory.state import LookUp, Memory
from provisioner.slices.planning.plan import Delete, DeleteWait, Notice, Plan
from provisioner.slices.planning.round import Round, Snapshot, begin_round
from provisioner.slices.planning.stuck import Stuck, StuckKind
from provisioner.slices.supplier import PoolRules


def decide(
    snapshot: Snapshot,
    memory: Memory,
    settings: Settings,
    rules: PoolRules,
    now: datetime,
    last: Round | None = None,
) -> Plan:
    """Return the plan for one snapshot.

    `last` is the round of the last plan (`Plan.round`): without it the plan is the same, but takes longer. If the
    snapshot is not synced, the plan changes nothing and keeps the memory.
    """
    if snapshot.not_synced:
        return Plan(memory=memory, poll_seconds=rules.idle_seconds, round=last)
    begun = _begin(snapshot, memory, settings, rules, now, last)
    contention = _contend(begun.round)
    matching = _match(begun.round, contention)
    learned = _learn(begun.round, contention, matching)
    requests = _request(learned, contention, matching)
    retired = _retire(learned, requests)
    started = _start(learned, requests, retired)
    return _plan(begun, learned, requests, retired, started)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    round: Round
    look_ups: tuple[LookUp, ...]


def _begin(
    snapshot: Snapshot, memory: Memory, settings: Settings, rules: PoolRules, now: datetime, last: Round | None
) -> _Begun:
    pools = {pool.name: pool for pool in snapshot.pools}
    without_lost = answers.give_up_lost_calls(memory, snapshot.live_calls, pools, now)
    confirmed, look_ups = answers.confirm(without_lost, pools, snapshot.pools_listed_at, now)
    begun = begin_round(snapshot, confirmed, settings, rules, now, last)
    return _Begun(round=remember.handed_on(begun), look_ups=look_ups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contention:
    #: Units of the slices that want a pool, in the order in which free pools, limits and operations are granted.
    line: Sequence[Unit]
    #: Amounts that are used within the limits; the stages that follow add to them.
    budget: Budget
    turns: GangTurns


def _contend(ctx: Round) -> _Contention:
    units = (unit_of(slice_, ctx.now) for slice_ in ctx.slices.values() if slice_.pending)
    line = in_line(CREATES, units, ctx.memory.stamps)
    return _Contention(line=line, budget=Budget.of(ctx), turns=gangs.take_turns(ctx))


def _match(ctx: Round, contention: _Contention) -> Matching:
    turns, line = contention.turns, contention.line
    lowest = line[-1].priority if line else 0
    refuse = partial(keep_from_lower, ctx, contention.budget, {unit.id: unit for unit in line}, lowest)
    return match(ctx, contention.budget, line, turns.waiting.keys() | turns.unsatisfiable, refuse)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """The round with an updated memory, the pools that fail, and the progress of workloads that start together."""

    round: Round
    broken: frozenset[PoolName]
    hanging: frozenset[PoolName]
    progress: GangProgress
    turns: GangTurns


def _learn(ctx: Round, contention: _Contention, matching: Matching) -> _Learned:
    broken = failing.find_broken(ctx, matching)
    informed = replace(ctx, memory=failing.learn_from_pools(ctx, matching, broken))
    progress = gangs.progress_of(informed, contention.turns, matching)
    turns = replace(contention.turns, waiting={**contention.turns.waiting, **progress.released})
    hanging = failing.find_hanging(informed)
    return _Learned(round=informed, broken=broken, hanging=hanging, progress=progress, turns=turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    launches: Launches
    #: Pools that are deleted although they are warm or in their delay, because slices refused by a limit need the room.
    evicted: frozenset[PoolName]
    #: The matching without the claims of buffers on evicted pools.
    matching: Matching


def _request(learned: _Learned, contention: _Contention, matching: Matching) -> _Requests:
    ctx, line, budget = learned.round, contention.line, contention.budget
    launches = Launches.begin(ctx, matching, learned.turns, budget, line)
    places = place_of(line)
    refused = sorted(launches.refused, key=lambda slices: places[slices[0].id])
    evicted = make_room(ctx, matching, budget, refused)
    kept = matching.without_buffered(evicted, ctx.slices)
    return _Requests(launches=launches, evicted=evicted, matching=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Retired:
    stuck: tuple[Stuck, ...]
    unneeded: Unneeded


def _retire(learned: _Learned, requests: _Requests) -> _Retired:
    ctx, matching = learned.round, requests.matching
    stuck_slices = stuck.find_stuck(ctx, matching, learned.progress.partial.keys(), learned.hanging)
    replaced = failing.to_replace(stuck_slices, ctx, matching)
    unneeded = find_unneeded(ctx, matching, replaced, learned.turns.releasing, requests.evicted)
    return _Retired(stuck=stuck_slices, unneeded=unneeded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    slots: Slots
    limits: tuple[LimitUse, ...]
    deletes: tuple[Delete, ...]
    #: Planned deletes by pool, including those that wait for other operations of the supplier.
    due: Mapping[PoolName, Due]
    #: Whether creates or deletes wait for operations of the supplier to end.
    waits: bool


def _start(learned: _Learned, requests: _Requests, retired: _Retired) -> _Started:
    launches, unneeded = requests.launches, retired.unneeded
    slots = find_slots(learned.round)
    # The reported use of the limits does not include the creates of this decision.
    limits = launches.budget.uses()
    launches.serve(slots.for_creates(len(unneeded.deletes)))
    # First the pools that slices refused by a limit need, then the pools that have been idle for longest.
    urgent = sorted(unneeded.deletes, key=lambda call: (call.name not in requests.evicted, unneeded.since[call.name]))
    at_once = slots.for_deletes(len(launches.creates))
    late = {call.name: unneeded.due[call.name]._replace(waits_for=DeleteWait.OPERATIONS) for call in urgent[at_once:]}
    return _Started(
        slots=slots,
        limits=limits,
        deletes=tuple(urgent[:at_once]),
        due={**unneeded.due, **late},
        waits=launches.waits_for_operations or bool(late),
    )


def _plan(begun: _Begun, learned: _Learned, requests: _Requests, retired: _Retired, started: _Started) -> Plan:
    ctx, matching, launches = learned.round, requests.matching, requests.launches
    phases = pool_states.find_phases(ctx, matching, launches.wanted, started.due)
    splits = split.find_splits(ctx, matching)
    writes, expiries = statuses.statuses(ctx, matching, launches.waits)
    partial_gangs = learned.progress.partial.keys()
    return Plan(
        memory=remember.next_memory(
            ctx,
            matching,
            remember.Changes(
                launches=launches,
                deletes=started.deletes,
                unneeded=retired.unneeded,
                broken=learned.broken,
                phases=phases,
                turns=learned.turns,
                progress=learned.progress,
                operations=started.slots.learned,
                refusals={
                    each.slice_id: notices.refusal(each, ctx)
                    for each in retired.stuck
                    if each.kind is StuckKind.REFUSED
                },
            ),
        ),
        creates=tuple(launches.creates),
        deletes=started.deletes,
        look_ups=begun.look_ups,
        uncordons=retired.unneeded.uncordons,
        releases=learned.progress.releases,
        assignments=(*assignment.assignments(ctx, matching, partial_gangs), *assignment.label_job_nodes(ctx)),
        costs=scale_in.deletion_costs(ctx),
        waits=launches.waits,
        notices=(
            *(each for served in launches.served for each in notices.of_create(*served, ctx)),
            *waits.notices(launches.waits, launches.joined, ctx),
            *_notices(learned, matching, retired, splits),
        ),
        statuses=writes,
        alerts=(
            *notices.alerts_of_pools(ctx, learned.hanging, retired.unneeded.since.keys()),
            *notices.alerts_of_vanished(ctx, retired.unneeded.vanished),
        ),
        transitions=phases.transitions,
        pools=split.with_splits(phases.states, splits),
        split_slices=splits.affected,
        limits=started.limits,
        round=ctx,
        poll_seconds=wake.poll_seconds(ctx, started.deletes, creates=bool(launches.creates), waits=started.waits),
        wake_at=wake.next_decision(
            ctx,
            (
                *launches.wake_at,
                *retired.unneeded.due_at,
                *learned.turns.wake_at,
                *learned.progress.wake_at,
                *([started.slots.more_at] if started.slots.more_at is not None and started.waits else []),
                *expiries,
            ),
        ),
    )


def _notices(learned: _Learned, matching: Matching, retired: _Retired, splits: split.Splits) -> Iterator[Notice]:
    ctx = learned.round
    yield from notices.held_for_others(ctx, matching.claimed, learned.progress.partial)
    yield from (notices.of_stuck(found, ctx) for found in retired.stuck)
    yield from notices.leaderless(ctx, matching)
    yield from notices.maintained(ctx, matching)
    yield from notices.ending(ctx, matching)
    yield from notices.of_splits(ctx, matching, splits)
    yield from notices.notices_of_workloads(ctx)
    yield from notices.not_marked(ctx)
    for slice_ in filter(None, map(ctx.slices.get, matching.held)):
        yield from notices.underused(slice_)
