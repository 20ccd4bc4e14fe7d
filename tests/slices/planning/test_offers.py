"""Tests that no pool is created for pods that request more than its nodes offer to pods."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import NodePool
from provisioner.slices.supplier import informed
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.clock import NOW
from tests.support.models import make_jobset, make_node, make_pool, make_requirements
from tests.support.settings import settings
from tests.support.world import World

GIB = 2**30
V6E: dict[str, Any] = {"accelerator": "tpu-v6e-slice", "topology": "4x4", "tolerations": ()}


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        pytest.param(
            {"other_bytes": (("ephemeral-storage", 500 * GIB),)},
            "requests 500Gi ephemeral-storage, a node of ct6e-standard-4t offers 43.7Gi to pods",
            id="ephemeral storage (01)",
        ),
        pytest.param(
            {"memory_bytes": 715 * GIB},
            "requests 715Gi memory, a node of ct6e-standard-4t offers 685.3Gi to pods",
            id="memory between node and machine (02)",
        ),
        pytest.param(
            {"cpu_millicores": 180_000},
            "requests 180 cpu, a node of ct6e-standard-4t offers 178.48 to pods",
            id="CPU of the whole machine (02c)",
        ),
        pytest.param(
            {"other_bytes": (("hugepages-2Mi", 4 * GIB),)},
            "requests 4Gi hugepages-2Mi, a node of ct6e-standard-4t offers 0Mi to pods",
            id="huge pages (03)",
        ),
    ],
)
def test_no_pool_is_created_for_pods_that_exceed_the_offer(amounts: dict[str, Any], words: str) -> None:
    world = World(make_jobset(parallelism=4, template=make_requirements(**V6E, **amounts)))
    world.live(130, seconds=1)
    assert world.created == []
    (message,) = {each.message for each in world.told(constants.INVALID_REQUEST)}
    assert words in message


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        pytest.param(
            {"node_disk_size_gb": 1000}, {"other_bytes": (("ephemeral-storage", 500 * GIB),)}, id="larger boot disk"
        ),
        pytest.param(
            {"node_linux_config": (("hugepages-2Mi", 2048),)},
            {"other_bytes": (("hugepages-2Mi", 4 * GIB),)},
            id="huge pages",
        ),
        pytest.param({"node_private": True}, {"node_selector": {constants.PRIVATE_NODE: "true"}}, id="private nodes"),
    ],
)
def test_node_setting_adds_to_the_offer(changes: dict[str, Any], asked: dict[str, Any]) -> None:
    asked = {"node_selector": {}, **asked}
    selector = {constants.TPU_ACCELERATOR: "tpu-v6e-slice", constants.TPU_TOPOLOGY: "4x4", **asked["node_selector"]}
    template = make_requirements(**{**V6E, **asked, "node_selector": selector})
    for settings_, created in ((settings(), 0), (settings(**changes), 1)):
        world = World(make_jobset(parallelism=4, template=template), settings_=settings_)
        world.live(3)
        assert (len(world.created), world.told(constants.STUCK)) == (created, [])
        assert all(world.bound(each) == created for each in world.workloads.values())


@pytest.mark.parametrize("seen", [False, True], ids=["formula", "existing node"])
def test_huge_pages_reduce_the_memory_for_pods(*, seen: bool) -> None:
    """The kubelet subtracts them from the allocatable memory, also on the nodes that exist."""
    plain = make_pool(make_jobset())
    paged = replace(plain, node={"node_linux_config": (("hugepages-1Gi", 4), ("hugepages-2Mi", 1024))})
    pages = (("hugepages-1Gi", 4 * GIB), ("hugepages-2Mi", 2 * GIB))
    node = make_node(paged, 0, allocatable_memory_bytes=100 * GIB, allocatable_other_bytes=pages)
    rules = informed(GKE_RULES, [node]) if seen else GKE_RULES
    offers = [rules.expected_node(pool).memory_bytes for pool in (plain, paged)]
    assert offers[0] - offers[1] == 6 * GIB
    assert offers[1] == 98 * GIB or not seen


def test_pod_that_exceeds_the_offer_is_served_if_existing_nodes_offer_more() -> None:
    """Nodes of newer versions reserve less memory than the formula, so refusals end once such a node exists."""
    small, large = (
        make_jobset(name, parallelism=4, template=make_requirements(**V6E, memory_bytes=size * GIB))
        for name, size in (("small", 1), ("large", 700))
    )
    world = World(small, large)
    world.live(5)
    assert [world.bound(small), world.bound(large)] == [1, 0]
    world.nodes = {name: replace(each, allocatable_memory_bytes=707 * GIB) for name, each in world.nodes.items()}
    world.step()
    assert len(world.created) == 2
    # The new nodes offer less than the old node: the pool is kept, and not created again.
    for name, each in expected_nodes(world, large).items():
        world.put(replace(each, name=name, allocatable_memory_bytes=701 * GIB))
    world.pools = {name: replace(pool, status=type(pool.status).RUNNING) for name, pool in world.pools.items()}
    world.live(200, seconds=10)
    assert (len(world.created), world.deleted, world.bound(large)) == (2, [], 1)


def expected_nodes(world: World, workload: Any) -> dict[str, Any]:
    pool = world.pools[world.created[-1]]
    return {node.name: node for node in (make_node(pool, index, created_at=world.now) for index in range(pool.hosts))}


def test_newest_ready_node_of_a_machine_type_determines_the_offer() -> None:
    pool = make_pool(make_jobset())
    old, new, unready = (
        make_node(pool, index, created_at=NOW + timedelta(hours=index), allocatable_memory_bytes=size * GIB, **changes)
        for index, (size, changes) in enumerate([(10, {}), (20, {}), (30, {"ready": False})])
    )
    rules = informed(GKE_RULES, [new, old, unready])
    assert rules is informed(GKE_RULES, [old, new])
    assert rules.expected_node(pool).memory_bytes == 18 * GIB
    other = NodePool(name=pool.name, status=pool.status, machine_type="ct6e-standard-4t")
    assert rules.expected_node(other) == GKE_RULES.expected_node(other)
    assert informed(GKE_RULES, [unready]) is GKE_RULES
