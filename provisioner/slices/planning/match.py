"""Matches slices with pools: first by bound pods, then by earlier pools, then in the order of the queue. Pure.

A slice holds every pool that its pods with chips are bound to, even if the labels of the nodes name another slice.
Finished pods and pods that are being deleted do not count. A slice that holds no pool returns to the pool that it had
last, that is assigned to it, that was created for it, or that it counted on. Then each slice in the queue takes a free
pool that suits it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TypeVar

from provisioner.model.capacity import PoolName, Zone
from provisioner.model.placement import MARKS
from provisioner.model.workloads import WorkloadKind, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.demand.slices import slice_id_of
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import Unit, place_of, unit_of
from provisioner.slices.planning.contention.usage import LimitScope, ScopeKind, is_guest
from provisioner.slices.planning.memory.state import Claim
from provisioner.slices.planning.refusals import (
    FreePools,
    Refusal,
    kept_for,
    settings_of,
    settings_of_pool,
    why_unfit,
    why_wrong_kind,
)
from provisioner.slices.planning.round import OwnedPool, Round
from provisioner.slices.planning.seats import Seats, is_shared_by
from provisioner.slices.planning.spec.capacity import wants_one_zone

_Holders = Mapping[PoolName, frozenset[SliceId | None]]
#: Called with a slice that gets no pool, and with the slices that count on a pool.
Refuse = Callable[[Slice, Container[SliceId]], None]
_K = TypeVar("_K")
_V = TypeVar("_V")
#: Time after which a slice without a bound pod loses another slice's ready pool: pods are retried within 5.5 minutes.
_UNBOUND_AT_MOST = timedelta(minutes=6)
#: Time after which a slice without pods loses a ready pool. A Job may wait 10 minutes before it replaces a failed pod.
_WITHOUT_PODS_AT_MOST = timedelta(minutes=15)
#: Minimum age of a node whose announced maintenance makes a `pending` slice of a buffer or request leave its pool. With
#: a younger node, the pool is kept: maintenance may be announced for all hosts, and a new pool would be no better.
_REPLACED_AFTER = timedelta(days=1)
#: Wait after which a slice of single hosts takes a free pool with spare hosts. By then, its own pool usually exists,
#: unless limits or missing capacity prevent its create.
_SPARE_HOSTS_AFTER = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Result of `Matcher.run`: slices that hold pools, slices that only count on pools, and slices without a pool."""

    #: Slices whose pods use each pool; None represents pods of an unknown slice.
    holders: Mapping[PoolName, frozenset[SliceId | None]]
    held: Mapping[SliceId, frozenset[PoolName]]
    #: Slice that counts on each pool without holding it.
    claimed: Mapping[PoolName, SliceId]
    #: Slices that share each pool and wait for one of its nodes; `claimed` may contain one of them.
    seats: Mapping[PoolName, Sequence[SliceId]]
    #: Slices that hold no pool, and have pods on nodes without a known node pool.
    elsewhere: frozenset[SliceId]
    #: Slices that want a pool and have none, in the order of the queue.
    unserved: tuple[Slice, ...]
    #: Zone of each workload that has a pool and must have all its pools in one zone.
    zones: Mapping[WorkloadUid, Zone]
    claims: Mapping[SliceId, Claim]
    #: Slices that took a free pool in this decision.
    taken: Collection[SliceId]
    #: Waiting slice by idle pool of its accelerator and topology, and why the slice may not have the pool.
    unused: Mapping[PoolName, tuple[SliceId, Refusal]]

    def without_buffered(self, names: Collection[PoolName], slices: Mapping[SliceId, Slice]) -> Matching:
        """Return the matching; `claimed` lacks the claims of buffers on the pools `names`."""
        taken = {name for name in names if name in self.claimed and slices[self.claimed[name]].from_buffer}
        return replace(self, claimed={name: slice_id for name, slice_id in self.claimed.items() if name not in taken})


class Matcher:
    """Makes the claims of one decision. `why_not` evaluates the same conditions, so that explanations are correct.

    Several slices count on one pool only if they share pools (`Slice.share`).
    """

    def __init__(
        self, ctx: Round, budget: Budget, line: Sequence[Unit], waiting_for_turn: Collection[WorkloadUid]
    ) -> None:
        """Prepare the claims of the slices in `line`, which want a pool. Workloads in `waiting_for_turn` take no pool.

        The claims are counted in `budget`; a slice takes a free pool only if the limits allow it.
        """
        self._ctx, self._budget, self._waiting_for_turn = ctx, budget, waiting_for_turn
        self._units = {unit.id: unit for unit in line}
        self._usable = {name: pool for name, pool in ctx.owned.items() if pool.usable}
        users = {name: entry.last_user for name, entry in ctx.memory.pools.items() if entry.last_user is not None}
        self._last_users = users
        last = sorted(((name, user) for name, user in users.items() if name in ctx.owned), reverse=True)
        self._last = {user: ctx.owned[name] for name, user in last}
        self._assigned = {mark: pool for pool in ctx.owned.values() if (mark := pool.assigned_to) is not None}
        self._one_zone = {slice_.workload.uid for slice_ in ctx.slices.values() if wants_one_zone(slice_, ctx.settings)}
        self._ties = (self._last_pool, self._assigned_pool, self._created_pools, self._counted_pool)
        self._claims: dict[SliceId, PoolName] = {}
        self._claimed: dict[PoolName, SliceId] = {}
        self._zones: dict[WorkloadUid, Zone] = {}
        self._taken: set[SliceId] = set()
        self._served: dict[tuple[str, str], dict[PoolName, OwnedPool]] = defaultdict(dict)
        self._searches: dict[Hashable, Iterator[OwnedPool]] = {}
        #: Free pools that a limit does not allow, by the values of a slice that the limits read (`_limited_by`).
        self._refused: dict[Hashable, set[PoolName]] = defaultdict(set)
        self._hold()
        self._seated: dict[PoolName, list[SliceId]] = defaultdict(list)
        places = place_of(line)
        self._waiting = sorted(
            (slice_ for slice_ in ctx.slices.values() if slice_.id not in self._held and self._may_wait(slice_)),
            key=lambda slice_: (places.get(slice_.id, len(line) + 1), slice_.workload.full_name, slice_.group_name),
        )

    @cached_property
    def _seats(self) -> Seats:
        """Free nodes for slices that share pools. Usually no such slice waits, so the nodes are computed on demand."""
        return Seats(self._ctx, self._occupants, self._claimed)

    def run(self, refuse: Refuse) -> Matching:
        """Make the claims. Call `refuse`, in the order of the queue, for each slice that wants a pool and gets none.

        Slices of workloads that wait for their turn are left out.
        """
        waiting, claims = self._waiting, self._claims
        # Slices of buffers are matched after all other unsuspended slices, which may take pools of buffers.
        for_buffers = [slice_ for slice_ in waiting if slice_.from_buffer]
        eligible = [
            slice_
            for slice_ in waiting
            if not (slice_.from_buffer or slice_.workload.suspended) and self._why_none(slice_) is None
        ]
        self._return_home(eligible)
        # Without `borrow`, a slice takes a node of its last pool, or of a pool for its namespace that has pods or no
        # ready node. Slices whose last pool is usable come first: a new pool has a node for each slice of its create.
        sharing = (slice_ for slice_ in eligible if slice_.share is not None)
        for slice_ in sorted(sharing, key=lambda slice_: self._last_shared(slice_) not in self._usable):
            self._seat(slice_, borrow=False)
        self._hand_over(eligible)
        self._take_free(eligible, refuse)
        self._return_home(for_buffers)
        self._take_free(for_buffers, refuse)
        # Slices of suspended workloads are matched last, because other slices may need their pools.
        self._return_home([slice_ for slice_ in waiting if slice_.workload.suspended])
        gangs = self._waiting_gangs()
        kept = {slice_.id: _next_claim(slice_, claims.get(slice_.id), self._ctx, gangs) for slice_ in waiting}
        unserved = tuple(slice_ for slice_ in waiting if slice_.pending and slice_.id not in claims)
        return Matching(
            holders=self._holders,
            held=self._held,
            claimed=self._claimed,
            seats=self._seated,
            elsewhere=self._elsewhere,
            unserved=unserved,
            zones=self._zones,
            claims={slice_id: claim for slice_id, claim in kept.items() if claim is not None},
            taken=self._taken,
            unused=self._unused(unserved),
        )

    def why_not(self, slice_: Slice, pool: OwnedPool) -> Refusal | None:
        """Return why a slice may not count on a pool now; None if it may, or already has the pool."""
        claimed = self._claims.get(slice_.id)
        if claimed == pool.name or pool.name in self._held.get(slice_.id, ()):
            return None
        if claimed is not None or slice_.id in self._held:
            return Refusal.HAS_POOL
        if (refusal := self._why_none(slice_)) is not None:
            return refusal
        refusals: list[Refusal | None] = []
        if any(pool is tied for tie in self._ties for tied in tie(slice_)):
            refusals.append(self._why_not_return(slice_, pool))
        if slice_.request and pool.name in self._served.get((slice_.workload.namespace, slice_.request), ()):
            refusals.append(why_unfit(slice_, pool))
        if slice_.pending:
            refusals.append(self._why_not_take(slice_, pool))
        return None if None in refusals else next(iter(refusals), Refusal.NOT_WAITING)

    def _unused(self, unserved: Iterable[Slice]) -> dict[PoolName, tuple[SliceId, Refusal]]:
        idle = [pool for name, pool in self._usable.items() if name not in self._claimed and name not in self._holders]
        first: dict[tuple[str, str], Slice] = {}
        for slice_ in unserved if idle else ():
            if slice_.share is None and not slice_.shape_problem and (shape := slice_.shape) is not None:
                first.setdefault((shape.accelerator.label, str(shape.topology)), slice_)
        unused = {}
        for pool in idle if first else ():
            waiting = first.get((pool.machine[0], pool.pool.topology))
            if waiting is not None and (refusal := self.why_not(waiting, pool)) is not None:
                unused[pool.name] = waiting.id, refusal
        return unused

    def _waiting_gangs(self) -> set[tuple[str, str]]:
        """Return the gangs (`Slice.gang`) without a bound leader pod that wait for ready pools of further slices.

        A gang no longer waits if no further slice became ready within PARTIAL_HOLD and no pool is coming up.
        """
        ctx, now, limit = self._ctx, self._ctx.now, timedelta(seconds=self._ctx.settings.partial_hold_seconds)
        missing: dict[tuple[str, str], list[OwnedPool | None]] = defaultdict(list)
        ready_at: dict[tuple[str, str], datetime] = {}
        # Slices with a `shape_problem` are left out, because they take no new pools.
        for slice_ in self._waiting:
            if slice_.gang is None or not slice_.served or slice_.shape_problem:
                continue
            name = self._claims.get(slice_.id)
            pool = ctx.owned[name] if name is not None else None
            if pool is None or not _is_up(slice_, pool):
                missing[slice_.gang].append(pool)
            elif (phase := ctx.memory.pool(pool.name).phase) is not None:
                ready_at[slice_.gang] = max(phase.since, ready_at.get(slice_.gang, phase.since))

        def waits(pools: Iterable[OwnedPool | None], since: datetime) -> bool:
            coming = (pool is not None and pool.is_coming(now, since, limit) for pool in pools)
            return now < since + limit or any(coming)

        waiting = {gang for gang, pools in missing.items() if waits(pools, ready_at.get(gang, now))}
        return waiting - running_gangs(ctx) if waiting else waiting

    def _hold(self) -> None:
        self._holders, self._occupants, self._held, self._elsewhere = _use(self._ctx)
        for slice_id, names in self._held.items() if self._one_zone else ():
            for name in sorted(names & self._ctx.owned.keys()):
                self._settle(slice_id.workload_uid, self._ctx.owned[name])

    def _return_home(self, slices: Iterable[Slice]) -> None:
        """Let slices without `share` return to earlier pools: all try the first function in `_ties`, then the next."""
        for tie in self._ties:
            for slice_ in slices:
                for pool in tie(slice_) if slice_.share is None and slice_.id not in self._claims else ():
                    if self._why_not_return(slice_, pool) is None:
                        self._claim(slice_, pool)
                        break

    def _hand_over(self, slices: Iterable[Slice]) -> None:
        """Give the pools of each provisioned ProvisioningRequest to the slices that consume the request."""
        for name, slice_id in self._claimed.items():
            workload = self._ctx.slices[slice_id].workload
            if workload.kind is WorkloadKind.PROVISIONING_REQUEST and not self._ctx.slices[slice_id].pending:
                self._served[workload.namespace, workload.name][name] = self._ctx.owned[name]
        indexes: dict[tuple[str, str], FreePools] = {}
        for slice_ in slices if self._served else ():
            key = slice_.workload.namespace, slice_.request
            pools = self._served.get(key)
            if not pools or slice_.id in self._claims or slice_.shape_problem:
                continue
            if key not in indexes:
                indexes[key] = FreePools(pools.values(), lambda pool: pool.largest)
            home = next((pool for pool in self._assigned_pool(slice_) if pool.name in pools), None)
            if home is None or why_unfit(slice_, home) is not None:
                home = next(indexes[key].specified(slice_, None), None)
            if home is not None:
                del self._claims[self._claimed[home.name]]
                self._claim(slice_, home)
                indexes[key].remove(pools.pop(home.name))

    def _take_free(self, slices: Iterable[Slice], refuse: Refuse) -> None:
        for slice_ in slices:
            self._seat(slice_)
            if not slice_.pending or slice_.id in self._claims:
                continue
            if slice_.share is not None:
                refuse(slice_, self._claims)
                continue
            takes_none = slice_.shape_problem or is_expired(slice_, self._ctx)
            pool = None if takes_none else next(self._search(slice_), None)
            if pool is None:
                refuse(slice_, self._claims)
            else:
                self._claim(slice_, pool)
                self._taken.add(slice_.id)

    def _seat(self, slice_: Slice, *, borrow: bool = True) -> None:
        if slice_.share is None or not slice_.pending or slice_.id in self._claims:
            return
        if self._ctx.is_refused(slice_.id):
            return
        expired, last = is_expired(slice_, self._ctx), self._last_shared(slice_)

        def may_borrow(pool: OwnedPool) -> bool:
            free = not expired and self._why_not_free(pool) is None
            return free and self._budget.allows_claim(slice_, self._units[slice_.id], pool)

        limits = self._limited_by(slice_) if borrow and not expired else None
        pool = self._seats.take(slice_, may_borrow, limits, last=last, expired=expired)
        if pool is None:
            return
        self._seated[pool.name].append(slice_.id)
        if pool.name in self._claimed or self._holders.get(pool.name):
            self._claims[slice_.id] = pool.name
        else:
            self._claim(slice_, pool)
            if borrow:
                self._taken.add(slice_.id)

    def _last_shared(self, slice_: Slice) -> PoolName | None:
        """Return the pool of a slice's last claim, otherwise a pool that was created for the slice."""
        claim = self._ctx.memory.slice(slice_.id).claim
        return claim.pool if claim is not None else next((pool.name for pool in self._created_pools(slice_)), None)

    def _may_wait(self, slice_: Slice) -> bool:
        # Claims of kinds without pods never expire, so an unserved request would keep its pool permanently.
        return slice_.workload.kind.has_pods or self._ctx.policy.serves(slice_.workload, slice_.requirements)

    def _why_none(self, slice_: Slice) -> Refusal | None:
        if slice_.from_buffer or slice_.workload.suspended:
            return None
        if slice_.workload.uid in self._waiting_for_turn:
            return Refusal.TURN
        # `without_marks` has removed valid marks, so a mark here names another namespace, or no valid group.
        return None if slice_.requirements.node_selector.keys().isdisjoint(MARKS) else Refusal.FORGED

    def _why_not_return(self, slice_: Slice, pool: OwnedPool) -> Refusal | None:
        ctx, name, workload = self._ctx, pool.name, slice_.workload
        if name not in self._usable:
            return Refusal.UNUSABLE
        if name in self._claimed:
            return Refusal.CLAIMED
        # Pods of the slice itself do not count, even if they are being deleted.
        if self._occupants.get(name, frozenset()) - {slice_.id}:
            return Refusal.IN_USE
        if slice_.pending and not workload.kind.has_pods and _ends_soon(pool, ctx):
            return Refusal.NOT_LENDABLE
        created_for_it = ctx.created_for.get(name) == slice_.id
        # An expired slice may return only to a pool that was created for it, and only while the slice has pods.
        if not (created_for_it and slice_.pods) and is_expired(slice_, ctx):
            return Refusal.EXPIRED
        if slice_.id in self._elsewhere and len(pool.nodes) >= pool.pool.hosts:
            return Refusal.ELSEWHERE
        # For a suspended workload, only the host is compared: Kueue changes the other requirements at each resume.
        unfit = why_unfit(slice_, pool)
        if unfit is not None and not (workload.suspended and unfit is not Refusal.HOST):
            return unfit
        returning_user = created_for_it and self._last_users.get(name, slice_.id) == slice_.id
        return None if returning_user or self._may_borrow(slice_, pool) else Refusal.LIMIT

    def _may_borrow(self, slice_: Slice, pool: OwnedPool) -> bool:
        again = pool is self._last.get(slice_.id) or pool in self._counted_pool(slice_)
        unit = self._units.get(slice_.id) or unit_of(slice_, self._ctx.now)
        return self._budget.allows_claim(slice_, unit, pool, again=again)

    def _why_not_take(self, slice_: Slice, pool: OwnedPool) -> Refusal | None:
        if is_expired(slice_, self._ctx):
            return Refusal.EXPIRED
        if slice_.shape_problem:
            return Refusal.SIZE
        zone, node_settings = self._zones.get(slice_.workload.uid), settings_of(slice_)
        return self._why_not_free(pool) or self._why_not_suited(slice_, pool, zone, node_settings)

    def _why_not_free(self, pool: OwnedPool) -> Refusal | None:
        if pool.name not in self._usable:
            return Refusal.UNUSABLE
        if pool.name in self._claimed:
            return Refusal.CLAIMED
        if self._occupants.get(pool.name):
            return Refusal.IN_USE
        if pool.undecided:
            return Refusal.UNDECIDED
        return None if pool.lendable else Refusal.NOT_LENDABLE

    def _why_not_suited(self, slice_: Slice, pool: OwnedPool, zone: Zone | None, node_settings: str) -> Refusal | None:
        if (refusal := why_wrong_kind(slice_, pool)) is not None:
            return refusal
        if pool.pool.hosts != slice_.nodes and not self._takes_spare_hosts(slice_):
            return Refusal.SIZE
        if not self._free.has_hosts(pool, slice_):
            return Refusal.MISFIT
        if settings_of_pool(pool) != node_settings:
            return Refusal.SETTINGS
        if zone is not None and zone not in pool.pool.zones:
            return Refusal.ZONE
        if self._budget.allows_claim(slice_, self._units[slice_.id], pool):
            return None
        self._refused[self._limited_by(slice_)].add(pool.name)
        return Refusal.LIMIT

    def _takes_spare_hosts(self, slice_: Slice) -> bool:
        # The slice keeps hosts that it does not need for as long as its pods run, so it first waits for its own pool.
        since = slice_.leader.unschedulable_since if slice_.leader is not None else None
        return since is not None and self._ctx.now - since >= _SPARE_HOSTS_AFTER

    def _limited_by(self, slice_: Slice) -> Hashable:
        """Return the values of a slice on which the limits depend, except its accelerator and chips."""
        budget, owner = self._budget, slice_.workload.namespace
        maximum = budget.settings.max_pools_per_jobset
        if maximum is not None:
            # Below MAX_POOLS_PER_JOBSET, the limits treat all workloads of a namespace alike.
            scope = LimitScope(ScopeKind.WORKLOAD, slice_.workload.full_name)
            if budget.used[scope] >= maximum or scope in budget.kept:
                owner = slice_.workload.uid
        return (owner if budget.counts else ""), self._units[slice_.id].priority, slice_.workload.kind

    @cached_property
    def _free(self) -> FreePools:
        """Index of the pools that were free at the first read of this property."""
        return FreePools(pool for pool in self._usable.values() if self._why_not_free(pool) is None)

    def _search(self, slice_: Slice) -> Iterator[OwnedPool]:
        """Return an iterator over the free pools that suit a slice; equal slices share one iterator."""
        fitting = self._free.fitting(slice_)
        if not fitting:
            return iter(())
        limited = self._limited_by(slice_)
        zone, node_settings = self._zones.get(slice_.workload.uid), settings_of(slice_)
        # The key has all values that `_why_not_suited` reads from a slice. Equal slices have the same shape object.
        exact = not self._takes_spare_hosts(slice_)
        hosts = slice_.nodes, exact, id(slice_.shape), slice_.host, kept_for(slice_, self._free.growing)
        owner = slice_.workload.uid if self._budget.settings.max_pools_per_jobset is not None else ""
        key = fitting, zone, node_settings, owner, limited, hosts
        if key not in self._searches:
            self._searches[key] = (
                pool
                for pool in self._free.specified(slice_, node_settings, self._refused[limited], exact=exact)
                if pool.name not in self._claimed and self._why_not_suited(slice_, pool, zone, node_settings) is None
            )
        return self._searches[key]

    def _claim(self, slice_: Slice, pool: OwnedPool) -> None:
        self._claims[slice_.id] = pool.name
        self._claimed[pool.name] = slice_.id
        self._settle(slice_.workload.uid, pool)
        self._budget.claim(slice_, pool)

    def _settle(self, uid: WorkloadUid, pool: OwnedPool) -> None:
        if uid in self._one_zone and pool.pool.zones:
            self._zones.setdefault(uid, pool.pool.zones[0])

    def _last_pool(self, slice_: Slice) -> Sequence[OwnedPool]:
        pool = self._last.get(slice_.id)
        return (pool,) if pool is not None else ()

    def _assigned_pool(self, slice_: Slice) -> Sequence[OwnedPool]:
        mark = slice_.workload.namespace, slice_.mark
        pool = self._assigned.get(mark) if slice_.controlled else None
        return (pool,) if pool is not None else ()

    def _created_pools(self, slice_: Slice) -> Sequence[OwnedPool]:
        pools = self._ctx.pools_of.get(slice_.id, ())
        return sorted(pools, key=lambda pool: (pool.ready, pool.attempt), reverse=True) if len(pools) > 1 else pools

    def _counted_pool(self, slice_: Slice) -> Sequence[OwnedPool]:
        """Return the pool that a slice with pods counted on last, if the pool is lendable; otherwise empty."""
        before = self._ctx.memory.slice(slice_.id).claim
        if before is None or not (before.has_pods and slice_.pods):
            return ()
        pool = self._ctx.owned.get(before.pool)
        return (pool,) if pool is not None and pool.lendable else ()


def running_gangs(ctx: Round) -> set[tuple[str, str]]:
    """Return the gangs (`Slice.gang`) with a bound leader pod."""
    bound = (slice_ for slice_ in ctx.slices.values() if slice_.leader is not None and slice_.leader.node_name)
    return {gang for slice_ in bound if (gang := slice_.gang) is not None}


def _ends_soon(pool: OwnedPool, ctx: Round) -> bool:
    node = pool.maintenance
    return pool.ends_soon or (node is not None and ctx.now - node.created_at >= _REPLACED_AFTER)


def is_expired(slice_: Slice, ctx: Round) -> bool:
    """Whether a slice has ended, is refused by the scheduler, or counted on ready pools for too long."""
    if slice_.ended or ctx.is_refused(slice_.id):
        return True
    claim = ctx.memory.slice(slice_.id).claim
    if claim is None or claim.since is None or claim.has_pods is not bool(slice_.pods):
        return False
    return ctx.now - claim.since >= (_UNBOUND_AT_MOST if claim.has_pods else _WITHOUT_PODS_AT_MOST)


def _is_up(slice_: Slice, pool: OwnedPool) -> bool:
    return pool.ready or (slice_.share is not None and pool.ready_nodes > 0)


def _next_claim(
    slice_: Slice, name: PoolName | None, ctx: Round, gangs: Container[tuple[str, str] | None]
) -> Claim | None:
    """Return the claim to remember. An expired slice without a pool keeps its claim, and thereby remains expired."""
    before, has_pods = ctx.memory.slice(slice_.id).claim, bool(slice_.pods)
    if name is None:
        return before if is_expired(slice_, ctx) else None
    # If `waits`, no pod of the slice can be bound now, so its claim has no `since`, and does not expire.
    workload = slice_.workload
    waits = workload.suspended or not workload.kind.has_pods or workload.uid in ctx.memory.gangs
    # A refused gang is incomplete because its pools are deleted. Its claims may expire nevertheless.
    waits = waits or (slice_.gang in gangs and not ctx.is_refused(slice_.id))
    message = slice_.leader.unschedulable_message if slice_.leader is not None else ""
    same_pool = before is not None and (before.pool, before.has_pods) == (name, has_pods)
    looked = same_pool and before is not None and (before.looked or before.message != message)
    pool = ctx.owned[name]
    if waits or not _is_up(slice_, pool):
        return Claim(pool=name, since=None, has_pods=has_pods, message=message, looked=looked)
    since = None
    if before is not None and before.has_pods is has_pods:
        for_slice = ctx.created_for.get(name) == slice_.id or is_shared_by(pool, slice_)
        since = before.since if before.pool == name or not for_slice else None
    return Claim(pool=name, since=since or ctx.now, has_pods=has_pods, message=message, looked=looked)


def _use(ctx: Round) -> tuple[_Holders, _Holders, Mapping[SliceId, frozenset[PoolName]], frozenset[SliceId]]:
    """Return `Matching.holders`, slices with unfinished pods by pool, `Matching.held` and `Matching.elsewhere`."""
    workloads, now = ctx.workloads, ctx.now
    holders: dict[PoolName, AbstractSet[SliceId | None]] = {}
    occupants: dict[PoolName, AbstractSet[SliceId | None]] = {}
    held: dict[SliceId, AbstractSet[PoolName]] = {}
    elsewhere: set[SliceId] = set()
    for pod in ctx.snapshot.pods:
        if not pod.node_name or pod.finished:
            continue
        slice_id, name = slice_id_of(pod, workloads), ctx.memory.membership.seen.get(pod.node_name)
        pool = ctx.owned.get(name) if name is not None else None
        if is_guest(pod, pool):
            continue
        if name is None:
            if slice_id is not None and pod.deletion_deadline is None:
                elsewhere.add(slice_id)
            continue
        _add(occupants, name, slice_id)
        # A pod that exists after its grace period, usually on a node that does not respond, no longer holds the pool.
        if pod.deletion_deadline is None or pod.deletion_deadline > now:
            _add(holders, name, slice_id)
        # A pod in its grace period prevents the delete of its pool, but its slice may get another pool for new pods.
        if slice_id is not None and pod.deletion_deadline is None:
            _add(held, slice_id, name)
    return _frozen(holders), _frozen(occupants), _frozen(held), frozenset(elsewhere - held.keys())


def _add(sets: dict[_K, AbstractSet[_V]], key: _K, value: _V) -> None:
    before = sets.get(key)
    if before is None:
        # Most sets have one member, and `_frozen` does not copy a frozen set.
        sets[key] = frozenset((value,))
    elif isinstance(before, set):
        before.add(value)
    elif value not in before:
        sets[key] = {*before, value}


def _frozen(sets: Mapping[_K, Iterable[_V]]) -> dict[_K, frozenset[_V]]:
    return {key: frozenset(values) for key, values in sets.items()}
