"""Fixtures: a simulated Compute Engine in memory, on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.simulators.compute.model import World
from rehearsal.simulators.compute.settings import ComputeSettings
from tests.support.clock import FakeClock
from tests.support.compute import Compute


@pytest.fixture
def make_compute() -> Callable[..., Compute]:

    def make(**settings: Any) -> Compute:
        clock = FakeClock()
        return Compute(World(ComputeSettings(**settings), clock=clock.now, rng=random.Random(1)), clock)

    return make


@pytest.fixture
def compute(make_compute: Callable[..., Compute]) -> Compute:
    return make_compute()
