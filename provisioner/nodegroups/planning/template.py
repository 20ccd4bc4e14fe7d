"""Instance templates: what each machine of a group is. Global, and never changed once they are made."""

from __future__ import annotations

from provisioner.model import bounds
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.conditions import Reason
from provisioner.nodegroups.api.shape import MACHINE_TYPE_PREFIXES
from provisioner.nodegroups.api.specs import InstanceConfig, ProvisioningModel
from provisioner.nodegroups.api.types import InstanceTemplate, Kind
from provisioner.nodegroups.compute.links import parse_link
from provisioner.nodegroups.compute.records import (
    DELETE,
    STANDARD,
    STOP,
    TERMINATE,
    BootDisk,
    Scope,
    ServiceAccount,
    Template,
)
from provisioner.nodegroups.planning.calls import Resource, Target
from provisioner.nodegroups.planning.child import Case, Hold, Rules, in_use
from provisioner.nodegroups.planning.refusal import Refusal, invalid, names_others, not_allowed
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


class TemplateRules(Rules[InstanceTemplate]):
    """What is particular to instance templates."""

    kind = Kind.INSTANCE_TEMPLATE
    what = "instance template"
    settled_seconds = 3600.0

    def target(self, child: InstanceTemplate) -> Target:
        """Return its resource, which is global."""
        return Target(uid=child.meta.uid, kind=self.kind, scope=Scope(project=child.spec.project), name=child.meta.name)

    def refusal(self, child: InstanceTemplate, round_: Round) -> Refusal | None:
        """Say why it is not served."""
        problem = names.resource_name_problem(child.meta.name)
        return invalid(problem) if problem else not_allowed(child.meta, child.spec.project, round_)

    def not_to_be_made(self, child: InstanceTemplate, round_: Round) -> Refusal | None:
        """Say whose it would use."""
        for account in child.spec.config.service_accounts:
            if account.email.endswith(_DEFAULT_ACCOUNTS):
                message = (
                    f"serviceAccounts {bounds.quoted(account.email)} does not say of which project it is; "
                    'use "default" for the account of the project of the machines'
                )
                return Refusal(reason=Reason.NOT_ALLOWED, message=message)
        return names_others(child.meta.namespace, _addresses(child.spec.config), round_)

    def body(self, child: InstanceTemplate, mark: str) -> Resource:
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
            max_run_seconds=config.max_run_duration_seconds or 0,
            reservation=config.reservation,
            metadata=dict(config.metadata),
            boot_disk=_boot_disk(config),
            subnetwork=config.subnetwork,
            tags=config.network_tags,
            service_accounts=tuple(
                ServiceAccount(email=account.email, scopes=account.scopes) for account in config.service_accounts
            ),
        )

    def difference(self, child: InstanceTemplate, resource: Resource) -> str:
        """Say in what the resource is another one, as far as Google gives back what it was asked for."""
        if not isinstance(resource, Template):
            return "it is no instance template"
        asked = child.spec.config
        differ = [
            name
            for name, wanted, found in (
                ("machine type", asked.machine_type, resource.machine_type),
                (
                    "provisioning model",
                    asked.effective_provisioning_model.value,
                    resource.provisioning_model or STANDARD,
                ),
                ("metadata", dict(asked.metadata), dict(resource.metadata)),
            )
            if wanted != found
        ]
        if not differ:
            return ""
        return f"it has another {' and another '.join(differ)}, and cannot be changed; it is made anew with its slice"

    def not_usable(self, resource: Resource) -> str:
        """Say why the template cannot be used: it can as soon as it is there."""
        return "" if isinstance(resource, Template) else "it is no instance template"

    def hold(self, case: Case[InstanceTemplate]) -> Hold:
        """Wait for what uses it."""
        return in_use(self.kind, case.child, case.round)


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
    model = models.get(template.provisioning_model or STANDARD)
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


def _boot_disk(config: InstanceConfig) -> BootDisk | None:
    if not (config.image or config.boot_disk_size_gb or config.disk_type):
        return None
    return BootDisk(image=config.image, size_gb=config.boot_disk_size_gb or 0, type=config.disk_type)
