"""How much of each limit is used, as people see it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner.model.capacity import PoolName
from provisioner.slices.planning.launch.limit_use import LimitUse, uses_of_limits
from tests.support.clock import NOW
from tests.support.models import make_jobset
from tests.support.settings import settings
from tests.support.world import World

_CASES: list[Any] = [
    pytest.param({}, [], id="without limits there is nothing to show"),
    pytest.param({"max_chips": 64}, [("MAX_CHIPS", "all", 64, 32)], id="chips of all"),
    pytest.param(
        {"max_chips_per_namespace": (("a", 64), ("*", 16), ("empty", 8))},
        [
            ("MAX_CHIPS_PER_NAMESPACE", "a", 64, 16),
            ("MAX_CHIPS_PER_NAMESPACE", "*", 16, 8),
            ("MAX_CHIPS_PER_NAMESPACE", "empty", 8, 0),
        ],
        id="chips of namespaces, and of that which uses most of the others",
    ),
    pytest.param(
        {"max_chips_per_accelerator": (("tpu-v4-podslice", 64), ("*", 0))},
        [("MAX_CHIPS_PER_ACCELERATOR", "tpu-v4-podslice", 64, 32), ("MAX_CHIPS_PER_ACCELERATOR", "*", 0, 0)],
        id="chips of accelerators",
    ),
    pytest.param({"max_pools_per_jobset": 8}, [("MAX_POOLS_PER_JOBSET", "*", 8, 2)], id="pools of the one with most"),
    pytest.param({"max_creates_per_hour": 9}, [("MAX_CREATES_PER_HOUR", "all", 9, 1)], id="creates of the last hour"),
]


@pytest.mark.parametrize(("limits", "want"), _CASES)
def test_use_of_limits(limits: dict[str, Any], want: list[tuple[str, str, int, int]]) -> None:
    """Pools in the making count."""
    world = World(make_jobset("two", namespace="a", replicas=2), make_jobset(namespace="b"), make_jobset(namespace="c"))
    world.run(2)
    plan = world.step()
    creates = {PoolName("old"): NOW - timedelta(hours=1), PoolName("new"): NOW - timedelta(minutes=59)}
    plan = replace(plan, memory=replace(plan.memory, created_at=creates))
    uses = uses_of_limits(plan, settings(**limits), NOW)
    assert uses == tuple(LimitUse(*each) for each in want)
