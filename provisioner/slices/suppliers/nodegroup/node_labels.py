"""What the nodes of a TPUNodeGroup will look like. Pure.

They carry the labels of GKE's nodes that workloads select by or are kept apart by, so that manifests for GKE work
unchanged; above all that of the node pool, which is also how the provisioner knows whose a node is. Kubelets register
with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from provisioner import constants, tpu
from provisioner.model.capacity import CapacityKind, NodePool
from provisioner.model.fit import NodeView
from provisioner.settings import region_of
from provisioner.slices.suppliers import nodes

_OF_CAPACITY: Mapping[CapacityKind, Mapping[str, str]] = {
    **nodes.CAPACITY_LABELS,
    CapacityKind.RESERVATION: {constants.PROVISIONING: "standard", constants.RESERVATION_AFFINITY: "specific"},
}
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
        *nodes.RESERVATION_LABELS,
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
    return labels | nodes.reservation_labels(pool)


def expected_node(pool: NodePool) -> NodeView:
    """Predict how the scheduler will see a node of a pool."""
    return nodes.expected_node(pool, lambda *_: {**_OF_KUBELET, **pool.labels, **derived_labels(pool)})
