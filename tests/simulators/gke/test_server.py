"""Tests of the API over a socket: bodies, field masks, errors, faults of calls, and the simulator's own API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import container_v1
from google.cloud.container_v1.services.cluster_manager.transports.rest import ClusterManagerRestTransport

from rehearsal.simulators.gke import Fault, FaultKind, Simulator, SimulatorSettings
from tests.support.simulator import CLUSTER_PATH, POOLS_PATH, Client, empty_pool, reserved, slice_pool
from tests.support.waiting import wait_for

OPERATIONS_PATH = "/v1/projects/proj/locations/us-east5-a/operations"


@pytest.fixture
def gke() -> Iterator[Simulator]:
    settings = SimulatorSettings(create_seconds=0.2, delete_seconds=0.1, node_stagger_seconds=0)
    with Simulator(settings) as simulator:
        yield simulator


@pytest.fixture
def call(gke: Simulator) -> Iterator[Client]:
    client = Client(gke.port)
    yield client
    client.close()


def create(call: Client, **changes: Any) -> dict[str, Any]:
    status, body = call("POST", POOLS_PATH, {"nodePool": slice_pool(**changes)})
    assert (200, body) == (status, body)
    operation: dict[str, Any] = body
    return operation


def test_pool_is_created_read_listed_and_deleted_over_http(gke: Simulator, call: Client) -> None:
    operation = create(call, maxPodsConstraint={"maxPodsPerNode": 15})
    assert {"operationType": "CREATE_NODE_POOL", "status": "RUNNING", "zone": "us-east5-a"}.items() <= operation.items()
    assert operation["targetLink"].endswith("/zones/us-east5-a/clusters/main/nodePools/slice")
    assert "/projects/proj/" not in operation["selfLink"]
    wait_for(lambda: call("GET", f"{OPERATIONS_PATH}/{operation['name']}")[1]["status"] == "DONE")
    done = call("GET", f"{OPERATIONS_PATH}/{operation['name']}")[1]
    assert "error" not in done
    assert done["startTime"] < done["endTime"]
    pool = call("GET", f"{POOLS_PATH}/slice")[1]
    assert {"status": "RUNNING", "initialNodeCount": 4, "podIpv4CidrSize": 27}.items() <= pool.items()
    # Google's JSON represents 64-bit numbers as strings.
    assert pool["maxPodsConstraint"] == {"maxPodsPerNode": "15"}
    prefix, _, number = pool["instanceGroupUrls"][0].rpartition("/")[2].removesuffix("-grp").rpartition("-")
    assert prefix == "gke-main-slice"
    assert all(node.name.startswith(f"gke-tpu-{number}-") for node in gke.pools[0].nodes)
    assert [item["name"] for item in call("GET", POOLS_PATH)[1]["nodePools"]] == ["slice"]
    assert [item["name"] for item in call("GET", CLUSTER_PATH)[1]["nodePools"]] == ["slice"]
    assert call("DELETE", f"{POOLS_PATH}/slice")[1]["operationType"] == "DELETE_NODE_POOL"
    wait_for(lambda: call("GET", f"{POOLS_PATH}/slice")[0] == 404)
    assert call("GET", POOLS_PATH)[1] == {}
    assert len(call("GET", "/v1/projects/proj/locations/-/operations")[1]["operations"]) == 2


def test_error_body_has_the_format_of_google(call: Client) -> None:
    status, body = call("GET", f"{POOLS_PATH}/none")
    text = 'nodePool "projects/proj/zones/us-east5-a/clusters/main/nodePools/none" not found'
    request_info = body["error"].pop("details")

    assert status == 404
    assert {
        "error": {
            "code": 404,
            "message": text,
            "status": "NOT_FOUND",
            "errors": [{"message": text, "domain": "global", "reason": "notFound"}],
        }
    } == body
    assert request_info[0]["@type"] == "type.googleapis.com/google.rpc.RequestInfo"
    assert request_info[0]["requestId"].startswith("0x")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(
            {"nodePool": {"name": "p", "size": 3}},
            "Invalid JSON payload received. Unknown name \"size\" at 'node_pool': Cannot find field.",
            id="an unknown field",
        ),
        pytest.param(
            {"nodePool": {"initialNodeCount": "many"}},
            "Invalid value at 'node_pool.initial_node_count' (TYPE_INT32), \"many\"",
            id="a text for a number",
        ),
        pytest.param(
            {"nodePool": {"placementPolicy": {"type": "TIGHT"}}},
            "Invalid value at 'node_pool.placement_policy.type' "
            '(type.googleapis.com/google.container.v1.NodePool.PlacementPolicy.Type), "TIGHT"',
            id="an unknown enum",
        ),
        pytest.param(
            {"nodePool": {"config": {"hostMaintenancePolicy": {}}}},
            "Unknown name \"hostMaintenancePolicy\" at 'node_pool.config': Cannot find field.",
            id="a field that v1beta1 alone has",
        ),
        pytest.param(b"{", "Invalid JSON payload received.", id="no JSON"),
    ],
)
def test_malformed_body_is_rejected_with_the_invalid_field(call: Client, body: object, text: str) -> None:
    status, answer = call("POST", POOLS_PATH, body)

    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert text in answer["error"]["message"]


def test_googles_library_reads_and_writes_enums_as_numbers(gke: Simulator, call: Client) -> None:
    """The library requests `$alt=json;enum-encoding=int`."""
    scheme, _, host = gke.url.partition("://")
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    transport = ClusterManagerRestTransport(credentials=credentials, host=host, url_scheme=scheme)
    library = container_v1.ClusterManagerClient(transport=transport)
    cluster = CLUSTER_PATH.removeprefix("/v1/")
    pool = container_v1.NodePool(
        name="slice",
        initial_node_count=4,
        config={"machine_type": "ct5lp-hightpu-4t", "taints": [{"key": "a", "value": "b", "effect": 1}]},
        placement_policy={"type_": 1, "tpu_topology": "4x4"},
    )
    operation = library.create_node_pool(parent=cluster, node_pool=pool)
    assert operation.operation_type is container_v1.Operation.Type.CREATE_NODE_POOL
    assert gke.calls[-1].method == "nodePools.create"
    (listed,) = library.list_node_pools(parent=cluster).node_pools
    assert listed.config.taints[0].effect is container_v1.NodeTaint.Effect.NO_SCHEDULE
    assert library.get_cluster(name=cluster).status is container_v1.Cluster.Status.RUNNING
    assert call("GET", f"{CLUSTER_PATH}?$alt=json%3Benum-encoding%3Dint")[1]["status"] == 2
    assert call("GET", f"{CLUSTER_PATH}?$alt=json")[1]["status"] == "RUNNING"


def test_masks_in_query_and_header_select_fields(call: Client) -> None:
    """A call with an invalid mask is rejected before it takes effect."""
    create(call)
    want = {"nodePools": [{"name": "slice", "config": {"machineType": "ct5lp-hightpu-4t"}}]}
    assert want == call("GET", f"{POOLS_PATH}?fields=nodePools/name,nodePools/config/machineType")[1]
    header = {"X_Goog_FieldMask": "nodePools.name,nodePools.config.machineType"}
    assert want == call("GET", POOLS_PATH, **header)[1]
    assert {"name"} == call("GET", f"{POOLS_PATH}/slice?fields=name")[1].keys()
    assert call("GET", f"{POOLS_PATH}?fields=pools")[0] == 400
    assert call("DELETE", f"{POOLS_PATH}/slice?fields=nope")[0] == 400
    assert call("GET", f"{POOLS_PATH}/slice")[1]["status"] != "STOPPING"


def test_fault_of_calls_matches_the_pool_of_a_call(gke: Simulator, call: Client) -> None:
    """A create is matched by the requested pool, other calls by the existing pool."""
    create(call, name="reserved", config=reserved("projects/proj/reservations/r/reservationBlocks/b"))
    gke.inject(Fault(kind=FaultKind.HTTP_ERROR, zone="us-east5-a", capacity="flex-start"))
    gke.inject(Fault(kind=FaultKind.HTTP_ERROR, reservation="r"))
    asked = (slice_pool("fixed"), empty_pool("flex"), slice_pool("block", config=reserved("r")))
    created = [call("POST", POOLS_PATH, {"nodePool": body})[0] for body in asked]
    read = [call("GET", f"{POOLS_PATH}/{name}")[0] for name in ("fixed", "reserved")]
    assert (created, read) == ([200, 503, 503], [200, 503])
    # A body that the simulator cannot parse matches no fault, and is rejected with 400.
    assert call("POST", POOLS_PATH, {"nodePool": {"config": []}})[0] == 400


def test_own_api_shows_the_state_and_changes_settings_faults_and_pools(gke: Simulator, call: Client) -> None:
    create(call)
    wait_for(lambda: gke.pools[0].status == "RUNNING")
    state = call("GET", "/simulator/v1/state")[1]
    assert (state["pools"][0]["name"], len(state["pools"][0]["nodes"]), len(state["operations"])) == ("slice", 4, 1)
    status, fault = call("POST", "/simulator/v1/faults", {"kind": "stockout", "zone": "us-east5-a", "count": 2})
    assert (status, fault["kind"]) == (200, "stockout")
    assert [fault] == call("GET", "/simulator/v1/faults")[1]["faults"]
    assert call("DELETE", f"/simulator/v1/faults/{fault['fault_id']}")[0] == 200
    assert call("DELETE", "/simulator/v1/faults")[0] == 200
    assert len(call("POST", "/simulator/v1/pools/slice:preempt", {"hosts": 2})[1]["nodes"]) == 2
    assert [node.state for node in gke.pools[0].nodes] == ["lost", "lost", "registered", "registered"]
    call("POST", "/simulator/v1/pools/slice:setStatus", {"status": "RUNNING_WITH_ERROR", "message": "half"})
    pool = call("GET", f"{POOLS_PATH}/slice")[1]
    assert (pool["status"], pool["statusMessage"]) == ("RUNNING_WITH_ERROR", "half")
    assert {"nodePools.create", "nodePools.get"} == call("GET", "/simulator/v1/counters")[1]["calls"].keys()
    newest = call("GET", "/simulator/v1/log?limit=1")[1]["calls"]
    assert [(item["method"], item["httpMethod"], item["status"]) for item in newest] == [("nodePools.get", "GET", 200)]
    call("POST", "/simulator/v1/counters:reset")
    assert (call("GET", "/simulator/v1/counters")[1], gke.calls) == ({"calls": {}}, ())
