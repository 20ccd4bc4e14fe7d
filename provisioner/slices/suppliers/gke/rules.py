"""Rules of GKE's node pools for planning, and predictions of their nodes. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from provisioner import constants, tpu
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest
from provisioner.settings import Settings, node_fields
from provisioner.settings.forms import region_of
from provisioner.slices.demand import Slice
from provisioner.slices.supplier import PoolRules, UnmeetableError
from provisioner.slices.suppliers import nodes

_WORKLOAD_POLICY_PREFIX = "tpu-provisioner-"


def _labels(pool: NodePool, accelerator: tpu.Accelerator, machine: tpu.MachineType) -> dict[str, str]:
    labels = {
        **pool.labels,
        constants.NODE_POOL: pool.name,
        **nodes.machine_labels(pool, accelerator, machine),
        constants.BETA_INSTANCE_TYPE: machine.name,
        constants.OS: "linux",
        constants.BETA_OS: "linux",
        constants.OS_DISTRIBUTION: pool.node.get("node_image_type", "cos").partition("_")[0],
        constants.CONTAINER_RUNTIME: "containerd",
        constants.METADATA_SERVER: "true",
        **nodes.CAPACITY_LABELS[pool.capacity],
        **nodes.reservation_labels(pool),
    }
    if machine.arch:
        labels |= dict.fromkeys((constants.ARCH, constants.BETA_ARCH), machine.arch)
    if "node_disk_type" in pool.node:
        labels[constants.BOOT_DISK] = pool.node["node_disk_type"]
    if "node_sandbox" in pool.node:
        labels[constants.SANDBOX_RUNTIME] = pool.node["node_sandbox"]
    if pool.node.get("node_private"):
        labels[constants.PRIVATE_NODE] = "true"
    if pool.zones:
        labels |= dict.fromkeys(constants.ZONE_LABELS, str(pool.zones[0]))
        labels |= dict.fromkeys((constants.REGION, constants.BETA_REGION), region_of(pool.zones[0]))
    if pool.policy_name:
        labels[constants.PLACEMENT_POLICY] = pool.policy_name
    return labels


def _offer(pool: NodePool, machine: tpu.MachineType) -> tuple[int, int, Mapping[str, int]]:
    """Return the allocatable resources of a node by GKE's formula, in the form of `offer` in `nodes.expected_node`."""
    disk_gb, max_pods = node_fields.boot_disk_gb(pool.node), pool.node.get("max_pods_per_node", 0)
    offered = tpu.allocatable(machine, disk_gb=disk_gb, max_pods=max_pods)
    pages = node_fields.huge_pages_bytes(pool.node)
    other_bytes = {"ephemeral-storage": offered.ephemeral_bytes, **pages}
    return offered.cpu_millicores, offered.memory_bytes - sum(pages.values()), other_bytes


def _complete(request: NodePoolRequest, slice_: Slice, shape: tpu.Shape, settings: Settings) -> NodePoolRequest:
    policy_name, placed = "", str(shape.topology) if shape.multi_host or settings.single_host_placement else ""
    default_policy = f"{_WORKLOAD_POLICY_PREFIX}{shape.topology}"
    selector = slice_.requirements.node_selector
    if shape.accelerator.workload_policy and shape.multi_host:
        policy_name, placed = selector.get(constants.PLACEMENT_POLICY) or default_policy, ""
    completed = nodes.complete(request, slice_, shape, settings, gke=True)
    # Nodes have the following labels only if the request for the pool has them.
    labels = {**completed.labels}
    if request.reservation:
        labels[constants.RESERVATION_AFFINITY] = "specific"
    if constants.NETWORK_PROFILE in selector:
        labels[constants.NETWORKING_DRA_DRIVER] = "true"
    if policy_name not in ("", default_policy):
        labels[constants.POOL_TOPOLOGY] = request.topology
    flex_start = completed.capacity is CapacityKind.FLEX_START
    if flex_start and any(taint.key == constants.JOB_TAINT for taint in completed.taints):
        # GKE's cluster autoscaler adds nodes only for pods that fit the pool's template, which lacks NAMESPACED_JOB.
        raise UnmeetableError(
            f"GKE adds no flex-start nodes for pods that select {constants.NAMESPACED_JOB}: nodes get this label "
            f"after they exist",
            f"remove the annotation {constants.NODE_SELECTOR_STRATEGY}, or choose other capacity",
        )
    return replace(
        completed,
        labels=labels,
        placement_topology=placed,
        policy_name=policy_name,
        auto_upgrade=bool(settings.auto_upgrade),
    )


def slice_topology(*, placement_topology: str, labels: Mapping[str, str], policy_name: str, machine_type: str) -> str:
    """Return the topology of a pool's slice; empty if the topology is unknown."""
    if placement_topology:
        return placement_topology
    if constants.POOL_TOPOLOGY in labels:
        return labels[constants.POOL_TOPOLOGY]
    if policy_name.startswith(_WORKLOAD_POLICY_PREFIX):
        return policy_name.removeprefix(_WORKLOAD_POLICY_PREFIX)
    return nodes.topology_of_machine(machine_type)


GKE_RULES = PoolRules(
    supplier_name="GKE",
    idle_seconds=60.0,
    requestable_labels=frozenset(
        {
            constants.ICI_RESILIENCY,
            constants.LOCATION_HINT,
            constants.COLLECTION,
            constants.WORKLOAD_TYPE,
            constants.NETWORK_PROFILE,
            constants.TPU_DRA_DRIVER,
        }
    ),
    copyable=frozenset({constants.AUTO_RESTART}),
    flex_start_needs_pods=True,
    complete=_complete,
    expected_node=lambda pool: nodes.expected_node(pool, _labels, _offer),
)
