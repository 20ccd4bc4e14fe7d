"""Compares or writes hashes of the histories of many seeds; different hashes show the runs that a code change affects.

python -m tests.support.simulations.histories                # compare with tests/data/histories
python -m tests.support.simulations.histories --write slices # write the hashes of one simulation
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import multiprocessing
import os
import sys
from pathlib import Path

from provisioner.runtime import process

_FOLDER = Path(__file__).resolve().parents[2] / "data" / "histories"
_MODULES = {
    "manifests": "tests.slices.offline.drawn",
    "slices": "tests.simulation.run",
    "nodegroups": "tests.nodegroups.simulation.run",
    "partitions": "tests.partitions.simulation.run",
}


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # A seed has the same history only if sets of strings have the same order.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.support.simulations.histories", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulations.histories")
    parser.add_argument("simulations", nargs="*", default=list(_MODULES), help=" ".join(_MODULES))
    parser.add_argument("--seeds", type=int, default=200, help="how many of each (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write the hashes instead of comparing them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (%(default)s)")
    options = parser.parse_args()
    failed = False
    with multiprocessing.get_context("spawn").Pool(options.jobs, process.collect_garbage_rarely) as pool:
        for name in options.simulations:
            played = pool.map(functools.partial(_play, _MODULES[name]), range(options.seeds), chunksize=1)
            hashes = [history for history, _ in played]
            problems = [f"seed {seed}: {problem}\n" for seed, (_, problem) in enumerate(played) if problem]
            sys.stdout.writelines(problems)
            file = _FOLDER / f"{name}.txt"
            if options.write:
                file.write_text("".join(f"{line}\n" for line in hashes), encoding="utf-8")
                continue
            before = file.read_text(encoding="utf-8").split()
            other = [seed for seed, (old, new) in enumerate(zip(before, hashes, strict=False)) if old != new]
            failed = failed or bool(other or problems)
            to_record = f'make histories ARGS="--write {name}"'
            shown = f": {', '.join(map(str, other[:20]))}. If this is wanted: {to_record}" if other else ""
            sys.stdout.write(f"{name}: {len(other)} of {len(hashes)} histories have changed{shown}\n")
    return 1 if failed else 0


def _play(module: str, seed: int) -> tuple[str, str]:
    """Return 16 digits of the hash of a seed's history, and the broken invariant, empty if none."""
    outcome = importlib.import_module(module).run_seed(seed, recording=True)
    return hashlib.sha256("\n".join(map(str, outcome.history)).encode()).hexdigest()[:16], outcome.problem


if __name__ == "__main__":
    sys.exit(main())
