"""Requests of gcloud 528.0.0 (`--log-http`) that create a slice of each TPU generation as in GKE's documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from provisioner.tpu import ACCELERATORS
from rehearsal.simulators.gke import Simulator, SimulatorSettings
from tests.support.simulator import Client
from tests.support.waiting import wait_for

_CLUSTER = "projects/proj/locations/us-central2-b/clusters/main"
_SCOPES = [
    f"https://www.googleapis.com/auth/{name}"
    for name in (
        "devstorage.read_only",
        "logging.write",
        "monitoring",
        "service.management.readonly",
        "servicecontrol",
        "trace.append",
    )
]
_WORKLOAD_POLICY = "tpu-provisioner-2x2x2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Fields that gcloud sends for a multi-host slice of a generation."""

    machine_type: str
    hosts: int
    placement: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)

    def body(self, name: str) -> dict[str, Any]:
        return {
            "nodePool": {
                "config": {"machineType": self.machine_type, "oauthScopes": _SCOPES, **self.config},
                "initialNodeCount": self.hosts,
                "management": {"autoRepair": True, "autoUpgrade": True},
                "name": name,
                "placementPolicy": self.placement,
                "upgradeSettings": {"maxSurge": 1},
            },
            "parent": _CLUSTER,
        }


# Without --num-nodes, gcloud derives the node count from the topology. It sends a placement type only if one is given;
# GKE derives COMPACT.
_SLICES = {
    "v3": Slice(machine_type="ct3p-hightpu-4t", hosts=4, placement={"tpuTopology": "4x4"}),
    "v4": Slice(machine_type="ct4p-hightpu-4t", hosts=2, placement={"tpuTopology": "2x2x2"}),
    "v5e": Slice(
        machine_type="ct5lp-hightpu-4t",
        hosts=4,
        placement={"tpuTopology": "4x4", "type": "COMPACT"},
        config={"labels": {"team": "x"}},
    ),
    "v5p": Slice(
        machine_type="ct5p-hightpu-4t",
        hosts=2,
        placement={"tpuTopology": "2x2x2"},
        config={
            "reservationAffinity": {
                "consumeReservationType": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": ["projects/p/reservations/r"],
            }
        },
    ),
    "v6e": Slice(machine_type="ct6e-standard-4t", hosts=4, placement={"tpuTopology": "4x4"}, config={"spot": True}),
    "tpu7x": Slice(machine_type="tpu7x-standard-4t", hosts=2, placement={"policyName": _WORKLOAD_POLICY}),
    "tpu7": Slice(
        machine_type="tpu7-standard-4t", hosts=2, placement={"policyName": _WORKLOAD_POLICY, "tpuTopology": "2x2x2"}
    ),
}

_EACH_GENERATION = pytest.mark.parametrize("wanted", _SLICES.values(), ids=_SLICES)


@pytest.fixture
def gke() -> Iterator[Simulator]:
    """A simulator whose operations are done at the first read."""
    settings = SimulatorSettings(
        create_seconds=0, delete_seconds=0, node_stagger_seconds=0, workload_policies={_WORKLOAD_POLICY: "2x2x2"}
    )
    with Simulator(settings) as simulator:
        yield simulator


def test_requests_cover_every_generation_of_the_catalogue() -> None:
    """A generation that is added to the catalogue also needs a request here."""
    assert {accelerator.generation for accelerator in ACCELERATORS.values()} == set(_SLICES)


@_EACH_GENERATION
def test_recorded_requests_of_gcloud_create_show_and_delete_a_slice(wanted: Slice, gke: Simulator) -> None:
    client = Client(gke.port)
    headers = {"X_Goog_User_Project": "somebody-elses", "Authorization": "Bearer token", "Accept": "application/json"}

    def call(method: str, path: str, body: Any = None) -> Any:
        status, answer = client(method, f"/v1/{path}?alt=json", body, **headers)
        assert status == 200, answer
        return answer

    def await_end(operation: dict[str, Any]) -> None:
        path = f"projects/proj/locations/us-central2-b/operations/{operation['name']}"
        # gcloud treats an operation with a statusMessage as failed.
        assert "statusMessage" not in operation
        wait_for(lambda: call("GET", path)["status"] == "DONE")
        assert "statusMessage" not in call("GET", path)

    await_end(call("POST", f"{_CLUSTER}/nodePools", wanted.body("slice")))
    made = call("GET", f"{_CLUSTER}/nodePools/slice")
    assert (made["status"], made["placementPolicy"]) == ("RUNNING", wanted.placement)
    assert call("GET", f"{_CLUSTER}/nodePools") == {"nodePools": [made]}
    await_end(call("DELETE", f"{_CLUSTER}/nodePools/slice"))
    assert call("GET", f"{_CLUSTER}/nodePools") == {}
    client.close()
