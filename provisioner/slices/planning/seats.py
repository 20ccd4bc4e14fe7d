"""Gives slices that share pools (`Slice.share`) a node each, and joins slices for which one new pool is enough. Pure.

A slice that shares pools is one pod, and the scheduler chooses its node. Existing nodes, and nodes that are being
created, are used before a new pool is created. The node of a pod that will be deleted within 5 minutes counts as free,
so a rolling update usually creates no second pool.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_

from provisioner.model import bounds
from provisioner.model.capacity import PoolName
from provisioner.model.fit import NodeView
from provisioner.model.fits import Fits
from provisioner.model.workloads import Pod, WorkloadKind
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.refusals import (
    bits_by_settings,
    growing_marks,
    kept_for,
    settings_of,
    why_wrong_kind,
)
from provisioner.slices.planning.round import OwnedPool, Round

#: Wait after the last unschedulable pod before a shared pool is created: pods are reported one after the other.
_QUIET = timedelta(seconds=3)
#: Maximum delay of a create after the first unschedulable pod: an autoscaler may add pods one by one without an end.
_BURST = timedelta(seconds=15)
#: Maximum `unready_seconds` of a pool whose missing and unready nodes count as free: new nodes need some minutes.
_EXPECTED_SECONDS = 600.0
#: Maximum remaining grace period of a deleted pod whose node counts as free; users may choose longer periods.
_LEAVES_WITHIN = timedelta(minutes=5)
#: Time after a pod's grace period for which its node still counts as free: the kubelet needs some seconds.
_KILLED_WITHIN = timedelta(seconds=10)
#: Namespace and mark of slices that may use a pool together; None for slices that share no pool. The mark SHARED counts
#: as empty, so that a new pod with this mark may use a free node of a pool whose pods have no mark.
_Party = tuple[str, str] | None


class Seats:
    """Nodes that are still free for slices that share pools, in one decision. Sets of nodes are bit masks."""

    def __init__(
        self,
        ctx: Round,
        occupants: Mapping[PoolName, Collection[SliceId | None]],
        claimed: Mapping[PoolName, SliceId],
    ) -> None:
        self._round, self._claimed = ctx, claimed
        # Pools with pods come first, so that pools without pods can be deleted.
        pools = sorted(
            (owned for owned in ctx.owned.values() if owned.usable and not owned.undecided),
            key=lambda owned: (not occupants.get(owned.name), not owned.ready, owned.name),
        )
        #: Pool of each bit: a pool has a bit for each existing node that counts, and a last bit for all missing nodes.
        self._pool_of: list[OwnedPool] = []
        self._bits: dict[PoolName, int] = {}
        self._free = 0
        self._missing: dict[PoolName, int] = {}
        self._fits = Fits(self._number_nodes(pools))
        self._growing = growing_marks(pools)
        #: Pools with users, by the party of their creator, and by the party of the users if they all are of one party.
        self._used_by: dict[_Party, list[OwnedPool]] = defaultdict(list)
        self._empty: dict[_Party, list[OwnedPool]] = defaultdict(list)
        self._by_settings = bits_by_settings((pool, self._bits[pool.name]) for pool in pools)
        self._parties = {name: {self._party(user) for user in users} for name, users in occupants.items()}
        for pool in pools:
            if users := self._parties.get(pool.name):
                for party in {*(users if len(users) == 1 else ()), _creator_of(pool)}:
                    self._used_by[party].append(pool)
            else:
                self._empty[_creator_of(pool)].append(pool)
        #: Nodes of the pools that a party may use ahead of the queue, such as pools with users.
        self._own: dict[_Party, int] = {}
        #: Nodes of pools that were refused to slices, by namespace, mark (or whether the slice has one), and limits.
        self._closed: dict[Hashable, int] = defaultdict(int)
        self._suiting: dict[Hashable, int] = {}
        self._alike: dict[Hashable, int] = {}

    def _number_nodes(self, pools: Iterable[OwnedPool]) -> Sequence[NodeView]:
        """Assign bits to the nodes that count, and to the missing nodes of each pool; return the views by bit."""
        pods = (pod for pod in self._round.snapshot.pods if pod.requirements.has_chips and not pod.finished)
        busy = {pod.node_name for pod in pods if not self._is_leaving(pod)}
        views: list[NodeView] = []
        for pool in pools:
            late = pool.unready_seconds > _EXPECTED_SECONDS
            ready = {node.name for node in pool.nodes if pool.is_ready(node)} if late else set()
            here = [view for view in pool.offered if not late or view.name in ready]
            self._missing[pool.name] = 0 if late else pool.missing
            free = sum((view.name not in busy) << place for place, view in enumerate(here))
            free |= (self._missing[pool.name] > 0) << len(here)
            self._free |= free << len(views)
            self._bits[pool.name] = ((2 << len(here)) - 1) << len(views)
            views += [*here, pool.view]
            self._pool_of += [pool] * (len(here) + 1)
        return views

    def take(
        self,
        slice_: Slice,
        may_borrow: Callable[[OwnedPool], bool],
        limits: Hashable,
        *,
        last: PoolName | None,
        expired: bool,
    ) -> OwnedPool | None:
        """Take a free node for a slice, and return the pool of the node; None if no free node suits the slice.

        The pool `last`, which the slice had or which was created for it, is tried first. For the first slice on another
        pool without pods, `may_borrow` decides, except on a pool of the namespace without a ready node. Refused pools
        are remembered by `limits`. Without `limits`, only the pool `last` can be borrowed. An `expired` slice takes no
        node of a pool with pods: the scheduler has not bound its pod there.
        """
        party, of_last = _party_of(slice_), self._bits.get(last, 0) if last is not None else 0
        # All marked slices of a namespace may use the same pools without users.
        own_key, alike_key = (slice_.workload.namespace, slice_.mark), (slice_.workload.namespace, slice_.mark != "")
        closed = self._closed[own_key, limits] | self._closed[alike_key, limits]
        own = self._own_of(party) | of_last
        closed = closed if limits is not None else ~own
        candidates = self._suited(slice_, party) & self._free & (~closed | of_last)
        while candidates:
            here = candidates & of_last or candidates
            lowest = here & -here
            pool = self._pool_of[lowest.bit_length() - 1]
            bits = self._bits[pool.name]
            candidates &= ~bits
            if not (expired and self._parties.get(pool.name)) and self._is_open(pool, slice_, own, may_borrow):
                exists = lowest << 1 <= bits
                self._missing[pool.name] -= not exists
                if exists or not self._missing[pool.name]:
                    self._free ^= lowest
                self._own[party] = self._own_of(party) | bits
                return pool
            self._closed[own_key if self._parties_on(pool) - {None} else alike_key, limits] |= bits
        return None

    def _suited(self, slice_: Slice, party: tuple[str, str]) -> int:
        """Return the fitting nodes of suitable pools that are empty or used by `party`; cached by share."""
        if (suited := self._suiting.get(slice_.share)) is None:
            suited = self._fits.fitting(slice_.requirements) & self._by_settings.get(settings_of(slice_), 0)
            if suited:
                empty = itertools.chain.from_iterable(self._empty.values())
                used = self._used_by.get(party, ())
                suited &= self._of_kind(slice_, None, empty) | self._of_kind(slice_, party, used)
            self._suiting[slice_.share] = suited
        return suited

    def _of_kind(self, slice_: Slice, party: _Party, pools: Iterable[OwnedPool]) -> int:
        # Values that `why_wrong_kind` reads from a slice. Equal slices have the same shape object.
        key = party, id(slice_.shape), slice_.nodes, slice_.host, kept_for(slice_, self._growing)
        if key not in self._alike:
            self._alike[key] = self._all_of(pool for pool in pools if why_wrong_kind(slice_, pool) is None)
        return self._alike[key]

    def _own_of(self, party: tuple[str, str]) -> int:
        if party not in self._own:
            in_creation = (pool for pool in self._empty.get((party[0], ""), ()) if not pool.ready_nodes)
            self._own[party] = self._all_of((*self._used_by.get(party, ()), *in_creation))
        return self._own[party]

    def _all_of(self, pools: Iterable[OwnedPool]) -> int:
        return reduce(or_, (self._bits[pool.name] for pool in pools), 0)

    def _is_open(self, pool: OwnedPool, slice_: Slice, own: int, may_borrow: Callable[[OwnedPool], bool]) -> bool:
        """Whether a slice may use a pool together with the present users of the pool, or as the first user."""
        party, mark = _party_of(slice_), (slice_.workload.namespace, slice_.mark)
        parties = self._parties_on(pool)
        # Nodes with the labels of a slice may keep them while pods use the pool, so an unmarked pod could not be bound.
        if parties and not slice_.mark and pool.assigned_to is not None:
            return False
        if parties and party == _creator_of(pool) and (not slice_.mark or pool.assigned_to == mark):
            return True
        is_own = is_shared_by(pool, slice_) and bool(self._bits[pool.name] & own)
        return parties <= {party} and (is_own or may_borrow(pool))

    def _parties_on(self, pool: OwnedPool) -> set[_Party]:
        claimant = self._claimed.get(pool.name)
        return self._parties.get(pool.name, set()) | ({self._party(claimant)} if claimant is not None else set())

    def _party(self, slice_id: SliceId | None) -> _Party:
        slice_ = self._round.slices.get(slice_id) if slice_id is not None else None
        return _party_of(slice_) if slice_ is not None and slice_.share is not None else None

    def _is_leaving(self, pod: Pod) -> bool:
        now, deadline = self._round.now, pod.deletion_deadline
        return deadline is not None and now - _KILLED_WITHIN < deadline <= now + _LEAVES_WITHIN


def is_shared_by(pool: OwnedPool, slice_: Slice) -> bool:
    """Whether a slice shares pools, and the pool was created for a workload of kind POD in the slice's namespace."""
    creator = pool.ownership.workload
    is_own = creator.kind is WorkloadKind.POD and creator.namespace == slice_.workload.namespace
    return slice_.share is not None and is_own


def may_share(first: Slice, second: Slice) -> bool:
    """Whether the pods of two slices may use nodes of one pool."""
    return None not in (first.share, second.share) and _party_of(first) == _party_of(second)


def _creator_of(pool: OwnedPool) -> _Party:
    creator = pool.ownership.workload
    return (creator.namespace, "") if creator.kind is WorkloadKind.POD else None


def _party_of(slice_: Slice) -> tuple[str, str]:
    return slice_.workload.namespace, slice_.mark if slice_.controlled else ""


def join(
    slices: Iterable[Slice], refused: Container[SliceId] = (), *, by_workload: bool = False
) -> list[tuple[Slice, tuple[Slice, ...]]]:
    """Return the slices to create pools for, in the given order, each with the other slices that share its pool.

    If slices share a pool, the `parallelism` of the returned slice is their number, so that each of them gets a node.
    Slices of different priorities share no new pool: the first slice determines the place in the queue. Slices in
    `refused`, to whose pools the scheduler bound no pod, share pools only with each other. With `by_workload`, only
    slices of one workload share a pool, because a limit counts the pools of each workload.
    """
    groups: list[list[Slice]] = []
    last_groups: dict[Hashable, list[Slice]] = {}
    for slice_ in slices:
        priority = slice_.leader.priority if slice_.leader is not None else 0
        key = (slice_.share, slice_.id in refused, priority, slice_.workload.uid if by_workload else None)
        group = last_groups.get(key) if slice_.share is not None else None
        if group is None or len(group) == bounds.SHARED_POOL_NODES:
            group = last_groups[key] = []
            groups.append(group)
        group.append(slice_)
    return [(replace(first, parallelism=1 + len(rest)) if rest else first, tuple(rest)) for first, *rest in groups]


def burst_ends(slices: Sequence[Slice], now: datetime) -> datetime | None:
    """Return the end, past or future, of a shared pool's wait for further slices before its create; otherwise None."""
    if slices[0].share is None or len(slices) == bounds.SHARED_POOL_NODES:
        return None
    leaders = [slice_.leader for slice_ in slices if slice_.leader is not None]
    times = [_waits_since(pod, pod.unschedulable_since, now) for pod in leaders if pod.unschedulable_since is not None]
    return min(max(times) + _QUIET, min(times) + _BURST) if times else None


def _waits_since(pod: Pod, reported: datetime, now: datetime) -> datetime:
    """Return `reported`; if it is in the future because a clock was ahead, the pod's creation time, at most `now`."""
    return reported if reported <= now else min(pod.created_at, now)
