"""Tests of the simulated V-IPU server: creates, errors, faults and restarts."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.simulators.vipu.model import World, places
from rehearsal.simulators.vipu.records import Asked, Caller, VipuRefusalError
from rehearsal.simulators.vipu.settings import VipuSettings
from tests.support.clock import FakeClock

TWO = {"a": {"cluster": "c1", "agents": ["ag0", "ag1"]}, "b": {"cluster": "c1", "agents": ["ag2", "ag3", "ag4"]}}
USERS = {"alice": {"key": "secret-a", "allocations": ["a"]}, "bob": {"key": "secret-b", "allocations": ["a", "b"]}}
ALICE = Caller(user="alice", key="secret-a")
BOB = Caller(user="bob", key="secret-b")


def _refusal(call: Callable[[], object]) -> str:
    with pytest.raises(VipuRefusalError) as caught:
        call()
    return caught.value.grpc_code


def test_removed_partition_keeps_its_ipus_until_the_remove_has_ended(vipu: Any) -> None:
    vipu.world.create(Asked(id="p1", size=64))
    vipu.after(5)
    number = vipu.world.remove("p1")
    assert vipu.states() == {"p1": "REMOVING"}
    assert _refusal(lambda: vipu.world.create(Asked(id="p2", size=1))) == "ResourceExhausted"
    vipu.after(1)
    assert (vipu.states(), vipu.world.outcome(number).done) == ({}, True)
    vipu.world.create(Asked(id="p2", size=64))


def test_users_in_secure_mode_see_all_partitions_of_their_allocations(make_vipu: Any) -> None:
    vipu = make_vipu(allocations=TWO, users=USERS, secure=True)
    vipu.world.create(Asked(id="pa", size=1, allocation="a"), BOB)
    vipu.world.create(Asked(id="pb", size=1, allocation="b"), BOB)
    vipu.after(5)
    assert [item.id for item in vipu.world.partitions(ALICE)] == ["pa"]
    assert [item.id for item in vipu.world.partitions(BOB)] == ["pa", "pb"]
    assert _refusal(lambda: vipu.world.remove("pb", ALICE)) == "NotFound"
    assert _refusal(lambda: vipu.world.create(Asked(id="pc", size=1, allocation="b"), ALICE)) == "NotFound"
    vipu.world.remove("pa", ALICE)


@pytest.mark.parametrize("keeps", [True, False])
def test_restart_breaks_unfinished_changes_and_may_lose_all_partitions(vipu: Any, keeps: bool) -> None:
    vipu.world.create(Asked(id="old", size=1))
    vipu.after(5)
    number = vipu.world.create(Asked(id="new", size=1))
    vipu.world.restart(keeps_partitions=keeps, down_seconds=20)
    assert _refusal(vipu.world.partitions) == "Unavailable"
    assert vipu.world.outcome(number).failure == "the server is restarting"
    vipu.after(20)
    seen = {item.id: item.state for item in vipu.world.partitions()}
    assert seen == ({"old": "ACTIVE", "new": "ERROR"} if keeps else {})


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.booleans()), max_size=40), st.booleans())
def test_no_ipu_is_in_two_partitions(steps: list[tuple[int, bool]], scattered: bool) -> None:
    clock = FakeClock()
    settings = VipuSettings(placement="scattered" if scattered else "first")
    world = World(settings, clock=clock.now, rng=random.Random(2))
    for number, (size, removes) in enumerate(steps):
        there = [item.id for item in world.all_partitions()]
        if removes and there:
            world.remove(there[0])
        else:
            taken = {ipu for item in world.all_partitions() for ipu in item.ipus}
            make = functools.partial(world.create, Asked(id=f"p{number}", size=size))
            if places(world.ipus(), taken, size):
                make()
            else:
                assert _refusal(make) == "ResourceExhausted"
        clock.advance(10)
        used = [ipu for item in world.all_partitions() for ipu in item.ipus]
        assert len(used) == len(set(used))
        assert world.all_allocations()[0].free == 64 - len(used)
