"""Tests with Google's unmodified client library; unlike gcloud, it requests enums as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import container_v1
from google.cloud.container_v1.services.cluster_manager.transports.rest import ClusterManagerRestTransport
from google.protobuf import json_format

from rehearsal.simulators.gke import Fault, FaultKind, Simulator, SimulatorSettings
from tests.support.simulator import CLUSTER_PATH, POOLS_PATH, Client, slice_pool
from tests.support.waiting import wait_for

_CLUSTER = CLUSTER_PATH.removeprefix("/v1/")
_NUMBERS = f"?%24alt={quote('json;enum-encoding=int')}"


@pytest.fixture
def gke() -> Iterator[Simulator]:
    settings = SimulatorSettings(create_seconds=0, delete_seconds=0, node_stagger_seconds=0)
    with Simulator(settings) as simulator:
        yield simulator


@pytest.fixture
def library(gke: Simulator) -> Iterator[container_v1.ClusterManagerClient]:
    transport = ClusterManagerRestTransport(
        host=f"127.0.0.1:{gke.port}", url_scheme="http", credentials=AnonymousCredentials()
    )
    yield container_v1.ClusterManagerClient(transport=transport)
    transport.close()


def create(library: container_v1.ClusterManagerClient, **changes: Any) -> container_v1.Operation:
    request = container_v1.CreateNodePoolRequest(parent=_CLUSTER)
    json_format.ParseDict({"nodePool": slice_pool(**changes)}, container_v1.CreateNodePoolRequest.pb(request))
    return library.create_node_pool(request)


def test_library_creates_lists_and_deletes_a_pool(library: container_v1.ClusterManagerClient) -> None:
    operation = create(library, config={"machineType": "ct6e-standard-4t", "spot": True})
    assert operation.operation_type is container_v1.Operation.Type.CREATE_NODE_POOL
    name = f"{_CLUSTER.rpartition('/clusters/')[0]}/operations/{operation.name}"
    wait_for(lambda: library.get_operation(name=name).status is container_v1.Operation.Status.DONE)
    pool = library.get_node_pool(name=f"{_CLUSTER}/nodePools/slice")
    assert pool.status is container_v1.NodePool.Status.RUNNING
    assert pool.placement_policy.type_ is container_v1.NodePool.PlacementPolicy.Type.COMPACT
    assert list(library.list_node_pools(parent=_CLUSTER).node_pools) == [pool]
    cluster = library.get_cluster(name=_CLUSTER)
    assert cluster.status is container_v1.Cluster.Status.RUNNING
    assert list(cluster.node_pools) == [pool]
    library.delete_node_pool(name=f"{_CLUSTER}/nodePools/slice")
    wait_for(lambda: not library.list_node_pools(parent=_CLUSTER).node_pools)
    with pytest.raises(exceptions.NotFound):
        library.get_node_pool(name=f"{_CLUSTER}/nodePools/slice")


def test_enums_are_numbers_if_a_client_requests_numbers(gke: Simulator) -> None:
    """Pools in lists have numbers as well. Fields that are not enums are equal in both formats."""
    gke.inject(Fault(kind=FaultKind.STOCKOUT))
    client = Client(gke.port)
    config = {"machineType": "ct6e-standard-4t", "labels": {"status": "ERROR"}}
    client("POST", POOLS_PATH, {"nodePool": slice_pool(config=config)})
    wait_for(lambda: client("GET", f"{POOLS_PATH}/slice")[1]["status"] == "ERROR")
    words, numbers = (client("GET", f"{POOLS_PATH}/slice{query}")[1] for query in ("", _NUMBERS))
    assert (words["status"], numbers["status"]) == ("ERROR", 6)
    assert words["conditions"][0]["code"] == "GCE_STOCKOUT"
    assert numbers["conditions"][0]["code"] == 1
    assert numbers["config"]["labels"] == words["config"]["labels"]
    parsed = [
        json_format.ParseDict(body, container_v1.NodePool.pb(container_v1.NodePool())) for body in (words, numbers)
    ]
    assert parsed[0] == parsed[1]
    assert client("GET", f"{POOLS_PATH}{_NUMBERS}")[1] == {"nodePools": [numbers]}
    assert client("GET", POOLS_PATH)[1] == {"nodePools": [words]}
    client.close()


def test_other_response_formats_are_rejected(gke: Simulator) -> None:
    client = Client(gke.port)
    for form in ("proto", "json;enum-encoding=text", "json;"):
        status, body = client("GET", f"{POOLS_PATH}?%24alt={quote(form)}")
        assert status == 400
        assert f'Invalid value "{form}" for parameter alt' in body["error"]["message"]
    client.close()
