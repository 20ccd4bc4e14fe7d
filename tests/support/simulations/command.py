"""The command line of a simulation: many runs, in as many processes as there are cores; one; or the planted bugs."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.simulations.bugs import Bug
from tests.support.simulations.runs import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What is played."""

    #: For `python -m`.
    module: str
    #: A function with `seed`, `bug` and `recording`, which other processes find by its name.
    run_seed: Callable[..., Outcome]
    bugs: Sequence[Bug]
    #: Says how long what took at the longest: a format of the outcomes' seconds.
    summary: str

    def main(self) -> int:
        """Run what is asked for; return 1 where an invariant is broken, or a planted bug is not found."""
        if os.environ.get("PYTHONHASHSEED") != "0":
            # The order of sets of strings is part of what a seed replays.
            os.environ["PYTHONHASHSEED"] = "0"
            os.execv(sys.executable, [sys.executable, "-m", self.module, *sys.argv[1:]])
        names = ("all", *(bug.name for bug in self.bugs))
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}")
        parser.add_argument("--seeds", type=int, default=100)
        parser.add_argument("--first", type=int, default=0)
        parser.add_argument("--seed", type=int)
        parser.add_argument("--history", action="store_true")
        parser.add_argument("--planted", nargs="?", const="all", default="", choices=names)
        options = parser.parse_args()
        if options.seed is not None:
            return self._replay(options.seed, bug=options.planted, history=options.history)
        if options.planted:
            return self._find([bug for bug in self.bugs if options.planted in ("all", bug.name)], options.seeds)
        return self._run(options.first, options.seeds)

    def _replay(self, seed: int, *, bug: str, history: bool) -> int:
        """Run one seed, and tell what happened."""
        outcome = self.run_seed(seed, bug=bug, recording=history)
        _tell(*outcome.history, _told(outcome))
        return 1 if outcome.problem else 0

    def _run(self, first: int, count: int) -> int:
        """Run many seeds."""
        began, broken, faults = time.monotonic(), [], 0
        longest: defaultdict[str, float] = defaultdict(float)
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            for outcome in pool.imap_unordered(self.run_seed, range(first, first + count)):
                faults += outcome.faults
                for name, seconds in outcome.seconds.items():
                    longest[name] = max(longest[name], seconds)
                if outcome.problem:
                    broken.append(outcome)
        _tell(*(_told(outcome) for outcome in sorted(broken, key=lambda each: each.seed)))
        _tell(
            f"{count} seeds in {time.monotonic() - began:.0f} s, {faults} faults, {len(broken)} broken; "
            + self.summary.format_map(longest)
        )
        return 1 if broken else 0

    def _find(self, bugs: Sequence[Bug], seeds: int) -> int:
        """Look for a seed that shows each bug."""
        search = functools.partial(_first_broken, self.run_seed, seeds)
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            shown = pool.starmap(search, [(bug.name, bug.search_from) for bug in bugs], chunksize=1)
        found = sum(outcome is not None for outcome in shown)
        for bug, outcome in zip(bugs, shown, strict=True):
            _tell(f"{bug.name}: {_told(outcome) if outcome is not None else 'NOT FOUND'}")
        _tell(f"{found} of {len(bugs)} planted bugs found")
        return 0 if found == len(bugs) else 1


def _first_broken(run_seed: Callable[..., Outcome], seeds: int, bug: str, first: int) -> Outcome | None:
    """Return the first run that a bug breaks."""
    outcomes = (run_seed(seed, bug=bug) for seed in range(first, first + seeds))
    return next((outcome for outcome in outcomes if outcome.problem), None)


def _told(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.problem or 'breaks nothing'}"


def _tell(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
