"""What a pool and its nodes are worth to a decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from provisioner.model.snapshot import Snapshot
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.round import Supply, find_supply
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.clock import NOW, after
from tests.support.models import make_jobset, make_nodes, make_pool, make_requirements
from tests.support.settings import settings

FOUR_CHIPS = make_pool(make_jobset())
ONE_CHIP = make_pool(
    make_jobset(parallelism=1, template=make_requirements(accelerator="tpu-v5-lite-podslice", topology="1x1", chips=1))
)


def supply_of(pool: NodePool, *, memory: Memory | None = None, **node_changes: object) -> Supply:
    """Return what a pool is worth with all its nodes there."""
    nodes = make_nodes(pool, **node_changes)
    return find_supply(
        Snapshot(pools=(pool,), nodes=tuple(nodes), pools_listed_at=NOW), memory or Memory(), settings(), GKE_RULES, NOW
    )[pool.name]


@pytest.mark.parametrize(
    ("pool", "chips", "ready"),
    [
        pytest.param(ONE_CHIP, 1, True, id="a host of one chip with its chip"),
        pytest.param(ONE_CHIP, 0, False, id="a host of one chip before its device plugin has started"),
        pytest.param(FOUR_CHIPS, 4, True, id="hosts of four chips with all"),
        pytest.param(FOUR_CHIPS, 3, False, id="hosts of four chips, one of which is broken"),
        pytest.param(replace(ONE_CHIP, machine_type="ct99-new"), 0, False, id="an unknown machine without chips"),
        pytest.param(replace(ONE_CHIP, machine_type="ct99-new"), 1, True, id="an unknown machine with a chip"),
    ],
)
def test_a_host_is_ready_with_all_its_chips(pool: NodePool, chips: int, *, ready: bool) -> None:
    """A node is Ready before the chips are there, and pods that ask for them do not fit until then."""
    assert supply_of(pool, allocatable_chips=chips).ready is ready


def test_chips_of_a_pool() -> None:
    """Of all its hosts; none where the machine type is unknown."""
    found = [supply_of(pool).chips for pool in (ONE_CHIP, FOUR_CHIPS, replace(FOUR_CHIPS, machine_type="ct99-new"))]
    assert found == [1, 8, 0]


def test_since_when_a_pool_that_is_up_lacks_hosts() -> None:
    """Since it was first seen, however often it is looked at; not while all are there, nor while it is made."""
    partly = replace(FOUR_CHIPS, hosts=3)
    nodes = make_nodes(FOUR_CHIPS)
    known = Memory(unready_since={PoolName(FOUR_CHIPS.name): after(-60)})
    for pool, memory, want in (
        (partly, Memory(), NOW),
        (partly, known, after(-60)),
        (FOUR_CHIPS, known, None),
        (replace(partly, status=PoolStatus.PROVISIONING), known, None),
    ):
        assert (
            find_supply(
                Snapshot(pools=(pool,), nodes=tuple(nodes), pools_listed_at=NOW), memory, settings(), GKE_RULES, NOW
            )[pool.name].unready_since
            == want
        )
