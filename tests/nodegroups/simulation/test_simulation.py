"""Node groups under faults, crashes and people; `python -m tests.nodegroups.simulation` plays more."""

from __future__ import annotations

from tests.nodegroups.simulation.planted import BUGS
from tests.support.simulations.contract import SimulationContract


class TestSimulation(SimulationContract):
    """Groups become ready, settled ones are silent, and nothing is left of those that go, whatever befalls them."""

    module = "tests.nodegroups.simulation"
    name = "nodegroups"
    bugs = len(BUGS)
    seeds_for_a_bug = 12
