"""Node objects as GKE's kubelets would register them, made from a pool and one of its VMs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.simulators.gke import names
from rehearsal.simulators.gke.capacity import reservation_of, reservation_parts
from rehearsal.simulators.gke.records import Pool, SimulatedNode
from rehearsal.simulators.machines import Machine, allocatable

MARKER = "tpu-provisioner.cloud.google.com/simulated-by"
"""The annotation that tells a simulated Node, and which life of a simulator made it."""

POOL_LABEL = "cloud.google.com/gke-nodepool"
_CHIPS = "google.com/tpu"
_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
    "NO_EXECUTE": "NoExecute",
}
_DEFAULT_PODS = "110"


def node_object(pool: Pool, node: SimulatedNode, *, version: str, life: str, ready: bool) -> dict[str, Any]:
    """Return the Node; `ready` adds the condition that a kubelet would report."""
    project = pool.cluster.project
    status: dict[str, Any] = {**_resources(pool, node), "nodeInfo": _node_info(node, version)}
    if ready:
        status["conditions"] = [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "kubelet is posting ready status",
            }
        ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": node_labels(pool, node),
            "annotations": {
                MARKER: life,
                "container.googleapis.com/instance_id": str(names.number_of(node.name)),
            },
        },
        "spec": {
            "providerID": f"gce://{project}/{node.zone}/{node.name}",
            "taints": _taints(pool),
        },
        "status": status,
    }


def node_labels(pool: Pool, node: SimulatedNode) -> dict[str, str]:
    """Return all labels; what the control plane sets wins over what was asked for."""
    machine, config = pool.plan.machine, pool.body.get("config", {})
    labels = {
        **config.get("labels", {}),
        POOL_LABEL: pool.name,
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/instance-type": machine.name,
        "beta.kubernetes.io/os": "linux",
        "cloud.google.com/gke-boot-disk": config.get("diskType") or machine.disks[0],
        "cloud.google.com/gke-container-runtime": "containerd",
        "cloud.google.com/gke-max-pods-per-node": _max_pods(pool),
        "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/gke-provisioning": _provisioning(config),
        "cloud.google.com/machine-family": machine.name.partition("-")[0],
        "failure-domain.beta.kubernetes.io/region": names.region_of(node.zone),
        "failure-domain.beta.kubernetes.io/zone": node.zone,
        "iam.gke.io/gke-metadata-server-enabled": "true",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": machine.name,
        "topology.gke.io/zone": node.zone,
        "topology.kubernetes.io/region": names.region_of(node.zone),
        "topology.kubernetes.io/zone": node.zone,
        **_tpu_labels(pool, machine),
        **_capacity_labels(pool.body),
    }
    policy = pool.body.get("placementPolicy", {}).get("policyName")
    if policy:
        labels["cloud.google.com/placement-policy-name"] = policy.rpartition("/")[2]
    return labels


def _tpu_labels(pool: Pool, machine: Machine) -> dict[str, str]:
    if not machine.is_tpu:
        return {}
    labels = {
        "cloud.google.com/gke-tpu-accelerator": machine.accelerator,
        "cloud.google.com/gke-accelerator-count": str(machine.chips),
    }
    if pool.plan.topology:
        labels["cloud.google.com/gke-tpu-topology"] = pool.plan.topology
    return labels


def _provisioning(config: Mapping[str, Any]) -> str:
    for field, name in (("spot", "spot"), ("flexStart", "flex-start"), ("preemptible", "preemptible")):
        if config.get(field):
            return name
    return "standard"


def _capacity_labels(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that tell the terms; reservation-affinity is left to the pool's creator."""
    labels, config = {}, body.get("config", {})
    if config.get("spot"):
        labels["cloud.google.com/gke-spot"] = "true"
    if config.get("flexStart"):
        labels["cloud.google.com/gke-flex-start"] = "true"
    reservation = reservation_of(body)
    if reservation:
        project, name, block, sub_block = reservation_parts(reservation)
        named = {"project": project, "name": name, "blocks": block, "subblocks": sub_block}
        labels |= {f"cloud.google.com/reservation-{key}": value for key, value in named.items() if value}
    return labels


def _taints(pool: Pool) -> list[dict[str, str]]:
    taints = []
    if pool.plan.machine.is_tpu:
        taints.append({"key": _CHIPS, "value": "present", "effect": "NoSchedule"})
    for taint in pool.body.get("config", {}).get("taints", []):
        entry = {"key": taint["key"], "value": taint.get("value", ""), "effect": _EFFECTS[taint["effect"]]}
        if (entry["key"], entry["effect"]) not in {(known["key"], known["effect"]) for known in taints}:
            taints.append(entry)
    return taints


def _max_pods(pool: Pool) -> str:
    pods: str = pool.body.get("maxPodsConstraint", {}).get("maxPodsPerNode", _DEFAULT_PODS)
    return pods


def _resources(pool: Pool, node: SimulatedNode) -> dict[str, Any]:
    machine = pool.plan.machine
    milli_cpu, kib = allocatable(machine)
    disk_gib = pool.body.get("config", {}).get("diskSizeGb") or 100
    shared = {"pods": _max_pods(pool), "hugepages-1Gi": "0", "hugepages-2Mi": "0"}
    if node.chips:
        shared[_CHIPS] = str(node.chips)
    return {
        "capacity": {
            "cpu": str(machine.vcpus),
            "memory": f"{int(machine.memory_gib * 1024 * 1024)}Ki",
            "ephemeral-storage": f"{disk_gib}Gi",
            **shared,
        },
        "allocatable": {
            "cpu": f"{milli_cpu}m",
            "memory": f"{kib}Ki",
            "ephemeral-storage": f"{int(disk_gib * 0.9) - 6}Gi",
            **shared,
        },
    }


def _node_info(node: SimulatedNode, version: str) -> dict[str, str]:
    machine_id = f"{names.number_of(node.name):032x}"
    return {
        "architecture": "amd64",
        "bootID": machine_id,
        "containerRuntimeVersion": "containerd://2.0.6",
        "kernelVersion": "6.6.97+",
        "kubeProxyVersion": f"v{version}",
        "kubeletVersion": f"v{version}",
        "machineID": machine_id,
        "operatingSystem": "linux",
        "osImage": "Container-Optimized OS from Google",
        "systemUUID": machine_id,
    }
