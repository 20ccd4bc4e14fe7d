"""How far a TPUNodeGroup is, as the status of a node pool. Pure.

The controller of node groups tries again whatever fails, for as long as the group is there. A pool that waits for
another zone's or another choice's sake must not wait so long: what does not pass by itself is a failure at once, what
may pass is one after a stated time. Then planning deletes the group and tries its next choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import Failure, FailureKind, PoolStatus
from provisioner.nodegroups.api.types import (
    Condition,
    ConditionStatus,
    ConditionType,
    ProvisioningModel,
    Reason,
    TpuNodeGroup,
    condition_of,
)
from provisioner.slices.suppliers.nodegroup import errors

#: What somebody has to change, or what another place may have.
_FAILS_AT_ONCE = frozenset({FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.QUOTA})


@dataclass(frozen=True, slots=True)
class Progress:
    """The status of a pool; the failure is set where that tells of one."""

    status: PoolStatus
    failure: Failure | None = None


def progress_of(group: TpuNodeGroup, now: datetime, *, capacity_wait_seconds: float) -> Progress:
    """Return how far a group is; what it lacks for longer than `capacity_wait_seconds` is a failure."""
    if group.meta.deleting:
        return Progress(PoolStatus.STOPPING)
    if group.problem:
        return Progress(PoolStatus.UNKNOWN)
    ready = _condition(group, ConditionType.READY)
    if _is_true(ready):
        return Progress(PoolStatus.RUNNING)
    waited = _waited_seconds(group, now) > capacity_wait_seconds
    if ready is None:
        return Progress(PoolStatus.ERROR, errors.NOT_TAKEN) if waited else Progress(PoolStatus.PROVISIONING)
    if ready.reason == Reason.RECREATING:
        return Progress(PoolStatus.RECONCILING)
    if _is_true(_condition(group, ConditionType.MANAGED_INSTANCE_GROUP_READY)):
        # The machines are there; nodes tell the rest.
        return Progress(PoolStatus.RUNNING)
    # Nothing but machines is missing.
    only_machines = _is_true(_condition(group, ConditionType.INSTANCE_TEMPLATE_READY))
    making = PoolStatus.RECONCILING if group.status.recreated_at else PoolStatus.PROVISIONING
    failure = errors.failure_of(group, ready)
    if failure is None and waited:
        kind = FailureKind.STOCKOUT if only_machines else FailureKind.UNAVAILABLE
        failure = Failure(kind=kind, message=errors.words(ready))
    late = _is_late(group) and only_machines
    if failure is not None and failure.kind in _FAILS_AT_ONCE:
        return Progress(PoolStatus.ERROR, failure)
    if late and (failure is None or failure.kind is FailureKind.STOCKOUT):
        # As on GKE: it is there, and its nodes come when there is capacity, however long that takes.
        return Progress(PoolStatus.RUNNING)
    if failure is not None and waited:
        return Progress(PoolStatus.ERROR, failure)
    return Progress(making)


def _condition(group: TpuNodeGroup, condition_type: ConditionType) -> Condition | None:
    return condition_of(group.status.conditions, condition_type)


def _is_true(condition: Condition | None) -> bool:
    return condition is not None and condition.status is ConditionStatus.TRUE


def _is_late(group: TpuNodeGroup) -> bool:
    config = group.spec.instance_config
    return config is not None and config.effective_provisioning_model is ProvisioningModel.FLEX_START


def _waited_seconds(group: TpuNodeGroup, now: datetime) -> float:
    """Return how long a group has been waiting for its machines, since it was made or they were made anew."""
    condition = _condition(group, ConditionType.MANAGED_INSTANCE_GROUP_READY)
    since = condition.last_transition_time if condition is not None else None
    since = since or group.meta.created_at
    return (now - since).total_seconds() if since is not None else 0.0
