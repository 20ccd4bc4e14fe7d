"""Gives slices that share pools (`Slice.share`) a node each, and joins slices for which one new pool is enough. Pure.

Such a slice is one pod, and the scheduler chooses its node. Nodes that exist or are being created are used before a new
pool is created. A pod that is being deleted frees its node soon, so the next pod of a rolling update waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import PoolName
from provisioner.model.fits import Fits
from provisioner.model.workloads import Pod, WorkloadKind
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.refusals import has_settings, settings_of, why_wrong_kind
from provisioner.slices.planning.round import Round, Supply

#: Time without a further unschedulable pod after which a shared pool with less than the maximum of nodes is created.
_QUIET = timedelta(seconds=3)
#: Maximum time for which a pod waits for others: an autoscaler may add pods one by one.
_BURST = timedelta(seconds=15)
#: Maximum time in seconds for which missing or unready nodes count as available: a new node needs some minutes.
_EXPECTED_SECONDS = 600.0
#: The node of a pod that is being deleted counts as free if the pod ends within this time. Users choose grace periods.
_LEAVES_WITHIN = timedelta(minutes=5)
#: Time after a grace period for which a pod counts as ending: its kubelet needs some seconds.
_KILLED_WITHIN = timedelta(seconds=10)
#: Namespace and mark (`Slice.mark`) of slices that may share a pool; None for a slice that shares none.
_Party = tuple[str, str] | None


class _Place(NamedTuple):
    pool: Supply
    #: Nodes of the pool that fit, as bits.
    nodes: int
    #: Whether nodes that do not exist yet will fit.
    expected: bool
    #: Whether the pool has no pods and was not created for pods of the namespace.
    foreign: bool


class Seats:
    """Nodes that are still free for slices that share pools. Used for one decision."""

    def __init__(
        self,
        round_: Round,
        occupants: Mapping[PoolName, Collection[SliceId | None]],
        claimed: Mapping[PoolName, SliceId],
    ) -> None:
        self._round, self._claimed = round_, claimed
        #: Pools with pods come first, so that the other pools become empty and are deleted.
        self._pools = sorted(
            (each for each in round_.supply.values() if each.usable and not each.undecided),
            key=lambda each: (not occupants.get(each.name), not each.ready, each.name),
        )
        #: Pools whose missing and unready nodes have been expected for too long.
        late = {each.name for each in self._pools if each.unready_seconds > _EXPECTED_SECONDS}
        ready = {node.name for pool in self._pools if pool.name in late for node in pool.nodes if pool.is_ready(node)}
        offered = ((pool.name, view) for pool in self._pools for view in pool.offered)
        views = [(name, view) for name, view in offered if name not in late or view.name in ready]
        self._fits = Fits([view for _, view in views])
        busy = {pod.node_name for pod in round_.snapshot.pods if not (pod.finished or self._is_leaving(pod))}
        self._left = 0
        self._nodes_of = dict.fromkeys((each.name for each in self._pools), 0)
        for place, (name, view) in enumerate(views):
            self._nodes_of[name] |= 1 << place
            self._left |= (view.name not in busy) << place
        self._missing = {pool.name: pool.missing for pool in self._pools if pool.name not in late}
        self._parties = {name: {self._party(each) for each in users} for name, users in occupants.items()}
        self._specified = Fits([each.view for each in self._pools])
        #: Pools that are open to each party, and pools without users, each with its place in `_specified`. A pool is
        #: open to its only party of users, and to the namespace that it was created for, regardless of other users.
        self._used_by: dict[_Party, list[tuple[int, Supply]]] = defaultdict(list)
        self._empty: list[tuple[int, Supply]] = []
        for place, pool in enumerate(self._pools):
            if not (users := self._parties.get(pool.name)):
                self._empty.append((place, pool))
                continue
            for party in {*(users if len(users) == 1 else ()), _creator_of(pool)}:
                self._used_by[party].append((place, pool))
        #: Nodes, and places in `_specified`, of the pools that each party may use, as bits.
        self._open: dict[_Party, tuple[int, int]] = {}
        self._places: dict[Hashable, dict[PoolName, _Place]] = {}

    def take(
        self,
        slice_: Slice,
        may_borrow: Callable[[Supply], bool],
        closed: Container[PoolName] | None,
        *,
        last: PoolName | None,
        expired: bool,
    ) -> Supply | None:
        """Take a free node for a slice, and return the pool of the node; None if no node is free.

        `may_borrow` is called for pools without pods that were not created for pods of the slice's namespace, except
        those in `closed`; None closes all. The pool `last`, which the slice had in the last round, comes first. An
        `expired` slice takes no node of a pool with pods, because the scheduler has not bound its pod there, for an
        unknown reason.
        """
        if slice_.share not in self._places:
            self._places[slice_.share] = self._find_places(slice_)
        places = self._places[slice_.share]
        for name in (last, *places):
            if name is None or (place := places.get(name)) is None:
                continue
            # Without calls: any number of pods and of such pools may meet here.
            if place.foreign and name not in self._claimed and name != last and (closed is None or name in closed):
                continue
            if self._is_taken(place.pool, slice_):
                del places[name]
                continue
            if (expired and self._occupied(name)) or not self._is_open(place.pool, slice_, may_borrow):
                continue
            if left := self._left & place.nodes:
                self._left ^= left & -left
                return place.pool
            if place.expected and self._missing.get(name):
                self._missing[name] -= 1
                return place.pool
            del places[name]
        return None

    def _find_places(self, slice_: Slice) -> dict[PoolName, _Place]:
        """Return the pools that suit a slice, best first. Equal slices share the result.

        Pools that other parties use are skipped, so the work does not grow with the number of tenants.
        """
        party, own, asked = _party_of(slice_), settings_of(slice_), slice_.requirements
        nodes, specified = self._open_to(party)
        nodes, specified = nodes & self._fits.fitting(asked), specified & self._specified.fitting(asked)
        job = asked.node_selector.get(constants.NAMESPACED_JOB)
        # The values that the conditions below read from a slice. Equal slices have the same shape object.
        key = party, own, nodes, specified, id(slice_.shape), slice_.nodes, slice_.host, job
        if key not in self._places:
            self._places[key] = {
                pool.name: _Place(pool, here, expected, not self._occupied(pool.name) and not is_shared_by(pool, slice_))
                for place, pool in (*self._used_by.get(party, ()), *self._empty)
                if (here := nodes & self._nodes_of[pool.name]) | (expected := bool(specified >> place & 1))
                and why_wrong_kind(slice_, pool) is None
                and has_settings(pool, own)
            }
        return self._places[key]

    def _open_to(self, party: _Party) -> tuple[int, int]:
        if party not in self._open:
            nodes = specified = 0
            for place, pool in (*self._used_by.get(party, ()), *self._empty):
                nodes |= self._nodes_of[pool.name]
                specified |= 1 << place
            self._open[party] = nodes, specified
        return self._open[party]

    def _is_taken(self, pool: Supply, slice_: Slice) -> bool:
        """Whether a slice of another party counts on a pool; False for ProvisioningRequests, which hand pools over."""
        claimant = self._claimed.get(pool.name)
        if claimant is None or _party_of(slice_) in (self._party(claimant), _creator_of(pool)):
            return False
        return self._round.slices[claimant].workload.kind is not WorkloadKind.PROVISIONING_REQUEST

    def _is_open(self, pool: Supply, slice_: Slice, may_borrow: Callable[[Supply], bool]) -> bool:
        """Whether a slice may use a pool together with its present users, or as its first user."""
        party, claimant = _party_of(slice_), self._claimed.get(pool.name)
        parties = self._parties.get(pool.name, set()) | ({self._party(claimant)} if claimant is not None else set())
        if parties:
            return party == _creator_of(pool) or parties == {party}
        return is_shared_by(pool, slice_) or may_borrow(pool)

    def _occupied(self, name: PoolName) -> bool:
        return bool(self._parties.get(name))

    def _party(self, slice_id: SliceId | None) -> _Party:
        slice_ = self._round.slices.get(slice_id) if slice_id is not None else None
        return _party_of(slice_) if slice_ is not None and slice_.share is not None else None

    def _is_leaving(self, pod: Pod) -> bool:
        now, until = self._round.now, pod.deletion_deadline
        return until is not None and now - _KILLED_WITHIN < until <= now + _LEAVES_WITHIN


def is_shared_by(pool: Supply, slice_: Slice) -> bool:
    """Whether a pool was created for pods of the namespace of a slice that shares pools."""
    creator = pool.ownership.workload
    is_own = creator.kind is WorkloadKind.POD and creator.namespace == slice_.workload.namespace
    return slice_.share is not None and is_own


def _creator_of(pool: Supply) -> _Party:
    """Return the party of unmarked pods in the namespace that a shared pool was created for; None for other pools."""
    creator = pool.ownership.workload
    return (creator.namespace, "") if creator.kind is WorkloadKind.POD else None


def _party_of(slice_: Slice) -> _Party:
    return slice_.workload.namespace, slice_.mark


def join(
    slices: Iterable[Slice], refused: Container[SliceId] = (), *, by_workload: bool = False
) -> list[tuple[Slice, tuple[Slice, ...]]]:
    """Return the slices to create pools for, each with the other slices that share its pool, in the given order.

    The returned slice has the `parallelism` of all slices that share its pool, so that the pool has a node for each.
    Slices in `refused`, whose pool the scheduler refused, share only with each other. With `by_workload`, only slices
    of one workload share a pool: a limit on pools counts for each workload.
    """
    groups: list[list[Slice]] = []
    last: dict[Hashable, list[Slice]] = {}
    for slice_ in slices:
        key = (slice_.share, slice_.id in refused, slice_.workload.uid if by_workload else None)
        group = last.get(key) if slice_.share is not None else None
        if group is None or len(group) == bounds.SHARED_POOL_NODES:
            group = last[key] = []
            groups.append(group)
        group.append(slice_)
    return [(replace(first, parallelism=1 + len(rest)) if rest else first, tuple(rest)) for first, *rest in groups]


def burst_ends(slices: Sequence[Slice], now: datetime) -> datetime | None:
    """Return the time until which the pool of some slices is delayed; None if it is not delayed.

    The scheduler reports the pods of a burst one after the other, within seconds.
    """
    if slices[0].share is None or len(slices) == bounds.SHARED_POOL_NODES:
        return None
    leaders = [each.leader for each in slices if each.leader is not None]
    times = [_waits_since(pod, pod.unschedulable_since, now) for pod in leaders if pod.unschedulable_since is not None]
    return min(max(times) + _QUIET, min(times) + _BURST) if times else None


def _waits_since(pod: Pod, told: datetime, now: datetime) -> datetime:
    """Return `told`, or the pod's creation if `told` is in the future: the scheduler's clock may be ahead."""
    return told if told <= now else min(pod.created_at, now)
