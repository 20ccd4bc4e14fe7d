"""Node groups under faults, crashes and people: 200 seeds; `python -m tests.nodegroups.simulation` plays more.

Runs in processes of its own: tracing coverage would take most of the time, and the order of sets has to be fixed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodegroups.simulation.planted import BUGS

#: These take all cores for minutes; a bug often shows by nothing happening for hours, which takes longest to play.
pytestmark = pytest.mark.timeout(1800)
_ROOT = Path(__file__).parents[3]


def _simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE", "COV_CORE"))}
    return subprocess.run(
        ["nice", "-n", "10", sys.executable, "-m", "tests.nodegroups.simulation", *arguments],
        cwd=_ROOT,
        env={**environment, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_seed_breaks_an_invariant() -> None:
    """Groups become ready, settled ones are silent, and nothing is left of those that go, whatever befalls them."""
    done = _simulate("--seeds", "200")
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert "200 seeds in" in done.stdout


def test_every_planted_bug_is_found() -> None:
    """The checks are not blind: each bug that is put into the real code breaks an invariant."""
    done = _simulate("--planted", "--seeds", "12")
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert f"{len(BUGS)} of {len(BUGS)} planted bugs found" in done.stdout
    assert len(BUGS) >= 12


def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same history in another process, to the last line."""
    first, second = (_simulate("--seed", "7", "--history").stdout for _ in range(2))
    assert first.count("\n") > 100
    assert first == second
