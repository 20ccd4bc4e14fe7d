"""Play node groups: python -m tests.nodegroups.simulation [--seeds N] [--first N] | --seed N [--history]."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time

from tests.nodegroups.simulation.planted import BUGS
from tests.nodegroups.simulation.run import Outcome, run_seed


def main() -> int:
    """Run what is asked for; return 1 where an invariant is broken."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of what a seed replays.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.nodegroups.simulation", *sys.argv[1:]])
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--planted", nargs="?", const="all", default="", choices=("all", *(bug.name for bug in BUGS)))
    options = parser.parse_args()
    if options.seed is not None:
        outcome = run_seed(options.seed, bug=options.planted, recording=options.history)
        _tell(*outcome.history, _told(outcome))
        return 1 if outcome.problem else 0
    if options.planted:
        bugs = [bug.name for bug in BUGS if options.planted in ("all", bug.name)]
        return _find(bugs, options.first, options.seeds)
    return _run(options.first, options.seeds)


def _find(bugs: list[str], first: int, seeds: int) -> int:
    """Look for a seed that shows each bug; return 1 where one is found by none."""
    found = 0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for bug in bugs:
            for outcome in pool.imap(functools.partial(run_seed, bug=bug), range(first, first + seeds)):
                if outcome.problem:
                    found += 1
                    _tell(f"{bug}: {_told(outcome)}")
                    break
            else:
                _tell(f"{bug}: NOT FOUND by {seeds} seeds")
    _tell(f"{found} of {len(bugs)} planted bugs found")
    return 0 if found == len(bugs) else 1


def _run(first: int, seeds: int) -> int:
    began, broken = time.monotonic(), []
    ready_after = 0.0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for outcome in pool.imap_unordered(run_seed, range(first, first + seeds)):
            ready_after = max(ready_after, outcome.ready_after_seconds)
            if outcome.problem:
                broken.append(outcome)
    for outcome in sorted(broken, key=lambda each: each.seed):
        _tell(_told(outcome))
    _tell(
        f"{seeds} seeds in {time.monotonic() - began:.0f} s, {len(broken)} broken; "
        f"ready {ready_after:.0f} s after the last fault at the latest"
    )
    return 1 if broken else 0


def _tell(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _told(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.problem or 'breaks nothing'}"


if __name__ == "__main__":
    sys.exit(main())
