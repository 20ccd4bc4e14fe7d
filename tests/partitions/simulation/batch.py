"""Many runs, in as many processes as there are cores."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from tests.partitions.simulation.planted import BUGS, Bug
from tests.partitions.simulation.run import Outcome, run_seed


def replay(seed: int, *, bug: str, history: bool) -> int:
    """Run one seed, and tell what happened; return 1 where an invariant is broken."""
    outcome = run_seed(seed, bug=bug, recording=history)
    _tell(*outcome.history, _told(outcome))
    return 1 if outcome.problem else 0


def run(first: int, count: int) -> int:
    """Run many seeds; return 1 where one breaks an invariant."""
    began, broken = time.monotonic(), []
    served_after = outlived = 0.0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for outcome in pool.imap_unordered(run_seed, range(first, first + count), chunksize=8):
            served_after = max(served_after, outcome.served_after_seconds)
            outlived = max(outlived, outcome.longest_outlived_seconds)
            if outcome.problem:
                broken.append(outcome)
    _tell(*(_told(outcome) for outcome in sorted(broken, key=lambda each: each.seed)))
    _tell(
        f"{count} seeds in {time.monotonic() - began:.0f} s, {len(broken)} broken; "
        f"all were served {served_after:.0f} s after the last fault at the latest, "
        f"and partitions gone {outlived:.0f} s after their pods"
    )
    return 1 if broken else 0


def find(bugs: Sequence[Bug], seeds: int) -> int:
    """Look for a seed that shows each bug; return 1 where one is found by none."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        shown = pool.map(functools.partial(_show, seeds=seeds), [bug.name for bug in bugs], chunksize=1)
    found = sum(outcome is not None for outcome in shown)
    for bug, outcome in zip(bugs, shown, strict=True):
        _tell(f"{bug.name}: {_told(outcome) if outcome is not None else 'NOT FOUND'}")
    _tell(f"{found} of {len(bugs)} planted bugs found")
    return 0 if found == len(bugs) else 1


def _show(name: str, *, seeds: int) -> Outcome | None:
    """Return the first run that a bug breaks."""
    first = next(bug.search_from for bug in BUGS if bug.name == name)
    outcomes = (run_seed(seed, bug=name) for seed in range(first, first + seeds))
    return next((outcome for outcome in outcomes if outcome.problem), None)


def _told(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.problem or 'breaks nothing'}"


def _tell(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
