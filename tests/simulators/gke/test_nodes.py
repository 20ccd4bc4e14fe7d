"""Tests of Node objects: their content, and their registration and removal in the cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rehearsal.simulators.gke import Simulator, SimulatorSettings
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.registrar import MARKER, node_object
from tests.support.clock import FakeClock
from tests.support.kube import FakeKube
from tests.support.simulator import CLUSTER, POOLS_PATH, Client, slice_pool
from tests.support.waiting import wait_for

NODES = "/api/v1/nodes"
FAST = SimulatorSettings(create_seconds=0.2, delete_seconds=0.1, node_stagger_seconds=0.1)


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """An API server in memory that the simulator uses as the cluster of its kubeconfig."""
    made = FakeKube()
    for name, value in {"ca_pem": None, "server": "https://10.0.0.1", "close": lambda: None}.items():
        monkeypatch.setattr(made, name, value, raising=False)
    monkeypatch.setattr("rehearsal.simulators.gke.app.connect", lambda _: made)
    return made


def registering() -> Simulator:
    return Simulator(FAST, kubeconfig="config")


def nodes(kube: FakeKube) -> set[str]:
    return {raw["metadata"]["name"] for raw in kube.objects(NODES)}


def create(gke: Simulator, **changes: Any) -> None:
    client = Client(gke.port)
    status, body = client("POST", POOLS_PATH, {"nodePool": slice_pool(**changes)})
    client.close()
    assert status == 200, body


def runs(gke: Simulator, name: str = "slice") -> bool:
    view = gke.pool(name)
    return view is not None and view.status == "RUNNING"


def made(clock: FakeClock, *, ready: bool = False, **changes: Any) -> dict[str, Any]:
    world = World(SimulatorSettings(), clock=clock.now)
    world.create_pool(CLUSTER, slice_pool(**changes))
    pool = world.pool(CLUSTER, "slice")
    return node_object(pool, pool.nodes[0], version="1.2.3-gke.4", life="life", ready=ready)


def test_tpu_node_has_the_name_labels_taint_and_resources_of_gke(clock: FakeClock) -> None:
    labels = {"team": "x", "cloud.google.com/gke-nodepool": "forged"}
    node = made(clock, config={"machineType": "ct5lp-hightpu-4t", "labels": labels})
    name = node["metadata"]["name"]

    assert re.fullmatch(r"gke-tpu-[0-9a-f]{8}-[0-9a-z]{4}", name)
    assert f"gce://proj/us-east5-a/{name}" == node["spec"]["providerID"]
    assert {
        "team": "x",
        "cloud.google.com/gke-nodepool": "slice",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-provisioning": "standard",
        "node.kubernetes.io/instance-type": "ct5lp-hightpu-4t",
        "topology.kubernetes.io/zone": "us-east5-a",
        "topology.kubernetes.io/region": "us-east5",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }.items() <= node["metadata"]["labels"].items()
    assert node["spec"]["taints"] == [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
    for resources in (node["status"]["capacity"], node["status"]["allocatable"]):
        assert {"google.com/tpu": "4", "pods": "110"}.items() <= resources.items()
    assert "conditions" not in node["status"]
    applied = node["metadata"]["annotations"]["node.gke.io/last-applied-node-labels"].split(",")
    assert {"cloud.google.com/gke-nodepool=slice", "cloud.google.com/gke-accelerator-count=4", "team=x"} < {*applied}
    assert not any(label.startswith("kubernetes.io/") for label in applied)


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        pytest.param({}, {"name": "slice", "config": {"machineType": "e2-medium"}}, id="a node without TPUs"),
        pytest.param({"pool_in_node_names": True}, slice_pool(), id="where the settings say so"),
    ],
)
def test_node_without_tpus_or_with_pool_in_node_names_is_named_after_its_group(
    clock: FakeClock, settings: dict[str, Any], body: dict[str, Any]
) -> None:
    """The name of the instance group contains cluster and pool."""
    world = World(SimulatorSettings(**settings), clock=clock.now)
    world.create_pool(CLUSTER, {"initialNodeCount": 1, **body})
    pool = world.pool(CLUSTER, "slice")
    assert pool.groups["us-east5-a"].startswith("gke-main-slice-")
    assert [node.name.rpartition("-")[0] for node in pool.nodes] == [pool.groups["us-east5-a"]] * len(pool.nodes)


def test_nodes_with_the_dra_driver_offer_chips_in_resource_slices(kube: FakeKube) -> None:
    """Nodes with the DRA driver have no resource google.com/tpu."""
    config = {"machineType": "ct5lp-hightpu-4t", "labels": {"cloud.google.com/gke-tpu-dra-driver": "true"}}
    with registering() as gke:
        create(gke, config=config)
        wait_for(lambda: runs(gke))
        assert not any("google.com/tpu" in raw["status"]["allocatable"] for raw in kube.objects(NODES))
        found = [raw["spec"] for raw in kube.objects("/apis/resource.k8s.io/v1/resourceslices")]
        assert {spec["nodeName"] for spec in found} == nodes(kube)
        assert {(spec["driver"], len(spec["devices"])) for spec in found} == {("tpu.google.com", 4)}
        attributes = found[0]["devices"][0]["attributes"]
        assert (attributes["tpuGen"], attributes["topology"]) == ({"string": "v5litepod"}, {"string": "4x4"})


def test_start_deletes_only_simulated_nodes_of_earlier_processes(kube: FakeKube) -> None:
    labels = {"cloud.google.com/gke-nodepool": "old"}
    kube.put_object(f"{NODES}/mine", {"metadata": {"labels": labels, "annotations": {MARKER: "before"}}})
    kube.put_object(f"{NODES}/real", {"metadata": {"labels": labels}})
    with registering():
        assert nodes(kube) == {"real"}
