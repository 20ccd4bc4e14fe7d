"""Turn records into what is sent to the API server: children to create, and patches of what changed.

What is written is read back as the same record. Specs are written with the defaults that the API server would add, so
that a child that is as it should be reads equal to what it was made from, and nothing is patched.
"""

from __future__ import annotations

from typing import Any

from provisioner.kube.quantities import format_time
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.conditions import Condition
from provisioner.nodegroups.api.forms import Json
from provisioner.nodegroups.api.types import (
    API_VERSION,
    BootstrapConfig,
    Child,
    InstanceConfig,
    InstanceTemplateSpec,
    Kind,
    Machine,
    ManagedInstanceGroupSpec,
    NodeSummary,
    ObjectMeta,
    ResourceStatus,
    TpuNodeGroupSpec,
    TpuNodeGroupStatus,
    WorkloadPolicySpec,
)

Spec = TpuNodeGroupSpec | WorkloadPolicySpec | InstanceTemplateSpec | ManagedInstanceGroupSpec
Status = TpuNodeGroupStatus | ResourceStatus


def kind_of(spec: Spec) -> Kind:
    """Return the kind that a spec is of."""
    match spec:
        case TpuNodeGroupSpec():
            return Kind.TPU_NODE_GROUP
        case WorkloadPolicySpec():
            return Kind.WORKLOAD_POLICY
        case InstanceTemplateSpec():
            return Kind.INSTANCE_TEMPLATE
        case ManagedInstanceGroupSpec():
            return Kind.MANAGED_INSTANCE_GROUP


def child(wanted: Child) -> Json:
    """Return a child as it is created: it has its finalizer from the start, and goes with its owner."""
    kind = kind_of(wanted.spec)
    meta = wanted.meta
    metadata: Json = {
        "namespace": meta.namespace,
        "name": meta.name,
        **_filled(labels=dict(meta.labels), annotations=dict(meta.annotations)),
        "finalizers": [names.CHILD_FINALIZERS[kind]],
    }
    if meta.owner is not None:
        # Without blockOwnerDeletion, which would need a right to the owner's finalizers: the owner has its own.
        owner = {"kind": meta.owner.kind, "name": meta.owner.name, "uid": meta.owner.uid, "controller": True}
        metadata["ownerReferences"] = [{"apiVersion": API_VERSION, **owner}]
    return {"apiVersion": API_VERSION, "kind": kind.value, "metadata": metadata, "spec": spec_document(wanted.spec)}


def finalizers_patch(meta: ObjectMeta, finalizers: tuple[str, ...]) -> Json:
    """Return the merge patch that makes these an object's finalizers; a conflict where it is not as it was read."""
    return {"metadata": {**_as_read(meta), "finalizers": list(finalizers)}}


def status_patch(kind: Kind, meta: ObjectMeta, old: Status, new: Status) -> Json | None:
    """Return the merge patch from one status of an object to another, with what differs alone.

    None where nothing does. A conflict comes of it where the object is not as it was read.
    """
    before, after = status_document(kind, old), status_document(kind, new)
    changed = {key: after.get(key) for key in before | after if before.get(key) != after.get(key)}
    return {"metadata": _as_read(meta), "status": changed} if changed else None


def spec_document(spec: Spec) -> Json:
    """Return a spec as JSON, with defaults."""
    match spec:
        case TpuNodeGroupSpec():
            return _group_spec(spec)
        case WorkloadPolicySpec():
            return {
                "project": spec.project,
                "region": spec.region,
                "acceleratorTopology": spec.accelerator_topology,
                "type": spec.type,
            }
        case InstanceTemplateSpec():
            return {
                "project": spec.project,
                **_instance_config(spec.config),
                "maintenancePolicy": spec.maintenance_policy,
                "bootDisk": {"autoDelete": spec.boot_disk_auto_delete},
            }
        case ManagedInstanceGroupSpec():
            return {
                "project": spec.project,
                "location": spec.location,
                "instanceTemplate": spec.instance_template,
                "targetSize": spec.target_size,
                **_filled(workloadPolicy=spec.workload_policy, targetSizePolicyMode=spec.target_size_policy_mode),
                "defaultActionOnFailure": str(spec.default_action_on_failure),
            }


def status_document(kind: Kind, status: Status) -> Json:
    """Return the status of an object of a kind as JSON."""
    common: Json = _filled(
        conditions=[_condition(condition) for condition in status.conditions],
        observedGeneration=status.observed_generation,
    )
    if isinstance(status, TpuNodeGroupStatus):
        return common | _filled(
            nodeSummary=_summary(status.node_summary),
            nodes=status.nodes,
            topology=status.topology,
            nodeCount=status.node_count,
            targetSizePolicyMode=status.target_size_policy_mode,
            machines=[_machine(machine) for machine in status.machines],
            recreations=[format_time(moment) for moment in status.recreated_at],
        )
    operation = status.operation
    address = "url" if kind is Kind.MANAGED_INSTANCE_GROUP else "uri"
    return common | _filled(
        **{address: status.url},
        operationName=operation.name if operation is not None else None,
        operationType=operation.type if operation is not None else None,
        operationAttempt=status.attempts,
    )


def _as_read(meta: ObjectMeta) -> Json:
    # No other object has it, under the same name or another. A UID beside it would be refused as a change, with 422.
    return {"resourceVersion": meta.resource_version}


def _group_spec(spec: TpuNodeGroupSpec) -> Json:
    return {
        "project": spec.project,
        "nodeLocation": spec.node_location,
        **_filled(
            instanceTemplateURI=spec.instance_template_uri,
            instanceConfig=_instance_config(spec.instance_config) if spec.instance_config is not None else None,
            nodeCount=spec.node_count,
        ),
        "minNodeCount": spec.min_node_count,
        "acceleratorConnectionMode": spec.accelerator_connection_mode,
        **_filled(topology=spec.topology, targetSizePolicyMode=spec.target_size_policy_mode),
        # One without fields says something too: everything is taken from the cluster.
        **(
            {"bootstrapKubernetes": _bootstrap(spec.bootstrap_kubernetes)}
            if spec.bootstrap_kubernetes is not None
            else {}
        ),
    }


def _bootstrap(bootstrap: BootstrapConfig) -> Json:
    return _filled(
        version=bootstrap.version,
        controlPlaneIP=bootstrap.control_plane_ip,
        controlPlanePort=bootstrap.control_plane_port,
    )


def _instance_config(config: InstanceConfig) -> Json:
    accounts = [{"email": account.email, "scopes": list(account.scopes)} for account in config.service_accounts]
    return {
        "machineType": config.machine_type,
        **_filled(
            provisioningModel=config.provisioning_model,
            reservation=config.reservation,
            maxRunDurationSeconds=config.max_run_duration_seconds,
            image=config.image,
            bootDiskSizeGB=config.boot_disk_size_gb,
            diskType=config.disk_type,
        ),
        "subnetwork": config.subnetwork,
        **_filled(
            serviceAccounts=accounts,
            networkTags=list(config.network_tags),
            metadata=dict(sorted(config.metadata.items())),
        ),
    }


def _condition(condition: Condition) -> Json:
    return {
        "type": str(condition.type),
        "status": str(condition.status),
        "reason": str(condition.reason),
        "message": condition.message,
        **_filled(
            lastTransitionTime=format_time(condition.last_transition_time)
            if condition.last_transition_time is not None
            else None,
            observedGeneration=condition.observed_generation,
        ),
    }


def _summary(summary: NodeSummary | None) -> Json | None:
    if summary is None:
        return None
    return {"ready": summary.ready, "reconciling": summary.reconciling, "failed": summary.failed}


def _machine(machine: Machine) -> Json:
    return {
        "name": machine.name,
        **_filled(state=machine.state, node=machine.node),
        "ready": machine.ready,
        **_filled(since=format_time(machine.since) if machine.since is not None else None),
    }


def _filled(**values: Any) -> Json:
    """Return what is not empty, without the types that JSON does not know."""
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items() if value}
