"""Many seeds on many cores, and what to print of them."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from provisioner.runtime import process
from tests.simulation.planted import bug_named, planted
from tests.simulation.run import SETTLED_WITHIN_SECONDS, Outcome, run_seed

_CHUNK = 5
_HISTORY_SHOWN = 40
_VIOLATIONS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How the search for a planted bug ended."""

    bug: str
    #: None where nothing was found.
    outcome: Outcome | None
    seeds: int
    seconds: float


def run(*, first: int, count: int, jobs: int) -> int:
    """Run seeds; print figures and every violation; return the exit code."""
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(max_workers=jobs, initializer=process.look_less_often) as pool:
        for outcome in pool.map(run_seed, range(first, first + count), chunksize=_CHUNK):
            outcomes.append(outcome)
            if outcome.problem:
                _say(f"seed {outcome.seed} breaks invariant {outcome.problem}")
    seconds = time.perf_counter() - started
    broken = [outcome for outcome in outcomes if outcome.problem]
    for outcome in broken[:_VIOLATIONS_SHOWN]:
        _show(run_seed(outcome.seed, recording=True))
    _sum_up(outcomes, seconds=seconds, jobs=jobs)
    return 1 if broken else 0


def replay(seed: int, *, bug: str, history: bool) -> int:
    """Run one seed again; return the exit code."""
    if bug:
        found = bug_named(bug)
        with planted(found):
            outcome = run_seed(seed, recording=history, storm=found.storm)
    else:
        outcome = run_seed(seed, recording=history)
    for entry in outcome.history:
        _say(str(entry))
    ending = f"breaks invariant {outcome.problem}" if outcome.problem else "breaks nothing"
    _say(f"seed {seed} {ending}; settled {outcome.settled_after_seconds:.0f} s after the storm")
    return 1 if outcome.problem else 0


def find(bugs: list[str], *, first: int, most_seeds: int, jobs: int) -> int:
    """Plant one bug after the other and look for each; return 1 where one was not found."""
    started = time.perf_counter()
    search = functools.partial(find_one, first=first, most_seeds=most_seeds)
    missed = 0
    with ProcessPoolExecutor(max_workers=jobs, initializer=process.look_less_often) as pool:
        for found in pool.map(search, bugs):
            if found.outcome is None:
                missed += 1
                _say(f"{found.bug:<38} NOT FOUND in {found.seeds} seeds, {found.seconds:.1f} s")
                continue
            _say(
                f"{found.bug:<38} found by seed {found.outcome.seed} after {found.seeds} seeds, {found.seconds:.1f} s: "
                f"{found.outcome.invariant}"
            )
    _say(f"{len(bugs) - missed} of {len(bugs)} planted bugs found in {time.perf_counter() - started:.0f} s")
    return 1 if missed else 0


def find_one(name: str, *, first: int, most_seeds: int) -> Found:
    """Run seeds with a bug planted until one of them shows it."""
    started = time.perf_counter()
    bug = bug_named(name)
    first += bug.search_from
    with planted(bug):
        for seed in range(first, first + most_seeds):
            outcome = run_seed(seed, storm=bug.storm)
            if outcome.problem:
                return Found(bug=name, outcome=outcome, seeds=seed - first + 1, seconds=time.perf_counter() - started)
    return Found(bug=name, outcome=None, seeds=most_seeds, seconds=time.perf_counter() - started)


def _show(outcome: Outcome) -> None:
    _say("")
    _say(f"seed {outcome.seed} breaks invariant {outcome.problem}")
    _say(f"the last {_HISTORY_SHOWN} of {len(outcome.history)} lines of its history:")
    for entry in outcome.history[-_HISTORY_SHOWN:]:
        _say(f"  {entry}")
    _say(f"all of it: python -m tests.simulation --seed {outcome.seed} --history")


def _sum_up(outcomes: list[Outcome], *, seconds: float, jobs: int) -> None:
    faults: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for outcome in outcomes:
        faults += outcome.faults
        calls += outcome.calls
    settled = [outcome.settled_after_seconds for outcome in outcomes if not outcome.problem]
    _say("")
    _say(f"{len(outcomes)} seeds in {seconds:.0f} s on {jobs} cores: {len(outcomes) / seconds:.1f} seeds per second")
    _say(f"{faults.total()} faults injected:")
    for kind, number in sorted(faults.items(), key=lambda each: (-each[1], each[0])):
        _say(f"  {number:>8}  {kind}")
    _say("calls to GKE: " + ", ".join(f"{number} {method}" for method, number in sorted(calls.items())))
    _say(f"most calls to GKE by one process within a minute: {max(each.most_calls_per_minute for each in outcomes)}")
    if settled:
        _say(
            f"settled after the storm: median {statistics.median(settled):.0f} s, longest {max(settled):.0f} s "
            f"(bound: {SETTLED_WITHIN_SECONDS:.0f} s)"
        )
    broken = sum(bool(outcome.problem) for outcome in outcomes)
    _say(f"{broken} seeds break an invariant" if broken else "no seed breaks an invariant")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
