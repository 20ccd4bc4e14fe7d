"""Tests of the model of the simulated V-IPU server: users in secure mode, and IPUs of partitions."""

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
