"""What each simulation is tested for, in processes of its own.

Tracing coverage would take most of the time, and the order of sets has to be fixed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

_ROOT = Path(__file__).parents[3]


# These take all cores for minutes; a bug often shows by nothing happening for hours, which takes longest to play.
@pytest.mark.timeout(3000)
class HistoriesContract:
    """Many seeds break nothing and go as recorded."""

    #: By which its histories are recorded.
    name: ClassVar[str]
    #: How many are played.
    seeds: ClassVar[int] = 100

    def test_no_seed_breaks_an_invariant_and_each_goes_as_recorded(self) -> None:
        """Whatever befalls it, the world comes to rest as the simulation's module says; `make histories` records."""
        done = self._run("tests.support.simulations.histories", self.name, "--seeds", str(self.seeds))
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
    """Each planted bug is found, besides."""

    #: For `python -m`.
    module: ClassVar[str]
    bugs: ClassVar[int]
    #: In so many seeds each bug has to show.
    seeds_for_a_bug: ClassVar[int]

    def test_every_planted_bug_is_found(self) -> None:
        """The checks are not blind: each bug that is put into the real code breaks an invariant."""
        done = self._simulate("--planted", "--seeds", str(self.seeds_for_a_bug))
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
        assert f"{self.bugs} of {self.bugs} planted bugs found" in done.stdout, done.stdout
        assert self.bugs >= 12
        # A mutation that does not run would be found, too, and show nothing.
        assert "no round crashes" not in done.stdout

    def _simulate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.module, *arguments)
