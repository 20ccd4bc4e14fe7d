"""What is decided on together, and only when something of it has changed: a group with its children, or a child alone.

Most of many groups are settled at any moment, while events of others come many a second. A unit is taken over from the
last round as long as all that it was concluded from is the same. What only time changes is looked at when a step has
said it would be, and after a while in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.nodegroups.api.types import Child, InstanceTemplate, ManagedInstanceGroup, TpuNodeGroup, WorkloadPolicy
from provisioner.nodegroups.planning import group, teardown
from provisioner.nodegroups.planning.child import step_of
from provisioner.nodegroups.planning.manager import ManagerRules
from provisioner.nodegroups.planning.memory import Lost, ResourceMemory
from provisioner.nodegroups.planning.nodes import provider_id
from provisioner.nodegroups.planning.policy import PolicyRules
from provisioner.nodegroups.planning.round import Round, Step, all_children, merged
from provisioner.nodegroups.planning.template import TemplateRules

_POLICIES = PolicyRules()
_TEMPLATES = TemplateRules()
_MANAGERS = ManagerRules()
#: A unit is looked at this often although nothing has changed and no step has asked for it.
_LOOKED_AT_SECONDS = 60.0
#: The same while it is deleted, or there is something to do that waits for its turn, or for the caches to show it.
_BUSY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A group with its children, or one child that is nobody's."""

    group: TpuNodeGroup | None
    children: tuple[Child, ...]

    @property
    def key(self) -> str:
        """Names it: the UID of its first object."""
        return self.group.meta.uid if self.group is not None else self.children[0].meta.uid


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

    def holds(self, inputs: Sequence[object], now: datetime) -> bool:
        """Whether a round with these inputs would come to the same."""
        if len(inputs) != len(self.inputs):
            return False
        age = (now - self.at).total_seconds()
        limit = _BUSY_SECONDS if self.busy or self.step.calls or self.step.writes else _LOOKED_AT_SECONDS
        if not 0 <= age < limit or any(moment <= now for moment in self.step.moments):
            return False
        return all(old is new for old, new in zip(self.inputs, inputs, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What a round came to, for the next: by the key of the unit."""

    units: Mapping[str, Concluded] = field(default_factory=dict)


def units_of(round_: Round) -> Iterable[Unit]:
    """Return all units."""
    owned: dict[str, list[Child]] = {}
    for kind, child in all_children(round_.snapshot):
        parent = round_.parent_of(child.meta, kind)
        if parent is not None:
            owned.setdefault(parent.meta.uid, []).append(child)
        else:
            yield Unit(group=None, children=(child,))
    for uid, each in round_.groups.items():
        yield Unit(group=each, children=tuple(owned.get(uid, ())))


def conclude(unit: Unit, last: Concluded | None, round_: Round) -> Concluded:
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
        outcome = group.step_of(unit.group, round_)
        steps.append(outcome.step)
        lost = outcome.lost
        if outcome.external is not None:
            resources[unit.group.meta.uid] = outcome.external
    for child in unit.children:
        resources[child.meta.uid], step = _step_of_child(child, round_)
        steps.append(step)
    return Concluded(
        step=merged(steps),
        resources=resources,
        lost=lost,
        inputs=inputs or (),
        at=round_.now,
        busy=_deleting(unit),
    )


def _deleting(unit: Unit) -> bool:
    return any(each.meta.deleting for each in (unit.group, *unit.children) if each is not None)


def _step_of_child(child: Child, round_: Round) -> tuple[ResourceMemory, Step]:
    match child:
        case WorkloadPolicy():
            return step_of(_POLICIES, child, round_)
        case InstanceTemplate():
            return step_of(_TEMPLATES, child, round_)
        case ManagedInstanceGroup():
            return step_of(_MANAGERS, child, round_)


def _inputs(unit: Unit, round_: Round) -> tuple[object, ...] | None:
    """Return all that a unit is concluded from but time; None where that cannot be told."""
    if unit.group is None:
        return None
    own, memory = unit.group, round_.memory
    inputs: list[object] = [own, *unit.children, round_.settings, round_.snapshot.cluster]
    inputs.append(memory.lost.get(own.meta.uid))
    if own.meta.deleting:
        # With the last group the device plugin goes.
        inputs += (round_.snapshot.device_plugin, teardown.others_need_plugin(own, round_))
    known = [memory.resources.get(each.meta.uid) for each in (own, *unit.children)]
    inputs += known
    if round_.settings.machines_per_namespace:
        inputs += [round_.machines_before.get(each.meta.uid) for each in unit.children]
    for each in (own, *unit.children):
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
