"""Rules of TPUNodeGroups for planning. Their nodes get the labels that manifests for GKE usually select. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest
from provisioner.model.fit import NodeView
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import MACHINE_TYPE_PREFIXES
from provisioner.settings import Settings
from provisioner.settings.forms import region_of
from provisioner.slices.demand import Slice
from provisioner.slices.supplier import PoolRules, UnmeetableError
from provisioner.slices.suppliers import nodes

#: Domains of labels that kubelets may not set. The few keys that Kubernetes allows in them are rejected as well.
_DOMAINS_OF_KUBERNETES = ("kubernetes.io", "k8s.io")
_OF_CAPACITY: Mapping[CapacityKind, Mapping[str, str]] = {
    **nodes.CAPACITY_LABELS,
    CapacityKind.RESERVATION: {constants.PROVISIONING: "standard", constants.RESERVATION_AFFINITY: "specific"},
}
_OF_KUBELET = {constants.OS: "linux", constants.ARCH: "amd64"}
#: Keys of labels that follow from other fields of a group; `NodePool.labels` does not contain them.
DERIVED = frozenset(
    {
        constants.NODE_POOL,
        names.GROUP_NAME,
        constants.TPU_ACCELERATOR,
        constants.TPU_TOPOLOGY,
        constants.ACCELERATOR_COUNT,
        constants.INSTANCE_TYPE,
        constants.MACHINE_FAMILY,
        constants.ZONE,
        constants.GKE_ZONE,
        constants.REGION,
        *(key for labels in _OF_CAPACITY.values() for key in labels),
        *nodes.RESERVATION_LABELS,
    }
)


def derived_labels(pool: NodePool) -> dict[str, str]:
    """Return the labels of a pool's nodes that follow from other fields of the pool."""
    labels = {constants.NODE_POOL: pool.name, names.GROUP_NAME: pool.name, **_OF_CAPACITY.get(pool.capacity, {})}
    entry = tpu.machine_type(pool.machine_type)
    if entry is not None:
        labels |= nodes.machine_labels(pool, *entry)
    for zone in pool.zones:
        labels |= {constants.ZONE: zone, constants.GKE_ZONE: zone, constants.REGION: region_of(zone)}
    return labels | nodes.reservation_labels(pool)


def expected_node(pool: NodePool) -> NodeView:
    """Predict how the scheduler will see a node of a pool."""
    namespace = pool.labels.get(names.GROUP_NAMESPACE, "")
    # Only the controller of node groups writes these labels, so pods can rely on them to select a group.
    trusted = {names.TRUSTED_NAMESPACE: namespace, names.GROUP: f"{namespace}-{pool.name}"}
    labels = {**_OF_KUBELET, **trusted, **pool.labels, **derived_labels(pool)}
    return nodes.expected_node(pool, lambda *_: labels, nodes.whole_machine)


def _complete(request: NodePoolRequest, slice_: Slice, shape: tpu.Shape, settings: Settings) -> NodePoolRequest:
    machine_type = request.machine_type
    if not machine_type.startswith(MACHINE_TYPE_PREFIXES):
        raise UnmeetableError(
            f"Compute Engine makes no slices of {machine_type} for TPUNodeGroups (PROVIDER=gce), only of machine types "
            f"that begin with {', '.join(MACHINE_TYPE_PREFIXES)}"
        )
    if request.hosts > bounds.GROUP_NODES:
        raise UnmeetableError(
            f"a TPUNodeGroup has at most {bounds.GROUP_NODES} machines, and {request.hosts} are asked for"
        )
    images, accelerator = dict(settings.node_images), shape.accelerator.label
    if images and not {accelerator, "*"} & images.keys():
        raise UnmeetableError(f"NODE_GROUP_IMAGES names no image for {accelerator}", "the administrator has to add one")
    forbidden = sorted(key for key in request.labels if _is_of_kubernetes(key))
    if forbidden:
        raise UnmeetableError(
            f"label {forbidden[0]} cannot be copied to the nodes of a TPUNodeGroup (PROVIDER=gce): Kubernetes lets no "
            f"kubelet set labels of {' and '.join(_DOMAINS_OF_KUBERNETES)}",
            f"remove it from {constants.COPY_LABELS} and GCP_POD_TO_NODE_LABELS",
        )
    labels = {**request.labels, names.GROUP_NAMESPACE: settings.node_groups_in}
    return nodes.complete(replace(request, labels=labels), slice_, shape, settings, gke=False)


def _is_of_kubernetes(key: str) -> bool:
    prefix, separator, _ = key.rpartition("/")
    return bool(separator) and any(
        prefix == domain or prefix.endswith(f".{domain}") for domain in _DOMAINS_OF_KUBERNETES
    )


NODE_GROUP_RULES = PoolRules(
    supplier_name="Compute Engine",
    idle_seconds=30.0,
    # TPUNodeGroups have no features that pods could request by labels of Google or Kubernetes.
    requestable_labels=frozenset(),
    copyable=frozenset(),
    flex_start_needs_pods=False,
    complete=_complete,
    expected_node=expected_node,
)
