"""Statuses of TPUNodeGroups and their children. The controller writes times in UTC and in whole seconds."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from provisioner.model import bounds
from provisioner.nodegroups.api.specs import SizePolicyMode

#: Statuses of machines that run or are starting. On such machines, the startup script reads new metadata.
STARTING_OR_RUNNING = frozenset({"PROVISIONING", "STAGING", "RUNNING"})


class ConditionType(StrEnum):
    """Types of conditions. Children have only READY."""

    READY = "Ready"
    WORKLOAD_POLICY_READY = "WorkloadPolicyReady"
    INSTANCE_TEMPLATE_READY = "InstanceTemplateReady"
    MANAGED_INSTANCE_GROUP_READY = "ManagedInstanceGroupReady"


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Reasons of conditions. All except the last section are also reasons of gke-labs/tpu-operator."""

    # --- a TPUNodeGroup's Ready; Ready is also in conditions about children, ReconcileError in a child's Ready ---
    READY = "Ready"
    AWAITING_NODE_JOIN = "AwaitingNodeJoin"
    RECONCILE_ERROR = "ReconcileError"
    DELETING_MIG = "DeletingMIG"
    DELETING_TEMPLATE = "DeletingTemplate"
    DELETING_POLICY = "DeletingPolicy"
    DELETING_NODES = "DeletingNodes"
    DELETING_DEVICE_PLUGIN = "DeletingDevicePlugin"
    # --- conditions about children; Provisioning is also in a child's Ready ---
    PROVISIONING = "Provisioning"
    INVALID_TEMPLATE = "InvalidTemplate"
    EXTERNAL_TEMPLATE = "ExternalTemplate"
    # --- a child's Ready ---
    CREATED = "Created"
    UNSTABLE = "Unstable"
    # --- failures, in conditions of groups and children ---
    REQUEST_REJECTED = "RequestRejected"
    OPERATION_FAILED = "OperationFailed"
    INSTANCES_CREATION_FAILED = "InstancesCreationFailed"
    # --- not in tpu-operator ---
    #: The name or the spec is invalid, for example because fields contradict each other.
    INVALID_SPEC = "InvalidSpec"
    #: The settings do not allow the namespace, project or size, or the spec names resources that it must not use.
    NOT_ALLOWED = "NotAllowed"
    #: The namespace would exceed MAX_MACHINES_PER_NAMESPACE. The machines are created when the limit allows it.
    LIMIT_REACHED = "LimitReached"
    #: All nodes had been ready; now a machine, its node or a chip is missing or not ready.
    NODE_LOST = "NodeLost"
    RECREATING = "Recreating"
    #: Before the machines are deleted, their nodes are cordoned and the pods on these nodes are evicted.
    DRAINING_NODES = "DrainingNodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of an object."""

    type: str
    status: ConditionStatus
    reason: str
    message: str
    #: Time of the last change of the status. None if `with_condition` has to set it.
    last_transition_time: datetime | None = None
    observed_generation: int = 0


def not_ready(reason: Reason, message: str, condition_type: ConditionType = ConditionType.READY) -> Condition:
    """Return a condition whose status is False."""
    return Condition(type=condition_type, status=ConditionStatus.FALSE, reason=reason, message=message)


def created(note: str = "") -> Condition:
    """Return the condition Ready of a child whose resource exists. `note` is the message."""
    return Condition(type=ConditionType.READY, status=ConditionStatus.TRUE, reason=Reason.CREATED, message=note)


def with_condition(conditions: tuple[Condition, ...], new: Condition, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions with `new` for its type. The time is kept if the status is equal."""
    old = condition_of(conditions, new.type)
    kept = old.last_transition_time if old is not None and old.status is new.status else None
    message = bounds.cut(new.message, bounds.CONDITION_MESSAGE)
    if old is not None and kept is not None:
        previous = (old.reason, old.message, old.observed_generation)
        if previous == (new.reason, message, new.observed_generation):
            return conditions
    new = replace(new, message=message, last_transition_time=kept or now.astimezone(UTC).replace(microsecond=0))
    if old is None:
        return (*conditions, new)
    return tuple(new if condition.type == new.type else condition for condition in conditions)


def is_true(condition: Condition | None) -> bool:
    """Return whether a condition exists and is true."""
    return condition is not None and condition.status is ConditionStatus.TRUE


def condition_of(conditions: tuple[Condition, ...], condition_type: str) -> Condition | None:
    """Return the condition of this type, None if it is missing."""
    for condition in conditions:
        if condition.type == condition_type:
            return condition
    return None


class OperationType(StrEnum):
    """Kind of an operation of Compute Engine."""

    CREATE = "CREATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRef:
    """An operation of Compute Engine whose end has not been observed yet."""

    name: str
    type: OperationType
    #: Number of this operation among the accepted creates and deletes of one resource, from 1 (`names.request_id`).
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """Status of a child, which represents one resource of Compute Engine."""

    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    #: Address of the resource as last read; empty if no usable resource is known.
    url: str = ""
    #: Name of the operation of Compute Engine that has not ended; empty without an operation.
    operation_name: str = ""
    operation_type: OperationType | None = None
    #: Number of creates and deletes of the resource that Compute Engine has accepted (see `OperationRef.attempt`).
    attempts: Annotated[int, "operationAttempt"] = 0

    @property
    def operation(self) -> OperationRef | None:
        """Operation that has not ended. None also without a type, as in some statuses of gke-labs/tpu-operator."""
        if not self.operation_name or self.operation_type is None:
            return None
        return OperationRef(name=self.operation_name, type=self.operation_type, attempt=self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class UriStatus(ResourceStatus):
    """Status of a WorkloadPolicy or an InstanceTemplate, with the name `uri` for the address in JSON."""

    url: Annotated[str, "uri"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """Numbers of a group's machines by the state of their nodes."""

    ready: int
    reconciling: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Entry of a group's status for one machine."""

    name: str
    #: Status of the machine in Compute Engine; without a status, the current action of its managed instance group.
    state: str = ""
    node: str = ""
    #: Whether the node is ready and shows all its chips.
    ready: bool
    #: Time of the last change of state, node or ready.
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroupStatus:
    """Status of a group."""

    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    node_summary: NodeSummary | None = None
    #: Number of ready nodes and `node_count`, such as 3/4; empty while the count is unknown.
    nodes: str = ""
    #: Topology, node count and mode in effect: from the spec, or derived by `shape.resolve`.
    topology: str = ""
    node_count: int | None = None
    target_size_policy_mode: SizePolicyMode | None = None
    machines: tuple[Machine, ...] = ()
    #: Times of recent decisions to recreate all machines after a loss, latest last.
    recreated_at: Annotated[tuple[datetime, ...], "recreations"] = ()

    def __post_init__(self) -> None:
        ready = self.node_summary.ready if self.node_summary is not None else 0
        object.__setattr__(self, "nodes", f"{ready}/{self.node_count}" if self.node_count is not None else "")
