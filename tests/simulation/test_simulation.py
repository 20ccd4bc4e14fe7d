"""The whole controller against a simulated world; `python -m tests.simulation` runs more seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS
from tests.support.simulations.contract import SimulationContract


class TestSimulation(SimulationContract):
    """Worlds with JobSets, faults, crashes and changes of the leader settle without a violation."""

    module = "tests.simulation"
    name = "slices"
    bugs = BUGS
    #: Maximum number of seeds, from a bug's `search_from` on, that are searched for the bug.
    seeds_for_a_bug = 400

    def test_no_run_with_deployments_guests_and_hostile_pods_breaks_an_invariant(self) -> None:
        """Many of these runs have a team of Deployments, or guests; the recorded histories have neither."""
        # All kinds of tenants are present from seed 61,000 on; seed 61,008 alone takes as long as these seeds together.
        done = self._simulate("--seeds", "11", "--first", "61009")
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
        assert "hostile pods" in done.stdout

    @pytest.mark.nightly
    def test_violation_is_reported_with_its_history(self) -> None:
        done = self._simulate("--planted", "every-replica-acts", "--seed", "0", "--history")
        assert done.returncode == 1
        lines = done.stdout.splitlines()
        assert lines[-1].startswith("seed 0: 4 ")
        assert any("creates JobSet" in line for line in lines)
        assert "VIOLATION" in lines[-2]
