"""Tests of pools that the Go provisioner created: they are used and deleted like pools of this provisioner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import constants
from provisioner.model.capacity import NodePool
from provisioner.model.workloads import Workload
from tests.support.clock import after
from tests.support.models import go_pool, make_jobset, make_pod, make_requirements
from tests.support.world import World

#: Labels that releases of the Go provisioner from before April 2024 do not set on a pool.
OLD_RELEASE = {constants.POOL_JOBSET_NAME, constants.POOL_JOBSET_NAMESPACE}


def old_go_pool(workload: Workload) -> NodePool:
    pool = go_pool(workload)
    labels = {key: value for key, value in pool.labels.items() if key not in OLD_RELEASE}
    return replace(pool, labels={**labels, constants.LEGACY_POOL_ID: workload.name})


def tied_jobset(name: str) -> Workload:
    """Return a JobSet whose pods select only its own pools, as JobSets of axlearn do."""
    asked = make_requirements(tolerations=(), selector={constants.LEGACY_POOL_ID: name})
    return make_jobset(name, template=asked)


def owner_of(world: World, pool: NodePool) -> str:
    return {state.name: state.named.name for state in world.plans[-1].pools}[pool.name]


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "hosts"),
    [
        pytest.param("tpu-v4-podslice", "2x2x2", 4, 2, id="v4 on two hosts"),
        pytest.param("tpu-v5p-slice", "2x2x1", 4, 1, id="v5p on one host with COMPACT placement"),
        pytest.param("tpu-v5-lite-podslice", "2x2", 4, 1, id="v5e on one host with COMPACT placement"),
        pytest.param("tpu-v6e-slice", "1x1", 1, 1, id="v6e with one chip"),
        pytest.param("tpu-v6e-slice", "2x4", 8, 1, id="v6e on one eight-chip host, with two nodes"),
        pytest.param("tpu-v6e-slice", "4x4", 4, 4, id="v6e on four hosts"),
        pytest.param("tpu7x", "2x2x2", 4, 2, id="tpu7x on two hosts"),
    ],
)
def test_go_pool_is_used_by_its_jobset_and_deleted_after_it(
    accelerator: str, topology: str, chips: int, hosts: int
) -> None:
    asked = make_requirements(accelerator=accelerator, topology=topology, chips=chips, tolerations=())
    workload = make_jobset(parallelism=hosts, template=asked)
    world = World(workload)
    pool = world.put_pool(go_pool(workload))
    world.run(3)
    assert owner_of(world, pool) == "train"
    world.schedule()
    world.run(100)
    assert (world.created, world.deleted) == ([], [])
    assert world.states() == {pool.name: "in_use"}
    world.remove_jobset(workload)
    world.run(40)
    assert world.deleted == [pool.name]


def test_recreated_jobset_uses_the_go_pool_of_the_earlier_jobset() -> None:
    """The labels of the pool contain no UID, so the pool may belong to either of the two JobSets."""
    world = World(make_jobset(uid="later"))
    pool = world.put_pool(go_pool(make_jobset(uid="earlier")))
    world.run(50)
    assert (world.created, world.deleted) == ([], [])
    assert owner_of(world, pool) == "train"


def test_go_pool_serves_its_own_jobset_before_an_older_jobset() -> None:
    early, late = make_jobset("early"), make_jobset("late")
    world = World(late)
    pool = world.put_pool(go_pool(late))
    world.workloads[early.uid] = early
    world.put(make_pod(early, unschedulable_since=after(-600)))
    (create,) = world.step().creates
    assert create.workload.name == "early"
    assert owner_of(world, pool) == "late"


def test_pool_of_an_old_go_release_is_used_and_deleted() -> None:
    """The label `provisioner-nodepool-id` is the name of the JobSet, and is still read by the Go provisioner."""
    workload = tied_jobset("train")
    world = World(workload)
    pool = world.put_pool(old_go_pool(workload))
    world.run(3)
    assert (world.created, owner_of(world, pool)) == ([], "train")
    world.remove_jobset(workload)
    world.run(40)
    assert world.deleted == [pool.name]
