"""Node groups under faults, crashes and changes by users; `python -m tests.nodegroups.simulation` runs more seeds."""

from __future__ import annotations

from tests.nodegroups.simulation.planted import BUGS
from tests.support.simulations.contract import SimulationContract


class TestSimulation(SimulationContract):
    """Groups become ready, settled groups cause no writes, and deleted groups leave nothing, regardless of faults."""

    module = "tests.nodegroups.simulation"
    name = "nodegroups"
    bugs = BUGS
    seeds_for_a_bug = 12
