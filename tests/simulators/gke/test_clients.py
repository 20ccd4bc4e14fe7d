"""Google's Python library against the simulator, and the command itself; gcloud is in test_gcloud.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import container_v1
from google.cloud.container_v1.services.cluster_manager.transports.rest import ClusterManagerRestTransport

from rehearsal.simulators.gke import Simulator, SimulatorSettings
from tests.support.waiting import wait_for

#: Some of these tests start Python.
pytestmark = pytest.mark.timeout(60)

PARENT = "projects/proj/locations/us-east5-a/clusters/main"


@pytest.fixture
def gke() -> Iterator[Simulator]:
    """A fast simulator."""
    with Simulator(SimulatorSettings(create_seconds=0.3, delete_seconds=0.2, node_stagger_seconds=0)) as simulator:
        yield simulator


def test_the_python_client(gke: Simulator) -> None:
    """google-cloud-container creates, reads, lists with a mask, and deletes over REST."""
    host = gke.url.removeprefix("http://")
    transport = ClusterManagerRestTransport(host=host, url_scheme="http", credentials=AnonymousCredentials())
    client = container_v1.ClusterManagerClient(transport=transport)
    status = container_v1.NodePool.Status
    pool = container_v1.NodePool(
        name="slice",
        initial_node_count=4,
        config=container_v1.NodeConfig(machine_type="ct5lp-hightpu-4t", labels={"team": "x"}),
        placement_policy=container_v1.NodePool.PlacementPolicy(type_="COMPACT", tpu_topology="4x4"),
        max_pods_constraint=container_v1.MaxPodsConstraint(max_pods_per_node=15),
    )
    with client:
        operation = client.create_node_pool(parent=PARENT, node_pool=pool)
        assert operation.operation_type == container_v1.Operation.Type.CREATE_NODE_POOL
        with pytest.raises(exceptions.Conflict):
            client.create_node_pool(parent=PARENT, node_pool=pool)
        name = f"projects/proj/locations/us-east5-a/operations/{operation.name}"
        wait_for(lambda: client.get_operation(name=name).status == container_v1.Operation.Status.DONE)
        found = client.get_node_pool(name=f"{PARENT}/nodePools/slice")
        assert (
            found.status,
            found.placement_policy.tpu_topology,
            found.max_pods_constraint.max_pods_per_node,
        ) == (status.RUNNING, "4x4", 15)
        mask = [("x-goog-fieldmask", "nodePools(name,status,config(labels,machineType))")]
        (listed,) = client.list_node_pools(parent=PARENT, metadata=mask).node_pools
        assert (
            listed.name,
            listed.status,
            dict(listed.config.labels),
            listed.initial_node_count,
        ) == ("slice", status.RUNNING, {"team": "x"}, 0)
        assert client.get_cluster(name=PARENT).node_pools[0].name == "slice"
        client.delete_node_pool(name=f"{PARENT}/nodePools/slice")
        assert client.get_node_pool(name=f"{PARENT}/nodePools/slice").status == status.STOPPING
        wait_for(lambda: gke.pools == ())
        with pytest.raises(exceptions.NotFound):
            client.get_node_pool(name=f"{PARENT}/nodePools/slice")
        assert len(client.list_operations(parent="projects/proj/locations/us-east5-a").operations) == 2


COMMAND = (sys.executable, "-m", "rehearsal", "simulator", "--port=0")


def test_the_command_serves_until_told_to_end() -> None:
    """The command prints its address in one line and ends cleanly on a signal."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert line.startswith("GKE simulator on http://127.0.0.1:")
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_the_command_says_what_is_wrong() -> None:
    """A mistake ends the command with a text on standard error."""
    command = [*COMMAND, "--kubeconfig=missing"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "can't use the cluster of missing" in ended.stderr
