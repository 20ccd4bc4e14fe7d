"""Workload policies: made, read, and needed by node pools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rehearsal.simulators.gke import Simulator, SimulatorSettings
from tests.support.simulator import Client

NAME = "tpu-provisioner-2x2x2"
BODY = {"name": NAME, "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x2"}}
PATH = "/compute/v1/projects/proj/regions/us-east5/resourcePolicies"


@pytest.fixture
def call() -> Iterator[Client]:
    """A client of a simulator of one project."""
    with Simulator(SimulatorSettings(project="proj", policy_seconds=0)) as gke:
        client = Client(gke.port)
        yield client
        client.close()


def test_over_http(call: Client) -> None:
    """Compute Engine's calls are served at GKE's address, counted, and refused in the same form."""
    assert call("GET", f"{PATH}/{NAME}")[0] == 404
    assert call("POST", PATH, BODY)[0] == 200
    status, found = call("GET", f"{PATH}/{NAME}")
    assert (status, found["kind"], found["status"]) == (200, "compute#resourcePolicy", "READY")
    assert call("POST", PATH, BODY)[0] == 409
    status, refusal = call("GET", f"{PATH.replace('/proj/', '/other/')}/{NAME}")
    assert (status, "compute.resourcePolicies.get" in refusal["error"]["message"]) == (403, True)
    assert call("DELETE", f"{PATH}/{NAME}")[0] == 501
    assert call("GET", "/compute/v1/projects/proj/zones/z/instances")[0] == 404
    counted = call("GET", "/simulator/v1/counters")[1]["calls"]
    assert counted["resourcePolicies.get"] == {"404": 1, "200": 1, "403": 1}
    assert counted["resourcePolicies.insert"] == {"200": 1, "409": 1}
