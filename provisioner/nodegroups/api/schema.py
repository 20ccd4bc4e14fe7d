"""All fields of the specs of the four kinds, each with its sentence, bounds, default and rules.

Names, requirements and defaults are those of gke-labs/tpu-operator, so that manifests for it apply unchanged. What it
requires and can be derived is optional here; what it takes and can never work is refused. `crds` writes
CustomResourceDefinitions from this, `parse` reads objects by it. What status has is in `statuses`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from provisioner.model import bounds
from provisioner.nodegroups.api.forms import Array, Flag, Form, Map, Rule, Struct, Text, Whole, choice, values
from provisioner.nodegroups.api.shape import MACHINE_TYPE_PREFIXES
from provisioner.nodegroups.api.types import (
    FailureAction,
    Kind,
    ProvisioningModel,
    SizePolicyMode,
)

#: Seven days, the longest run that flex-start gives.
_LONGEST_RUN_SECONDS = 7 * 24 * 3600
_SHORTEST_RUN_SECONDS = 10 * 60

# --- forms that several fields have ---

_PROJECT = "[a-z][a-z0-9-]{4,28}[a-z0-9]"
#: What Google's addresses and names in them consist of; nothing that a shell or an address would read otherwise.
_ADDRESS = "[A-Za-z0-9:/._~-]*"
_TOPOLOGY = "[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}"


def _zone(about: str) -> Text:
    return Text(
        about=about,
        most=bounds.LABEL_VALUE,
        pattern="[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]*",
        meaning="a zone such as us-central1-c",
    )


def _project(about: str) -> Text:
    return Text(about=about, most=30, pattern=_PROJECT, meaning="the id of a project")


def _address(about: str) -> Text:
    return Text(about=about, most=bounds.RESOURCE_ADDRESS, pattern=_ADDRESS, meaning="a name or an address of Google's")


# --- what a machine is: in a TPUNodeGroup, and again in its InstanceTemplate ---

INSTANCE_FIELDS: Mapping[str, Form] = {
    "machineType": Text(
        about="Compute Engine's machine type, such as tpu7x-standard-4t, of TPU generation v6e, tpu7 or tpu7x.",
        most=63,
    ),
    "provisioningModel": choice(
        "The terms on which machines are handed out. RESERVATION_BOUND where a reservation is given and this is not, "
        "else STANDARD. FLEX_START waits for capacity and has it for maxRunDurationSeconds.",
        values(ProvisioningModel),
    ),
    "reservation": _address(
        "The reservation that machines are taken from, by its name or, of another project, its path. It must be given "
        "with RESERVATION_BOUND, and only then."
    ),
    "maxRunDurationSeconds": Whole(
        about="Seconds after which Google takes the machines away: with FLEX_START, and only then.",
        least=_SHORTEST_RUN_SECONDS,
        most=_LONGEST_RUN_SECONDS,
    ),
    "image": _address("The image of the boot disk, as projects/PROJECT/global/images/NAME."),
    "bootDiskSizeGB": Whole(about="Size of the boot disk in GB, at least that of its image.", least=10, most=65_536),
    "diskType": _address("Type of the boot disk, such as hyperdisk-balanced."),
    "subnetwork": Text(
        about="The subnetwork of the machines, by its name or its path.",
        most=bounds.RESOURCE_ADDRESS,
        pattern=_ADDRESS,
        meaning="a name or an address of Google's",
        default="default",
    ),
    "serviceAccounts": Array(
        about="The service account that the machines act as; Compute Engine takes one.",
        items=Struct(
            about="A service account and what its tokens are good for.",
            fields={
                "email": Text(
                    about='Address of the service account, or "default" for that of Compute Engine.',
                    most=320,
                    pattern="[A-Za-z0-9@._:-]*",
                    meaning="the address of a service account",
                ),
                "scopes": Array(
                    about="OAuth scopes of its tokens, as https://www.googleapis.com/auth/cloud-platform.",
                    items=Text(
                        about="One scope.", most=bounds.OBJECT_NAME, pattern=_ADDRESS, meaning="the address of a scope"
                    ),
                    most=bounds.SCOPES,
                ),
            },
            required=("email", "scopes"),
        ),
        most=1,
    ),
    "networkTags": Array(
        about="Tags by which firewall rules choose the machines.",
        items=Text(
            about="One tag.",
            most=63,
            pattern="[a-z]([-a-z0-9]*[a-z0-9])?",
            meaning="a network tag of lower-case letters, digits and hyphens",
        ),
        most=bounds.NETWORK_TAGS,
    ),
    "metadata": Map(
        about="Metadata that the machines read, by key. The controller adds what they need to join. Nodes register "
        "with the labels in kube-labels (KEY=VALUE, separated by commas) and the taints in kube-taints "
        "(KEY=VALUE:EFFECT). With bootstrapKubernetes a startup-script in here runs at each boot, before the machine "
        "joins.",
        values=Text(about="One value.", most=bounds.METADATA_VALUE),
        most=bounds.METADATA_ENTRIES,
    ),
}

INSTANCE_RULES = (
    Rule(
        cel="self.machineType.matches('^(tpu7x-|tpu7-|ct6e-).*')",
        message="Only v6 and v7 TPU machine types are supported",
        holds=lambda config: config["machineType"].startswith(MACHINE_TYPE_PREFIXES),
        field="machineType",
    ),
    Rule(
        cel="!has(self.provisioningModel) || self.provisioningModel != 'RESERVATION_BOUND' || "
        "(has(self.reservation) && self.reservation != '')",
        message="Reservation is required when provisioningModel is RESERVATION_BOUND",
        holds=lambda config: (
            config.get("provisioningModel") != ProvisioningModel.RESERVATION_BOUND or bool(config.get("reservation"))
        ),
        field="reservation",
    ),
    Rule(
        cel="!has(self.reservation) || self.reservation == '' || !has(self.provisioningModel) || "
        "self.provisioningModel == 'RESERVATION_BOUND'",
        message="ProvisioningModel must be RESERVATION_BOUND when reservation is specified",
        holds=lambda config: (
            not config.get("reservation")
            or config.get("provisioningModel", "RESERVATION_BOUND") == ProvisioningModel.RESERVATION_BOUND
        ),
        field="provisioningModel",
    ),
    Rule(
        cel="has(self.maxRunDurationSeconds) == (has(self.provisioningModel) && "
        "self.provisioningModel == 'FLEX_START')",
        message="maxRunDurationSeconds must be given with provisioningModel FLEX_START, and only then",
        holds=lambda config: (
            ("maxRunDurationSeconds" in config) == (config.get("provisioningModel") == ProvisioningModel.FLEX_START)
        ),
        field="maxRunDurationSeconds",
    ),
    Rule(
        cel="!has(self.metadata) || self.metadata.all(key, key.matches('^[A-Za-z0-9_-]{1,128}$'))",
        message="keys of metadata have 1 to 128 letters, digits, hyphens and underscores",
        holds=lambda config: all(re.fullmatch("[A-Za-z0-9_-]{1,128}", key) for key in config.get("metadata", ())),
        field="metadata",
    ),
)

# --- spec of each kind ---

_BOOTSTRAP = Struct(
    about="How the machines join this cluster by kubeadm; without it their image must make them join.",
    fields={
        "version": Text(
            about="The minor version of Kubernetes, such as 1.31; that of the cluster where it is not given.",
            most=8,
            pattern="(1\\.[0-9]{1,3})?",
            meaning="a minor version of Kubernetes such as 1.31",
        ),
        "controlPlaneIP": Text(
            about="Address of the API server; the one that the cluster publishes where it is not given.",
            most=bounds.OBJECT_NAME,
            pattern="[A-Za-z0-9.:-]*",
            meaning="an address of an API server",
        ),
        "controlPlanePort": Whole(
            about="Port of the API server at controlPlaneIP; 6443 where it is not given.", least=1, most=65_535
        ),
    },
    rules=(
        Rule(
            cel="!has(self.controlPlanePort) || (has(self.controlPlaneIP) && self.controlPlaneIP != '')",
            message="controlPlanePort must be given with controlPlaneIP only",
            holds=lambda bootstrap: "controlPlanePort" not in bootstrap or bool(bootstrap.get("controlPlaneIP")),
            field="controlPlanePort",
        ),
    ),
)


def _own_template(spec: Mapping[str, Any]) -> bool:
    uri = spec.get("instanceTemplateURI")
    form = rf"projects/{re.escape(spec['project'])}/(locations/[^/]+|regions/[^/]+|global)/instanceTemplates/[a-z0-9-]+"
    return uri is None or re.fullmatch(form, uri) is not None


_GROUP_SPEC = Struct(
    about="The machines that are wanted. Nothing in it can be changed: make another group instead.",
    fields={
        "project": _project("The project that the machines are made in."),
        "nodeLocation": _zone("The zone that the machines are made in, such as us-central1-c."),
        "instanceTemplateURI": Text(
            about="An instance template that is there, as projects/PROJECT/global/instanceTemplates/NAME, in place of "
            "instanceConfig.",
            most=255,
        ),
        "instanceConfig": Struct(
            about="What a machine is, in place of instanceTemplateURI.",
            fields=INSTANCE_FIELDS,
            required=("machineType",),
            rules=INSTANCE_RULES,
        ),
        "nodeCount": Whole(
            about="Number of machines. That of the topology where it is not given, and 1 without a topology.",
            least=1,
            most=bounds.GROUP_NODES,
        ),
        "minNodeCount": Whole(
            about="Has no effect: a slice has all its machines or none.", most=bounds.GROUP_NODES, default=0
        ),
        "acceleratorConnectionMode": choice(
            "How the chips are connected: STATIC is the only way. static is the same, for manifests of older releases.",
            ("STATIC", "static"),
            "STATIC",
        ),
        "topology": Text(
            about="Chips of the slice along each axis, such as 2x2x2. That of a single machine where it is not given.",
            most=bounds.LABEL_VALUE,
            pattern=f"({_TOPOLOGY})?",
            meaning="a topology such as 4x4 or 2x2x2",
        ),
        "bootstrapKubernetes": _BOOTSTRAP,
        "targetSizePolicyMode": choice(
            "BULK makes all machines at once or none, for a slice of several; INDIVIDUAL makes each for itself, for "
            "machines that are a slice each. Derived from the topology where it is not given.",
            values(SizePolicyMode),
        ),
    },
    required=("project", "nodeLocation"),
    fixed=(
        "project",
        "nodeLocation",
        "instanceTemplateURI",
        "instanceConfig",
        "nodeCount",
        "minNodeCount",
        "acceleratorConnectionMode",
        "topology",
        "bootstrapKubernetes",
        "targetSizePolicyMode",
    ),
    rules=(
        Rule(
            cel="!has(self.nodeCount) || !has(self.targetSizePolicyMode) || self.nodeCount > 1 || "
            "self.targetSizePolicyMode == 'INDIVIDUAL'",
            message="targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less",
            holds=lambda spec: spec.get("nodeCount", 2) > 1 or spec.get("targetSizePolicyMode") != SizePolicyMode.BULK,
            field="targetSizePolicyMode",
        ),
        Rule(
            cel="has(self.instanceConfig) || has(self.instanceTemplateURI)",
            message="Either InstanceConfig or InstanceTemplateURI must be specified",
            holds=lambda spec: "instanceConfig" in spec or "instanceTemplateURI" in spec,
        ),
        Rule(
            cel="!(has(self.instanceConfig) && has(self.instanceTemplateURI))",
            message="InstanceConfig and InstanceTemplateURI cannot be specified together",
            holds=lambda spec: not ("instanceConfig" in spec and "instanceTemplateURI" in spec),
        ),
        Rule(
            cel="!has(self.instanceTemplateURI) || !has(self.bootstrapKubernetes)",
            message="Bootstrapping is not supported when bringing your own instance template",
            holds=lambda spec: not ("instanceTemplateURI" in spec and "bootstrapKubernetes" in spec),
            field="bootstrapKubernetes",
        ),
        Rule(
            cel="!has(self.instanceTemplateURI) || self.instanceTemplateURI.matches('^projects/' + self.project + "
            "'/(locations/[^/]+|regions/[^/]+|global)/instanceTemplates/[a-z0-9-]+$')",
            message="InstanceTemplateURI must belong to the same project as specified in spec.project",
            holds=_own_template,
            field="instanceTemplateURI",
        ),
    ),
)

_POLICY_SPEC = Struct(
    about="The workload policy that is wanted. It cannot be changed: Compute Engine changes none.",
    fields={
        "project": _project("The project that the policy is made in."),
        "region": Text(
            about="The region that the policy is made in, such as us-central1.",
            most=bounds.LABEL_VALUE,
            pattern="[a-z]+-[a-z]+[0-9]+",
            meaning="a region such as us-central1",
        ),
        "acceleratorTopology": Text(
            about="Chips of the slice along each axis, such as 2x2x2.",
            most=bounds.LABEL_VALUE,
            pattern=_TOPOLOGY,
            meaning="a topology such as 4x4 or 2x2x2",
        ),
        "type": choice("The sort of workload policy; there is one for TPUs.", ("HIGH_THROUGHPUT",), "HIGH_THROUGHPUT"),
    },
    required=("project", "region", "acceleratorTopology"),
    all_fixed=True,
)

_TEMPLATE_SPEC = Struct(
    about="The instance template that is wanted. It cannot be changed: Compute Engine changes none.",
    fields={
        "project": _project("The project that the template is made in."),
        **INSTANCE_FIELDS,
        "maintenancePolicy": choice(
            "What becomes of a machine while its host is maintained; TPU machines cannot be moved.",
            ("TERMINATE",),
            "TERMINATE",
        ),
        "bootDisk": Struct(
            about="The boot disk of the machines.",
            fields={
                "autoDelete": Flag(
                    about="Has no effect: boot disks of TPU machines are always deleted with them.", default=True
                )
            },
            default=MappingProxyType({"autoDelete": True}),
        ),
    },
    required=("project", "machineType"),
    rules=INSTANCE_RULES,
    all_fixed=True,
)

_MANAGER_SPEC = Struct(
    about="The managed instance group that is wanted. It cannot be changed: a slice has all its machines or none.",
    fields={
        "project": _project("The project that the machines are made in."),
        "location": _zone("The zone that the machines are made in, such as us-central1-c."),
        "instanceTemplate": Text(
            about="Address of the instance template that the machines are made from.",
            most=bounds.RESOURCE_ADDRESS,
            pattern="[A-Za-z0-9:/._~-]+",
            meaning="the address of an instance template",
        ),
        "targetSize": Whole(about="Number of machines.", least=1, most=bounds.GROUP_NODES),
        "workloadPolicy": _address("Address of the workload policy that wires the machines of one slice."),
        "targetSizePolicyMode": choice(
            "BULK makes all machines at once or none, INDIVIDUAL each for itself. BULK with a workload policy and "
            "INDIVIDUAL without one where it is not given.",
            values(SizePolicyMode),
        ),
        "defaultActionOnFailure": choice(
            "What Compute Engine does about a machine that fails; a machine that is repaired alone is not wired to "
            "its slice.",
            values(FailureAction),
            FailureAction.DO_NOTHING.value,
        ),
    },
    required=("project", "location", "instanceTemplate", "targetSize"),
    all_fixed=True,
)

SPECS: Mapping[Kind, Struct] = MappingProxyType(
    {
        Kind.TPU_NODE_GROUP: _GROUP_SPEC,
        Kind.WORKLOAD_POLICY: _POLICY_SPEC,
        Kind.INSTANCE_TEMPLATE: _TEMPLATE_SPEC,
        Kind.MANAGED_INSTANCE_GROUP: _MANAGER_SPEC,
    }
)
