"""Which waiting pod gets its partition where, now: oldest first, with backfill that never delays an older pod.

Each pod, oldest first, is promised the earliest start that the deadlines of those that hold IPUs, and the promises of
older pods, allow; one whose start is now is placed. So what a pod is promised never depends on a younger one: a younger
one passes only where all that older ones are promised stays as it is: it is gone by then, or the older one surely finds
a place beside it, wherever all of them lie. (Conservative backfill. Deadlines are activeDeadlineSeconds; a pod that
ends before its own may make room that a younger one has taken by right.)

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ground import Asked, Ground
from provisioner.partitions.planning.guard import Guard
from provisioner.partitions.planning.memory import Crowding, Site
from provisioner.partitions.planning.queue import Candidate
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.supply import SiteSupply, hold_of

#: So many pods that have to wait are looked at, oldest first. Where one further back waits, nobody passes: each makes
#: the next one dearer.
MOST_WAITING = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who is served now, and what the others wait for as far as it was looked into."""

    placed: tuple[tuple[Pod, Site], ...] = ()
    #: By UID: in how many seconds a pod has its partition at the latest.
    promised: Mapping[str, float] = field(default_factory=dict)
    #: UIDs of pods whose namespace has all that it may have.
    limited: frozenset[str] = frozenset()


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
        grounds={site: Ground(each, crowding.get(site)) for site, each in supply.items()},
        limits=_Limits(used, settings),
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

    grounds: Mapping[Site, Ground]
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
        mine = [ground for site in candidate.sites if (ground := self.grounds.get(site)) is not None and ground.open]
        if not mine:
            return
        asked = Asked(ipus=pod.size, hold=hold_of(pod, self.settings), order=pod.order, created_at=pod.created_at)
        starts = {each.site: each.earliest(asked) for each in mine}
        best = sorted(
            mine, key=lambda each: (starts[each.site], not each.is_sure(pod.size), each.rest(pod.size), each.site)
        )
        ground = best[0]
        start = starts[ground.site]
        if start == 0.0:
            ground.place(asked)
            self.placed.append((pod, ground.site))
            return
        self.waiting += 1
        if self.waiting > MOST_WAITING:
            for each in mine:
                each.open = False
        elif start == inf:
            for each in mine:
                each.leave(asked)
        else:
            self.promised[pod.uid] = start
            # Until it surely has a place in one, it may have its first in any of them.
            sure = inf
            for each in best:
                if starts[each.site] >= sure:
                    break
                surely = each.surely(asked, starts[each.site])
                each.promise(asked, starts[each.site], surely)
                sure = min(sure, surely)
            for each in mine:
                if each.is_crowded_for(pod.size) or each.hangs_on_answers(asked):
                    each.leave(asked)


class _Limits:
    """What namespaces may have.

    A pod that waits has its share of the limit already, so that none of its namespace that is younger takes it away.
    """

    def __init__(self, used: Mapping[str, int], settings: PlanningSettings) -> None:
        self._used, self._settings = dict(used), settings
        self._full: set[str] = set()
        #: UIDs.
        self.aside: set[str] = set()

    def claim(self, pod: Pod) -> bool:
        """Take a pod's share; False where there is none, and it stands aside."""
        namespace = pod.namespace
        limit = self._settings.limit_of(namespace)
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
