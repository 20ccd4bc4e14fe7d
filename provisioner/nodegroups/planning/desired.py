"""The children that a group is to have."""

from __future__ import annotations

from dataclasses import replace

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.specs import (
    FailureAction,
    InstanceConfig,
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    ProvisioningModel,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.types import (
    Child,
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    Owner,
    TpuNodeGroup,
    WorkloadPolicy,
)
from provisioner.nodegroups.bootstrap.script import with_users_script
from provisioner.nodegroups.compute.links import region_of

#: Metadata key of what a machine runs at each boot.
STARTUP_SCRIPT = "startup-script"


def workload_policy(group: TpuNodeGroup, shape: GroupShape) -> WorkloadPolicy | None:
    """Return the workload policy; None for machines that are a slice each."""
    if not shape.one_slice:
        return None
    spec = WorkloadPolicySpec(
        project=group.spec.project,
        region=region_of(group.spec.node_location),
        accelerator_topology=shape.topology,
    )
    return WorkloadPolicy(meta=_meta(group, Kind.WORKLOAD_POLICY), spec=spec)


def instance_template(group: TpuNodeGroup, config: InstanceConfig, startup_script: str) -> InstanceTemplate:
    """Return the instance template; `startup_script` is empty for machines that do not join by themselves."""
    metadata = dict(config.metadata)
    if startup_script:
        metadata[STARTUP_SCRIPT] = with_users_script(startup_script, metadata.get(STARTUP_SCRIPT, ""))
    config = replace(
        config,
        provisioning_model=config.effective_provisioning_model,
        metadata=metadata,
        # Compute Engine takes no bare name.
        subnetwork=config.subnetwork
        if "/" in config.subnetwork
        else f"regions/{region_of(group.spec.node_location)}/subnetworks/{config.subnetwork}",
    )
    spec = InstanceTemplateSpec(project=group.spec.project, config=config)
    return InstanceTemplate(meta=_meta(group, Kind.INSTANCE_TEMPLATE), spec=spec)


def users_script(group: TpuNodeGroup) -> str:
    """Return the startup script that the user gives to machines which also join by themselves; empty for none."""
    config = group.spec.instance_config
    if config is None or group.spec.bootstrap_kubernetes is None:
        return ""
    return config.metadata.get(STARTUP_SCRIPT, "")


def managed_instance_group(
    group: TpuNodeGroup, shape: GroupShape, model: ProvisioningModel, template_url: str, policy_url: str
) -> ManagedInstanceGroup:
    """Return the managed instance group.

    Machines of one slice are never made anew one by one, nor is the machine of a group of one, which is a slice, too:
    that is done here, for all at once. Others Compute Engine makes anew itself, where the terms allow it.
    """
    several = not shape.one_slice and shape.node_count > 1
    repaired = several and model in (ProvisioningModel.STANDARD, ProvisioningModel.SPOT)
    spec = ManagedInstanceGroupSpec(
        project=group.spec.project,
        location=group.spec.node_location,
        instance_template=template_url,
        target_size=shape.node_count,
        workload_policy=policy_url,
        target_size_policy_mode=shape.mode,
        default_action_on_failure=FailureAction.REPAIR if repaired else FailureAction.DO_NOTHING,
    )
    return ManagedInstanceGroup(meta=_meta(group, Kind.MANAGED_INSTANCE_GROUP), spec=spec)


def differs(found: Child, wanted: Child) -> bool:
    """Whether a child asks for something else than it is to; what the API server fills in makes no difference."""
    match found, wanted:
        case WorkloadPolicy(), WorkloadPolicy():
            return found.spec != wanted.spec
        case InstanceTemplate(), InstanceTemplate():
            config = found.spec.config
            if wanted.spec.config.subnetwork.endswith(f"/subnetworks/{config.subnetwork}"):
                # The bare name that tpu-operator writes.
                config = replace(config, subnetwork=wanted.spec.config.subnetwork)
            return _effective(config) != _effective(wanted.spec.config) or (
                found.spec.project,
                found.spec.maintenance_policy,
            ) != (wanted.spec.project, wanted.spec.maintenance_policy)
        case ManagedInstanceGroup(), ManagedInstanceGroup():
            mode = wanted.spec.effective_mode
            return found.spec != wanted.spec and (
                found.spec.effective_mode is not mode
                or replace(found.spec, target_size_policy_mode=mode)
                != replace(wanted.spec, target_size_policy_mode=mode)
            )
    return True


def _effective(config: InstanceConfig) -> InstanceConfig:
    model = config.effective_provisioning_model
    return config if config.provisioning_model is model else replace(config, provisioning_model=model)


def _meta(group: TpuNodeGroup, kind: Kind) -> ObjectMeta:
    return ObjectMeta(
        namespace=group.meta.namespace,
        name=names.child_name(group.meta, kind),
        uid="",
        labels=names.group_labels(group.meta),
        owner=Owner(kind=Kind.TPU_NODE_GROUP.value, name=group.meta.name, uid=group.meta.uid),
    )
