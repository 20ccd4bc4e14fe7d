"""Measures the share of IPUs in use with the real planning, and with planners that know more or keep no order.

Partitions are created and removed without delay, so that only the choice of pods counts. They are placed as on the
simulated server: contiguous, aligned to their size, at the lowest position. All pods exist from the start, oldest
first. Shares are of the time in which at least one pod waits.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from math import inf
from typing import Protocol

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.placing import SOON_SECONDS, schedule
from provisioner.partitions.planning.queue import Candidate, SiteSupply, Wait
from provisioner.partitions.planning.round import Guard
from provisioner.settings.partitions import PartitionSettings

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SETTINGS = PartitionSettings(servers=())
_PODS = 500
_SHORTEST_SECONDS, _LONGEST_SECONDS = 120.0, 1200.0
#: Number of pods at the head of the queue that get a promised start.
_MAX_PROMISES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pod."""

    ipus: int
    runs_seconds: float
    #: Run time in seconds that planners may assume; infinite if the pod has no deadline.
    deadline_seconds: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Pods and allocations of one measurement."""

    name: str
    #: Sizes of partitions, with their weights.
    sizes: Mapping[int, int]
    allocations: tuple[int, ...]
    #: Deadline of all pods as a multiple of their run time; infinite if they have none.
    slack: float = inf

    def jobs(self, count: int) -> list[Job]:
        """Return random pods, which are the same in each call."""
        rng, found = random.Random(17), []
        for _ in range(count):
            seconds = rng.uniform(_SHORTEST_SECONDS, _LONGEST_SECONDS)
            (ipus,) = rng.choices(list(self.sizes), weights=list(self.sizes.values()))
            found.append(Job(ipus=ipus, runs_seconds=seconds, deadline_seconds=seconds * self.slack))
        return found


_TO_4 = {1: 50, 2: 30, 4: 20}
_TO_16 = {1: 30, 2: 25, 4: 20, 8: 15, 16: 10}
_TO_64 = {1: 30, 2: 25, 4: 20, 8: 12, 16: 8, 32: 4, 64: 1}
_LOADS = (
    Load(name="1 to 4 IPUs, no deadlines", sizes=_TO_4, allocations=(64,)),
    Load(name="1 to 16 IPUs, no deadlines", sizes=_TO_16, allocations=(64,)),
    Load(name="1 to 16 IPUs, deadlines", sizes=_TO_16, allocations=(64,), slack=1.25),
    Load(name="1 to 16 IPUs, deadlines", sizes=_TO_16, allocations=(16,) * 4, slack=1.25),
    Load(name="1 to 64 IPUs, deadlines", sizes=_TO_64, allocations=(64,), slack=1.25),
    Load(name="1 to 4 IPUs, deadlines", sizes=_TO_4, allocations=(4,) * 16, slack=1.25),
)


def measure(say: Callable[..., None]) -> None:
    """Report the shares of all planners, for each load."""
    for load in _LOADS:
        jobs = load.jobs(_PODS)
        where = " + ".join(map(str, load.allocations)) if len(load.allocations) < 5 else f"{len(load.allocations)} x 4"
        say(f"{load.name}, allocations of {where}: ours", f"{ours(jobs, load.allocations):.1%}")
        say("  the same rule, if servers told which IPUs are free", f"{seeing(jobs, load.allocations):.1%}")
        say("  the same rule, run times and places known in advance", f"{foreknown(jobs, load.allocations):.1%}")
        say("  without the rule", f"{unordered(jobs, load.allocations):.1%}")


@dataclass(frozen=True, slots=True)
class _Space:
    """All IPUs, and the periods in which they are taken."""

    allocations: Sequence[int]
    #: Periods in seconds, from start to end, by IPU.
    taken: list[list[tuple[float, float]]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "taken", [[] for _ in range(sum(self.allocations))])

    def places(self, ipus: int) -> list[int]:
        """Return the positions at which partitions of a size may begin."""
        found: list[int] = []
        offset = 0
        for allocation in self.allocations:
            found += range(offset, offset + allocation - ipus + 1, ipus)
            offset += allocation
        return found

    def earliest(self, ipus: int, seconds: float) -> tuple[float, int]:
        """Return the earliest time at which a position is free for `seconds`, and the lowest such position."""
        found = (inf, 0)
        for place in self.places(ipus):
            start = self._earliest_at(place, ipus, seconds)
            if start == 0.0:
                return start, place
            found = min(found, (start, place))
        return found

    def _earliest_at(self, place: int, ipus: int, seconds: float) -> float:
        start = 0.0
        spans = {span for ipu in self.taken[place : place + ipus] for span in ipu}
        for begin, end in sorted(spans) if len(spans) > 1 else spans:
            if begin >= start + seconds:
                break
            start = max(start, end)
        return start

    def lowest(self, at: int, ipus: int) -> int | None:
        """Return the lowest position in an allocation that is free now; None if there is no such position."""
        offset = sum(self.allocations[:at])
        places = range(offset, offset + self.allocations[at] - ipus + 1, ipus)
        return next((place for place in places if not any(self.taken[place : place + ipus])), None)

    def allocation_of(self, place: int) -> int:
        """Return the number of the allocation that contains an IPU."""
        return bisect_right(list(accumulate(self.allocations)), place)

    def take(self, place: int, ipus: int, start: float, seconds: float) -> None:
        """Take IPUs for `seconds` from the time `start`."""
        for ipu in self.taken[place : place + ipus]:
            ipu.append((start, start + seconds))


def ours(jobs: Sequence[Job], allocations: Sequence[int]) -> float:
    """Return the share of the real planning. A server rejects its creates if the free IPUs are not contiguous."""
    return _play(jobs, _Planning(jobs, allocations))


def foreknown(jobs: Sequence[Job], allocations: Sequence[int]) -> float:
    """Return the share if all run times and positions are known in advance, and younger pods delay no older one.

    Each pod, oldest first, starts as early as the older pods allow.
    """
    space = _Space(allocations)
    starts = []
    for job in jobs:
        start, place = space.earliest(job.ipus, job.runs_seconds)
        space.take(place, job.ipus, start, job.runs_seconds)
        starts.append(start)
    last = max(starts)
    used = sum(max(0.0, min(end, last) - begin) for ipu in space.taken for begin, end in ipu)
    return used / last / len(space.taken)


def seeing(jobs: Sequence[Job], allocations: Sequence[int]) -> float:
    """Return the share if only deadlines are known, not run times, and the free IPUs are known.

    Younger pods delay no older one. Without deadlines, no pod overtakes: it might occupy the position that is free
    first.
    """
    return _play(jobs, _Seeing(allocations, ordered=True))


def unordered(jobs: Sequence[Job], allocations: Sequence[int]) -> float:
    """Return the share if every pod that fits starts at once, so that large pods wait while small pods exist."""
    return _play(jobs, _Seeing(allocations, ordered=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    job: Job
    number: int
    #: Lowest IPU of its partition.
    place: int
    deadline: float


class _Scheduler(Protocol):
    @property
    def allocations(self) -> Sequence[int]:
        """Numbers of IPUs by allocation."""
        ...

    def start(self, waiting: Mapping[int, Job], running: Sequence[_Running], now: float) -> dict[int, int]:
        """Return the lowest IPU of each pod that starts now, by the number of the pod."""
        ...


def _play(jobs: Sequence[Job], scheduler: _Scheduler) -> float:
    waiting, now, used = dict(enumerate(jobs)), 0.0, 0.0
    ends: list[tuple[float, int]] = []
    running: dict[int, _Running] = {}
    while True:
        for number, place in scheduler.start(waiting, tuple(running.values()), now).items():
            job = waiting.pop(number)
            running[number] = _Running(job=job, number=number, place=place, deadline=now + job.deadline_seconds)
            heapq.heappush(ends, (now + job.runs_seconds, number))
        if not waiting:
            return used / now / sum(scheduler.allocations)
        then = ends[0][0]
        used += (then - now) * sum(pod.job.ipus for pod in running.values())
        now = then
        while ends and ends[0][0] <= now:
            del running[heapq.heappop(ends)[1]]


@dataclass(frozen=True, slots=True)
class _Seeing:
    allocations: Sequence[int]
    ordered: bool

    def start(self, waiting: Mapping[int, Job], running: Sequence[_Running], now: float) -> dict[int, int]:
        space = _Space(self.allocations)
        for pod in running:
            space.take(pod.place, pod.job.ipus, 0.0, max(pod.deadline - now, SOON_SECONDS))
        found: dict[int, int] = {}
        promised, too_large = 0, inf
        free = sum(not ipu for ipu in space.taken)
        for number, job in waiting.items():
            if not free:
                break
            if job.ipus >= too_large:
                continue
            start, place = space.earliest(job.ipus, job.deadline_seconds)
            if start == 0.0:
                found[number] = place
                free -= job.ipus
            elif not self.ordered:
                too_large = job.ipus
                continue
            elif start == inf or promised == _MAX_PROMISES:
                break
            else:
                promised += 1
            space.take(place, job.ipus, start, job.deadline_seconds)
        return found


@dataclass(slots=True)
class _Planning:
    """The real planning, for the allocations of one server."""

    jobs: Sequence[Job]
    allocations: Sequence[int]
    #: Size of the last rejected create, and the pods that ran at that time, by allocation.
    refused: dict[int, tuple[float, frozenset[int]]] = field(default_factory=dict)
    _candidates: list[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        self._candidates = [self._candidate(number, job) for number, job in enumerate(self.jobs)]

    def _candidate(self, number: int, job: Job) -> Candidate:
        pod = Pod(
            namespace="team",
            name=f"pod-{number}",
            uid=str(number),
            resource_version="1",
            created_at=_NOW,
            size=job.ipus,
            active_deadline_seconds=job.deadline_seconds if job.deadline_seconds < inf else None,
        )
        sites = tuple(_site(at) for at, ipus in enumerate(self.allocations) if ipus >= job.ipus)
        return Candidate(pod=pod, wait=Wait.QUEUE, why="", sites=sites)

    def start(self, waiting: Mapping[int, Job], running: Sequence[_Running], now: float) -> dict[int, int]:
        space = _Space(self.allocations)
        found: dict[int, int] = {}
        here: dict[int, dict[int, tuple[int, float]]] = {at: {} for at in range(len(self.allocations))}
        for pod in running:
            space.take(pod.place, pod.job.ipus, 0.0, inf)
            holder = (pod.job.ipus, max(0.0, pod.deadline - now))
            here[space.allocation_of(pod.place)][pod.number] = holder
        again = True
        while again:
            placed = self._placed([number for number in waiting if number not in found], here)
            # The planning may place one uncertain pod at a time, so it is called until it places no pod.
            again = bool(placed)
            for number, at in placed:
                job = waiting[number]
                place = space.lowest(at, job.ipus)
                if place is None:
                    # All further placements are decided again, because the planning must know the rejection.
                    self.refused[at] = (job.ipus, frozenset(here[at]))
                    break
                space.take(place, job.ipus, 0.0, inf)
                found[number] = place
                here[at][number] = (job.ipus, job.deadline_seconds)
                if at in self.refused and job.ipus >= self.refused[at][0]:
                    del self.refused[at]
        return found

    def _placed(
        self, waiting: Sequence[int], here: Mapping[int, Mapping[int, tuple[int, float]]]
    ) -> list[tuple[int, int]]:
        owned = {}
        for at, holders in here.items():
            size, there = self.refused.get(at, (inf, frozenset()))
            owned[_site(at)] = SiteSupply(
                site=_site(at),
                total=self.allocations[at],
                ours=tuple(holders.values()),
                within_reach=self.allocations[at],
                crowded_from=size if there <= holders.keys() else inf,
            )
        queue = [self._candidates[number] for number in waiting]
        placed = schedule(queue, owned, {}, _SETTINGS, Guard()).placed
        return [(int(pod.uid), int(name)) for pod, (_, name) in placed]


def _site(at: int) -> tuple[str, str]:
    return "vipu:8090", str(at)
