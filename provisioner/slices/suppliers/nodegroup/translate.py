"""From a request to a TPUNodeGroup, and from a TPUNodeGroup to the node pool that it is. Pure.

The labels and taints that a pool is asked to carry are in the metadata of its machines, whose kubelets register with
them. That is part of the spec, which nobody can change: whose a pool is cannot be changed either. The object has the
labels as well, for people who select by them; they are not read.

The controller of node groups tries again whatever fails, for as long as the group is there. A pool that waits for
another zone's or another choice's sake must not wait so long: what does not pass by itself is a failure at once, what
may pass is one after a stated time. Then planning deletes the group and tries its next choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from provisioner import tpu
from provisioner.model.capacity import (
    CapacityKind,
    Failure,
    FailureKind,
    NodePool,
    NodePoolRequest,
    PoolName,
    PoolStatus,
    Zone,
    expected_pool,
)
from provisioner.nodegroups.api import documents, registration
from provisioner.nodegroups.api.codec import Json
from provisioner.nodegroups.api.specs import (
    BootstrapConfig,
    InstanceConfig,
    ProvisioningModel,
    ServiceAccount,
    TpuNodeGroupSpec,
)
from provisioner.nodegroups.api.statuses import Condition, ConditionStatus, ConditionType, Reason, condition_of
from provisioner.nodegroups.api.types import API_VERSION, Kind, TpuNodeGroup
from provisioner.settings import Settings
from provisioner.slices.suppliers.nodegroup import errors
from provisioner.slices.suppliers.nodegroup.rules import DERIVED, derived_labels

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


#: What somebody has to change, or what another place may have.
_FAILS_AT_ONCE = frozenset({FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.QUOTA})

#: What nobody says a word of, and what is not about capacity, is waited for at least so long.
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The status of a pool; the failure is set where that tells of one."""

    status: PoolStatus
    failure: Failure | None = None


def progress_of(group: TpuNodeGroup, now: datetime, *, capacity_wait_seconds: float) -> Progress:
    """Return how far a group is; a stockout that lasts for longer than `capacity_wait_seconds` is a failure."""
    if group.meta.deleting:
        return Progress(PoolStatus.STOPPING)
    ready = condition_of(group.status.conditions, ConditionType.READY)
    if _is_true(ready):
        return Progress(PoolStatus.RUNNING)
    patience_seconds = max(capacity_wait_seconds, _PATIENCE_SECONDS)
    if ready is None:
        overdue = _waited_seconds(group, now) > patience_seconds
        return Progress(PoolStatus.ERROR, errors.NOT_TAKEN) if overdue else Progress(PoolStatus.PROVISIONING)
    if ready.reason == Reason.RECREATING:
        return Progress(PoolStatus.RECONCILING)
    if _is_true(condition_of(group.status.conditions, ConditionType.MANAGED_INSTANCE_GROUP_READY)):
        # The machines are there; nodes tell the rest.
        return Progress(PoolStatus.RUNNING)
    failure = errors.failure_of(group, ready)
    if failure is not None and failure.kind in _FAILS_AT_ONCE:
        return Progress(PoolStatus.ERROR, failure)
    asked, told = _lacks_machines_alone(group), failure is not None and failure.kind is FailureKind.STOCKOUT
    if asked and _is_late(group) and (failure is None or told):
        # As on GKE: it is there, and its nodes come when there is capacity, however long that takes.
        return Progress(PoolStatus.RUNNING)
    if _waited_seconds(group, now) > (capacity_wait_seconds if told else patience_seconds):
        kind = FailureKind.STOCKOUT if asked else FailureKind.UNAVAILABLE
        return Progress(PoolStatus.ERROR, failure or Failure(kind=kind, message=errors.words(ready)))
    return Progress(PoolStatus.RECONCILING if group.status.recreated_at else PoolStatus.PROVISIONING)


def _is_true(condition: Condition | None) -> bool:
    return condition is not None and condition.status is ConditionStatus.TRUE


def _is_late(group: TpuNodeGroup) -> bool:
    config = group.spec.instance_config
    return config is not None and config.effective_provisioning_model is ProvisioningModel.FLEX_START


def _lacks_machines_alone(group: TpuNodeGroup) -> bool:
    template = condition_of(group.status.conditions, ConditionType.INSTANCE_TEMPLATE_READY)
    # Only slices of several machines have a policy.
    policy = condition_of(group.status.conditions, ConditionType.WORKLOAD_POLICY_READY)
    return _is_true(template) and (policy is None or _is_true(policy))


def _waited_seconds(group: TpuNodeGroup, now: datetime) -> float:
    """Return for how long nothing that it needs has come or gone: a slice that is made anew may be old."""
    conditions = (each for each in group.status.conditions if each.type != ConditionType.READY)
    moments = (each.last_transition_time for each in conditions)
    latest = max((moment for moment in moments if moment is not None), default=group.meta.created_at or now)
    return (now - latest).total_seconds()


def group_document(request: NodePoolRequest, settings: Settings) -> Json:
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
        image=_image(request.machine_type, settings),
        boot_disk_size_gb=settings.node_disk_gb,
        disk_type=request.disk_type,
        subnetwork=settings.node_subnetwork,
        service_accounts=(
            ServiceAccount(email=request.service_account or _DEFAULT_ACCOUNT, scopes=request.oauth_scopes),
        ),
        network_tags=request.tags,
        metadata=metadata,
    )
    spec = TpuNodeGroupSpec(
        project=settings.project_id,
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
        "metadata": {"namespace": settings.node_groups_in, "name": request.name, "labels": dict(request.labels)},
        "spec": documents.spec_document(spec),
    }


def pool_of(group: TpuNodeGroup, now: datetime, *, capacity_wait_seconds: float) -> NodePool:
    """Return the node pool that a group is."""
    progress, spec = progress_of(group, now, capacity_wait_seconds=capacity_wait_seconds), group.spec
    config = spec.instance_config or InstanceConfig(machine_type="")
    labels = registration.parse_labels(config.metadata.get(registration.LABELS, ""))
    return NodePool(
        name=PoolName(group.meta.name),
        status=progress.status,
        failure=progress.failure,
        labels={key: value for key, value in labels.items() if key not in DERIVED},
        taints=registration.parse_taints(config.metadata.get(registration.TAINTS, "")),
        machine_type=config.machine_type,
        hosts=spec.node_count or group.status.node_count or 1,
        zones=(Zone(spec.node_location),),
        topology=spec.topology or _topology_of_machine(config.machine_type),
        capacity=_KINDS[config.effective_provisioning_model],
        reservation=config.reservation,
        disk_type=config.disk_type,
    )


def _topology_of_machine(machine_type: str) -> str:
    known = tpu.machine_type(machine_type)
    return known[1].single_host_topology if known else ""


def _image(machine_type: str, settings: Settings) -> str:
    known, images = tpu.machine_type(machine_type), dict(settings.node_images)
    accelerator = known[0].label if known else ""
    return images.get(accelerator) or images.get(_OTHERS, "")
