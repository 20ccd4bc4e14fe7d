"""Tests of the queue for a scarce resource, whose order follows priorities, turns of namespaces and last grants.

Slices of higher priorities come first, and may keep chips from others for at most 12 hours.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.workloads import GroupKey, Workload, WorkloadUid
from provisioner.slices.demand import SliceId
from provisioner.slices.messages.waits import note_of
from provisioner.slices.planning.contention.limits import KEPT_AT_MOST
from provisioner.slices.planning.contention.line import (
    CREATES,
    Unit,
    granted,
    in_line,
    place_of,
    still_contended,
    unit_of,
)
from provisioner.slices.planning.memory.state import Stamps
from tests.support.clock import NOW, after
from tests.support.market import jobset_of
from tests.support.models import make_jobset, make_pod, make_slice
from tests.support.settings import settings
from tests.support.world import World

RESOURCE = "stock"


def unit(path: str, *, priority: int = 0, since: float = 0, created: float = 0) -> Unit:
    """Return a queued unit for `namespace/workload/slice`; times are seconds after NOW."""
    namespace, workload, group = path.split("/")
    uid = WorkloadUid(f"{namespace}-{workload}")
    return Unit(SliceId(uid, GroupKey(group)), namespace, priority, after(since), after(created), group)


def shown(units: list[Unit]) -> str:
    return " ".join(
        f"{entry.namespace}/{entry.id.workload_uid.partition('-')[2]}/{entry.group_name}" for entry in units
    )


@pytest.mark.parametrize(
    ("units", "grants", "want"),
    [
        pytest.param([unit("a/w/2"), unit("a/w/1")], [], "a/w/1 a/w/2", id="slices of a workload by name"),
        pytest.param(
            [unit("a/w/1", created=5), unit("a/w/2", created=5), unit("a/v/1", created=1)],
            [],
            "a/v/1 a/w/1 a/w/2",
            id="all slices of the oldest workload of a namespace",
        ),
        pytest.param(
            [unit("a/w/1"), unit("a/v/1", created=1)],
            [("a/w/1", 60)],
            "a/v/1 a/w/1",
            id="a granted workload after the others of its namespace",
        ),
        pytest.param(
            [unit("a/w/1", since=0), unit("a/v/1", since=1), unit("b/w/1", since=9)],
            [],
            "a/w/1 b/w/1 a/v/1",
            id="the first unit of each namespace before any second",
        ),
        pytest.param(
            [unit("a/w/1", since=0), unit("b/w/1", since=9)],
            [("a/u/1", 60)],
            "b/w/1 a/w/1",
            id="a grant to any workload counts for its namespace",
        ),
        pytest.param(
            [unit("a/w/1", since=0), unit("b/w/1", since=9)],
            [("a/u/1", 60), ("b/u/1", 61)],
            "a/w/1 b/w/1",
            id="the namespace whose grant is longer ago",
        ),
        pytest.param(
            [unit("a/w/1", since=0), unit("b/w/1", since=120)],
            [("a/u/1", 60)],
            "a/w/1 b/w/1",
            id="an arrival after the last grant of another namespace comes later",
        ),
        pytest.param(
            [unit("a/w/1"), unit("b/w/1", priority=5, since=99), unit("b/v/1", priority=5, since=98)],
            [("b/w/1", 60)],
            "b/v/1 b/w/1 a/w/1",
            id="a higher priority before all others",
        ),
        pytest.param(
            [unit("a/w/1", priority=1), unit("a/v/1"), unit("b/w/1", since=9)],
            [],
            "a/w/1 a/v/1 b/w/1",
            id="units of a higher priority do not count for the others of the namespace",
        ),
    ],
)
def test_line_orders_units_by_priority_namespace_and_last_grant(
    units: list[Unit], grants: list[tuple[str, float]], want: str
) -> None:
    stamps: Stamps = {}
    for path, seconds in grants:
        stamps = granted(stamps, RESOURCE, [unit(path)], after(seconds))
    assert shown(in_line(RESOURCE, units, stamps)) == want
    assert shown(in_line(RESOURCE, reversed(units), stamps)) == want


def test_grant_of_one_resource_leaves_the_order_of_another_unchanged() -> None:
    """In the past, grants of all resources counted together: a tenant with a grant of one never got another."""
    units = [unit("a/w/1", since=0), unit("b/w/1", since=9)]
    stamps = granted({}, "another", units[:1], after(60))
    assert in_line(RESOURCE, units, stamps) == in_line(RESOURCE, units, {})
    assert in_line("another", units, stamps) != in_line(RESOURCE, units, {})


_UNITS = st.builds(
    lambda path, priority, since, created: unit("/".join(path), priority=priority, since=since, created=created),
    st.tuples(st.sampled_from("abc"), st.sampled_from("uvw"), st.sampled_from("1234")),
    st.integers(0, 2),
    st.integers(0, 50),
    st.integers(0, 50),
)
_LINES = st.lists(_UNITS, unique_by=lambda entry: entry.id, max_size=20)
_GRANTS = st.lists(st.tuples(_UNITS, st.integers(0, 100)), max_size=8)


@given(_LINES, _GRANTS)
def test_line_interleaves_namespaces_of_each_priority(units: list[Unit], grants: list[tuple[Unit, int]]) -> None:
    stamps: Stamps = {}
    for entry, seconds in grants:
        stamps = granted(stamps, RESOURCE, [entry], after(seconds))
    order = in_line(RESOURCE, units, stamps)
    assert sorted(order) == sorted(units)
    assert [member.priority for member in order] == sorted((member.priority for member in units), reverse=True)
    before: Counter[tuple[int, str]] = Counter()
    rounds = []
    for entry in order:
        rounds.append((-entry.priority, before[entry.priority, entry.namespace]))
        before[entry.priority, entry.namespace] += 1
    assert rounds == sorted(rounds)
    assert place_of(order) == {member.id: place for place, member in enumerate(order, start=1)}


@given(_LINES.filter(bool), st.lists(st.tuples(st.integers(0, 8), _UNITS), max_size=60))
def test_each_unit_is_first_after_a_bounded_number_of_grants(
    at_first: list[Unit], later: list[tuple[int, Unit]]
) -> None:
    """A unit waits for at most max(number of namespaces x units of its namespace) grants. Granted units stay queued."""
    waiting = {entry.id: entry._replace(priority=0, since=NOW, created_at=NOW) for entry in at_first}
    chosen = min(waiting)
    stamps: Stamps = {}
    now, most = NOW, 0
    arrivals = list(later)
    for grants in range(2000):
        own = [entry for entry in waiting.values() if entry.namespace == waiting[chosen].namespace]
        most = max(most, len({entry.namespace for entry in waiting.values()}) * len(own))
        first = in_line(RESOURCE, waiting.values(), stamps)[0]
        if first.id == chosen:
            assert grants <= most
            return
        now += timedelta(minutes=1)
        stamps = granted(stamps, RESOURCE, [first], now)
        while arrivals and arrivals[0][0] <= grants:
            arrival = arrivals.pop(0)[1]
            waiting.setdefault(arrival.id, arrival._replace(priority=0, since=now, created_at=now))
    raise AssertionError("it is never first")


@pytest.mark.parametrize(
    ("since", "want"),
    [(None, "the earliest"), (after(-60), "as written"), (NOW, "as written"), (after(3600), "the earliest")],
)
def test_arrival_in_the_future_or_unknown_counts_as_the_earliest(since: datetime | None, want: str) -> None:
    """Otherwise the time of a clock that is ahead would put the slice behind all others permanently."""
    found = unit_of(make_slice(make_jobset("train"), unschedulable_since=since), NOW)
    assert (found.since == since) is (want == "as written")
    assert found.since <= NOW


def test_unit_has_the_priority_of_its_leader_pod() -> None:
    assert unit_of(make_slice(make_jobset("train"), priority=1000), NOW).priority == 1000


def test_stamps_are_kept_only_for_contended_resources_and_present_workloads() -> None:
    """A stamp is the time of the last grant of a resource to a namespace or workload."""
    here, gone = make_slice(make_jobset("here", namespace="a")), make_slice(make_jobset("gone", namespace="b"))
    stamps = granted({}, CREATES, [unit_of(here, NOW), unit_of(gone, NOW)], NOW)
    stamps = granted(stamps, RESOURCE, [unit_of(here, NOW)], NOW)
    kept = still_contended(stamps, {CREATES}, [here])
    assert set(kept) == {(CREATES, "a", ""), (CREATES, "a", here.workload.uid)}
    assert still_contended(stamps, set(), [here]) == {}


# --- Priorities of pods ---


HIGH = 1000


def add(world: World, workload: Workload, priority: int) -> None:
    world.workloads[workload.uid] = workload
    for job in range(workload.groups[0].replicas):
        since = world.now
        world.put(make_pod(workload, job=job, unschedulable_since=since, marked=world.marked, priority=priority))


def full_world(*workloads: Workload, chips: int = 8) -> World:
    world = World(*workloads, settings_=settings(max_chips=chips, deletion_delay_seconds=30.0), marked=True)
    world.live(4)
    assert sum(map(world.bound, workloads)) == len(workloads)
    return world


@pytest.mark.parametrize("topology", ["2x2x2", "2x2x1"], ids=["a freed pool", "a limit"])
def test_slice_of_a_higher_priority_is_served_before_older_slices(topology: str) -> None:
    first = jobset_of("first")
    world = full_world(first)
    waiting = [jobset_of(f"batch{number}", topology, namespace=f"n{number % 2}") for number in range(4)]
    for batch in waiting:
        add(world, batch, 10)
        world.live(2, seconds=5)
    urgent = jobset_of("urgent", namespace="n0", topology="2x2x2")
    add(world, urgent, HIGH)
    world.live(2, seconds=5)
    world.finish(first)
    world.live(12, seconds=5)
    assert [world.bound(workload) for workload in (urgent, *waiting)] == [1, 0, 0, 0, 0]
    assert {wait.position for wait in world.plans[-1].waits.values()} == {1, 2, 3, 4}


def test_large_slice_of_a_higher_priority_gets_the_chips_that_small_jobs_leave() -> None:
    small = [jobset_of(f"small{number:02}", "2x2x1", namespace="stream") for number in range(24)]
    world = full_world(*small[:8], chips=32)
    large = jobset_of("large", "2x2x4", namespace="honest")
    add(world, large, HIGH)
    for job in small[8:]:
        add(world, job, 0)
    for job in small[:4]:
        world.finish(job)
        world.live(6, seconds=10)
    plan = world.plans[-1]
    waiting = (state for state in plan.pools if "small" in state.named.name and state.phase.before_create)
    assert "kept for pods of higher priority" in note_of(next(waiting), plan) or world.bound(large)
    world.live(8, seconds=10)
    assert (world.bound(large), sum(map(world.bound, small[8:]))) == (1, 0)


def test_never_served_slice_of_a_higher_priority_keeps_its_chips_for_12_hours() -> None:
    """A PriorityClass whose pods can never be served must not block all other slices for longer."""
    full = jobset_of("full", "2x2x2")
    world = full_world(full, chips=20)
    add(world, jobset_of("never", "2x2x4"), HIGH)
    low = jobset_of("low", "2x2x1", namespace="other")
    add(world, low, 0)
    began = world.now
    world.live(24, seconds=KEPT_AT_MOST.total_seconds() / 24 - 10)
    assert world.now - began < KEPT_AT_MOST
    assert world.bound(low) == 0
    world.live(4, seconds=300)
    assert (world.bound(low), world.now - began < KEPT_AT_MOST + timedelta(hours=1)) == (1, True)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_chips_per_namespace": (("team", 8),)}, id="namespace"),
        pytest.param({"max_pools_per_jobset": 1}, id="workload"),
    ],
)
def test_slice_beyond_a_limit_of_its_own_workload_withholds_no_chips_of_other_limits(limits: dict[str, Any]) -> None:
    """Only the namespace itself can make room for the slice, so chips that are kept for the slice would be idle."""
    world = World(settings_=settings(max_chips=16, **limits), marked=True)
    add(world, jobset_of("urgent", namespace="team", replicas=2), HIGH)
    world.live(4)
    low = jobset_of("low", namespace="other")
    add(world, low, 0)
    world.live(4)
    assert world.bound(low) == 1


def test_slice_beyond_the_limit_of_its_namespace_keeps_the_chips_of_the_namespace() -> None:
    """Otherwise small jobs of the namespace would take the chips that the slice of the higher priority waits for."""
    small = [jobset_of(f"small{number}", "2x2x1", namespace="team") for number in range(4)]
    world = World(*small[:2], settings_=settings(max_chips_per_namespace=(("team", 8),)), marked=True)
    world.live(4)
    urgent = jobset_of("urgent", "2x2x2", namespace="team")
    add(world, urgent, HIGH)
    for job in small[2:]:
        add(world, job, 0)
    for job in small[:2]:
        world.finish(job)
        world.live(6, seconds=60)
    assert (world.bound(urgent), sum(map(world.bound, small[2:]))) == (1, 0)


def test_restarted_slice_of_a_lower_priority_returns_to_its_pool() -> None:
    """Only slices without a pool are queued, so a workload is not preempted between two attempts either."""
    first = jobset_of("first")
    world = full_world(first)
    add(world, jobset_of("urgent", namespace="other"), HIGH)
    world.live(2)
    world.end_pods(first)
    world.live(2)
    world.start_pods(first)
    world.live(3)
    assert world.bound(first) == 1


def test_grants_are_remembered_while_workloads_wait() -> None:
    first = jobset_of("first")
    world = full_world(first)
    for name in ("a", "b"):
        world.add(jobset_of(name, namespace=name))
    world.finish(first)
    world.live(4)
    assert {(CREATES, "a", ""), (CREATES, "a", "uid-of-a-a")} <= world.memory.stamps.keys()
    world.finish(jobset_of("a", namespace="a"))
    world.live(6)
    assert world.bound(jobset_of("b", namespace="b")) == 1
    assert not world.memory.stamps
