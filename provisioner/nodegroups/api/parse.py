"""Turn raw JSON of the four kinds into records.

Total and bounded: whatever JSON comes in, a record or MalformedObject comes out. MalformedObject is for what nothing
can be done for: no identity, or a time of deletion that is none. Everything else that is wrong is the record's
`problem`, in a sentence, and counts as absent; such a record is good for saying so and for a deletion alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from provisioner.kube import fields
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.checking import Checker
from provisioner.nodegroups.api.conditions import Condition, ConditionStatus
from provisioner.nodegroups.api.forms import Json
from provisioner.nodegroups.api.schema import SPECS
from provisioner.nodegroups.api.statuses import STATUSES
from provisioner.nodegroups.api.types import (
    API_VERSION,
    BootstrapConfig,
    FailureAction,
    InstanceConfig,
    InstanceTemplate,
    InstanceTemplateSpec,
    Kind,
    Machine,
    ManagedInstanceGroup,
    ManagedInstanceGroupSpec,
    NodeSummary,
    ObjectMeta,
    OperationRef,
    OperationType,
    Owner,
    ProvisioningModel,
    Record,
    ResourceStatus,
    ServiceAccount,
    SizePolicyMode,
    TpuNodeGroup,
    TpuNodeGroupSpec,
    TpuNodeGroupStatus,
    WorkloadPolicy,
    WorkloadPolicySpec,
)

_Choice = TypeVar("_Choice", ProvisioningModel, SizePolicyMode)


def parse(kind: Kind, raw: object) -> Record:
    """Read an object of a kind; MalformedObject where it cannot be told whose it is."""
    return _PARSERS[kind](raw)


def parse_group(raw: object) -> TpuNodeGroup:
    """Read a TPUNodeGroup; MalformedObject as `parse`."""
    meta, spec, status, problem = _parts(Kind.TPU_NODE_GROUP, raw)
    return TpuNodeGroup(
        meta=meta,
        spec=_group_spec(spec),
        status=_group_status(status),
        problem=names.group_name_problem(meta.name) or problem,
    )


def parse_policy(raw: object) -> WorkloadPolicy:
    """Read a WorkloadPolicy; MalformedObject as `parse`."""
    meta, spec, status, problem = _parts(Kind.WORKLOAD_POLICY, raw)
    return WorkloadPolicy(
        meta=meta,
        spec=WorkloadPolicySpec(
            project=spec.get("project", ""),
            region=spec.get("region", ""),
            accelerator_topology=spec.get("acceleratorTopology", ""),
            **_given(type=spec.get("type")),
        ),
        status=_resource_status(status, "uri"),
        problem=names.resource_name_problem(meta.name) or problem,
    )


def parse_template(raw: object) -> InstanceTemplate:
    """Read an InstanceTemplate; MalformedObject as `parse`."""
    meta, spec, status, problem = _parts(Kind.INSTANCE_TEMPLATE, raw)
    return InstanceTemplate(
        meta=meta,
        spec=InstanceTemplateSpec(
            project=spec.get("project", ""),
            config=_instance_config(spec),
            **_given(
                maintenance_policy=spec.get("maintenancePolicy"),
                boot_disk_auto_delete=fields.mapping(spec.get("bootDisk")).get("autoDelete"),
            ),
        ),
        status=_resource_status(status, "uri"),
        problem=names.resource_name_problem(meta.name) or problem,
    )


def parse_manager(raw: object) -> ManagedInstanceGroup:
    """Read a ManagedInstanceGroup; MalformedObject as `parse`."""
    meta, spec, status, problem = _parts(Kind.MANAGED_INSTANCE_GROUP, raw)
    return ManagedInstanceGroup(
        meta=meta,
        spec=ManagedInstanceGroupSpec(
            project=spec.get("project", ""),
            location=spec.get("location", ""),
            instance_template=spec.get("instanceTemplate", ""),
            target_size=spec.get("targetSize", 0),
            workload_policy=spec.get("workloadPolicy", ""),
            target_size_policy_mode=_choice(SizePolicyMode, spec.get("targetSizePolicyMode")),
            default_action_on_failure=FailureAction(spec.get("defaultActionOnFailure", FailureAction.DO_NOTHING)),
        ),
        status=_resource_status(status, "url"),
        problem=names.resource_name_problem(meta.name) or problem,
    )


_PARSERS: Mapping[Kind, Callable[[object], Record]] = MappingProxyType(
    {
        Kind.TPU_NODE_GROUP: parse_group,
        Kind.WORKLOAD_POLICY: parse_policy,
        Kind.INSTANCE_TEMPLATE: parse_template,
        Kind.MANAGED_INSTANCE_GROUP: parse_manager,
    }
)


def _parts(kind: Kind, raw: object) -> tuple[ObjectMeta, Json, Json, str]:
    """Return metadata, what is valid of spec and status, and what is wrong with spec."""
    whole = fields.mapping(raw)
    meta = _meta(kind, fields.mapping(whole.get("metadata")))
    checker = Checker()
    spec = checker.checked(SPECS[kind], whole.get("spec"), "spec")
    # Nobody but the controller writes it: what is wrong in it is written anew, and no user is told.
    status = Checker().checked(STATUSES[kind], whole.get("status"), "status")
    return meta, spec, status, checker.problem


def _meta(kind: Kind, metadata: Json) -> ObjectMeta:
    namespace, name, uid = fields.identity(kind, metadata)
    if not names.is_identity(namespace, name, uid):
        raise fields.MalformedObject(
            f"{kind} {bounds.cut(namespace)}/{bounds.cut(name)} with uid {bounds.quoted(uid)}: namespace, name or uid "
            f"is none that the API server gives"
        )
    annotations = fields.mapping(metadata.get("annotations"))
    return ObjectMeta(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=fields.count(metadata.get("generation"), default=0),
        resource_version=fields.name(metadata.get("resourceVersion")),
        created_at=parse_timestamp(metadata.get("creationTimestamp")),
        deleted_at=fields.deletion_deadline(f"{kind} {namespace}/{name}", metadata),
        # All of them, as they are: whoever takes one off writes the others.
        finalizers=tuple(each for each in fields.sequence(metadata.get("finalizers")) if isinstance(each, str)),
        labels=_texts(metadata.get("labels")),
        annotations={
            key: bounds.cut(annotations[key], bounds.ANNOTATION)
            for key in names.READ_ANNOTATIONS
            if isinstance(annotations.get(key), str)
        },
        owner=_owner(metadata.get("ownerReferences"), namespace),
    )


def _texts(raw: object) -> dict[str, str]:
    entries = ((key, value) for key, value in fields.mapping(raw).items() if isinstance(value, str))
    return {fields.name(key): fields.name(value) for key, value in itertools.islice(entries, bounds.MAP_ENTRIES)}


def _owner(raw: object, namespace: str) -> Owner | None:
    """Read the owner that controls an object, where it is of this API."""
    for reference in fields.mappings(raw):
        if reference.get("controller") is not True or reference.get("apiVersion") != API_VERSION:
            continue
        owner = Owner(
            kind=fields.name(reference.get("kind")),
            name=fields.name(reference.get("name")),
            uid=fields.name(reference.get("uid")),
        )
        return owner if names.is_identity(namespace, owner.name, owner.uid) else None
    return None


def _group_spec(spec: Json) -> TpuNodeGroupSpec:
    config = spec.get("instanceConfig")
    bootstrap = spec.get("bootstrapKubernetes")
    return TpuNodeGroupSpec(
        project=spec.get("project", ""),
        node_location=spec.get("nodeLocation", ""),
        instance_template_uri=spec.get("instanceTemplateURI", ""),
        instance_config=_instance_config(config) if config is not None else None,
        node_count=spec.get("nodeCount"),
        topology=spec.get("topology", ""),
        bootstrap_kubernetes=BootstrapConfig(
            version=bootstrap.get("version", ""),
            control_plane_ip=bootstrap.get("controlPlaneIP", ""),
            control_plane_port=bootstrap.get("controlPlanePort"),
        )
        if bootstrap is not None
        else None,
        target_size_policy_mode=_choice(SizePolicyMode, spec.get("targetSizePolicyMode")),
        **_given(
            min_node_count=spec.get("minNodeCount"),
            accelerator_connection_mode=spec.get("acceleratorConnectionMode"),
        ),
    )


def _instance_config(config: Json) -> InstanceConfig:
    return InstanceConfig(
        machine_type=config.get("machineType", ""),
        provisioning_model=_choice(ProvisioningModel, config.get("provisioningModel")),
        reservation=config.get("reservation", ""),
        max_run_duration_seconds=config.get("maxRunDurationSeconds"),
        image=config.get("image", ""),
        boot_disk_size_gb=config.get("bootDiskSizeGB"),
        disk_type=config.get("diskType", ""),
        service_accounts=tuple(
            ServiceAccount(email=account.get("email", ""), scopes=tuple(account.get("scopes", ())))
            for account in config.get("serviceAccounts", ())
        ),
        network_tags=tuple(config.get("networkTags", ())),
        metadata=config.get("metadata", {}),
        **_given(subnetwork=config.get("subnetwork")),
    )


def _group_status(status: Json) -> TpuNodeGroupStatus:
    summary = status.get("nodeSummary")
    return TpuNodeGroupStatus(
        conditions=_conditions(status),
        observed_generation=status.get("observedGeneration", 0),
        node_summary=NodeSummary(**summary) if summary is not None else None,
        topology=status.get("topology", ""),
        node_count=status.get("nodeCount"),
        target_size_policy_mode=_choice(SizePolicyMode, status.get("targetSizePolicyMode")),
        machines=tuple(
            Machine(
                name=machine["name"],
                state=machine.get("state", ""),
                node=machine.get("node", ""),
                ready=machine.get("ready", False),
                since=machine.get("since"),
            )
            for machine in status.get("machines", ())
            if "name" in machine
        ),
        recreated_at=tuple(status.get("recreations", ())),
    )


def _resource_status(status: Json, address: str) -> ResourceStatus:
    name, verb = status.get("operationName"), status.get("operationType")
    attempts = status.get("operationAttempt", 0)
    return ResourceStatus(
        conditions=_conditions(status),
        observed_generation=status.get("observedGeneration", 0),
        url=status.get(address, ""),
        operation=OperationRef(name=name, type=OperationType(verb), attempt=attempts) if name and verb else None,
        attempts=attempts,
    )


def _conditions(status: Json) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=condition["type"],
            status=ConditionStatus(condition["status"]),
            reason=condition["reason"],
            message=condition.get("message", ""),
            last_transition_time=condition.get("lastTransitionTime"),
            observed_generation=condition.get("observedGeneration", 0),
        )
        for condition in status.get("conditions", ())
        if {"type", "status", "reason"} <= condition.keys()
    )


def _choice(choices: type[_Choice], value: str | None) -> _Choice | None:
    return choices(value) if value is not None else None


def _given(**values: Any) -> dict[str, Any]:
    """Return the arguments that are not None, so that the record's own default stands for the others."""
    return {name: value for name, value in values.items() if value is not None}
