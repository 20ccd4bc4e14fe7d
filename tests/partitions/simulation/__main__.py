"""Play partitions of IPUs: python -m tests.partitions.simulation [--seeds N] [--first N] | --seed N [--history]."""

from __future__ import annotations

import argparse
import os
import sys

from tests.partitions.simulation import batch
from tests.partitions.simulation.planted import BUGS


def main() -> int:
    """Run what is asked for; return 1 where an invariant is broken."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of what a seed replays.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.partitions.simulation", *sys.argv[1:]])
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--planted", nargs="?", const="all", default="", choices=("all", *(bug.name for bug in BUGS)))
    options = parser.parse_args()
    if options.seed is not None:
        return batch.replay(options.seed, bug=options.planted, history=options.history)
    if options.planted:
        return batch.find([bug for bug in BUGS if options.planted in ("all", bug.name)], options.seeds)
    return batch.run(options.first, options.seeds)


if __name__ == "__main__":
    sys.exit(main())
