"""Which slice has which pool: by use, not by name."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePool, PoolStatus, Taint
from provisioner.model.workloads import Workload
from provisioner.slices.planning.memory.state import Phase
from tests.support.clock import after
from tests.support.models import make_jobset, make_node, make_pod, make_pool, make_requirements, strange_taint
from tests.support.world import World


def shuffled(seed: int, text: str) -> int:
    """Return a sort key that puts texts into another order for each seed, the same in every run."""
    return zlib.crc32(f"{seed}/{text}".encode())


def pool_of_another(**changes: Any) -> NodePool:
    """Return a pool that was made for a JobSet that is gone."""
    return make_pool(make_jobset("gone"), **changes)


def test_a_slice_holds_the_pool_that_its_pods_are_bound_to_whatever_the_labels_say() -> None:
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
        pytest.param([PoolStatus.RUNNING, PoolStatus.PROVISIONING], 0, id="one that is ready before a later attempt"),
        pytest.param([PoolStatus.PROVISIONING, PoolStatus.RUNNING], 1, id="a later attempt that is ready"),
        pytest.param([PoolStatus.RUNNING, PoolStatus.RUNNING], 1, id="of those that are ready the latest attempt"),
        pytest.param([PoolStatus.PROVISIONING] * 2, 1, id="of those in the making the latest attempt"),
    ],
)
def test_which_of_its_own_pools_a_waiting_slice_counts_on(*, statuses: list[PoolStatus], taken: int) -> None:
    workload = make_jobset()
    world = World(workload)
    pools = [make_pool(workload, attempt=attempt, status=status) for attempt, status in enumerate(statuses)]
    for pool in pools:
        (world.put_pool if pool.status is PoolStatus.RUNNING else world.put)(pool)
    plan = world.look()
    assert plan.creates == ()
    assert [each.name for each in plan.pools if each.phase is not Phase.IDLE] == [pools[taken].name]


@pytest.mark.parametrize("seed", range(6))
def test_twelve_jobsets_of_one_shape_on_each_others_pools_lose_none_while_it_is_used(seed: int) -> None:
    """The Go original killed 6 of 12 running jobs here."""
    workloads = [make_jobset(f"job{index}") for index in range(12)]
    world = World(*workloads)
    world.run(2)
    assert len(world.created) == 12
    # Pools come up one after another, and leaders take whichever is there.
    for index, name in enumerate(sorted(world.pools, key=lambda name: shuffled(seed, name))):
        world.put_pool(replace(world.pools[name], status=PoolStatus.RUNNING), created_at=world.now)
        world.schedule(order=lambda uid: shuffled(seed, uid))
        world.run(3)
        assert world.deleted == []
        assert sum(bool(pod.node_name) and pod.completion_index == 0 for pod in world.pods.values()) == index + 1
    for workload in sorted(workloads, key=lambda each: shuffled(seed, each.name)):
        world.remove_jobset(workload)
        world.run(40)
        busy = {world.nodes[pod.node_name].pool_name for pod in world.pods.values()}
        assert busy.isdisjoint(world.deleted)
    assert len(world.created) == 12
    assert sorted(world.deleted) == sorted(world.created)


@pytest.mark.parametrize(
    ("pool", "nodes", "taken"),
    [
        pytest.param({}, {}, True, id="a ready pool that fits is taken"),
        pytest.param({"status": PoolStatus.PROVISIONING}, None, True, id="one in the making is taken"),
        pytest.param({"status": PoolStatus.RECONCILING}, {}, True, id="one that reconciles is taken"),
        pytest.param({"status": PoolStatus.RUNNING_WITH_ERROR}, {}, True, id="one with error and all hosts is taken"),
        pytest.param({"status": PoolStatus.RUNNING_WITH_ERROR}, {"ready": False}, False, id="with error and fewer: no"),
        pytest.param({"status": PoolStatus.ERROR}, {}, False, id="one in ERROR is not"),
        pytest.param({"status": PoolStatus.STOPPING}, {}, False, id="one that stops is not"),
        pytest.param({"status": PoolStatus.UNKNOWN}, {}, False, id="one in an unknown state is not"),
        pytest.param({}, {"allocatable_chips": 0, "ready": False}, True, id="nodes that have not reported yet may"),
        pytest.param(
            {},
            {"taints": (Taint(key="node.kubernetes.io/not-ready"), Taint(key=constants.TPU_RESOURCE, value="present"))},
            True,
            id="taints of a node's first minutes pass",
        ),
        pytest.param({}, {"taints": (strange_taint(),)}, False, id="a strange taint keeps it free"),
        pytest.param({}, {"cordoned": True}, False, id="nodes that somebody cordoned keep it free"),
        pytest.param({}, {"cordoned": True, "cordoned_by_us": True}, True, id="nodes that we cordoned do not"),
        pytest.param({}, {"labels": {}}, False, id="nodes without the selected labels keep it free"),
        pytest.param({}, {"allocatable_memory_bytes": 1}, False, id="nodes with too little memory keep it free"),
        pytest.param({"topology": "2x2x4", "hosts": 4}, {}, False, id="another topology does not fit"),
        pytest.param({"hosts": 3}, {}, False, id="another number of hosts does not fit"),
        pytest.param(
            {"capacity": CapacityKind.SPOT}, {}, False, id="spot is tainted, and the pod does not tolerate it"
        ),
        pytest.param({"zones": ("us-east5-a",)}, {}, True, id="another zone is fine where no pod minds"),
    ],
)
def test_which_free_pools_a_waiting_slice_takes(
    *, pool: dict[str, Any], nodes: dict[str, Any] | None, taken: bool
) -> None:
    """What the scheduler would take; everything else is bought anew."""
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


def test_a_pool_of_others_without_nodes_is_waited_for_not_for_long() -> None:
    """GKE calls a pool up a moment before its nodes are seen; a zombie stays without."""
    world = World(make_jobset())
    world.put(pool_of_another())
    assert world.look().creates == ()
    world.pass_time(121)
    assert len(world.look().creates) == 1


def test_a_pool_with_pods_of_an_unknown_slice_is_taken_by_nobody() -> None:
    """Whose they are cannot be told; that they run can."""
    world = World(make_jobset())
    pool = world.put_pool(pool_of_another())
    world.put(make_pod(make_jobset("nobody"), workload_uid="", node=make_node(pool).name))
    assert len(world.step().creates) == 1
    world.run(100)
    assert pool.name not in world.deleted


@pytest.mark.parametrize("node", ["", "their-node"], ids=["it waits", "it is bound to a node of others"])
def test_labels_copied_in_another_namespace_buy_nothing_and_take_nothing(node: str) -> None:
    """A pod that poses as a JobSet's leader gets no pool for it, and the JobSet's new pool stays."""
    workload = make_jobset()
    world = World(workload)
    (pool,) = (create.request.name for create in world.step().creates)
    asks_more = make_requirements(topology="4x4x4")
    fake = make_pod(workload, job=1, uid="fake", requirements=asks_more, node=node)
    world.put(replace(fake, namespace="elsewhere"))
    fake = make_pod(workload, uid="fake too", name="a", requirements=asks_more, node=node)
    world.put(replace(fake, namespace="elsewhere"))
    world.run(100)
    assert world.created == [pool]
    assert world.deleted == []


def test_the_smallest_ready_pool_is_taken_first() -> None:
    """Single-host pools may be larger than asked."""
    asked = make_requirements(topology="2x2x1")
    workload = make_jobset(parallelism=1, template=asked)
    gone = make_jobset("gone", replicas=4, parallelism=1, template=asked)
    world = World(workload)
    world.put(make_pool(gone, job=0, status=PoolStatus.PROVISIONING))
    world.put_pool(make_pool(gone, job=1, hosts=3))
    small = world.put_pool(make_pool(gone, job=2, hosts=2))
    plan = world.look()
    assert plan.creates == ()
    assert [state.name for state in plan.pools if state.named.name == "train"] == [small.name]


def test_a_single_host_pool_too_small_is_not_taken() -> None:
    asked = make_requirements(topology="2x2x1")
    world = World(make_jobset(parallelism=5, template=asked))
    world.put_pool(make_pool(make_jobset("gone", parallelism=4, template=asked)))
    (create,) = world.look().creates
    assert create.request.hosts == 5


def test_who_waits_longest_takes_the_free_pool_and_keeps_it() -> None:
    world = World(make_jobset("late"), make_jobset("early"))
    world.put_pool(pool_of_another())
    early = next(pod for pod in world.pods.values() if pod.workload_name == "early")
    world.put(replace(early, unschedulable_since=after(-60)))
    (create,) = world.look().creates
    assert create.workload.name == "late"
    older = make_jobset("older")
    world.add(older)
    world.put(make_pod(older, unschedulable_since=after(-90)))
    (create,) = world.look().creates
    assert create.workload.name == "older"


def test_each_pool_is_claimed_once() -> None:
    """Three slices, two free pools: one create."""
    world = World(make_jobset(replicas=3))
    gone = make_jobset("gone", replicas=2)
    world.put_pool(make_pool(gone, job=0))
    world.put_pool(make_pool(gone, job=1))
    assert len(world.look().creates) == 1


def restarting(workload: Workload, world: World, pool: NodePool, *, deadline_seconds: float) -> None:
    """Let the pods on a pool terminate while the new leader waits."""
    for index in range(2):
        node = make_node(pool, index).name
        world.put(
            make_pod(workload, index=index, node=node, uid=f"old{index}", deletion_deadline=after(deadline_seconds))
        )
    world.put(make_pod(workload, name="train-slice-0-0-newer"))


def test_a_slice_that_restarts_waits_for_its_own_pods_to_end() -> None:
    """Its pool is about to be free; no second one is bought."""
    workload = make_jobset()
    world = World(workload)
    pool = world.put_pool(make_pool(workload))
    restarting(workload, world, pool, deadline_seconds=30)
    world.run(5)
    assert world.created == []


def test_pods_that_terminate_on_a_pool_keep_others_off_it() -> None:
    """Chips are free when the pod is gone, not when it has been told to go."""
    first, second = make_jobset("first"), make_jobset("second")
    world = World(second)
    pool = world.put_pool(make_pool(first))
    world.put(make_pod(first, node=make_node(pool).name, deletion_deadline=after(-600)))
    (create,) = world.look().creates
    assert create.workload.name == "second"


def test_pods_past_their_grace_hold_no_pool_for_ever() -> None:
    """Their node does not answer; without this an idle pool would be paid for until somebody looks."""
    workload = make_jobset()
    world = World()
    pool = world.put_pool(make_pool(workload))
    world.put(make_pod(workload, node=make_node(pool).name, deletion_deadline=after(60)))
    world.run(50)
    assert world.deleted == []
    world.run(60)
    assert world.deleted == [pool.name]


def test_a_restart_returns_to_the_pool_that_the_slice_last_had() -> None:
    """Even one made for another, and even with a node missing just then, which is why jobs restart."""
    workload = make_jobset()
    world = World(workload)
    pool = world.put_pool(pool_of_another())
    world.put(make_pod(workload, node=make_node(pool).name))
    world.run(2)
    world.end_pods(workload)
    del world.nodes[make_node(pool, 1).name]
    world.run(100)
    assert world.states() == {pool.name: "provisioning"}
    world.start_pods(workload)
    world.run(2)
    assert world.created == world.deleted == []


def test_a_pool_whose_nodes_are_not_all_seen_is_not_given_back() -> None:
    workload = make_jobset()
    world = World(workload)
    pool = make_pool(workload)
    world.put(pool, make_node(pool, 0), make_pod(workload, node=make_node(pool, 1).name))
    world.run(100)
    assert world.deleted == []


def test_a_pool_of_a_look_alike_in_another_namespace_is_not_the_slices_own() -> None:
    """It is unneeded of its own JobSet while nobody waits for it."""
    here, there = make_jobset(), make_jobset(namespace="there")
    world = World(here)
    world.end_pods(here)
    pool = world.put_pool(make_pool(there))
    world.run(40)
    assert world.deleted == [pool.name]
