"""Run the simulation: many seeds on all cores, one seed with its history, or the planted bugs.

python -m tests.simulation --seeds 500             # seeds 0 to 499; exit code 1 where an invariant breaks
python -m tests.simulation --seed 123 --history    # one seed, told step by step
python -m tests.simulation --planted               # every planted bug, until it is found
python -m tests.simulation --planted name-without-attempt --seed 3 --history
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation import batch
from tests.simulation.planted import BUGS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds to run (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--history", action="store_true", help="tell step by step what happens in --seed")
    parser.add_argument(
        "--planted", nargs="?", const="all", choices=("all", *(bug.name for bug in BUGS)), help="with a bug planted"
    )
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of what a seed replays.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    arguments = _arguments()
    if arguments.seed is not None:
        bug = "" if arguments.planted in (None, "all") else arguments.planted
        return batch.replay(arguments.seed, bug=bug, history=arguments.history)
    if arguments.planted is not None:
        names = [bug.name for bug in BUGS if arguments.planted in ("all", bug.name)]
        return batch.find(names, first=arguments.first, most_seeds=arguments.seeds, jobs=arguments.jobs)
    return batch.run(first=arguments.first, count=arguments.seeds, jobs=arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
