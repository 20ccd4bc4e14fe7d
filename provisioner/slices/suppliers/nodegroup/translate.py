"""Converts requests into TPUNodeGroups, and TPUNodeGroups into node pools. Pure.

The labels and taints of a pool are in the metadata of its machines, a part of the immutable spec, and kubelets
register with them. The labels of the TPUNodeGroup are copies for the selectors of users, and are not read.
The controller of node groups retries failures while the group exists. This module reports a permanent failure
immediately, and a temporary failure after a time, so that planning deletes the group and tries the next choice of
capacity. Google's error texts in conditions are classified. A rejection whose text matches no rule is not a
stockout; otherwise planning would send the same bad request to the next zone.
"""

import re
from collections.abc import Mapping
from datetime import datetime

from provisioner import tpu
from provisioner.google.errors import GAP, TEXTS, Call, kind_of_text, text_rule, without_echoes
from provisioner.kube.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
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
from provisioner.nodegroups.api import codec, names
from provisioner.nodegroups.api.codec import Json
from provisioner.nodegroups.api.codes import WORK_CODES
from provisioner.nodegroups.api.specs import (
    BootstrapConfig,
    InstanceConfig,
    ProvisioningModel,
    ServiceAccount,
    TpuNodeGroupSpec,
)
from provisioner.nodegroups.api.statuses import (
    STARTING_OR_RUNNING,
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    condition_of,
    is_true,
)
from provisioner.nodegroups.api.types import API_VERSION, Kind, TpuNodeGroup
from provisioner.settings import Settings
from provisioner.slices.supplier import SupplierError
from provisioner.slices.suppliers import nodes
from provisioner.slices.suppliers.nodegroup.rules import DERIVED, derived_labels

_MODELS = {
    CapacityKind.ON_DEMAND: ProvisioningModel.STANDARD,
    CapacityKind.SPOT: ProvisioningModel.SPOT,
    CapacityKind.RESERVATION: ProvisioningModel.RESERVATION_BOUND,
    CapacityKind.FLEX_START: ProvisioningModel.FLEX_START,
}
_CAPACITY_OF_MODEL = {model: kind for kind, model in _MODELS.items()}
#: Google's default for the maximum run duration of flex-start machines, which a TPUNodeGroup must set explicitly.
_MAX_RUN_SECONDS = 7 * 24 * 3600
#: Name with which Compute Engine's API selects the project's default service account.
_DEFAULT_ACCOUNT = "default"
#: Key in NODE_GROUP_IMAGES of the image for all accelerators that are not listed.
_OTHERS = "*"
#: Kinds of failures that usually make a group fail immediately: time does not help, but a user or another zone may.
_FAILS_AT_ONCE = frozenset({FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.QUOTA})

#: Minimum seconds without progress until a group without a permanent failure or a stockout counts as failed.
_PATIENCE_SECONDS = 600.0
_TEXTS = (
    # Text of Compute Engine's responses with HTTP status 403; conditions do not contain the status.
    text_rule(r"Required '[a-z.]+' permission", FailureKind.PERMISSION),
    *TEXTS,
    # Codes of other kinds, such as temporary failures, have no rule: the condition's reason determines the kind.
    *(
        text_rule(rf"\b{code}:", row.create)
        for code, row in WORK_CODES.items()
        if row.create in {*_FAILS_AT_ONCE, FailureKind.STOCKOUT}
    ),
)
#: Kinds of failures by the condition's reason, if no rule matches its text.
_REASONS: Mapping[str, FailureKind] = {
    Reason.REQUEST_REJECTED: FailureKind.INVALID,
    Reason.INVALID_SPEC: FailureKind.INVALID,
    Reason.INVALID_TEMPLATE: FailureKind.INVALID,
    Reason.NOT_ALLOWED: FailureKind.PERMISSION,
    Reason.OPERATION_FAILED: FailureKind.UNAVAILABLE,
    Reason.RECONCILE_ERROR: FailureKind.UNAVAILABLE,
    Reason.INSTANCES_CREATION_FAILED: FailureKind.UNAVAILABLE,
}
#: Reasons whose texts are not classified, because the controller of node groups writes them instead of Google.
_REASONS_OF_CONTROLLER = frozenset({Reason.INVALID_SPEC, Reason.NOT_ALLOWED})

_CONTROLLER = "the controller of node groups (`tpu-provisioner nodegroups`)"
NOT_TAKEN = Failure(
    kind=FailureKind.UNAVAILABLE,
    message=f"No controller has taken the TPUNodeGroup: make sure that {_CONTROLLER} runs and serves its namespace.",
)
_GRANT_HELP = (
    "Grant the provisioner get, list, create and delete of tpunodegroups in the namespace of NODE_GROUP_NAMESPACE "
    "(deploy/components/provider-gce)."
)
_NOT_INSTALLED = (
    f"Install the CustomResourceDefinitions of {_CONTROLLER}, and create the namespace of NODE_GROUP_NAMESPACE."
)


def failure_of(group: TpuNodeGroup, condition: Condition) -> Failure | None:
    """Return the failure that a condition of a group reports; None if it reports no failure."""
    kind = _REASONS.get(condition.reason)
    if kind is None:
        return None
    if condition.reason not in _REASONS_OF_CONTROLLER:
        kind = kind_of_text(_without_echoes(group, condition.message), _TEXTS) or kind
    return Failure(kind=kind, message=words(condition))


def words(condition: Condition) -> str:
    """Return the message of a condition, or its reason if the message is empty."""
    return condition.message or condition.reason


def _without_echoes(group: TpuNodeGroup, text: str) -> str:
    """Remove names that users may have chosen from a text; they must not determine the kind of a failure."""
    text = re.sub(rf"(?<![\w-]){re.escape(group.meta.name)}[-a-z0-9]*", GAP, text)
    config = group.spec.instance_config
    if config is None:
        return text
    accounts = (account.email for account in config.service_accounts)
    places = (config.reservation, config.image, config.subnetwork, config.disk_type)
    return without_echoes(text, (group.meta.namespace, *places, *accounts, *config.network_tags))


def supplier_error(error: ClusterError, subject: str, call: Call) -> SupplierError:
    """Return the supplier's error for a failed call to the API server."""
    kind, help_ = _kind_of(error, call)
    message = f"{str(error).rstrip('.')}. {help_}" if help_ else str(error)
    return SupplierError(Failure(kind=kind, message=message), subject)


def _kind_of(error: ClusterError, call: Call) -> tuple[FailureKind, str]:
    changes = call is not Call.READ
    match error:
        case NotFound():
            if error.reason and call is not Call.CREATE:
                return FailureKind.NOT_FOUND, ""
            # A 404 without a reason, or of a create, is about the path: the CRD or the namespace is missing.
            return FailureKind.INVALID if changes else FailureKind.UNAVAILABLE, _NOT_INSTALLED
        case Conflict():
            if call is Call.CREATE and "being deleted" not in error.message:
                return FailureKind.ALREADY_EXISTS, ""
            return FailureKind.OPERATION_IN_THE_WAY, ""
        case Forbidden() if "exceeded quota" in error.message:
            return FailureKind.QUOTA, ""
        case Forbidden():
            return FailureKind.PERMISSION, _GRANT_HELP
        case Unauthorized():
            return FailureKind.PERMISSION, ""
        case Invalid():
            return FailureKind.INVALID, ""
        case TooManyRequests() | Gone():
            return FailureKind.UNAVAILABLE, ""
    # After any other error, a create or delete may have taken effect, or may still do so.
    return FailureKind.UNKNOWN_OUTCOME if changes else FailureKind.UNAVAILABLE, ""


def _progress_of(
    group: TpuNodeGroup, now: datetime, *, capacity_wait_seconds: float
) -> tuple[PoolStatus, Failure | None]:
    """Return the status of a group's pool, and the failure if the pool failed, is at a limit or cannot be observed."""
    if group.meta.deleting:
        return PoolStatus.STOPPING, None
    ready = condition_of(group.status.conditions, ConditionType.READY)
    if is_true(ready):
        return PoolStatus.RUNNING, None
    waited_seconds, patience_seconds = _waited_seconds(group, now), max(capacity_wait_seconds, _PATIENCE_SECONDS)
    if ready is None:
        return (PoolStatus.ERROR, NOT_TAKEN) if waited_seconds > patience_seconds else (PoolStatus.PROVISIONING, None)
    if ready.status is ConditionStatus.UNKNOWN:
        # The group may have machines or wait for capacity, but its controller cannot see that now.
        return PoolStatus.PROVISIONING, Failure(kind=FailureKind.UNAVAILABLE, message=words(ready))
    if ready.reason == Reason.RECREATING:
        return PoolStatus.RECONCILING, None
    failure = failure_of(group, ready)
    is_lasting = failure is not None and failure.kind in _FAILS_AT_ONCE
    if _is_made(group) and not (is_lasting and ready.reason == Reason.REQUEST_REJECTED):
        # As on GKE, a pool runs when its machines exist, unless they get no join tokens because of a rejected request.
        return PoolStatus.RUNNING, None
    if is_lasting:
        return PoolStatus.ERROR, failure
    only_machines, stockout = _lacks_only_machines(group), failure is not None and failure.kind is FailureKind.STOCKOUT
    if only_machines and _is_flex_start(group) and (failure is None or stockout):
        # As on GKE, a flex-start pool has status RUNNING while it waits for its machines, without a time limit.
        return PoolStatus.RUNNING, None
    if ready.reason == Reason.LIMIT_REACHED:
        # A group at a limit does not fail: the oldest group gets machines first, so a new group would wait longer.
        return PoolStatus.PROVISIONING, Failure(kind=FailureKind.QUOTA, message=words(ready))
    if waited_seconds > (capacity_wait_seconds if stockout else patience_seconds):
        kind = FailureKind.STOCKOUT if only_machines else FailureKind.UNAVAILABLE
        return PoolStatus.ERROR, failure or Failure(kind=kind, message=words(ready))
    return PoolStatus.PROVISIONING, None


def _is_made(group: TpuNodeGroup) -> bool:
    return is_true(condition_of(group.status.conditions, ConditionType.MANAGED_INSTANCE_GROUP_READY))


def _is_flex_start(group: TpuNodeGroup) -> bool:
    config = group.spec.instance_config
    return config is not None and config.effective_provisioning_model is ProvisioningModel.FLEX_START


def _lacks_only_machines(group: TpuNodeGroup) -> bool:
    template = condition_of(group.status.conditions, ConditionType.INSTANCE_TEMPLATE_READY)
    policy = condition_of(group.status.conditions, ConditionType.WORKLOAD_POLICY_READY)
    return is_true(template) and (policy is None or is_true(policy))


def _waited_seconds(group: TpuNodeGroup, now: datetime) -> float:
    """Return the seconds since the last progress of a group: a changed condition, started machine, or its creation."""
    conditions = (condition for condition in group.status.conditions if condition.type != ConditionType.READY)
    # A machine that started late for lack of capacity needs time to become ready.
    started = (machine for machine in group.status.machines if machine.state in STARTING_OR_RUNNING)
    moments = [*(condition.last_transition_time for condition in conditions), *(machine.since for machine in started)]
    latest = max((moment for moment in moments if moment is not None), default=group.meta.created_at or now)
    return (now - latest).total_seconds()


def group_document(request: NodePoolRequest, settings: Settings) -> Json:
    """Return the body of the create of a TPUNodeGroup."""
    labels = {**request.labels, **derived_labels(expected_pool(request))}
    metadata = {names.KUBE_LABELS: names.labels_text(labels)}
    if request.taints:
        metadata[names.KUBE_TAINTS] = names.taints_text(request.taints)
    flex_start = request.capacity is CapacityKind.FLEX_START
    accelerator, images = tpu.machine_of(request.machine_type)[0], dict(settings.node_images)
    config = InstanceConfig(
        machine_type=request.machine_type,
        provisioning_model=_MODELS[request.capacity],
        reservation=request.reservation,
        max_run_duration_seconds=(request.max_run_seconds or _MAX_RUN_SECONDS) if flex_start else None,
        image=images.get(accelerator) or images.get(_OTHERS, ""),
        boot_disk_size_gb=settings.node_disk_gb,
        disk_type=request.node.get("node_disk_type", ""),
        subnetwork=settings.node_subnetwork,
        service_accounts=(
            ServiceAccount(
                email=request.node.get("node_service_account") or _DEFAULT_ACCOUNT,
                scopes=request.node.get("node_oauth_scopes", ()),
            ),
        ),
        network_tags=request.node.get("node_tags", ()),
        metadata=metadata,
    )
    spec = TpuNodeGroupSpec(
        project=settings.project_id,
        node_location=request.zone,
        instance_config=config,
        node_count=request.hosts,
        topology=request.topology,
        # Empty, because the controller of node groups reads from the cluster how machines join it.
        bootstrap_kubernetes=BootstrapConfig(),
    )
    return {
        "apiVersion": API_VERSION,
        "kind": Kind.TPU_NODE_GROUP.value,
        "metadata": {"namespace": settings.node_groups_in, "name": request.name, "labels": dict(request.labels)},
        "spec": codec.write(spec),
    }


def pool_of(group: TpuNodeGroup, now: datetime, *, capacity_wait_seconds: float) -> NodePool:
    """Return the node pool that a group represents."""
    status, failure = _progress_of(group, now, capacity_wait_seconds=capacity_wait_seconds)
    spec, config = group.spec, group.spec.instance_config or InstanceConfig(machine_type="")
    labels = names.parse_labels(config.metadata.get(names.KUBE_LABELS, ""))
    return NodePool(
        name=PoolName(group.meta.name),
        status=status,
        failure=failure,
        labels={key: value for key, value in labels.items() if key not in DERIVED},
        taints=names.parse_taints(config.metadata.get(names.KUBE_TAINTS, "")),
        machine_type=config.machine_type,
        hosts=spec.node_count or group.status.node_count or 1,
        made=_is_made(group),
        zones=(Zone(spec.node_location),),
        topology=spec.topology or nodes.topology_of_machine(config.machine_type),
        capacity=_CAPACITY_OF_MODEL[config.effective_provisioning_model],
        reservation=config.reservation,
        node={"node_disk_type": config.disk_type},
        node_prefixes=(names.child_name(group.meta, Kind.MANAGED_INSTANCE_GROUP),),
    )
