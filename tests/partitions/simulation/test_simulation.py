"""Partitions under faults, crashes and people; `python -m tests.partitions.simulation` plays more."""

from __future__ import annotations

from tests.partitions.simulation.planted import BUGS
from tests.support.simulations.contract import SimulationContract


class TestSimulation(SimulationContract):
    """Whoever asks is served in turn, nothing is left of those that go, and nobody else's is touched."""

    module = "tests.partitions.simulation"
    name = "partitions"
    bugs = len(BUGS)
    seeds_for_a_bug = 6
