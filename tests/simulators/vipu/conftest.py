"""Fixtures: a simulated V-IPU server in memory, on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.settings import VipuSettings
from tests.support.clock import FakeClock


class Vipu:
    """A simulated V-IPU server and its clock."""

    def __init__(self, world: World, clock: FakeClock) -> None:
        self.world = world
        self.clock = clock

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.world.advance()

    def states(self) -> dict[str, str]:
        return {item.id: item.state for item in self.world.all_partitions()}


@pytest.fixture
def make_vipu() -> Callable[..., Vipu]:

    def make(**settings: Any) -> Vipu:
        clock = FakeClock()
        return Vipu(World(VipuSettings(**settings), clock=clock.now, rng=random.Random(1)), clock)

    return make


@pytest.fixture
def vipu(make_vipu: Callable[..., Vipu]) -> Vipu:
    """A world with the default settings: 64 IPUs in one allocation."""
    return make_vipu()
