"""Several groups take about as long as one group, with a bounded number of calls for each group."""

from __future__ import annotations

import pytest

from tests.nodegroups.simulation.many import Many

#: Maximum number of calls for a group of 16 machines, until its tokens are deleted: three creates with their
#: operations, one change for each machine, and reads every 10 s while resources are being created.
MAX_CALLS = 70

pytestmark = pytest.mark.timeout(60)


def test_eight_groups_take_less_than_20_percent_longer_than_one_and_bounded_calls() -> None:
    alone, together = Many(1).run(), Many(8).run()
    assert together.all_ready_seconds < 1.2 * alone.all_ready_seconds
    assert together.max_calls_of_a_group <= MAX_CALLS
    for figures in (alone, together):
        assert figures.calls["Insert"] == 3 * figures.groups
        assert figures.calls["SetMetadata"] == 16 * figures.groups
        assert figures.calls["ReadMachines"] <= 2 * figures.groups
        assert figures.calls_to_delete["Delete"] == 3 * figures.groups
        assert sum(figures.calls_to_delete.values()) <= 20 * figures.groups
