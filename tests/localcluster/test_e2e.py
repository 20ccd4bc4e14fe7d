"""The real cluster does what rehearsals rely on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal import localcluster
from tests.support.localcluster import Kube
from tests.support.objects import pod_spec, raw_jobset
from tests.support.processes import is_over
from tests.support.waiting import wait_for

# The first run on a machine builds the programs.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
CAPACITY = {"cpu": "208", "memory": "448Gi", "google.com/tpu": "4", "pods": "110"}


def tpu_node(pool: str, index: int, *, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a Node as GKE registers it."""
    name = f"gke-{pool}-{index}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"cloud.google.com/gke-nodepool": pool, "kubernetes.io/hostname": name},
            "annotations": annotations or {},
        },
        "spec": {"providerID": f"gce://project/zone/{name}", "taints": [TAINT]},
        "status": {"capacity": CAPACITY, "allocatable": CAPACITY | {"cpu": "207"}},
    }


def jobset(
    name: str, *, pods: int = 1, pool: str | None = None, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a JobSet of one slice; its pods may only go to the pool, if one is given."""
    pod = pod_spec(nodeSelector={"cloud.google.com/gke-nodepool": pool} if pool else {})
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    return raw_jobset(
        name,
        namespace="",
        uid="",
        parallelism=pods,
        pod=pod,
        pod_metadata={"annotations": annotations or {}},
        metadata={"annotations": exclusive},
    )


def condition(thing: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the condition of that type; an empty one if there is none."""
    found = thing.get("status", {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind), {})


def is_ready(kube: Kube, node: str) -> bool:
    """Whether the node is ready and its taint for new nodes is gone."""
    found = kube.get(f"{NODES}/{node}")
    return condition(found, "Ready").get("status") == "True" and len(found["spec"]["taints"]) == 1


@pytest.fixture
def pool(kube: Kube) -> Iterator[Callable[..., str]]:
    """Give a maker of pools of ready nodes, which are removed after the test."""
    made: list[str] = []

    def make(nodes: int = 1) -> str:
        name = f"pool-{uuid.uuid4().hex[:8]}"
        made.extend(kube.create(NODES, tpu_node(name, index))["metadata"]["name"] for index in range(nodes))
        wait_for(lambda: all(is_ready(kube, node) for node in made), what=f"nodes {made} to be ready")
        return name

    yield make
    for node in made:
        kube.call("DELETE", f"{NODES}/{node}")


def test_only_leaders_exist_until_a_leader_is_bound(kube: Kube, pool: Callable[..., str]) -> None:
    """Exclusive placement, the toleration for chips, and a whole slice on one pool."""
    kube.create(JOBSETS, jobset("exclusive", pods=4, annotations={localcluster.RUN_FOR: "2s"}))
    (leader,) = wait_for(lambda: kube.pods("exclusive"), what="a leader pod")
    wait_for(
        lambda: condition(kube.pods("exclusive")[0], "PodScheduled").get("reason") == "Unschedulable",
        what="the leader to be unschedulable",
    )
    assert leader["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "0"
    assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in leader["spec"]["tolerations"]
    assert [pod["metadata"]["name"] for pod in kube.pods("exclusive")] == [leader["metadata"]["name"]]
    name = pool(4)
    wait_for(
        lambda: [pod["status"]["phase"] for pod in kube.pods("exclusive")].count("Running") == 4,
        what="four running pods",
    )
    pods = kube.pods("exclusive")
    assert {pod["spec"]["nodeName"] for pod in pods} == {f"gke-{name}-{index}" for index in range(4)}
    assert len({pod["status"]["podIP"] for pod in pods}) == 4
    wait_for(
        lambda: condition(kube.get(f"{JOBSETS}/exclusive"), "Completed").get("status") == "True",
        what="the JobSet to complete",
    )


def test_a_registered_node_becomes_ready_and_keeps_what_it_came_with(kube: Kube) -> None:
    """Capacity, allocatable, labels, taint and provider id are not kwok's."""
    given = tpu_node("keeps", 0)
    kube.create(NODES, given)
    wait_for(lambda: is_ready(kube, "gke-keeps-0"), what="the node to be ready")
    found = kube.get(f"{NODES}/gke-keeps-0")
    assert found["status"]["capacity"] == CAPACITY
    assert found["status"]["allocatable"] == CAPACITY | {"cpu": "207"}
    assert found["metadata"]["labels"] == given["metadata"]["labels"]
    assert found["spec"]["taints"] == [TAINT]
    assert found["spec"]["providerID"] == given["spec"]["providerID"]
    before = condition(found, "Ready")
    heard = wait_for(
        lambda: (
            (after := condition(kube.get(f"{NODES}/gke-keeps-0"), "Ready"))["lastHeartbeatTime"]
            > before["lastHeartbeatTime"]
            and after
        ),
        what="a heartbeat",
        seconds=60,
    )
    assert heard["lastTransitionTime"] == before["lastTransitionTime"]
    assert kube.call("DELETE", f"{NODES}/gke-keeps-0").status_code == 200


def test_a_node_can_be_kept_from_becoming_ready(kube: Kube) -> None:
    """The annotation stands for hosts that never come up, beside one that does."""
    kube.create(NODES, tpu_node("sick", 0, annotations={localcluster.KEEP_NOT_READY: ""}))
    kube.create(NODES, tpu_node("sick", 1))
    wait_for(lambda: is_ready(kube, "gke-sick-1"), what="the other node to be ready")
    assert condition(kube.get(f"{NODES}/gke-sick-0"), "Ready").get("status") != "True"
    for index in range(2):
        kube.call("DELETE", f"{NODES}/gke-sick-{index}")


@pytest.mark.parametrize("name", ["kube-apiserver", "etcd", "jobset"])
def test_each_component_can_crash(
    kube: Kube, cluster: localcluster.LocalCluster, pool: Callable[..., str], name: str
) -> None:
    """It comes back on the same port with the same data, and slices still run from beginning to end."""
    url = cluster.server_url
    cluster.restart(name, down_seconds=0.5)
    assert cluster.server_url == url
    cluster.check()
    # The API server refuses calls for a moment while etcd is back but not yet reached.
    wait_for(lambda: kube.call("GET", "/readyz").status_code == 200, what="the API server to be ready")
    js = jobset(f"after-{name}", pool=pool(), annotations={localcluster.RUN_FOR: "1s"})
    wait_for(lambda: kube.call("POST", JOBSETS, js).status_code in {201, 409}, what="the JobSet to be taken")
    wait_for(
        lambda: condition(kube.get(f"{JOBSETS}/after-{name}"), "Completed").get("status") == "True",
        what="the JobSet to complete",
        seconds=60,
    )


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in text for child in path.read_text().split()]


@pytest.mark.parametrize(
    "signal_number",
    [
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux")),
        pytest.param(signal.SIGTERM, id="terminated"),
    ],
)
def test_no_component_outlives_the_command(tmp_path: Path, signal_number: int) -> None:
    """Whether the parent is killed or asked to end; asked, it ends within three seconds."""
    command = [
        sys.executable,
        "-m",
        "rehearsal",
        "up",
        "--no-jobset",
        "--directory",
        str(tmp_path / "c"),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == f"export KUBECONFIG={tmp_path / 'c' / 'kubeconfig'}\n"
        children = _children(parent.pid)
        assert len(children) == 5
        started = time.monotonic()
        parent.send_signal(signal_number)
        assert parent.wait() == (-signal.SIGKILL if signal_number == signal.SIGKILL else 0)
        assert time.monotonic() - started < 3.5
        wait_for(lambda: all(is_over(child) for child in children), what="all children to end")
