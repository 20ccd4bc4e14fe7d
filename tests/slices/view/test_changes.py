"""What has changed of pools from round to round, as far as people are shown it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model.capacity import PoolName
from provisioner.model.workloads import GroupKey, WorkloadKind, WorkloadUid
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.view.timeline import Follower
from tests.support.clock import NOW

POOL = PoolState(
    name=PoolName("a"),
    phase=Phase.IN_USE,
    since=NOW,
    slice_id=SliceId(WorkloadUid("u"), GroupKey("k")),
    leader=None,
    workload=None,
    workload_kind=WorkloadKind.JOBSET,
    namespace="default",
    workload_name="train",
    group_name="train-slice-0",
    machine_type="ct4p-hightpu-4t",
    topology="2x2x2",
    chips=8,
    nodes=2,
    ready_nodes=2,
)


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"note": "else", "ready_nodes": 1}, False, id="its words and numbers"),
        pytest.param({"phase": Phase.IDLE}, True, id="its phase"),
        pytest.param({"draining": True}, True, id="its state, within a phase"),
        pytest.param({"slice_id": None}, True, id="its slice"),
    ],
)
def test_a_pool_changes_with_what_people_are_shown_as_its_row(changes: dict[str, Any], *, changed: bool) -> None:
    """Each is told once."""
    follower, after = Follower(), replace(POOL, **changes)
    assert follower.follow([POOL]) == ((POOL,), (), ())
    assert follower.follow([after]) == ((), (after,) if changed else (), ())
    assert follower.follow([after]) == ((), (), ())


def test_a_pool_ends_and_begins_again() -> None:
    """Under one name."""
    follower = Follower()
    follower.follow([POOL])
    assert follower.follow([]) == ((), (), (POOL.name,))
    assert follower.follow([POOL]) == ((POOL,), (), ())
