"""Rehearsal of IPU partitions: local control plane, webhook, controller, simulated V-IPU server, and the story.

No kubelet runs init containers here: `configuration_of` does the work of a pod's init container, with a token of the
pod. The story uses only objects of the API server and the partitions that the V-IPU server lists, as users can.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.partitions import names
from rehearsal import localcluster
from rehearsal.demos.world import ControllerProcess, RehearsalError, RehearsedCluster, Times
from rehearsal.localcluster.ports import HOST, free_ports
from rehearsal.simulators.vipu import command
from rehearsal.simulators.vipu.app import VipuSimulator
from rehearsal.simulators.vipu.settings import VipuSettings

_WEBHOOK = "tpu-provisioner-webhook"
_REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"
#: Label of the hosts that reach the IPUs.
_LABEL, _VALUE = "ipu-pod", "one"
_HOSTS = 2
_GET_SECONDS = 30
_TOKEN_SECONDS = 600


class PartitionRehearsal(RehearsedCluster):
    """The local cluster with two hosts that reach the IPUs of one simulated V-IPU server."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        settings: VipuSettings | None = None,
        progress: Callable[[str], None] = localcluster.log_progress,
    ) -> None:
        super().__init__(directory=directory, progress=progress)
        self.vipu = VipuSimulator(settings or VipuSettings())
        self._webhook_port, self._api_port = free_ports(2)

    def start_rest(self) -> None:
        """Start the simulated V-IPU server, and create the Nodes of the hosts."""
        self.vipu.start()
        self.create_namespace(constants.DEFAULT_NAMESPACE)
        for number in range(1, _HOSTS + 1):
            self.api.post(collection_path("nodes"), _host(f"ipu-host-{number}"))

    def stop_rest(self) -> None:
        """Stop the simulated V-IPU server."""
        self.vipu.stop()

    def webhook(self) -> ControllerProcess:
        """Start the webhook server, and register it for new pods with IPUs."""
        made = self.process(
            "webhook",
            environment={
                "IPU_INJECTION": "compatible",
                "IPU_INIT_IMAGE": "tpu-provisioner",
                "WEBHOOK_SERVICE": _WEBHOOK,
                "WEBHOOK_CONFIGURATION": _WEBHOOK,
            },
            arguments=[f"--bind-address={HOST}:{self._webhook_port}"],
        )
        namespace = constants.DEFAULT_NAMESPACE
        self.api.post(collection_path("services", namespace=namespace), _service(self._webhook_port))
        certificates = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{_WEBHOOK}-certificates"}}
        self.api.post(collection_path("secrets", namespace=namespace), certificates)
        path = collection_path("mutatingwebhookconfigurations", root=_REGISTRATIONS)
        self.api.post(path, _registration(self._webhook_port))
        made.start()
        return made

    def controller(self, *, environment: Mapping[str, str] | None = None) -> ControllerProcess:
        """Create a controller process, not started yet."""
        return self.process(
            "partitions",
            environment={
                "VIPU_SERVERS": f"{self.vipu.host}:{self.vipu.port}:{_LABEL}={_VALUE}",
                "VIPU_COMMAND": str(command.install(self.cluster.directory / "bin")),
                **(environment or {}),
            },
            arguments=[f"--api-bind-address={HOST}:{self._api_port}"],
        )

    def configuration_of(self, pod: Mapping[str, Any]) -> str:
        """Request a pod's partition as its init container does; return the configuration. Raises RehearsalError."""
        metadata = pod["metadata"]
        folder = self.cluster.directory / "pods" / metadata["uid"]
        folder.mkdir(parents=True, exist_ok=True)
        token, file = folder / "token", folder / names.CONFIG_FILE
        token.write_text(self._token_of(pod), encoding="ascii")
        done = subprocess.run(
            [
                sys.executable, "-m", "provisioner", "partitions", "get",
                f"--server=http://{HOST}:{self._api_port}", f"--file={file}", f"--token-file={token}",
                f"--timeout={_GET_SECONDS}",
            ],
            env={
                **os.environ,
                names.NAMESPACE_VARIABLE: metadata["namespace"],
                names.POD_VARIABLE: metadata["name"],
                names.UID_VARIABLE: metadata["uid"],
                names.SIZE_VARIABLE: metadata["annotations"][names.IPUS],
            },
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        token.unlink()
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise RehearsalError(f"pod {metadata['namespace']}/{metadata['name']} got no configuration: {said}")
        text: str = file.read_text(encoding="utf-8")
        return text

    def ledger(self) -> dict[str, Any]:
        """Return the entries of the ledger by partition ID."""
        path = collection_path("configmaps", namespace=constants.DEFAULT_NAMESPACE)
        found = self.objects(path, fieldSelector=f"metadata.name={names.LEDGER_CONFIGMAP_NAME}")
        return {key: json.loads(text) for key, text in (found[0].get("data") or {}).items()} if found else {}

    def _token_of(self, pod: Mapping[str, Any]) -> str:
        """Return a token of the pod's ServiceAccount, bound to the pod, like the token that the kubelet mounts."""
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [names.AUDIENCE],
                "expirationSeconds": _TOKEN_SECONDS,
                "boundObjectRef": {
                    "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"],
                },
            },
        }  # fmt: skip
        path = object_path("serviceaccounts", account, namespace=metadata["namespace"])
        return str(self.api.post(f"{path}/token", request)["status"]["token"])


def _host(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {_LABEL: _VALUE}},
        "status": {"capacity": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    }


def _service(port: int) -> dict[str, Any]:
    """Return a Service that resolves to this machine. The webhook's certificate is for the Service's name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _WEBHOOK, "namespace": constants.DEFAULT_NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }


def _registration(port: int) -> dict[str, Any]:
    """Return the registration of the component webhook-partitions, but only for creates of pods."""
    hook = {
        "name": "partitions.tpu-provisioner.cloud.google.com",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {
                "name": _WEBHOOK, "namespace": constants.DEFAULT_NAMESPACE, "port": port, "path": "/mutate/partitions",
            }
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "matchConditions": [
            {
                "name": "asks-for-ipus",
                "expression": f'"{names.IPUS}" in object.metadata.?annotations.orValue({{}})',
            }
        ],
    }  # fmt: skip
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": _WEBHOOK},
        "webhooks": [hook],
    }


_ENDED = {"Succeeded": "has succeeded", "Failed": "has failed"}


@dataclass(slots=True, kw_only=True)
class PodTimes(Times):
    """Time at which a pod first reached each step, in seconds of the story's clock."""

    ipus: str
    partition: str = ""


class PartitionStory:
    """Yields the changes of pods and partitions since the last `advance`."""

    def __init__(self, rehearsal: PartitionRehearsal, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rehearsal = rehearsal
        self._clock = clock
        self._listed: dict[str, str] = {}
        self._waits: set[tuple[str, str]] = set()
        #: Times of the pods by UID.
        self.pods: dict[str, PodTimes] = {}
        #: UIDs of the pods that have requested their configuration, or have ended before.
        self._served: set[str] = set()
        self.failed: list[str] = []

    @property
    def unfinished(self) -> list[str]:
        """Names of the pods that have not ended."""
        return [pod.name for pod in self.pods.values() if "ended" not in pod.entered]

    def advance(self) -> Iterator[str]:
        """Check for changes; yield a line for each."""
        # List partitions before pods, so that a pod's end is shown before the removal of its partition.
        listed = {partition.id: partition.state for partition in self._rehearsal.vipu.partitions}
        for raw in self._rehearsal.objects(collection_path("pods"), labelSelector=names.POD_LABEL):
            yield from self._pod(raw)
        by_partition = {pod.partition: pod for pod in self.pods.values() if pod.partition}
        for partition_id, state in listed.items():
            if self._listed.get(partition_id) != state:
                yield f"partition {partition_id}: {state}"
        for partition_id in self._listed.keys() - listed.keys():
            yield f"partition {partition_id} is removed"
            if partition_id in by_partition:
                self._enter(by_partition[partition_id], "released")
        self._listed = listed
        yield from self._events()

    def _pod(self, raw: Mapping[str, Any]) -> Iterator[str]:
        metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
        title = f"pod {metadata['namespace']}/{metadata['name']}"
        times = self.pods.get(metadata["uid"])
        if times is None:
            asked = metadata["annotations"].get(names.IPUS, "?")
            times = self.pods[metadata["uid"]] = PodTimes(
                name=f"{metadata['namespace']}/{metadata['name']}", ipus=asked
            )
            self._enter(times, "created")
            yield f"{title} asks for {asked} IPUs, and is held back from the scheduler"
        gates = {gate["name"] for gate in spec.get("schedulingGates") or []}
        if names.SCHEDULING_GATE not in gates and self._enter(times, "opened"):
            times.partition = metadata["annotations"][names.PARTITION_ID]
            nodes = ", ".join(f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items())
            yield f"{title} is released to the scheduler with partition {times.partition}, for nodes with {nodes}"
        if status.get("phase") == "Running" and self._enter(times, "running"):
            yield f"{title} runs on {spec.get('nodeName')}"
        if metadata["uid"] not in self._served and spec.get("nodeName"):
            self._served.add(metadata["uid"])
            if status.get("phase") not in _ENDED:
                configuration = self._rehearsal.configuration_of(raw)
                self._enter(times, "configured")
                yield f"{title} has its IPUoF configuration, {len(configuration)} characters"
        phase = status.get("phase")
        if phase in _ENDED and self._enter(times, "ended"):
            yield f"{title} {_ENDED[phase]}"
            if phase == "Failed":
                self.failed.append(times.name)

    def _events(self) -> Iterator[str]:
        """Yield the reasons why pods wait, each reason once per pod."""
        query = {"fieldSelector": "reason=PartitionWaiting"}
        for raw in self._rehearsal.objects(collection_path("events", root="/apis/events.k8s.io/v1"), **query):
            about, note = raw.get("regarding", {}), raw.get("note", "")
            if about.get("uid") in self.pods and (about["uid"], note) not in self._waits:
                self._waits.add((about["uid"], note))
                yield f"pod {about['namespace']}/{about['name']} waits: {note}"

    def _enter(self, times: PodTimes, step: str) -> bool:
        return times.enter(step, self._clock())
