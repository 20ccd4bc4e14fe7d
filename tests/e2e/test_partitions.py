"""The controller of partitions on a real API server, scheduler and simulated V-IPU server, killed at every step.

It is a process of its own with the rights of deploy/partitions and no others; V-IPU is asked by the simulated command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.admission.patch import apply_patch
from provisioner.kube.protocol import collection_path, object_path
from provisioner.localcluster import RUN_FOR
from provisioner.localcluster.ports import free_ports
from provisioner.partitions import names
from provisioner.partitions.admission.injection import Mode, Settings, inject
from provisioner.rehearsal import Rehearsal
from provisioner.rehearsal.world import ControllerProcess
from provisioner.simulators.vipu import command
from provisioner.simulators.vipu.app import VipuSimulator
from provisioner.simulators.vipu.records import Asked
from provisioner.simulators.vipu.settings import VipuSettings
from tests.deploy.kit import kubeconfig_of_service_account
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

_NAMESPACE = "ipu-jobs"
_ROOT = Path(__file__).parents[2]
_RIGHTS = ("service-account.yaml", "cluster-role.yaml", "role.yaml")
_LABEL = ("vipu", "one")
_PATIENCE_SECONDS = 60.0
_INJECTION = Settings(
    mode=Mode.COMPATIBLE,
    image="registry.example/tpu-provisioner:1",
    api_url="http://tpu-provisioner-partitions.tpu-provisioner-system.svc",
    controller="system:serviceaccount:tpu-provisioner-system:tpu-provisioner-partitions",
)


class World:
    """The cluster, a V-IPU server, and the controller as a process that is killed and started again."""

    def __init__(self, rehearsal: Rehearsal, vipu: VipuSimulator, directory: Path) -> None:
        self.rehearsal, self.vipu, self._directory = rehearsal, vipu, directory
        self._vipu_command = command.install(directory / "bin")
        self._kubeconfig = kubeconfig_of_service_account(
            rehearsal, directory / "kubeconfig", name="tpu-provisioner-partitions"
        )
        self.process = self._made()
        self.starts = 0

    def _made(self) -> ControllerProcess:
        (port,) = free_ports(1)
        selector = "=".join(_LABEL)
        return ControllerProcess(
            "partitions",
            kubeconfig=self._kubeconfig,
            log=self._directory / "partitions.log",
            environment={
                "VIPU_SERVERS": f"{self.vipu.host}:{self.vipu.port}:{selector}",
                "VIPU_COMMAND": str(self._vipu_command),
                "ORPHAN_REMOVAL_DELAY": "1s",
            },
            arguments=[f"--api-bind-address=127.0.0.1:{port}"],
        )

    def start(self) -> None:
        """Start the controller."""
        self.process.launch()
        self.starts += 1

    def kill_when(self, seen: Callable[[], object], what: str) -> None:
        """Kill the controller with -9 at a moment, and start the next one."""
        wait_for(seen, what=f"{what}\n{self.process.tail()}", seconds=_PATIENCE_SECONDS)
        self.process.kill()
        self.process = self._made()
        self.start()

    def create_job(self, name: str, size: int, *, run_for: str = "2s") -> None:
        """Create a Job of one pod as the webhook would leave it."""
        pod: dict[str, Any] = {
            "metadata": {"annotations": {names.IPUS: str(size), RUN_FOR: run_for}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]},
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": _NAMESPACE},
            "spec": {"backoffLimit": 0, "template": apply_patch(pod, inject(pod, size, _INJECTION))},
        }
        self.rehearsal.api.post(collection_path("jobs", namespace=_NAMESPACE, root="/apis/batch/v1"), job)

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods of the test."""
        return self.rehearsal.objects(collection_path("pods", namespace=_NAMESPACE))

    def phases(self) -> list[str]:
        """Return the phases of the pods."""
        return sorted(pod["status"].get("phase", "") for pod in self.pods())

    def gated(self) -> int:
        """Return how many pods have our gate."""
        return sum({"name": names.SCHEDULING_GATE} in (pod["spec"].get("schedulingGates") or []) for pod in self.pods())

    def ledger(self) -> dict[str, Any]:
        """Return the entries of the ledger, by id."""
        found = self.rehearsal.objects(
            collection_path("configmaps", namespace=constants.DEFAULT_NAMESPACE),
            fieldSelector=f"metadata.name={names.LEDGER_CONFIGMAP_NAME}",
        )
        data = found[0].get("data") or {} if found else {}
        return {key: json.loads(text) for key, text in data.items()}

    def states(self) -> list[str]:
        """Return the states of the partitions on the server."""
        return sorted(each.state for each in self.vipu.partitions)


@pytest.fixture
def world(rehearsal: Rehearsal, tmp_path: Path) -> Iterator[World]:
    """Give a cluster with a host that reaches 16 IPUs."""
    rehearsal.create_namespace(constants.DEFAULT_NAMESPACE)
    rehearsal.create_namespace(_NAMESPACE)
    for file in _RIGHTS:
        rehearsal.kubectl("apply", "--server-side", "-f", str(_ROOT / "deploy" / "partitions" / file))
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "ipu-host", "labels": dict([_LABEL])},
        "status": {"capacity": {"cpu": "64", "memory": "64Gi", "pods": "110"}},
    }
    rehearsal.api.post(collection_path("nodes"), node)
    settings = VipuSettings(
        allocations={"alloc-1": {"cluster": "c4", "agents": 4}}, create_seconds=1.5, remove_seconds=0.5
    )
    with VipuSimulator(settings) as vipu:
        made = World(rehearsal, vipu, tmp_path)
        yield made
        made.process.kill()
    rehearsal.kubectl("delete", "jobs", "--all", f"--namespace={_NAMESPACE}", "--wait=false")
    ledger = ("configmap", names.LEDGER_CONFIGMAP_NAME, f"--namespace={constants.DEFAULT_NAMESPACE}")
    rehearsal.kubectl("delete", *ledger, "--ignore-not-found")
    for file in _RIGHTS:
        rehearsal.kubectl("delete", "-f", str(_ROOT / "deploy" / "partitions" / file))
    rehearsal.api.delete(object_path("nodes", "ipu-host"))


def test_killed_at_every_step_nothing_is_lost_or_leaked(world: World) -> None:
    """Two pods share 16 IPUs, a third waits for them; each gets its partition once, and all give them back."""
    world.create_job("first", 8)
    world.start()
    world.kill_when(world.ledger, "the ledger has an entry")
    world.kill_when(lambda: world.vipu.partitions, "the server makes the partition")
    world.kill_when(lambda: world.states() == ["ACTIVE"], "the partition is active")
    world.create_job("second", 8)
    world.create_job("third", 16)
    world.kill_when(lambda: "Running" in world.phases(), "the first pod runs")
    running = next(pod for pod in world.pods() if pod["status"].get("phase") in ("Running", "Succeeded"))
    assert running["spec"]["nodeSelector"] == dict([_LABEL])
    assert running["metadata"]["annotations"][names.PARTITION_ID] == names.partition_id(
        world.rehearsal.api.get(object_path("namespaces", "kube-system"))["metadata"]["uid"], running["metadata"]["uid"]
    )
    world.kill_when(lambda: "Succeeded" in world.phases(), "the first pod has ended")
    world.kill_when(lambda: "REMOVING" in world.states() or not world.vipu.partitions, "a partition is removed")
    world.kill_when(lambda: world.phases() == ["Succeeded"] * 3, "all pods have ended")
    wait_for(
        lambda: not world.vipu.partitions and not world.ledger(),
        what=f"nothing is left\n{world.process.tail()}",
        seconds=_PATIENCE_SECONDS,
    )
    assert world.starts == 8


def test_orphans_of_this_cluster_go_and_foreign_partitions_stay(world: World) -> None:
    """Told by the id alone: what somebody made by hand is never touched."""
    uid = world.rehearsal.api.get(object_path("namespaces", "kube-system"))["metadata"]["uid"]
    orphan, foreign = names.partition_id(uid, "nobody"), names.partition_id("another-cluster", "nobody")
    for each in (orphan, foreign, "by-hand"):
        world.vipu.world.create(Asked(id=each, size=4))
    world.start()
    wait_for(
        lambda: {each.id for each in world.vipu.partitions} == {foreign, "by-hand"},
        what=f"the orphan is gone\n{world.process.tail()}",
        seconds=_PATIENCE_SECONDS,
    )
