"""Conditions: what objects of tpu.google.com/v1alpha1 say of themselves, and for which reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from provisioner.model import bounds
from provisioner.nodegroups.api.codec import declared
from provisioner.nodegroups.api.forms import Moment, Text, Whole, choice

#: The API server reads bounds as floating-point numbers, which know all whole numbers up to this one.
LARGEST_GENERATION = 2**53 - 1


class ConditionType(StrEnum):
    """Types of conditions; children have READY alone."""

    READY = "Ready"
    WORKLOAD_POLICY_READY = "WorkloadPolicyReady"
    INSTANCE_TEMPLATE_READY = "InstanceTemplateReady"
    MANAGED_INSTANCE_GROUP_READY = "ManagedInstanceGroupReady"


class ConditionStatus(StrEnum):
    """What a condition says of its type."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Reasons of conditions. The first four sections are those of gke-labs/tpu-operator, the last is ours."""

    # --- a TPUNodeGroup's Ready ---
    READY = "Ready"
    AWAITING_NODE_JOIN = "AwaitingNodeJoin"
    RECONCILE_ERROR = "ReconcileError"
    DELETING_MIG = "DeletingMIG"
    DELETING_TEMPLATE = "DeletingTemplate"
    DELETING_POLICY = "DeletingPolicy"
    DELETING_NODES = "DeletingNodes"
    DELETING_DEVICE_PLUGIN = "DeletingDevicePlugin"
    # --- its children, as it sees them ---
    PROVISIONING = "Provisioning"
    INVALID_TEMPLATE = "InvalidTemplate"
    EXTERNAL_TEMPLATE = "ExternalTemplate"
    # --- a child's Ready ---
    CREATED = "Created"
    UNSTABLE = "Unstable"
    # --- failures, on both ---
    REQUEST_REJECTED = "RequestRejected"
    OPERATION_FAILED = "OperationFailed"
    INSTANCES_CREATION_FAILED = "InstancesCreationFailed"
    # --- ours ---
    #: Topology, machine type, count and mode do not go together, or the name is too long.
    INVALID_SPEC = "InvalidSpec"
    #: The project or the namespace is not on the list of those that are served.
    NOT_ALLOWED = "NotAllowed"
    #: A machine, its node or a chip is gone or not ready, after all had been.
    NODE_LOST = "NodeLost"
    #: All machines of the slice are being made anew.
    RECREATING = "Recreating"
    #: The nodes are cordoned, and pods on them are leaving or keep them.
    DRAINING_NODES = "DrainingNodes"


@declared("The answer to one question.", required=("type", "status", "reason", "message", "lastTransitionTime"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One of an object's conditions."""

    type: Annotated[
        str,
        Text(
            about="The question, such as Ready.",
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
            about="Why, in one word.",
            least=1,
            most=1024,
            pattern="[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
            meaning="a reason in one word",
        ),
    ]
    message: Annotated[str, Text(about="Why, in words for people.", most=32_768)] = ""
    #: None until `with_condition` puts it among an object's conditions.
    last_transition_time: Annotated[datetime | None, Moment(about="Since when the status is what it is.")] = None
    observed_generation: Annotated[
        int,
        Whole(about="The generation of the object that this was concluded from.", most=LARGEST_GENERATION),
    ] = 0


def not_ready(reason: Reason, message: str, condition_type: ConditionType = ConditionType.READY) -> Condition:
    """Return a condition that is False."""
    return Condition(type=condition_type, status=ConditionStatus.FALSE, reason=reason, message=message)


def with_condition(conditions: tuple[Condition, ...], new: Condition, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions with `new` in place of that of its type, else behind the others.

    The time of the last transition stays while the status does. A message that is longer than a condition holds is cut.
    """
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


def condition_of(conditions: tuple[Condition, ...], condition_type: str) -> Condition | None:
    """Return the condition of a type, None where there is none."""
    for condition in conditions:
        if condition.type == condition_type:
            return condition
    return None
