"""Simulates node groups with many seeds; `python -m tests.nodegroups.simulation --help` lists the options."""

from __future__ import annotations

import sys

from tests.nodegroups.simulation.planted import BUGS
from tests.nodegroups.simulation.run import run_seed
from tests.support.simulations.command import Simulation

_SIMULATION = Simulation(
    module="tests.nodegroups.simulation",
    run_seed=run_seed,
    bugs=BUGS,
)

if __name__ == "__main__":
    sys.exit(_SIMULATION.main())
