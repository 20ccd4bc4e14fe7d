"""Command line of a simulation: runs many seeds in parallel, replays one seed, or looks for planted bugs."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from provisioner.runtime import process
from tests.support.simulations.bugs import Bug
from tests.support.simulations.runs import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A simulation with its planted bugs."""

    #: Name of the module for `python -m`.
    module: str
    #: Function with the arguments `seed`, `bug` and `recording`. Other processes import it by its name.
    run_seed: Callable[..., Outcome]
    bugs: Sequence[Bug]

    def main(self) -> int:
        """Run the command; return 1 if an invariant is broken or a planted bug is not found."""
        if os.environ.get("PYTHONHASHSEED") != "0":
            # A seed has the same history only if sets of strings have the same order.
            os.environ["PYTHONHASHSEED"] = "0"
            os.execv(sys.executable, [sys.executable, "-m", self.module, *sys.argv[1:]])
        names = ("all", *(bug.name for bug in self.bugs))
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}")
        parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run (%(default)s)")
        parser.add_argument("--first", type=int, default=0, help="the first of them (%(default)s)")
        parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (%(default)s)")
        parser.add_argument("--seed", type=int, help="run this seed alone")
        parser.add_argument("--history", action="store_true", help="tell step by step what happens in --seed")
        parser.add_argument("--planted", nargs="?", const="all", default="", choices=names, help="with a bug planted")
        options = parser.parse_args()
        if options.seed is not None:
            return self._replay(options.seed, bug=options.planted, history=options.history)
        with multiprocessing.get_context("spawn").Pool(options.jobs, process.collect_garbage_rarely) as pool:
            if options.planted:
                bugs = [bug for bug in self.bugs if options.planted in ("all", bug.name)]
                search = functools.partial(_first_broken, self.run_seed, options.seeds)
                return _tell_bugs(bugs, pool.imap(search, [(bug.name, bug.search_from) for bug in bugs]))
            seeds = range(options.first, options.first + options.seeds)
            return _tell_runs(pool.imap_unordered(self.run_seed, seeds))

    def _replay(self, seed: int, *, bug: str, history: bool) -> int:
        outcome = self.run_seed(seed, bug=bug, recording=history)
        _tell(*outcome.history, _told(outcome))
        return 1 if outcome.problem else 0


def _tell_runs(runs: Iterable[Outcome]) -> int:
    began, outcomes, faults = time.monotonic(), [], Counter[str]()
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for outcome in runs:
        outcomes.append(outcome)
        faults += outcome.faults
        for name, figure in outcome.figures.items():
            figures[name].append(figure)
        if outcome.problem:
            _tell(_told(outcome))
    _tell(f"{faults.total()} faults injected:", *(f"  {number:>8}  {kind}" for kind, number in faults.most_common()))
    _tell(*(f"{name}: median {statistics.median(all_):.0f}, most {max(all_):.0f}" for name, all_ in figures.items()))
    broken = sum(bool(outcome.problem) for outcome in outcomes)
    _tell(f"{len(outcomes)} seeds in {time.monotonic() - began:.0f} s, {broken} broken")
    return 1 if broken else 0


def _tell_bugs(bugs: Sequence[Bug], shown: Iterable[Outcome | None]) -> int:
    found = 0
    for bug, outcome in zip(bugs, shown, strict=True):
        found += outcome is not None
        _tell(f"{bug.name}: {_told(outcome) if outcome is not None else 'NOT FOUND'}")
    _tell(f"{found} of {len(bugs)} planted bugs found")
    return 0 if found == len(bugs) else 1


def _first_broken(run_seed: Callable[..., Outcome], seeds: int, bug_and_first: tuple[str, int]) -> Outcome | None:
    """Return the first run in which a bug breaks an invariant; None if none of `seeds` runs does."""
    bug, first = bug_and_first
    outcomes = (run_seed(seed, bug=bug) for seed in range(first, first + seeds))
    return next((outcome for outcome in outcomes if outcome.problem), None)


def _told(outcome: Outcome) -> str:
    figures = ", ".join(f"{name}: {figure:.3f}" for name, figure in outcome.figures.items())
    return f"seed {outcome.seed}: {outcome.problem or f'breaks nothing; {figures}'}"


def _tell(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
