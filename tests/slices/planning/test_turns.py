"""Whose turn it is: namespaces first, then workloads, then slices, those first that waited longest since their last."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.workloads import WorkloadUid
from provisioner.slices.planning.turns import TURN, Turn, Unit, had_turn, in_order, next_turn, still_of_use
from tests.support.clock import NOW, after

RESOURCE = "limit all"


def unit(path: str) -> Unit:
    """Return a unit from `namespace/workload/slice`."""
    namespace, workload, *group = path.split("/")
    return Unit(namespace, WorkloadUid(workload), *group)


def waiting(**seconds: float) -> dict[Unit, datetime]:
    """Return units with the moments since when they wait; `a_w_s` stands for a/w/s."""
    return {unit(path.replace("_", "/")): after(at) for path, at in seconds.items()}


@pytest.mark.parametrize(
    ("who", "had", "want"),
    [
        pytest.param({"a_w_1": 5, "a_w_2": 0}, [], "a/w/2 a/w/1", id="slices by their arrival"),
        pytest.param({"a_w_1": 0, "a_w_2": 1}, ["a/w/1"], "a/w/2 a/w/1", id="after a turn a slice is the last"),
        pytest.param(
            {"a_w_1": 0, "a_w_2": 1, "a_v_1": 9}, [], "a/w/1 a/v/1 a/w/2", id="workloads of a namespace in turn"
        ),
        pytest.param(
            {"a_w_1": 0, "a_w_2": 1, "a_v_1": 9},
            ["a/w/3"],
            "a/v/1 a/w/1 a/w/2",
            id="a turn of one slice is its workload's",
        ),
        pytest.param(
            {"a_w_1": 0, "a_v_1": 1, "a_u_1": 2, "b_w_1": 9}, [], "a/w/1 b/w/1 a/v/1 a/u/1", id="namespaces in turn"
        ),
        pytest.param(
            {"a_w_1": 0, "a_v_1": 1, "b_w_1": 9},
            ["a/u/1"],
            "b/w/1 a/w/1 a/v/1",
            id="a turn of one workload is its namespace's",
        ),
        pytest.param({"a_w": 0, "b_w_1": 0}, ["a/w"], "b/w/1 a/w", id="a workload that starts together is one unit"),
    ],
)
def test_the_order_of_units(who: dict[str, float], had: list[str], want: str) -> None:
    last: dict[tuple[str, tuple[str, ...]], datetime] = {}
    for each in had:
        last |= had_turn(RESOURCE, unit(each), after(60))
    order = in_order(RESOURCE, waiting(**who), last)
    assert [unit("/".join(filter(None, each))) for each in order] == [unit(path) for path in want.split()]
    assert in_order("another", waiting(**who), last) == in_order(RESOURCE, waiting(**who), {})


HOLDER, OTHER = unit("a/w/1"), unit("b/v/1")


@pytest.mark.parametrize(
    ("turn", "who", "seconds", "want"),
    [
        pytest.param(None, [], 0, None, id="nobody waits"),
        pytest.param(None, [HOLDER], 0, HOLDER, id="the first that waits has its turn"),
        pytest.param(HOLDER, [HOLDER, OTHER], 899, HOLDER, id="for a quarter of an hour"),
        pytest.param(HOLDER, [HOLDER, OTHER], 900, "pause", id="then nobody has one"),
        pytest.param(HOLDER, [OTHER], 60, OTHER, id="once it is served the next one has its turn at once"),
        pytest.param("pause", [HOLDER, OTHER], 899, "pause", id="a pause is as long"),
        pytest.param("pause", [HOLDER, OTHER], 900, OTHER, id="the next is who waited longer since its last turn"),
        pytest.param("pause", [], 900, None, id="and nobody where none waits"),
    ],
)
def test_a_turn_lasts_and_passes_on(
    turn: Unit | str | None, who: list[Unit], seconds: float, want: Unit | str | None
) -> None:
    """The holder had its turn until the pause began."""
    before = None if turn is None else Turn(holder=None if turn == "pause" else turn, began_at=NOW)  # type: ignore[arg-type]
    last = had_turn(RESOURCE, HOLDER, NOW)
    found = next_turn(before, RESOURCE, dict.fromkeys(who, after(-600)), last, after(seconds))
    assert (None if found is None else found.holder or "pause") == want


_UNITS = st.builds(
    lambda namespace, workload, group: Unit(namespace, WorkloadUid(f"{namespace}{workload}"), group),
    st.sampled_from("abc"),
    st.sampled_from("uvw"),
    st.sampled_from("12345"),
)


@given(st.sets(_UNITS, min_size=1), st.lists(st.tuples(st.integers(0, 3), _UNITS), max_size=60))
def test_everybody_has_a_turn_within_the_bound(at_first: set[Unit], later: list[tuple[int, Unit]]) -> None:
    """However many come later, none that waits has more turns before it than the bound allows."""
    since = dict.fromkeys(sorted(at_first), NOW)
    chosen = min(since)
    last: dict[tuple[str, tuple[str, ...]], datetime] = {}
    coming = list(later)
    most, now = 0, NOW
    for turns in range(1000):
        namespaces = len({each.namespace for each in since})
        workloads = len({each.workload_uid for each in since if each.namespace == chosen.namespace})
        slices = sum(each.workload_uid == chosen.workload_uid for each in since)
        most = max(most, namespaces * workloads * slices)
        holder = in_order(RESOURCE, since, last)[0]
        if holder == chosen:
            assert turns < most
            return
        now += TURN
        last |= had_turn(RESOURCE, holder, now)
        while coming and coming[0][0] <= turns:
            since.setdefault(coming.pop(0)[1], now)
    raise AssertionError("it never has its turn")


def test_what_is_noted_of_turns_goes_with_those_that_waited() -> None:
    """A workload's and a namespace's stay as long as one of theirs waits."""
    last = {**had_turn(RESOURCE, HOLDER, NOW), **had_turn(RESOURCE, OTHER, NOW)}
    kept = still_of_use(last, [unit("a/w/2")])
    assert {key for _, key in kept} == {("a",), ("a", "w")}
    assert still_of_use(last, []) == {}
