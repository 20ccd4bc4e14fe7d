"""Statuses of the four kinds. Only the controller writes them. Times are in UTC, in whole seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from provisioner.model import bounds
from provisioner.nodegroups.api.codec import Array, Flag, Moment, Text, Whole, choice, declared, struct_of
from provisioner.nodegroups.api.specs import SizePolicyMode

#: The API server reads bounds as floating-point numbers, which represent all integers up to this one exactly.
LARGEST_GENERATION = 2**53 - 1
#: Statuses of machines that can still get new metadata, and will read it.
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
    """Reasons of conditions. All but those of the last section are gke-labs/tpu-operator's."""

    # --- a TPUNodeGroup's Ready ---
    READY = "Ready"
    AWAITING_NODE_JOIN = "AwaitingNodeJoin"
    RECONCILE_ERROR = "ReconcileError"
    DELETING_MIG = "DeletingMIG"
    DELETING_TEMPLATE = "DeletingTemplate"
    DELETING_POLICY = "DeletingPolicy"
    DELETING_NODES = "DeletingNodes"
    DELETING_DEVICE_PLUGIN = "DeletingDevicePlugin"
    # --- conditions of a TPUNodeGroup about its children ---
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
    #: Topology, machine type, count and mode contradict each other, or the name is too long.
    INVALID_SPEC = "InvalidSpec"
    #: The project (ALLOWED_PROJECTS), the namespace (SERVED_NAMESPACES) or the size is not allowed.
    NOT_ALLOWED = "NotAllowed"
    #: MAX_MACHINES_PER_NAMESPACE leaves no room until machines of other groups are deleted.
    LIMIT_REACHED = "LimitReached"
    #: All nodes had been ready; now a machine, its node or a chip is missing or not ready.
    NODE_LOST = "NodeLost"
    #: All machines of the slice are being recreated.
    RECREATING = "Recreating"
    #: The nodes are cordoned; pods on them are being evicted, or prevent the deletion.
    DRAINING_NODES = "DrainingNodes"


@declared("One condition of the object.", required=("type", "status", "reason", "message", "lastTransitionTime"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of an object."""

    type: Annotated[
        str,
        Text(
            about="Type of the condition, such as Ready.",
            most=316,
            pattern="([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])",
            meaning="a type of conditions",
        ),
    ]
    status: Annotated[ConditionStatus, choice("True, False or Unknown.", ConditionStatus)]
    reason: Annotated[
        str,
        Text(
            about="The reason in one word.",
            least=1,
            most=1024,
            pattern="[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
            meaning="a reason in one word",
        ),
    ]
    message: Annotated[str, Text(about="The reason in a sentence.", most=32_768)] = ""
    #: Time of the last change of the status. None until `with_condition` adds the condition to an object.
    last_transition_time: Annotated[datetime | None, Moment(about="When the status last changed.")] = None
    observed_generation: Annotated[
        int, Whole(about="The generation of the object that the condition is based on.", most=LARGEST_GENERATION)
    ] = 0


def not_ready(reason: Reason, message: str, condition_type: ConditionType = ConditionType.READY) -> Condition:
    """Return a condition whose status is False."""
    return Condition(type=condition_type, status=ConditionStatus.FALSE, reason=reason, message=message)


def created(note: str = "") -> Condition:
    """Return the condition of a resource that exists."""
    return Condition(type=ConditionType.READY, status=ConditionStatus.TRUE, reason=Reason.CREATED, message=note)


def with_condition(conditions: tuple[Condition, ...], new: Condition, now: datetime) -> tuple[Condition, ...]:
    """Replace the condition of the same type, or add it. The transition time changes only if the status does."""
    old = condition_of(conditions, new.type)
    kept = old.last_transition_time if old is not None and old.status is new.status else None
    message = bounds.cut(new.message, bounds.CONDITION_MESSAGE)
    if old is not None and kept is not None:
        said = (old.reason, old.message, old.observed_generation)
        if said == (new.reason, message, new.observed_generation):
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


_CONDITIONS = Array(
    about="Conditions, one entry for each type.", items=struct_of(Condition), most=bounds.CONDITIONS, key="type"
)
_OBSERVED_GENERATION = Whole(about="The generation of the object that the status is about.", most=LARGEST_GENERATION)
_COUNT = bounds.GROUP_NODES


class OperationType(StrEnum):
    """Kind of an operation of Compute Engine."""

    CREATE = "CREATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRef:
    """An operation of Compute Engine whose end has not been observed yet."""

    name: str
    type: OperationType
    #: Number of the object's attempt, from 1. It is part of the request id (`names.request_id`).
    attempt: int


@declared("The state of the resource.")
@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """Status of a child, which represents one resource of Compute Engine."""

    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    observed_generation: Annotated[int, _OBSERVED_GENERATION] = 0
    url: Annotated[str, Text(about="Address of the resource; empty until it exists.", most=bounds.RESOURCE_ADDRESS)] = (
        ""
    )
    operation_name: Annotated[str, Text(about="Compute Engine's operation that has not ended.")] = ""
    operation_type: Annotated[OperationType | None, choice("What the operation does.", OperationType)] = None
    #: Number of the latest attempt, also of the open operation. Numbers are not reused.
    attempts: Annotated[
        int,
        Whole(about="Number of the latest attempt; repeated requests of one attempt count once."),
        "operationAttempt",
    ] = 0

    @property
    def operation(self) -> OperationRef | None:
        """The open operation. None also if its type is missing, as in some statuses of gke-labs/tpu-operator."""
        if not self.operation_name or self.operation_type is None:
            return None
        return OperationRef(name=self.operation_name, type=self.operation_type, attempt=self.attempts)


@declared("Counts of nodes.", required=("ready", "reconciling", "failed"))
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """Numbers of a group's nodes by state."""

    ready: Annotated[int, Whole(about="Nodes that are ready and show all their chips.", most=_COUNT)] = 0
    reconciling: Annotated[
        int,
        Whole(about="Machines that are being created, have not joined, or whose node is not ready yet.", most=_COUNT),
    ] = 0
    failed: Annotated[int, Whole(about="Machines that could not be created, or whose node was lost.", most=_COUNT)] = 0


@declared("One machine.", required=("name", "ready"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Entry of a group's status for one machine."""

    name: Annotated[str, Text(about="Its name in Compute Engine.", most=63, least=1, meaning="the name of a machine")]
    state: Annotated[str, Text(about="Its status in Compute Engine, or the action on it.", most=63)] = ""
    node: Annotated[str, Text(about="Its node; empty until it has joined.")] = ""
    ready: Annotated[bool, Flag(about="Whether the node is ready and shows all its chips.")] = False
    since: Annotated[datetime | None, Moment(about="When state, node or ready last changed.")] = None


@declared("The state of the machines.")
@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroupStatus:
    """Status of a group."""

    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    observed_generation: Annotated[int, _OBSERVED_GENERATION] = 0
    node_summary: NodeSummary | None = None
    #: Derived from `node_summary` and `node_count`; empty until the count is known.
    nodes: Annotated[str, Text(about="Nodes that are ready, of those that are wanted, as 3/4.", most=16)] = ""
    topology: Annotated[str, Text(about="The topology in effect, given or derived.", most=bounds.LABEL_VALUE)] = ""
    node_count: Annotated[
        int | None, Whole(about="The number of machines in effect, given or derived.", least=1, most=_COUNT)
    ] = None
    target_size_policy_mode: Annotated[
        SizePolicyMode | None, choice("The mode in effect, given or derived.", SizePolicyMode)
    ] = None
    machines: Annotated[
        tuple[Machine, ...],
        Array(
            about="The machines, as Compute Engine and the cluster show them.",
            items=struct_of(Machine),
            most=_COUNT,
            key="name",
        ),
    ] = ()
    recreated_at: Annotated[
        tuple[datetime, ...],
        Array(
            about="When all machines were recreated because one was lost, latest last.",
            items=Moment(about="One moment."),
            most=bounds.RECREATIONS,
        ),
        "recreations",
    ] = ()

    def __post_init__(self) -> None:
        ready = self.node_summary.ready if self.node_summary is not None else 0
        object.__setattr__(self, "nodes", f"{ready}/{self.node_count}" if self.node_count is not None else "")
