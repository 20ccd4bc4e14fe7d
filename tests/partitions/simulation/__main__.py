"""Simulates partitions with many seeds; `python -m tests.partitions.simulation --help` lists the options."""

from __future__ import annotations

import sys

from tests.partitions.simulation.planted import BUGS
from tests.partitions.simulation.run import run_seed
from tests.support.simulations.command import Simulation

_SIMULATION = Simulation(
    module="tests.partitions.simulation",
    run_seed=run_seed,
    bugs=BUGS,
)

if __name__ == "__main__":
    sys.exit(_SIMULATION.main())
