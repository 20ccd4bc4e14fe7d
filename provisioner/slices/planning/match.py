"""Matches slices with pools: first by use, then by assignment, then in the order of the line.

A slice holds every pool that its pods are bound to, whatever labels say. A slice without bound pods returns to the pool
that it had last, that is assigned to it, or that was created for it. Free pools go to the first slice in the line that
they fit; `planning.assignment` then writes the labels that keep all other pods off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import accumulate
from typing import TypeVar

from provisioner.model.capacity import NodePool, PoolName, Zone
from provisioner.model.fits import Fits
from provisioner.model.placement import MARKS
from provisioner.model.workloads import WorkloadKind, WorkloadUid
from provisioner.settings.node_fields import own_settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.demand.slices import slice_id_of
from provisioner.slices.planning.contention.limits import Budget
from provisioner.slices.planning.contention.line import Unit, place_of, unit_of
from provisioner.slices.planning.memory.state import Claim
from provisioner.slices.planning.round import Round, Supply, grows_for, has_settings, right_size, serves
from provisioner.slices.planning.seats import Seats
from provisioner.slices.planning.spec.capacity import wants_one_zone

_Holders = Mapping[PoolName, frozenset[SliceId | None]]
_K = TypeVar("_K")
_V = TypeVar("_V")
#: Maximum time for which a slice counts on a ready pool that was created for another slice while none of its pods is
#: bound to it: the scheduler retries every unschedulable pod within 5.5 minutes.
_UNBOUND_AT_MOST = timedelta(minutes=6)
#: Maximum time for which a slice without pods counts on its pool: the Job controller waits up to 10 minutes before it
#: replaces a pod that failed.
_WITHOUT_PODS_AT_MOST = timedelta(minutes=15)
#: Minimum age of a warm pool that is replaced before maintenance of its host. Younger pools are kept, because
#: maintenance may be announced for all hosts at the same time, including those of a new pool.
_REPLACED_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Slices that use or count on pools, and slices that have none."""

    #: Slices with unfinished pods on each pool; None represents pods of an unknown slice.
    holders: Mapping[PoolName, frozenset[SliceId | None]]
    #: Pools that the pods of each slice are bound to.
    held: Mapping[SliceId, frozenset[PoolName]]
    #: Slice that counts on each pool without holding it.
    claimed: Mapping[PoolName, SliceId]
    #: Slices that share a pool and wait for one of its nodes. One of them may be its claimant.
    seats: Mapping[PoolName, Sequence[SliceId]]
    #: Slices with pods on nodes of no known node pool, and without pods on a node pool.
    elsewhere: frozenset[SliceId]
    #: Slices that want a pool and have none, in the order of the line.
    unserved: tuple[Slice, ...]
    #: Slices of buffers that want a pool and have none: they are served after all others.
    spare: tuple[Slice, ...]
    #: Zone of each workload that has pools, all of which must be in one zone.
    zones: Mapping[WorkloadUid, Zone]
    #: Claims to remember.
    claims: Mapping[SliceId, Claim]
    #: Slices that took a free pool in this decision.
    taken: Collection[SliceId]

    def without_buffered(self, names: Collection[PoolName], slices: Mapping[SliceId, Slice]) -> Matching:
        """Return the matching without the claims of buffers on some pools."""
        taken = {name for name in names if name in self.claimed and slices[self.claimed[name]].spare}
        return replace(self, claimed={name: each for name, each in self.claimed.items() if name not in taken})


def match(
    round_: Round,
    budget: Budget,
    line: Sequence[Unit],
    sidelined: Collection[WorkloadUid],
    refuse: Callable[[Slice], None],
) -> Matching:
    """Match slices with pools; each pool serves at most one slice.

    A claim must be within the limits of its slice, and counts there. `line` has the slices that want a pool. Workloads
    in `sidelined` take no pool. `refuse` is called for each slice that finds no pool, in the order of the line.
    """
    slices, supply, owned = round_.slices, round_.supply, round_.owned
    last_users = {name: known.last_user for name, known in round_.memory.pools.items() if known.last_user is not None}
    holders, occupants, held, elsewhere = _use(round_)
    one_zone = {each.workload.uid for each in slices.values() if wants_one_zone(each, round_.settings)}
    last_held = {user: name for name, user in sorted(last_users.items(), reverse=True)}
    usable = {name: each for name, each in supply.items() if each.usable}
    claims: dict[SliceId, PoolName] = {}
    claimed: dict[PoolName, SliceId] = {}
    zones: dict[WorkloadUid, Zone] = {}
    places = place_of(line)
    waiting = sorted(
        (slice_ for slice_ in slices.values() if not held.get(slice_.id)),
        key=lambda slice_: (places.get(slice_.id, len(line) + 1), slice_.workload.full_name, slice_.group_name),
    )
    units = {unit.id: unit for unit in line}
    assigned = {mark: supply[name] for name, mark in round_.assigned.items()}
    taken: set[SliceId] = set()
    seats, seated = Seats(round_, occupants, claimed), defaultdict[PoolName, list[SliceId]](list)

    def settle(uid: WorkloadUid, pool: NodePool) -> None:
        if uid in one_zone and pool.zones:
            zones.setdefault(uid, pool.zones[0])

    def claim(slice_: Slice, candidate: Supply | None) -> None:
        if candidate is not None:
            claims[slice_.id] = candidate.name
            claimed[candidate.name] = slice_.id
            settle(slice_.workload.uid, candidate.pool)
            budget.claim(slice_, candidate)

    def seat(slice_: Slice) -> None:
        """Give a slice that shares pools a node that is left."""

        def may_borrow(pool: Supply) -> bool:
            unit = units.get(slice_.id) or unit_of(slice_, round_.now)
            return pool.lendable and not _expired(slice_, round_) and budget.allows_claim(slice_, unit, pool)

        pool = seats.take(slice_, may_borrow) if slice_.id not in claims else None
        if pool is not None:
            claims[slice_.id] = pool.name
            seated[pool.name].append(slice_.id)
            if pool.name not in claimed and not holders.get(pool.name):
                claimed[pool.name] = slice_.id
                budget.claim(slice_, pool)

    def returns_to(slice_: Slice, candidate: Supply | None) -> bool:
        """Whether a slice may count on a pool that it had, or that was created for it."""
        if candidate is None or candidate.name not in usable or candidate.name in claimed:
            return False
        # Pods of the slice itself that are being deleted do not block the pods that replace them.
        if occupants.get(candidate.name, frozenset()) - {slice_.id}:
            return False
        warm = slice_.pending and not slice_.workload.kind.has_pods
        doomed = candidate.maintenance
        old = doomed is not None and round_.now - doomed.created_at >= _REPLACED_AFTER
        if warm and (old or candidate.ends_soon):
            # A pool whose host or reservation ends soon is useless as a warm pool.
            return False
        own = round_.made_for.get(candidate.name) == slice_.id == last_users.get(candidate.name, slice_.id)
        if not own and not may_borrow(slice_, candidate):
            return False
        if not _has_host(candidate, slice_):
            return False
        # If all nodes of the pool exist, the slice's pods are on none of them: they run on nodes of no known pool.
        gone = slice_.id in elsewhere and len(candidate.nodes) >= candidate.pool.hosts
        # The requests of a suspended workload's pods are unknown: Kueue changes their template at resume and suspend.
        return not gone and (slice_.workload.suspended or serves(candidate, slice_))

    def may_borrow(slice_: Slice, candidate: Supply) -> bool:
        again = candidate.name in (counted_on(slice_), last_held.get(slice_.id))
        expired = round_.made_for.get(candidate.name) != slice_.id and _expired(slice_, round_)
        unit = units.get(slice_.id) or unit_of(slice_, round_.now)
        return not expired and budget.allows_claim(slice_, unit, candidate, again=again)

    def counted_on(slice_: Slice) -> PoolName:
        """Return the pool that a slice with pods counted on in the last round; empty if it is no longer lendable."""
        before = round_.memory.slice(slice_.id).claim
        if before is None or not (before.has_pods and slice_.pods and before.pool in supply):
            return PoolName("")
        return before.pool if supply[before.pool].lendable else PoolName("")

    def return_home(slices: Iterable[Slice]) -> None:
        # A slice that has had no pods for too long has ended, or will want a pool again when its pods exist.
        slices = [each for each in slices if each.share is None and (each.pods or not _expired(each, round_))]
        for slice_ in slices:
            last = supply.get(last_held.get(slice_.id, PoolName("")))
            claim(slice_, last if returns_to(slice_, last) else None)
        for slice_ in slices:
            pool = assigned.get((slice_.workload.namespace, slice_.mark)) if slice_.id not in claims else None
            claim(slice_, pool if pool is not None and returns_to(slice_, pool) else None)
        for slice_ in slices:
            if slice_.id not in claims:
                own = (each for each in owned.get(slice_.id, ()) if returns_to(slice_, each))
                claim(slice_, max(own, key=lambda each: (each.ready, each.attempt), default=None))
        for slice_ in slices:
            again = supply.get(counted_on(slice_)) if slice_.id not in claims else None
            claim(slice_, again if returns_to(slice_, again) else None)

    for slice_id, names in held.items():
        for name in sorted(names & supply.keys()):
            settle(slice_id.workload_uid, supply[name].pool)
    suspended = [each for each in waiting if each.workload.suspended]
    # Pools of buffers are for any other slice that needs them, so slices of buffers come last.
    spare = [each for each in waiting if each.spare]
    # A mark that remains in the requirements is of another namespace: it was forged, and no pool is kept for it.
    forged = {each.id for each in waiting if not each.requirements.node_selector.keys().isdisjoint(MARKS)}
    eligible = [
        each
        for each in waiting
        if not (each.spare or each.workload.suspended or each.id in forged) and each.workload.uid not in sidelined
    ]
    return_home(eligible)
    for slice_ in eligible:
        if slice_.pending and slice_.share is not None and round_.memory.slice(slice_.id).claim is not None:
            seat(slice_)
    # Only slices that wait take a pool that was created for another slice, not slices that may need one later.
    lendable = [
        each
        for each in usable.values()
        # A pool that looks idle may be in use by a workload that is not watched.
        if each.name not in claimed and not occupants.get(each.name) and not each.undecided and each.lendable
    ]

    def take_free(slices: Iterable[Slice], free: _Free) -> None:
        for slice_ in slices:
            if slice_.pending and slice_.share is not None:
                seat(slice_)
            elif slice_.pending and slice_.id not in claims and not _expired(slice_, round_):
                pool = free.take(slice_, units[slice_.id], zones.get(slice_.workload.uid), budget)
                claim(slice_, pool)
                taken.update([slice_.id] if pool is not None else [])
            if slice_.pending and slice_.id not in claims:
                refuse(slice_)

    def hand_over() -> None:
        """Give pools of a request to the slices whose pods use the request: it was served only for them."""
        served: dict[tuple[str, str], list[Supply]] = defaultdict(list)
        for name, slice_id in claimed.items():
            workload = slices[slice_id].workload
            if workload.kind is WorkloadKind.PROVISIONING_REQUEST and not slices[slice_id].pending:
                served[workload.namespace, workload.name].append(supply[name])
        for slice_ in eligible if served else ():
            pools = served[slice_.workload.namespace, slice_.request] if slice_.request else []
            home = assigned.get((slice_.workload.namespace, slice_.mark))
            fitting = [
                pool
                for pool in pools
                if serves(pool, slice_) and _has_host(pool, slice_) and claimed[pool.name] != slice_.id
            ]
            if fitting and slice_.id not in claims:
                pool = home if home in fitting else fitting[0]
                del claims[claimed[pool.name]]
                pools.remove(pool)
                claim(slice_, pool)

    hand_over()
    take_free(eligible, _Free(lendable, claimed))
    return_home(spare)
    if spare:
        take_free(spare, _Free(lendable, claimed))
    # The scheduler may bind any pod to the nodes that a suspended workload keeps, so its slices claim last.
    return_home(suspended)
    kept = {each.id: _kept(each, claims.get(each.id), round_) for each in waiting}
    counted = {slice_id: each for slice_id, each in kept.items() if each is not None}
    return Matching(
        holders=holders,
        held=held,
        claimed=claimed,
        seats=seated,
        elsewhere=elsewhere,
        unserved=tuple(each for each in waiting if each.pending and not each.spare and each.id not in claims),
        spare=tuple(each for each in spare if each.pending and each.id not in claims),
        zones=zones,
        claims=counted,
        taken=taken,
    )


def _has_host(pool: Supply, slice_: Slice) -> bool:
    """Whether a pool has the node that the leader pod selects; True if it selects none."""
    return not slice_.host or any(node.name == slice_.host for node in pool.nodes)


def _expired(slice_: Slice, round_: Round) -> bool:
    """Whether a slice has ended, or has counted for too long on a pool to which none of its pods was bound."""
    if slice_.ended:
        return True
    claim = round_.memory.slice(slice_.id).claim
    if claim is None or claim.since is None or claim.has_pods is not bool(slice_.pods):
        return False
    return round_.now - claim.since >= (_UNBOUND_AT_MOST if claim.has_pods else _WITHOUT_PODS_AT_MOST)


def _kept(slice_: Slice, name: PoolName | None, round_: Round) -> Claim | None:
    """Return the claim of a slice on a pool; an expired claim is not renewed."""
    before, has_pods = round_.memory.slice(slice_.id).claim, bool(slice_.pods)
    if name is None:
        return before if _expired(slice_, round_) else None
    # The time of slices that wait on purpose is not measured.
    workload = slice_.workload
    waits = workload.suspended or not workload.kind.has_pods or workload.uid in round_.memory.gangs
    if waits or not round_.supply[name].ready:
        return Claim(pool=name, since=None, has_pods=has_pods)
    since = None
    if before is not None and before.has_pods is has_pods:
        own = round_.made_for.get(name) == slice_.id
        since = before.since if before.pool == name or not own else None
    return Claim(pool=name, since=since or round_.now, has_pods=has_pods)


class _Free:
    """Pools that no slice counts on, best first; slices that fit the same nodes share one search over the pools."""

    def __init__(self, free: Iterable[Supply], claimed: Collection[PoolName]) -> None:
        pools = sorted(free, key=lambda each: (not each.ready, each.pool.hosts, each.name))
        #: Each pool by its specification, followed by the existing nodes of all pools.
        self._fits = Fits([*(each.view for each in pools), *(view for each in pools for view in each.offered)])
        ends = accumulate((len(each.offered) for each in pools), initial=len(pools))
        #: Pools, each with the position of its first node in `_fits`, and a mask with one bit per node.
        self._pools = [(each, start, (1 << len(each.offered)) - 1) for each, start in zip(pools, ends, strict=False)]
        self._searches: dict[Hashable, Iterator[Supply]] = {}
        #: Updated by the caller when a pool is taken.
        self._claimed = claimed

    def take(self, slice_: Slice, unit: Unit, zone: Zone | None, budget: Budget) -> Supply | None:
        """Return the best pool that fits, in `zone` if the workload keeps to one; None if no pool fits."""
        fitting = self._fits.fitting(slice_.requirements)
        whose: Hashable = None
        if budget.counts:
            whose = slice_.workload.uid if budget.settings.max_pools_per_jobset is not None else unit.namespace
        # Equal slices have the same shape object.
        own = own_settings(slice_.requirements.annotations, slice_.requirements.node_selector)
        key = fitting, slice_.nodes, id(slice_.shape), zone, whose, unit.priority, slice_.host, own
        return next(self._searches.setdefault(key, self._search(slice_, unit, zone, fitting, budget, own)), None)

    def _search(
        self, slice_: Slice, unit: Unit, zone: Zone | None, fitting: int, budget: Budget, own: str
    ) -> Iterator[Supply]:
        """Yield the pools whose existing nodes fit, of those whose specification fits."""
        for place in _bits(fitting & ((1 << len(self._pools)) - 1)):
            pool, start, nodes = self._pools[place]
            if (
                # Hosts without a node are expected to match the specification.
                (fitting >> start & nodes).bit_count() + pool.missing >= slice_.nodes
                and pool.name not in self._claimed
                and has_settings(pool, own)
                and zone in (None, *pool.pool.zones)
                and right_size(pool, slice_)
                and grows_for(pool, slice_)
                and _has_host(pool, slice_)
                and budget.allows_claim(slice_, unit, pool)
            ):
                yield pool


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _use(
    round_: Round,
) -> tuple[_Holders, _Holders, Mapping[SliceId, frozenset[PoolName]], frozenset[SliceId]]:
    """Return `Matching.holders`, the occupants, `Matching.held` and `Matching.elsewhere`.

    Occupants include pods that have been terminating past their grace period: their chips are not free yet.
    """
    workloads, now = round_.workloads, round_.now
    holders: dict[PoolName, frozenset[SliceId | None]] = {}
    lingering: dict[PoolName, frozenset[SliceId | None]] = {}
    held: dict[SliceId, frozenset[PoolName]] = {}
    elsewhere: set[SliceId] = set()
    for pod in round_.snapshot.pods:
        if not pod.node_name or pod.finished:
            continue
        slice_id = slice_id_of(pod, workloads)
        name = round_.memory.membership.seen.get(pod.node_name)
        if name is None:
            if slice_id is not None and pod.deletion_deadline is None:
                elsewhere.add(slice_id)
            continue
        # A pod exists past its grace period only because its node does not respond.
        _note(
            lingering if pod.deletion_deadline is not None and pod.deletion_deadline <= now else holders, name, slice_id
        )
        # A pod that is being deleted prevents the delete of its pool, but its slice will need a pool again.
        if slice_id is not None and pod.deletion_deadline is None:
            _note(held, slice_id, name)
    occupants = {**holders, **{name: ids | holders.get(name, frozenset()) for name, ids in lingering.items()}}
    return holders, occupants, held, frozenset(elsewhere - held.keys())


def _note(noted: dict[_K, frozenset[_V]], key: _K, value: _V) -> None:
    """Add a value to the set of a key; nearly always it is the first value, or already in the set."""
    before = noted.get(key)
    if before is None:
        noted[key] = frozenset((value,))
    elif value not in before:
        noted[key] = before | {value}
