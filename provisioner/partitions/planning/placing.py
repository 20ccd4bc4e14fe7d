"""Decides which waiting pods get a partition now, and in which allocation: EASY backfill, as in Slurm and Maui.

Pods are served in the order of the queue. The first pod that cannot start usually gets a reservation on one allocation.
The shadow time of an allocation is when enough IPUs for this pod are free, by the deadlines (activeDeadlineSeconds) of
the pods there. The allocation with the earliest shadow time is reserved; without deadlines, the allocation with the
most free IPUs. A later pod gets IPUs of a reserved allocation only if it ends by the shadow time, or if the reservation
leaves enough IPUs. A pod that can use no reserved allocation may get a reservation on another allocation.
A server may reject a partition although enough IPUs are free. Then the shadow time is not before the first end of
another partition in the allocation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.queue import Candidate, SiteSupply, Wait, deadline_of, longest_of
from provisioner.partitions.planning.round import Guard
from provisioner.settings.partitions import PartitionSettings

#: Minimum shadow time in seconds, for IPUs that may become free at any moment.
SOON_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Pods that get a partition now, and pods that wait with a reservation or because of a limit."""

    placed: tuple[tuple[Pod, Site], ...] = ()
    #: Shadow times, in seconds from now, of pods with a reservation, by UID; infinite if unknown.
    shadows: Mapping[str, float] = field(default_factory=dict)
    #: UIDs of pods that wait because of the limit of their namespace.
    limited: frozenset[str] = frozenset()
    #: Namespaces of the pods in `limited`.
    full: frozenset[str] = frozenset()


def schedule(
    queue: Iterable[Candidate],
    supply: Mapping[Site, SiteSupply],
    used: Mapping[str, int],
    settings: PartitionSettings,
    guard: Guard,
) -> Schedule:
    """Place pods in the order of the queue. `used` has the number of used IPUs by namespace."""
    grounds = {site: _Ground(site_supply) for site, site_supply in supply.items()}
    places = _Places(grounds=grounds, used=dict(used), settings=settings)
    for candidate in queue:
        if places.shadows and not any(ground.has_room for ground in places.grounds.values()):
            break
        guard.run(f"pod {candidate.pod.uid}", partial(places.serve, candidate), None)
    limited, full = frozenset(places.limited), frozenset(places.full)
    return Schedule(placed=tuple(places.placed), shadows=places.shadows, limited=limited, full=full)


class _Ground:
    def __init__(self, supply: SiteSupply) -> None:
        self.supply = supply
        #: Whether the number of IPUs is unknown. Then creates are tried one at a time.
        self.one = supply.total is None
        self.free = supply.free
        self._taken = self.one and bool(supply.trying)
        self.closed = bool(supply.refused & supply.trying)
        self._ends = [(seconds, ipus) for ipus, seconds in supply.ours if seconds < inf]
        #: Shadow time in seconds of the reservation, and IPUs that the reservation leaves; None if not reserved.
        self.reserved: tuple[float, int] | None = None

    @property
    def has_room(self) -> bool:
        if self.closed or (self.reserved is not None and self.reserved[0] == inf):
            return False
        return not self._taken if self.one else self.free > 0

    def takes(self, ipus: int, longest_seconds: float) -> bool:
        if not self.has_room or ipus >= self.supply.crowded_from or not (self.one or ipus <= self.free):
            return False
        return self.reserved is None or longest_seconds <= self.reserved[0] or ipus <= self.reserved[1]

    def take(self, ipus: int, deadline_seconds: float, longest_seconds: float) -> None:
        self._taken = True
        self.free -= ipus
        self._ends.append((deadline_seconds, ipus))
        if self.reserved is not None and longest_seconds > self.reserved[0]:
            self.reserved = (self.reserved[0], self.reserved[1] - ipus)

    def shadow(self, ipus: int) -> tuple[float, int]:
        """Return the shadow time in seconds (infinite if unknown), and the IPUs that a reservation would leave."""
        crowded, free = ipus >= self.supply.crowded_from, self.free
        if free >= ipus and not crowded:
            return SOON_SECONDS, 0
        for end, more in sorted(self._ends) if not self.one else ():
            free += more
            if free >= ipus and end < inf:
                return max(end, SOON_SECONDS), 0 if crowded else free - ipus
        return inf, 0

    def may_be_kept(self, ipus: int, shadow_seconds: float) -> bool:
        """Return False if the size may never fit, or was rejected for `crowded_seconds` with unknown shadow time."""
        return ipus < self.supply.never_from and (ipus < self.supply.tired_from or shadow_seconds < inf)


@dataclass(slots=True, kw_only=True)
class _Places:
    grounds: Mapping[Site, _Ground]
    #: Used IPUs by namespace. Reserved IPUs count as used, so that later pods of the namespace do not use up its limit.
    used: dict[str, int]
    settings: PartitionSettings
    placed: list[tuple[Pod, Site]] = field(default_factory=list)
    shadows: dict[str, float] = field(default_factory=dict)
    limited: set[str] = field(default_factory=set)
    #: Namespaces in which a pod waits because of the limit. Later pods of these namespaces also wait.
    full: set[str] = field(default_factory=set)

    def serve(self, candidate: Candidate) -> None:
        """Place a pod that may start now. Another waiting pod may get a reservation."""
        pod = candidate.pod
        if candidate.wait is not Wait.QUEUE or not self.may_have(pod):
            return
        longest_seconds = longest_of(pod, self.settings)
        mine = {site: ground for site in candidate.sites if (ground := self.grounds.get(site)) is not None}
        fitting = [(ground.free, site) for site, ground in mine.items() if ground.takes(pod.size, longest_seconds)]
        if fitting:
            # Best fit: the fewest free IPUs. Allocations whose number of IPUs is unknown come last.
            site = min(fitting, key=lambda pair: (self.grounds[pair[1]].one, *pair))[1]
            mine[site].take(pod.size, deadline_of(pod), longest_seconds)
            mine[site].closed = pod.uid in mine[site].supply.refused
            self._count(pod)
            self.placed.append((pod, site))
            return
        # A pod that has lost its partition gets no reservation, so that it does not delay other pods.
        if pod.partition_annotation or any(ground.reserved is not None for ground in mine.values()):
            return
        shadows = {site: ground.shadow(pod.size) for site, ground in mine.items()}
        holding = [site for site, shadow in shadows.items() if mine[site].may_be_kept(pod.size, shadow[0])]
        if holding:
            best = min(holding, key=lambda site: (shadows[site][0], -mine[site].free, site))
            self._count(pod)
            mine[best].reserved = shadows[best]
            self.shadows[pod.uid] = shadows[best][0]

    def may_have(self, pod: Pod) -> bool:
        """Return whether the limit of the namespace allows the pod; if not, record the pod and the namespace."""
        namespace, limit = pod.namespace, self.settings.limit_of(pod.namespace)
        if limit is None:
            return True
        if namespace not in self.full and self.used.get(namespace, 0) + pod.size <= limit:
            return True
        self.limited.add(pod.uid)
        self.full.add(namespace)
        return False

    def _count(self, pod: Pod) -> None:
        self.used[pod.namespace] = self.used.get(pod.namespace, 0) + pod.size
