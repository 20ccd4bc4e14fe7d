"""From a request to a TPUNodeGroup, and from a TPUNodeGroup to the node pool that it is. Pure.

The labels and taints that a pool is asked to carry are in the metadata of its machines, whose kubelets register with
them. That is part of the spec, which nobody can change: whose a pool is cannot be changed either. The object has the
labels as well, for people who select by them; they are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from provisioner import tpu
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest, PoolName, Zone, expected_pool
from provisioner.nodegroups.api import registration, write
from provisioner.nodegroups.api.forms import Json
from provisioner.nodegroups.api.specs import (
    BootstrapConfig,
    InstanceConfig,
    ProvisioningModel,
    ServiceAccount,
    TpuNodeGroupSpec,
)
from provisioner.nodegroups.api.types import API_VERSION, Kind, TpuNodeGroup
from provisioner.slices.suppliers.nodegroup.node_labels import DERIVED, derived_labels
from provisioner.slices.suppliers.nodegroup.progress import Progress, progress_of

_MODELS = {
    CapacityKind.ON_DEMAND: ProvisioningModel.STANDARD,
    CapacityKind.SPOT: ProvisioningModel.SPOT,
    CapacityKind.RESERVATION: ProvisioningModel.RESERVATION_BOUND,
    CapacityKind.FLEX_START: ProvisioningModel.FLEX_START,
}
_KINDS = {model: kind for kind, model in _MODELS.items()}
#: Google's default for flex-start, which a TPUNodeGroup has to say.
_LONGEST_RUN_SECONDS = 7 * 24 * 3600
#: The service account that Compute Engine gives machines for which nobody names another.
_DEFAULT_ACCOUNT = "default"
#: Image of accelerators that have none of their own.
_OTHERS = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where groups are made, and what all their machines have in common."""

    namespace: str
    project: str
    #: Boot image by accelerator; `*` stands for all that are not there.
    images: tuple[tuple[str, str], ...] = ()
    #: None: the image's.
    disk_gb: int | None = None
    subnetwork: str = "default"


def group_document(request: NodePoolRequest, place: Place) -> Json:
    """Return the TPUNodeGroup that a request asks for, as it is created."""
    labels = {**request.labels, **derived_labels(expected_pool(request))}
    metadata = {registration.LABELS: registration.labels_text(labels)}
    if request.taints:
        metadata[registration.TAINTS] = registration.taints_text(request.taints)
    late = request.capacity is CapacityKind.FLEX_START
    config = InstanceConfig(
        machine_type=request.machine_type,
        provisioning_model=_MODELS[request.capacity],
        reservation=request.reservation,
        max_run_duration_seconds=(request.max_run_seconds or _LONGEST_RUN_SECONDS) if late else None,
        image=_image(request.machine_type, place),
        boot_disk_size_gb=place.disk_gb,
        disk_type=request.disk_type,
        subnetwork=place.subnetwork,
        service_accounts=(
            ServiceAccount(email=request.service_account or _DEFAULT_ACCOUNT, scopes=request.oauth_scopes),
        ),
        network_tags=request.tags,
        metadata=metadata,
    )
    spec = TpuNodeGroupSpec(
        project=place.project,
        node_location=request.zone,
        instance_config=config,
        node_count=request.hosts,
        topology=request.topology,
        # What machines need to join is taken from the cluster.
        bootstrap_kubernetes=BootstrapConfig(),
    )
    return {
        "apiVersion": API_VERSION,
        "kind": Kind.TPU_NODE_GROUP.value,
        "metadata": {"namespace": place.namespace, "name": request.name, "labels": dict(request.labels)},
        "spec": write.spec_document(spec),
    }


def pool_of(group: TpuNodeGroup, now: datetime, *, capacity_wait_seconds: float) -> NodePool:
    """Return the node pool that a group is."""
    progress = progress_of(group, now, capacity_wait_seconds=capacity_wait_seconds)
    spec, config = group.spec, group.spec.instance_config
    if config is None:
        return _pool(group, progress, InstanceConfig(machine_type=""))
    return _pool(group, progress, config, topology=spec.topology or _topology_of_machine(config.machine_type))


def _pool(group: TpuNodeGroup, progress: Progress, config: InstanceConfig, topology: str = "") -> NodePool:
    labels = registration.parse_labels(config.metadata.get(registration.LABELS, ""))
    return NodePool(
        name=PoolName(group.meta.name),
        status=progress.status,
        failure=progress.failure,
        labels={key: value for key, value in labels.items() if key not in DERIVED},
        taints=registration.parse_taints(config.metadata.get(registration.TAINTS, "")),
        machine_type=config.machine_type,
        hosts=group.spec.node_count or group.status.node_count or 1,
        zones=(Zone(group.spec.node_location),),
        topology=topology,
        capacity=_KINDS[config.effective_provisioning_model],
        reservation=config.reservation,
        disk_type=config.disk_type,
    )


def _topology_of_machine(machine_type: str) -> str:
    known = tpu.machine_type(machine_type)
    return known[1].single_host_topology if known else ""


def _image(machine_type: str, place: Place) -> str:
    known, images = tpu.machine_type(machine_type), dict(place.images)
    accelerator = known[0].label if known else ""
    return images.get(accelerator) or images.get(_OTHERS, "")
