"""Partitions with random faults, crashes and users; `python -m tests.partitions.simulation` simulates more seeds."""

from __future__ import annotations

from tests.partitions.simulation.planted import BUGS
from tests.support.simulations.contract import SimulationContract


class TestSimulation(SimulationContract):
    """Pods are served in order, no partition outlives its pod for long, and other clusters' partitions are kept."""

    module = "tests.partitions.simulation"
    name = "partitions"
    bugs = BUGS
    seeds_for_a_bug = 6
