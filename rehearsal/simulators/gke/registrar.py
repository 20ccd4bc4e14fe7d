"""Creates and deletes the cluster's Node objects as the model requires, with a few threads.

Only one thread at a time works on a node, and only the last order for the node counts. Calls are retried while the API
server is down, until the order changes. Nodes that another client deletes are registered again only if the settings
contain a repair time.

Nodes look as GKE's kubelets would register them. If a label of the pool disables the device plugin, the ResourceSlices
of the DRA driver for TPUs are published as well, as by dra-driver-google-tpu 0.2.0.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from provisioner.kube.api import KubeApi
from provisioner.kube.errors import ClusterError, Conflict, NotFound
from provisioner.kube.live import list_all
from rehearsal.simulators.gke import names
from rehearsal.simulators.gke.capacity import reservation_of, reservation_parts
from rehearsal.simulators.gke.model import World
from rehearsal.simulators.gke.records import Pool, SimulatedNode
from rehearsal.simulators.http import google
from rehearsal.simulators.machines import Machine, resources_of

_log = structlog.get_logger(__name__)

_THREADS = 8
_FIRST_BACKOFF_SECONDS = 0.1
_LAST_BACKOFF_SECONDS = 2.0
_REPAIR_LOOK_SECONDS = 1.0
_NODES = "/api/v1/nodes"


#: Annotation of simulated Nodes; the value identifies the process of the simulator that created the Node.
MARKER = "tpu-provisioner.cloud.google.com/simulated-by"

POOL_LABEL = "cloud.google.com/gke-nodepool"
#: Annotation in which GKE records the labels that it applied; GKE applies them again only when a node boots.
_APPLIED_LABELS = "node.gke.io/last-applied-node-labels"
_CHIPS = "google.com/tpu"
_DRIVER_LABEL = "cloud.google.com/gke-tpu-dra-driver"
_DRIVER = "tpu.google.com"
_DEVICES = "/apis/resource.k8s.io/v1/resourceslices"
_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
    "NO_EXECUTE": "NoExecute",
}
_DEFAULT_PODS = "110"
#: Label and taint of nodes of GKE Sandbox.
_SANDBOX = "sandbox.gke.io/runtime"


def node_object(pool: Pool, node: SimulatedNode, *, version: str, life: str, ready: bool) -> dict[str, Any]:
    """Return the Node; `ready` adds the condition that a kubelet would report."""
    project = pool.cluster.project
    status: dict[str, Any] = {**_resources(pool, node, version), "nodeInfo": _node_info(node, version)}
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
                "container.googleapis.com/instance_id": str(google.number_of(node.name)),
                _APPLIED_LABELS: _applied_labels(pool, node),
            },
        },
        "spec": {
            "providerID": f"gce://{project}/{node.zone}/{node.name}",
            "taints": _taints(pool),
        },
        "status": status,
    }


def node_labels(pool: Pool, node: SimulatedNode) -> dict[str, str]:
    """Return all labels; labels of the control plane override requested labels."""
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
        "cloud.google.com/gke-os-distribution": config.get("imageType", "cos").lower().partition("_")[0],
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
    if _is_sandboxed(config):
        labels[_SANDBOX] = "gvisor"
    if pool.body.get("networkConfig", {}).get("enablePrivateNodes"):
        labels["cloud.google.com/private-node"] = "true"
    policy = pool.body.get("placementPolicy", {}).get("policyName")
    if policy:
        labels["cloud.google.com/placement-policy-name"] = policy.rpartition("/")[2]
    return labels


def _is_sandboxed(config: Mapping[str, Any]) -> bool:
    return bool(config.get("sandboxConfig", {}).get("type") == "GVISOR")


def _applied_labels(pool: Pool, node: SimulatedNode) -> str:
    """Return the labels that GKE's controller applies; the others come from the kubelet and other controllers."""
    asked_for = pool.body.get("config", {}).get("labels", {})
    labels = node_labels(pool, node).items()
    applied = (f"{key}={value}" for key, value in labels if key in asked_for or key.startswith("cloud.google.com/"))
    return ",".join(sorted(applied))


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
    """Return the labels for the kind of capacity, except for reservation-affinity, which the pool's creator sets."""
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
    if _is_sandboxed(pool.body.get("config", {})):
        taints.append({"key": _SANDBOX, "value": "gvisor", "effect": "NoSchedule"})
    for taint in pool.body.get("config", {}).get("taints", []):
        entry = {"key": taint["key"], "value": taint.get("value", ""), "effect": _EFFECTS[taint["effect"]]}
        if (entry["key"], entry["effect"]) not in {(known["key"], known["effect"]) for known in taints}:
            taints.append(entry)
    return taints


def _max_pods(pool: Pool) -> str:
    pods: str = pool.body.get("maxPodsConstraint", {}).get("maxPodsPerNode", _DEFAULT_PODS)
    return pods


def _resources(pool: Pool, node: SimulatedNode, version: str) -> dict[str, Any]:
    machine = pool.plan.machine
    disk_gib = pool.body.get("config", {}).get("diskSizeGb") or 100
    found = resources_of(machine, version=version, max_pods=int(_max_pods(pool)), disk_gib=disk_gib)
    pages = pool.body.get("config", {}).get("linuxNodeConfig", {}).get("hugepages", {})
    small, large = pages.get("hugepageSize2m", 0), pages.get("hugepageSize1g", 0)
    shared = {"pods": _max_pods(pool), "hugepages-1Gi": f"{large}Gi", "hugepages-2Mi": f"{2 * small}Mi"}
    if node.chips and not _by_driver(pool):
        shared[_CHIPS] = str(node.chips)
    return {
        "capacity": {
            "cpu": str(machine.vcpus),
            "memory": f"{found.memory_capacity_kib}Ki",
            "ephemeral-storage": f"{found.disk_capacity_kib}Ki",
            **shared,
        },
        "allocatable": {
            "cpu": f"{found.milli_cpu}m",
            "memory": f"{found.memory_kib - 2 * 1024 * small - 1024**2 * large}Ki",
            "ephemeral-storage": str(found.disk_bytes),
            **shared,
        },
    }


def _by_driver(pool: Pool) -> bool:
    label: str = pool.body.get("config", {}).get("labels", {}).get(_DRIVER_LABEL, "")
    return label == "true"


def _generation(accelerator: str) -> str:
    generation, *rest = accelerator.removeprefix("tpu-").split("-")
    return generation + ("lite" + "pod" * ("podslice" in rest)) * ("lite" in rest)


def resource_slice(pool: Pool, node: SimulatedNode, *, node_uid: str) -> dict[str, Any]:
    """Return the ResourceSlice of the DRA driver: a device for each chip. It is deleted with the Node."""
    machine = pool.plan.machine
    shared: dict[str, Any] = {
        "uuid": {"string": f"tpu-{uuid.uuid5(uuid.NAMESPACE_DNS, node.name)}"},
        "tpuGen": {"string": _generation(machine.accelerator)},
        "brand": {"string": "Google"},
        "accelerator": {"string": machine.accelerator},
        "chipCount": {"int": machine.chips},
        **({"topology": {"string": pool.plan.topology}} if pool.plan.topology else {}),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{node.name}-{_DRIVER}",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node_uid, "controller": True}
            ],
        },
        "spec": {
            "driver": _DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": str(index), "attributes": {"index": {"int": index}, **shared}} for index in range(node.chips)
            ],
        },
    }


def _node_info(node: SimulatedNode, version: str) -> dict[str, str]:
    machine_id = f"{google.number_of(node.name):032x}"
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


@dataclass(kw_only=True, eq=False)
class _Order:
    """An order to register the pool's node in `wanted`, or, without `wanted`, to delete the node `name`."""

    name: str
    wanted: tuple[Pool, SimulatedNode] | None
    version: int = 0
    registered: bool = False
    busy: bool = False


class Registrar:
    """Registers and removes Nodes by the orders of the model. Implements NodeSink."""

    def __init__(self, api: KubeApi, world: World) -> None:
        self._api = api
        self._world = world
        self._life = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._orders: dict[str, _Order] = {}
        self._queue: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Delete Nodes of earlier processes, and start the threads."""
        self._remove_leftovers()
        targets: list[Callable[[], None]] = [self._work] * _THREADS
        for target in (*targets, self._watch_for_losses):
            thread = threading.Thread(target=target, name="simulator-nodes", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop the threads. Nodes remain in the cluster; the next start deletes them."""
        self._stopping.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._api.close()

    def register(self, pool: Pool, node: SimulatedNode) -> None:
        """Order the registration of a node."""
        self._take(node.name, (pool, node))

    def remove(self, node_name: str) -> None:
        """Order the removal of a node."""
        self._take(node_name, None)

    def _take(self, name: str, wanted: tuple[Pool, SimulatedNode] | None) -> None:
        with self._lock:
            order = self._orders.setdefault(name, _Order(name=name, wanted=wanted))
            order.wanted = wanted
            order.version += 1
            if not order.busy:
                order.busy = True
                self._queue.put(order)

    def _work(self) -> None:
        while (order := self._queue.get()) is not None:
            self._carry_out(order)

    def _carry_out(self, order: _Order) -> None:
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while not self._stopping.is_set():
            with self._lock:
                version, wanted = order.version, order.wanted
            try:
                self._reach(order, wanted)
            except ClusterError as error:
                # Only the first failure of an order is logged, because the retries of all nodes fail in an outage.
                if backoff_seconds == _FIRST_BACKOFF_SECONDS:
                    _log.warning("node.write_failed", node=order.name, error=str(error), status=error.status)
                self._stopping.wait(backoff_seconds)
                backoff_seconds = min(backoff_seconds * 2, _LAST_BACKOFF_SECONDS)
                continue
            # Report before the order is finished, so that the model knows the node when it orders a removal.
            if wanted is not None:
                self._world.node_registered(*wanted)
            with self._lock:
                if order.version == version:
                    order.busy = False
                    if wanted is None:
                        self._orders.pop(order.name, None)
                    return

    def _reach(self, order: _Order, wanted: tuple[Pool, SimulatedNode] | None) -> None:
        if wanted is None:
            self._delete(order.name)
            order.registered = False
            return
        pool, node = wanted
        if order.registered:
            return
        settings = self._world.settings
        made = node_object(pool, node, version=settings.version, life=self._life, ready=settings.ready_nodes)
        try:
            stored = self._api.post(_NODES, made)
        except Conflict:
            # An earlier attempt has created the Node, but its response was lost.
            stored = {}
        if stored.get("status", {}).get("capacity") != made["status"]["capacity"]:
            self._api.patch(f"{_NODES}/{order.name}/status", {"status": made["status"]})
        # The driver publishes devices only if it finds all chips of its machine.
        if _by_driver(pool) and node.chips == pool.plan.machine.chips:
            self._offer(pool, node)
        order.registered = True

    def _offer(self, pool: Pool, node: SimulatedNode) -> None:
        """Publish the node's devices after deleting those of an earlier node with its name, as the driver does."""
        uid = self._api.get(f"{_NODES}/{node.name}")["metadata"]["uid"]
        made = resource_slice(pool, node, node_uid=uid)
        with contextlib.suppress(NotFound):
            self._api.delete(f"{_DEVICES}/{made['metadata']['name']}")
        self._api.post(_DEVICES, made)

    def _remove_leftovers(self) -> None:
        for node in self._nodes():
            if MARKER in node["metadata"].get("annotations", {}):
                self._delete(node["metadata"]["name"])

    def _delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            self._api.delete(f"{_NODES}/{name}")

    def _nodes(self) -> list[dict[str, Any]]:
        return list_all(self._api, _NODES, {"labelSelector": POOL_LABEL}, lambda raw: raw)

    def _watch_for_losses(self) -> None:
        """Report Nodes that another client deleted, while the settings contain a repair time."""
        while not self._stopping.wait(_REPAIR_LOOK_SECONDS):
            if self._world.settings.repair_seconds is None:
                continue
            # The model is read before the list, so that a node registered in between does not count as deleted.
            expected = self._world.registered_nodes()
            try:
                present = {node["metadata"]["name"] for node in self._nodes()}
            except ClusterError as error:
                _log.warning("nodes.list_failed", error=str(error), status=error.status)
                continue
            for pool, node in expected:
                if node.name not in present:
                    self._forget(node.name)
                    self._world.node_vanished(pool, node)

    def _forget(self, name: str) -> None:
        with self._lock:
            order = self._orders.get(name)
            if order is not None:
                order.registered = False
