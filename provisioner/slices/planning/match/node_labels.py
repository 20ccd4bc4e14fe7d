"""Which labels the nodes of a pool will carry: those that are predicted, those that are missing for sure, and others.

Of labels that belong to Google or Kubernetes GKE sets more than anybody lists. One that is neither predicted nor known
to be missing may be there: whoever selects it probably saw it on a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePool, Zone
from provisioner.model.choices import reservation_parts
from provisioner.settings import region_of
from provisioner.tpu import MachineType

#: Labels that GKE puts on nodes by how they were had.
_CAPACITY_LABELS: Mapping[CapacityKind, Mapping[str, str]] = {
    CapacityKind.ON_DEMAND: {constants.PROVISIONING: "standard"},
    CapacityKind.RESERVATION: {constants.PROVISIONING: "standard"},
    CapacityKind.SPOT: {constants.PROVISIONING: "spot", constants.SPOT: "true"},
    CapacityKind.FLEX_START: {constants.PROVISIONING: "flex-start", constants.FLEX_START: "true"},
    # What gke-provisioning says of queued nodes is documented nowhere; whoever made the pool labelled it.
    CapacityKind.QUEUED: {},
}
#: The node labels that tell a reservation, in the order of its parts.
_RESERVATION_LABELS = (
    constants.RESERVATION_PROJECT,
    constants.RESERVATION_NAME,
    constants.RESERVATION_BLOCK,
    constants.RESERVATION_SUB_BLOCK,
)
#: What GKE sets, or leaves out, in ways that are known: a node that is not predicted to carry one does not.
_KNOWN = frozenset(
    {
        constants.NODE_POOL,
        constants.TPU_ACCELERATOR,
        constants.TPU_TOPOLOGY,
        constants.ACCELERATOR_COUNT,
        constants.GPU_ACCELERATOR,
        constants.SPOT,
        constants.PREEMPTIBLE,
        constants.FLEX_START,
        constants.QUEUED,
        constants.MAX_RUN_SECONDS,
        constants.PLACEMENT_POLICY,
        constants.RESERVATION_AFFINITY,
        *_RESERVATION_LABELS,
        # Set only where the creator of the pool asks for it.
        constants.ICI_RESILIENCY,
        constants.LOCATION_HINT,
        constants.AUTO_RESTART,
        constants.COMPUTE_CLASS,
        # The name of one node, which a new one does not have.
        constants.HOSTNAME,
    }
)
#: Nobody but the provisioner sets labels that begin so.
_OURS = ("google.com/tpu-provisioner-", "tpu-provisioner.cloud.google.com/", constants.NODEPOOL_MANAGER)


def predicted(pool: NodePool, accelerator: str, machine: MachineType, topology: str) -> dict[str, str]:
    """Return the labels that the nodes of a pool will carry as far as they are known."""
    zone = pool.zones[0] if pool.zones else None
    kind = _of_kind(
        accelerator, machine.name, machine.chips, topology, pool.disk_type, zone, pool.capacity, pool.policy_name
    )
    labels = {**pool.labels, constants.NODE_POOL: pool.name, **kind}
    if pool.reservation:
        parts = zip(_RESERVATION_LABELS, reservation_parts(pool.reservation), strict=True)
        labels |= {label: name for label, name in parts if name}
    return labels


@lru_cache(maxsize=1024)
def _of_kind(
    accelerator: str,
    machine_type: str,
    chips: int,
    topology: str,
    disk_type: str,
    zone: Zone | None,
    capacity: CapacityKind,
    policy_name: str,
) -> Mapping[str, str]:
    """Return the labels that all pools of one kind have in common."""
    labels = {
        constants.TPU_ACCELERATOR: accelerator,
        constants.TPU_TOPOLOGY: topology,
        constants.ACCELERATOR_COUNT: str(chips),
        constants.INSTANCE_TYPE: machine_type,
        constants.BETA_INSTANCE_TYPE: machine_type,
        constants.MACHINE_FAMILY: machine_type.partition("-")[0],
        constants.OS: "linux",
        constants.BETA_OS: "linux",
        constants.ARCH: "amd64",
        constants.BETA_ARCH: "amd64",
        constants.OS_DISTRIBUTION: "cos",
        constants.CONTAINER_RUNTIME: "containerd",
        constants.METADATA_SERVER: "true",
    }
    if disk_type:
        labels[constants.BOOT_DISK] = disk_type
    if zone is not None:
        labels |= dict.fromkeys(constants.ZONE_LABELS, str(zone))
        labels |= dict.fromkeys((constants.REGION, constants.BETA_REGION), region_of(zone))
    labels |= _CAPACITY_LABELS[capacity]
    if policy_name:
        labels[constants.PLACEMENT_POLICY] = policy_name
    return labels


@lru_cache(maxsize=4096)
def is_system(key: str) -> bool:
    """Whether a label belongs to Google or Kubernetes."""
    prefix, separator, _ = key.rpartition("/")
    return bool(separator) and any(
        prefix == domain or prefix.endswith(f".{domain}") for domain in constants.SYSTEM_LABEL_DOMAINS
    )


@lru_cache(maxsize=4096)
def may_be_there(key: str) -> bool:
    """Whether a node may carry a label although it is not predicted."""
    return key not in _KNOWN and is_system(key) and not key.startswith(_OURS)
