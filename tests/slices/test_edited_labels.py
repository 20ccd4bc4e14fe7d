"""Tests that pods keep their pool even if a user edits the label `cloud.google.com/gke-nodepool` of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import Unavailable
from provisioner.kube.live import DeletionBlockedError
from provisioner.kube.protocol import Request, collection_path, object_path
from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from provisioner.model.membership import Membership
from provisioner.slices.gate import BINDING_SECONDS, SettlingError
from provisioner.slices.planning.plan import DeleteReason
from tests.support.controller import NAMESPACE, World, a_delete, jobset_of, jobset_path, leader_of, node_of
from tests.support.objects import raw_foreign_pod, raw_node

POOL = PoolName("train-pool")
NODE = f"gke-test-{POOL}-0"


def edit(world: World, node: str, value: str | None) -> None:
    world.kube.patch(object_path("nodes", node), {"metadata": {"labels": {constants.NODE_POOL: value}}})


def record(world: World, node: str, pool: str) -> None:
    """Let GKE record in an annotation which labels it applied to a node, among them the name of the pool."""
    applied = (
        f"cloud.google.com/gke-boot-disk=pd-ssd,{constants.NODE_POOL}={pool},cloud.google.com/gke-os-distribution=cos"
    )
    world.kube.patch(object_path("nodes", node), {"metadata": {"annotations": {constants.APPLIED_LABELS: applied}}})


def _by_record(world: World, pool: PoolName) -> None:
    record(world, f"gke-test-{pool}-0", pool)


def _by_name(world: World, pool: PoolName) -> None:
    world.gke.set_pool(replace(world.gke.pools[pool], node_prefixes=(f"gke-test-{pool}",)))


def _nothing(_world: World, _pool: PoolName) -> None: ...


_SOURCES = ((_by_record, "GKE's record"), (_by_name, "node name"))
_VALUES = ((None, "removed"), ("x", "unknown pool"), ("other", "another pool"))


@pytest.mark.parametrize(
    ("tell", "value", "restarts"),
    [
        *(
            pytest.param(tell, value, restarts, id=f"{edited}, {source}{', restart' * restarts}")
            for tell, source in _SOURCES
            for value, edited in _VALUES
            for restarts in (False, True)
        ),
        # GKE's record and the node's name do not show the pool, so the process must have seen the node before the edit.
        *(pytest.param(_nothing, value, False, id=f"{edited}, seen before") for value, edited in _VALUES[:2]),
    ],
)
def test_pool_in_use_is_kept_although_the_label_of_its_node_is_edited(
    tell: Callable[[World, PoolName], None], value: str | None, *, restarts: bool
) -> None:
    world = World()
    other, pool = world.run_to_use("another"), world.run_to_use("train")
    for pool_name in (other, pool):
        tell(world, pool_name)
    edit(world, f"gke-test-{pool}-0", other if value == "other" else value)
    if restarts:
        world.start()
    world.rounds(80, every_seconds=15)
    assert world.gke.names_of("delete_node_pool") == []
    assert sorted(world.gke.pools) == sorted([other, pool])
    world.complete()
    world.rounds(10, every_seconds=15)
    assert world.gke.names_of("delete_node_pool") == [pool]


def test_exchanged_labels_of_two_pools_do_not_prevent_the_delete_of_the_idle_one() -> None:
    """The exchange is hard to notice, because the number of nodes with each label is still right."""
    world = World()
    idle, used = world.run_to_use("train"), world.run_to_use("another")
    for pool, label in ((idle, used), (used, idle)):
        _by_record(world, pool)
        edit(world, f"gke-test-{pool}-0", label)
    world.complete()
    world.rounds(80, every_seconds=15)
    assert world.gke.names_of("delete_node_pool") == [idle]


# --- The gate, which checks a pool before its delete ---

MEMBERSHIP = Membership(by_prefix={f"gke-test-{POOL}": POOL}, listed=frozenset({POOL, PoolName("other-pool")}))
RECORDED = Membership(listed=MEMBERSHIP.listed)


@pytest.fixture
def world() -> World:
    """Return a world with a pool of one node, from which the label with the pool's name has been removed."""
    world, pool = World(), NodePool(name=POOL, status=PoolStatus.RUNNING)
    world.kube.put_object(object_path("nodes", NODE), node_of(pool, NODE, world.clock))
    edit(world, NODE, None)
    return world


def put_pod(world: World) -> None:
    world.kube.put_object(object_path("pods", "stray", namespace="other"), raw_foreign_pod("stray", NODE))


def delete(**changes: Any) -> Any:
    return a_delete(**({"hosts": 1, "membership": MEMBERSHIP} | changes))


def test_pod_on_a_node_without_the_label_keeps_the_pool(world: World) -> None:
    put_pod(world)
    with pytest.raises(DeletionBlockedError, match=f"other/stray on {NODE}"):
        world.gate.verify_deletable(delete())
    record(world, NODE, POOL)
    with pytest.raises(DeletionBlockedError, match=f"other/stray on {NODE}"):
        world.gate.verify_deletable(delete(membership=RECORDED))


def test_node_without_the_label_is_cordoned_and_checked_again(world: World) -> None:
    with pytest.raises(SettlingError):
        world.gate.verify_deletable(delete(settle=True))
    node = world.kube.object(object_path("nodes", NODE))
    assert node is not None
    assert node["spec"]["unschedulable"] is True
    world.clock.advance(BINDING_SECONDS)
    original = world.kube.list_page

    def opened_before_the_last_look(request: Request, **options: Any) -> Any:
        if request.path == collection_path("pods"):
            world.kube.patch(object_path("nodes", NODE), {"spec": {"unschedulable": None}})
        return original(request, **options)

    world.kube.list_page = opened_before_the_last_look  # type: ignore[method-assign]
    with pytest.raises(DeletionBlockedError, match=f"node {NODE} has registered or was uncordoned"):
        world.gate.verify_deletable(delete(settle=True))


def test_node_of_another_pool_with_this_label_is_not_cordoned(world: World) -> None:
    """GKE's record names another pool, so a pod on the node does not keep the pool of the label."""
    edit(world, NODE, POOL)
    record(world, NODE, "other-pool")
    put_pod(world)
    world.gate.verify_deletable(delete(membership=RECORDED))
    assert world.calls("PATCH") == [object_path("nodes", NODE)] * 3


@pytest.mark.parametrize("value", [None, "x"], ids=["no label", "label of an unknown pool"])
def test_pod_of_the_workload_on_a_node_of_unknown_pool_keeps_the_pool(world: World, value: str | None) -> None:
    edit(world, NODE, value)
    world.kube.put_object(jobset_path("train"), jobset_of("train", uid="uid-of-train"))
    leader = leader_of("train", uid="uid-of-train", node=NODE)
    path = object_path("pods", "train-workers-0-0", namespace=NAMESPACE)
    world.kube.put_object(path, leader)
    unknown = delete(reason=DeleteReason.SLICE_ELSEWHERE, membership=RECORDED)
    with pytest.raises(DeletionBlockedError, match=f"{NAMESPACE}/train-workers-0-0 runs on node {NODE}, whose label"):
        world.gate.verify_deletable(unknown)
    assert world.calls("PATCH") == [object_path("nodes", NODE)] * 2
    # GKE's record shows that the node belongs to another pool, so the pod does not keep POOL.
    record(world, NODE, "other-pool")
    world.clock.advance(2.1)
    world.gate.verify_deletable(unknown)
    world.kube.patch(object_path("nodes", NODE), {"metadata": {"annotations": {constants.APPLIED_LABELS: None}}})
    world.kube.put_object(path, {**leader, "status": {"phase": "Succeeded"}})
    world.clock.advance(2.1)
    world.gate.verify_deletable(unknown)


def test_all_nodes_are_listed_only_if_the_label_selects_fewer_than_the_hosts(world: World) -> None:
    world.kube.put_object(object_path("nodes", "labelled"), raw_node("labelled", pool=POOL))
    world.gate.verify_deletable(delete(hosts=1))
    lists = [call.query for call in world.kube.calls if call.path == collection_path("nodes")]
    assert lists
    assert all(constants.NODE_POOL in query.get("labelSelector", "") for query in lists)
    world.gate.verify_deletable(delete(hosts=2))
    lists = [call.query for call in world.kube.calls if call.path == collection_path("nodes")]
    assert [query for query in lists if "labelSelector" not in query and "fieldSelector" not in query] != []


def test_list_of_all_nodes_that_fails_keeps_the_pool(world: World) -> None:
    original = world.kube.list_page

    def fails(request: Request, **options: Any) -> Any:
        if request.path == collection_path("nodes") and "labelSelector" not in request.query:
            raise Unavailable("no answer")
        return original(request, **options)

    world.kube.list_page = fails  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        world.gate.verify_deletable(delete())


def test_pool_that_lost_its_nodes_is_deleted(world: World) -> None:
    world.kube.remove_object(object_path("nodes", NODE))
    world.gate.verify_deletable(delete(hosts=4))
