"""Tests of the GKE client with the simulated GKE: two independent implementations of one API must agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from provisioner import constants
from provisioner.kube.fields import parse_quantity
from provisioner.model.capacity import (
    CapacityKind,
    Failure,
    FailureKind,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
    expected_pool,
)
from provisioner.settings import node_fields, node_forms
from provisioner.slices.preflight.in_google import ACT_AS
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError, says_missing
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from rehearsal.simulators.gke.app import Simulator
from rehearsal.simulators.gke.capacity import FULL_RESERVATION_TEXTS
from rehearsal.simulators.gke.faults import Fault, FaultKind
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.registrar import node_object
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.support.clock import FakeClock
from tests.support.gke import CLUSTER_NAME, SLICE

SINGLE = replace(SLICE, machine_type="ct6e-standard-1t", hosts=1, topology="1x1", placement_topology="")
#: Request with every node setting that a single host may have.
CONFIGURED = replace(
    SINGLE,
    max_run_seconds=7200,
    node={
        **SINGLE.node,
        "node_tags": ("t1",),
        "node_resource_labels": (("tpu-workload", "{workload}"), ("team", "a")),
        "node_disk_size_gb": 500,
        "node_image_type": "cos_containerd",
        "node_private": True,
        "node_pod_range": "pods-2",
        "node_kubelet_config": (
            *(("cpuManagerPolicy", "static"), ("cpuCfsQuota", False), ("cpuCfsQuotaPeriod", "50ms")),
            *(("podPidsLimit", 4096), ("imageGcLowThresholdPercent", 50), ("imageGcHighThresholdPercent", 60)),
            *(("containerLogMaxSize", "100Mi"), ("containerLogMaxFiles", 5), ("maxParallelImagePulls", 4)),
            *(("singleProcessOomKill", True), ("topologyManager.policy", "restricted")),
            ("topologyManager.scope", "pod"),
        ),
        "node_linux_config": (
            *(("hugepages-2Mi", 1024), ("hugepages-1Gi", 4), ("transparentHugepage", "madvise")),
            *((name, "4096 8192 16384" if name.endswith("mem") else "1") for name in sorted(node_forms.SYSCTLS)),
        ),
        "node_sandbox": "gvisor",
        "max_pods_per_node": 32,
    },
)
#: Request without taints, because GKE adds nodes later only if the pods tolerate the pool's own taints.
UNTAINTED = replace(SLICE, taints=())
IRONWOOD = replace(
    SLICE,
    machine_type="tpu7x-standard-4t",
    hosts=16,
    topology="4x4x4",
    placement_topology="",
    policy_name="w",
    labels={**SLICE.labels, constants.POOL_TOPOLOGY: "4x4x4"},
)


@dataclass
class Rehearsal:
    """The simulated GKE, its client and its clock."""

    clock: FakeClock = field(default_factory=FakeClock)
    simulator: Simulator = field(init=False)
    client: GkeClient = field(init=False)

    def __post_init__(self) -> None:
        self.simulator = Simulator(SimulatorSettings(workload_policies={"w": "4x4x4"}), clock=self.clock.now)

    def start(self) -> None:
        self.simulator.start()
        self.client = GkeClient(CLUSTER_NAME, endpoint=self.simulator.url)

    def stop(self) -> None:
        self.client.close()
        self.simulator.stop()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.simulator.world.advance()

    def nodes(self) -> int:
        return sum(len(pool.nodes) for pool in self.simulator.pools)

    def operation(self, name: OperationName) -> Operation:
        return self.client.get_operation(name)


@pytest.fixture
def gke() -> Iterator[Rehearsal]:
    rehearsal = Rehearsal()
    rehearsal.start()
    yield rehearsal
    rehearsal.stop()


def failure_of_create(gke: Rehearsal, request: NodePoolRequest) -> tuple[FailureKind, str]:
    with pytest.raises(GkeError) as caught:
        gke.client.create_node_pool(request)
    return caught.value.failure.kind, caught.value.failure.message


SUB_BLOCK = "projects/q/reservations/r/reservationBlocks/b/reservationSubBlocks/s"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(SLICE, id="on demand"),
        pytest.param(SINGLE, id="a single host"),
        pytest.param(CONFIGURED, id="every node setting"),
        pytest.param(replace(SLICE, capacity=CapacityKind.SPOT), id="spot"),
        pytest.param(
            replace(SLICE, node={**SLICE.node, "idle_maintenance_seconds": 600.0}), id="maintenance of idle hosts"
        ),
        pytest.param(replace(UNTAINTED, capacity=CapacityKind.FLEX_START), id="flex-start"),
        pytest.param(replace(SLICE, capacity=CapacityKind.RESERVATION, reservation="r"), id="a reservation"),
        pytest.param(
            replace(SLICE, capacity=CapacityKind.RESERVATION, reservation=SUB_BLOCK),
            id="a sub-block of a shared reservation",
        ),
        pytest.param(
            replace(IRONWOOD, labels={"google.com/tpu-provisioner-topology": "4x4x4"}), id="a workload policy"
        ),
    ],
)
def test_nodes_match_the_prediction_of_planning(gke: Rehearsal, request_: NodePoolRequest) -> None:
    """The prediction has only labels that the nodes have, and every taint of the nodes."""
    gke.client.create_node_pool(request_)
    listed = gke.client.get_node_pool(request_.name)
    assert listed == expected_pool(request_)
    # The fit of pods reads disk and huge pages from existing and from requested pools.
    assert node_fields.boot_disk_gb(listed.node) == node_fields.boot_disk_gb(request_.node)
    assert node_fields.huge_pages_bytes(listed.node) == node_fields.huge_pages_bytes(request_.node)
    read = {name for name, row in node_fields.ROWS.items() if row.listed is not None} - {"node_linux_config"}
    assert {name: value for name, value in request_.node.items() if name in read}.items() <= listed.node.items()
    gke.wait(60)
    pool = gke.simulator.world.pool(ClusterName("p", "us-east5", "c"), request_.name)
    node = node_object(pool, pool.nodes[0], version="1", life="life", ready=True)
    view = GKE_RULES.expected_node(expected_pool(request_))
    assert dict(view.labels).items() <= node["metadata"]["labels"].items()
    pages = {key: parse_quantity(node["status"]["allocatable"][key]) for key in ("hugepages-2Mi", "hugepages-1Gi")}
    assert pages == node_fields.huge_pages_bytes(request_.node)
    assert {(taint["key"], taint["value"], taint["effect"]) for taint in node["spec"]["taints"]} <= {
        (taint.key, taint.value, taint.effect) for taint in view.taints
    }


@pytest.mark.parametrize("text", FULL_RESERVATION_TEXTS)
def test_a_full_reservation_is_a_stockout_in_all_recorded_texts(gke: Rehearsal, text: str) -> None:
    """The text is the message of a failed pool, or of an HTTP 429 response to a create."""
    gke.simulator.inject(Fault(kind=FaultKind.STOCKOUT, reservation="r", message=text))
    gke.client.create_node_pool(replace(SLICE, capacity=CapacityKind.RESERVATION, reservation="r"))
    gke.wait(7200)
    failure = gke.client.get_node_pool(SLICE.name).failure
    assert failure is not None
    assert failure.kind is FailureKind.STOCKOUT
    gke.simulator.inject(Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=429, message=text))
    assert failure_of_create(gke, replace(SLICE, name=PoolName("next"), reservation="r"))[0] is FailureKind.STOCKOUT


def test_a_block_without_its_reservations_full_path_is_rejected(gke: Rehearsal) -> None:
    block = "reservations/r/reservationBlocks/b"
    kind, _ = failure_of_create(gke, replace(SLICE, reservation=block.removeprefix("reservations/")))
    assert kind is FailureKind.INVALID
    gke.client.create_node_pool(replace(SLICE, reservation=f"projects/p/{block}"))


@pytest.mark.parametrize(
    ("state", "want", "words"),
    [
        pytest.param("forbidden", FailureKind.PERMISSION, "Grant the provisioner's identity roles/iam", id="no actAs"),
        pytest.param("missing", FailureKind.INVALID, "does not exist", id="no such account"),
    ],
)
def test_unusable_service_account_has_the_kind_of_its_remedy(
    gke: Rehearsal, state: str, want: FailureKind, words: str
) -> None:
    """The create is rejected with HTTP 400 until the account is usable, as the check of permissions predicts."""
    account, other = "nodes@p-project.iam.gserviceaccount.com", "others@p-project.iam.gserviceaccount.com"
    gke.simulator.set(service_accounts={account: state})
    request = replace(SLICE, node={**SLICE.node, "node_service_account": account})
    assert gke.client.test_account_permissions(other, (ACT_AS,)) == {ACT_AS}
    if state == "missing":
        with pytest.raises(GkeError) as caught:
            gke.client.test_account_permissions(account, (ACT_AS,))
        assert caught.value.failure.kind is FailureKind.NOT_FOUND
    else:
        assert gke.client.test_account_permissions(account, (ACT_AS,)) == frozenset()
    kind, message = failure_of_create(gke, request)
    assert kind is want
    assert words in message
    gke.client.create_node_pool(
        replace(SLICE, name=PoolName("other"), node={**SLICE.node, "node_service_account": other})
    )
    gke.simulator.set(service_accounts={})
    gke.client.create_node_pool(request)


def test_full_reservation_is_a_stockout_and_a_missing_one_is_invalid(gke: Rehearsal) -> None:
    """A reservation that is full or not ready may become available; a missing one is a mistake in the request."""
    gke.simulator.set(reservations={"us-east5-b/r": "FULL", "us-east5-b/new": "CREATING", "us-east5-a/there": "READY"})
    kind, message = failure_of_create(gke, replace(SLICE, reservation="there"))
    assert kind is FailureKind.INVALID
    assert "The resource 'projects/p/zones/us-east5-b/reservations/there' was not found" in message
    assert gke.client.get_reservation(project="p", zone="us-east5-b", name="r").status == "READY"
    for reservation in ("r", "new"):
        gke.client.create_node_pool(replace(SLICE, name=PoolName(reservation), reservation=reservation))
    gke.simulator.set(reservations={"us-east5-b/r": "READY"})
    gke.client.create_node_pool(replace(SLICE, name=PoolName("next"), reservation="projects/p/reservations/r"))
    gke.wait(60)
    pools = {pool.name: pool for pool in gke.client.list_node_pools()}
    assert [failure.kind for name in ("r", "new") if (failure := pools[PoolName(name)].failure) is not None] == [
        FailureKind.STOCKOUT,
        FailureKind.STOCKOUT,
    ]
    assert pools[PoolName("next")].status is PoolStatus.RUNNING


def test_missing_policy_is_distinguished_from_other_failures(gke: Rehearsal) -> None:
    request = replace(IRONWOOD, policy_name="nobody")
    kind, message = failure_of_create(gke, request)
    assert says_missing(Failure(kind=kind, message=message), "nobody")
    kind, message = failure_of_create(gke, replace(IRONWOOD, node={"node_disk_type": "pd-balanced"}))
    assert not says_missing(Failure(kind=kind, message=message), "nobody")
