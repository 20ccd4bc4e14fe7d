"""The DaemonSet of the device plugin, which reports the chips of TPU nodes to the kubelet. Pure.

Its name and configuration, ServiceAccount and roles are gke-labs/tpu-operator's. Its version is a hash of the whole
manifest, so that it is applied again when a release or a setting changes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from provisioner.nodegroups.api import names

NAMESPACE = "kube-system"
NAME = "tpu-device-plugin"
#: Annotation of the DaemonSet: version of the manifest that it was applied from.
VERSION = "tpu-provisioner.cloud.google.com/device-plugin-version"
_SERVICE_ACCOUNT = "tpu-device-plugin-sa"
_LABELS = {"k8s-app": NAME}
_LOG = "/tmp/tpu_logs/tpu_driver.INFO"  # noqa: S108 - the driver writes it there
_HASH_DIGITS = 16

_HOST_PATHS = {
    "device-plugin": "/var/lib/kubelet/device-plugins",
    "dev": "/dev",
    "pod-resources": "/var/lib/kubelet/pod-resources",
    "tpu-logs": "/tmp/tpu_logs",  # noqa: S108 - as above
    "tpu-plugin-run": "/var/run/tpu-plugin",
}


def manifest(plugin: str, *, agent: str = "", log: str = "") -> dict[str, Any]:
    """Return the DaemonSet with these images; an annotation has its version.

    The optional agent controls the links between chips. The optional log image (shell, `tail`) prints the driver's log.
    """
    made = _manifest(plugin, agent, log)
    text = json.dumps(made, sort_keys=True, separators=(",", ":"))
    made["metadata"]["annotations"] = {VERSION: hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}
    return made


def version_of(daemon_set: Mapping[str, Any]) -> str:
    """Return the version of a manifest."""
    return str(daemon_set["metadata"]["annotations"][VERSION])


def _manifest(plugin: str, agent: str, log: str) -> dict[str, Any]:
    optional = ((log, _log), (agent, _agent))
    pod = {
        "hostNetwork": True,
        "priorityClassName": "system-node-critical",
        "serviceAccountName": _SERVICE_ACCOUNT,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": names.ACCELERATOR, "operator": "Exists"}]}]
                }
            }
        },
        "tolerations": [{"operator": "Exists", "effect": effect} for effect in ("NoExecute", "NoSchedule")],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, path in _HOST_PATHS.items()
        ],
        "containers": [_plugin(plugin), *(make(image) for image, make in optional if image)],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": dict(_LABELS)},
        "spec": {
            "selector": {"matchLabels": dict(_LABELS)},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
        },
    }


def _plugin(image: str) -> dict[str, Any]:
    of_pod = {
        "NODE_NAME": "spec.nodeName",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_NAME": "metadata.name",
        "NODE_IP": "status.hostIP",
    }
    return {
        "name": NAME,
        "image": image,
        "command": ["/usr/bin/tpu-device-plugin"],
        "args": [
            "--logtostderr",
            # Both are collections of metrics for GKE only.
            "--enable-runtime-metrics=false",
            "--enable-host-metrics=false",
            "--enable-vbar-uds",
            # The subslice application would read values from the metadata server that only GKE writes.
            "--enable-subslice-application=false",
        ],
        "env": [
            {"name": "CONTAINER_NAME", "value": NAME},
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in of_pod.items()),
        ],
        "resources": _resources(cpu="80m", memory="80Mi"),
        "securityContext": {"privileged": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumeMounts": [
            {"name": "device-plugin", "mountPath": "/device-plugin"},
            *_mounted("dev", "pod-resources", "tpu-logs", "tpu-plugin-run"),
        ],
    }


def _log(image: str) -> dict[str, Any]:
    return {
        "name": "sidecar-log-collector",
        "image": image,
        "command": ["/bin/sh", "-c", f"tail -n+1 -F {_LOG}"],
        "resources": _resources(cpu="20m", memory="20Mi"),
        "securityContext": {
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{**mount, "readOnly": True} for mount in _mounted("tpu-logs")],
    }


def _agent(image: str) -> dict[str, Any]:
    return {
        "name": "vbar-control-agent",
        "image": image,
        "command": ["vbar_control_agent_files/bin/vbar_control_agent"],
        "args": ["--logtostderr", "--census_enabled=false", "--gid=", "--uid=", "--chroot="],
        "env": [{"name": name, "value": "true"} for name in ("TPU_SKIP_MDS_QUERY", "TPU_ON_GKE")],
        "resources": _resources(cpu="10m", memory="150Mi"),
        "securityContext": {
            "privileged": True,
            "readOnlyRootFilesystem": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": _mounted("tpu-plugin-run"),
    }


def _resources(*, cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


def _mounted(*volumes: str) -> list[dict[str, Any]]:
    """Mount volumes at their path on the host."""
    return [{"name": name, "mountPath": _HOST_PATHS[name]} for name in volumes]
