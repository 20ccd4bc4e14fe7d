"""What the nodes of a TPUNodeGroup will look like. Pure.

They carry the labels of GKE's nodes that workloads select by or are kept apart by, so that manifests for GKE work
unchanged; above all that of the node pool, which is also how the provisioner knows whose a node is. Kubelets register
with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from provisioner import constants, tpu
from provisioner.model.capacity import CapacityKind, NodePool
from provisioner.model.choices import reservation_parts
from provisioner.model.fit import NodeView
from provisioner.settings import region_of
from provisioner.slices.suppliers.nodes import CHIP_TAINT

_GIB = 1024**3
_OF_CAPACITY: Mapping[CapacityKind, Mapping[str, str]] = {
    CapacityKind.ON_DEMAND: {constants.PROVISIONING: "standard"},
    CapacityKind.RESERVATION: {constants.PROVISIONING: "standard", constants.RESERVATION_AFFINITY: "specific"},
    CapacityKind.SPOT: {constants.PROVISIONING: "spot", constants.SPOT: "true"},
    CapacityKind.FLEX_START: {constants.PROVISIONING: "flex-start", constants.FLEX_START: "true"},
}
#: In the order of a reservation's parts.
_OF_RESERVATION = (
    constants.RESERVATION_PROJECT,
    constants.RESERVATION_NAME,
    constants.RESERVATION_BLOCK,
    constants.RESERVATION_SUB_BLOCK,
)
#: What the kubelet says of itself.
_OF_KUBELET = {constants.OS: "linux", constants.ARCH: "amd64"}
#: Labels that follow from the rest of a group: they are not what it was asked to carry.
DERIVED = frozenset(
    {
        constants.NODE_POOL,
        constants.TPU_ACCELERATOR,
        constants.TPU_TOPOLOGY,
        constants.ACCELERATOR_COUNT,
        constants.ZONE,
        constants.GKE_ZONE,
        constants.REGION,
        *(key for labels in _OF_CAPACITY.values() for key in labels),
        *_OF_RESERVATION,
    }
)


def derived_labels(pool: NodePool) -> dict[str, str]:
    """Return the labels that its nodes carry beside those that the pool was asked for."""
    labels = {constants.NODE_POOL: pool.name, **_OF_CAPACITY.get(pool.capacity, {})}
    known = tpu.machine_type(pool.machine_type)
    if known is not None:
        accelerator, machine = known
        labels[constants.TPU_ACCELERATOR] = accelerator.label
        labels[constants.ACCELERATOR_COUNT] = str(machine.chips)
        labels[constants.TPU_TOPOLOGY] = pool.topology
    for zone in pool.zones:
        labels |= {constants.ZONE: zone, constants.GKE_ZONE: zone, constants.REGION: region_of(zone)}
    if pool.reservation:
        parts = zip(_OF_RESERVATION, reservation_parts(pool.reservation), strict=True)
        labels |= {label: name for label, name in parts if name}
    return labels


def expected_node(pool: NodePool) -> NodeView:
    """Predict how the scheduler will see a node of a pool.

    CPU and memory are the machine's own: what the system keeps of them is known only once nodes are there.
    """
    known = tpu.machine_type(pool.machine_type)
    if known is None:
        return NodeView(labels=pool.labels, taints=pool.taints, chips=0, cpu_millicores=0, memory_bytes=0)
    _, machine = known
    taints = tuple(taint for taint in pool.taints if taint.key not in constants.HELD_KEYS)
    return NodeView(
        labels={**_OF_KUBELET, **pool.labels, **derived_labels(pool)},
        taints=tuple(dict.fromkeys((*taints, CHIP_TAINT))),
        predicted=True,
        chips=machine.chips,
        cpu_millicores=machine.vcpus * 1000,
        memory_bytes=machine.memory_gib * _GIB,
    )
