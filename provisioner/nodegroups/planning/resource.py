"""Compares children with the existing resources, and checks new templates and users' templates. Pure."""

from provisioner.model import bounds
from provisioner.nodegroups.api.shape import MACHINE_TYPE_PREFIXES
from provisioner.nodegroups.api.specs import InstanceConfig, ProvisioningModel, SizePolicyMode
from provisioner.nodegroups.api.statuses import Condition, Reason, not_ready
from provisioner.nodegroups.api.types import (
    Child,
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    WorkloadPolicy,
)
from provisioner.nodegroups.compute import records
from provisioner.nodegroups.compute.resources import TERMINATION_ACTIONS
from provisioner.nodegroups.planning.actions import Target
from provisioner.nodegroups.planning.ownership import names_others
from provisioner.nodegroups.planning.round import Round

#: Suffix of the address of a project's default service account of Compute Engine.
_DEFAULT_ACCOUNTS = "-compute@developer.gserviceaccount.com"


def difference(child: Child, actual: records.Resource) -> str:
    """Return how a resource differs from its object in the compared fields; empty if it does not."""
    match child, actual:
        case WorkloadPolicy(spec=policy), records.ResourcePolicy():
            if (policy.type, policy.accelerator_topology) == (actual.type, actual.topology):
                return ""
            return (
                f"it has type {actual.type or 'none'} and topology {actual.topology or 'none'}, and cannot be changed; "
                "delete this object to recreate it"
            )
        case InstanceTemplate(spec=template), records.Template():
            config, model = template.config, actual.provisioning_model or ProvisioningModel.STANDARD
            same = {
                "machine type": config.machine_type == actual.machine_type,
                "provisioning model": config.effective_provisioning_model == model,
                "metadata": dict(config.metadata) == dict(actual.metadata),
            }
            advice = ", and cannot be changed; it is recreated with its slice"
        case ManagedInstanceGroup(spec=manager), records.Manager():
            same = {
                "template": records.same_resource(manager.instance_template, actual.template),
                "mode": manager.effective_mode == (actual.mode or SizePolicyMode.INDIVIDUAL),
                "workload policy": records.same_resource(manager.workload_policy, actual.policy),
            }
            advice = "; delete this object to recreate it"
        case _:
            return ""
    differ = [name for name, equal in same.items() if not equal]
    return f"it has another {' and another '.join(differ)}{advice}" if differ else ""


def not_to_be_used(child: InstanceTemplate, ctx: Round) -> Condition | None:
    """Return a refusal if a new template would use resources that its namespace may not use."""
    for account in child.spec.config.service_accounts:
        if account.email.endswith(_DEFAULT_ACCOUNTS):
            message = (
                f"serviceAccounts {bounds.quoted(account.email)} does not name its project; "
                'use "default" for the account of the project of the machines'
            )
            return not_ready(Reason.NOT_ALLOWED, message)
    return names_others(child.meta.namespace, _addresses(child.spec.config), ctx)


def external_target(group: ObjectMeta, uri: str) -> Target | None:
    """Return the target for a user's template, None if `uri` is not the address of a template."""
    link = records.parse_link(uri)
    if link is None or link.collection != "instanceTemplates" or link.scope.zone:
        return None
    return Target(
        uid=group.uid, namespace=group.namespace, kind=Kind.INSTANCE_TEMPLATE, scope=link.scope, name=link.name
    )


def external_problem(template: records.Template) -> str:
    """Return why a user's template cannot create TPU nodes, empty if it can."""
    if not template.machine_type.startswith(MACHINE_TYPE_PREFIXES):
        return (
            f"its machine type {bounds.quoted(template.machine_type)} is not supported by TPUNodeGroups: "
            f"{', '.join(prefix + '*' for prefix in MACHINE_TYPE_PREFIXES)}"
        )
    if template.on_host_maintenance != records.TERMINATE:
        return f"its onHostMaintenance is {template.on_host_maintenance or 'not set'}; TPU machines need TERMINATE"
    models = {model.value: model for model in ProvisioningModel}
    model = models.get(template.provisioning_model or ProvisioningModel.STANDARD)
    if model is None:
        return (
            f"its provisioningModel is {bounds.quoted(template.provisioning_model)}, but must be one of "
            f"{', '.join(models)}"
        )
    action = TERMINATION_ACTIONS[model]
    if action and template.termination_action != action:
        return (
            f"its instanceTerminationAction is {template.termination_action or 'not set'}; with provisioningModel "
            f"{model.value} it must be {action}"
        )
    return ""


def _addresses(config: InstanceConfig) -> dict[str, str]:
    """Return the addresses in a template by field. Any address, also of an account, may contain another project."""
    addresses = {
        "image": config.image,
        "diskType": config.disk_type,
        "subnetwork": config.subnetwork,
        "reservation": config.reservation,
    }
    for account in config.service_accounts:
        if account.email != "default":
            # If the account has another ending, the whole host counts as its project and is therefore not allowed.
            host = account.email.rpartition("@")[2]
            project = host.removesuffix(".iam.gserviceaccount.com")
            addresses["serviceAccounts"] = f"projects/{project}/serviceAccounts/{account.email}"
    return addresses
