"""Observing where each pool is in its life, and what changed since the last round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory.state import Phase, PhaseEntry
from provisioner.slices.planning.plan import PoolState, Transition
from provisioner.slices.planning.retire.unneeded import Due
from provisioner.slices.planning.round import Round, Supply

#: A pool that is first seen in one of these has entered it in that very round.
_BEGUN_HERE = frozenset({Phase.WANTED, Phase.BLOCKED, Phase.CREATING})


def phase_of(supply: Supply, matching: Matching) -> Phase:
    """Observe the phase of a pool that exists or is being made."""
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
    # A pod bound to the first nodes of a pool does not end its making; a node lost later does not end its use.
    return Phase.IN_USE if held and status is not PoolStatus.PROVISIONING else Phase.PROVISIONING


def owner_of(name: PoolName, matching: Matching, made_for: Mapping[PoolName, SliceId]) -> SliceId | None:
    """Name the slice that a pool is for: its holder, else who counts on it, else who it was made for."""
    holder = min((each for each in matching.holders.get(name, ()) if each is not None), default=None)
    if holder is not None:
        return holder
    claimant = matching.claimed.get(name)
    return claimant if claimant is not None else made_for.get(name)


def state_of(
    supply: Supply, phase: PhaseEntry, round_: Round, matching: Matching, note: str, due: Due | None
) -> PoolState:
    """Sum up one pool for the read model."""
    owner = owner_of(supply.name, matching, round_.made_for)
    slice_ = round_.slices.get(owner) if owner is not None else None
    since, since_start = phase.since, phase.entered_before
    unneeded_since = round_.memory.unneeded_since.get(supply.name)
    if phase.phase is Phase.IDLE and unneeded_since is not None:
        # Remembered over restarts, and over attempts to delete it.
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
        workload_kind=slice_.workload.kind if slice_ is not None else supply.workload_name.kind,
        namespace=slice_.workload.namespace if slice_ is not None else supply.workload_name.namespace,
        workload_name=slice_.workload.name if slice_ is not None else supply.workload_name.name,
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
        unwatched=supply.unwatched,
        holders=matching.holders.get(supply.name, frozenset()),
        claimant=matching.claimed.get(supply.name),
        draining=phase.draining_since is not None,
        since_start=since_start,
    )


def drained(phase: PhaseEntry, supply: Supply, round_: Round, matching: Matching) -> PhaseEntry:
    """Take note of whether pods of ended or suspended workloads alone are on a pool."""
    draining = phase.phase is Phase.IN_USE and not supply.unwatched and _have_ended(supply.name, round_, matching)
    if draining is (phase.draining_since is not None):
        return phase
    return replace(phase, draining_since=round_.now if draining else None)


def _have_ended(name: PoolName, round_: Round, matching: Matching) -> bool:
    """Whether all that pods are known to be on a pool for has ended, or is suspended."""
    users = [each for each in matching.holders.get(name, ()) if each is not None]
    if not users:
        owner = owner_of(name, matching, round_.made_for)
        users = [owner] if owner is not None else []
    slices = (round_.slices.get(each) for each in users)
    return bool(users) and all(each is None or each.workload.suspended for each in slices)


def changes(
    old: Mapping[PoolName, PhaseEntry],
    new: Mapping[PoolName, Phase],
    owners: Mapping[PoolName, SliceId | None],
    now: datetime,
) -> tuple[dict[PoolName, PhaseEntry], tuple[Transition, ...]]:
    """Compare with the last round: the phases to remember, and each step from one phase to the next.

    A pool seen for the first time is a step from nothing; what happened before is not made up.
    """
    entries: dict[PoolName, PhaseEntry] = {}
    steps: list[Transition] = []
    for name, phase in new.items():
        before, owner = old.get(name), owners.get(name)
        if before is not None and before.phase is phase:
            # Nearly always nothing has changed, and nothing is copied.
            entries[name] = before if owner in (None, before.slice_id) else replace(before, slice_id=owner)
            continue
        steps += _steps(name, before, phase, owner, now)
        met = before is None and phase not in _BEGUN_HERE
        entries[name] = PhaseEntry(phase=phase, since=now, slice_id=owner, entered_before=met)
    for name, before in old.items():
        if name not in new:
            steps += _steps(name, before, Phase.GONE, None, now)
    return entries, tuple(steps)


def _steps(
    name: PoolName, before: PhaseEntry | None, phase: Phase, owner: SliceId | None, now: datetime
) -> Iterable[Transition]:
    """Yield the steps to a phase.

    A pool that vanished, and whose name is wanted again since, is gone in between; one that pods are on was ready.
    """
    old, since = (before.phase, before.since) if before is not None else (None, None)
    slice_id = owner or (before.slice_id if before is not None else None)
    if old is not None and phase.planned and not old.planned:
        yield Transition(pool=name, slice_id=slice_id, old=old, new=Phase.GONE, at=now, since=since)
        old, since = None, None
    if phase is Phase.IN_USE and old is not None and (old.planned or old is Phase.PROVISIONING):
        yield Transition(pool=name, slice_id=slice_id, old=old, new=Phase.READY, at=now, since=since)
        old, since = Phase.READY, now
    yield Transition(pool=name, slice_id=slice_id, old=old, new=phase, at=now, since=since)
