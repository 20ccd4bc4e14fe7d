"""Play node groups: python -m tests.nodegroups.simulation [--seeds N] [--first N] | --seed N [--history]."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

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
    options = parser.parse_args()
    if options.seed is not None:
        outcome = run_seed(options.seed, recording=options.history)
        _tell(*outcome.history, _told(outcome))
        return 1 if outcome.problem else 0
    began, broken = time.monotonic(), []
    ready_after = 0.0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for outcome in pool.imap_unordered(run_seed, seeds):
            ready_after = max(ready_after, outcome.ready_after_seconds)
            if outcome.problem:
                broken.append(outcome)
    for outcome in sorted(broken, key=lambda each: each.seed):
        _tell(_told(outcome))
    _tell(
        f"{options.seeds} seeds in {time.monotonic() - began:.0f} s, {len(broken)} broken; "
        f"ready {ready_after:.0f} s after the last fault at the latest"
    )
    return 1 if broken else 0


def _tell(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _told(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.problem or 'breaks nothing'}"


if __name__ == "__main__":
    sys.exit(main())
