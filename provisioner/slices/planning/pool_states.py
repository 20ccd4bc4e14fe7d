"""Determines the phase of each pool from the observed state, and the transitions since the last decision. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.delete.failing import unready
from provisioner.slices.planning.delete.unneeded import Due
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.state import DeleteCall, Phase, PhaseEntry
from provisioner.slices.planning.plan import PoolState, Transition
from provisioner.slices.planning.round import OwnedPool, Round

_PLANNED = (Phase.WANTED, Phase.BLOCKED, Phase.CREATING)
_LISTED = (Phase.PROVISIONING, Phase.READY, Phase.IN_USE, Phase.IDLE, Phase.DELETING, Phase.FAILED)
#: Phase to report between two phases of a pool: GONE before it is planned again, READY before it is used.
_PASSED: Mapping[tuple[Phase, Phase], Phase] = {
    **{(old, new): Phase.GONE for old in _LISTED for new in _PLANNED},
    **{(old, Phase.IN_USE): Phase.READY for old in (*_PLANNED, Phase.PROVISIONING)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The phases of all existing and wanted pools after one decision."""

    states: tuple[PoolState, ...]
    entries: Mapping[PoolName, PhaseEntry]
    transitions: tuple[Transition, ...]


def find_phases(
    ctx: Round,
    matching: Matching,
    wanted: Sequence[PoolState],
    due_of: Mapping[PoolName, Due],
    splits: Collection[PoolName],
) -> Phases:
    """Return the phases of all pools. `wanted` has pools that do not exist yet, `splits` is `Splits.affected_pools`."""
    observed = {name: phase_of(pool, matching) for name, pool in ctx.owned.items()}
    observed |= {state.name: state.phase for state in wanted}
    before = {name: entry.phase for name, entry in ctx.memory.pools.items() if entry.phase is not None}
    entries, transitions = changes(before, observed, ctx.now)
    entries |= {name: drained(entries[name], pool, ctx, matching) for name, pool in ctx.owned.items()}
    states = [
        state_of(pool, entries[name], ctx, matching, due_of.get(name), split=name in splits)
        for name, pool in ctx.owned.items()
    ]
    states += [state._replace(since=entries[state.name].since) for state in wanted]
    return Phases(states=tuple(states), entries=entries, transitions=transitions)


def phase_of(owned: OwnedPool, matching: Matching) -> Phase:
    """Return the phase of a pool that exists or is being created."""
    status = owned.pool.status
    if owned.leaving or status is PoolStatus.STOPPING:
        return Phase.DELETING
    if not owned.listed:
        return Phase.CREATING
    if status is PoolStatus.ERROR:
        return Phase.FAILED
    held = bool(matching.holders.get(owned.name))
    if owned.broken and not held:
        return Phase.FAILED
    if not held and owned.name not in matching.claimed:
        return Phase.IDLE
    if owned.ready:
        return Phase.IN_USE if held else Phase.READY
    # While GKE creates an unready pool, its pods do not make it IN_USE. Later, it remains IN_USE if a node is lost.
    return Phase.IN_USE if held and status is not PoolStatus.PROVISIONING else Phase.PROVISIONING


def owner_of(name: PoolName, matching: Matching, created_for: Mapping[PoolName, SliceId]) -> SliceId | None:
    """Return the slice that holds a pool, otherwise counts on it, otherwise the slice that it was created for."""
    holder = min((slice_id for slice_id in matching.holders.get(name, ()) if slice_id is not None), default=None)
    if holder is not None:
        return holder
    claimant = matching.claimed.get(name)
    return claimant if claimant is not None else created_for.get(name)


def state_of(
    owned: OwnedPool, phase: PhaseEntry, ctx: Round, matching: Matching, due: Due | None, *, split: bool
) -> PoolState:
    """Return the state of one existing pool; `due` is its planned delete, None if no delete is planned."""
    owner = owner_of(owned.name, matching, ctx.created_for)
    slice_ = ctx.slices.get(owner) if owner is not None else None
    since, since_start = phase.since, phase.entered_before
    entry = ctx.memory.pool(owned.name)
    if phase.phase is Phase.IDLE and entry.unneeded_since is not None:
        # `unneeded_since` is more exact: restarts and attempts to delete the pool do not change it.
        since, since_start = min(since, entry.unneeded_since), False
    elif phase.draining_since is not None and phase.draining_since > since:
        since, since_start = phase.draining_since, False
    return PoolState(
        name=owned.name,
        phase=phase.phase,
        since=since,
        slice_id=owner,
        leader=slice_.leader if slice_ is not None else None,
        workload=slice_.workload if slice_ is not None else None,
        named=slice_.workload.full_name if slice_ is not None else owned.ownership.workload,
        group_name=slice_.group_name if slice_ is not None else owned.ownership.group_name,
        machine_type=owned.pool.machine_type,
        topology=owned.pool.topology,
        chips=owned.chips,
        nodes=owned.pool.hosts,
        ready_nodes=owned.ready_nodes,
        note=_note(owned, entry.delete),
        next_at=due.at if due is not None else None,
        delete_reason=due.reason if due is not None else None,
        delete_waits_for=due.waits_for if due is not None else None,
        undecided=owned.undecided,
        holders=matching.holders.get(owned.name, frozenset()),
        claimant=matching.claimed.get(owned.name),
        seated=frozenset(matching.seats.get(owned.name, ())),
        unused=matching.unused.get(owned.name),
        draining=phase.draining_since is not None,
        split=split,
        since_start=since_start,
    )


def drained(phase: PhaseEntry, owned: OwnedPool, ctx: Round, matching: Matching) -> PhaseEntry:
    """Return the entry, with `draining_since` set if all pods on the pool belong to ended or suspended workloads."""
    draining = False
    if phase.phase is Phase.IN_USE and not owned.undecided:
        users = [slice_id for slice_id in matching.holders.get(owned.name, ()) if slice_id is not None]
        if not users:
            owner = owner_of(owned.name, matching, ctx.created_for)
            users = [owner] if owner is not None else []
        slices = (ctx.slices.get(user) for user in users)
        draining = bool(users) and all(slice_ is None or slice_.workload.suspended for slice_ in slices)
    if draining is (phase.draining_since is not None):
        return phase
    return replace(phase, draining_since=ctx.now if draining else None)


def _note(pool: OwnedPool, call: DeleteCall | None) -> str:
    # The owner reads the note of a failed pool, and `call.reason` may name pods of other workloads.
    if call is not None and call.reason and not pool.broken:
        return call.reason
    if pool.pool.failure is not None:
        return pool.pool.failure.message
    return unready(pool) if pool.lost else ""


def changes(
    old: Mapping[PoolName, PhaseEntry], new: Mapping[PoolName, Phase], now: datetime
) -> tuple[dict[PoolName, PhaseEntry], tuple[Transition, ...]]:
    """Return the phases to remember, and the transitions since the last decision."""
    entries: dict[PoolName, PhaseEntry] = {}
    steps: list[Transition] = []
    for name, phase in new.items():
        before = old.get(name)
        if before is not None and before.phase is phase:
            entries[name] = before
            continue
        steps += _steps(name, before, phase, now)
        # If a pool is new, a phase in `_PLANNED` begins in this decision. Other phases may have begun earlier.
        entries[name] = PhaseEntry(phase=phase, since=now, entered_before=before is None and phase not in _PLANNED)
    for name, before in old.items():
        if name not in new:
            steps += _steps(name, before, Phase.GONE, now)
    return entries, tuple(steps)


def _steps(name: PoolName, before: PhaseEntry | None, phase: Phase, now: datetime) -> Iterable[Transition]:
    old, since = (before.phase, before.since) if before is not None else (None, None)
    passed = _PASSED.get((old, phase)) if old is not None else None
    if passed is not None:
        yield Transition(pool=name, old=old, new=passed, at=now, since=since)
        old, since = (passed, now) if passed is Phase.READY else (None, None)
    yield Transition(pool=name, old=old, new=phase, at=now, since=since)
