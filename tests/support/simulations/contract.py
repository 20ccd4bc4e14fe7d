"""Tests that each simulation inherits.

The simulation runs in separate processes, because in the process of pytest coverage would take most of the time, and
the order of sets would change from run to run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.simulations.bugs import Bug

_ROOT = Path(__file__).parents[3]


# A simulation uses all cores for minutes, and longer if a bug causes hours of virtual time without progress.
@pytest.mark.timeout(3000)
class HistoriesContract:
    """Runs of many seeds keep all invariants and have the recorded histories."""

    #: Name of the simulation in the recorded histories.
    name: ClassVar[str]

    @pytest.mark.parametrize("seeds", [pytest.param(8), pytest.param(200, marks=pytest.mark.nightly)])
    def test_runs_keep_invariants_and_equal_their_recorded_histories(self, seeds: int) -> None:
        """`make histories ARGS=--write` records new histories after an intended change."""
        done = self._run("tests.support.simulations.histories", self.name, "--seeds", str(seeds))
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]

    def _run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE", "COV_CORE"))}
        return subprocess.run(
            ["nice", "-n", "10", sys.executable, "-m", module, *arguments],
            cwd=_ROOT,
            env={**environment, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )


class SimulationContract(HistoriesContract):
    """Adds the tests that each planted bug changes existing code, and is found."""

    #: Name of the module for `python -m`.
    module: ClassVar[str]
    bugs: ClassVar[Sequence[Bug]]
    #: Maximum number of seeds to run for each bug; at least one of them must show the bug.
    seeds_for_a_bug: ClassVar[int]

    def test_every_planted_bug_changes_an_existing_attribute(self) -> None:
        places = [at for bug in self.bugs for at in (bug.at, *(bug.also or ())[:1])]
        assert [(owner, name) for owner, name in places if name not in vars(owner)] == []

    @pytest.mark.nightly
    def test_every_planted_bug_is_found(self) -> None:
        done = self._simulate("--planted", "--seeds", str(self.seeds_for_a_bug))
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
        number = len(self.bugs)
        assert f"{number} of {number} planted bugs found" in done.stdout, done.stdout
        assert number >= 12
        # A mutation that only crashes every round would also be found, but would prove nothing about the checks.
        assert "no round crashes" not in done.stdout

    def _simulate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.module, *arguments)
