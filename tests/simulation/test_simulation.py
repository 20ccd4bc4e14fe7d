"""The whole controller against a simulated world: hundreds of seeds, and bugs planted on purpose.

Runs in processes of its own: tracing coverage would take most of the time, and the order of sets has to be fixed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted import BUGS

#: Each starts Python, and a few of them play thousands of hours.
pytestmark = pytest.mark.timeout(3000)

_ROOT = Path(__file__).parents[2]
#: Most planted bugs are shown by the first few seeds, the rarest by one of about a hundred.
_MOST_SEEDS_FOR_A_BUG = 400


def _simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE", "COV_CORE"))}
    return subprocess.run(
        # It takes all cores for minutes: it gets what the tests beside it, which mostly wait, leave of them.
        ["nice", "-n", "10", sys.executable, "-m", "tests.simulation", *arguments],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_seed_breaks_an_invariant() -> None:
    """A hundred seeds of JobSets, faults, crashes and changes of leader settle as they should."""
    done = _simulate("--seeds", "100")
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert "100 seeds in" in done.stdout


def test_every_planted_bug_is_found() -> None:
    """The checker is not blind: each bug that is put into the real code breaks an invariant."""
    done = _simulate("--planted", "--seeds", str(_MOST_SEEDS_FOR_A_BUG))
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert f"{len(BUGS)} of {len(BUGS)} planted bugs found" in done.stdout
    assert len(BUGS) >= 12
    # A mutation that does not run would be found, too, and show nothing.
    assert "no round crashes" not in done.stdout


@pytest.fixture(scope="module")
def told() -> str:
    """Give the history of a seed."""
    done = _simulate("--seed", "7", "--history")
    assert done.stdout.count("\n") > 100, done.stdout + done.stderr
    return done.stdout


def test_a_seed_replays_exactly(told: str) -> None:
    """The same seed gives the same history in another process, to the last line."""
    assert _simulate("--seed", "7", "--history").stdout == told


def test_recording_the_history_changes_nothing(told: str) -> None:
    """A violation found by a run without history is there again when its history is asked for."""
    last = told.splitlines()[-1]
    assert last.startswith("seed 7 breaks nothing; settled ")
    assert _simulate("--seed", "7").stdout.splitlines()[-1] == last


def test_a_violation_is_told_with_its_seed_and_its_history() -> None:
    """What breaks is named, with the steps that led there and an exit code that fails a build."""
    done = _simulate("--planted", "every-replica-acts", "--seed", "0", "--history")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("seed 0 breaks invariant 4 ")
    assert any("creates JobSet" in line for line in lines)
    assert "VIOLATION" in lines[-2]
