"""Tests that a pool is created only if its nodes offer enough to the pods and can attach their volumes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import NodePool
from provisioner.model.workloads import Volumes
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.supplier import informed
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.slices.planning.test_capacity_requests import Asking
from tests.support.clock import NOW
from tests.support.models import make_jobset, make_node, make_nodes, make_pool, make_requirements
from tests.support.objects import raw_request
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
            "requests 715Gi memory, a node of ct6e-standard-4t offers 687.3Gi to pods",
            id="memory between node and machine (02)",
        ),
        pytest.param(
            {"cpu_millicores": 180_000},
            "requests 180 cpu, a node of ct6e-standard-4t offers 179.48 to pods",
            id="CPU of the whole machine (02c)",
        ),
        pytest.param(
            {"other_bytes": (("hugepages-2Mi", 4 * GIB),)},
            "requests 4Gi hugepages-2Mi, a node of ct6e-standard-4t offers 0Mi to pods; set GCP_NODE_LINUX_CONFIG or",
            id="huge pages (03)",
        ),
    ],
)
def test_no_pool_is_created_for_pods_that_exceed_the_offer(amounts: dict[str, Any], words: str) -> None:
    """The offer is the estimate of the resources that one node of the pool leaves for pods."""
    world = World(make_jobset(parallelism=4, template=make_requirements(**V6E, **amounts)))
    world.live(130, seconds=1)
    assert world.created == []
    (message,) = {notice.message for notice in world.told(EventReason.INVALID_REQUEST)}
    assert words in message


IGNORED = {constants.IGNORE_NODE_ESTIMATE: "true"}
WAY_OUT = f', or set the annotation {constants.IGNORE_NODE_ESTIMATE} to "true" if nodes offer more'


@pytest.mark.parametrize(
    ("amounts", "tight", "ignored"),
    [
        pytest.param({"cpu_millicores": 179_000}, True, True, id="CPU that DaemonSets leave, or not"),
        pytest.param({"cpu_millicores": 179_500}, False, True, id="CPU above the formula"),
        pytest.param({"cpu_millicores": 180_001}, False, False, id="CPU above the machine"),
        pytest.param({"memory_bytes": 687 * GIB}, True, True, id="memory that DaemonSets leave, or not"),
        pytest.param({"memory_bytes": 688 * GIB}, False, True, id="memory above the formula"),
        pytest.param({"memory_bytes": 721 * GIB}, False, False, id="memory above the machine"),
        pytest.param({"other_bytes": (("ephemeral-storage", 100 * GIB),)}, False, True, id="whole boot disk"),
        pytest.param({"other_bytes": (("ephemeral-storage", 101 * GIB),)}, False, False, id="above the boot disk"),
        pytest.param({"other_bytes": (("hugepages-2Mi", 2 * GIB),)}, False, False, id="huge pages"),
    ],
)
@pytest.mark.parametrize("place", ["", "workload", "pods"])
def test_annotation_permits_requests_beyond_the_estimate_up_to_the_machine(
    amounts: dict[str, Any], *, tight: bool, ignored: bool, place: str
) -> None:
    template = make_requirements(**V6E, **amounts, annotations=IGNORED if place == "pods" else {})
    workload = make_jobset(parallelism=4, template=template)
    world = World(replace(workload, annotations=IGNORED) if place == "workload" else workload)
    world.step(seconds=5)
    created = tight or (ignored and place != "")
    assert bool(world.created) is created
    told = {notice.message for notice in world.told(EventReason.INVALID_REQUEST)}
    assert bool(told) is not created
    assert all((WAY_OUT in message) is ignored for message in told)
    # The pool is kept while it has no nodes, and serves the slice if its nodes offer enough.
    world.run(3)
    world.finish_creates()
    enough = {"allocatable_cpu_millicores": 10**6, "allocatable_memory_bytes": 2**50, "allocatable_other_bytes": ()}
    world.nodes = {name: replace(node, **enough) for name, node in world.nodes.items()}
    world.live(60, seconds=5)
    assert (len(world.created), world.deleted, world.bound(workload)) == (int(created), [], int(created))


@pytest.mark.parametrize(("cpu_millicores", "created"), [(239_000, 1), (239_650, 1), (239_651, 0)])
def test_allocatable_resources_of_an_existing_node_are_the_limit(cpu_millicores: int, created: int) -> None:
    """The requests of DaemonSets are unknown, so they are not subtracted from the allocatable cores."""
    world = World(make_jobset(template=make_requirements(cpu_millicores=cpu_millicores)))
    world.put(make_node(make_pool(make_jobset("other")), allocatable_cpu_millicores=239_650, pool_name="foreign"))
    world.step()
    assert len(world.created) == created


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
        assert (len(world.created), world.told(EventReason.STUCK)) == (created, [])
        assert all(world.bound(workload) == created for workload in world.workloads.values())


@pytest.mark.parametrize("seen", [False, True], ids=["formula", "existing node"])
def test_huge_pages_reduce_the_memory_for_pods(*, seen: bool) -> None:
    """The kubelet subtracts huge pages from the allocatable memory of new and of existing nodes."""
    plain = make_pool(make_jobset())
    paged = replace(plain, node={"node_linux_config": (("hugepages-1Gi", 4), ("hugepages-2Mi", 1024))})
    pages = (("hugepages-1Gi", 4 * GIB), ("hugepages-2Mi", 2 * GIB))
    node = make_node(paged, 0, allocatable_memory_bytes=100 * GIB, allocatable_other_bytes=pages)
    rules = informed(GKE_RULES, [node]) if seen else GKE_RULES
    offers = [rules.expected_node(pool).memory_bytes for pool in (plain, paged)]
    assert offers[0] - offers[1] == 6 * GIB
    assert offers[1] == 100 * GIB or not seen


@pytest.mark.parametrize(("offered_gib", "kept"), [(700, True), (699, False)])
def test_pod_that_exceeds_the_offer_gets_a_pool_if_existing_nodes_offer_more(offered_gib: int, *, kept: bool) -> None:
    """Nodes of newer GKE versions reserve less memory than the formula, so refusals end when a newer node exists."""
    small, large = (
        make_jobset(name, parallelism=4, template=make_requirements(**V6E, memory_bytes=size * GIB))
        for name, size in (("small", 1), ("large", 700))
    )
    world = World(small, large)
    world.live(5)
    assert [world.bound(small), world.bound(large)] == [1, 0]
    world.nodes = {name: replace(node, allocatable_memory_bytes=707 * GIB) for name, node in world.nodes.items()}
    world.step()
    assert len(world.created) == 2
    # The new nodes offer less than the old nodes: the pool is kept, or deleted if the scheduler binds no pod to it.
    pool = world.pools[world.created[-1]]
    world.put(*make_nodes(pool, created_at=world.now, allocatable_memory_bytes=offered_gib * GIB))
    world.pools = {name: replace(pool, status=type(pool.status).RUNNING) for name, pool in world.pools.items()}
    world.live(200, seconds=10)
    assert (len(world.created), len(world.deleted), world.bound(large)) == (2, int(not kept), int(kept))


def test_newest_ready_node_of_a_machine_type_determines_the_offer() -> None:
    pool = make_pool(make_jobset())
    old, new, unready = (
        make_node(pool, index, created_at=NOW + timedelta(hours=index), allocatable_memory_bytes=size * GIB, **changes)
        for index, (size, changes) in enumerate([(10, {}), (20, {}), (30, {"ready": False})])
    )
    rules = informed(GKE_RULES, [new, old, unready])
    assert rules is informed(GKE_RULES, [old, new])
    assert rules.expected_node(pool).memory_bytes == 20 * GIB
    other = NodePool(name=pool.name, status=pool.status, machine_type="ct6e-standard-4t")
    assert rules.expected_node(other) == GKE_RULES.expected_node(other)
    assert informed(GKE_RULES, [unready]) is GKE_RULES


# --- Volumes ---


HERE, THERE = "us-central2-b", "us-central2-c"


def world_of(volumes: Volumes, *, accelerator: str = "tpu-v4-podslice", topology: str = "2x2x2") -> World:
    template = make_requirements(accelerator=accelerator, topology=topology, volumes=volumes, tolerations=())
    return World(make_jobset(template=template), settings_=settings(zones=(HERE, THERE)))


def test_pool_is_created_in_the_zone_of_the_volumes() -> None:
    world = world_of(Volumes(zones=(THERE,)))
    world.live(3)
    assert [world.pools[name].zones for name in world.created] == [(THERE,)]


@pytest.mark.parametrize(
    ("volumes", "reason", "words"),
    [
        pytest.param(
            Volumes(zones=("us-central2-a",)),
            EventReason.INVALID_REQUEST,
            "the pod's volumes are in zone us-central2-a, the node is in us-central2-b",
            id="volume outside of the zones (09)",
        ),
        pytest.param(
            Volumes(zones=()), EventReason.INVALID_REQUEST, "volumes have no zone in common", id="volumes in two zones"
        ),
        pytest.param(
            Volumes(disks=("hyperdisk-ml", "pd-balanced")),
            EventReason.INVALID_REQUEST,
            "a volume of the pod is a disk of type pd-balanced, which ct6e-standard-4t cannot attach",
            id="Persistent Disk on v6e",
        ),
        pytest.param(
            Volumes(problem="PersistentVolumeClaim default/x does not exist; create it"),
            EventReason.CREATION_WAITING,
            "waits: PersistentVolumeClaim default/x does not exist; create it.",
            id="missing claim",
        ),
    ],
)
def test_no_pool_is_created_for_volumes_that_its_nodes_cannot_attach(volumes: Volumes, reason: str, words: str) -> None:
    world = world_of(volumes, accelerator="tpu-v6e-slice", topology="2x4")
    world.live(130)
    assert world.created == []
    (message,) = {notice.message for notice in world.told(reason)}
    assert words in message


def test_pool_is_created_for_a_disk_type_that_its_machines_can_attach() -> None:
    world = world_of(Volumes(disks=("pd-balanced",)))
    world.live(3)
    assert len(world.created) == 1


def test_free_pool_in_another_zone_is_not_taken() -> None:
    first = make_jobset("first")
    world = World(first, settings_=settings(zones=(HERE, THERE)))
    world.live(3)
    world.finish(first)
    template = make_requirements(volumes=Volumes(zones=(THERE,)), tolerations=())
    second = make_jobset("second", template=template)
    world.add(second)
    world.live(3)
    assert [world.pools[name].zones for name in world.created] == [(HERE,), (THERE,)]
    assert world.bound(second) == 1


def test_request_waits_for_a_missing_claim_and_does_not_fail() -> None:
    """The condition Failed is final: Kueue would give up on a request whose claim is created only a little later."""
    world = Asking(raw_request("req", 2))
    key = next(iter(world.templates))
    asked = world.templates[key]
    problem = Volumes(claims=("x",), problem="PersistentVolumeClaim default/x does not exist; create it")
    changes: dict[str, Any] = {"volumes": problem}
    world.templates[key] = replace(asked, **changes)
    world.live(5)
    assert world.created == []
    assert constants.FAILED not in world.conditions("req")
    world.templates[key] = asked
    world.live(3)
    assert len(world.created) == 1
