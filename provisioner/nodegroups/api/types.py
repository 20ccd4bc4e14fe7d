"""The four kinds of tpu.google.com/v1alpha1 as records.

Field names are those of the API in Python's spelling. An optional text that is absent is empty; an optional number or
choice that is absent is None. Times are in UTC and have whole seconds, as the API's have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Self

from provisioner.nodegroups.api.conditions import Condition

GROUP = "tpu.google.com"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Kind(StrEnum):
    """The kinds: a TPUNodeGroup, and its children, each of which stands for one resource of Compute Engine."""

    TPU_NODE_GROUP = "TPUNodeGroup"
    WORKLOAD_POLICY = "WorkloadPolicy"
    INSTANCE_TEMPLATE = "InstanceTemplate"
    MANAGED_INSTANCE_GROUP = "ManagedInstanceGroup"

    @property
    def plural(self) -> str:
        """The kind's name in paths."""
        return _PLURALS[self]


_PLURALS = {
    Kind.TPU_NODE_GROUP: "tpunodegroups",
    Kind.WORKLOAD_POLICY: "workloadpolicies",
    Kind.INSTANCE_TEMPLATE: "instancetemplates",
    Kind.MANAGED_INSTANCE_GROUP: "managedinstancegroups",
}


class SizePolicyMode(StrEnum):
    """Whether a managed instance group makes its machines all at once or one by one."""

    BULK = "BULK"
    INDIVIDUAL = "INDIVIDUAL"


class ProvisioningModel(StrEnum):
    """The terms on which Compute Engine hands out machines."""

    STANDARD = "STANDARD"
    SPOT = "SPOT"
    RESERVATION_BOUND = "RESERVATION_BOUND"
    #: Not in gke-labs/tpu-operator.
    FLEX_START = "FLEX_START"


class FailureAction(StrEnum):
    """What a managed instance group does about a machine that failed."""

    DO_NOTHING = "DO_NOTHING"
    REPAIR = "REPAIR"


class OperationType(StrEnum):
    """What an operation of Compute Engine does."""

    CREATE = "CREATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The one owner that controls an object."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """What matters of an object's metadata."""

    namespace: str
    name: str
    uid: str
    #: Counts changes of spec.
    generation: int = 0
    resource_version: str = ""
    created_at: datetime | None = None
    #: deletionTimestamp: when somebody asked for the deletion.
    deleted_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Only those that are read (`names.READ_ANNOTATIONS`).
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None

    @property
    def deleting(self) -> bool:
        """Whether somebody asked for the deletion; the object stays until its last finalizer goes."""
        return self.deleted_at is not None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRef:
    """An operation of Compute Engine that has not been seen to end."""

    name: str
    type: OperationType
    #: Which attempt of the object's it is, from 1: a part of its request id (`names.request_id`).
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """Status of a child: of the one resource of Compute Engine that it stands for."""

    conditions: tuple[Condition, ...] = ()
    #: The generation that the status was concluded from; 0 for none.
    observed_generation: int = 0
    #: Where the resource is; empty until it is there.
    url: str = ""
    operation: OperationRef | None = None
    #: Attempts on record, that of an open operation included: numbers that are not used again.
    attempts: int = 0

    @property
    def next_attempt(self) -> int:
        """The attempt that a new request belongs to. It stays the same until one is on record, so also over a crash."""
        return self.attempts + 1

    def with_operation(self, operation: OperationRef) -> Self:
        """Return the status with an operation that has begun."""
        return replace(self, operation=operation, attempts=max(self.attempts, operation.attempt))

    def without_operation(self) -> Self:
        """Return the status after the operation has ended."""
        return replace(self, operation=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """The account that a machine acts as."""

    email: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """What a machine is."""

    machine_type: str
    #: None where it is to be derived.
    provisioning_model: ProvisioningModel | None = None
    reservation: str = ""
    #: Only of FLEX_START.
    max_run_duration_seconds: int | None = None
    image: str = ""
    boot_disk_size_gb: int | None = None
    disk_type: str = ""
    subnetwork: str = "default"
    service_accounts: tuple[ServiceAccount, ...] = ()
    network_tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def effective_provisioning_model(self) -> ProvisioningModel:
        """The provisioning model that is given, else the one that a reservation tells."""
        if self.provisioning_model is not None:
            return self.provisioning_model
        return ProvisioningModel.RESERVATION_BOUND if self.reservation else ProvisioningModel.STANDARD


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapConfig:
    """How machines join the cluster; what is not given is taken from the cluster."""

    #: As "1.31".
    version: str = ""
    control_plane_ip: str = ""
    #: Of an address that is given: 6443 where this is None.
    control_plane_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroupSpec:
    """A slice, or machines that are alike; `shape.resolve` tells which, and derives what is not given."""

    project: str
    #: A zone.
    node_location: str
    #: One of these two is given.
    instance_template_uri: str = ""
    instance_config: InstanceConfig | None = None
    node_count: int | None = None
    min_node_count: int = 0
    accelerator_connection_mode: str = "STATIC"
    topology: str = ""
    bootstrap_kubernetes: BootstrapConfig | None = None
    target_size_policy_mode: SizePolicyMode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """Counts of a group's nodes."""

    ready: int = 0
    #: On their way: machines that are being made, have not joined, or are not ready yet.
    reconciling: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine of a group, as its status lists it."""

    name: str
    #: Compute Engine's status of the instance; while there is none, what the managed instance group does about it.
    state: str = ""
    #: Name of its node, empty until it has joined.
    node: str = ""
    #: Whether its node is ready and shows all chips.
    ready: bool = False
    #: Since when state, node and ready are as they are.
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroupStatus:
    """What there is of a group."""

    conditions: tuple[Condition, ...] = ()
    #: The generation that the status was concluded from; 0 for none.
    observed_generation: int = 0
    node_summary: NodeSummary | None = None
    #: Topology, count and mode in effect, derived or given; empty or None until they are known.
    topology: str = ""
    node_count: int | None = None
    target_size_policy_mode: SizePolicyMode | None = None
    machines: tuple[Machine, ...] = ()
    #: When all machines were made anew, latest last.
    recreated_at: tuple[datetime, ...] = ()

    @property
    def nodes(self) -> str:
        """Nodes that are ready and nodes that are wanted, as "3/4"; empty until a count is known."""
        if self.node_count is None:
            return ""
        return f"{self.node_summary.ready if self.node_summary is not None else 0}/{self.node_count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroup:
    """A group of TPU machines that are nodes of this cluster."""

    meta: ObjectMeta
    spec: TpuNodeGroupSpec
    status: TpuNodeGroupStatus = field(default_factory=TpuNodeGroupStatus)
    #: What of spec or metadata cannot be served as it is written; empty for nothing.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicySpec:
    """A resource policy of Compute Engine: how the machines of a slice are wired."""

    project: str
    region: str
    accelerator_topology: str
    type: str = "HIGH_THROUGHPUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicy:
    """The child that stands for a workload policy."""

    meta: ObjectMeta
    spec: WorkloadPolicySpec
    status: ResourceStatus = field(default_factory=ResourceStatus)
    #: As a TPUNodeGroup's.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTemplateSpec:
    """An instance template of Compute Engine."""

    project: str
    config: InstanceConfig
    maintenance_policy: str = "TERMINATE"
    boot_disk_auto_delete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTemplate:
    """The child that stands for an instance template."""

    meta: ObjectMeta
    spec: InstanceTemplateSpec
    status: ResourceStatus = field(default_factory=ResourceStatus)
    #: As a TPUNodeGroup's.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstanceGroupSpec:
    """A managed instance group of Compute Engine."""

    project: str
    #: A zone.
    location: str
    #: URL.
    instance_template: str
    target_size: int
    #: URL; empty for none.
    workload_policy: str = ""
    #: None where it is to be derived: BULK with a workload policy, else INDIVIDUAL.
    target_size_policy_mode: SizePolicyMode | None = None
    default_action_on_failure: FailureAction = FailureAction.DO_NOTHING

    @property
    def effective_mode(self) -> SizePolicyMode:
        """The mode that is given, else the one that the workload policy tells."""
        if self.target_size_policy_mode is not None:
            return self.target_size_policy_mode
        return SizePolicyMode.BULK if self.workload_policy else SizePolicyMode.INDIVIDUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstanceGroup:
    """The child that stands for a managed instance group."""

    meta: ObjectMeta
    spec: ManagedInstanceGroupSpec
    status: ResourceStatus = field(default_factory=ResourceStatus)
    #: As a TPUNodeGroup's.
    problem: str = ""


Child = WorkloadPolicy | InstanceTemplate | ManagedInstanceGroup
Record = TpuNodeGroup | Child
