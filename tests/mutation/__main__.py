"""Mutates the code, and shows which mutations the tests detect: `make mutate SAMPLE=300 SEED=1`.

python -m tests.mutation --sample 300 --seed 1                # a sample of all pure code, equally from each package
python -m tests.mutation --at provisioner/slices/planning/match.py  # all mutations of a file; with :LINE, of a line
python -m tests.mutation --again                              # the survivors of the last run, on the current code

Results are kept in .mutation, and an interrupted run is continued unless code or tests have changed. Exit code 1 if
less than --goal percent were killed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.coverage_map import CoverageMap
from tests.mutation.operators import Mutation
from tests.mutation.results import Results, find_again, killed_percent, summary
from tests.mutation.trying import Project, make_copy, record, try_all

_ROOT = Path(__file__).resolve().parents[2]
#: Packages of pure code, with the folders and files of their tests. Code that only reports or sends is not mutated.
_PACKAGES = {
    "provisioner/slices/planning": ("tests/slices",),
    "provisioner/slices/demand": ("tests/slices/demand",),
    "provisioner/slices/view": ("tests/slices/view", "tests/cli/test_asking.py"),
    "provisioner/slices/offline": ("tests/slices/offline", "tests/cli/test_plan.py"),
    "provisioner/nodegroups/api": ("tests/nodegroups/api",),
    "provisioner/nodegroups/planning": ("tests/nodegroups",),
    "provisioner/partitions/planning": ("tests/partitions",),
    "provisioner/environment": ("tests/environment", "tests/admission", "tests/webhook", "tests/tpu"),
    "provisioner/model": ("tests/test_choices.py", "tests/test_settings.py", "tests/kube", "tests/slices/planning"),
    "provisioner/tpu": ("tests/tpu",),
    "provisioner/workloads": ("tests/workloads", "tests/kube", "tests/slices/offline"),
}
#: Options that leave out the simulations, because they run only as the last resort, in separate processes.
_SIMULATIONS = ("--ignore=tests/nodegroups/simulation", "--ignore=tests/partitions/simulation")
_OPTIONS = ("-m", "not e2e", "--hypothesis-seed=0", *_SIMULATIONS)


def _as_recorded(*names: str) -> tuple[str, ...]:
    """Return the arguments of the command that compares seeds of simulations with their recorded histories."""
    return ("-m", "tests.support.simulations.histories", *names, "--seeds", "100", "--jobs", "1")


_PROJECT = Project(
    root=_ROOT,
    packages=_PACKAGES,
    pytest_options=(*_OPTIONS, "--hypothesis-profile=mutation"),
    recording_options=(*_OPTIONS, "--hypothesis-profile=mutation-map", "--numprocesses=auto"),
    last_resort=_as_recorded("manifests", "slices"),
    last_resorts={
        "provisioner/environment": _as_recorded("manifests"),
        "provisioner/slices/offline": _as_recorded("manifests"),
        "provisioner/nodegroups/planning": _as_recorded("nodegroups"),
        "provisioner/nodegroups/api": _as_recorded("nodegroups"),
        "provisioner/partitions/planning": _as_recorded("partitions"),
    },
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="how many mutations, of all packages (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (%(default)s)")
    parser.add_argument(
        "--packages", nargs="+", choices=list(_PACKAGES), default=list(_PACKAGES), help="mutate these only"
    )
    parser.add_argument("--at", nargs="+", metavar="PATH[:LINE]", help="all mutations of these files or lines")
    parser.add_argument("--again", action="store_true", help="what survived the last run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once (%(default)s)")
    parser.add_argument("--goal", type=float, default=95.0, help="percent that must be killed (%(default)s)")
    parser.add_argument("--state", type=Path, default=_ROOT / ".mutation", help="where results are kept (%(default)s)")
    return parser.parse_args()


def draw(project: Project, mutations: Sequence[Mutation], *, size: int, seed: int) -> list[Mutation]:
    """Draw the same number of mutations from each package; if a package has fewer, draw more from the others."""
    rng = random.Random(seed)
    packages = {package: list[Mutation]() for package in project.packages}
    for mutation in mutations:
        packages[project.package_of(mutation.path)].append(mutation)
    pools = sorted(packages.values(), key=len)
    drawn: list[Mutation] = []
    for number, pool in enumerate(pools):
        share = (size - len(drawn)) // (len(pools) - number)
        drawn += rng.sample(pool, min(len(pool), share))
    rng.shuffle(drawn)
    return drawn


def _wanted(arguments: argparse.Namespace, results: Results) -> list[Mutation]:
    names = set(arguments.packages)
    mutations = [mutation for mutation in _PROJECT.mutations() if _PROJECT.package_of(mutation.path) in names]
    if arguments.again:
        return list(find_again((result.mutation for result in results.read() if not result.fate.is_killed), mutations))
    if arguments.at:
        places = set(arguments.at)
        return [mutation for mutation in mutations if {mutation.path, f"{mutation.path}:{mutation.line}"} & places]
    project = Project(root=_ROOT, packages={name: () for name in _PROJECT.packages if name in names})
    return draw(project, mutations, size=arguments.sample, seed=arguments.seed)


def main() -> int:
    arguments = _arguments()
    arguments.state.mkdir(exist_ok=True)
    results, fingerprint = Results(arguments.state / "results.jsonl"), _PROJECT.fingerprint()
    wanted = _wanted(arguments, results)
    known = {result.mutation: result for result in results.begin(fingerprint)}
    left = [mutation for mutation in wanted if mutation not in known]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        first = make_copy(_PROJECT, Path(scratch, "0"))
        tests = _tests(arguments.state, fingerprint, first)
        # The other copies are made from the first copy, which may already have compiled modules.
        copies = [first, *(Path(shutil.copytree(first, Path(scratch, str(n)))) for n in range(1, arguments.jobs))]
        for number, result in enumerate(try_all(_PROJECT, left, tests, copies), start=1):
            results.add(result)
            known[result.mutation] = result
            _say(f"{number}/{len(left)} {result.fate.value:<9} {result.seconds:>5.1f} s  {result.mutation}")
    tried = [known[mutation] for mutation in wanted]
    _say("")
    for line in summary(_PROJECT, tried):
        _say(line)
    _say(f"{len(left)} tried now, in {time.monotonic() - started:.0f} s")
    return 0 if killed_percent(tried) >= arguments.goal else 1


def _tests(state: Path, fingerprint: str, copy: Path) -> CoverageMap:
    file = state / f"coverage-{fingerprint[:16]}.json"
    if not file.exists():
        _say("running the tests without a mutation, to see which run what")
        tests = record(_PROJECT, copy)
        for old in state.glob("coverage-*.json"):
            old.unlink()
        tests.save(file)
    return CoverageMap.load(file)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
