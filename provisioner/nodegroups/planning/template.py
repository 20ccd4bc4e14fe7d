"""Workload policies, which wire the machines of a slice, and instance templates: what each machine is.

Neither is changed once it is made.
"""

from __future__ import annotations

from provisioner.model import bounds
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import MACHINE_TYPE_PREFIXES
from provisioner.nodegroups.api.specs import InstanceConfig, ProvisioningModel
from provisioner.nodegroups.api.statuses import Condition, Reason, not_ready
from provisioner.nodegroups.api.types import InstanceTemplate, Kind, WorkloadPolicy
from provisioner.nodegroups.compute.records import (
    DELETE,
    READY,
    REGION,
    STOP,
    TERMINATE,
    ResourcePolicy,
    Scope,
    Template,
    parse_link,
)
from provisioner.nodegroups.planning.actions import Target
from provisioner.nodegroups.planning.child import Hold, Rules, in_use
from provisioner.nodegroups.planning.memory import ResourceMemory
from provisioner.nodegroups.planning.ownership import invalid, names_others, not_allowed
from provisioner.nodegroups.planning.round import Round

#: What Google does with a machine that it takes away, as the managed instance groups of TPUs want it.
TERMINATION_ACTIONS = {
    ProvisioningModel.RESERVATION_BOUND: DELETE,
    ProvisioningModel.FLEX_START: DELETE,
    ProvisioningModel.SPOT: STOP,
    ProvisioningModel.STANDARD: "",
}
#: How the addresses of projects' default accounts of Compute Engine end.
_DEFAULT_ACCOUNTS = "-compute@developer.gserviceaccount.com"


class PolicyRules(Rules[WorkloadPolicy, ResourcePolicy]):
    """What is particular to workload policies."""

    what = "workload policy"
    settled_seconds = 3600.0

    def scope(self, child: WorkloadPolicy) -> Scope:
        """Return the region."""
        return Scope(project=child.spec.project, region=child.spec.region)

    def refusal(self, child: WorkloadPolicy, round_: Round) -> Condition | None:
        """Say why it is not served."""
        problem = names.resource_name_problem(child.meta.name)
        if not problem and not REGION.fullmatch(child.spec.region):
            problem = f"region {bounds.quoted(child.spec.region)} is not a region such as us-east5"
        return invalid(problem) if problem else not_allowed(child.meta, child.spec.project, round_)

    def body(self, child: WorkloadPolicy, mark: str) -> ResourcePolicy:
        """Return what Compute Engine is asked for."""
        return ResourcePolicy(
            name=child.meta.name,
            description=mark,
            type=child.spec.type,
            topology=child.spec.accelerator_topology,
        )

    def difference(self, child: WorkloadPolicy, resource: ResourcePolicy) -> str:
        """Say in what the resource is another one."""
        asked = (child.spec.type, child.spec.accelerator_topology)
        if asked == (resource.type, resource.topology):
            return ""
        return (
            f"it has type {resource.type or 'none'} and topology {resource.topology or 'none'}, and cannot be changed; "
            "delete this object to have it made anew"
        )

    def not_usable(self, resource: ResourcePolicy) -> str:
        """Say why the policy cannot be used yet."""
        return "" if resource.status in ("", READY) else f"the workload policy is {resource.status}"

    def hold(self, child: WorkloadPolicy, known: ResourceMemory, round_: Round) -> Hold:  # noqa: ARG002
        """Wait for what uses it."""
        return in_use(child, round_)


class TemplateRules(Rules[InstanceTemplate, Template]):
    """What is particular to instance templates."""

    what = "instance template"
    settled_seconds = 3600.0

    def scope(self, child: InstanceTemplate) -> Scope:
        """Return its project: it is global."""
        return Scope(project=child.spec.project)

    def refusal(self, child: InstanceTemplate, round_: Round) -> Condition | None:
        """Say why it is not served."""
        problem = names.resource_name_problem(child.meta.name)
        return invalid(problem) if problem else not_allowed(child.meta, child.spec.project, round_)

    def not_to_be_made(self, child: InstanceTemplate, round_: Round) -> Condition | None:
        """Say whose it would use."""
        for account in child.spec.config.service_accounts:
            if account.email.endswith(_DEFAULT_ACCOUNTS):
                message = (
                    f"serviceAccounts {bounds.quoted(account.email)} does not say of which project it is; "
                    'use "default" for the account of the project of the machines'
                )
                return not_ready(Reason.NOT_ALLOWED, message)
        return names_others(child.meta.namespace, _addresses(child.spec.config), round_)

    def body(self, child: InstanceTemplate, mark: str) -> Template:
        """Return what Compute Engine is asked for."""
        config = child.spec.config
        model = config.effective_provisioning_model
        return Template(
            name=child.meta.name,
            description=mark,
            machine_type=config.machine_type,
            provisioning_model=model.value,
            on_host_maintenance=child.spec.maintenance_policy,
            termination_action=TERMINATION_ACTIONS[model],
            metadata=dict(config.metadata),
            config=config,
        )

    def difference(self, child: InstanceTemplate, resource: Template) -> str:
        """Say in what the resource is another one, as far as Google gives back what it was asked for."""
        asked = child.spec.config
        differ = [
            name
            for name, wanted, found in (
                ("machine type", asked.machine_type, resource.machine_type),
                (
                    "provisioning model",
                    asked.effective_provisioning_model.value,
                    resource.provisioning_model or ProvisioningModel.STANDARD,
                ),
                ("metadata", dict(asked.metadata), dict(resource.metadata)),
            )
            if wanted != found
        ]
        if not differ:
            return ""
        return f"it has another {' and another '.join(differ)}, and cannot be changed; it is made anew with its slice"

    def hold(self, child: InstanceTemplate, known: ResourceMemory, round_: Round) -> Hold:  # noqa: ARG002
        """Wait for what uses it."""
        return in_use(child, round_)


def external_target(uid: str, uri: str) -> Target | None:
    """Return the template that a group's user names; None for a text that names none."""
    link = parse_link(uri)
    if link is None or link.collection != "instanceTemplates" or link.scope.zone:
        return None
    return Target(uid=uid, kind=Kind.INSTANCE_TEMPLATE, scope=link.scope, name=link.name)


def external_problem(template: Template) -> str:
    """Say why a template that a user names cannot make TPU nodes; empty where it can."""
    if not template.machine_type.startswith(MACHINE_TYPE_PREFIXES):
        return (
            f"its machine type {bounds.quoted(template.machine_type)} is none of a TPUNodeGroup's: "
            f"{', '.join(each + '*' for each in MACHINE_TYPE_PREFIXES)}"
        )
    if not template.has_scheduling:
        return "it says nothing of scheduling; set onHostMaintenance TERMINATE"
    if template.on_host_maintenance != TERMINATE:
        return f"its onHostMaintenance is {template.on_host_maintenance or 'not set'}; TPU machines need TERMINATE"
    models = {model.value: model for model in ProvisioningModel}
    model = models.get(template.provisioning_model or ProvisioningModel.STANDARD)
    if model is None:
        return (
            f"its provisioningModel is {bounds.quoted(template.provisioning_model)}, and may be one of "
            f"{', '.join(models)}"
        )
    action = TERMINATION_ACTIONS[model]
    if action and template.termination_action != action:
        return (
            f"its instanceTerminationAction is {template.termination_action or 'not set'}; with provisioningModel "
            f"{model.value} it has to be {action}"
        )
    return ""


def _addresses(config: InstanceConfig) -> dict[str, str]:
    """Return what may be of another project, by its field; accounts as an address of their project."""
    addresses = {
        "image": config.image,
        "diskType": config.disk_type,
        "subnetwork": config.subnetwork,
        "reservation": config.reservation,
    }
    for account in config.service_accounts:
        if account.email != "default":
            # That of another form tells no project that could be allowed.
            host = account.email.rpartition("@")[2]
            project = host.removesuffix(".iam.gserviceaccount.com")
            addresses["serviceAccounts"] = f"projects/{project}/serviceAccounts/{account.email}"
    return addresses
