"""Tests of pods with partitions that end in different ways, on a real API server with a simulated V-IPU server.

The controller is a process with only the rights of deploy/partitions; it calls V-IPU with the simulated command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.partitions import names
from provisioner.partitions.admission import inject
from provisioner.settings.webhook import WebhookSettings
from rehearsal.demos import Rehearsal
from rehearsal.demos.world import ControllerProcess
from rehearsal.localcluster import FAIL_AFTER, RUN_FOR
from rehearsal.localcluster.ports import free_ports
from rehearsal.simulators.vipu import command
from rehearsal.simulators.vipu.app import VipuSimulator
from rehearsal.simulators.vipu.records import Asked
from rehearsal.simulators.vipu.settings import VipuSettings
from tests.deploy.kit import kubeconfig_of_service_account
from tests.support.patches import apply_patch
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_NAMESPACE = "ipu-jobs"
_ROOT = Path(__file__).parents[2]
_RIGHTS = ("service-account.yaml", "cluster-role.yaml", "role.yaml", "pod-guard.yaml")
_LABEL = ("vipu", "one")
_HOST = "kubernetes.io/hostname"
_PODS = collection_path("pods", namespace=_NAMESPACE)
_JOBS = collection_path("jobs", namespace=_NAMESPACE, root="/apis/batch/v1")
_PATIENCE_SECONDS = 60.0
_INJECTION = WebhookSettings(ipu_injection="compatible", ipu_init_image="registry.example/tpu-provisioner:1")


class World:
    """The cluster, a V-IPU server, and the controller as a process."""

    def __init__(self, rehearsal: Rehearsal, vipu: VipuSimulator, directory: Path) -> None:
        self.rehearsal, self.vipu = rehearsal, vipu
        kubeconfig = kubeconfig_of_service_account(
            rehearsal, directory / "kubeconfig", name="tpu-provisioner-partitions"
        )
        self.cluster_uid = rehearsal.api.get(object_path("namespaces", "kube-system"))["metadata"]["uid"]
        (port,) = free_ports(1)
        selector = "=".join(_LABEL)
        self.process = ControllerProcess(
            "partitions",
            kubeconfig=kubeconfig,
            log=directory / "partitions.log",
            environment={
                "VIPU_SERVERS": f"{vipu.host}:{vipu.port}:{selector}",
                "VIPU_COMMAND": str(command.install(directory / "bin")),
                "ORPHAN_REMOVAL_DELAY": "1s",
            },
            arguments=[f"--api-bind-address=127.0.0.1:{port}"],
        )

    def create_node(self, name: str) -> None:
        """Register a node that reaches the V-IPU server and becomes ready."""
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {**dict([_LABEL]), _HOST: name}},
            "status": {"capacity": {"cpu": "64", "memory": "64Gi", "pods": "110"}},
        }
        self.rehearsal.api.post(collection_path("nodes"), node)

    def create_job(self, name: str, size: int, *, run_for: str, node: str) -> None:
        """Create a Job of one pod with the changes that the webhook would make."""
        pod: dict[str, Any] = {
            "metadata": {"annotations": {names.IPUS: str(size), RUN_FOR: run_for}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "none"}],
                "nodeSelector": {_HOST: node},
            },
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": _NAMESPACE},
            "spec": {"backoffLimit": 0, "template": apply_patch(pod, inject(pod, size, _INJECTION))},
        }
        self.rehearsal.api.post(_JOBS, job)

    def pods(self) -> list[dict[str, Any]]:
        return self.rehearsal.objects(_PODS)

    def pods_of_jobs(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]: pod for pod in self.pods()}

    def phases(self) -> list[str]:
        return sorted(pod["status"].get("phase", "") for pod in self.pods())

    def id_of(self, pod: dict[str, Any]) -> str:
        server = f"{self.vipu.host}:{self.vipu.port}"
        return names.partition_id(self.cluster_uid, pod["metadata"]["uid"], server)

    def ledger(self) -> dict[str, Any]:
        found = self.rehearsal.objects(
            collection_path("configmaps", namespace=constants.DEFAULT_NAMESPACE),
            fieldSelector=f"metadata.name={names.LEDGER_CONFIGMAP_NAME}",
        )
        data = found[0].get("data") or {} if found else {}
        return {key: json.loads(text) for key, text in data.items()}

    def ids(self) -> set[str]:
        return {partition.id for partition in self.vipu.partitions}


@pytest.fixture
def world(rehearsal: Rehearsal, tmp_path: Path) -> Iterator[World]:
    """Yield a cluster with a host that reaches 16 IPUs, and a running controller; delete everything afterwards."""
    rehearsal.create_namespace(constants.DEFAULT_NAMESPACE)
    rehearsal.create_namespace(_NAMESPACE)
    for file in _RIGHTS:
        rehearsal.kubectl("apply", "--server-side", "-f", str(_ROOT / "deploy" / "partitions" / file))
    settings = VipuSettings(
        allocations={"alloc-1": {"cluster": "c4", "agents": 4}}, create_seconds=1.5, remove_seconds=0.5
    )
    with VipuSimulator(settings) as vipu:
        made = World(rehearsal, vipu, tmp_path)
        made.create_node("ipu-host")
        made.process.launch()
        yield made
        made.process.kill()
    rehearsal.api.delete(f"{_JOBS}?propagationPolicy=Background")
    wait_for(lambda: not made.pods(), what="the pods of the test are gone", seconds=_PATIENCE_SECONDS)
    ledger = ("configmap", names.LEDGER_CONFIGMAP_NAME, f"--namespace={constants.DEFAULT_NAMESPACE}")
    rehearsal.kubectl("delete", *ledger, "--ignore-not-found")
    for file in _RIGHTS:
        rehearsal.kubectl("delete", "-f", str(_ROOT / "deploy" / "partitions" / file))
    rehearsal.api.delete(f"{collection_path('nodes')}?labelSelector={'%3D'.join(_LABEL)}")


def test_partition_of_an_ended_pod_is_removed_and_no_other(world: World) -> None:
    """The test deletes the pod of the lost node, because the pod garbage collector would do it only after a minute."""
    api = world.rehearsal.api
    world.create_node("ipu-host-lost")
    world.vipu.world.create(Asked(id="by-hand", size=4))
    for name in ("fails", "is-deleted", "is-evicted", "stays"):
        world.create_job(name, 2, run_for="1h", node="ipu-host")
    world.create_job("loses-its-node", 2, run_for="1h", node="ipu-host-lost")
    wait_for(
        lambda: world.phases() == ["Running"] * 5,
        what=f"all pods run\n{world.process.tail()}",
        seconds=_PATIENCE_SECONDS,
    )
    pods = world.pods_of_jobs()
    ids = {name: world.id_of(pod) for name, pod in pods.items()}
    paths = {name: object_path("pods", pod["metadata"]["name"], namespace=_NAMESPACE) for name, pod in pods.items()}
    before = {partition.id: partition for partition in world.vipu.partitions}
    assert before.keys() == {*ids.values(), "by-hand"}
    assert world.ledger().keys() == set(ids.values())

    api.patch(paths["fails"], {"metadata": {"annotations": {FAIL_AFTER: "0s"}}})
    api.delete(paths["is-deleted"])
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pods["is-evicted"]["metadata"]["name"]},
    }
    api.post(f"{paths['is-evicted']}/eviction", eviction)
    api.delete(object_path("nodes", "ipu-host-lost"))
    api.patch(f"{paths['loses-its-node']}/status", {"status": {"phase": "Failed"}})
    api.delete(f"{paths['loses-its-node']}?gracePeriodSeconds=0")

    wait_for(
        lambda: world.ids() == {ids["stays"], "by-hand"} and world.ledger().keys() == {ids["stays"]},
        what=f"four partitions and their entries are gone\n{world.process.tail()}",
        seconds=_PATIENCE_SECONDS,
    )
    left = world.pods_of_jobs()
    assert {name: pod["status"]["phase"] for name, pod in left.items()} == {"fails": "Failed", "stays": "Running"}
    listed = {partition.id: partition for partition in world.vipu.partitions}
    assert listed == {key: before[key] for key in (ids["stays"], "by-hand")}
