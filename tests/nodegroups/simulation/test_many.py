"""Several groups at once take no longer than one alone, and a bounded number of calls each; the bench plays 200."""

from __future__ import annotations

import pytest

from tests.nodegroups.simulation.many import Many

#: For a group of 16 machines, from its creation until no token is left: three creates with their operations, one
#: change of each machine, and looks at what is being created every ten seconds.
MOST_CALLS = 70

pytestmark = pytest.mark.timeout(60)


def test_eight_groups_of_sixteen_machines() -> None:
    """Ready within 1.2 times the time of one alone; no call is made twice that need not be."""
    alone, together = Many(1).run(), Many(8).run()
    assert together.all_ready_seconds < 1.2 * alone.all_ready_seconds
    assert together.most_calls_of_a_group <= MOST_CALLS
    for figures in (alone, together):
        assert figures.calls["Insert"] == 3 * figures.groups
        assert figures.calls["SetMetadata"] == 16 * figures.groups
        assert figures.calls["ReadMachines"] <= 2 * figures.groups
        assert figures.calls_to_delete["Delete"] == 3 * figures.groups
        assert sum(figures.calls_to_delete.values()) <= 20 * figures.groups
