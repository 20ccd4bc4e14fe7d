"""Decides whether a pool suits a slice, by the specifications of both and by the nodes of the pool. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import accumulate

from provisioner import constants
from provisioner.model.capacity import CapacityKind, PoolName
from provisioner.model.fit import NodeView, misfit
from provisioner.model.fits import Fits
from provisioner.model.placement import MARKS, labels_of
from provisioner.settings.node_fields import own_settings
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.round import OwnedPool


class Refusal(Enum):
    """Reason for which a slice may not count on a pool (`Matcher.why_not`)."""

    HAS_POOL = "has_pool"
    #: The slices of the workload start together, and wait for their turn or can never all start.
    TURN = "turn"
    #: The pods select the labels of a slice in another namespace, or labels of no valid slice.
    FORGED = "forged"
    #: The slice does not wait for a pool, and has no tie to this pool (`Matcher._ties`).
    NOT_WAITING = "not_waiting"
    #: The slice has ended, is refused by the scheduler, or counted on ready pools too long without a bound pod.
    EXPIRED = "expired"
    #: The pool has failed or is being deleted, its reservation has ended, or its status is unknown.
    UNUSABLE = "unusable"
    CLAIMED = "claimed"
    IN_USE = "in_use"
    #: The pool may be in use although it looks idle: its workload is not watched, or its machine type is unknown.
    UNDECIDED = "undecided"
    #: Maintenance is announced, the reservation ends soon, or the nodes do not become ready.
    NOT_LENDABLE = "not_lendable"
    #: All nodes of the pool exist, but the pods of the slice run on nodes of no known pool.
    ELSEWHERE = "elsewhere"
    HOST = "host"
    #: The pool has the wrong topology or number of hosts, or is for another child Job; or there is a `shape_problem`.
    SIZE = "size"
    #: The specification of the pool, or too many of its nodes, do not fit the pods.
    MISFIT = "misfit"
    #: The flex-start pool has no nodes, and gets nodes only for pods with other marks.
    NO_NODES = "no_nodes"
    SETTINGS = "settings"
    #: All pools of the workload must be in one zone, and this pool is in another zone.
    ZONE = "zone"
    LIMIT = "limit"


def why_unfit(slice_: Slice, pool: OwnedPool) -> Refusal | None:
    """Return why the specification of a pool does not suit a slice, None if it does.

    Taints of existing nodes are not compared. If another controller adds a taint to every new node, the slice has to
    keep its pool and be reported as stuck; otherwise one pool after the other would be created.
    """
    refusal = why_wrong_kind(slice_, pool)
    if refusal is None and misfit(slice_.requirements, pool.largest):
        return Refusal.MISFIT
    return refusal


def why_wrong_kind(slice_: Slice, pool: OwnedPool) -> Refusal | None:
    """Return why a pool's hosts, topology, child Job or missing nodes do not suit a slice; None if they do."""
    if slice_.host and all(node.name != slice_.host for node in pool.nodes):
        return Refusal.HOST
    if not _is_right_size(pool, slice_):
        return Refusal.SIZE
    return None if _grows_for(pool, slice_) else Refusal.NO_NODES


def settings_of_pool(pool: OwnedPool) -> str:
    """Return the node settings chosen by the pods that the pool was created for, in the form of `settings_of`."""
    return pool.pool.labels.get(constants.POOL_OWN_SETTINGS, "")


def bits_by_settings(pools: Iterable[tuple[OwnedPool, int]]) -> Mapping[str, int]:
    """Return the bit mask of all pools with equal node settings, by these settings; `pools` has each pool's mask."""
    bits_of: dict[str, int] = defaultdict(int)
    for pool, bits in pools:
        bits_of[settings_of_pool(pool)] |= bits
    return bits_of


def settings_of(slice_: Slice) -> str:
    """Return the node settings that the pods of a slice chose; equal settings give equal texts."""
    return own_settings(slice_.requirements.annotations, slice_.requirements.node_selector)


def growing_marks(pools: Iterable[OwnedPool]) -> Collection[Hashable]:
    """Return the marks of the flex-start pools that get nodes only for pods with the same marks (`_grows_for`)."""
    return {_marks(pool.pool.labels) for pool in pools if _must_grow(pool)}


def kept_for(slice_: Slice, growing: Collection[Hashable]) -> Hashable:
    """Return the child Job that a slice selects, and the marks of the slice if they are in `growing`."""
    wanted = _marks_wanted(slice_) if growing else ()
    return slice_.requirements.node_selector.get(constants.NAMESPACED_JOB), wanted if wanted in growing else ()


class FreePools:
    """Pools, best first, with an index that finds the pools whose nodes fit the pods of a slice."""

    def __init__(
        self, free: Iterable[OwnedPool], specified: Callable[[OwnedPool], NodeView] = lambda pool: pool.view
    ) -> None:
        pools = sorted(free, key=lambda pool: (not pool.ready, pool.pool.hosts, pool.name))
        self._fits = Fits([*map(specified, pools), *(view for pool in pools for view in pool.offered)])
        ends = accumulate((len(pool.offered) for pool in pools), initial=len(pools))
        self._pools = pools
        #: Positions in `_fits` of each pool's expected node and first existing node, and a mask of the existing nodes.
        self._places = {
            pool.name: (place, start, (1 << len(pool.offered)) - 1)
            for place, (pool, start) in enumerate(zip(pools, ends, strict=False))
        }
        self._fitting: dict[SliceId, int] = {}
        self._removed = 0
        self._by_settings = bits_by_settings((pool, 1 << place) for place, pool in enumerate(pools))
        self._by_hosts: dict[int, int] = defaultdict(int)
        for place, pool in enumerate(pools):
            self._by_hosts[pool.pool.hosts] |= 1 << place
        self._alike: dict[Hashable, int] = {}
        self._most_hosts = max((pool.pool.hosts for pool in pools), default=0)
        self._hosts = {node.name for pool in pools for node in pool.nodes}
        self.growing = growing_marks(pools)

    def fitting(self, slice_: Slice) -> int:
        """Return a bit mask of nodes that fit a slice's pods: first one expected node per pool, then existing nodes."""
        fitting = self._fitting.get(slice_.id)
        if fitting is None:
            fitting = self._fitting[slice_.id] = self._fits.fitting(slice_.requirements)
        return fitting

    def specified(
        self, slice_: Slice, chosen: str | None, refused: Container[PoolName] = (), *, exact: bool = False
    ) -> Iterator[OwnedPool]:
        """Yield the pools that `why_wrong_kind` and the specification of their nodes allow for a slice, best first.

        Pools in `refused` are left out; with `chosen`, also pools with other node settings; with `exact`, also pools
        with another number of hosts than the slice needs.
        """
        candidates = self.fitting(slice_) & ~self._removed
        candidates &= self._by_settings.get(chosen, 0) if chosen is not None else candidates
        candidates &= self._by_hosts.get(slice_.nodes, 0) if exact else candidates
        candidates &= self._of_kind(slice_) if candidates else 0
        while candidates:
            lowest = candidates & -candidates
            pool = self._pools[lowest.bit_length() - 1]
            if pool.name not in refused:
                yield pool
            candidates ^= lowest

    def remove(self, pool: OwnedPool) -> None:
        """Exclude a pool from later calls of `specified`."""
        self._removed |= 1 << self._places[pool.name][0]

    def _of_kind(self, slice_: Slice) -> int:
        """Return a bit mask of the pools that `why_wrong_kind` accepts; equal slices share the result."""
        # Equal slices have the same shape object. Unknown hosts, and sizes above all pools, have one value each.
        nodes = min(slice_.nodes, self._most_hosts + 1)
        host = slice_.host if slice_.host in self._hosts else bool(slice_.host)
        key = id(slice_.shape), nodes, host, slice_.workload.kind.has_pods, kept_for(slice_, self.growing)
        if key not in self._alike:
            right = (place for place, pool in enumerate(self._pools) if why_wrong_kind(slice_, pool) is None)
            self._alike[key] = sum(1 << place for place in right)
        return self._alike[key]

    def has_hosts(self, pool: OwnedPool, slice_: Slice) -> bool:
        """Whether a pool's specification and enough of its hosts fit a slice. Hosts without a node count as fitting."""
        (place, start, nodes), fitting = self._places[pool.name], self.fitting(slice_)
        return bool(fitting >> place & 1) and (fitting >> start & nodes).bit_count() + pool.missing >= slice_.nodes


def _is_right_size(pool: OwnedPool, slice_: Slice) -> bool:
    shape, job = slice_.shape, pool.view.labels.get(constants.NAMESPACED_JOB)
    # The taint of a child Job's pool does not suffice, because some pods tolerate every taint.
    if job is not None and slice_.requirements.node_selector.get(constants.NAMESPACED_JOB) != job:
        return False
    if shape is None or pool.pool.topology != str(shape.topology):
        return False
    # A request or buffer would keep the hosts that it does not need, without a time limit.
    if shape.multi_host or not slice_.workload.kind.has_pods:
        return pool.pool.hosts == slice_.nodes
    return pool.pool.hosts >= slice_.nodes


def _grows_for(pool: OwnedPool, slice_: Slice) -> bool:
    # The cluster autoscaler adds nodes to a flex-start pool only for pods that fit the labels of its create request.
    return not _must_grow(pool) or _marks(pool.pool.labels) == _marks_wanted(slice_)


def _must_grow(pool: OwnedPool) -> bool:
    needs_pods = pool.rules.flex_start_needs_pods and pool.pool.capacity is CapacityKind.FLEX_START
    return needs_pods and not pool.nodes


def _marks_wanted(slice_: Slice) -> tuple[str | None, ...] | None:
    if not slice_.workload.kind.has_pods:
        return None
    return _marks(labels_of(slice_.mark, slice_.workload.namespace) if slice_.mark else {})


def _marks(labels: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(map(labels.get, MARKS))
