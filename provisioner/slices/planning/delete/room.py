"""Chooses idle pools and pools of buffers to delete, so that slices fit the limits that refuse them. Pure."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from provisioner.model.capacity import PoolName
from provisioner.slices.demand import Slice
from provisioner.slices.planning.contention.limits import Budget, limits_of
from provisioner.slices.planning.contention.usage import LimitScope
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.round import OwnedPool, Round


def make_room(
    ctx: Round, matching: Matching, budget: Budget, refused: Iterable[Sequence[Slice]]
) -> frozenset[PoolName]:
    """Return the pools to delete so that `refused` slices fit the limits; each sequence fits whole or not at all."""
    idle = _longest_idle(ctx, matching)
    if not idle:
        return frozenset()
    free = Counter(budget.going)
    scopes = {pool.name: dict(budget.charges[pool.name].amounts()) for pool in idle if pool.name in budget.charges}
    idle_in: dict[LimitScope, deque[PoolName]] = defaultdict(deque)
    idle_amount: Counter[LimitScope] = Counter()
    for name, amounts in scopes.items():
        for scope, amount in amounts.items():
            idle_in[scope].append(name)
            idle_amount[scope] += amount
    chosen: set[PoolName] = set()
    for slices in refused:
        limits = limits_of(slices, ctx.settings)
        missing = {limit.scope: budget.used[limit.scope] + limit.requested - limit.maximum for limit in limits}
        # `free` has `Budget.going` and the amounts of the chosen pools, less the requests of earlier entries that fit.
        lacking = {scope: amount - free[scope] for scope, amount in missing.items()}
        if any(amount > idle_amount[scope] for scope, amount in lacking.items()):
            continue
        for scope, amount in missing.items():
            while amount > free[scope]:
                name = idle_in[scope].popleft()
                if name not in chosen:
                    chosen.add(name)
                    free.update(scopes[name])
                    idle_amount.subtract(scopes[name])
        for limit in limits:
            free[limit.scope] -= limit.requested
    return frozenset(chosen)


def _longest_idle(ctx: Round, matching: Matching) -> list[OwnedPool]:
    owned = ctx.owned
    warm = sorted(name for name, user in matching.claimed.items() if ctx.slices[user].from_buffer)
    idle_since = {
        name: entry.unneeded_since
        for name, entry in ctx.memory.pools.items()
        if entry.unneeded_since is not None
        and name in owned
        and owned[name].usable
        and not owned[name].undecided
        and name not in matching.claimed
        and not matching.holders.get(name)
    }
    ordered = sorted(idle_since, key=lambda name: (owned[name].half_deleted, idle_since[name], name))
    return [owned[name] for name in (*warm, *ordered) if owned[name].listed]
