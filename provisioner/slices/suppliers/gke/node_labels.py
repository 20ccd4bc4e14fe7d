"""What the nodes of a pool on GKE will look like: the labels and taints that GKE adds, and what they offer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from provisioner import constants, tpu
from provisioner.model.capacity import CapacityKind, NodePool, Zone
from provisioner.model.choices import reservation_parts
from provisioner.model.fit import NodeView
from provisioner.settings import region_of
from provisioner.slices.suppliers.nodes import CHIP_TAINT, SPOT_TAINT
from provisioner.tpu import MachineType

_GIB = 1024**3
_CAPACITY_TAINTS = {CapacityKind.SPOT: (SPOT_TAINT,)}
#: Labels that GKE puts on nodes by how they were had.
_CAPACITY_LABELS: Mapping[CapacityKind, Mapping[str, str]] = {
    CapacityKind.ON_DEMAND: {constants.PROVISIONING: "standard"},
    CapacityKind.RESERVATION: {constants.PROVISIONING: "standard"},
    CapacityKind.SPOT: {constants.PROVISIONING: "spot", constants.SPOT: "true"},
    CapacityKind.FLEX_START: {constants.PROVISIONING: "flex-start", constants.FLEX_START: "true"},
}
#: The node labels that tell a reservation, in the order of its parts.
_RESERVATION_LABELS = (
    constants.RESERVATION_PROJECT,
    constants.RESERVATION_NAME,
    constants.RESERVATION_BLOCK,
    constants.RESERVATION_SUB_BLOCK,
)


# A tuple: it is hashed for every pool, in every round.
class _Kind(NamedTuple):
    """What the labels follow from that pools have in common."""

    accelerator: str
    machine_type: str
    chips: int
    topology: str
    disk_type: str
    zone: Zone | None
    capacity: CapacityKind
    policy_name: str


def expected_node(pool: NodePool) -> NodeView:
    """Predict how the scheduler will see a node of a pool.

    CPU and memory are the machine's own: what the system keeps of them is known only once nodes are there.
    """
    known = tpu.machine_type(pool.machine_type)
    if known is None:
        return NodeView(labels=pool.labels, taints=pool.taints, chips=0, cpu_millicores=0, memory_bytes=0)
    accelerator, machine = known
    added = (CHIP_TAINT, *_CAPACITY_TAINTS.get(pool.capacity, ()))
    taints = tuple(taint for taint in pool.taints if taint.key not in constants.HELD_KEYS)
    return NodeView(
        labels=_labels(pool, accelerator.label, machine),
        taints=tuple(dict.fromkeys((*taints, *added))),
        predicted=True,
        chips=machine.chips,
        cpu_millicores=machine.vcpus * 1000,
        memory_bytes=machine.memory_gib * _GIB,
    )


def _labels(pool: NodePool, accelerator: str, machine: MachineType) -> dict[str, str]:
    """Return the labels that the nodes of a pool will carry as far as they are known."""
    zone = pool.zones[0] if pool.zones else None
    kind = _Kind(
        accelerator=accelerator,
        machine_type=machine.name,
        chips=machine.chips,
        topology=pool.topology,
        disk_type=pool.disk_type,
        zone=zone,
        capacity=pool.capacity,
        policy_name=pool.policy_name,
    )
    labels = {**pool.labels, constants.NODE_POOL: pool.name, **_of_kind(kind)}
    if pool.reservation:
        parts = zip(_RESERVATION_LABELS, reservation_parts(pool.reservation), strict=True)
        labels |= {label: name for label, name in parts if name}
    return labels


@lru_cache(maxsize=1024)
def _of_kind(kind: _Kind) -> Mapping[str, str]:
    """Return the labels that all pools of one kind have in common."""
    labels = {
        constants.TPU_ACCELERATOR: kind.accelerator,
        constants.TPU_TOPOLOGY: kind.topology,
        constants.ACCELERATOR_COUNT: str(kind.chips),
        constants.INSTANCE_TYPE: kind.machine_type,
        constants.BETA_INSTANCE_TYPE: kind.machine_type,
        constants.MACHINE_FAMILY: kind.machine_type.partition("-")[0],
        constants.OS: "linux",
        constants.BETA_OS: "linux",
        constants.ARCH: "amd64",
        constants.BETA_ARCH: "amd64",
        constants.OS_DISTRIBUTION: "cos",
        constants.CONTAINER_RUNTIME: "containerd",
        constants.METADATA_SERVER: "true",
    }
    if kind.disk_type:
        labels[constants.BOOT_DISK] = kind.disk_type
    if kind.zone is not None:
        labels |= dict.fromkeys(constants.ZONE_LABELS, str(kind.zone))
        labels |= dict.fromkeys((constants.REGION, constants.BETA_REGION), region_of(kind.zone))
    labels |= _CAPACITY_LABELS[kind.capacity]
    if kind.policy_name:
        labels[constants.PLACEMENT_POLICY] = kind.policy_name
    return labels
