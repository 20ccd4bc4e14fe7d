"""Which waiting pod gets its partition where, now: oldest first, with backfill that never delays an older pod.

Each pod, oldest first, is promised the earliest start that the deadlines of those that hold IPUs, and the promises of
older pods, allow; one whose start is now is placed. So what a pod is promised never depends on a younger one: a younger
one passes only where all that older ones are promised stays as it is. (Conservative backfill. Deadlines are
activeDeadlineSeconds; a pod that ends before its own may make room that a younger one has taken by right.)

Who has no deadline never ends, so nothing can be promised to a pod that needs such a one to go. It might go at any
moment, and nobody younger may take anything in any allocation that the pod could use. So it does not starve.

Which IPUs are free the servers do not tell. A pod that finds no room in an allocation because what is free lies apart
is promised nothing there: by deadlines, it has no room before the first partition in it goes, and may have it then,
wherever the partitions lie. So younger ones that are gone by then may pass, and nobody else.

Before its server has answered nobody knows that either. A pod is placed only where all those surely have room that are
tried there and not answered yet; until then nobody younger is placed there. So what is unsure is tried alone, and the
older one is never refused for what a younger one took meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.alignment import surely_fits
from provisioner.partitions.planning.guard import Guard
from provisioner.partitions.planning.memory import Crowding, Site
from provisioner.partitions.planning.profile import SOON_SECONDS, Profile
from provisioner.partitions.planning.queue import Candidate
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.supply import SiteSupply

#: So many pods that have to wait are looked at, oldest first. Where one further back waits, nobody passes: each makes
#: the next one dearer.
MOST_WAITING = 128
ANY_NAMESPACE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who is served now, and what the others wait for as far as it was looked into."""

    placed: tuple[tuple[Pod, Site], ...] = ()
    #: By UID: in how many seconds a pod has its partition at the latest.
    promised: Mapping[str, float] = field(default_factory=dict)
    #: UIDs of pods whose namespace has all that it may have.
    limited: frozenset[str] = frozenset()


class _Ground:
    """One allocation while places are given."""

    def __init__(self, supply: SiteSupply, crowding: Crowding | None) -> None:
        self.site = supply.site
        #: Who was crowded out is tried again here: what else is free is left to it, or it would never have enough.
        self.open = crowding is None or all(size < crowding.size for size in supply.trials)
        #: An allocation of unknown size takes one at a time; the server says whether there is room.
        self._one = supply.total is None
        self._taken = self._one and bool(supply.trials)
        self._crowded_at = crowding.size if crowding is not None and crowding.holds else None
        holders = (*supply.ours, *supply.others)
        self._total = supply.total or 0
        self._profile = Profile(self._total, holders)
        #: How many partitions of each size there are.
        self._held = Counter(holder.ipus for holder in holders)
        #: Sizes of those that the server has yet to find a place for.
        self._unanswered = set(supply.unanswered)
        #: When the first partition may go, by their deadlines; 0: at any moment, for one has none.
        ends = [holder.ends_in_seconds for holder in holders]
        self._first_end = min(ends, default=inf) if inf not in ends else 0.0

    @property
    def has_room(self) -> bool:
        """Whether anybody could be placed."""
        return self.open and (not self._taken if self._one else self._profile.free_now > 0)

    def is_crowded_for(self, ipus: int) -> bool:
        """Whether so many are not to be had in one place, whatever the sum of what is free."""
        return self._crowded_at is not None and ipus >= self._crowded_at

    def earliest(self, ipus: int, seconds: float) -> float:
        if self.is_crowded_for(ipus) or self.hangs_on_answers(ipus, seconds):
            return inf
        if self._one:
            return inf if self._taken else 0.0
        return self._profile.earliest(ipus, seconds)

    def is_sure(self, ipus: int) -> bool:
        """Whether the server surely finds a place for so many."""
        return not self._one and surely_fits(ipus, self._held + Counter((ipus,)), self._total)

    def hangs_on_answers(self, ipus: int, seconds: float) -> bool:
        """Whether there is room by count, and it might be what another one is being tried on."""
        if self._one or not self._unanswered or self._profile.free_now < ipus:
            return False
        held = self._held + Counter((ipus,))
        if all(surely_fits(size, held, self._total) for size in self._unanswered):
            return False
        return self._profile.earliest(ipus, seconds) == 0.0

    def rest(self, ipus: int) -> float:
        """Return what is left after so many are taken now: the less, the better it fits."""
        return inf if self._one else self._profile.free_now - ipus

    def take(self, ipus: int, start: float, seconds: float) -> None:
        if self._one:
            self._taken = True
        else:
            self._profile.take(ipus, start, seconds)
        if start == 0.0:
            self._held[ipus] += 1
            self._unanswered.add(ipus)
            self._first_end = min(self._first_end, seconds if seconds < inf else 0.0)

    def leave(self, ipus: int, seconds: float) -> None:
        """Leave all to a pod that cannot be promised anything here.

        It cannot start before a partition goes, unless it only waits for answers.
        """
        if self._one or self._first_end <= SOON_SECONDS or self.hangs_on_answers(ipus, seconds):
            self.open = False
        else:
            self._profile.close(self._first_end)


def schedule(
    queue: Iterable[Candidate],
    supply: Mapping[Site, SiteSupply],
    crowding: Mapping[Site, Crowding],
    used: Mapping[str, int],
    settings: PlanningSettings,
    guard: Guard,
) -> Schedule:
    """Place whom can be placed. `used` has the IPUs of each namespace that has any."""
    places = _Places(
        grounds={site: _Ground(each, crowding.get(site)) for site, each in supply.items()},
        limits=_Limits(used, settings.namespace_limits),
        settings=settings,
    )
    for candidate in queue:
        if not any(ground.has_room for ground in places.grounds.values()):
            break
        guard.run(f"pod {candidate.pod.uid}", partial(places.serve, candidate), None)
    return Schedule(placed=tuple(places.placed), promised=places.promised, limited=frozenset(places.limits.aside))


@dataclass(slots=True, kw_only=True)
class _Places:
    """Places while they are given."""

    grounds: Mapping[Site, _Ground]
    limits: _Limits
    settings: PlanningSettings
    placed: list[tuple[Pod, Site]] = field(default_factory=list)
    promised: dict[str, float] = field(default_factory=dict)
    #: How many of those that were looked at are not placed.
    waiting: int = 0

    def serve(self, candidate: Candidate) -> None:
        """Give a pod its place, or a promise; or else see to it that nobody younger is in its way."""
        pod = candidate.pod
        if candidate.aside or not self.limits.claim(pod):
            return
        mine = [ground for site in candidate.sites if (ground := self.grounds[site]).open]
        if not mine:
            return
        shortest, longest = _holds_seconds(pod, self.settings)
        start, _, _, _, ground = min(
            (
                (each.earliest(pod.size, longest), not each.is_sure(pod.size), each.rest(pod.size), each.site, each)
                for each in mine
            ),
            key=lambda choice: choice[:4],
        )
        if start == 0.0:
            ground.take(pod.size, start, shortest)
            self.placed.append((pod, ground.site))
            return
        self.waiting += 1
        if self.waiting > MOST_WAITING:
            for each in mine:
                each.open = False
        elif start == inf:
            for each in mine:
                each.leave(pod.size, longest)
        else:
            ground.take(pod.size, start, shortest)
            self.promised[pod.uid] = start
            for each in mine:
                if each.is_crowded_for(pod.size) or each.hangs_on_answers(pod.size, longest):
                    each.leave(pod.size, longest)


def _holds_seconds(pod: Pod, settings: PlanningSettings) -> tuple[float, float]:
    """Return for how long a pod holds its partition by its deadline: what those after it may hope for, and at most."""
    if pod.active_deadline_seconds is None:
        return inf, inf
    shortest = pod.active_deadline_seconds
    return shortest, shortest + pod.grace_seconds + settings.backfill_allowance_seconds


class _Limits:
    """What namespaces may have.

    A pod that waits has its share of the limit already, so that none of its namespace that is younger takes it away.
    """

    def __init__(self, used: Mapping[str, int], limits: Mapping[str, int]) -> None:
        self._used, self._limits = dict(used), limits
        self._full: set[str] = set()
        #: UIDs.
        self.aside: set[str] = set()

    def claim(self, pod: Pod) -> bool:
        """Take a pod's share; False where there is none, and it stands aside."""
        namespace = pod.namespace
        limit = self._limits.get(namespace, self._limits.get(ANY_NAMESPACE))
        if limit is None:
            return True
        used = self._used.get(namespace, 0)
        if namespace in self._full or used + pod.size > limit:
            self.aside.add(pod.uid)
            if pod.size <= limit:
                # The next of them would take what it waits for.
                self._full.add(namespace)
            return False
        self._used[namespace] = used + pod.size
        return True
