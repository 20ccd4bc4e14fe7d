"""Simulates the controller's pod by a process with the settings of the Deployment, because kwok runs no processes.

A thread polls the live Deployment: a changed template restarts the process, and the delete of the Deployment ends it. A
wrapper of kubectl, which a test puts on PATH, directs `kubectl exec` and `kubectl logs` to the process.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioner.kube.errors import NotFound
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.demos import ProvisionerProcess, Rehearsal
from tests.deploy.kit import NAMESPACE, environment_of, flags_of, kubeconfig_of_service_account
from tests.e2e.kit import EAGER

_DEPLOYMENT = object_path("deployments", "tpu-provisioner", namespace=NAMESPACE, root="/apis/apps/v1")
_NODE = "system-1"
_LOOK_SECONDS = 0.3
#: Program that replaces kubectl, and itself runs the commands that need a kubelet.
_KUBECTL = """\
#!{python}
import os, sys
arguments = sys.argv[1:]
if "exec" in arguments:
    environment = dict(line.split("=", 1) for line in open({environment!r}).read().splitlines())
    command = arguments[arguments.index("--") + 1:]
    assert command[0] == "tpu-provisioner", command
    os.execve({python!r}, [{python!r}, "-m", "provisioner", *command[1:]], {{**os.environ, **environment}})
if "logs" in arguments:
    sys.exit(os.system("cat {log}"))
os.execv({kubectl!r}, [{kubectl!r}, *arguments])
"""


class PlayedPod:
    """The only pod of the Deployment, with its process."""

    def __init__(self, rehearsal: Rehearsal, gke_endpoint: str, directory: Path) -> None:
        self._rehearsal = rehearsal
        self._gke_endpoint = gke_endpoint
        self._kubeconfig = directory / "pod-kubeconfig"
        self._environment = directory / "pod-environment"
        self.log = directory / "pod.log"
        self.log.touch()
        self.starts = 0
        self._template: Any = None
        self._process: ProvisionerProcess | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="played-pod")
        self.problem = ""

    @contextmanager
    def playing(self) -> Iterator[PlayedPod]:
        # The controller's pod needs this node, because the provisioner's nodes accept only pods with chips. The
        # controller of node groups needs the label, because it runs only on the control plane.
        size = {"cpu": "8", "memory": "16Gi", "pods": "50"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": _NODE, "labels": {"node-role.kubernetes.io/control-plane": ""}},
            "status": {"capacity": size, "allocatable": size},
        }
        self._rehearsal.api.post(collection_path("nodes"), body)
        self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self._thread.join()
            self._rehearsal.api.delete(object_path("nodes", _NODE))
        assert self.problem == ""

    def write_kubectl(self, path: Path) -> None:
        text = _KUBECTL.format(
            python=sys.executable,
            environment=str(self._environment),
            log=shlex.quote(str(self.log)),
            kubectl=str(self._rehearsal.cluster.binaries["kubectl"]),
        )
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_LOOK_SECONDS):
                self._follow(self._wanted())
        except Exception as error:  # noqa: BLE001 - raised by the test's own thread
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self._follow(None)

    def _wanted(self) -> dict[str, Any] | None:
        try:
            deployment = self._rehearsal.api.get(_DEPLOYMENT)
        except NotFound:
            return None
        gone = deployment["metadata"].get("deletionTimestamp") or not deployment["spec"]["replicas"]
        return None if gone else deployment

    def _follow(self, deployment: dict[str, Any] | None) -> None:
        template = deployment and json.dumps(deployment["spec"]["template"], sort_keys=True)
        if template == self._template:
            return
        if self._process is not None:
            self._process.stop()
            self._process = None
        self._template = template
        if deployment is not None:
            self._start(deployment)

    def _start(self, deployment: dict[str, Any]) -> None:
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        names = [source["configMapRef"]["name"] for source in container.get("envFrom", [])]
        maps = [self._rehearsal.api.get(object_path("configmaps", name, namespace=NAMESPACE)) for name in names]
        documents = [deployment, *({**config_map, "kind": "ConfigMap"} for config_map in maps)]
        settings = environment_of([{**deployment, "kind": "Deployment"}, *documents[1:]]) | EAGER
        kubeconfig_of_service_account(self._rehearsal, self._kubeconfig)
        environment = {
            **settings,
            "POD_NAMESPACE": NAMESPACE,
            "GKE_ENDPOINT": self._gke_endpoint,
            "KUBECONFIG": str(self._kubeconfig),
            "HOME": str(self.log.parent),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._environment.write_text(
            "".join(f"{name}={value}\n" for name, value in environment.items()), encoding="utf-8"
        )
        self._process = ProvisionerProcess(
            kubeconfig=self._kubeconfig,
            gke_endpoint=self._gke_endpoint,
            log=self.log,
            environment=environment,
            arguments=flags_of([{**deployment, "kind": "Deployment"}]),
        )
        self._process.launch()
        self.starts += 1
