"""Backfill never delays an older pod: played to the end with run times that are known.

The start of a pod is the same whether any younger pod is there or not, and no later than in strict order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from datetime import timedelta
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.partitions.planning.guard import Guard
from provisioner.partitions.planning.placing import schedule
from provisioner.partitions.planning.profile import Profile
from provisioner.partitions.planning.queue import Candidate, Wait
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.supply import Holder, SiteSupply
from tests.partitions.planning.stories import NOW, make_pod

_SETTINGS = PlanningSettings(backfill_allowance_seconds=0.0)


@dataclass(frozen=True)
class _Job:
    """A pod that runs for exactly as long as its deadline says."""

    size: int
    seconds: int
    arrives: int
    #: Allocations that it may use, by number.
    allowed: frozenset[int]


_ALL = frozenset({0, 1, 2})
_JOBS = st.lists(
    st.builds(
        _Job,
        size=st.sampled_from([1, 2, 4, 8]),
        seconds=st.integers(1, 30),
        arrives=st.integers(0, 40),
        allowed=st.sampled_from([_ALL, frozenset({0}), frozenset({0, 1})]),
    ),
    min_size=1,
    max_size=10,
)
_TOTALS = st.lists(st.sampled_from([4, 8, 16]), min_size=1, max_size=3)


def _play(jobs: list[_Job], totals: list[int], *, passing: bool = True) -> dict[int, float]:
    """Return when each job starts, by its number; without passing nobody is looked at behind one that waits."""
    ordered = sorted(range(len(jobs)), key=lambda number: (jobs[number].arrives, number))
    holds: dict[int, tuple[int, float]] = {}
    starts: dict[int, float] = {}
    moments: list[float] = sorted({float(job.arrives) for job in jobs})
    heapq.heapify(moments)
    while moments:
        now = heapq.heappop(moments)
        holds = {number: (site, end) for number, (site, end) in holds.items() if end > now}
        queue = [number for number in ordered if jobs[number].arrives <= now and number not in starts]
        for number, site in _placed(queue, jobs, totals, holds, now, passing=passing):
            starts[number] = now
            holds[number] = (site, now + jobs[number].seconds)
            heapq.heappush(moments, now + jobs[number].seconds)
    return starts


def _placed(
    queue: list[int],
    jobs: list[_Job],
    totals: list[int],
    holds: dict[int, tuple[int, float]],
    now: float,
    *,
    passing: bool,
) -> list[tuple[int, int]]:
    supply = {
        ("vipu:1", str(site)): SiteSupply(
            site=("vipu:1", str(site)),
            total=total,
            ours=tuple(
                Holder(ipus=jobs[number].size, ends_in_seconds=end - now)
                for number, (held, end) in holds.items()
                if held == site
            ),
            others=(),
            within_reach=total,
            usable=True,
            trials=(),
            ids=frozenset(),
        )
        for site, total in enumerate(totals)
    }
    candidates = []
    for number in queue:
        job = jobs[number]
        sites = tuple(
            ("vipu:1", str(site)) for site, total in enumerate(totals) if site in job.allowed and total >= job.size
        )
        pod = make_pod(
            str(number),
            size=job.size,
            created_at=NOW + timedelta(seconds=job.arrives),
            active_deadline_seconds=float(job.seconds),
            grace_seconds=0.0,
        )
        wait = Wait.QUEUE if sites else Wait.IMPOSSIBLE
        candidates.append(Candidate(pod=pod, wait=wait, why="", sites=sites))
    guard = Guard()
    found = schedule(candidates, supply, {}, {}, _SETTINGS, guard).placed
    assert guard.faults == ()
    placed = [(int(pod.name), int(site[1])) for pod, site in found]
    if passing:
        return placed
    possible = [int(candidate.pod.name) for candidate in candidates if candidate.sites]
    first = next((place for place, number in enumerate(possible) if number not in dict(placed)), len(possible))
    return [(number, site) for number, site in placed if number in possible[:first]]


@given(_JOBS, _TOTALS)
@settings(max_examples=60)
def test_a_start_does_not_depend_on_anybody_younger(jobs: list[_Job], totals: list[int]) -> None:
    """Whoever came later might as well not be there."""
    ordered = sorted(jobs, key=lambda job: job.arrives)
    together = _play(ordered, totals)
    for count in range(1, len(ordered)):
        alone = _play(ordered[:count], totals)
        assert alone == {number: together[number] for number in alone}


@given(_JOBS, st.sampled_from([8, 16]))
@settings(max_examples=60)
def test_in_one_allocation_nobody_starts_later_than_in_strict_order(jobs: list[_Job], total: int) -> None:
    """Backfill only ever helps; nobody is left out in either."""
    ordered = [
        _Job(job.size, job.seconds, job.arrives, frozenset({0})) for job in sorted(jobs, key=lambda job: job.arrives)
    ]
    backfilled, strict = _play(ordered, [total]), _play(ordered, [total], passing=False)
    assert backfilled.keys() == strict.keys() == set(range(len(ordered)))
    assert all(backfilled[number] <= strict[number] for number in strict)


def _candidate(name: str, size: int, seconds: float | None, *sites: tuple[str, str]) -> Candidate:
    pod = make_pod(name, size=size, active_deadline_seconds=seconds, grace_seconds=0.0)
    return Candidate(pod=pod, wait=Wait.QUEUE, why="", sites=sites)


_SITE, _OTHER = ("vipu:1", "a"), ("vipu:1", "b")


def _site(site: tuple[str, str], total: int, *holders: tuple[int, float]) -> SiteSupply:
    ours = tuple(Holder(ipus=ipus, ends_in_seconds=end) for ipus, end in holders)
    return SiteSupply(
        site=site, total=total, ours=ours, others=(), within_reach=total, usable=True, trials=(), ids=frozenset()
    )


@pytest.mark.parametrize(
    ("holder_seconds", "younger", "want"),
    [
        pytest.param(100.0, _candidate("y", 4, 90.0, _SITE), ["y"], id="who is gone in time passes"),
        pytest.param(100.0, _candidate("y", 4, 110.0, _SITE), [], id="who is not gone in time waits"),
        pytest.param(100.0, _candidate("y", 4, None, _SITE), [], id="who has no deadline waits"),
        pytest.param(inf, _candidate("y", 4, 1.0, _SITE), [], id="where nothing can be promised nobody passes"),
        pytest.param(inf, _candidate("y", 4, None, _OTHER), ["y"], id="where the older one cannot be, anybody may"),
    ],
)
def test_who_passes_an_older_pod(holder_seconds: float, younger: Candidate, want: list[str]) -> None:
    supply = {_SITE: _site(_SITE, 16, (12, holder_seconds)), _OTHER: _site(_OTHER, 4)}
    queue = [_candidate("old", 16, None, _SITE), younger]
    placed = schedule(queue, supply, {}, {}, _SETTINGS, Guard()).placed
    assert [pod.name for pod, _ in placed] == want


def test_the_smallest_rest_fits_best() -> None:
    supply = {_SITE: _site(_SITE, 16), _OTHER: _site(_OTHER, 4)}
    ((_, site),) = schedule([_candidate("a", 4, None, _SITE, _OTHER)], supply, {}, {}, _SETTINGS, Guard()).placed
    assert site == _OTHER


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 20)), max_size=6), st.integers(1, 16), st.integers(1, 20))
def test_the_earliest_start_is_the_first_at_which_it_fits_throughout(
    holders: list[tuple[int, int]], ipus: int, seconds: int
) -> None:
    """Against a count of every moment."""
    profile = Profile(16, [Holder(ipus=size, ends_in_seconds=float(end)) for size, end in holders])
    found = profile.earliest(ipus, float(seconds))

    def free(moment: float) -> int:
        return 16 - sum(size for size, end in holders if moment < max(end, 0.001))

    moments = [0.0, 0.001, *(float(end) for _, end in holders)]
    fitting = [start for start in sorted(moments) if free(start) >= ipus]
    assert found == min(fitting, default=inf)
