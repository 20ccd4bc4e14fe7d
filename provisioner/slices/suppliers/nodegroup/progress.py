"""How far a TPUNodeGroup is, as the status of a node pool. Pure.

The controller of node groups tries again whatever fails, for as long as the group is there. A pool that waits for
another zone's or another choice's sake must not wait so long: what does not pass by itself is a failure at once, what
may pass is one after a stated time. Then planning deletes the group and tries its next choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import Failure, FailureKind, PoolStatus
from provisioner.nodegroups.api.conditions import Condition, ConditionStatus, ConditionType, Reason, condition_of
from provisioner.nodegroups.api.specs import ProvisioningModel
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.slices.suppliers.nodegroup import errors

#: What somebody has to change, or what another place may have.
_FAILS_AT_ONCE = frozenset({FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.QUOTA})

#: What nobody says a word of, and what is not about capacity, is waited for at least so long.
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The status of a pool; the failure is set where that tells of one."""

    status: PoolStatus
    failure: Failure | None = None


def progress_of(group: TpuNodeGroup, now: datetime, *, capacity_wait_seconds: float) -> Progress:
    """Return how far a group is; a stockout that lasts for longer than `capacity_wait_seconds` is a failure."""
    if group.meta.deleting:
        return Progress(PoolStatus.STOPPING)
    ready = _condition(group, ConditionType.READY)
    if _is_true(ready):
        return Progress(PoolStatus.RUNNING)
    patience_seconds = max(capacity_wait_seconds, _PATIENCE_SECONDS)
    if ready is None:
        overdue = _age_seconds(group, now) > patience_seconds
        return Progress(PoolStatus.ERROR, errors.NOT_TAKEN) if overdue else Progress(PoolStatus.PROVISIONING)
    if ready.reason == Reason.RECREATING:
        return Progress(PoolStatus.RECONCILING)
    if _is_true(_condition(group, ConditionType.MANAGED_INSTANCE_GROUP_READY)):
        # The machines are there; nodes tell the rest.
        return Progress(PoolStatus.RUNNING)
    failure = errors.failure_of(group, ready)
    if failure is not None and failure.kind in _FAILS_AT_ONCE:
        return Progress(PoolStatus.ERROR, failure)
    asked_at = _asked_for_machines_at(group)
    told = failure is not None and failure.kind is FailureKind.STOCKOUT
    if asked_at is not None and _is_late(group) and (failure is None or told):
        # As on GKE: it is there, and its nodes come when there is capacity, however long that takes.
        return Progress(PoolStatus.RUNNING)
    waited_seconds = (now - asked_at).total_seconds() if asked_at is not None else _age_seconds(group, now)
    if waited_seconds > (capacity_wait_seconds if told else patience_seconds):
        kind = FailureKind.STOCKOUT if asked_at is not None else FailureKind.UNAVAILABLE
        return Progress(PoolStatus.ERROR, failure or Failure(kind=kind, message=errors.words(ready)))
    return Progress(PoolStatus.RECONCILING if group.status.recreated_at else PoolStatus.PROVISIONING)


def _condition(group: TpuNodeGroup, condition_type: ConditionType) -> Condition | None:
    return condition_of(group.status.conditions, condition_type)


def _is_true(condition: Condition | None) -> bool:
    return condition is not None and condition.status is ConditionStatus.TRUE


def _is_late(group: TpuNodeGroup) -> bool:
    config = group.spec.instance_config
    return config is not None and config.effective_provisioning_model is ProvisioningModel.FLEX_START


def _asked_for_machines_at(group: TpuNodeGroup) -> datetime | None:
    """Return since when nothing but machines is missing; None where something else is."""
    template = _condition(group, ConditionType.INSTANCE_TEMPLATE_READY)
    # Only slices of several machines have a policy.
    policy = _condition(group, ConditionType.WORKLOAD_POLICY_READY)
    if template is None or not _is_true(template) or (policy is not None and not _is_true(policy)):
        return None
    machines = _condition(group, ConditionType.MANAGED_INSTANCE_GROUP_READY)
    moments = [each.last_transition_time for each in (template, policy, machines) if each is not None]
    return max((moment for moment in moments if moment is not None), default=None)


def _age_seconds(group: TpuNodeGroup, now: datetime) -> float:
    return (now - group.meta.created_at).total_seconds() if group.meta.created_at is not None else 0.0
