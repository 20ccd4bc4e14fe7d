"""A unit that cannot be decided on is set apart: a mistake of ours costs that unit its turn, and no other.

Nothing of it is forgotten meanwhile. It is tried again after a wait that doubles, and at once when one of its objects
has changed: that is how its user may have mended it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.model import bounds, waits
from provisioner.nodegroups.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    condition_of,
    with_condition,
)
from provisioner.nodegroups.api.statuses import TpuNodeGroupStatus
from provisioner.nodegroups.api.types import (
    Child,
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    TpuNodeGroup,
    WorkloadPolicy,
)
from provisioner.nodegroups.planning import events
from provisioner.nodegroups.planning.memory import Crash
from provisioner.nodegroups.planning.plan import Crashed
from provisioner.nodegroups.planning.round import NOTHING, Proposed, Round, Step
from provisioner.nodegroups.planning.units import Concluded, Unit, conclude
from provisioner.nodegroups.planning.writes import PatchStatus

_FIRST_SECONDS = 1.0
_CAP_SECONDS = 300.0
#: Characters of an exception in a condition: the log has all of them.
_WORDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of trying to decide on one unit."""

    concluded: Concluded
    #: None: it was decided on.
    crash: Crash | None = None
    #: For people; None where nothing new is to be told.
    told: Crashed | None = None


def attempt(unit: Unit, last: Concluded | None, round_: Round) -> Attempt:
    """Decide on one unit, or leave it for now where that failed before."""
    before = round_.memory.crashes.get(unit.key)
    versions = tuple(meta.resource_version for meta in _metas(unit))
    if before is not None and before.until > round_.now and before.versions == versions:
        return Attempt(concluded=_kept(unit, round_, Step(moments=(before.until,))), crash=before)
    try:
        return Attempt(concluded=conclude(unit, last, round_))
    except Exception as error:  # noqa: BLE001 - one unit must not cost the others their turn
        failures = before.failures + 1 if before is not None else 1
        wait = waits.doubled_seconds(_FIRST_SECONDS, _CAP_SECONDS, failures, unit.key)
        crash = Crash(failures=failures, until=waits.after(round_.now, wait), versions=versions)
        first = _first(unit)
        told = Crashed(object=events.reference(_kind_of(first), first.meta), failures=failures, error=error)
        step = _tell(unit, error, round_) + Step(moments=(crash.until,))
        return Attempt(concluded=_kept(unit, round_, step), crash=crash, told=told)


def _kept(unit: Unit, round_: Round, step: Step) -> Concluded:
    """Remember all that was."""
    uids = [meta.uid for meta in _metas(unit)]
    found = {uid: known for uid in uids if (known := round_.remembered(uid)) is not None}
    return Concluded(step=step, resources=found, lost=round_.memory.lost.get(unit.key, {}), at=round_.now)


def _tell(unit: Unit, error: Exception, round_: Round) -> Step:
    """Propose to say so in the condition Ready; where even that cannot be made, the log alone tells."""
    words = bounds.cut(repr(error), _WORDS)
    message = f"a mistake in the provisioner keeps this object from being served, and it is tried again: {words}"
    try:
        return _status(_first(unit), message, round_.now)
    except Exception:  # noqa: BLE001 - as above
        return NOTHING


def _status(record: TpuNodeGroup | Child, message: str, now: datetime) -> Step:
    kind, meta, old = _kind_of(record), record.meta, record.status
    ready = condition_of(old.conditions, ConditionType.READY)
    reason: str = Reason.RECONCILE_ERROR
    if ready is not None and ready.reason == Reason.RECREATING:
        # It says that what is there of the machines is to go, which has to be known afterwards.
        reason = ready.reason
    condition = Condition(
        type=ConditionType.READY,
        status=ConditionStatus.FALSE,
        reason=reason,
        message=message,
        observed_generation=meta.generation,
    )
    conditions = with_condition(old.conditions, condition, now)
    if conditions == old.conditions:
        return NOTHING
    if isinstance(old, TpuNodeGroupStatus):
        new = replace(old, conditions=conditions)
        told = events.of_group(meta, old, new)
        write = PatchStatus(kind=kind, meta=meta, old=old, new=new)
    else:
        changed = replace(old, conditions=conditions)
        told = events.of_child(kind, meta, old, changed)
        write = PatchStatus(kind=kind, meta=meta, old=old, new=changed)
    return Step(writes=(Proposed(write=write, seen=meta.resource_version, events=told),))


def _first(unit: Unit) -> TpuNodeGroup | Child:
    """Return the object that a unit is told about on."""
    return unit.group if unit.group is not None else unit.children[0]


def _metas(unit: Unit) -> list[ObjectMeta]:
    own = [unit.group.meta] if unit.group is not None else []
    return own + [child.meta for child in unit.children]


def _kind_of(record: TpuNodeGroup | Child) -> Kind:
    match record:
        case TpuNodeGroup():
            return Kind.TPU_NODE_GROUP
        case WorkloadPolicy():
            return Kind.WORKLOAD_POLICY
        case InstanceTemplate():
            return Kind.INSTANCE_TEMPLATE
        case ManagedInstanceGroup():
            return Kind.MANAGED_INSTANCE_GROUP
