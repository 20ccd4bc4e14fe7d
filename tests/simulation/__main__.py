"""Play slices: python -m tests.simulation [--seeds N] [--first N] | --seed N [--history] | --planted [BUG]."""

from __future__ import annotations

import sys

from tests.simulation.planted import BUGS
from tests.simulation.run import run_seed
from tests.support.simulations.command import Simulation

_SIMULATION = Simulation(module="tests.simulation", run_seed=run_seed, bugs=BUGS)

if __name__ == "__main__":
    sys.exit(_SIMULATION.main())
