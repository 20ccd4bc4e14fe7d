"""Tests of the requests that the GKE client sends, and of the responses that it reads, over a real socket."""

from __future__ import annotations

import base64
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import google.auth
import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.auth import credentials as auth_credentials
from google.auth import exceptions as auth_exceptions
from google.auth.transport import requests as auth_requests
from google.cloud import container_v1, container_v1beta1
from google.protobuf import json_format

import provisioner
from provisioner import constants
from provisioner.google.session import ApiSession
from provisioner.model.capacity import (
    CapacityKind,
    Failure,
    FailureKind,
    Network,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
    Taint,
    WorkloadPolicy,
    Zone,
)
from provisioner.slices.act import CALL_TIMEOUT_SECONDS
from provisioner.slices.suppliers.gke import translate
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.translate import Cluster, Reservation
from tests.support.clock import FakeClock
from tests.support.gke import CLUSTER_NAME
from tests.support.recording_server import Answer, Recorded, RecordingServer, google_error

CLUSTER_PATH = "/v1/projects/p/locations/us-east5/clusters/c"


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as running:
        yield running


def make_client(server: RecordingServer, **options: Any) -> GkeClient:
    return GkeClient(CLUSTER_NAME, endpoint=server.url, **options)


@pytest.fixture
def client(server: RecordingServer) -> Iterator[GkeClient]:
    made = make_client(server)
    yield made
    made.close()


SMALLEST = NodePoolRequest(
    name=PoolName("js-0123456789"),
    zone=Zone("us-east5-b"),
    machine_type="ct6e-standard-1t",
    hosts=1,
    topology="1x1",
    node={"node_disk_type": "hyperdisk-balanced", "node_secure_boot": True, "max_pods_per_node": 15},
)
SMALLEST_JSON = {
    "name": "js-0123456789",
    "initialNodeCount": 1,
    "locations": ["us-east5-b"],
    "config": {
        "machineType": "ct6e-standard-1t",
        "diskType": "hyperdisk-balanced",
        "shieldedInstanceConfig": {"enableIntegrityMonitoring": True, "enableSecureBoot": True},
    },
    # autoUpgrade is left out of the JSON, because its value is false.
    "management": {"autoRepair": True},
    "upgradeSettings": {"maxSurge": 1},
    "maxPodsConstraint": {"maxPodsPerNode": "15"},
}


def with_config(**config: Any) -> dict[str, Any]:
    return {**SMALLEST_JSON, "config": {**SMALLEST_JSON["config"], **config}}  # type: ignore[dict-item]


#: JSON of a pool that is created without nodes, and gets up to four nodes.
MADE_EMPTY: dict[str, Any] = {
    **{key: value for key, value in SMALLEST_JSON.items() if key not in ("initialNodeCount", "management")},
    "config": {**SMALLEST_JSON["config"], "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}},  # type: ignore[dict-item]
    # autoRepair is left out of the JSON, because its value is false.
    "management": {},
    "autoscaling": {"enabled": True, "maxNodeCount": 4, "locationPolicy": "ANY"},
    "upgradeSettings": {"strategy": "SHORT_LIVED"},
}
IDLE_MAINTENANCE = {
    "maintenanceInterval": "PERIODIC",
    "opportunisticMaintenanceStrategy": {
        "nodeIdleTimeWindow": "600s",
        "maintenanceAvailabilityWindow": "2419200s",
        "minNodesPerPool": "0",
    },
}
REQUESTS = [
    pytest.param(SMALLEST, SMALLEST_JSON, id="a single-host pool has no placement policy"),
    pytest.param(
        replace(SMALLEST, topology="4x4", placement_topology="4x4", hosts=4),
        {**SMALLEST_JSON, "initialNodeCount": 4, "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"}},
        id="a multi-host pool is placed COMPACT with its topology",
    ),
    pytest.param(
        replace(SMALLEST, policy_name="tpu-provisioner-4x4x4", topology="4x4x4"),
        {**SMALLEST_JSON, "placementPolicy": {"policyName": "tpu-provisioner-4x4x4"}},
        id="a workload policy goes alone, without type and topology",
    ),
    pytest.param(
        replace(
            SMALLEST, node={**SMALLEST.node, "node_oauth_scopes": ("https://www.googleapis.com/auth/cloud-platform",)}
        ),
        with_config(oauthScopes=["https://www.googleapis.com/auth/cloud-platform"]),
        id="the scopes of the nodes are told, for without them no private image is pulled",
    ),
    pytest.param(
        replace(SMALLEST, auto_upgrade=True),
        {
            **SMALLEST_JSON,
            "management": {"autoRepair": True, "autoUpgrade": True},
            "maintenancePolicy": {"exclusionUntilEndOfSupport": {"enabled": True}},
        },
        id="auto-upgrade comes with the exclusion until end of support",
    ),
    pytest.param(
        replace(SMALLEST, reservation="projects/q/reservations/r"),
        with_config(
            reservationAffinity={
                "consumeReservationType": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": ["projects/q/reservations/r"],
            }
        ),
        id="a reservation is the one specific value",
    ),
    pytest.param(
        replace(
            SMALLEST,
            capacity=CapacityKind.SPOT,
            labels={"team": "a"},
            taints=(
                Taint(key="cloud.google.com/gke-spot", value="true"),
                Taint(key="soft", effect="PreferNoSchedule"),
                Taint(key="hard", effect="NoExecute"),
            ),
        ),
        with_config(
            spot=True,
            labels={"team": "a"},
            taints=[
                {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NO_SCHEDULE"},
                {"key": "soft", "effect": "PREFER_NO_SCHEDULE"},
                {"key": "hard", "effect": "NO_EXECUTE"},
            ],
        ),
        id="spot, labels and taints are told",
    ),
    pytest.param(
        replace(SMALLEST, max_run_seconds=86400),
        with_config(maxRunDuration="86400s"),
        id="the longest run of any pool is told",
    ),
    pytest.param(
        replace(SMALLEST, node={**SMALLEST.node, "idle_maintenance_seconds": 600.0}),
        with_config(hostMaintenancePolicy=IDLE_MAINTENANCE),
        id="idle nodes may be maintained",
    ),
    pytest.param(
        replace(
            SMALLEST,
            topology="4x4",
            placement_topology="4x4",
            hosts=4,
            capacity=CapacityKind.FLEX_START,
            max_run_seconds=3600,
        ),
        {
            **MADE_EMPTY,
            "config": {**MADE_EMPTY["config"], "flexStart": True, "maxRunDuration": "3600s"},
            "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"},
        },
        id="a flex-start pool is made empty, to grow to the whole slice",
    ),
    pytest.param(
        replace(
            SMALLEST,
            node={
                "node_service_account": "nodes@p.iam.gserviceaccount.com",
                "node_tags": ("t1", "t2"),
                "max_pods_per_node": 16,
                "node_secure_boot": False,
                "node_secondary_disk": "projects/p/global/images/i",
                "node_confidential_storage": True,
                "node_boot_disk_kms_key": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
                "node_additional_networks": (
                    Network(network="vpc1", subnetwork="s1"),
                    Network(network="v2", subnetwork="s2"),
                ),
                "node_disk_size_gb": 500,
                "node_image_type": "ubuntu_containerd",
                "node_private": False,
                "node_pod_range": "pods-2",
                "node_kubelet_config": (("podPidsLimit", 4096), ("topologyManager.policy", "restricted")),
                "node_linux_config": (
                    *(("hugepages-2Mi", 1024), ("hugepages-1Gi", 4), ("transparentHugepage", "always")),
                    ("net.core.somaxconn", "4096"),
                ),
                "node_sandbox": "gvisor",
                "node_resource_labels": (("tpu-workload", "{workload}"), ("team", "{label:team}"), ("bill", "x")),
            },
            labels={constants.NETWORK_PROFILE: "auto", constants.POOL_WORKLOAD_NAME: "Train.1"},
        ),
        {
            **SMALLEST_JSON,
            "maxPodsConstraint": {"maxPodsPerNode": "16"},
            "networkConfig": {
                "additionalNodeNetworkConfigs": [
                    {"network": "vpc1", "subnetwork": "s1"},
                    {"network": "v2", "subnetwork": "s2"},
                ],
                "acceleratorNetworkProfile": "auto",
                "enablePrivateNodes": False,
                "podRange": "pods-2",
            },
            "config": {
                "machineType": "ct6e-standard-1t",
                "serviceAccount": "nodes@p.iam.gserviceaccount.com",
                "labels": {constants.NETWORK_PROFILE: "auto", constants.POOL_WORKLOAD_NAME: "Train.1"},
                "diskSizeGb": 500,
                "imageType": "UBUNTU_CONTAINERD",
                "kubeletConfig": {"podPidsLimit": "4096", "topologyManager": {"policy": "restricted"}},
                "linuxNodeConfig": {
                    "hugepages": {"hugepageSize2m": 1024, "hugepageSize1g": 4},
                    "transparentHugepageEnabled": "TRANSPARENT_HUGEPAGE_ENABLED_ALWAYS",
                    "sysctls": {"net.core.somaxconn": "4096"},
                },
                "sandboxConfig": {"type": "GVISOR"},
                "resourceLabels": {"tpu-workload": "train-1", "bill": "x"},
                "tags": ["t1", "t2"],
                "gcfsConfig": {"enabled": True},
                "secondaryBootDisks": [{"mode": "CONTAINER_IMAGE_CACHE", "diskImage": "projects/p/global/images/i"}],
                "enableConfidentialStorage": True,
                "bootDiskKmsKey": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
                "shieldedInstanceConfig": {"enableIntegrityMonitoring": True},
            },
        },
        id="every setting of nodes is told",
    ),
]


@pytest.mark.parametrize(("request_", "want"), REQUESTS)
def test_create_sends_exactly_the_expected_json(
    server: RecordingServer, client: GkeClient, request_: NodePoolRequest, want: dict[str, Any]
) -> None:
    server.answer = Answer(body={"name": "operation-1-a", "status": "RUNNING", "operationType": "CREATE_NODE_POOL"})
    assert client.create_node_pool(request_) == "operation-1-a"
    [sent] = server.requests
    version = "v1beta1" if request_.node.get("idle_maintenance_seconds") else "v1"
    path = f"{CLUSTER_PATH}/nodePools".replace("/v1/", f"/{version}/")
    assert (sent.method, sent.path.partition("?")[0]) == ("POST", path)
    api = container_v1beta1 if version == "v1beta1" else container_v1
    # The library sends enums as numbers, so the message is parsed and printed with the names of the enums.
    message = json_format.ParseDict(sent.json["nodePool"], api.NodePool.pb(api.NodePool()))
    assert json_format.MessageToDict(message) == want
    assert sent.headers["user-agent"].startswith("tpu-provisioner/")
    assert "authorization" not in sent.headers


def test_calls_of_the_library_name_the_provisioner(server: RecordingServer, client: GkeClient) -> None:
    client.list_node_pools()
    [sent] = server.requests
    assert sent.headers["user-agent"] == f"tpu-provisioner/{provisioner.__version__}"
    names = sent.headers["x-goog-api-client"].split()
    assert {f"tpu-provisioner/{provisioner.__version__}", f"gapic/{container_v1.__version__}"} < set(names)


FULL_POOL = {
    "name": "a",
    "status": "RUNNING",
    "initialNodeCount": 4,
    "locations": ["us-east5-b"],
    "config": {
        "machineType": "ct6e-standard-4t",
        "labels": {"k": "v"},
        "taints": [{"key": "t", "value": "x", "effect": "NO_EXECUTE"}],
        "spot": True,
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["r"],
        },
    },
    "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4", "policyName": "w"},
}
FULL = NodePool(
    name=PoolName("a"),
    status=PoolStatus.RUNNING,
    labels={"k": "v"},
    taints=(Taint(key="t", value="x", effect="NoExecute"),),
    machine_type="ct6e-standard-4t",
    hosts=4,
    zones=(Zone("us-east5-b"),),
    topology="4x4",
    policy_name="w",
    capacity=CapacityKind.RESERVATION,
    reservation="r",
)
#: JSON of a pool, which is RUNNING unless the status is given, and the fields that are read from it.
POOLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    # The number of hosts is the larger of the initial and, with autoscaling, the maximum number of nodes.
    (
        {"autoscaling": {"enabled": True, "maxNodeCount": 4}, "config": {"flexStart": True}},
        {"hosts": 4, "capacity": CapacityKind.FLEX_START},
    ),
    ({"initialNodeCount": 4, "autoscaling": {"enabled": True, "maxNodeCount": 2}}, {"hosts": 4}),
    ({"initialNodeCount": 1, "autoscaling": {"maxNodeCount": 4}}, {"hosts": 1}),
    # Names of enums that this release does not know are read as unknown or empty.
    ({"status": "DREAMING"}, {"status": PoolStatus.UNKNOWN}),
    ({"status": None}, {"status": PoolStatus.UNKNOWN}),
    ({"config": {"taints": [{"key": "t", "effect": "NO_NEWS"}]}}, {"taints": (Taint(key="t", effect=""),)}),
    # ANY_RESERVATION names no reservation, so the pool counts as on-demand.
    ({"config": {"reservationAffinity": {"consumeReservationType": "ANY_RESERVATION"}}}, {}),
    # A running pool has not failed, regardless of its message.
    ({"statusMessage": "[GCE_STOCKOUT] long ago"}, {}),
    (
        {"status": "RUNNING_WITH_ERROR"},
        {
            "status": PoolStatus.RUNNING_WITH_ERROR,
            "failure": Failure(kind=FailureKind.UNAVAILABLE, message="GKE gives no reason."),
        },
    ),
]
#: JSON of a pool in ERROR, the kind of its failure, and the message, without repeated texts.
FAILED_POOLS: list[tuple[dict[str, Any], FailureKind, str]] = [
    (
        {"statusMessage": "no resources", "conditions": [{"code": "GCE_STOCKOUT", "message": "no resources"}]},
        FailureKind.STOCKOUT,
        "[GCE_STOCKOUT] no resources",
    ),
    (
        {"conditions": [{"code": "GCE_STOCKOUT", "message": "[GCE_STOCKOUT]: Instance 'x' creation failed"}]},
        FailureKind.STOCKOUT,
        "[GCE_STOCKOUT]: Instance 'x' creation failed",
    ),
    (
        {"statusMessage": "Resize failed with [GCE_STOCKOUT]", "conditions": [{"code": "GCE_STOCKOUT"}]},
        FailureKind.STOCKOUT,
        "Resize failed with [GCE_STOCKOUT]",
    ),
    (
        {"conditions": [{"canonicalCode": "PERMISSION_DENIED", "message": "hm"}]},
        FailureKind.PERMISSION,
        "hm",
    ),
    (
        {"conditions": [{"canonicalCode": "RESOURCE_EXHAUSTED"}]},
        FailureKind.QUOTA,
        "GKE gives only the code 8, without a message.",
    ),
]


def read_everywhere(server: RecordingServer, client: GkeClient, body: dict[str, Any]) -> NodePool:
    """Return the pool that the client reads from the list; a read of only this pool must give the same result."""
    server.answer = lambda request: Answer(
        body={"nodePools": [body]} if request.path.partition("?")[0].endswith("nodePools") else body
    )
    (found,) = client.list_node_pools()
    assert client.get_node_pool(PoolName("x")) == found
    return found


def test_every_field_of_a_pool_is_read(server: RecordingServer, client: GkeClient) -> None:
    assert read_everywhere(server, client, FULL_POOL) == FULL


def test_names_of_nodes_are_read_from_the_instance_groups(server: RecordingServer, client: GkeClient) -> None:
    """Names of TPU nodes contain only the hash of their group; names of other nodes begin with its whole name."""
    groups = "https://www.googleapis.com/compute/v1/projects/p/zones/us-east5-b/instanceGroupManagers"
    urls = [f"{groups}/gke-c-a-0123456789-0a1b2c3d-grp", f"{groups}/odd", "odd"]
    pool = read_everywhere(server, client, {**FULL_POOL, "instanceGroupUrls": urls})
    assert pool.node_prefixes == ("gke-c-a-0123456789-0a1b2c3d", "gke-tpu-0a1b2c3d")


@pytest.mark.parametrize(("body", "facts"), POOLS)
def test_json_of_a_pool_is_read_as_the_expected_fields(
    server: RecordingServer, client: GkeClient, body: dict[str, Any], facts: dict[str, Any]
) -> None:
    want = NodePool(**{"name": PoolName("b"), "status": PoolStatus.RUNNING, **facts})
    assert read_everywhere(server, client, {"name": "b", "status": "RUNNING", **body}) == want


@pytest.mark.parametrize(("body", "kind", "words"), FAILED_POOLS)
def test_failed_pool_has_the_kind_and_message_of_its_conditions(
    server: RecordingServer, client: GkeClient, body: dict[str, Any], kind: FailureKind, words: str
) -> None:
    pool = read_everywhere(server, client, {"name": "b", "status": "ERROR", **body})
    assert (pool.status, pool.failure) == (PoolStatus.ERROR, Failure(kind=kind, message=words))


@pytest.mark.parametrize(
    "field",
    [
        pytest.param({"initialNodeCount": {"what": "is this"}}, id="a count that is an object"),
        pytest.param({"config": {"labels": {"k": 1}}}, id="a label that is a number"),
        pytest.param({"conditions": [None]}, id="a condition that is null"),
        pytest.param({"statusMessage": ["a"]}, id="a message that is a list"),
    ],
)
def test_unreadable_pool_is_unknown_and_does_not_hide_the_others(
    server: RecordingServer, client: GkeClient, field: dict[str, Any]
) -> None:
    """The library rejects the whole list because of one field of a wrong type."""
    bad = {"name": "bad", "status": "RUNNING", **field}
    unknown = NodePool(name=PoolName("bad"), status=PoolStatus.UNKNOWN)
    new = {"name": "b", "status": "ERROR", "conditions": [{"code": "NEW_STOCKOUT", "message": "none"}]}
    server.answer = Answer(body={"nodePools": [bad, "text", None, {"status": "RUNNING"}, new, FULL_POOL]})
    first, second, third = client.list_node_pools()
    assert (first, third) == (unknown, FULL)
    assert second.failure == Failure(kind=FailureKind.UNAVAILABLE, message="[NEW_STOCKOUT] none")
    assert len(server.requests) == 1
    server.answer = Answer(body=bad)
    assert client.get_node_pool(PoolName("bad")) == unknown


@pytest.mark.parametrize(
    "body",
    [
        {"name": "b", "status": "ERROR", "config": "odd", "conditions": ["odd"]},
        {"name": "b", "status": "ERROR", "config": [], "conditions": None},
    ],
)
def test_texts_in_place_of_objects_are_read_as_absent(
    server: RecordingServer, client: GkeClient, body: dict[str, Any]
) -> None:
    pool = read_everywhere(server, client, body)
    assert pool.failure == Failure(kind=FailureKind.UNAVAILABLE, message="GKE gives no reason.")


# --- Names of enum values that the installed release of the library does not know ---


def test_enums_are_requested_as_words(server: RecordingServer, client: GkeClient) -> None:
    """By default, the library requests enums as numbers, and has no text for a number that it does not know."""
    for call in (client.list_node_pools, client.get_cluster, lambda: client.get_operation(OperationName("o"))):
        call()
    client.get_node_pool(PoolName("a"))
    client.delete_node_pool(PoolName("a"))
    client.create_node_pool(SMALLEST)
    assert {request.query["$alt"] for request in server.requests} == {"json"}
    assert len(server.requests) == 6


#: Codes that are not in the library's enum, and the kinds that their texts determine.
NEW_CODES = [
    ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", FailureKind.STOCKOUT),
    ("RESERVATION_CAPACITY_EXCEEDED", FailureKind.STOCKOUT),
    ("REGION_QUOTA_EXCEEDED", FailureKind.QUOTA),
    ("IP_SPACE_EXHAUSTED", FailureKind.QUOTA),
    ("MOON_IS_DOWN", FailureKind.UNAVAILABLE),
]


@pytest.mark.parametrize(("code", "kind"), NEW_CODES)
def test_code_that_the_library_does_not_know_keeps_its_text(
    server: RecordingServer, client: GkeClient, code: str, kind: FailureKind
) -> None:
    assert code not in container_v1.StatusCondition.Code.__members__
    condition, want = {"code": code, "message": "later"}, Failure(kind=kind, message=f"[{code}] later")
    pool = read_everywhere(server, client, {"name": "b", "status": "ERROR", "conditions": [condition]})
    assert pool.failure == want
    for field in ("clusterConditions", "nodepoolConditions"):
        server.answer = Answer(body={"name": "o", "status": "DONE", field: [condition]})
        assert client.get_operation(OperationName("o")).failure == want


def test_conditions_keep_their_own_codes(server: RecordingServer, client: GkeClient) -> None:
    conditions = [{"code": "GCE_STOCKOUT"}, {"message": "b"}, {"code": "NEW", "message": "c"}]
    pool = read_everywhere(server, client, {"name": "b", "status": "ERROR", "conditions": conditions})
    assert pool.failure is not None
    assert pool.failure.message == "[GCE_STOCKOUT] b [NEW] c"


def test_enums_that_are_sent_as_numbers_are_read(server: RecordingServer, client: GkeClient) -> None:
    """A server may send numbers although words are requested."""
    condition = {"code": 1, "canonicalCode": 8, "message": "a"}
    taint = {"key": "t", "effect": 1}
    body = {"name": "b", "status": 6, "conditions": [condition, {"code": 77, "message": "c"}]}
    pool = read_everywhere(server, client, {**body, "config": {"taints": [taint]}})
    assert pool.failure == Failure(kind=FailureKind.STOCKOUT, message="[GCE_STOCKOUT] a [77] c")
    assert (pool.status, pool.taints) == (PoolStatus.ERROR, (Taint(key="t", effect="NoSchedule"),))
    assert read_everywhere(server, client, {"name": "b", "status": 77}).status is PoolStatus.UNKNOWN


@pytest.mark.parametrize(("word", "want"), [("GLACIAL", "GLACIAL"), (77, "77"), ("UNSPECIFIED", ""), (None, "")])
def test_channel_that_the_library_does_not_know_is_read(
    server: RecordingServer, client: GkeClient, word: object, want: str
) -> None:
    """GKE rejects pools without auto-upgrade on every release channel, so an unknown one must not be read as none."""
    server.answer = Answer(body={"name": "c", "status": word, "releaseChannel": {"channel": word}})
    cluster = client.get_cluster()
    assert (cluster.release_channel, cluster.status) == (want, want or ("UNSPECIFIED" if word else ""))


def test_threads_do_not_mix_their_responses(server: RecordingServer, client: GkeClient) -> None:
    """The JSON of a response is kept for the thread that sent the request."""
    released = threading.Event()

    def answer(request: Recorded) -> Answer:
        code = request.path.partition("?")[0].rpartition("/")[2]
        body = {"name": code, "status": "DONE", "clusterConditions": [{"code": code}]}
        return Answer(body=body, wait_for=released if code == "SLOW" else None)

    server.answer = answer
    with ThreadPoolExecutor(1) as executor:
        slow = executor.submit(client.get_operation, OperationName("SLOW"))
        failures = [client.get_operation(OperationName(f"FAST_{number}")).failure for number in range(3)]
        released.set()
        failures.append(slow.result().failure)
    messages = [failure.message for failure in failures if failure is not None]
    assert messages == ["[FAST_0]", "[FAST_1]", "[FAST_2]", "[SLOW]"]


# --- Names in paths ---

NAMED_CALLS: list[tuple[Callable[[GkeClient, str], object], str]] = [
    (lambda gke, name: gke.get_node_pool(PoolName(name)), f"{CLUSTER_PATH}/nodePools/"),
    (lambda gke, name: gke.delete_node_pool(PoolName(name)), f"{CLUSTER_PATH}/nodePools/"),
    (
        lambda gke, name: gke.get_operation(OperationName(name)),
        "/v1/projects/p/locations/us-east5/operations/",
    ),
]
NAMED = pytest.mark.parametrize(("call", "path"), NAMED_CALLS, ids=["get", "delete", "operation"])


@NAMED
@pytest.mark.parametrize("name", ["a", "A-1_b", "operation-1700000000000-0123"])
def test_name_is_the_last_segment_of_the_path(
    server: RecordingServer, client: GkeClient, call: Callable[[GkeClient, str], object], path: str, name: str
) -> None:
    call(client, name)
    [sent] = server.requests
    assert sent.path.partition("?")[0] == path + name


@NAMED
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "w/../x", "a?b=c", "a#b", "a%2Fb", "a:b", "a*b", "ä", "a\n"])
def test_invalid_name_is_not_sent_and_not_found(
    server: RecordingServer, client: GkeClient, call: Callable[[GkeClient, str], object], path: str, name: str
) -> None:
    """A delete of the pool ".." would go to the path of the cluster, and a delete of "a?b" to the pool "a"."""
    with pytest.raises(GkeError, match=re.escape(f"call for {name!r}: GKE has no such names.")) as caught:
        call(client, name)
    assert caught.value.failure.kind is FailureKind.NOT_FOUND
    assert server.requests == []


def test_empty_list_has_no_pools(server: RecordingServer, client: GkeClient) -> None:
    server.answer = Answer(body={})
    assert client.list_node_pools() == ()


@pytest.mark.parametrize(
    "body", [b"<html>hello</html>", b"[]", b"", b"null", b'"text"', b"1", {"nodePools": "many"}, b"\xff\xfe"]
)
def test_answer_that_is_not_a_list_is_a_failure(server: RecordingServer, client: GkeClient, body: object) -> None:
    """Google's library reads some of the invalid responses as an empty list, as if all pools had been deleted."""
    server.answer = Answer(body={"nodePools": [FULL_POOL]})
    client.list_node_pools()
    server.answer = Answer(body=body)
    with pytest.raises(GkeError, match="list of node pools of cluster 'c'") as caught:
        client.list_node_pools()
    assert caught.value.failure.kind is FailureKind.UNAVAILABLE


def test_list_is_one_call_with_a_field_mask(server: RecordingServer, client: GkeClient) -> None:
    server.answer = Answer(body={"nodePools": [{**FULL_POOL, "name": f"p{number}"} for number in range(200)]})
    assert len(client.list_node_pools()) == 200
    [sent] = server.requests
    mask = sent.headers["x-goog-fieldmask"]
    assert mask.split(",") == [f"nodePools.{field}" for field in translate.NODE_POOL_FIELDS]
    client.get_node_pool(PoolName("p0"))
    assert server.requests[-1].headers["x-goog-fieldmask"].split(",") == list(translate.NODE_POOL_FIELDS)


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (container_v1.ListNodePoolsResponse, translate.LIST_FIELDS),
        (container_v1.NodePool, translate.NODE_POOL_FIELDS),
        (container_v1.Cluster, translate.CLUSTER_FIELDS),
    ],
    ids=["the list", "a pool", "the cluster"],
)
def test_field_masks_name_fields_of_the_api(message: Any, fields: tuple[str, ...]) -> None:
    """GKE rejects a mask with a path that does not exist in the API."""
    for path in fields:
        descriptor = message.pb(message()).DESCRIPTOR
        for part in path.split("."):
            assert part in descriptor.fields_by_camelcase_name, path
            descriptor = descriptor.fields_by_camelcase_name[part].message_type


OPERATIONS = [
    pytest.param({"status": "RUNNING"}, False, None, id="running"),
    pytest.param({"status": "ABORTING", "error": {"code": 1}}, False, None, id="aborting is not done"),
    pytest.param({"status": "NEW_STATE"}, False, None, id="an unknown state is not done"),
    pytest.param({"status": "DONE"}, True, None, id="done and well"),
    pytest.param(
        {"status": "DONE", "error": {"code": 8, "message": "[GCE_STOCKOUT]"}},
        True,
        Failure(kind=FailureKind.STOCKOUT, message="[GCE_STOCKOUT]"),
        id="done with an error failed",
    ),
    pytest.param(
        {"status": "DONE", "error": {"code": 13}},
        True,
        Failure(kind=FailureKind.UNAVAILABLE, message="GKE gives only the code 13, without a message."),
        id="a bare code is a failure",
    ),
    pytest.param(
        {"status": "DONE", "clusterConditions": [{"code": "GCE_STOCKOUT", "message": "none left"}]},
        True,
        Failure(kind=FailureKind.STOCKOUT, message="[GCE_STOCKOUT] none left"),
        id="the older form of errors is read",
    ),
]


@pytest.mark.parametrize(("body", "done", "failure"), OPERATIONS)
def test_operation_is_read_with_its_result(
    server: RecordingServer, client: GkeClient, body: dict[str, Any], *, done: bool, failure: Failure | None
) -> None:
    server.answer = Answer(body={"name": "operation-1", **body})
    assert client.get_operation(OperationName("operation-1")) == Operation(
        name=OperationName("operation-1"), done=done, failure=failure
    )
    assert server.requests[0].path.startswith("/v1/projects/p/locations/us-east5/operations/operation-1")


def test_cluster_is_read_with_all_checked_fields(server: RecordingServer, client: GkeClient) -> None:
    server.answer = Answer(
        body={
            "name": "c",
            "status": "RUNNING",
            "releaseChannel": {"channel": "REGULAR"},
            "masterAuth": {"clusterCaCertificate": base64.b64encode(b"PEM").decode()},
            "instanceGroupUrls": ["g1"],
            "nodePools": [
                {"name": "old", "instanceGroupUrls": ["g1", "g2"], "config": {"machineType": "e2-standard-4"}},
                {"name": "new", "config": {"workloadMetadataConfig": {"mode": "GKE_METADATA"}}},
            ],
            "autopilot": {"enabled": True},
            "autoscaling": {
                "enableNodeAutoprovisioning": True,
                "resourceLimits": [
                    {"resourceType": "cpu", "maximum": "64"},
                    {"resourceType": "tpu-v6e-slice", "maximum": "1"},
                    {"resourceType": "tpu-v5p-slice", "maximum": "0"},
                ],
            },
            "workloadIdentityConfig": {"workloadPool": "p.svc.id.goog"},
        }
    )
    assert client.get_cluster() == Cluster(
        name="c",
        status="RUNNING",
        release_channel="REGULAR",
        ca_certificate_pem=b"PEM",
        instance_group_urls=("g1", "g2"),
        autopilot=True,
        auto_provisioned_tpus=("tpu-v6e-slice",),
        workload_pool="p.svc.id.goog",
        pools_without_identity=("old",),
    )
    mask = server.requests[0].headers["x-goog-fieldmask"].split(",")
    assert {"autopilot.enabled", "autoscaling.resourceLimits", "workloadIdentityConfig.workloadPool"} < set(mask)


def test_disabled_auto_provisioning_has_no_tpus(server: RecordingServer, client: GkeClient) -> None:
    limits = [{"resourceType": "tpu-v6e-slice", "maximum": "16"}]
    server.answer = Answer(body={"name": "c", "autoscaling": {"resourceLimits": limits}})
    assert client.get_cluster().auto_provisioned_tpus == ()


def test_cluster_without_fields_has_defaults(server: RecordingServer, client: GkeClient) -> None:
    server.answer = Answer(body={"name": "c", "masterAuth": {"clusterCaCertificate": "?"}})
    assert client.get_cluster() == Cluster(name="c")


POLICIES_PATH = "/compute/v1/projects/p/regions/us-east5/resourcePolicies"


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            {
                "kind": "compute#resourcePolicy",
                "name": "w",
                "status": "READY",
                "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4x4"},
            },
            WorkloadPolicy(name="w", topology="4x4x4"),
            id="a workload policy",
        ),
        pytest.param(
            {"name": "w", "status": "CREATING", "workloadPolicy": {"type": "HIGH_AVAILABILITY"}},
            WorkloadPolicy(name="w", type="HIGH_AVAILABILITY", topology="", status="CREATING"),
            id="one without a topology that is not ready",
        ),
        pytest.param(
            {"name": "w", "status": "READY", "snapshotSchedulePolicy": {"schedule": {}}},
            WorkloadPolicy(name="w", type="", topology=""),
            id="a resource policy of another kind",
        ),
        pytest.param({}, WorkloadPolicy(name="", type="", topology="", status=""), id="nothing"),
    ],
)
def test_workload_policy_is_read_from_compute_engine(
    server: RecordingServer, client: GkeClient, body: dict[str, Any], want: WorkloadPolicy
) -> None:
    """The name is escaped, so that it cannot lead to another path."""
    server.answer = Answer(body=body)
    assert client.get_workload_policy("w/../x") == want
    [sent] = server.requests
    assert (sent.method, sent.path) == ("GET", f"{POLICIES_PATH}/w%2F..%2Fx")


@pytest.mark.parametrize("location", ["us-central1", "us-central1-c", "us-central1-ai1a"])
def test_policies_are_read_in_the_region_of_the_cluster(server: RecordingServer, location: str) -> None:
    """Policies are regional, so the region is derived from the zone of a zonal cluster."""
    client = GkeClient(replace(CLUSTER_NAME, location=location), endpoint=server.url)
    server.answer = Answer(body={})
    client.get_workload_policy("w")
    client.close()
    assert server.requests[0].path == "/compute/v1/projects/p/regions/us-central1/resourcePolicies/w"


# --- Failures ---


def kind_of(client: GkeClient, method: str) -> FailureKind:
    calls = {
        "list": client.list_node_pools,
        "get": lambda: client.get_node_pool(PoolName("a")),
        "create": lambda: client.create_node_pool(SMALLEST),
        "delete": lambda: client.delete_node_pool(PoolName("a")),
        "operation": lambda: client.get_operation(OperationName("o")),
        "cluster": client.get_cluster,
        "policy": lambda: client.get_workload_policy("w"),
        "create policy": lambda: client.create_workload_policy(WorkloadPolicy(name="w", topology="4x4x4")),
    }
    with pytest.raises(GkeError) as caught:
        calls[method]()
    return caught.value.failure.kind


METHODS = ("list", "get", "create", "delete", "operation", "cluster", "policy", "create policy")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("answer", "read", "change"),
    [
        pytest.param(Answer(hang_up=True), FailureKind.UNAVAILABLE, FailureKind.UNKNOWN_OUTCOME, id="a lost answer"),
        pytest.param(
            Answer(body=b"<html>", status=200),
            FailureKind.UNAVAILABLE,
            FailureKind.UNKNOWN_OUTCOME,
            id="a page instead of JSON",
        ),
        pytest.param(
            Answer(body=[]), FailureKind.UNAVAILABLE, FailureKind.UNKNOWN_OUTCOME, id="a list instead of an object"
        ),
        pytest.param(
            google_error(403, "PERMISSION_DENIED", "no"), FailureKind.PERMISSION, FailureKind.PERMISSION, id="a 403"
        ),
        pytest.param(
            google_error(503, "UNAVAILABLE", "no"), FailureKind.UNAVAILABLE, FailureKind.UNKNOWN_OUTCOME, id="a 503"
        ),
    ],
)
def test_failed_call_raises_gke_error_and_is_sent_once(
    server: RecordingServer, client: GkeClient, method: str, answer: Answer, read: FailureKind, change: FailureKind
) -> None:
    server.answer = answer
    assert kind_of(client, method) is (change if method in ("create", "delete", "create policy") else read)
    assert len(server.requests) == 1


def test_refused_connection_is_unavailable() -> None:
    with RecordingServer() as gone:
        url = gone.url
    client = GkeClient(CLUSTER_NAME, endpoint=url)
    assert kind_of(client, "create") is FailureKind.UNAVAILABLE
    with pytest.raises(GkeError, match=r"The server cannot be reached: Connection refused\.$"):
        client.list_node_pools()
    client.close()


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        pytest.param(lambda gke: gke.get_cluster(), 10.0, id="a read of the cluster"),
        pytest.param(lambda gke: gke.list_node_pools(), 20.0, id="a list"),
        pytest.param(lambda gke: gke.get_node_pool(PoolName("a")), 10.0, id="a read of a pool"),
        pytest.param(lambda gke: gke.get_operation(OperationName("o")), 10.0, id="a read of an operation"),
        pytest.param(lambda gke: gke.get_workload_policy("w"), 10.0, id="a read of a policy"),
        pytest.param(lambda gke: gke.create_node_pool(SMALLEST), CALL_TIMEOUT_SECONDS, id="a create"),
        pytest.param(lambda gke: gke.delete_node_pool(PoolName("a")), CALL_TIMEOUT_SECONDS, id="a delete"),
        pytest.param(
            lambda gke: gke.create_workload_policy(WorkloadPolicy(name="w", topology="4x4")),
            CALL_TIMEOUT_SECONDS,
            id="a policy's create",
        ),
    ],
)
def test_each_call_is_sent_once_with_its_time_out(
    client: GkeClient, monkeypatch: pytest.MonkeyPatch, call: Callable[[GkeClient], object], seconds: float
) -> None:
    """A create or delete must end while the Lease, checked before the call, is valid. No call is repeated."""
    seen = []

    def request(session: ApiSession, *args: object, timeout: float, **kwargs: object) -> None:
        seen.append(timeout)
        # By default, the library repeats reads after this exception, which the client must prevent.
        raise ServiceUnavailable("no")

    monkeypatch.setattr(ApiSession, "request", request)
    with pytest.raises(GkeError):
        call(client)
    # The library subtracts the time that it needed itself, so the time-out may be a little shorter.
    assert seen == pytest.approx([seconds], abs=1.0)


def test_error_names_call_object_and_gke_words(server: RecordingServer, client: GkeClient) -> None:
    server.answer = google_error(400, "INVALID_ARGUMENT", "disk type is wrong")
    with pytest.raises(GkeError) as caught:
        client.create_node_pool(SMALLEST)
    assert str(caught.value) == "create of node pool 'js-0123456789': disk type is wrong"
    assert caught.value.failure == Failure(kind=FailureKind.INVALID, message="disk type is wrong")
    assert caught.value.__cause__ is not None


def test_forbidden_policy_call_names_the_missing_permissions(server: RecordingServer, client: GkeClient) -> None:
    server.answer = google_error(403, "", "Required 'compute.resourcePolicies.create' permission")
    with pytest.raises(GkeError, match=r"compute\.resourcePolicies\.get and compute\.resourcePolicies\.create"):
        client.create_workload_policy(WorkloadPolicy(name="w", topology="4x4x4"))


# --- Words of users in errors ---

#: Request with names that look like errors of GKE.
NAMED_BADLY = replace(
    SMALLEST,
    node={
        "node_service_account": "gce-quota-exceeded@p.iam.gserviceaccount.com",
        "node_additional_networks": (Network(network="quota-not-exceeded", subnetwork="INVALID_RESERVATION"),),
    },
)
ODD_WORDS = (
    "Service account gce-quota-exceeded, network 'quota-not-exceeded', subnetwork INVALID_RESERVATION: not right."
)


def test_names_in_a_failed_operation_do_not_determine_its_kind(server: RecordingServer, client: GkeClient) -> None:
    """The client remembers the names in a create, and ignores them when it classifies the failed operation."""
    server.answer = Answer(body={"name": "operation-1"})
    client.create_node_pool(NAMED_BADLY)
    failed = {"name": "operation-1", "status": "DONE", "error": {"code": 3, "message": ODD_WORDS}}
    server.answer = Answer(body=failed)
    assert client.get_operation(OperationName("operation-1")).failure == Failure(
        kind=FailureKind.INVALID, message=ODD_WORDS
    )


def test_names_in_a_failed_pool_do_not_determine_its_kind(server: RecordingServer, client: GkeClient) -> None:
    pool = {
        "name": "b",
        "status": "ERROR",
        "conditions": [{"canonicalCode": "INVALID_ARGUMENT", "message": ODD_WORDS}],
        "config": {"serviceAccount": "gce-quota-exceeded@p.iam.gserviceaccount.com"},
        "networkConfig": {
            "additionalNodeNetworkConfigs": [{"network": "quota-not-exceeded", "subnetwork": "INVALID_RESERVATION"}]
        },
    }
    server.answer = Answer(body={"nodePools": [pool]})
    (found,) = client.list_node_pools()
    assert found.failure == Failure(kind=FailureKind.INVALID, message=ODD_WORDS)


# --- Credentials and connections ---


class Tokens(auth_credentials.Credentials):
    """Credentials with a new token at each refresh."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshed = 0

    def refresh(self, request: object) -> None:
        self.refreshed += 1
        self.token = f"token-{self.refreshed}"


def test_create_is_not_sent_after_its_time_out(server: RecordingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials may need as long for a new token as the whole create may take."""
    clock = FakeClock()

    class Slow(Tokens):
        def refresh(self, request: object) -> None:
            clock.advance(11.0)
            super().refresh(request)

    monkeypatch.setattr(auth_requests, "time", SimpleNamespace(time=clock))
    client = make_client(server, credentials=Slow())
    assert kind_of(client, "create") is FailureKind.UNKNOWN_OUTCOME
    assert server.requests == []
    client.close()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(server: RecordingServer, client: GkeClient, code: int) -> None:
    server.answer = Answer(status=code, headers={"Location": f"{server.url}/elsewhere"}, body={})
    assert kind_of(client, "create") is FailureKind.UNAVAILABLE
    assert len(server.requests) == 1


class TokenOverHttp(auth_credentials.Credentials):
    """Credentials that fetch their token by the transport that google-auth passes to `refresh`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def refresh(self, request: Any) -> None:
        self.token = json.loads(request(url=self.url, method="GET").data)["token"]


def test_token_is_fetched_before_the_call(server: RecordingServer) -> None:
    server.answer = lambda one: Answer(body={"token": "fresh"} if one.path == "/token" else {"name": "o"})
    client = make_client(server, credentials=TokenOverHttp(f"{server.url}/token"))
    client.create_node_pool(SMALLEST)
    assert [one.method for one in server.requests] == ["GET", "POST"]
    assert server.requests[1].headers["authorization"] == "Bearer fresh"
    client.close()


def test_credentials_are_sent_and_renewed_once(server: RecordingServer) -> None:
    client = make_client(server, credentials=Tokens())
    server.answer = google_error(401, "UNAUTHENTICATED", "expired")
    assert kind_of(client, "list") is FailureKind.PERMISSION
    assert [one.headers["authorization"] for one in server.requests] == ["Bearer token-1", "Bearer token-2"]
    client.close()


def test_message_of_a_403_names_the_identity_and_the_project(server: RecordingServer) -> None:
    credentials = Tokens()
    credentials.service_account_email = "tpu@p.iam.gserviceaccount.com"
    client = make_client(server, credentials=credentials)
    server.answer = google_error(403, "PERMISSION_DENIED", 'Required "container.clusters.get" permission(s) for "p".')
    with pytest.raises(
        GkeError, match=f"Grant tpu@p.iam.gserviceaccount.com container.clusters.get on project {CLUSTER_NAME.project}"
    ):
        client.list_node_pools()
    client.close()


def test_missing_default_credentials_are_a_permission_failure(monkeypatch: pytest.MonkeyPatch) -> None:

    def none_found(**_: object) -> None:
        raise auth_exceptions.DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.setattr(google.auth, "default", none_found)
    with pytest.raises(GkeError, match="gcloud auth application-default login") as caught:
        GkeClient(replace(CLUSTER_NAME, location="l"))
    assert caught.value.failure.kind is FailureKind.PERMISSION


def test_client_without_endpoint_calls_gke_with_default_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def found(*, scopes: tuple[str, ...]) -> tuple[auth_credentials.Credentials, str]:
        asked.append(scopes)
        return auth_credentials.AnonymousCredentials(), "p"

    monkeypatch.setattr(google.auth, "default", found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = GkeClient(replace(CLUSTER_NAME, location="l"))
    assert asked == [("https://www.googleapis.com/auth/cloud-platform",)]
    assert client._gke.transport.host == "https://container.googleapis.com"
    assert client._policies_url == "https://compute.googleapis.com/compute/v1/projects/p/regions/l/resourcePolicies"
    client.close()


def test_endpoint_may_have_a_path(server: RecordingServer) -> None:
    client = GkeClient(CLUSTER_NAME, endpoint=f"{server.url}/gke/")
    client.list_node_pools()
    client.create_node_pool(replace(SMALLEST, node={"idle_maintenance_seconds": 600.0}))
    client.close()
    assert [request.path.partition("?")[0] for request in server.requests] == [
        f"/gke{CLUSTER_PATH}/nodePools",
        f"/gke{CLUSTER_PATH}/nodePools".replace("/v1/", "/v1beta1/"),
    ]


def test_setting_that_the_library_rejects_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_USE_MTLS_ENDPOINT", "perhaps")
    with pytest.raises(GkeError, match=r"^start of the GKE client: .*GOOGLE_API_USE_MTLS_ENDPOINT"):
        GkeClient(CLUSTER_NAME, endpoint="http://127.0.0.1:9")


def test_change_is_not_repeated_after_a_connection_went_stale(server: RecordingServer, client: GkeClient) -> None:
    server.answer = Answer(body={"name": "a"})
    client.get_node_pool(PoolName("a"))
    server.answer = Answer(hang_up=True)
    assert kind_of(client, "create") is FailureKind.UNKNOWN_OUTCOME
    assert [one.method for one in server.requests] == ["GET", "POST"]


# --- Checks before the first create


def test_permissions_on_the_project_are_the_granted_ones_among_the_requested(
    server: RecordingServer, client: GkeClient
) -> None:
    server.answer = Answer(body={"permissions": ["a.b.c", "x.y.z"]})
    assert client.test_project_permissions(("a.b.c", "d.e.f")) == {"a.b.c"}
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/projects/p:testIamPermissions")
    assert request.json == {"permissions": ["a.b.c", "d.e.f"]}


def test_permissions_on_a_service_account_are_checked_in_any_project(
    server: RecordingServer, client: GkeClient
) -> None:
    """IAM finds the account in any project; the response is an empty object if nothing is granted."""
    assert client.test_account_permissions("n@q.iam.gserviceaccount.com", ("a.b.c",)) == frozenset()
    (request,) = server.requests
    assert (request.method, request.path) == (
        "POST",
        "/v1/projects/-/serviceAccounts/n@q.iam.gserviceaccount.com:testIamPermissions",
    )


def test_reservation_is_read_in_its_project_and_zone(server: RecordingServer, client: GkeClient) -> None:
    body = {"name": "r1", "status": "READY", "deleteAtTime": "2026-06-01T05:00:00.000-07:00"}
    server.answer = Answer(body=body)
    want = Reservation(status="READY", ends_at=datetime(2026, 6, 1, 12, tzinfo=UTC))
    assert client.get_reservation(project="q", zone="us-east5-b", name="r1") == want
    client.get_reservation(project="", zone="us-east5-b", name="r1")
    path = "/compute/v1/projects/{}/zones/us-east5-b/reservations/r1"
    assert [(request.method, request.path) for request in server.requests] == [
        ("GET", path.format("q")),
        ("GET", path.format("p")),
    ]
    server.answer = Answer(body={**body, "deleteAtTime": "soon"})
    with pytest.raises(GkeError):
        client.get_reservation(project="q", zone="us-east5-b", name="r1")


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda client: client.test_project_permissions(("a.b.c",)), id="project"),
        pytest.param(lambda client: client.test_account_permissions("n@q", ("a.b.c",)), id="service account"),
        pytest.param(lambda client: client.get_reservation(project="q", zone="z", name="r1"), id="reservation"),
    ],
)
def test_rejected_check_has_the_message_of_google(
    server: RecordingServer, client: GkeClient, ask: Callable[[GkeClient], object]
) -> None:
    """If an API is not enabled, the message is Google's, without advice to grant permissions."""
    words = "Cloud Resource Manager API has not been used in project 1 before or it is disabled."
    server.answer = google_error(403, "PERMISSION_DENIED", words)
    with pytest.raises(GkeError) as caught:
        ask(client)
    assert caught.value.failure.kind is FailureKind.PERMISSION
    assert caught.value.failure.message.strip() == words
    server.answer = Answer(body=["no", "object"])
    with pytest.raises(GkeError) as caught:
        ask(client)
    assert caught.value.failure.kind is FailureKind.UNAVAILABLE
