"""Tests of the queue for scarce resources: ordered by priority, namespaces in turn, and time of the last grant."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.workloads import GroupKey, WorkloadUid
from provisioner.slices.demand import SliceId
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
from tests.support.models import make_jobset, make_slice

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
def test_each_unit_is_first_within_a_bound_that_later_arrivals_do_not_change(
    at_first: list[Unit], later: list[tuple[int, Unit]]
) -> None:
    """A unit waits for at most (number of namespaces x units of its namespace) grants. Granted units stay queued."""
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
