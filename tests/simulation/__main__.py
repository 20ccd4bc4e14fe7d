"""Runs many seeds of the simulation of slices, or one; `python -m tests.simulation --help` shows the options."""

from __future__ import annotations

import sys

from tests.simulation.planted import BUGS
from tests.simulation.run import run_seed
from tests.support.simulations.command import Simulation

_SIMULATION = Simulation(module="tests.simulation", run_seed=run_seed, bugs=BUGS)

if __name__ == "__main__":
    sys.exit(_SIMULATION.main())
