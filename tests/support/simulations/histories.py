"""The histories of many seeds of each simulation as hashes: they show which runs a change of the code changes.

python -m tests.support.simulations.histories                # compare with tests/data/histories
python -m tests.support.simulations.histories --write slices # write those of one simulation anew
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

_FOLDER = Path(__file__).resolve().parents[2] / "data" / "histories"
_MODULES = {
    "slices": "tests.simulation.run",
    "nodegroups": "tests.nodegroups.simulation.run",
    "partitions": "tests.partitions.simulation.run",
}


def main() -> int:
    """Compare or write; return 1 where a history has changed."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of what a seed replays.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.support.simulations.histories", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulations.histories")
    parser.add_argument("simulations", nargs="*", default=list(_MODULES), help=" ".join(_MODULES))
    parser.add_argument("--seeds", type=int, default=200, help="how many of each (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write the hashes instead of comparing them")
    options = parser.parse_args()
    changed = 0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for name in options.simulations:
            hashes = pool.map(functools.partial(_hash, _MODULES[name]), range(options.seeds), chunksize=5)
            file = _FOLDER / f"{name}.txt"
            if options.write:
                file.write_text("".join(f"{each}\n" for each in hashes), encoding="utf-8")
                continue
            before = file.read_text(encoding="utf-8").split()
            other = [seed for seed, (old, new) in enumerate(zip(before, hashes, strict=False)) if old != new]
            changed += len(other)
            shown = f": {', '.join(map(str, other[:20]))}" if other else ""
            sys.stdout.write(f"{name}: {len(other)} of {len(hashes)} histories have changed{shown}\n")
    return 1 if changed else 0


def _hash(module: str, seed: int) -> str:
    """Return the beginning of the hash of one seed's history."""
    outcome = importlib.import_module(module).run_seed(seed, recording=True)
    return hashlib.sha256("\n".join(map(str, outcome.history)).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
