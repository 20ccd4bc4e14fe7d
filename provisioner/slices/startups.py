"""How long slices take to start, from the moment at which the scheduler called their leader pod unschedulable. Pure.

That moment is the pod's own condition, so a restart of the provisioner does not begin anew. What a slice had already
reached when it was first seen waiting (by this process) is not measured: nobody knows when that was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import PoolState


class Stage(Enum):
    """How far a slice has come."""

    #: GKE lists its pool.
    CREATED = "created"
    #: All nodes of the pool are ready, with their chips.
    READY = "ready"
    #: The leader pod is bound.
    RUNNING = "running"


_STAGES = {
    Phase.PROVISIONING: frozenset({Stage.CREATED}),
    Phase.READY: frozenset({Stage.CREATED, Stage.READY}),
    Phase.IN_USE: frozenset({Stage.CREATED, Stage.READY}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """A slice that waits, or did a moment ago."""

    leader_uid: str
    since: datetime
    #: What need not be measured any more.
    reached: frozenset[Stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Startups:
    """What is known after one round."""

    waiting: Mapping[SliceId, Startup] = field(default_factory=dict)
    #: What slices reached since the last round, and how many seconds after their leader pod was unschedulable.
    measured: tuple[tuple[Stage, float], ...] = ()
    #: How long the leader pod that is unschedulable for longest has been so; 0: there is none.
    longest_wait_seconds: float = 0.0


def follow(before: Startups, pools: Iterable[PoolState], now: datetime) -> Startups:
    """Compare what there is with the last round."""
    waiting: dict[SliceId, Startup] = {}
    measured: list[tuple[Stage, float]] = []
    started: set[SliceId] = set()
    longest = 0.0
    for state in pools:
        leader, slice_id = state.leader, state.slice_id
        if leader is None or slice_id is None or slice_id in started:
            continue
        reached = _STAGES.get(state.phase, frozenset()) | ({Stage.RUNNING} if leader.node_name else frozenset())
        last = waiting.get(slice_id) or before.waiting.get(slice_id)
        if last is None or last.leader_uid != leader.uid:
            if leader.unschedulable_since is None or leader.node_name:
                continue
            last = Startup(leader_uid=leader.uid, since=leader.unschedulable_since, reached=reached)
        seconds = max(0.0, (now - last.since).total_seconds())
        measured += [(stage, seconds) for stage in Stage if stage in reached - last.reached]
        if Stage.RUNNING in reached:
            waiting.pop(slice_id, None)
            started.add(slice_id)
            continue
        longest = max(longest, seconds)
        waiting[slice_id] = replace(last, reached=last.reached | reached)
    return Startups(waiting=waiting, measured=tuple(measured), longest_wait_seconds=longest)
