"""Creates the objects that a kubelet sends to the API server: Node, status of the Node, Lease. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rehearsal.simulators.compute.guests.startup import Invitation, provider_id
from rehearsal.simulators.compute.records import MachineView
from rehearsal.simulators.machines import find_machine

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 40
#: Label that the DaemonSet of the device plugin selects.
ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"

#: Annotation of Nodes with their own simulated kubelet, which other simulators, such as kwok, leave alone.
OWN_KUBELET = "rehearsal.tpu-provisioner.cloud.google.com/own-kubelet"

_CHIPS = "google.com/tpu"
_PODS = "110"
_DISK = "100Gi"
#: Memory in KiB that a kubelet keeps free by evicting pods.
_EVICTION_KIB = 100 * 1024
_PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The condition Ready, the time of its last change, and the number of chips for pods."""

    status: str
    reason: str
    message: str
    since: datetime
    started: datetime
    chips: int = 0
    #: Number of chips while the device plugin last worked. It remains the capacity if the plugin fails.
    seen_chips: int = 0


def starting(now: datetime) -> Readiness:
    """Return the state of a kubelet that has just started."""
    message = "container runtime network not ready: cni plugin not initialized"
    return Readiness(status="False", reason="KubeletNotReady", message=message, since=now, started=now)


def ready(before: Readiness, now: datetime) -> Readiness:
    """Return the state of a kubelet that accepts pods."""
    if before.status == "True":
        return before
    message = "kubelet is posting ready status"
    return replace(before, status="True", reason="KubeletReady", message=message, since=now)


def shutting_down(before: Readiness, now: datetime) -> Readiness:
    """Return the state of a kubelet whose machine shuts down in order."""
    return replace(before, status="False", reason="KubeletNotReady", message="node is shutting down", since=now)


def node_body(machine: MachineView, invitation: Invitation, readiness: Readiness, now: datetime) -> dict[str, Any]:
    """Return the Node as a kubelet registers it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": machine.name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": machine.name,
                "kubernetes.io/os": "linux",
                **invitation.labels,
            },
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true", OWN_KUBELET: "true"},
        },
        "spec": {
            "providerID": provider_id(machine),
            "taints": [
                {"key": key, "value": value, "effect": effect}
                for key, value, effect in ((_CHIPS, "present", "NoSchedule"), *invitation.taints)
            ],
        },
        "status": status_of(machine, invitation, readiness, now),
    }


def status_of(machine: MachineView, invitation: Invitation, readiness: Readiness, now: datetime) -> dict[str, Any]:
    """Return the status of a Node. As a strategic merge patch, it does not change fields of other clients."""
    kind = find_machine(machine.machine_type)
    cpu = str(kind.vcpus) if kind is not None else "4"
    kib = int(kind.memory_gib * 1024 * 1024) if kind is not None else 16 * 1024 * 1024
    shared = {"cpu": cpu, "ephemeral-storage": _DISK, "pods": _PODS}
    capacity = {**shared, "memory": f"{kib}Ki"}
    allocatable = {**shared, "memory": f"{kib - _EVICTION_KIB}Ki"}
    if readiness.seen_chips:
        capacity[_CHIPS], allocatable[_CHIPS] = str(readiness.seen_chips), str(readiness.chips)
    return {
        "capacity": capacity,
        "allocatable": allocatable,
        "addresses": [
            {"type": "InternalIP", "address": machine.address},
            {"type": "Hostname", "address": machine.name},
        ],
        "conditions": _conditions(readiness, now),
        "nodeInfo": _node_info(machine, invitation),
    }


def lease_body(machine: MachineView, now: datetime) -> dict[str, Any]:
    """Return the Lease with which a kubelet shows that it is alive."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": machine.name, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": machine.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def _conditions(readiness: Readiness, now: datetime) -> list[dict[str, str]]:
    heard, since = _time(now), _time(readiness.since)
    own = {"type": "Ready", "status": readiness.status, "reason": readiness.reason, "message": readiness.message}
    found = [{**own, "lastHeartbeatTime": heard, "lastTransitionTime": since}]
    for name, (reason, message) in _PRESSURES.items():
        entry = {"type": name, "status": "False", "reason": reason, "message": message}
        found.append({**entry, "lastHeartbeatTime": heard, "lastTransitionTime": _time(readiness.started)})
    return found


def _node_info(machine: MachineView, invitation: Invitation) -> dict[str, str]:
    version, machine_id = f"v{invitation.kubernetes_version}.0", f"{machine.number:032x}"
    return {
        "architecture": "amd64",
        "bootID": f"{machine_id[:-4]}{machine.boots:04x}",
        "containerRuntimeVersion": "containerd://2.0.6",
        "kernelVersion": "6.8.0",
        "kubeProxyVersion": "",
        "kubeletVersion": version,
        "machineID": machine_id,
        "operatingSystem": "linux",
        "osImage": "Ubuntu 24.04 LTS",
        "systemUUID": machine_id,
    }


def _time(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
