"""Tests of the matching of slices and pools, in which bound pods come before labels of pools.

Pools that the Go provisioner created are used and deleted like pools of this provisioner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import NodePool, PoolStatus, Taint
from provisioner.model.workloads import Requirements, Workload
from provisioner.slices.planning.memory.state import Phase
from tests.support.clock import after
from tests.support.counting import counted
from tests.support.models import go_pool, make_jobset, make_node, make_pod, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World


def pool_of_another(**changes: Any) -> NodePool:
    return make_pool(make_jobset("gone"), **changes)


def test_slice_has_the_pool_of_its_bound_pods_regardless_of_labels() -> None:
    world = World(make_jobset("a"), make_jobset("b"))
    a, b = world.workloads.values()
    pool_a, pool_b = world.put_pool(make_pool(a)), world.put_pool(make_pool(b))
    world.put(make_pod(a, node=make_node(pool_b).name), make_pod(b, node=make_node(pool_a).name))
    world.run(120)
    assert world.created == world.deleted == []
    assert world.states() == {pool_a.name: "in_use", pool_b.name: "in_use"}


@pytest.mark.parametrize(
    ("statuses", "taken"),
    [
        pytest.param([PoolStatus.RUNNING, PoolStatus.PROVISIONING], 0, id="ready attempt and later unready attempt"),
        pytest.param([PoolStatus.PROVISIONING, PoolStatus.RUNNING], 1, id="unready attempt and later ready attempt"),
        pytest.param([PoolStatus.RUNNING, PoolStatus.RUNNING], 1, id="two ready attempts"),
        pytest.param([PoolStatus.PROVISIONING] * 2, 1, id="two attempts in creation"),
    ],
)
def test_waiting_slice_is_matched_with_its_latest_pool_but_prefers_ready_ones(
    *, statuses: list[PoolStatus], taken: int
) -> None:
    workload = make_jobset()
    world = World(workload)
    pools = [make_pool(workload, attempt=attempt, status=status) for attempt, status in enumerate(statuses)]
    for pool in pools:
        (world.put_pool if pool.status is PoolStatus.RUNNING else world.put)(pool)
    plan = world.look()
    assert plan.creates == ()
    assert [state.name for state in plan.pools if state.phase is not Phase.IDLE] == [pools[taken].name]


@pytest.mark.parametrize(
    ("pool", "nodes", "taken"),
    [
        pytest.param({}, {}, True, id="ready pool"),
        pytest.param({"status": PoolStatus.PROVISIONING}, None, True, id="pool in creation"),
        pytest.param({"status": PoolStatus.RECONCILING}, {}, True, id="RECONCILING pool"),
        pytest.param({"status": PoolStatus.RUNNING_WITH_ERROR}, {}, True, id="RUNNING_WITH_ERROR with all hosts"),
        pytest.param(
            {"status": PoolStatus.RUNNING_WITH_ERROR},
            {"ready": False},
            False,
            id="RUNNING_WITH_ERROR without all hosts",
        ),
        pytest.param({"status": PoolStatus.STOPPING}, {}, False, id="STOPPING pool"),
        pytest.param({"status": PoolStatus.UNKNOWN}, {}, False, id="UNKNOWN pool"),
        pytest.param({}, {"allocatable_chips": 0, "ready": False}, True, id="nodes that have not reported yet"),
        pytest.param(
            {},
            {"taints": (Taint(key="node.kubernetes.io/not-ready"), Taint(key=constants.TPU_RESOURCE, value="present"))},
            True,
            id="taints of new nodes",
        ),
        pytest.param({}, {"cordoned": True}, False, id="nodes cordoned by a user"),
        pytest.param({}, {"cordoned": True, "cordoned_by_us": True}, True, id="nodes cordoned by the provisioner"),
        pytest.param({}, {"labels": {}}, False, id="nodes without the selected labels"),
        pytest.param({}, {"allocatable_memory_bytes": 1}, False, id="nodes with too little memory"),
        pytest.param({"topology": "2x2x4", "hosts": 4}, {}, False, id="another topology"),
        pytest.param({"zones": ("us-east5-a",)}, {}, True, id="another zone"),
    ],
)
def test_waiting_slice_uses_a_free_pool_only_if_its_pods_fit(
    *, pool: dict[str, Any], nodes: dict[str, Any] | None, taken: bool
) -> None:
    workload = make_jobset()
    world = World(workload)
    other = pool_of_another(**pool)
    world.put(other)
    if nodes is not None:
        world.put_pool(other, **nodes)
    plan = world.look()
    assert (len(plan.pools) == 1) is taken
    owner = {state.name: state.named.name for state in plan.pools}[other.name]
    assert owner == ("train" if taken else "gone")


def test_slice_waits_two_minutes_for_the_nodes_of_a_free_pool() -> None:
    """GKE reports a pool as RUNNING shortly before its nodes appear; a broken pool remains without nodes."""
    world = World(make_jobset())
    world.put(pool_of_another())
    assert world.look().creates == ()
    world.pass_time(121)
    assert len(world.look().creates) == 1


def test_pool_with_pods_of_an_unknown_slice_is_not_used_and_is_kept() -> None:
    world = World(make_jobset())
    pool = world.put_pool(pool_of_another())
    world.put(make_pod(make_jobset("nobody"), workload_uid="", node=make_node(pool).name))
    assert len(world.step().creates) == 1
    world.run(100)
    assert pool.name not in world.deleted


_SINGLE_HOSTS = make_requirements(topology="2x2x1")
_GONE = make_jobset("gone", replicas=4, parallelism=5, template=_SINGLE_HOSTS)


def test_ready_pool_is_preferred_to_a_pool_in_creation() -> None:
    world = World(make_jobset(parallelism=5, template=_SINGLE_HOSTS))
    world.put(make_pool(_GONE, job=0, status=PoolStatus.PROVISIONING))
    ready = world.put_pool(make_pool(_GONE, job=1))
    plan = world.look()
    assert plan.creates == ()
    assert [state.name for state in plan.pools if state.named.name == "train"] == [ready.name]


@pytest.mark.parametrize(("minutes", "used"), [(9, False), (10, True)])
def test_larger_free_pool_of_single_hosts_is_used_after_ten_minutes(*, minutes: int, used: bool) -> None:
    """In the past, a small slice without capacity of its own waited as long as larger slices used the pool in turn."""
    workload = make_jobset(parallelism=1, template=_SINGLE_HOSTS)
    world = World(workload)
    world.put(make_pod(workload, unschedulable_since=after(-60.0 * minutes)))
    small, large = (world.put_pool(make_pool(_GONE, job=job, hosts=hosts)) for job, hosts in enumerate((2, 16)))
    plan = world.look()
    states = {state.name: state.named.name for state in plan.pools}
    assert (states[small.name] == "train", not plan.creates, states[large.name]) == (used, used, "gone")


@pytest.mark.parametrize("hosts", [4, 6], ids=["too few hosts", "spare hosts"])
def test_new_slice_uses_no_pool_of_single_hosts_with_another_number_of_hosts(hosts: int) -> None:
    """In the past, a slice of one host could take a pool of 16 hosts, and kept all 16 while its pod ran."""
    world = World(make_jobset(parallelism=5, template=_SINGLE_HOSTS))
    world.put_pool(make_pool(_GONE, hosts=hosts))
    (create,) = world.look().creates
    assert create.request.hosts == 5


def test_pods_past_their_grace_period_do_not_keep_a_pool() -> None:
    """The pods remain if the kubelet does not respond, and a pool that is kept for them costs money indefinitely."""
    workload = make_jobset()
    world = World()
    pool = world.put_pool(make_pool(workload))
    world.put(make_pod(workload, node=make_node(pool).name, deletion_deadline=after(60)))
    world.run(50)
    assert world.deleted == []
    world.run(60)
    assert world.deleted == [pool.name]


@pytest.mark.parametrize(
    ("chips", "annotation", "setting_changes"),
    [
        pytest.param(8, "max-run-duration", {}, id="each JobSet chooses another node setting"),
        pytest.param(4, "", {"max_pools_per_jobset": 5}, id="other number of hosts, with a limit for each JobSet"),
    ],
)
def test_work_does_not_grow_with_the_product_of_idle_pools_and_waiting_jobsets(
    chips: int, annotation: str, setting_changes: dict[str, Any]
) -> None:
    """In the past, a decision took 10 s with 800 idle pools and 2,000 JobSets that no pool suits."""

    def asked(chips: int, **changes: Any) -> Requirements:
        return make_requirements(accelerator="tpu-v5-lite-podslice", topology="2x4", chips=chips, **changes)

    def calls(size: int) -> int:
        world = World(settings_=settings(deletion_delay_seconds=3600.0, **setting_changes))
        over = make_jobset("over", replicas=size, parallelism=1, template=asked(8))
        for job in range(size):
            world.put_pool(make_pool(over, job=job))
        for number in range(size):
            own = {f"{constants.NODE_SETTING_PREFIX}{annotation}": f"{number + 600}s"} if annotation else {}
            world.add(make_jobset(f"new{number}", parallelism=8 // chips, template=asked(chips, annotations=own)))
        world.look()
        world.look()
        plan, found = counted(world.look)
        assert sum(pool.phase is Phase.IDLE for pool in plan.pools) == size
        return found

    assert calls(80) < 2.3 * calls(40)


# --- Pools of the Go provisioner ---


#: Labels that releases of the Go provisioner from before April 2024 do not set on a pool.
OLD_RELEASE = {constants.POOL_JOBSET_NAME, constants.POOL_JOBSET_NAMESPACE}


def old_go_pool(workload: Workload) -> NodePool:
    pool = go_pool(workload)
    labels = {key: value for key, value in pool.labels.items() if key not in OLD_RELEASE}
    return replace(pool, labels={**labels, constants.LEGACY_POOL_ID: workload.name})


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
@pytest.mark.parametrize("make", [go_pool, old_go_pool], ids=["newest release", "old release"])
def test_go_pool_is_used_by_its_jobset_and_deleted_after_it(
    make: Callable[[Workload], NodePool], accelerator: str, topology: str, chips: int, hosts: int
) -> None:
    """The label `provisioner-nodepool-id` of an old pool is the JobSet's name; only pods of axlearn select it."""
    selector = {constants.LEGACY_POOL_ID: "train"} if make is old_go_pool else {}
    asked = make_requirements(
        accelerator=accelerator, topology=topology, chips=chips, selector=selector, tolerations=()
    )
    workload = make_jobset(parallelism=hosts, template=asked)
    world = World(workload)
    pool = world.put_pool(make(workload))
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
    world.add_with_pod(early, unschedulable_since=after(-600))
    (create,) = world.step().creates
    assert create.workload.name == "early"
    assert owner_of(world, pool) == "late"
