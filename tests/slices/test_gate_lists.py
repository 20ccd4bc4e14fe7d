"""Tests that deletes that are checked at the same time share large lists, and that reads after the cordon are live."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.live import DeletionBlockedError
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from provisioner.model.membership import Membership
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.gate import WorkloadNeedsPoolError
from provisioner.slices.planning.plan import Delete, DeleteReason
from provisioner.workloads import PROVISIONING_REQUEST
from tests.support.controller import NAMESPACE, World, a_delete, node_of
from tests.support.objects import raw_plain_pod, reference

NODE = "gke-test-train-pool-0"
PODS = collection_path("pods", namespace=NAMESPACE)
NODES = collection_path("nodes")
REQUESTS = collection_path(PROVISIONING_REQUEST.resource, namespace=NAMESPACE, root=PROVISIONING_REQUEST.root)
OF_PODS: dict[str, Any] = {"kind": WorkloadKind.POD, "workload_name": "ReplicaSet.train"}
FAILED: dict[str, Any] = {
    "reason": DeleteReason.POOL_FAILED,
    "workload_uid": "",
    "hosts": 4,
    # The pool of NODE is unknown, so the pods of the living workload are read again.
    "membership": Membership(listed={PoolName("p0")}),
}


@pytest.fixture
def world() -> World:
    world = World()
    pool = NodePool(name=PoolName("train-pool"), status=PoolStatus.RUNNING)
    world.kube.put_object(object_path("nodes", NODE), node_of(pool, NODE, world.clock))
    return world


def put_pod(world: World, *, node: str = "") -> None:
    raw = raw_plain_pod("train-abcde", reference("ReplicaSet", "train"))
    raw["metadata"] |= {"namespace": NAMESPACE}
    raw["spec"] |= {"nodeName": node} if node else {}
    world.kube.put_object(f"{PODS}/train-abcde", raw)


def large_lists(world: World) -> Counter[str]:
    return Counter(
        call.path
        for call in world.kube.calls
        if call.path in (PODS, REQUESTS)
        or (call.path == NODES and not {"labelSelector", "fieldSelector"} & {*call.query})
    )


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param(OF_PODS, {PODS}, id="workload of kind POD"),
        pytest.param({"hosts": 4}, {NODES}, id="fewer nodes than hosts"),
        pytest.param(OF_PODS | FAILED, {PODS, NODES}, id="living workload of kind POD, node of unknown pool"),
        pytest.param({"kind": WorkloadKind.PROVISIONING_REQUEST}, {REQUESTS}, id="ProvisioningRequest"),
    ],
)
def test_twice_as_many_deletes_read_each_large_list_once(world: World, changes: dict[str, Any], want: set[str]) -> None:
    """In the past, the checks of 80 deletes in a namespace with 4,000 pods took 50 s of CPU time."""
    if changes.get("reason") is DeleteReason.POOL_FAILED:
        put_pod(world)
    for count in (20, 40):
        world.clock.advance(10)
        world.kube.calls.clear()
        for number in range(count):
            world.gate.verify_deletable(a_delete(f"p{number}", **{"workload_uid": f"u{number}"} | changes))
        assert large_lists(world) == dict.fromkeys(want, 1)
    world.clock.advance(2.1)
    world.gate.verify_deletable(a_delete("p0", **changes))
    assert large_lists(world) == dict.fromkeys(want, 2)


def of_pods(pool: str) -> Delete:
    return a_delete(pool, **OF_PODS, workload_uid="")


def test_pod_created_after_the_shared_list_keeps_the_pool_from_the_next_list_on(world: World) -> None:
    world.gate.verify_deletable(of_pods("other-pool"))
    put_pod(world)
    world.gate.verify_deletable(of_pods("train-pool"))
    world.clock.advance(2.1)
    with pytest.raises(WorkloadNeedsPoolError, match="lives"):
        world.gate.verify_deletable(of_pods("train-pool"))


def test_pod_bound_after_the_shared_list_keeps_the_pool(world: World) -> None:
    """Pods on the nodes are listed for each delete."""
    world.gate.verify_deletable(of_pods("other-pool"))
    put_pod(world, node=NODE)
    with pytest.raises(DeletionBlockedError, match=f"unfinished pods are on it: {NAMESPACE}/train-abcde on {NODE}"):
        world.gate.verify_deletable(of_pods("train-pool"))
    assert large_lists(world) == {PODS: 1}


def test_node_that_lost_its_label_before_the_shared_list_is_cordoned(world: World) -> None:
    """The shared list shows that the node belongs to the pool; the node itself is read live."""
    world.kube.patch(object_path("nodes", NODE), {"metadata": {"labels": {constants.NODE_POOL: None}}})
    membership = Membership(by_prefix={"gke-test-train-pool": PoolName("train-pool")})
    world.gate.verify_deletable(a_delete("other-pool", hosts=1, membership=membership))
    world.gate.verify_deletable(a_delete("train-pool", hosts=1, membership=membership))
    assert world.calls("PATCH")[1:] == [object_path("nodes", NODE)]
    assert large_lists(world) == {NODES: 1}


def test_pods_of_a_stuck_slice_are_listed_for_each_delete(world: World) -> None:
    """The checks after the cordon ignore these pods, so an outdated list could cost a running slice its pool."""
    stuck = a_delete(reason=DeleteReason.SLICE_STUCK, **OF_PODS, workload_uid="")
    for _ in range(2):
        with pytest.raises(DeletionBlockedError, match="no pod of the stuck slice is unschedulable"):
            world.gate.verify_deletable(stuck)
    assert large_lists(world) == {PODS: 3}
