"""Computes the time of the next decision, and the interval between lists of the pools. Pure."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model.capacity import PoolStatus
from provisioner.slices.planning.memory.state import CallState
from provisioner.slices.planning.plan import Delete
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.stuck import REFUSED_AFTER

#: Interval in seconds between lists of the pools while creates or deletes wait until running operations have ended.
_BACKLOG_SECONDS = 1.0
#: Interval in seconds between lists of the pools while one of the provisioner's pools is created, changed or deleted.
_BUSY_SECONDS = 2.0
_CHANGING = frozenset({PoolStatus.PROVISIONING, PoolStatus.STOPPING, PoolStatus.RECONCILING})


def poll_seconds(ctx: Round, deletes: Collection[Delete], *, creates: bool, waits: bool) -> float:
    """Return the interval in seconds between lists of the pools. With `waits`, calls wait for running operations."""
    if waits:
        return _BACKLOG_SECONDS
    memory, pools = ctx.memory, ctx.snapshot.pools
    own_pools = (pool for pool in pools if pool.labels.get(constants.NODEPOOL_MANAGER) == constants.MANAGER)
    if creates or deletes or memory.creates or any(pool.status in _CHANGING for pool in own_pools):
        return _BUSY_SECONDS
    accepted = any(call.state is not CallState.POSTPONED for call in memory.deletes.values())
    return _BUSY_SECONDS if accepted else ctx.rules.idle_seconds


def next_decision(ctx: Round, moments: Iterable[datetime]) -> datetime | None:
    """Return the earliest of `moments` and the times at which a pool may count as refused or unready; None if none."""
    claims = (entry.claim.since for entry in ctx.memory.slices.values() if entry.claim is not None)
    refused = (since + REFUSED_AFTER for since in claims if since is not None and since + REFUSED_AFTER > ctx.now)
    return min((*moments, *refused, *_unready_moments(ctx)), default=None)


def _unready_moments(ctx: Round) -> Iterator[datetime]:
    """Yield times at which pools have been unready for too long. No event starts a decision at these times."""
    for pool in ctx.owned.values():
        if pool.unready_since is None or pool.lost:
            continue
        due = pool.unready_since + timedelta(seconds=ctx.settings.ready_timeout_seconds)
        if ctx.memory.pool(pool.name).given_up:
            # The pool was given up in this decision, so the next decision follows immediately and replaces the pool.
            yield ctx.now
        elif due > ctx.now:
            yield due
