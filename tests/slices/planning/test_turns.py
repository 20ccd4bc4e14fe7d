"""Whose turn it is, and what is kept for whoever has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model.workloads import WorkloadUid
from provisioner.slices.planning.turns import TURN, Turn, Unit, had_turn, in_order, next_turn, still_of_use
from tests.support.clock import NOW, after
from tests.support.market import Market, add_mixed, jobset_of
from tests.support.settings import settings
from tests.support.world import World

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


def closed(world: World) -> set[str]:
    """Name the pools with nodes that the provisioner has cordoned."""
    return {node.pool_name for node in world.nodes.values() if node.cordoned_by_us}


def test_a_jobset_that_the_limit_never_allows_in_full_reserves_nothing() -> None:
    """Its third slice waits for its own first two: what is left is for others."""
    world = World(jobset_of("big", "2x4x4", replicas=3), settings_=settings(max_chips=90))
    market = Market(world, seconds=5)
    market.run(80, seconds=15)
    world.add(jobset_of("small", "2x2x1"))
    market.run(8, seconds=15)
    assert "small" in market.ran_at
    assert not world.memory.turns


@pytest.mark.parametrize(
    "obstacle",
    [
        pytest.param({"pause_creation": True}, id="PAUSE_CREATION"),
        pytest.param({"max_pools_per_jobset": 1}, id="MAX_POOLS_PER_JOBSET"),
        pytest.param({"max_creates_per_hour": 0}, id="MAX_CREATES_PER_HOUR"),
    ],
)
def test_who_is_kept_out_by_another_limit_too_reserves_nothing(obstacle: dict[str, object]) -> None:
    """Chips would not help it, and closed pools would hurt others."""
    world = World(jobset_of("full", "2x4x4"), settings_=settings(max_chips=40))
    market = Market(world, seconds=5)
    world.add(jobset_of("waits", "2x2x2", replicas=2))
    market.run(4, seconds=15)
    world.settings = replace(world.settings, **obstacle)  # type: ignore[arg-type]
    market.run(80, seconds=15)
    assert not world.memory.turns
    assert not closed(world)


def test_slices_of_two_accelerators_count_only_in_the_limit_of_their_own() -> None:
    """A gang asks for 32 chips of each, and 36 of one are allowed: it can be had, so chips are kept for it."""
    limits = (("tpu-v4-podslice", 36), ("tpu-v5p-slice", 64))
    world = World(jobset_of("full", "2x2x2"), settings_=settings(max_chips_per_accelerator=limits))
    market = Market(world, seconds=5)
    market.run(4, seconds=15)
    gang = add_mixed(world, "gang", "2x4x4")
    market.run(44, seconds=15)
    # 36 less 32 are missing: the pool of 8 chips is closed.
    ((resource, turn),) = world.memory.turns.items()
    assert resource == "limit accelerator tpu-v4-podslice"
    assert turn.holder is not None
    assert turn.holder.workload_uid == gang.uid
    assert len(closed(world)) == 1


def test_all_pools_in_use_are_closed_until_enough_are_free() -> None:
    """Nobody knows which pods end first: a long run may be among those that would be chosen."""
    small = [jobset_of(f"small{number:02}", "2x2x1") for number in range(20)]
    world = World(*small, settings_=settings(max_chips=80, deletion_delay_seconds=3600.0))
    market = Market(world, seconds=5)
    market.run(4, seconds=15)
    world.add(jobset_of("large", "2x4x4"))
    market.run(8, seconds=15)
    assert len(closed(world)) == 20
    for workload in small[:8]:
        world.remove_jobset(workload)
    market.run(12, seconds=15)
    assert "large" in market.ran_at
    assert not closed(world)


def test_however_many_large_slices_wait_the_rest_is_not_kept_from_others() -> None:
    """A long run has 64 of 90 chips, and thirty slices of 64 come one after the other, all of them older."""
    world = World(jobset_of("long", "4x4x4"), settings_=settings(max_chips=90))
    market = Market(world, seconds=5)
    market.run(4, seconds=15)
    for number in range(30):
        world.add(jobset_of(f"waits{number}", "4x4x4"))
        market.run(8, seconds=60)
    for number in range(3):
        small = jobset_of(f"small{number}", "2x2x1", namespace="others")
        assert market.serves(small, within_seconds=16 * 60, step_seconds=60)
