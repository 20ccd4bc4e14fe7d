"""Tests of the commands that query a running controller through the API server, with only a kubeconfig."""

from __future__ import annotations

import json
import socket

import pytest

from provisioner import constants
from provisioner.cli import main
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.localcluster.ports import free_ports
from tests.e2e.kit import Ground

pytestmark = pytest.mark.e2e

LEADER = "the-leading-pod"


def own_address() -> str:
    """Return an address of this machine for a pod; the API server does not proxy to loopback addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback")
        return str(probe.getsockname()[0])


def put_pod(ground: Ground, address: str) -> None:
    """Create the pod of the leader with an IP address, as the kubelet would report it."""
    namespace = constants.DEFAULT_NAMESPACE
    container = {"name": "main", "image": "none"}
    body = {"metadata": {"name": LEADER}, "spec": {"containers": [container], "schedulerName": "nobody"}}
    ground.api.post(collection_path("pods", namespace=namespace), body)
    path = f"{object_path('pods', LEADER, namespace=namespace)}/status"
    ground.api.patch(path, {"status": {"podIP": address, "podIPs": [{"ip": address}]}})


def test_status_explain_and_gc_find_the_leading_pod(alone: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    """The Lease names the pod, and the API server proxies to it, so no port forwarding is needed."""
    address, (port,) = own_address(), free_ports(1)
    alone.provisioner(
        arguments=("--leader-elect", f"--health-probe-bind-address=0.0.0.0:{port}"), environment={"POD_NAME": LEADER}
    )
    put_pod(alone, address)
    try:
        alone.apply("odd", topology="2x3x5")
        alone.apply("seen", run_for="600s")
        options = ("--kubeconfig", str(alone.rehearsal.cluster.kubeconfig), "--controller-port", str(port))

        def told(*arguments: str) -> str:
            main((*arguments, *options))
            return capsys.readouterr().out

        alone.wait(lambda: "runs on node pool" in told("explain", "seen"), "explain says that it runs")
        assert "topology 2x3x5 is not valid" in told("explain", "odd")
        (pool,) = alone.pools("seen-")
        rows = [line.split() for line in told("status").splitlines()]
        assert any("seen" in row and "running" in row and pool.name in row for row in rows)
        assert json.loads(told("gc", "--dry-run", "-o", "json"))["pools"][0]["reason"] == "Pods run on it."
        # The status page can be read through the API server as well, and its responses keep their entity tag.
        served = f"{object_path('pods', LEADER, namespace=constants.DEFAULT_NAMESPACE)}:{port}/proxy/api/v1"
        assert alone.api.get(f"{served}/about")["leader"] == LEADER
        board = f"{alone.api.server}{served}/board"
        answer = alone.api._pool.request("GET", board, timeout=10)
        assert answer.headers["etag"].startswith('W/"')
    finally:
        alone.api.delete(object_path("pods", LEADER, namespace=constants.DEFAULT_NAMESPACE))
