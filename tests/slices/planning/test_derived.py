"""Tests of the data that a round derives from a snapshot: slices, pools, and which namespaces are served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from provisioner.model.workloads import Pod, Workload
from provisioner.slices.planning.memory.state import Memory, PoolMemory
from provisioner.slices.planning.round import OwnedPool, Round, Snapshot, begin_round, find_pools
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.clock import NOW, after
from tests.support.models import make_jobset, make_nodes, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World

OPT_IN = settings(opt_in_label=("tpu", "yes"))


class CountedLabels(dict[str, dict[str, str]]):
    """Namespace labels that count how often they are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedLabels.compared += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def round_after(last: Round | None, world: World, labels: dict[str, dict[str, str]]) -> Round:
    snapshot = replace(world.snapshot(), namespace_labels=labels)
    return begin_round(snapshot, world.memory, OPT_IN, GKE_RULES, world.now, last)


def waiting(count: int) -> tuple[list[Workload], World]:
    workloads = [make_jobset(f"train-{index}", replicas=1) for index in range(count)]
    return workloads, World(*workloads)


def test_namespace_labels_are_compared_once_per_round() -> None:
    """Otherwise a user who may create namespaces could slow down every decision."""
    _, world = waiting(20)
    last = round_after(None, world, CountedLabels(default={"tpu": "yes"}))
    CountedLabels.compared = 0
    now = round_after(last, world, CountedLabels(default={"tpu": "yes"}))
    assert all(now.slices[slice_id] is slice_ for slice_id, slice_ in last.slices.items())
    assert CountedLabels.compared == 1


def test_slices_of_a_namespace_that_is_no_longer_served_are_unserved() -> None:
    _, world = waiting(2)
    before = round_after(None, world, {"default": {"tpu": "yes"}})
    after = round_after(before, world, {"default": {}})
    assert [slice_.served for slice_ in before.slices.values()] == [True, True]
    assert [slice_.served for slice_ in after.slices.values()] == [False, False]


def test_changed_pod_changes_only_the_slices_of_its_workload() -> None:
    workloads, world = waiting(3)
    labels = {"default": {"tpu": "yes"}}
    before = round_after(None, world, labels)
    pod: Pod = make_pod(workloads[0], node="somewhere")
    world.put(pod)
    after = round_after(before, world, labels)
    changed: list[Any] = [
        slice_id for slice_id in after.slices if after.slices[slice_id] is not before.slices[slice_id]
    ]
    assert [slice_id.workload_uid for slice_id in changed] == [workloads[0].uid]
    assert not after.slices[changed[0]].pending


FOUR_CHIPS = make_pool(make_jobset())
ONE_CHIP = make_pool(
    make_jobset(parallelism=1, template=make_requirements(accelerator="tpu-v5-lite-podslice", topology="1x1", chips=1))
)


def supply_of(pool: NodePool, *, memory: Memory | None = None, **node_changes: object) -> OwnedPool:
    nodes = make_nodes(pool, **node_changes)
    return find_pools(
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
    """A node is Ready before its device plugin reports the chips, and pods that request chips do not fit yet."""
    assert supply_of(pool, allocatable_chips=chips).ready is ready


def test_chips_of_a_pool_are_the_chips_of_all_its_hosts() -> None:
    found = [supply_of(pool).chips for pool in (ONE_CHIP, FOUR_CHIPS, replace(FOUR_CHIPS, machine_type="ct99-new"))]
    assert found == [1, 8, 0]


def test_unready_time_of_a_running_pool_is_the_first_round_without_all_hosts() -> None:
    partly = replace(FOUR_CHIPS, hosts=3)
    nodes = make_nodes(FOUR_CHIPS)
    known = Memory(pools={PoolName(FOUR_CHIPS.name): PoolMemory(unready_since=after(-60))})
    for pool, memory, want in (
        (partly, Memory(), NOW),
        (partly, known, after(-60)),
        (FOUR_CHIPS, known, None),
        (replace(partly, status=PoolStatus.PROVISIONING), known, None),
    ):
        assert (
            find_pools(
                Snapshot(pools=(pool,), nodes=tuple(nodes), pools_listed_at=NOW), memory, settings(), GKE_RULES, NOW
            )[pool.name].unready_since
            == want
        )


def test_facts_of_a_pool_in_creation_are_reused_until_its_status_changes() -> None:
    """Otherwise each round during a burst of creates would derive the facts of all pools in creation again."""

    def owned(
        pool: NodePool, memory: Memory, last: Mapping[PoolName, OwnedPool], seconds: int
    ) -> Mapping[str, OwnedPool]:
        snapshot = Snapshot(pools=(pool,), pools_listed_at=NOW)
        return find_pools(snapshot, memory, settings(), GKE_RULES, after(seconds), last)

    creating = replace(FOUR_CHIPS, status=PoolStatus.PROVISIONING)
    first = owned(creating, Memory(), {}, 0)
    memory = Memory(pools={creating.name: PoolMemory(passing=first[creating.name].passing)})
    assert owned(creating, memory, first, 60)[creating.name] is first[creating.name]
    stopping = owned(replace(creating, status=PoolStatus.STOPPING), memory, first, 60)[creating.name]
    assert stopping.passing == (PoolStatus.STOPPING, after(60))
    # The clock was set back, and the times in the memory were shifted as well.
    earlier = Memory(pools={creating.name: PoolMemory(passing=(PoolStatus.PROVISIONING, after(-60)))})
    assert owned(creating, earlier, first, 60)[creating.name].passing == (PoolStatus.PROVISIONING, after(-60))
