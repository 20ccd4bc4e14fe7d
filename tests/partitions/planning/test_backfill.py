"""Backfill never delays an older pod: played to the end with run times that are known.

The start of a pod is the same whether any younger pod is there or not, and no later than in strict order. Where free
IPUs lie apart, that holds wherever the partitions lie.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from provisioner.model.capacity import Failure, FailureKind
from provisioner.partitions.planning.guard import Guard
from provisioner.partitions.planning.memory import Backoff, Crowding
from provisioner.partitions.planning.placing import MOST_WAITING, schedule
from provisioner.partitions.planning.profile import Profile
from provisioner.partitions.planning.queue import Candidate, Wait
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.planning.supply import Holder, SiteSupply
from rehearsal.simulators.vipu.model import Ipu, places
from tests.partitions.planning.stories import NOW, make_pod

#: An example that is cut off by the limit of time is told as one that differs when it is played again.
pytestmark = pytest.mark.timeout(60)
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
        placed = True
        while placed:
            # Servers answer at once: who waits for the answer to another one has its turn then.
            queue = [number for number in ordered if jobs[number].arrives <= now and number not in starts]
            placed = False
            for number, site in _placed(queue, jobs, totals, holds, now, passing=passing):
                placed = True
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
            unanswered=(),
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
@settings(max_examples=30)
def test_a_start_does_not_depend_on_anybody_younger(jobs: list[_Job], totals: list[int]) -> None:
    """Whoever came later might as well not be there."""
    ordered = sorted(jobs, key=lambda job: job.arrives)
    together = _play(ordered, totals)
    for count in range(1, len(ordered)):
        alone = _play(ordered[:count], totals)
        assert alone == {number: together[number] for number in alone}


@given(_JOBS, st.sampled_from([8, 16]))
@settings(max_examples=30)
def test_in_one_allocation_nobody_starts_later_than_in_strict_order(jobs: list[_Job], total: int) -> None:
    """Backfill only ever helps; nobody is left out in either."""
    ordered = [
        _Job(job.size, job.seconds, job.arrives, frozenset({0})) for job in sorted(jobs, key=lambda job: job.arrives)
    ]
    backfilled, strict = _play(ordered, [total]), _play(ordered, [total], passing=False)
    assert backfilled.keys() == strict.keys() == set(range(len(ordered)))
    assert all(backfilled[number] <= strict[number] for number in strict)


def _candidate(
    name: str, size: int, seconds: float | None, *sites: tuple[str, str], grace_seconds: float = 0.0
) -> Candidate:
    pod = make_pod(name, size=size, active_deadline_seconds=seconds, grace_seconds=grace_seconds)
    return Candidate(pod=pod, wait=Wait.QUEUE, why="", sites=sites)


_SITE, _OTHER = ("vipu:1", "a"), ("vipu:1", "b")
_GRACE_SECONDS = 20.0
_LATER = NOW + timedelta(seconds=1)


def _site(
    site: tuple[str, str], total: int, *holders: tuple[int, float], unanswered: tuple[int, ...] = ()
) -> SiteSupply:
    ours = tuple(Holder(ipus=ipus, ends_in_seconds=end) for ipus, end in holders)
    return SiteSupply(
        site=site,
        total=total,
        ours=ours,
        others=(),
        within_reach=total,
        usable=True,
        trials=unanswered,
        unanswered=unanswered,
        ids=frozenset(),
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


@pytest.mark.parametrize(
    ("size", "holders", "younger", "want"),
    [
        pytest.param(8, [(8, 100.0), (1, 300.0)], (1, 90.0), ["y"], id="who is gone by the promised start passes"),
        pytest.param(8, [(8, 100.0), (1, 300.0)], (1, 110.0), [], id="who may split what is free then waits"),
        pytest.param(8, [(8, 100.0), (1, 300.0)], (1, None), [], id="who has no deadline, too"),
        pytest.param(4, [(8, 100.0), (4, 300.0), (1, 300.0), (1, 300.0)], (2, None), [], id="a count is no proof"),
        pytest.param(4, [(8, 100.0), (4, 300.0), (1, 300.0), (1, 99.0)], (2, None), ["y"], id="what ends by then"),
    ],
)
def test_who_leaves_an_older_pod_its_place(
    size: int, holders: list[tuple[int, float]], younger: tuple[int, float | None], want: list[str]
) -> None:
    """A server may put partitions where they split what is free."""
    queue = [_candidate("old", size, None, _SITE), _candidate("y", *younger, _SITE)]
    placed = schedule(queue, {_SITE: _site(_SITE, 16, *holders)}, {}, {}, _SETTINGS, Guard()).placed
    assert [pod.name for pod, _ in placed] == want


def test_who_surely_leaves_an_older_pod_its_place_passes() -> None:
    supply = {_SITE: _site(_SITE, 64, (32, 100.0), (16, inf), (8, inf))}
    queue = [_candidate("old", 16, None, _SITE), _candidate("y", 8, None, _SITE), _candidate("z", 1, None, _SITE)]
    assert [pod.name for pod, _ in schedule(queue, supply, {}, {}, _SETTINGS, Guard()).placed] == ["y"]


def test_two_that_are_promised_a_start_are_not_both_counted_on_the_same_place() -> None:
    """The first one's promise takes the last place beside the oldest, so the second must not pass."""
    supply = {_SITE: _site(_SITE, 64, (32, 99.0), (16, 9998.0), (8, 49.0), (4, 49.0), (2, 49.0), (1, 9998.0))}
    queue = [_candidate("old", 16, 5000.0, _SITE), _candidate("y", 2, 1000.0, _SITE), _candidate("z", 1, 1000.0, _SITE)]
    found = schedule(queue, supply, {}, {}, _SETTINGS, Guard())
    assert found.placed == ()
    assert (found.promised["uid-old"], found.promised["uid-y"]) == (99.0, 49.0)


def test_nobody_counts_on_one_that_should_be_gone_and_is_not() -> None:
    """Its removal may fail for ever, or its grace be years: the older one is kept a place elsewhere, too."""
    stays = Holder(ipus=4, ends_in_seconds=0.0, gone_in_seconds=inf)
    supply = {_SITE: replace(_site(_SITE, 16), ours=(stays,)), _OTHER: _site(_OTHER, 16, (8, 100.0))}
    queue = [_candidate("old", 16, None, _SITE, _OTHER), _candidate("y", 4, None, _OTHER)]
    assert schedule(queue, supply, {}, {}, _SETTINGS, Guard()).placed == ()


def test_nobody_counts_on_the_end_of_one_that_may_start_later() -> None:
    """The oldest may find no room at 10 s, so the next may start at 60 s elsewhere before it does at 75 s here."""
    supply = {_SITE: _site(_SITE, 16, (8, 10.0), (1, 45.0), (1, 45.0)), _OTHER: _site(_OTHER, 16, (8, 60.0))}
    queue = [
        _candidate("oldest", 8, 30.0, _SITE),
        _candidate("next", 16, None, _SITE, _OTHER),
        _candidate("y", 8, None, _OTHER),
    ]
    assert schedule(queue, supply, {}, {}, _SETTINGS, Guard()).placed == ()


@pytest.mark.parametrize(("refusals", "want"), [(1, []), (2, []), (3, ["y", "z"])])
@pytest.mark.parametrize("total", [16, None])
def test_who_is_refused_again_and_again_where_nothing_is_holds_up_nobody(
    total: int | None, refusals: int, want: list[str]
) -> None:
    """An allocation may have less than it shows; a refusal may have passed by then."""
    crowding = {_SITE: replace(_crowded(8), in_vain=refusals)}
    queue = [_candidate("old", 8, None, _SITE), _candidate("y", 4, None, _SITE), _candidate("z", 4, None, _SITE)]
    supply = {_SITE: replace(_site(_SITE, 16), total=total)}
    placed = schedule(queue, supply, crowding, {}, _SETTINGS, Guard()).placed
    # Where the size is not known one is tried after the other.
    assert [pod.name for pod, _ in placed] == (want if total else want[:1])


@pytest.mark.parametrize(
    ("gone", "younger", "want"),
    [
        pytest.param(130.0, _candidate("y", 2, 20.0, _SITE), [], id="where it may start first"),
        pytest.param(130.0, _candidate("y", 2, 9.0, _SITE), ["y"], id="who is gone by then passes"),
        pytest.param(130.0, _candidate("y", 4, 60.0, _OTHER), [], id="and where it surely has a place"),
        pytest.param(130.0, _candidate("y", 4, 45.0, _OTHER), ["y"], id="who is gone by then passes there, too"),
        pytest.param(10.0, _candidate("y", 4, 60.0, _OTHER), ["y"], id="where it surely starts first others are free"),
    ],
)
def test_an_older_pod_has_its_place_in_all_allocations_where_it_may_start_first(
    gone: float, younger: Candidate, want: list[str]
) -> None:
    """In the one it may start at 10 s, but for the grace of one that has passed it; in the other at 50 s."""
    order = make_pod("z", priority=-1).order
    passed = Holder(ipus=2, ends_in_seconds=10.0, gone_in_seconds=gone, order=order, since=_LATER)
    supply = {
        _SITE: replace(_site(_SITE, 8), ours=(passed, Holder(ipus=4, ends_in_seconds=5.0))),
        _OTHER: _site(_OTHER, 16, (8, 50.0), (4, inf)),
    }
    queue = [_candidate("old", 8, None, _SITE, _OTHER), younger]
    found = schedule(queue, supply, {}, {}, _SETTINGS, Guard())
    assert ([pod.name for pod, _ in found.placed], found.promised["uid-old"]) == (want, 10.0)


@pytest.mark.parametrize(
    ("since", "want"),
    [
        pytest.param(NOW + timedelta(seconds=1), [], id="one that has passed it may take its grace, too"),
        pytest.param(NOW - timedelta(seconds=1), ["y"], id="one that was there before ends by its deadline"),
    ],
)
def test_how_long_others_may_be_in_the_way(since: datetime, want: list[str]) -> None:
    """Together two that passed must not keep an older pod waiting, should one take its grace."""
    passed = Holder(
        ipus=2, ends_in_seconds=90.0, gone_in_seconds=120.0, order=make_pod("z", priority=-1).order, since=since
    )
    older = [Holder(ipus=ipus, ends_in_seconds=end) for ipus, end in ((16, 100.0), (8, inf), (2, inf))]
    supply = replace(_site(_SITE, 32), ours=(passed, *older))
    queue = [_candidate("old", 8, None, _SITE), _candidate("y", 2, 110.0, _SITE)]
    placed = schedule(queue, {_SITE: supply}, {}, {}, _SETTINGS, Guard()).placed
    assert [pod.name for pod, _ in placed] == want


_BACKOFF = Backoff(failure=Failure(kind=FailureKind.STOCKOUT, message=""), failures=1, at=NOW, until=NOW)


def _crowded(size: int) -> Crowding:
    return Crowding(size=size, refused="", listed=frozenset(), backoff=_BACKOFF)


@pytest.mark.parametrize(
    ("ends", "younger", "want"),
    [
        pytest.param((100.0, 500.0), _candidate("y", 4, 90.0, _SITE), ["y"], id="who is gone before any other passes"),
        pytest.param((100.0, 500.0), _candidate("y", 4, 110.0, _SITE), [], id="who is there after the first end waits"),
        pytest.param(
            (100.0, inf), _candidate("y", 4, 1.0, _SITE), [], id="where one may end at any moment nobody passes"
        ),
        pytest.param((0.0, 500.0), _candidate("y", 4, 1.0, _SITE), [], id="where one is being removed nobody passes"),
    ],
)
def test_who_passes_a_pod_that_was_crowded_out(ends: tuple[float, float], younger: Candidate, want: list[str]) -> None:
    supply = {_SITE: _site(_SITE, 16, *((2, end) for end in ends))}
    queue = [_candidate("old", 8, None, _SITE), younger]
    placed = schedule(queue, supply, {_SITE: _crowded(8)}, {}, _SETTINGS, Guard()).placed
    assert [pod.name for pod, _ in placed] == want


@pytest.mark.parametrize(("waiting", "want"), [(MOST_WAITING, ["y"]), (MOST_WAITING + 1, [])])
@pytest.mark.parametrize("crowded", [True, False])
def test_only_so_many_that_wait_are_passed(crowded: bool, waiting: int, want: list[str]) -> None:
    """Whether they are promised a start or not; else a decision takes a second where thousands wait."""
    supply = {_SITE: _site(_SITE, 16, (2, 1e6), (2, 1e6))}
    queue = [_candidate(f"old-{number}", 16, 1.0, _SITE) for number in range(waiting)]
    crowding = {_SITE: _crowded(8)} if crowded else {}
    placed = schedule([*queue, _candidate("y", 4, 90.0, _SITE)], supply, crowding, {}, _SETTINGS, Guard()).placed
    assert [pod.name for pod, _ in placed] == want


@pytest.mark.parametrize(
    ("younger", "want"),
    [
        pytest.param(_candidate("y", 4, 90.0, _OTHER), ["y"], id="who is gone before the promised start passes"),
        pytest.param(_candidate("y", 4, 110.0, _OTHER), [], id="who is not gone by then waits"),
        pytest.param(_candidate("y", 4, 90.0, _SITE), [], id="nobody takes what lies apart"),
    ],
)
def test_who_is_crowded_out_of_one_allocation_is_promised_another(younger: Candidate, want: list[str]) -> None:
    supply = {_SITE: _site(_SITE, 16, (2, inf), (2, inf)), _OTHER: _site(_OTHER, 16, (12, 100.0))}
    queue = [_candidate("old", 16, None, _SITE, _OTHER), younger]
    found = schedule(queue, supply, {_SITE: _crowded(8)}, {}, _SETTINGS, Guard())
    assert [pod.name for pod, _ in found.placed] == want
    assert found.promised["uid-old"] == 100.0


def _taken(lying: Iterable[tuple[int, int, float]], moment: float) -> set[Ipu]:
    return {_IPUS[ipu] for start, size, end in lying if end > moment for ipu in range(start, start + size)}


_IPUS: list[Ipu] = [("agent", number) for number in range(16)]


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 60)), min_size=2, max_size=8),
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 60)), min_size=1, max_size=6),
    st.sampled_from([4, 8]),
    st.data(),
)
@settings(max_examples=60)
def test_who_was_crowded_out_starts_no_later_wherever_partitions_lie(
    holders: list[tuple[int, int]], younger: list[tuple[int, int]], size: int, data: st.DataObject
) -> None:
    """The server may put each of them anywhere that it fits."""
    lying: list[tuple[int, int, float]] = []
    for ipus, end in holders:
        if free := places(_IPUS, _taken(lying, 0.0), ipus):
            lying.append((data.draw(st.sampled_from(free)), ipus, float(end)))
    assume(not places(_IPUS, _taken(lying, 0.0), size))
    supply = {_SITE: _site(_SITE, 16, *((ipus, end) for _, ipus, end in lying))}
    queue = [_candidate("old", size, None, _SITE)]
    queue += [_candidate(str(number), ipus, float(end), _SITE) for number, (ipus, end) in enumerate(younger)]
    placed = schedule(queue, supply, {_SITE: _crowded(size)}, {}, _SETTINGS, Guard()).placed
    passing = list(lying)
    for pod, _ in placed:
        if free := places(_IPUS, _taken(passing, 0.0), pod.size):
            passing.append((data.draw(st.sampled_from(free)), pod.size, pod.active_deadline_seconds or inf))

    def start(lying: list[tuple[int, int, float]]) -> float:
        return min(end for _, _, end in lying if places(_IPUS, _taken(lying, end), size))

    assert start(passing) == start(lying)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([10, 30, 60]), st.booleans()), min_size=2, max_size=6
    ),
    st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from([5, 20, 90])), min_size=1, max_size=3),
    st.sampled_from([4, 8]),
    st.data(),
)
@settings(max_examples=60)
def test_who_is_promised_a_start_starts_no_later_wherever_partitions_lie(
    holders: list[tuple[int, int, bool]], younger: list[tuple[int, int]], size: int, data: st.DataObject
) -> None:
    """Where all who pass it, now or before, take their grace, too."""
    ground = _IPUS[:8]
    lying: list[tuple[int, int, float]] = []
    known = []
    for ipus, end, passed in holders:
        if free := places(ground, _taken(lying, 0.0), ipus):
            lying.append((data.draw(st.sampled_from(free)), ipus, end + (_GRACE_SECONDS if passed else 0.0)))
            order = make_pod("z", priority=-1).order if passed else None
            gone = end + _GRACE_SECONDS
            known.append(Holder(ipus=ipus, ends_in_seconds=float(end), gone_in_seconds=gone, order=order, since=_LATER))
    assume(sum(ipus for _, ipus, _ in lying) + size > len(ground))
    queue = [_candidate("old", size, None, _SITE)]
    queue += [
        _candidate(str(number), ipus, float(end), _SITE, grace_seconds=_GRACE_SECONDS)
        for number, (ipus, end) in enumerate(younger)
    ]
    found = schedule(queue, {_SITE: replace(_site(_SITE, len(ground)), ours=tuple(known))}, {}, {}, _SETTINGS, Guard())
    passing = list(lying)
    for pod, _ in found.placed:
        if free := places(ground, _taken(passing, 0.0), pod.size):
            end = (pod.active_deadline_seconds or inf) + _GRACE_SECONDS
            passing.append((data.draw(st.sampled_from(free)), pod.size, end))

    def start(lying: list[tuple[int, int, float]]) -> float:
        return min(end for _, _, end in lying if places(ground, _taken(lying, end), size))

    assert start(passing) == start(lying)


@pytest.mark.parametrize(
    ("holders", "queue", "want"),
    [
        pytest.param((1, 1), [("old", 8), ("y", 1)], ["old"], id="who may find no room is tried alone"),
        pytest.param((1, 1), [("old", 8), ("y", 1, 0.5)], ["old"], id="nobody passes it meanwhile, however short"),
        pytest.param((1,), [("old", 8), ("y", 4)], ["old"], id="a younger one that may take its room waits"),
        pytest.param((4,), [("old", 4), ("y", 4), ("z", 4)], ["old", "y", "z"], id="with room for all nobody waits"),
        pytest.param((1, 1), [("a", 1), ("b", 1), ("c", 1)], ["a", "b", "c"], id="one IPU is anywhere"),
        pytest.param((1, 1), [("a", 4), ("old", 8), ("y", 1)], ["a"], id="who waits for the answer is not passed"),
        pytest.param((3,), [("old", 8), ("y", 1)], ["old"], id="of unknown sizes nobody knows how they lie"),
    ],
)
def test_who_is_tried_together(holders: tuple[int, ...], queue: list[tuple[str, int]], want: list[str]) -> None:
    supply = {_SITE: _site(_SITE, 16, *((ipus, 100.0) for ipus in holders))}
    pods = [_candidate(name, size, seconds[0] if seconds else None, _SITE) for name, size, *seconds in queue]
    assert [pod.name for pod, _ in schedule(pods, supply, {}, {}, _SETTINGS, Guard()).placed] == want


@pytest.mark.parametrize(
    ("holders", "younger", "want"),
    [
        pytest.param((1, 1), [_candidate("y", 1, 0.5, _SITE)], [], id="nobody is placed beside what is unsure"),
        pytest.param((), [_candidate("y", 4, None, _SITE)], ["y"], id="who surely leaves it room is placed"),
        pytest.param((1,), [_candidate("y", 4, None, _SITE)], [], id="who may leave it none waits for the answer"),
        pytest.param(
            (1, 1),
            [_candidate("y", 1, None, _SITE, _OTHER)],
            ["y"],
            id="in another allocation there is nothing to await",
        ),
    ],
)
def test_who_is_placed_before_the_server_has_answered(
    holders: tuple[int, ...], younger: list[Candidate], want: list[str]
) -> None:
    supply = {
        _SITE: _site(_SITE, 16, (8, inf), *((ipus, inf) for ipus in holders), unanswered=(8,)),
        _OTHER: _site(_OTHER, 16),
    }
    assert [pod.name for pod, _ in schedule(younger, supply, {}, {}, _SETTINGS, Guard()).placed] == want


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 60)), max_size=6),
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 60)), min_size=2, max_size=6),
    st.data(),
)
@settings(max_examples=60)
def test_nobody_is_refused_for_what_a_younger_one_took(
    holders: list[tuple[int, int]], waiting: list[tuple[int, int]], data: st.DataObject
) -> None:
    """In whatever order the server makes them, and wherever it puts them."""
    lying: list[tuple[int, int, float]] = []
    for ipus, end in holders:
        if free := places(_IPUS, _taken(lying, 0.0), ipus):
            lying.append((data.draw(st.sampled_from(free)), ipus, end + 1.0))
    supply = {_SITE: _site(_SITE, 16, *((ipus, end) for _, ipus, end in lying))}
    queue = [_candidate(str(number), ipus, float(end), _SITE) for number, (ipus, end) in enumerate(waiting)]
    placed = [pod for pod, _ in schedule(queue, supply, {}, {}, _SETTINGS, Guard()).placed]
    made: dict[str, tuple[int, int, float]] = {}
    for pod in data.draw(st.permutations(placed)):
        free = places(_IPUS, _taken([*lying, *made.values()], 0.0), pod.size)
        if free:
            made[pod.name] = (data.draw(st.sampled_from(free)), pod.size, inf)
            continue
        older = [made[each.name] for each in placed[: placed.index(pod)] if each.name in made]
        assert not places(_IPUS, _taken([*lying, *older], 0.0), pod.size), "a younger one has its place"


def test_who_surely_has_room_is_not_tried_where_it_may_have_none() -> None:
    supply = {_SITE: _site(_SITE, 16, *([(1, inf)] * 4)), _OTHER: _site(_OTHER, 16)}
    queue = [_candidate("a", 4, None, _SITE, _OTHER)]
    ((_, site),) = schedule(queue, supply, {}, {}, _SETTINGS, Guard()).placed
    assert site == _OTHER


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
