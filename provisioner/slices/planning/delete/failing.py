"""Finds pools that fail, hang or do not become ready, chooses pools to replace, and updates back-off. Pure."""

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta

from provisioner import constants
from provisioner.model.capacity import Failure, FailureKind, PoolName, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.answers import unexplained
from provisioner.slices.planning.memory.state import Backoffs, CallState, Memory
from provisioner.slices.planning.round import MAX_DURATIONS, OwnedPool, Round
from provisioner.slices.planning.stuck import Stuck, StuckKind, is_one_unit, lacks_pods

#: Time after `capacity_wait_seconds` within which a TPUNodeGroup without capacity is reported as failed.
_TO_FAIL = timedelta(minutes=10)


def to_replace(stuck: Iterable[Stuck], ctx: Round, matching: Matching) -> dict[PoolName, SliceId]:
    """Return the pools to delete because a slice is stuck on them, each with the stuck slice.

    Pools that were given up although they have pods, and pools to which the scheduler binds no pod, are always
    included. Other ready pools follow if REPLACE_STUCK_SLICES is set, within NODEPOOL_REPLACED_SHARE.
    """
    settings, owned, given_up = ctx.settings, ctx.owned, ctx.memory.given_up
    lost = {
        name: holder for name in sorted(given_up) for holder in matching.holders.get(name, ()) if holder is not None
    }
    lost |= {entry.pool: entry.slice_id for entry in stuck if entry.kind is StuckKind.REFUSED}
    if not settings.replace_stuck_slices:
        return lost
    going = sum(
        pool.leaving or pool.name in given_up or pool.pool.status is PoolStatus.STOPPING for pool in owned.values()
    )
    limit = max(1, len(owned) * settings.replaced_share_percent // 100)
    # Pools with pods of other slices cannot be deleted, so they are left out. Pools whose delete is postponed come
    # last, because this delete may never succeed.
    own = (entry for entry in stuck if matching.holders.get(entry.pool, frozenset()) <= {entry.slice_id})
    held_up = _held_up(ctx)
    ready = [(entry.pool, entry.slice_id) for entry in own if entry.replaceable]
    ready.sort(key=lambda item: item[0] in held_up)
    return {**lost, **dict(ready[: max(0, limit - going)])}


def _held_up(ctx: Round) -> AbstractSet[PoolName]:
    """Return the pools whose delete is postponed."""
    return {name for name, call in ctx.memory.deletes.items() if call.state is CallState.POSTPONED}


def find_hanging(ctx: Round) -> frozenset[PoolName]:
    """Return the pools whose transitional status lasts longer than MAX_DURATIONS and NODE_GROUP_CAPACITY_WAIT allow."""
    stockout = timedelta(seconds=ctx.settings.capacity_wait_seconds) + _TO_FAIL
    max_durations = {**MAX_DURATIONS, PoolStatus.PROVISIONING: max(stockout, MAX_DURATIONS[PoolStatus.PROVISIONING])}
    passing = ((name, pool.passing) for name, pool in ctx.owned.items() if pool.passing is not None)
    return frozenset(name for name, (status, since) in passing if ctx.now - since >= max_durations[status])


def give_up(ctx: Round, matching: Matching) -> frozenset[PoolName]:
    """Return the pools to give up: they have been unready for too long, and no pod can make progress on them.

    Further pools are given up only within NODEPOOL_REPLACED_SHARE percent of the listed pools, at least one. If a zone
    or a device plugin makes many pools unready, replacing all of them would make the failure worse.
    """
    owned, settings = ctx.owned, ctx.settings
    held_up = _held_up(ctx)
    # Pools whose delete is postponed count against the share last: they must not block replacements of other pools.
    still = {
        name
        for name in (ctx.memory.given_up & owned.keys()) - held_up
        if not owned[name].ready and _is_useless(owned[name], ctx, matching)
    }
    waiting = sorted(
        (name in held_up, pool.unready_since, name)
        for name, pool in owned.items()
        if pool.unready_since is not None
        and pool.unready_seconds >= settings.ready_timeout_seconds
        and pool.pool.hosts > 0
        and not pool.leaving
        and name not in still
        and _is_useless(pool, ctx, matching)
    )
    listed = sum(pool.listed for pool in owned.values())
    limit = max(1, listed * settings.replaced_share_percent // 100)
    return frozenset(still | {name for *_, name in waiting[: max(0, limit - len(still))]})


def _is_useless(pool: OwnedPool, ctx: Round, matching: Matching) -> bool:
    """Whether no pod can make progress on a pool that is not ready; False if this is unknown."""
    holders = matching.holders.get(pool.name)
    if not holders:
        return pool.name in matching.claimed or not pool.undecided
    holder, *further = holders
    slice_ = ctx.slices.get(holder) if holder is not None else None
    # Pods that can only run together make no progress while one of them is unschedulable.
    return not further and slice_ is not None and slice_.served and is_one_unit(slice_) and lacks_pods(slice_)


def find_broken(ctx: Round, matching: Matching) -> frozenset[PoolName]:
    """Return the pools with status ERROR, and the other failed pools that no pod uses."""
    return frozenset(
        name
        for name, pool in ctx.owned.items()
        if pool.pool.status is PoolStatus.ERROR or (pool.broken and not matching.holders.get(name))
    )


def learn_from_pools(ctx: Round, matching: Matching, broken: Collection[PoolName]) -> Memory:
    """Return the memory after pools failed, vanished, came up or were given up since the last decision."""
    memory, owned, now = ctx.memory, ctx.owned, ctx.now
    backoffs: Backoffs = {key: last for key, last in memory.backoffs.items() if backoff.is_fresh(last, now)}
    tallies, lasting = backoff.still_counted(memory.tallies, now), backoff.still_lasting(memory.lasting_failures, now)
    for name in sorted(name for name in broken if not memory.pool(name).failed):
        pool, owner, create = owned[name], ctx.created_for.get(name), memory.pool(name).coming_up
        # The request of the create is more exact: the listed pool lacks `own_inputs`, a part of the key.
        capacity = capacity_key(create.request if create is not None else pool.pool)
        failure = _failure_of(pool, ctx.rules.supplier_name)
        if owner is not None:
            tallies = backoff.create_counted(tallies, owner, pool.ownership.workload.namespace, now, failure)
        if failure.kind is FailureKind.INVALID:
            lasting[pool.ownership.workload.namespace] = now
        backoffs = backoff.pool_failed(backoffs, failure, capacity, _digest_of(pool), now, owner)
    places = {entry.place for name, entry in memory.pools.items() if entry.place is not None and name not in owned}
    backoffs = backoff.freed(backoffs, places, now)
    given_up = give_up(ctx, matching)
    changes = {name: memory.pool(name)._replace(given_up=name in given_up) for name in given_up ^ memory.given_up}
    for name, create in memory.coming_up.items():
        status = owned[name].pool.status if name in owned else None
        if status in (PoolStatus.RUNNING, PoolStatus.RECONCILING):
            came_up = backoff.came_up(backoffs, capacity_key(create.request), now)
            backoffs = backoff.forget(came_up, _digest_of(owned[name]))
        elif name in owned and (status is PoolStatus.PROVISIONING or unexplained(owned[name].pool)):
            continue
        changes[name] = changes.get(name, memory.pool(name))._replace(coming_up=None)
    refusals = {key: last for key, last in memory.refusals.items() if backoff.is_fresh(last, now)}
    memory = replace(memory.with_pools(changes), backoffs=backoffs, refusals=refusals)
    return replace(memory, tallies=tallies, lasting_failures=lasting)


def _digest_of(pool: OwnedPool) -> str:
    return pool.pool.labels.get(constants.NODEPOOL_HASH, "")


def _failure_of(pool: OwnedPool, supplier_name: str) -> Failure:
    if pool.pool.failure is not None:
        return pool.pool.failure
    message = unready(pool) if pool.lost else f"{supplier_name} gives no reason."
    return Failure(kind=FailureKind.UNAVAILABLE, message=message)


def unready(pool: OwnedPool) -> str:
    """Return a message about a pool that has been unready for too long."""
    beginning = f"Node pool {pool.name} was {pool.pool.status.value}, but for {pool.unready_seconds / 60:.0f} min "
    return f"{beginning}only {pool.ready_nodes} of its {pool.pool.hosts} nodes were ready with all their chips."
