"""Builds bodies of requests to Compute Engine, and reads responses. Fields of a wrong type count as absent."""

from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.google.errors import Call
from provisioner.kube import fields
from provisioner.model.capacity import Failure, Operation, OperationName
from provisioner.nodegroups.api.specs import (
    InstanceConfig,
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    ProvisioningModel,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.types import Child, InstanceTemplate, ManagedInstanceGroup, WorkloadPolicy
from provisioner.nodegroups.compute import records
from provisioner.nodegroups.compute.errors import WorkError, failure_of_work

#: Field masks: a response contains only these fields.
POLICY_FIELDS = "name,description,status,selfLink,workloadPolicy"
TEMPLATE_FIELDS = "name,description,selfLink,properties/machineType,properties/metadata/items,properties/scheduling"
MANAGER_FIELDS = (
    "name,description,selfLink,creationTimestamp,instanceTemplate,targetSize,targetSizePolicy/mode,"
    "resourcePolicies/workloadPolicy,status/isStable,status/bulkInstanceOperation"
)
#: Filter for resources with an ownership mark (`names.Mark`).
MARKED = 'description eq "tpu-provisioner: .*"'
MANAGERS_FIELDS = "items,nextPageToken"
MANAGED_INSTANCES_FIELDS = (
    "managedInstances/name,managedInstances/instance,managedInstances/id,managedInstances/instanceStatus,"
    "managedInstances/currentAction,managedInstances/lastAttempt,nextPageToken"
)
INSTANCES_FIELDS = "items/name,items/id,items/metadata/items,items/metadata/fingerprint,nextPageToken"
OPERATION_FIELDS = "name,status,operationType,targetLink,error,httpErrorStatusCode,httpErrorMessage"

#: instanceTerminationAction that a managed instance group of TPUs needs, by provisioning model; empty if it needs none.
TERMINATION_ACTIONS = {
    ProvisioningModel.RESERVATION_BOUND: records.DELETE,
    ProvisioningModel.FLEX_START: records.DELETE,
    ProvisioningModel.SPOT: records.STOP,
    ProvisioningModel.STANDARD: "",
}
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_SPECIFIC = "SPECIFIC_RESERVATION"
_DONE = "DONE"
_MAX_DIGITS = 20


def insert_body(child: Child, mark: str) -> dict[str, Any]:
    """Return the body of the insert of a child's resource, with the ownership mark as description."""
    match child:
        case WorkloadPolicy(spec=policy):
            body = _policy_body(policy)
        case InstanceTemplate(spec=template):
            body = _template_body(template)
        case ManagedInstanceGroup(spec=manager):
            # Prefix of the machines' names. Compute Engine rejects a prefix of more than 58 characters.
            body = {"baseInstanceName": child.meta.name[:58].rstrip("-"), **_manager_body(manager)}
    return {**_body(name=child.meta.name, description=mark), **body}


def _policy_body(spec: WorkloadPolicySpec) -> dict[str, Any]:
    return {"workloadPolicy": _body(type=spec.type, acceleratorTopology=spec.accelerator_topology)}


def _template_body(spec: InstanceTemplateSpec) -> dict[str, Any]:
    config, model = spec.config, spec.config.effective_provisioning_model
    # Like GKE, set NO_RESERVATION for flex-start; otherwise, the machine could consume a matching reservation.
    default = "NO_RESERVATION" if model is ProvisioningModel.FLEX_START else ""
    affinity: dict[str, Any] = _body(consumeReservationType=config.reservation_affinity or default)
    if config.reservation:
        affinity = {"consumeReservationType": _SPECIFIC, "key": _RESERVATION_KEY, "values": [config.reservation]}
    seconds, disk = config.max_run_duration_seconds, _disk_body(config)
    properties = _body(
        machineType=config.machine_type,
        metadata=metadata_body(config.metadata) if config.metadata else None,
        disks=[{"boot": True, "autoDelete": True, "initializeParams": disk}] if disk else None,
        scheduling=_body(
            onHostMaintenance=spec.maintenance_policy,
            provisioningModel=model.value,
            instanceTerminationAction=TERMINATION_ACTIONS[model],
            maxRunDuration={"seconds": str(seconds)} if seconds else None,
        ),
        reservationAffinity=affinity,
        # No access configuration, so the machine gets no external address.
        networkInterfaces=[{"subnetwork": config.subnetwork}] if config.subnetwork else None,
        shieldedInstanceConfig=_body(enableSecureBoot=config.secure_boot or None),
        tags={"items": sorted(config.network_tags)} if config.network_tags else None,
        serviceAccounts=[
            {"email": account.email, "scopes": list(account.scopes)} for account in config.service_accounts
        ],
    )
    return {"properties": properties}


def _manager_body(spec: ManagedInstanceGroupSpec) -> dict[str, Any]:
    return {
        "targetSize": spec.target_size,
        **_body(
            instanceTemplate=spec.instance_template,
            targetSizePolicy=_body(mode=spec.effective_mode.value),
            instanceLifecyclePolicy=_body(defaultActionOnFailure=spec.default_action_on_failure.value),
            resourcePolicies=_body(workloadPolicy=spec.workload_policy),
        ),
    }


def metadata_body(items: Mapping[str, str], fingerprint: str = "") -> dict[str, Any]:
    """Return metadata with its items sorted by key."""
    return {
        "items": [{"key": key, "value": value} for key, value in sorted(items.items())],
        **_body(fingerprint=fingerprint),
    }


def _disk_body(config: InstanceConfig) -> dict[str, Any]:
    size = config.boot_disk_size_gb
    return _body(sourceImage=config.image, diskSizeGb=str(size) if size else None, diskType=config.disk_type)


def _body(**entries: Any) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value not in (None, "", {}, [])}


def policy_of(raw: object) -> records.ResourcePolicy:
    """Read a resource policy. If it is not a workload policy, `type` is empty."""
    body = fields.mapping(raw)
    policy = fields.mapping(body.get("workloadPolicy"))
    return records.ResourcePolicy(
        name=fields.text(body.get("name")),
        description=fields.text(body.get("description")),
        type=fields.text(policy.get("type")),
        topology=fields.text(policy.get("acceleratorTopology")),
        status=fields.text(body.get("status")),
        url=fields.text(body.get("selfLink")),
    )


def template_of(raw: object) -> records.Template:
    """Read the fields of an instance template that decisions use."""
    body = fields.mapping(raw)
    properties = fields.mapping(body.get("properties"))
    scheduling = fields.mapping(properties.get("scheduling"))
    return records.Template(
        name=fields.text(body.get("name")),
        description=fields.text(body.get("description")),
        machine_type=fields.text(properties.get("machineType")),
        provisioning_model=fields.text(scheduling.get("provisioningModel")),
        on_host_maintenance=fields.text(scheduling.get("onHostMaintenance")),
        termination_action=fields.text(scheduling.get("instanceTerminationAction")),
        metadata=_items_of(properties.get("metadata")),
        url=fields.text(body.get("selfLink")),
    )


def manager_of(raw: object) -> records.Manager:
    """Read the fields of a managed instance group that decisions use."""
    body = fields.mapping(raw)
    status = fields.mapping(body.get("status"))
    return records.Manager(
        name=fields.text(body.get("name")),
        description=fields.text(body.get("description")),
        template=fields.text(body.get("instanceTemplate")),
        target_size=_whole(body.get("targetSize")),
        mode=fields.text(fields.mapping(body.get("targetSizePolicy")).get("mode")),
        policy=fields.text(fields.mapping(body.get("resourcePolicies")).get("workloadPolicy")),
        is_stable=status.get("isStable") is True,
        bulk=_bulk_of(status.get("bulkInstanceOperation")),
        created_at=fields.parse_timestamp(body.get("creationTimestamp")),
        url=fields.text(body.get("selfLink")),
    )


def managers_of(raw: object) -> tuple[tuple[records.Manager, ...], str]:
    """Read a page of the managed instance groups in all zones. Return the groups and the token of the next page."""
    body = fields.mapping(raw)
    zones = map(fields.mapping, fields.mapping(body.get("items")).values())
    managers = [manager_of(manager) for zone in zones for manager in fields.mappings(zone.get("instanceGroupManagers"))]
    return tuple(managers), fields.text(body.get("nextPageToken"))


def managed_instances_of(raw: object, scope: records.Scope) -> tuple[tuple[records.ManagedInstance, ...], str]:
    """Read a page of a group's machines. Return the machines that have a name, and the token of the next page."""
    body = fields.mapping(raw)
    instances = (_managed_instance_of(instance, scope) for instance in fields.mappings(body.get("managedInstances")))
    return tuple(instance for instance in instances if instance.name), fields.text(body.get("nextPageToken"))


def instances_of(raw: object, shared: dict[str, str]) -> tuple[tuple[records.Instance, ...], str]:
    """Read a page of machines. Return the machines and the next page's token. `shared` deduplicates metadata values."""
    body = fields.mapping(raw)
    instances = (_instance_of(item, shared) for item in fields.mappings(body.get("items")))
    return tuple(instance for instance in instances if instance.name), fields.text(body.get("nextPageToken"))


def operation_of(raw: object) -> Operation:
    """Read an operation. It has failed if it is done and contains errors or an HTTP error code."""
    body = fields.mapping(raw)
    errors = _work_errors(body.get("error"))
    http_code = _whole(body.get("httpErrorStatusCode"))
    done = body.get("status") == _DONE
    failure = None
    if done and (errors or http_code >= 400):
        if not errors:
            errors = [WorkError("", fields.text(body.get("httpErrorMessage")))]
        failure = failure_of_work(
            errors,
            _call_of(fields.text(body.get("operationType"))),
            http_code=http_code,
            values=(fields.text(body.get("targetLink")).rpartition("/")[2],),
        )
    return Operation(name=OperationName(fields.text(body.get("name"))), done=done, failure=failure)


def _instance_of(body: Mapping[str, Any], shared: dict[str, str]) -> records.Instance:
    metadata = fields.mapping(body.get("metadata"))
    return records.Instance(
        name=fields.text(body.get("name")),
        items={key: shared.setdefault(value, value) for key, value in _items_of(metadata).items()},
        fingerprint=fields.text(metadata.get("fingerprint")),
        id=_number_text(body.get("id")),
    )


def _managed_instance_of(entry: Mapping[str, Any], scope: records.Scope) -> records.ManagedInstance:
    name = fields.text(entry.get("name")) or fields.text(entry.get("instance")).rpartition("/")[2]
    attempt = fields.mapping(entry.get("lastAttempt"))
    return records.ManagedInstance(
        name=name,
        scope=scope,
        status=fields.text(entry.get("instanceStatus")),
        action=fields.text(entry.get("currentAction")),
        failures=_failures_of(attempt.get("errors"), name),
        id=_number_text(entry.get("id")),
    )


def _bulk_of(raw: object) -> records.BulkOperation | None:
    if not isinstance(raw, dict):
        return None
    check = fields.mapping(raw.get("lastProgressCheck"))
    return records.BulkOperation(
        in_progress=raw.get("inProgress") is True, failures=_failures_of(check.get("error"), "")
    )


def _failures_of(raw: object, name: str) -> tuple[Failure, ...]:
    return tuple(failure_of_work([error], Call.CREATE, values=(name,)) for error in _work_errors(raw))


def _work_errors(raw: object) -> Sequence[WorkError]:
    return [
        WorkError(fields.text(error.get("code")), fields.text(error.get("message")))
        for error in fields.mappings(fields.mapping(raw).get("errors"))
    ]


def _call_of(operation_type: str) -> Call:
    if operation_type == "insert":
        return Call.CREATE
    return Call.DELETE if operation_type == "delete" else Call.UPDATE


def _items_of(raw: object) -> dict[str, str]:
    entries = fields.mappings(fields.mapping(raw).get("items"))
    return {key: fields.text(entry.get("value")) for entry in entries if (key := fields.text(entry.get("key")))}


def _whole(raw: object) -> int:
    """Read an integer, which may be a string of digits (int64 in JSON); 0 if the value is anything else."""
    if type(raw) is int:
        return raw
    text = fields.text(raw)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def _number_text(raw: object) -> str:
    return str(_whole(raw)) if _whole(raw) > 0 else ""
