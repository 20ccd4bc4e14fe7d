"""Chips by state, limits and how much of them is used, back-off, operations."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from provisioner.model.snapshot import Snapshot
from provisioner.settings import Settings
from provisioner.slices.demand.slices import all_slices
from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import Backoff, Memory
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import Derived
from provisioner.slices.view.ids import id_of_slice
from provisioner.slices.view.shortened import shortened
from provisioner.slices.view.states import state_of
from provisioner.slices.view.types import BackoffView, CapacityView, LimitView, State

#: What is backed off that is no capacity.
_FAILED_REQUEST = "a request whose node pool failed"
_ALIKE = "all slices that ask for the same"


def capacity_view(snapshot: Snapshot, plan: Plan, derived: Derived, settings: Settings, now: datetime) -> CapacityView:
    """Sum up what there is and what is in the way of more."""
    chips = {state.value: 0 for state in State if state is not State.NONE}
    for pool in plan.pools:
        chips[state_of(pool).value] += pool.chips
    return CapacityView(
        chips=chips,
        limits=tuple(
            LimitView(name=each.limit, scope=each.scope, used=each.used, most=each.most) for each in plan.limits
        ),
        backoffs=tuple(sorted(_backoffs(plan.memory, derived, now), key=lambda each: (each.until, each.capacity))),
        operations=len(operations_under_way(snapshot.pools, plan.memory)),
        operations_limit=plan.memory.operations.limit,
        creation_paused=settings.pause_creation or snapshot.paused_since is not None,
    )


def _backoffs(memory: Memory, derived: Derived, now: datetime) -> Iterable[BackoffView]:
    groups = {slice_id: id_of_slice(each) for slice_id, each in all_slices(derived.found).items()}
    for key, wait in memory.backoffs.items():
        parts = key.split("/", 3)
        if wait.until > now and wait.slice_id is not None:
            yield _backoff(groups.get(wait.slice_id, str(wait.slice_id)), ("", "", _ALIKE), wait)
        elif wait.until > now:
            # Else it is the digest of a request whose pool failed.
            is_capacity = len(parts) == 4
            yield _backoff(key, parts, wait) if is_capacity else _backoff(_FAILED_REQUEST, ("", "", _ALIKE), wait)
    for slice_id, wait in memory.slice_backoffs.items():
        if wait.until > now:
            yield _backoff(groups.get(slice_id, str(slice_id)), (), wait)


def _backoff(capacity: str, parts: Iterable[str], wait: Backoff) -> BackoffView:
    zone, machine_type, shape, terms = (*parts, "", "", "", "")[:4]
    return BackoffView(
        capacity=capacity,
        zone=zone,
        machine_type=machine_type,
        shape=shape,
        terms=terms,
        kind=wait.failure.kind.value,
        message=shortened(wait.failure.message),
        failures=wait.failures,
        since=wait.since,
        until=wait.until,
    )
