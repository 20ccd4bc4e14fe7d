"""Fixtures: simulated GKE models on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_world(clock: FakeClock) -> Callable[..., World]:

    def make(**settings: Any) -> World:
        return World(SimulatorSettings(**settings), clock=clock.now, rng=random.Random(1))

    return make
