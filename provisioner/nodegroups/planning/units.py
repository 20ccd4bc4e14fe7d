"""What is decided on together: a group with its children, or a child alone.

A unit that cannot be decided on is set apart: a mistake of ours costs that unit its turn, and no other. Nothing of it
is forgotten meanwhile. It is tried again after a wait that doubles, and at once when one of its objects has changed:
that is how its user may have mended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from provisioner.model import bounds, waits
from provisioner.model.workloads import ObjectRef
from provisioner.nodegroups.api.statuses import ConditionType, Reason, condition_of, not_ready
from provisioner.nodegroups.api.types import Child, Record, TpuNodeGroup
from provisioner.nodegroups.planning import events, group
from provisioner.nodegroups.planning.child import step_of as child_step
from provisioner.nodegroups.planning.memory import Crash, Lost
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, merged

#: One that could not be decided on is tried again after so long, at first and at last.
_FIRST_SECONDS = 1.0
_CAP_SECONDS = 300.0
#: Characters of an exception in a condition: the log has all of them.
_WORDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A group with its children, or one child that is nobody's."""

    group: TpuNodeGroup | None
    children: tuple[Child, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """All of its objects; on the first people are told of it."""
        return self.children if self.group is None else (self.group, *self.children)

    @property
    def key(self) -> str:
        """Names it: the UID of its first object."""
        return self.records[0].meta.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """An object that could not be decided on, nor what belongs to it."""

    object: ObjectRef
    #: In a row.
    failures: int
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """What a unit came to in one round."""

    step: Step
    lost: Mapping[str, Lost] = field(default_factory=dict)
    #: None: it was decided on.
    crash: Crash | None = None
    #: For people; None where nothing new is to be told.
    told: Crashed | None = None


def units_of(round_: Round) -> Iterable[Unit]:
    """Return all units."""
    owned: dict[str, list[Child]] = {}
    for child in round_.snapshot.children:
        parent = round_.parent_of(child)
        if parent is not None:
            owned.setdefault(parent.meta.uid, []).append(child)
        else:
            yield Unit(group=None, children=(child,))
    for uid, each in round_.groups.items():
        yield Unit(group=each, children=tuple(owned.get(uid, ())))


def attempt(unit: Unit, round_: Round) -> Concluded:
    """Decide on one unit, or leave it for now where that failed before."""
    before = round_.memory.crashes.get(unit.key)
    versions = tuple(each.meta.resource_version for each in unit.records)
    if before is not None and before.until > round_.now and before.versions == versions:
        return _kept(unit, round_, NOTHING, before, None)
    try:
        return _conclude(unit, round_)
    except Exception as error:  # noqa: BLE001 - one unit must not cost the others their turn
        failures = before.failures + 1 if before is not None else 1
        wait = waits.doubled_seconds(_FIRST_SECONDS, _CAP_SECONDS, failures, unit.key)
        crash = Crash(failures=failures, until=waits.after(round_.now, wait), versions=versions)
        told = Crashed(object=events.reference(unit.records[0]), failures=failures, error=error)
        return _kept(unit, round_, _tell(unit.records[0], error, round_), crash, told)


def _kept(unit: Unit, round_: Round, step: Step, crash: Crash, told: Crashed | None) -> Concluded:
    return Concluded(
        step=step + Step(moments=(crash.until,)),
        lost=round_.memory.lost.get(unit.key, {}),
        crash=crash,
        told=told,
    )


def _tell(record: Record, error: Exception, round_: Round) -> Step:
    """Propose to say so in the condition Ready; where even that cannot be made, the log alone tells."""
    words = bounds.cut(repr(error), _WORDS)
    message = f"a mistake in the provisioner keeps this object from being served, and it is tried again: {words}"
    try:
        ready = condition_of(record.status.conditions, ConditionType.READY)
        # It says that what is there of the machines is to go, which has to be known afterwards.
        recreating = ready is not None and ready.reason == Reason.RECREATING
        condition = not_ready(Reason.RECREATING if recreating else Reason.RECONCILE_ERROR, message)
        return events.propose(record, record.status, (condition,), round_.now)
    except Exception:  # noqa: BLE001 - as above
        return NOTHING


def _conclude(unit: Unit, round_: Round) -> Concluded:
    step, lost = NOTHING, None
    if unit.group is not None and unit.group.meta.deleting:
        step = group.tear_down(unit.group, round_)
    elif unit.group is not None:
        seen = group.step_of(unit.group, round_)
        step, lost = seen.step, seen.loss
    return Concluded(
        step=merged((step, *(child_step(child, round_) for child in unit.children))),
        lost=lost.lost if lost is not None else {},
    )
