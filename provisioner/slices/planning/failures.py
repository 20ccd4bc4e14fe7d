"""What pools teach that failed, or came up, since the last round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.open_calls import unexplained
from provisioner.slices.planning.memory.state import Backoff, Memory
from provisioner.slices.planning.retire.stuck import give_up, statuses_since
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.supply import Supply

#: Back-off that ended this long ago is forgotten.
_STALE_BACKOFF_SECONDS = 3600.0
_K = TypeVar("_K")


def learn_from_pools(round_: Round, matching: Matching) -> Memory:
    """Learn from pools that failed, or came up, since the last round."""
    memory, supply, now = round_.memory, round_.supply, round_.now
    no_reason = Failure(kind=FailureKind.UNAVAILABLE, message=f"{round_.rules.supplier_name} gives no reason.")
    backoffs = _fresh_backoffs(memory.backoffs, now)
    tallies = backoff.still_counted(memory.tallies, now)
    broken = {
        name
        for name, each in supply.items()
        if each.pool.status is PoolStatus.ERROR or (each.broken and not matching.holders.get(name))
    }
    for name in sorted(broken - memory.failed):
        pool, owner, create = supply[name].pool, round_.made_for.get(name), memory.in_making.get(name)
        lost = Failure(kind=FailureKind.UNAVAILABLE, message=unready(supply[name])) if supply[name].lost else None
        failure = pool.failure or lost or no_reason
        if owner is not None:
            tallies = backoff.create_counted(tallies, owner, supply[name].workload_name.namespace, now)
        digest = pool.labels.get(constants.NODEPOOL_HASH, "")
        # What a pool's creator chose itself is known as long as its create is remembered.
        capacity = capacity_key(create.request if create is not None else pool)
        backoffs = backoff.pool_failed(backoffs, failure, capacity, digest, now, owner)
    in_making = {}
    for name, create in memory.in_making.items():
        if name not in supply:
            continue
        pool = supply[name].pool
        if pool.status in (PoolStatus.RUNNING, PoolStatus.RECONCILING):
            digest = pool.labels.get(constants.NODEPOOL_HASH, "")
            backoffs = backoff.forget(backoff.forget(backoffs, capacity_key(create.request)), digest)
        elif pool.status is PoolStatus.PROVISIONING or unexplained(pool):
            in_making[name] = create
    return replace(
        memory,
        backoffs=backoffs,
        slice_backoffs=_fresh_backoffs(memory.slice_backoffs, now),
        tallies=tallies,
        in_making=in_making,
        failed=frozenset(broken),
        given_up=give_up(round_, matching),
        unready_since={name: each.unready_since for name, each in supply.items() if each.unready_since is not None},
        late_since={name: each.late_since for name, each in supply.items() if each.late_since is not None},
        status_since=statuses_since(round_),
    )


def unready(each: Supply) -> str:
    """Say of what a pool failed that was unready for too long."""
    words = f"Node pool {each.name} was {each.pool.status.value}, but for {each.unready_seconds / 60:.0f} min "
    return f"{words}only {each.ready_nodes} of its {each.pool.hosts} nodes were ready with all their chips."


def _fresh_backoffs(backoffs: Mapping[_K, Backoff], now: datetime) -> Mapping[_K, Backoff]:
    """Drop back-off that ended so long ago that its failures tell nothing any more.

    An end that lies further ahead than any wait for such a failure was written by a clock that ran wrong.
    """
    return {
        key: each
        for key, each in backoffs.items()
        if each.until > now - timedelta(seconds=_STALE_BACKOFF_SECONDS)
        and each.until <= now + timedelta(seconds=backoff.longest_wait_seconds(each.failure))
    }
