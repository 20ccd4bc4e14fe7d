"""Decides from one snapshot of the cluster, and returns a plan. Pure: no clock, no randomness, no I/O.

    snapshot, memory
       1 begin     slices, pools, and the slice that each pool was created for
       2 contend   the queue, the limits, and the turns of workloads whose slices start together
       3 match     the pool of each slice
       4 learn     pools that have failed or hang; workloads whose slices start together and are not all ready
       5 request   a create for each slice without a pool, or why the slice waits; pools to delete to make room
       6 retire    pools that no slice needs
       7 start     creates and deletes, up to the maximum number of concurrent operations
    plan: changes, reports, and the next memory (`remember.py`)

Decisions may be skipped and calls may fail: the next decision starts again from the state of the cluster.
"""

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from provisioner.model.capacity import PoolName
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.messages import notices, statuses, waits
from provisioner.slices.planning import assignment, pool_states, scale_in, split, stuck, wake
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import CREATES, Unit, in_line, unit_of
from provisioner.slices.planning.contention.operations import find_slots
from provisioner.slices.planning.contention.usage import LimitUse
from provisioner.slices.planning.create import gangs
from provisioner.slices.planning.create.gangs import GangTurns
from provisioner.slices.planning.create.launches import Launches
from provisioner.slices.planning.create.options import keep_from_lower
from provisioner.slices.planning.delete import failing
from provisioner.slices.planning.delete.room import make_room
from provisioner.slices.planning.delete.unneeded import Unneeded, find_unneeded
from provisioner.slices.planning.match import Matcher, Matching
from provisioner.slices.planning.memory import answers
from provisioner.slices.planning.memory.state import LookUp, Memory
from provisioner.slices.planning.plan import DeleteWait, Notice, Plan
from provisioner.slices.planning.remember import Decision, next_memory
from provisioner.slices.planning.round import Round, Snapshot, begin_round
from provisioner.slices.planning.stuck import StuckKind
from provisioner.slices.supplier import PoolRules


def decide(
    snapshot: Snapshot, memory: Memory, settings: Settings, rules: PoolRules, now: datetime, last: Round | None = None
) -> Plan:
    """Return the plan for one snapshot; if it is not synced, a plan without changes that keeps the memory.

    `last` is the round of the last plan (`Plan.round`). Without `last`, the same plan takes longer to compute.
    """
    if snapshot.not_synced:
        return Plan(memory=memory, poll_seconds=rules.idle_seconds, round=last)
    ctx, look_ups = _begin(snapshot, memory, settings, rules, now, last)
    units = (unit_of(slice_, now) for slice_ in ctx.slices.values() if slice_.pending)
    line, budget, turns = in_line(CREATES, units, ctx.memory.stamps), Budget.of(ctx), gangs.take_turns(ctx)
    matching = _match(ctx, line, budget, turns)
    broken = failing.find_broken(ctx, matching)
    ctx = replace(ctx, memory=failing.learn_from_pools(ctx, matching, broken))
    progress, hanging = gangs.progress_of(ctx, turns, matching), failing.find_hanging(ctx)
    turns = replace(turns, waiting={**turns.waiting, **progress.released})
    launches = Launches(ctx, matching, turns, budget, line)
    evicted = make_room(ctx, matching, budget, launches.refused_in_line())
    matching = matching.without_buffered(evicted, ctx.slices)
    stuck_slices = stuck.find_stuck(ctx, matching, progress.partial.keys(), hanging)
    replaced = failing.to_replace(stuck_slices, ctx, matching)
    unneeded = find_unneeded(ctx, matching, replaced, turns.releasing, evicted)
    # The plan reports the use of the limits without the creates of this decision.
    slots, limits = find_slots(ctx), budget.uses()
    launches.serve(slots.for_creates(len(unneeded.deletes)))
    started = _start_deletes(unneeded, evicted, slots.for_deletes(len(launches.creates)))
    decision = Decision(
        round=ctx,
        matching=matching,
        turns=turns,
        progress=progress,
        broken=broken,
        hanging=hanging,
        launches=launches,
        unneeded=started,
        stuck=stuck_slices,
        slots=slots,
        waits=launches.waits_for_operations or len(started.deletes) < len(unneeded.deletes),
    )
    return _plan(decision, look_ups, limits)


def _begin(
    snapshot: Snapshot, memory: Memory, settings: Settings, rules: PoolRules, now: datetime, last: Round | None
) -> tuple[Round, tuple[LookUp, ...]]:
    pools = {pool.name: pool for pool in snapshot.pools}
    without_lost = answers.give_up_lost_calls(memory, snapshot.live_calls, pools, now)
    confirmed, look_ups = answers.confirm(without_lost, pools, snapshot.pools_listed_at, now)
    return begin_round(snapshot, confirmed, settings, rules, now, last), look_ups


def _match(ctx: Round, line: Sequence[Unit], budget: Budget, turns: GangTurns) -> Matching:
    units = {unit.id: unit for unit in line}
    withheld = set[SliceId]()

    def refuse(slice_: Slice, claims: Container[SliceId]) -> None:
        if slice_.id not in withheld and units[slice_.id].priority > line[-1].priority:
            slices = turns.missing_with(slice_, claims)
            withheld.update(missing.id for missing in slices)
            keep_from_lower(ctx, budget, units, slices)

    return Matcher(ctx, budget, line, turns.waiting.keys() | turns.unsatisfiable).run(refuse)


def _start_deletes(unneeded: Unneeded, evicted: Collection[PoolName], limit: int) -> Unneeded:
    # Evicted pools come first, because slices wait for their delete. Then comes the pool that is unneeded longest.
    urgent = sorted(unneeded.deletes, key=lambda call: (call.name not in evicted, unneeded.since[call.name]))
    late = {call.name: unneeded.due[call.name]._replace(waits_for=DeleteWait.OPERATIONS) for call in urgent[limit:]}
    return replace(unneeded, deletes=tuple(urgent[:limit]), due={**unneeded.due, **late})


def _plan(decision: Decision, look_ups: tuple[LookUp, ...], limits: tuple[LimitUse, ...]) -> Plan:
    ctx, matching, launches, unneeded = decision.round, decision.matching, decision.launches, decision.unneeded
    progress, more_at = decision.progress, decision.slots.more_at if decision.waits else None
    splits = split.find_splits(ctx, matching)
    phases = pool_states.find_phases(ctx, matching, launches.wanted, unneeded.due, splits.affected_pools)
    writes, expiries = statuses.statuses(ctx, matching, launches.waits)
    refused = (entry for entry in decision.stuck if entry.kind is StuckKind.REFUSED)
    return Plan(
        memory=next_memory(decision, phases, {entry.slice_id: notices.refusal(entry, ctx) for entry in refused}),
        creates=tuple(launches.creates),
        deletes=unneeded.deletes,
        look_ups=look_ups,
        uncordons=unneeded.uncordons,
        releases=progress.releases,
        assignments=(*assignment.assignments(ctx, matching, progress.partial.keys()), *assignment.label_job_nodes(ctx)),
        costs=scale_in.deletion_costs(ctx),
        waits=launches.waits,
        notices=tuple(_notices(decision, splits)),
        statuses=writes,
        alerts=(
            *notices.alerts_of_pools(ctx, decision.hanging, unneeded.since.keys()),
            *notices.alerts_of_vanished(ctx, unneeded.vanished),
        ),
        transitions=phases.transitions,
        pools=phases.states,
        split_slices={slice_id: slice_id in splits.slices for slice_id in splits.affected},
        limits=limits,
        round=ctx,
        poll_seconds=wake.poll_seconds(ctx, unneeded.deletes, creates=bool(launches.creates), waits=decision.waits),
        wake_at=wake.next_decision(
            ctx,
            (
                *launches.wake_at,
                *unneeded.due_at,
                *decision.turns.wake_at,
                *progress.wake_at,
                *([more_at] if more_at is not None else []),
                *expiries,
            ),
        ),
    )


def _notices(decision: Decision, splits: split.Splits) -> Iterator[Notice]:
    ctx, matching, launches = decision.round, decision.matching, decision.launches
    for served in launches.served:
        yield from notices.of_create(*served, ctx)
    yield from waits.notices(launches.waits, launches.joined, ctx)
    yield from notices.held_for_others(ctx, matching.claimed, decision.progress.partial)
    yield from (notices.of_stuck(entry, ctx) for entry in decision.stuck)
    yield from notices.leaderless(ctx, matching)
    yield from notices.maintained(ctx, matching)
    yield from notices.ending(ctx, matching)
    yield from notices.of_splits(ctx, matching, splits)
    yield from notices.notices_of_workloads(ctx)
    yield from notices.not_marked(ctx)
    for slice_ in filter(None, map(ctx.slices.get, matching.held)):
        yield from notices.underused(slice_)
