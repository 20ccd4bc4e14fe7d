"""Tests of gcloud against the simulator, called as GKE's documentation says for node pools of each TPU generation.

The bodies here were recorded from gcloud 528.0.0 (`--log-http`). They are sent in every run of the tests; gcloud itself
runs where it is installed, and the tests compare what it sends with what was recorded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provisioner.tpu import ACCELERATORS
from rehearsal.simulators.gke import Simulator, SimulatorSettings
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.support.simulator import Client
from tests.support.waiting import wait_for

#: Each command of gcloud takes seconds.
pytestmark = pytest.mark.timeout(60)

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
    """A multi-host slice of a generation: what gcloud is called with, and what it sends for that."""

    machine_type: str
    hosts: int
    flags: tuple[str, ...]
    placement: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)

    def body(self, name: str) -> dict[str, Any]:
        """Return the request to create it."""
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


# Without --num-nodes gcloud counts the nodes by the topology; it sends no type unless told, and GKE derives COMPACT.
_SLICES = {
    "v3": Slice(
        machine_type="ct3p-hightpu-4t", hosts=4, flags=("--tpu-topology=4x4",), placement={"tpuTopology": "4x4"}
    ),
    "v4": Slice(
        machine_type="ct4p-hightpu-4t", hosts=2, flags=("--tpu-topology=2x2x2",), placement={"tpuTopology": "2x2x2"}
    ),
    "v5e": Slice(
        machine_type="ct5lp-hightpu-4t",
        hosts=4,
        flags=("--tpu-topology=4x4", "--num-nodes=4", "--placement-type=COMPACT", "--node-labels=team=x"),
        placement={"tpuTopology": "4x4", "type": "COMPACT"},
        config={"labels": {"team": "x"}},
    ),
    "v5p": Slice(
        machine_type="ct5p-hightpu-4t",
        hosts=2,
        flags=("--tpu-topology=2x2x2", "--reservation-affinity=specific", "--reservation=projects/p/reservations/r"),
        placement={"tpuTopology": "2x2x2"},
        config={
            "reservationAffinity": {
                "consumeReservationType": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": ["projects/p/reservations/r"],
            }
        },
    ),
    "v6e": Slice(
        machine_type="ct6e-standard-4t",
        hosts=4,
        flags=("--tpu-topology=4x4", "--spot"),
        placement={"tpuTopology": "4x4"},
        config={"spot": True},
    ),
    "tpu7x": Slice(
        machine_type="tpu7x-standard-4t",
        hosts=2,
        flags=(f"--placement-policy={_WORKLOAD_POLICY}", "--num-nodes=2"),
        placement={"policyName": _WORKLOAD_POLICY},
    ),
    "tpu7": Slice(
        machine_type="tpu7-standard-4t",
        hosts=2,
        flags=(f"--placement-policy={_WORKLOAD_POLICY}", "--tpu-topology=2x2x2"),
        placement={"policyName": _WORKLOAD_POLICY, "tpuTopology": "2x2x2"},
    ),
}

_EACH_GENERATION = pytest.mark.parametrize("wanted", _SLICES.values(), ids=_SLICES)
_WHERE_INSTALLED = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")


@pytest.fixture
def gke() -> Iterator[Simulator]:
    """A simulator whose operations are done when they are first asked about."""
    settings = SimulatorSettings(
        create_seconds=0,
        delete_seconds=0,
        node_stagger_seconds=0,
        workload_policies={_WORKLOAD_POLICY: "2x2x2"},
    )
    with Simulator(settings) as simulator:
        yield simulator


Gcloud = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gcloud(gke: Simulator, tmp_path: Path) -> Gcloud:
    """Run `gcloud container node-pools` on the simulator, with a token and a quota project, and no user's settings."""
    token = tmp_path / "token"
    token.write_text("token", encoding="ascii")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER": f"{gke.url}/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token),
        "CLOUDSDK_BILLING_QUOTA_PROJECT": "somebody-elses",
        "CLOUDSDK_CORE_PROJECT": "proj",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        # No look for a metadata server.
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
    }

    def run(verb: str, *arguments: str, location: str = "us-central2-b") -> subprocess.CompletedProcess[str]:
        command = ["gcloud", "container", "node-pools", verb, *arguments, "--cluster=main", f"--location={location}"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_every_generation_is_tried() -> None:
    """A generation that is added to the catalogue is tried with gcloud, too."""
    assert {accelerator.generation for accelerator in ACCELERATORS.values()} == set(_SLICES)


@_EACH_GENERATION
def test_what_gcloud_sends(wanted: Slice, gke: Simulator) -> None:
    """The recorded requests make a slice, show it and delete it, on the paths that gcloud calls."""
    client = Client(gke.port)
    headers = {"X_Goog_User_Project": "somebody-elses", "Authorization": "Bearer token", "Accept": "application/json"}

    def call(method: str, path: str, body: Any = None) -> Any:
        status, answer = client(method, f"/v1/{path}?alt=json", body, **headers)
        assert status == 200, answer
        return answer

    def await_end(operation: dict[str, Any]) -> None:
        path = f"projects/proj/locations/us-central2-b/operations/{operation['name']}"
        # An operation with a statusMessage is one that failed, to gcloud.
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


@_WHERE_INSTALLED
@_EACH_GENERATION
def test_gcloud(wanted: Slice, gke: Simulator, gcloud: Gcloud) -> None:
    """Gcloud sends what is recorded, and creates the slice."""
    flags = (f"--machine-type={wanted.machine_type}", *wanted.flags)
    created = gcloud("create", "slice", *flags, "--format=json", "--log-http")
    assert created.returncode == 0, created.stderr
    (sent,) = re.findall(r'(?m)^\{"nodePool".*$', created.stderr)
    pool, recorded = json.loads(sent)["nodePool"], wanted.body("slice")["nodePool"]
    # What else gcloud sends, such as scopes, changes with its releases.
    assert {key: pool.get(key) for key in ("initialNodeCount", "placementPolicy")} == {
        "initialNodeCount": wanted.hosts,
        "placementPolicy": wanted.placement,
    }
    assert {key: pool["config"].get(key) for key in wanted.config} == wanted.config
    assert pool.keys() >= recorded.keys()

    assert [(made.name, made.status, made.machine_type) for made in gke.pools] == [
        ("slice", "RUNNING", wanted.machine_type)
    ]


@_WHERE_INSTALLED
def test_gcloud_lists_describes_and_deletes(gke: Simulator, gcloud: Gcloud) -> None:
    """What it shows is the slice; each command takes seconds, so that one generation stands for all."""
    wanted = _SLICES["v4"]
    client = Client(gke.port)
    client("POST", f"/v1/{_CLUSTER}/nodePools", wanted.body("slice"))
    client.close()
    wait_for(lambda: [made.status for made in gke.pools] == ["RUNNING"])
    (listed,) = json.loads(gcloud("list", "--format=json").stdout)
    assert (listed["name"], listed["status"], listed["config"]["machineType"]) == (
        "slice",
        "RUNNING",
        wanted.machine_type,
    )
    described = gcloud("describe", "slice", "--format=json")
    assert json.loads(described.stdout) == listed
    deleted = gcloud("delete", "slice")
    assert deleted.returncode == 0, deleted.stderr
    assert gke.pools == ()


@_WHERE_INSTALLED
def test_gcloud_waits_for_operations_in_a_region(gke: Simulator, gcloud: Gcloud) -> None:
    """It asks for the operation again until it is done, where the cluster's location is a region."""
    gke.set(create_seconds=1.0)
    created = gcloud(
        "create",
        "slice",
        "--machine-type=ct4p-hightpu-4t",
        "--tpu-topology=2x2x2",
        "--node-locations=us-central2-b",
        location="us-central2",
    )
    assert created.returncode == 0, created.stderr
    assert gke.count("operations.get") == 2
    assert gke.pools[0].status == "RUNNING"


@_WHERE_INSTALLED
@pytest.mark.parametrize(
    ("machine_type", "topology", "fault", "text"),
    [
        pytest.param(
            "ct5lp-hightpu-4t",
            "2x2",
            None,
            "TPU topology can't be specified with single-host TPU slice pool",
            id="the topology of a single host",
        ),
        pytest.param(
            "ct4p-hightpu-4t",
            "2x2x2",
            Fault(kind=FaultKind.STOCKOUT),
            "does not have enough resources available",
            id="a stockout, in the operation",
        ),
    ],
)
def test_gcloud_is_told_what_is_wrong(
    machine_type: str, topology: str, fault: Fault | None, text: str, gke: Simulator, gcloud: Gcloud
) -> None:
    """A refusal, and an operation that fails, reach whoever called gcloud in GKE's words."""
    if fault is not None:
        gke.inject(fault)
    refused = gcloud("create", "slice", f"--machine-type={machine_type}", f"--tpu-topology={topology}")
    assert refused.returncode == 1
    assert text in refused.stderr
