"""EASY backfill: which pods get IPUs now, and which pods wait."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.partitions.planning.placing import Schedule, schedule
from provisioner.partitions.planning.queue import Candidate, SiteSupply, Wait
from provisioner.partitions.planning.round import Guard
from provisioner.settings.partitions import PartitionSettings
from tests.partitions.planning.stories import make_pod

_SETTINGS = PartitionSettings(servers=(), backfill_allowance_seconds=100.0)
_A, _B = ("vipu:8090", "a"), ("vipu:8090", "b")
_GRACE_SECONDS = 30.0


def _site(total: int | None = 16, *holders: tuple[int, float], **fields: Any) -> SiteSupply:
    return SiteSupply(**{"site": _A, "total": total, "ours": holders, "within_reach": total, **fields})


def _waits(name: str, size: int, deadline: float | None = None, sites: Any = (_A,), **fields: Any) -> Candidate:
    pod = make_pod(name, size=size, active_deadline_seconds=deadline, grace_seconds=_GRACE_SECONDS, **fields)
    return Candidate(pod=pod, wait=Wait.QUEUE, why="", sites=sites)


def _schedule(supply: list[SiteSupply], queue: list[Candidate]) -> Schedule:
    return schedule(queue, {allocation.site: allocation for allocation in supply}, {}, _SETTINGS, Guard())


#: IPUs of a running pod, and the seconds until its deadline.
_TO_END = (12, 1000.0)


@pytest.mark.parametrize(
    ("supply", "queue", "want"),
    [
        pytest.param([_site()], [_waits("a", 8), _waits("b", 8)], "ab", id="in order while there is room"),
        pytest.param([_site(16, _TO_END)], [_waits("a", 16), _waits("b", 4, 860)], "b", id="ends in time"),
        pytest.param([_site(16, _TO_END)], [_waits("a", 16), _waits("b", 4, 880)], "", id="ends late with grace"),
        pytest.param([_site(16, _TO_END)], [_waits("a", 12), _waits("b", 4)], "b", id="unneeded IPUs are used"),
        pytest.param([_site(16, _TO_END)], [_waits("a", 12), _waits("b", 2), _waits("c", 4), _waits("d", 2)], "bd",
                     id="unneeded IPUs are used once"),
        pytest.param([_site(16, (12, inf))], [_waits("a", 16), _waits("b", 4, 10)], "", id="free IPUs are reserved"),
        pytest.param([_site(16, (12, 0.0))], [_waits("a", 16), _waits("b", 4, 10)], "", id="end at any moment"),
        pytest.param([_site(16, (12, inf)), _site(16, (8, inf), site=_B)],
                     [_waits("a", 16, sites=(_A, _B)), _waits("b", 4, sites=(_A, _B)), _waits("c", 4, sites=(_B,))],
                     "b", id="reservation only where most IPUs are free"),
        pytest.param([_site(16, (16, inf)), _site(16, (8, inf), site=_B)],
                     [_waits("a", 16), _waits("b", 16, sites=(_B,)), _waits("c", 4, sites=(_B,))], "",
                     id="two reservations in separate allocations"),
        pytest.param([_site(16, (8, inf)), _site(16, (8, inf), site=_B)],
                     [_waits("a", 16), _waits("b", 16, sites=(_A, _B)), _waits("c", 4, sites=(_B,))], "c",
                     id="one reservation in common allocations"),
        pytest.param([_site(16, (8, inf)), _site(16, (12, inf), site=_B)], [_waits("a", 4, sites=(_A, _B))], "a",
                     id="one allocation per pod"),
        pytest.param([_site(16, (12, inf))], [_waits("a", 16, server_annotation="vipu:8090"), _waits("b", 4)], "b",
                     id="lost partition delays no pod"),
        pytest.param([_site(None)], [_waits("a", 4), _waits("b", 4)], "a", id="unknown size, one pod at a time"),
        pytest.param([_site(None, trying=frozenset({"x"}))], [_waits("a", 4)], "", id="unknown size, one is tried"),
        # In the following cases, the server rejects partitions although enough IPUs are free.
        pytest.param([_site(16, (8, 1000), crowded_from=8)], [_waits("a", 8), _waits("b", 4, 860)], "b",
                     id="rejected, younger pod ends before the first one"),
        pytest.param([_site(16, (8, 1000), crowded_from=8)], [_waits("a", 8), _waits("b", 4)], "",
                     id="rejected, younger pod does not end before"),
        pytest.param([_site(16, (8, inf), crowded_from=8)], [_waits("a", 8), _waits("b", 4, 10)], "",
                     id="rejected, no deadlines"),
        pytest.param([_site(16, (8, inf), crowded_from=8, tired_from=8)], [_waits("a", 8), _waits("b", 4)], "b",
                     id="rejected for an hour, no deadlines"),
        pytest.param([_site(16, (8, 1000), crowded_from=8, tired_from=8)], [_waits("a", 8), _waits("b", 4)], "",
                     id="rejected for an hour, deadlines"),
        pytest.param([_site(16, (8, 1000), crowded_from=8, never_from=8)], [_waits("a", 8), _waits("b", 4)],
                     "b", id="rejected in an empty allocation"),
        pytest.param([_site(16, (8, inf), crowded_from=8, never_from=8)], [_waits("a", 8), _waits("b", 8)], "",
                     id="rejected in an empty allocation, second pod of that size"),
        pytest.param([_site(16, refused=frozenset({"x"}), trying=frozenset({"x"}))], [_waits("a", 4)], "",
                     id="rejected pod is retried alone"),
        pytest.param([_site(16, refused=frozenset({"uid-a"}))], [_waits("a", 4), _waits("b", 4)], "a",
                     id="rejected pod is placed alone"),
    ],
)  # fmt: skip
def test_pods_that_get_ipus_now_follow_easy_backfill(
    supply: list[SiteSupply], queue: list[Candidate], want: str
) -> None:
    assert "".join(pod.name for pod, _ in _schedule(supply, queue).placed) == want


def test_pod_is_placed_in_the_allocation_with_the_fewest_free_ipus() -> None:
    supply = [_site(16, (8, inf)), _site(16, (12, inf), site=_B), _site(None, site=("vipu:8090", "c"))]
    placed = _schedule(supply, [_waits("a", 4, sites=tuple(allocation.site for allocation in supply))]).placed
    assert [site for _, site in placed] == [_B]


def test_shadow_time_is_the_earliest_of_several_allocations() -> None:
    supply = [_site(16, (16, 500.0)), _site(16, (16, 300.0), site=_B)]
    assert _schedule(supply, [_waits("a", 16, sites=(_A, _B))]).shadows == {"uid-a": 300.0}


@pytest.mark.parametrize(("never_from", "want"), [(inf, ""), (16, "b")], ids=["a reservation", "none"])
def test_reservation_counts_against_the_limit_of_the_namespace(never_from: float, want: str) -> None:
    sites = {_A: _site(16, (12, inf), never_from=never_from), _B: _site(8, site=_B)}
    settings = PartitionSettings(servers=(), namespace_limits=(("*", 16),))
    found = schedule([_waits("a", 16), _waits("b", 4, sites=(_B,))], sites, {}, settings, Guard())
    assert ("".join(pod.name for pod, _ in found.placed), not found.limited) == (want, bool(want))


_JOBS = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.integers(10, 400), st.integers(0, 400)), min_size=1, max_size=25
)


@given(_JOBS, st.booleans())
def test_pod_with_a_reservation_starts_at_its_shadow_time_at_the_latest(
    jobs: list[tuple[int, int, int]], both: bool
) -> None:
    """A job is a number of IPUs, its run time in seconds, and the seconds from its end to its deadline."""
    sites = (_A, _B) if both else (_A,)
    waiting = {f"{number:02}": job for number, job in enumerate(jobs)}
    running: dict[str, tuple[int, float, float, Any]] = {}
    told: dict[str, float] = {}
    now = 0.0
    while waiting:
        supply = [
            _site(16, *((ipus, deadline - now) for ipus, _, deadline, at in running.values() if at == site), site=site)
            for site in sites
        ]
        queue = [_waits(name, size, run + slack, sites) for name, (size, run, slack) in waiting.items()]
        found = _schedule(supply, queue)
        for pod, site in found.placed:
            size, run, slack = waiting.pop(pod.name)
            assert now <= told.get(pod.name, inf)
            running[pod.name] = (size, now + run, now + run + slack, site)
        for uid, seconds in found.shadows.items():
            name = uid.removeprefix("uid-")
            told[name] = min(told.get(name, inf), now + seconds + 0.01)
        now = min((end for _, end, _, _ in running.values()), default=now)
        running = {name: job for name, job in running.items() if job[1] > now}
    assert not waiting


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_oldest_pod_without_deadlines_starts_before_younger_pods(sizes: list[int], random: Any) -> None:
    """Younger pods arrive in every round. The oldest pod starts when the pods that run at the beginning have ended."""
    site = _site(16, *((size, inf) for size in sizes[:3] if size < 8))
    oldest = _waits("a", 16)
    while site.ours:
        young = [_waits(f"y{number}", size) for number, size in enumerate(sizes)]
        placed = [pod.name for pod, _ in _schedule([site], [oldest, *young]).placed]
        assert placed == []
        gone = random.randrange(len(site.ours))
        site = replace(site, ours=site.ours[:gone] + site.ours[gone + 1 :])
    assert [pod.name for pod, _ in _schedule([site], [oldest]).placed] == ["a"]
