"""Proposes changes of a status with their Events. The reasons of normal Events are those of tpu-operator. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from provisioner.model.workloads import ObjectRef
from provisioner.model.writes import Proposed
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    ConditionType,
    OperationType,
    Reason,
    ResourceStatus,
    TpuNodeGroupStatus,
    condition_of,
    is_true,
    not_ready,
    with_condition,
)
from provisioner.nodegroups.api.types import API_VERSION, Record
from provisioner.nodegroups.planning.actions import Event, PatchStatus, SetFinalizers
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, to_write

#: Compute Engine has begun to create a child's resource.
PROVISIONING = "Provisioning"
#: A child's resource is ready, or all nodes of a TPUNodeGroup are ready and show their chips.
PROVISIONED = "Provisioned"
#: The resource or the machines are being deleted, also to recreate a slice. The condition Ready has the progress.
CLEANUP = "Cleanup"
#: All resources of a TPUNodeGroup in Compute Engine exist.
CHILD_RESOURCES_PROVISIONED = "ChildResourcesProvisioned"
#: More nodes are ready than before.
NODES_JOINING = "NodesJoining"

#: Reasons of conditions that cause a Warning Event, because a user may have to act.
WARNED_OF = frozenset(
    {
        Reason.RECONCILE_ERROR,
        Reason.REQUEST_REJECTED,
        Reason.OPERATION_FAILED,
        Reason.INSTANCES_CREATION_FAILED,
        Reason.INVALID_TEMPLATE,
        Reason.INVALID_SPEC,
        Reason.NOT_ALLOWED,
        Reason.LIMIT_REACHED,
        Reason.NODE_LOST,
        Reason.RECREATING,
    }
)
#: Minimum interval in seconds between writes of a group's status: the first value for each machine, at most the second.
#: It applies if only machines, counts or messages have changed: each write stores all machines (150 kB for 512).
_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 5.0
_CLEANING_UP = frozenset({Reason.DELETING_MIG, Reason.DRAINING_NODES})


def reference(record: Record) -> ObjectRef:
    """Return the reference of an object for Events."""
    kind, meta = record.kind, record.meta
    return ObjectRef(kind=kind.value, api_version=API_VERSION, namespace=meta.namespace, name=meta.name, uid=meta.uid)


def propose(
    record: Record, status: ResourceStatus | TpuNodeGroupStatus, conditions: Sequence[Condition], now: datetime
) -> Step:
    """Return a step that writes the status with these conditions and its Events; NOTHING if the status is unchanged."""
    kept = status.conditions
    for condition in conditions:
        kept = with_condition(kept, replace(condition, observed_generation=record.meta.generation), now)
    # Without a condition, this generation was not decided on, so it does not count as observed.
    generation = record.meta.generation if conditions else status.observed_generation
    status = replace(status, conditions=kept, observed_generation=generation)
    if status == record.status:
        return NOTHING
    pause = 0.0
    events: tuple[Event, ...] = ()
    if isinstance(record.status, TpuNodeGroupStatus) and isinstance(status, TpuNodeGroupStatus):
        events = _of_group(reference(record), record.status, status)
        if _stages(record.status) == _stages(status):
            pause = min(_PAUSE_SECONDS * len(status.machines), _MAX_PAUSE_SECONDS)
    elif isinstance(record.status, ResourceStatus) and isinstance(status, ResourceStatus):
        events = _of_child(reference(record), record.status, status)
    write = PatchStatus(record=record, new=status, events=events)
    return Step(writes=(Proposed(write=write, seen=record.meta.resource_version, pause_seconds=pause),))


def set_finalizers(record: Record, finalizers: Iterable[str], ctx: Round) -> Step:
    """Return a step that replaces an object's finalizers, and reports the reason if the last attempt was rejected."""
    write = SetFinalizers(record=record, finalizers=tuple(finalizers))
    step = to_write(write, record.meta.resource_version)
    if why := ctx.refused(write):
        refusal = not_ready(Reason.RECONCILE_ERROR, f"its finalizers cannot be changed: {why}")
        # The status is written first, because a round makes only one write of an object.
        return propose(record, record.status, (refusal,), ctx.now) + step
    return step


def _stages(status: TpuNodeGroupStatus) -> list[tuple[str, ConditionStatus, str, int]]:
    return [
        (condition.type, condition.status, condition.reason, condition.observed_generation)
        for condition in status.conditions
    ]


def _of_child(target: ObjectRef, old: ResourceStatus, new: ResourceStatus) -> tuple[Event, ...]:
    events = []
    if new.operation is not None and new.operation != old.operation:
        making = new.operation.type is OperationType.CREATE
        words = "begun to create" if making else "begun to delete"
        reason = PROVISIONING if making else CLEANUP
        events.append(Event(object=target, reason=reason, message=f"Compute Engine has {words} {target.name}"))
    before, after = (condition_of(status.conditions, ConditionType.READY) for status in (old, new))
    if after is not None and is_true(after) and not is_true(before):
        events.append(Event(object=target, reason=PROVISIONED, message=f"{target.name} exists: {new.url}"))
    return (*events, *_warning(target, before, after))


def _of_group(target: ObjectRef, old: TpuNodeGroupStatus, new: TpuNodeGroupStatus) -> tuple[Event, ...]:
    events = []
    manager = ConditionType.MANAGED_INSTANCE_GROUP_READY
    if is_true(condition_of(new.conditions, manager)) and not is_true(condition_of(old.conditions, manager)):
        message = "the resources in Compute Engine exist"
        events.append(Event(object=target, reason=CHILD_RESOURCES_PROVISIONED, message=message))
    before, after = (condition_of(status.conditions, ConditionType.READY) for status in (old, new))
    (ready_before, failed_before), (joined, failed) = map(_ready_and_failed, (old, new))
    if failed and not failed_before and after is not None and after.reason == Reason.AWAITING_NODE_JOIN:
        # AwaitingNodeJoin alone causes no Warning Event, so a machine that failed to join is reported here.
        events.append(Event(object=target, reason=after.reason, message=after.message, warning=True))
    if joined > ready_before and not is_true(after):
        events.append(Event(object=target, reason=NODES_JOINING, message=f"{new.nodes} nodes are ready"))
    if after is not None and is_true(after) and not is_true(before):
        events.append(Event(object=target, reason=PROVISIONED, message=after.message or f"{new.nodes} nodes are ready"))
    if after is not None and after.reason in _CLEANING_UP and (before is None or before.reason not in _CLEANING_UP):
        events.append(Event(object=target, reason=CLEANUP, message=after.message))
    template = ConditionType.INSTANCE_TEMPLATE_READY
    return (
        *events,
        *_warning(target, condition_of(old.conditions, template), condition_of(new.conditions, template)),
        *_warning(target, before, after),
    )


def _ready_and_failed(status: TpuNodeGroupStatus) -> tuple[int, int]:
    summary = status.node_summary
    return (summary.ready, summary.failed) if summary is not None else (0, 0)


def _warning(target: ObjectRef, before: Condition | None, after: Condition | None) -> tuple[Event, ...]:
    if after is None or after.reason not in WARNED_OF or (before is not None and before.reason == after.reason):
        return ()
    return (Event(object=target, reason=after.reason, message=after.message, warning=True),)
