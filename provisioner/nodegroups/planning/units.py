"""What is decided on together, and only when something of it has changed: a group with its children, or a child alone.

Most of many groups are settled at any moment, while events of others come many a second. A unit is taken over from the
last round as long as all that it was concluded from is the same. What only time changes is looked at when a step has
said it would be, and after a while in any case.

A unit that cannot be decided on is set apart: a mistake of ours costs that unit its turn, and no other. Nothing of it
is forgotten meanwhile. It is tried again after a wait that doubles, and at once when one of its objects has changed:
that is how its user may have mended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from provisioner.model import bounds, waits
from provisioner.model.workloads import ObjectRef
from provisioner.nodegroups.api.conditions import ConditionType, Reason, condition_of, not_ready
from provisioner.nodegroups.api.types import Child, Kind, Record, TpuNodeGroup
from provisioner.nodegroups.planning import events, group, teardown
from provisioner.nodegroups.planning.child import Rules, step_of
from provisioner.nodegroups.planning.manager import ManagerRules
from provisioner.nodegroups.planning.memory import Crash, Lost, ResourceMemory
from provisioner.nodegroups.planning.nodes import provider_id
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, merged
from provisioner.nodegroups.planning.template import PolicyRules, TemplateRules

_RULES: Mapping[Kind, Rules[Any, Any]] = {
    Kind.WORKLOAD_POLICY: PolicyRules(),
    Kind.INSTANCE_TEMPLATE: TemplateRules(),
    Kind.MANAGED_INSTANCE_GROUP: ManagerRules(),
}
#: A unit is looked at this often although nothing has changed and no step has asked for it.
_LOOKED_AT_SECONDS = 60.0
#: The same while it is deleted, or there is something to do that waits for its turn, or for the caches to show it.
_BUSY_SECONDS = 2.0
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
    resources: Mapping[str, ResourceMemory] = field(default_factory=dict)
    lost: Mapping[str, Lost] = field(default_factory=dict)
    #: All that it was concluded from, and when.
    inputs: tuple[object, ...] = ()
    at: datetime
    #: Something of it is being deleted.
    busy: bool = False
    #: None: it was decided on.
    crash: Crash | None = None
    #: For people; None where nothing new is to be told.
    told: Crashed | None = None

    def holds(self, inputs: Sequence[object], now: datetime) -> bool:
        """Whether a round with these inputs would come to the same."""
        if len(inputs) != len(self.inputs):
            return False
        age = (now - self.at).total_seconds()
        limit = _BUSY_SECONDS if self.busy or self.step.calls or self.step.writes else _LOOKED_AT_SECONDS
        if not 0 <= age < limit or any(moment <= now for moment in self.step.moments):
            return False
        return all(old is new for old, new in zip(self.inputs, inputs, strict=True))


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


def attempt(unit: Unit, last: Concluded | None, round_: Round) -> Concluded:
    """Decide on one unit, or leave it for now where that failed before."""
    before = round_.memory.crashes.get(unit.key)
    versions = tuple(each.meta.resource_version for each in unit.records)
    if before is not None and before.until > round_.now and before.versions == versions:
        return _kept(unit, round_, NOTHING, before, None)
    try:
        return _conclude(unit, last, round_)
    except Exception as error:  # noqa: BLE001 - one unit must not cost the others their turn
        failures = before.failures + 1 if before is not None else 1
        wait = waits.doubled_seconds(_FIRST_SECONDS, _CAP_SECONDS, failures, unit.key)
        crash = Crash(failures=failures, until=waits.after(round_.now, wait), versions=versions)
        told = Crashed(object=events.reference(unit.records[0]), failures=failures, error=error)
        return _kept(unit, round_, _tell(unit.records[0], error, round_), crash, told)


def _kept(unit: Unit, round_: Round, step: Step, crash: Crash, told: Crashed | None) -> Concluded:
    """Remember all that was."""
    uids = [each.meta.uid for each in unit.records]
    return Concluded(
        step=step + Step(moments=(crash.until,)),
        resources={uid: known for uid in uids if (known := round_.remembered(uid)) is not None},
        lost=round_.memory.lost.get(unit.key, {}),
        at=round_.now,
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


def _conclude(unit: Unit, last: Concluded | None, round_: Round) -> Concluded:
    """Decide about one unit, or take over what the last round came to."""
    inputs = _inputs(unit, round_)
    if inputs is not None and last is not None and last.holds(inputs, round_.now):
        return last
    resources: dict[str, ResourceMemory] = {}
    steps: list[Step] = []
    lost: Mapping[str, Lost] = {}
    if unit.group is not None and unit.group.meta.deleting:
        steps.append(teardown.step_of(unit.group, round_))
    elif unit.group is not None:
        seen = group.step_of(unit.group, round_)
        steps.append(seen.step)
        if seen.loss is not None:
            lost = seen.loss.lost
        if seen.external is not None:
            resources[unit.group.meta.uid] = seen.external
    for child in unit.children:
        resources[child.meta.uid], step = step_of(_RULES[child.kind], child, round_)
        steps.append(step)
    return Concluded(
        step=merged(steps),
        resources=resources,
        lost=lost,
        inputs=inputs or (),
        at=round_.now,
        busy=any(each.meta.deleting for each in unit.records),
    )


def _inputs(unit: Unit, round_: Round) -> tuple[object, ...] | None:
    """Return all that a unit is concluded from but time; None where that cannot be told."""
    if unit.group is None:
        return None
    own, memory = unit.group, round_.memory
    inputs: list[object] = [*unit.records, round_.settings, round_.snapshot.cluster]
    inputs.append(memory.lost.get(own.meta.uid))
    if own.meta.deleting:
        # With the last group the device plugin goes.
        inputs += (round_.snapshot.device_plugin, teardown.others_need_plugin(own, round_))
    known = [memory.resources.get(each.meta.uid) for each in unit.records]
    inputs += known
    if round_.settings.machines_per_namespace:
        inputs += [round_.machines_before.get(each.meta.uid) for each in unit.children]
    for each in unit.records:
        inputs += round_.calls.get(each.meta.uid, ())
    key = (own.meta.namespace, own.meta.name)
    tokens = round_.tokens.get(key, ())
    inputs += tokens
    places = {provider_id(own, machine.name) for machine in own.status.machines}
    places |= {provider_id(own, token.machine) for token in tokens}
    for resource in known:
        if resource is not None and resource.listing is not None:
            places |= {machine.provider_id for machine in resource.listing.machines}
    nodes = {node.name: node for node in round_.labelled.get(key, ())}
    for place in sorted(places):
        node = round_.nodes.get(place)
        inputs += (node, memory.machines.get(place))
        if node is not None:
            nodes[node.name] = node
    for name, node in sorted(nodes.items()):
        inputs.append(node)
        inputs += round_.pods.get(name, ())
    return tuple(inputs)
