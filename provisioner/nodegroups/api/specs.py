"""Specs of the four kinds: description, bounds and default of each field, and the rules between fields.

Names, requirements and defaults are those of gke-labs/tpu-operator, with two differences: fields that can be derived
are optional, and combinations that never work are rejected. An absent text is empty, an absent number or choice None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from provisioner.model import bounds
from provisioner.nodegroups.api.codec import INLINE, Array, Flag, Map, Rule, Text, Whole, choice, declared, struct_of

#: Seven days, the longest run of flex-start.
_LONGEST_RUN_SECONDS = 7 * 24 * 3600
_SHORTEST_RUN_SECONDS = 10 * 60
#: Characters of Google's resource addresses. None has a special meaning in a shell or in a URL's path.
_ADDRESS = "[A-Za-z0-9:/._~-]*"
_TOPOLOGY = "[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}"


class SizePolicyMode(StrEnum):
    """Whether a managed instance group creates its machines as a whole or one by one."""

    BULK = "BULK"
    INDIVIDUAL = "INDIVIDUAL"


class ProvisioningModel(StrEnum):
    """Terms on which Compute Engine provides machines."""

    STANDARD = "STANDARD"
    SPOT = "SPOT"
    RESERVATION_BOUND = "RESERVATION_BOUND"
    FLEX_START = "FLEX_START"


class FailureAction(StrEnum):
    """Reaction of a managed instance group to a machine that failed."""

    DO_NOTHING = "DO_NOTHING"
    REPAIR = "REPAIR"


def _zone(about: str) -> Text:
    return Text(
        about=about,
        most=bounds.LABEL_VALUE,
        pattern="[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]*",
        meaning="a zone such as us-central1-c",
    )


def _project(about: str) -> Text:
    return Text(about=about, most=30, pattern="[a-z][a-z0-9-]{4,28}[a-z0-9]", meaning="the id of a project")


def _address(about: str) -> Text:
    return Text(about=about, most=bounds.RESOURCE_ADDRESS, pattern=_ADDRESS, meaning="a name or an address of Google's")


def _bytes_of_metadata(config: str) -> str:
    values = f"{config}.metadata.map(key, size(bytes({config}.metadata[key])))"
    return f"(has({config}.metadata) ? {values}.sum() : 0)"


@declared("A service account and the scopes of its tokens.", required=("email", "scopes"))
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """The account that a machine acts as."""

    email: Annotated[
        str,
        Text(
            about='Address of the service account, or "default" for that of Compute Engine.',
            most=320,
            pattern="[A-Za-z0-9@._:-]*",
            meaning="the address of a service account",
        ),
    ]
    scopes: Annotated[
        tuple[str, ...],
        Array(
            about="OAuth scopes of its tokens, as https://www.googleapis.com/auth/cloud-platform.",
            items=Text(about="One scope.", most=bounds.OBJECT_NAME, pattern=_ADDRESS, meaning="the address of a scope"),
            most=bounds.SCOPES,
        ),
    ] = ()


@declared(
    "What a machine is, in place of instanceTemplateURI.",
    rules=(
        Rule(
            cel="self.machineType.matches('^(tpu7x-|tpu7-|ct6e-).*')",
            message="Only v6 and v7 TPU machine types are supported",
            field="machineType",
        ),
        Rule(
            cel="!has(self.provisioningModel) || self.provisioningModel != 'RESERVATION_BOUND' || "
            "(has(self.reservation) && self.reservation != '')",
            message="Reservation is required when provisioningModel is RESERVATION_BOUND",
            field="reservation",
        ),
        Rule(
            cel="!has(self.reservation) || self.reservation == '' || !has(self.provisioningModel) || "
            "self.provisioningModel == 'RESERVATION_BOUND'",
            message="ProvisioningModel must be RESERVATION_BOUND when reservation is specified",
            field="provisioningModel",
        ),
        Rule(
            cel="!has(self.reservationAffinity) || !has(self.reservation) || self.reservation == ''",
            message="reservationAffinity must not be given with reservation",
            field="reservationAffinity",
        ),
        Rule(
            cel="has(self.maxRunDurationSeconds) == (has(self.provisioningModel) && "
            "self.provisioningModel == 'FLEX_START')",
            message="maxRunDurationSeconds must be given with provisioningModel FLEX_START, and only then",
            field="maxRunDurationSeconds",
        ),
        Rule(
            cel="!has(self.metadata) || self.metadata.all(key, key.matches('^[A-Za-z0-9_-]{1,128}$'))",
            message="keys of metadata have 1 to 128 letters, digits, hyphens and underscores",
            field="metadata",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """Configuration of a machine: part of a TPUNodeGroup's spec, and of its InstanceTemplate's."""

    machine_type: Annotated[
        str,
        Text(
            about="Compute Engine's machine type, such as tpu7x-standard-4t, of TPU generation v6e, tpu7 or tpu7x.",
            most=63,
        ),
    ]
    provisioning_model: Annotated[
        ProvisioningModel | None,
        choice(
            "Default: RESERVATION_BOUND with a reservation, else STANDARD. FLEX_START waits for capacity and has it "
            "for maxRunDurationSeconds.",
            ProvisioningModel,
        ),
    ] = None
    reservation: Annotated[
        str,
        _address(
            "The reservation of the machines, by its name or, of another project, its path; with RESERVATION_BOUND, "
            "and only then."
        ),
    ] = ""
    reservation_affinity: Annotated[
        str,
        choice(
            "Whether machines without reservation use others that match. Default: NO_RESERVATION with FLEX_START, else "
            "ANY_RESERVATION.",
            ("ANY_RESERVATION", "NO_RESERVATION"),
        ),
    ] = ""
    max_run_duration_seconds: Annotated[
        int | None,
        Whole(
            about="Seconds after which Google removes the machines; with FLEX_START, and only then.",
            least=_SHORTEST_RUN_SECONDS,
            most=_LONGEST_RUN_SECONDS,
        ),
    ] = None
    image: Annotated[str, _address("The image of the boot disk, as projects/PROJECT/global/images/NAME.")] = ""
    boot_disk_size_gb: Annotated[
        int | None,
        Whole(about="Size of the boot disk in GB, at least that of its image.", least=10, most=65_536),
        "bootDiskSizeGB",
    ] = None
    disk_type: Annotated[str, _address("Type of the boot disk, such as hyperdisk-balanced.")] = ""
    secure_boot: Annotated[
        bool, Flag(about="Whether machines run only signed boot software and drivers; the image must support it.")
    ] = False
    subnetwork: Annotated[str, _address("The subnetwork of the machines, by its name or its path.")] = "default"
    service_accounts: Annotated[
        tuple[ServiceAccount, ...],
        Array(
            about="The service account that the machines act as; Compute Engine takes one.",
            items=struct_of(ServiceAccount),
            most=1,
        ),
    ] = ()
    network_tags: Annotated[
        tuple[str, ...],
        Array(
            about="Tags by which firewall rules choose the machines.",
            items=Text(
                about="One tag.",
                most=63,
                pattern="[a-z]([-a-z0-9]*[a-z0-9])?",
                meaning="a network tag of lower-case letters, digits and hyphens",
            ),
            most=bounds.NETWORK_TAGS,
        ),
    ] = ()
    metadata: Annotated[
        Mapping[str, str],
        Map(
            about="Metadata of the machines, by key. Nodes register with the labels in kube-labels (KEY=VALUE, "
            "comma-separated) and the taints in kube-taints (KEY=VALUE:EFFECT). With bootstrapKubernetes a "
            "startup-script runs at each boot, before the machine joins.",
            values=Text(about="One value.", most=bounds.METADATA_VALUE),
            most=bounds.METADATA_ENTRIES,
        ),
    ] = field(default_factory=dict)

    @property
    def effective_provisioning_model(self) -> ProvisioningModel:
        """The provisioning model in effect. If it is not set, it follows from the reservation."""
        if self.provisioning_model is not None:
            return self.provisioning_model
        return ProvisioningModel.RESERVATION_BOUND if self.reservation else ProvisioningModel.STANDARD


@declared(
    "How the machines join this cluster by kubeadm; without it their image must make them join.",
    rules=(
        Rule(
            cel="!has(self.controlPlanePort) || (has(self.controlPlaneIP) && self.controlPlaneIP != '')",
            message="controlPlanePort must be given with controlPlaneIP only",
            field="controlPlanePort",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapConfig:
    """How machines join the cluster. Fields that are not set have the values of the cluster."""

    version: Annotated[
        str,
        Text(
            about="The minor version of Kubernetes, such as 1.31. Default: that of the cluster.",
            most=8,
            pattern="(1\\.[0-9]{1,3})?",
            meaning='a minor version of Kubernetes such as "1.31"',
        ),
    ] = ""
    control_plane_ip: Annotated[
        str,
        Text(
            about="Address of the API server. Default: the one that the cluster publishes.",
            most=bounds.OBJECT_NAME,
            pattern="[A-Za-z0-9.-]*",
            meaning="an IPv4 address or a host name; the port goes into controlPlanePort",
        ),
        "controlPlaneIP",
    ] = ""
    control_plane_port: Annotated[
        int | None, Whole(about="Port of the API server at controlPlaneIP. Default: 6443.", least=1, most=65_535)
    ] = None


@declared(
    "The machines that are wanted. Nothing in it can be changed: create another group instead.",
    fixed=True,
    rules=(
        Rule(
            cel="!has(self.nodeCount) || !has(self.targetSizePolicyMode) || self.nodeCount > 1 || "
            "self.targetSizePolicyMode == 'INDIVIDUAL'",
            message="targetSizePolicyMode must be INDIVIDUAL when nodeCount is 1 or less",
            field="targetSizePolicyMode",
        ),
        Rule(
            cel="has(self.instanceConfig) || has(self.instanceTemplateURI)",
            message="Either InstanceConfig or InstanceTemplateURI must be specified",
        ),
        Rule(
            cel="!(has(self.instanceConfig) && has(self.instanceTemplateURI))",
            message="InstanceConfig and InstanceTemplateURI cannot be specified together",
        ),
        Rule(
            cel="!has(self.instanceTemplateURI) || !has(self.bootstrapKubernetes)",
            message="Bootstrapping is not supported when bringing your own instance template",
            field="bootstrapKubernetes",
        ),
        Rule(
            cel="!has(self.instanceTemplateURI) || self.instanceTemplateURI.matches('^projects/' + self.project + "
            "'/(locations/[^/]+|regions/[^/]+|global)/instanceTemplates/[a-z0-9-]+$')",
            message="InstanceTemplateURI must belong to the same project as specified in spec.project",
            field="instanceTemplateURI",
        ),
        Rule(
            cel=f"!has(self.instanceConfig) || {_bytes_of_metadata('self.instanceConfig')} <= {bounds.METADATA_VALUE}",
            message=f"all values of metadata together have at most {bounds.METADATA_VALUE:,} bytes",
            field="instanceConfig",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroupSpec:
    """One slice, or machines that are a slice each. `shape.resolve` derives which, and the values that are not set."""

    project: Annotated[str, _project("The project in which the machines are created.")]
    node_location: Annotated[str, _zone("The zone in which the machines are created, such as us-central1-c.")]
    instance_template_uri: Annotated[
        str,
        Text(
            about="An existing instance template, as projects/PROJECT/global/instanceTemplates/NAME, in place of "
            "instanceConfig.",
            most=255,
        ),
        "instanceTemplateURI",
    ] = ""
    instance_config: InstanceConfig | None = None
    node_count: Annotated[
        int | None,
        Whole(about="Number of machines. Default: that of the topology, else 1.", least=1, most=bounds.GROUP_NODES),
    ] = None
    min_node_count: Annotated[
        int, Whole(about="Has no effect: a slice has all its machines or none.", most=bounds.GROUP_NODES, default=0)
    ] = 0
    accelerator_connection_mode: Annotated[
        str, choice("How the chips are connected. static is the same as STATIC.", ("STATIC", "static"))
    ] = "STATIC"
    topology: Annotated[
        str,
        Text(
            about="Chips of the slice along each axis, such as 2x2x2. Default: that of a single machine.",
            most=bounds.LABEL_VALUE,
            pattern=f"({_TOPOLOGY})?",
            meaning="a topology such as 4x4 or 2x2x2",
        ),
    ] = ""
    bootstrap_kubernetes: BootstrapConfig | None = None
    target_size_policy_mode: Annotated[
        SizePolicyMode | None,
        choice(
            "BULK creates all machines at once or none, INDIVIDUAL one by one, for machines that are a slice each. "
            "Default: derived from the topology.",
            SizePolicyMode,
        ),
    ] = None


@declared("The workload policy that is wanted. It cannot be changed in Compute Engine.", all_fixed=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicySpec:
    """A resource policy of Compute Engine: how the machines of a slice are wired."""

    project: Annotated[str, _project("The project in which the policy is created.")]
    region: Annotated[
        str,
        Text(
            about="The region in which the policy is created, such as us-central1.",
            most=bounds.LABEL_VALUE,
            pattern="[a-z]+-[a-z]+[0-9]+",
            meaning="a region such as us-central1",
        ),
    ]
    accelerator_topology: Annotated[
        str,
        Text(
            about="Chips of the slice along each axis, such as 2x2x2.",
            most=bounds.LABEL_VALUE,
            pattern=_TOPOLOGY,
            meaning="a topology such as 4x4 or 2x2x2",
        ),
    ]
    type: Annotated[
        str, choice("The type of the workload policy; there is one type for TPUs.", ("HIGH_THROUGHPUT",))
    ] = "HIGH_THROUGHPUT"


@declared("The boot disk of the machines.")
@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDisk:
    """Boot disk of an instance template."""

    auto_delete: Annotated[
        bool, Flag(about="Has no effect: boot disks of TPU machines are always deleted with them.")
    ] = True


@declared(
    "The instance template that is wanted. It cannot be changed in Compute Engine.",
    all_fixed=True,
    rules=(
        Rule(
            cel=f"{_bytes_of_metadata('self')} <= {bounds.TEMPLATE_METADATA}",
            message=f"all values of metadata together have at most {bounds.TEMPLATE_METADATA:,} bytes",
            field="metadata",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTemplateSpec:
    """An instance template of Compute Engine."""

    project: Annotated[str, _project("The project in which the template is created.")]
    config: Annotated[InstanceConfig, INLINE]
    maintenance_policy: Annotated[
        str,
        choice(
            "What happens to a machine during maintenance of its host; TPU machines cannot be moved.", ("TERMINATE",)
        ),
    ] = "TERMINATE"
    boot_disk: TemplateDisk = field(default_factory=TemplateDisk)


@declared(
    "The managed instance group that is wanted. It cannot be changed: a slice has all its machines or none.",
    all_fixed=True,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstanceGroupSpec:
    """A managed instance group of Compute Engine."""

    project: Annotated[str, _project("The project in which the machines are created.")]
    location: Annotated[str, _zone("The zone in which the machines are created, such as us-central1-c.")]
    instance_template: Annotated[
        str,
        Text(
            about="Address of the instance template from which the machines are created.",
            most=bounds.RESOURCE_ADDRESS,
            pattern="[A-Za-z0-9:/._~-]+",
            meaning="the address of an instance template",
        ),
    ]
    target_size: Annotated[int, Whole(about="Number of machines.", least=1, most=bounds.GROUP_NODES)]
    workload_policy: Annotated[
        str, _address("Address of the workload policy that wires the machines of one slice.")
    ] = ""
    target_size_policy_mode: Annotated[
        SizePolicyMode | None,
        choice(
            "BULK creates all machines at once or none, INDIVIDUAL one by one. Default: BULK with a workload policy, "
            "INDIVIDUAL without one.",
            SizePolicyMode,
        ),
    ] = None
    default_action_on_failure: Annotated[
        FailureAction,
        choice(
            "What Compute Engine does about a machine that fails; a machine that is repaired alone is not wired to "
            "its slice.",
            FailureAction,
        ),
    ] = FailureAction.DO_NOTHING

    @property
    def effective_mode(self) -> SizePolicyMode:
        """The mode in effect. If it is not set, it follows from the workload policy."""
        if self.target_size_policy_mode is not None:
            return self.target_size_policy_mode
        return SizePolicyMode.BULK if self.workload_policy else SizePolicyMode.INDIVIDUAL
