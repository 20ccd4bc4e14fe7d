"""Which waiting pod gets its partition where, now: EASY backfill, as in Slurm and Maui.

Pods are served in the order of the queue. The first that cannot start now has a reservation on the allocation where
enough IPUs are free first by the activeDeadlineSeconds of those that have them (its shadow time), or, where no
deadlines tell one, on that with the most free IPUs. A younger pod gets IPUs there only if it is gone by then, or takes
none that the reservation needs. A pod that may use none but other allocations has a reservation there.

A server may refuse a partition although the count fits. The pod then has no shadow time before the first partition
there ends; without deadlines it keeps its reservation for `crowded_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.queue import Candidate, SiteSupply, Wait, deadline_of, longest_of
from provisioner.partitions.planning.round import Guard
from provisioner.settings.partitions import PartitionSettings

#: What may end at any moment does not end now.
SOON_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who is served now, and what the others wait for."""

    placed: tuple[tuple[Pod, Site], ...] = ()
    #: By UID of those that have a reservation: in how many seconds they can start by deadlines; infinite: nobody knows.
    shadows: Mapping[str, float] = field(default_factory=dict)
    #: UIDs of pods whose namespace has, or its older pods wait for, all that it may have.
    limited: frozenset[str] = frozenset()
    #: Namespaces of which one waits that the limit allows: others of them have what it may have.
    full: frozenset[str] = frozenset()


def schedule(
    queue: Iterable[Candidate],
    supply: Mapping[Site, SiteSupply],
    used: Mapping[str, int],
    settings: PartitionSettings,
    guard: Guard,
) -> Schedule:
    """Place whom can be placed. `used` has the IPUs of each namespace that has any."""
    grounds = {site: _Ground(each) for site, each in supply.items()}
    places = _Places(grounds=grounds, used=dict(used), settings=settings)
    for candidate in queue:
        if places.shadows and not any(each.has_room for each in places.grounds.values()):
            break
        guard.run(f"pod {candidate.pod.uid}", partial(places.serve, candidate), None)
    limited, full = frozenset(places.limited), frozenset(places.full)
    return Schedule(placed=tuple(places.placed), shadows=places.shadows, limited=limited, full=full)


class _Ground:
    """One allocation while places are given."""

    def __init__(self, supply: SiteSupply) -> None:
        self.supply = supply
        #: An allocation of unknown size takes one at a time; the server says whether there is room.
        self.one = supply.total is None
        self.free = supply.free
        self._taken = self.one and bool(supply.trying)
        self.closed = bool(supply.refused & supply.trying)
        self._ends = [(seconds, ipus) for ipus, seconds in supply.ours if seconds < inf]
        #: The shadow time of the pod that has the reservation here, and how many IPUs it leaves to others then.
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
        """Return when a pod can start by deadlines, and how many IPUs are free beside it then."""
        crowded, free = ipus >= self.supply.crowded_from, self.free
        if free >= ipus and not crowded:
            return SOON_SECONDS, 0
        for end, more in sorted(self._ends) if not self.one else ():
            free += more
            if free >= ipus and end < inf:
                return max(end, SOON_SECONDS), 0 if crowded else free - ipus
        return inf, 0

    def may_be_kept(self, ipus: int, shadow_seconds: float) -> bool:
        """Whether others are held up for so many IPUs, which the server may have refused again and again."""
        return ipus < self.supply.never_from and (ipus < self.supply.tired_from or shadow_seconds < inf)


@dataclass(slots=True, kw_only=True)
class _Places:
    grounds: Mapping[Site, _Ground]
    #: IPUs by namespace, those of reservations too: no younger pod of the namespace takes them away.
    used: dict[str, int]
    settings: PartitionSettings
    placed: list[tuple[Pod, Site]] = field(default_factory=list)
    shadows: dict[str, float] = field(default_factory=dict)
    #: UIDs of pods that wait for the limit of their namespace.
    limited: set[str] = field(default_factory=set)
    #: Namespaces of which one waits that the limit allows: the next of them would take what it waits for.
    full: set[str] = field(default_factory=set)

    def serve(self, candidate: Candidate) -> None:
        """Give a pod its place; or a reservation, if nobody older has one where it may be."""
        pod = candidate.pod
        if candidate.wait is not Wait.QUEUE or not self.may_have(pod):
            return
        longest_seconds = longest_of(pod, self.settings)
        mine = {site: ground for site in candidate.sites if (ground := self.grounds.get(site)) is not None}
        fitting = [(ground.free, site) for site, ground in mine.items() if ground.takes(pod.size, longest_seconds)]
        if fitting:
            # The less is left over, the better it fits.
            site = min(fitting, key=lambda each: (self.grounds[each[1]].one, *each))[1]
            mine[site].take(pod.size, deadline_of(pod), longest_seconds)
            mine[site].closed = pod.uid in mine[site].supply.refused
            self._count(pod)
            self.placed.append((pod, site))
            return
        # One that was told of a partition, and has lost it, has its turn when there is room.
        if pod.told_partition or any(ground.reserved is not None for ground in mine.values()):
            return
        shadows = {site: ground.shadow(pod.size) for site, ground in mine.items()}
        holding = [site for site, shadow in shadows.items() if mine[site].may_be_kept(pod.size, shadow[0])]
        if holding:
            best = min(holding, key=lambda site: (shadows[site][0], -mine[site].free, site))
            self._count(pod)
            mine[best].reserved = shadows[best]
            self.shadows[pod.uid] = shadows[best][0]

    def may_have(self, pod: Pod) -> bool:
        """Whether there is a share for a pod; else it stands aside."""
        namespace, limit = pod.namespace, self.settings.limit_of(pod.namespace)
        if limit is None:
            return True
        if namespace not in self.full and self.used.get(namespace, 0) + pod.size <= limit:
            return True
        self.limited.add(pod.uid)
        if pod.size <= limit:
            self.full.add(namespace)
        return False

    def _count(self, pod: Pod) -> None:
        self.used[pod.namespace] = self.used.get(pod.namespace, 0) + pod.size
