"""Decides the status of a group: conditions with the types of gke-labs/tpu-operator, counts, and machines. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from provisioner.constants import TPU_RESOURCE
from provisioner.model.wording import first_of
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.specs import ProvisioningModel
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    ConditionType,
    Machine,
    NodeSummary,
    Reason,
    TpuNodeGroupStatus,
    condition_of,
    is_true,
    not_ready,
)
from provisioner.nodegroups.api.types import Child, Kind, TpuNodeGroup
from provisioner.nodegroups.planning import events, nodes, repair
from provisioner.nodegroups.planning.actions import PatchNode
from provisioner.nodegroups.planning.memory import LASTING_FAILURES
from provisioner.nodegroups.planning.nodes import Fleet, Member
from provisioner.nodegroups.planning.repair import Loss
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, was_whole

_TYPES = {
    Kind.WORKLOAD_POLICY: ConditionType.WORKLOAD_POLICY_READY,
    Kind.INSTANCE_TEMPLATE: ConditionType.INSTANCE_TEMPLATE_READY,
    Kind.MANAGED_INSTANCE_GROUP: ConditionType.MANAGED_INSTANCE_GROUP_READY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """Observed state of a group in one round, and the step that follows from it."""

    group: TpuNodeGroup
    #: Machines of the group. None if they are unknown or the spec is invalid; then nothing is created.
    shape: GroupShape | None = None
    model: ProvisioningModel = ProvisioningModel.STANDARD
    refusal: Condition | None = None
    external_url: str = ""
    problem_of_template: str = ""
    children: Mapping[Kind, Child] = field(default_factory=dict)
    needed: tuple[Kind, ...] = ()
    #: Texts for the message of Ready, such as that a child is outdated, or why machines cannot join.
    notes: tuple[str, ...] = ()
    #: Condition of a group that has no children and that the limit of its namespace rejects; otherwise None.
    no_room: Condition | None = None
    fleet: Fleet | None = None
    loss: Loss | None = None
    step: Step = NOTHING

    @property
    def manager(self) -> Child | None:
        """Child that represents the managed instance group, None if it does not exist."""
        return self.children.get(Kind.MANAGED_INSTANCE_GROUP)


def report(sightings: Sightings, ctx: Round) -> Step:
    """Return a step that writes the status, if it has changed, of a group that is not being deleted."""
    group, now = sightings.group, ctx.now
    ready, status = _ready(sightings, ctx)
    resolved = sightings.shape
    if resolved is not None:
        status = replace(
            status, topology=resolved.topology, node_count=resolved.node_count, target_size_policy_mode=resolved.mode
        )
    step = events.propose(group, status, (*_of_children(sightings), ready), now)
    loss, fleet = sightings.loss, sightings.fleet
    moments = [loss.due_at] if loss is not None else []
    machines = {machine.name: machine for machine in group.status.machines}
    members = fleet.members if fleet is not None else ()
    moments += [repair.joins_until(machines.get(member.machine.name), member, ctx) for member in members]
    return step + Step(moments=tuple(moment for moment in moments if moment is not None and moment > now))


def deleting(group: TpuNodeGroup, reason: Reason, message: str, step: Step, ctx: Round) -> Step:
    """Return `step` and a write of the condition Ready, with `message` and the first rejected write of `step`."""
    condition = not_ready(reason, f"{message}{ctx.refusal(step)}")
    return step + events.propose(group, group.status, (condition,), ctx.now)


def _of_children(sightings: Sightings) -> tuple[Condition, ...]:
    conditions = [_of_child(kind, sightings.children.get(kind)) for kind in sightings.needed]
    if Kind.INSTANCE_TEMPLATE in sightings.needed:
        return tuple(conditions)
    kind = ConditionType.INSTANCE_TEMPLATE_READY
    if sightings.problem_of_template:
        template = not_ready(Reason.INVALID_TEMPLATE, sightings.problem_of_template, kind)
    elif sightings.external_url:
        template = Condition(type=kind, status=ConditionStatus.TRUE, reason=Reason.EXTERNAL_TEMPLATE, message="")
    else:
        # An earlier process may have read the template, so the condition that it wrote is kept.
        before = condition_of(sightings.group.status.conditions, kind)
        template = before or not_ready(Reason.PROVISIONING, "the template is being read", kind)
    return (template, *conditions)


def _of_child(kind: Kind, child: Child | None) -> Condition:
    condition_type = _TYPES[kind]
    if child is None:
        return not_ready(Reason.PROVISIONING, f"{kind} does not exist yet", condition_type)
    own = condition_of(child.status.conditions, ConditionType.READY)
    if own is not None and is_true(own) and child.status.url:
        return Condition(type=condition_type, status=ConditionStatus.TRUE, reason=Reason.READY, message=own.message)
    return not_ready(Reason.PROVISIONING, own.message if own is not None else "", condition_type)


def _ready(sightings: Sightings, ctx: Round) -> tuple[Condition, TpuNodeGroupStatus]:
    group, fleet, resolved = sightings.group, sightings.fleet, sightings.shape
    status, now = group.status, ctx.now
    before = condition_of(status.conditions, ConditionType.READY)
    if repair.recreating(group):
        return _recreating(sightings, ctx)
    if fleet is None or resolved is None:
        there = sightings.manager is not None and sightings.manager.status.url
        if there and before is not None:
            # The condition is kept until machines are listed, unless a child failed and the nodes were never all ready.
            return (None if was_whole(group) else _failed(sightings)) or before, status
        if not there:
            status = replace(status, machines=(), node_summary=_summary(resolved, None, None))
        return _waiting(sightings), status
    status = replace(
        status, machines=_machines(status, fleet, now), node_summary=_summary(resolved, fleet, sightings.loss)
    )
    loss = sightings.loss
    if loss is not None:
        if loss.due_at is not None and loss.due_at <= now:
            message = f"all machines are recreated: {loss.message}"
            return not_ready(Reason.RECREATING, message), replace(status, recreated_at=repair.recorded(group, now))
        # If the group was never complete, the reason is not NodeLost, because its other machines may still join.
        reason = Reason.NODE_LOST if was_whole(group) else Reason.AWAITING_NODE_JOIN
        return not_ready(reason, ". ".join((loss.message, *sightings.notes))), status
    if not fleet.ready == len(fleet.members) == resolved.node_count:
        return _waiting(sightings), status
    unmarked = nodes.marks_to_set(group, resolved, fleet, ctx)
    if unmarked:
        return _unmarked(unmarked, ctx), status
    message = ". ".join(filter(None, (resolved.warning, *sightings.notes)))
    ready = Condition(type=ConditionType.READY, status=ConditionStatus.TRUE, reason=Reason.READY, message=message)
    return ready, status


def _unmarked(changes: Sequence[PatchNode], ctx: Round) -> Condition:
    first = changes[0]
    lacks = [*sorted(first.labels), *([TPU_RESOURCE] if first.taint else [])]
    more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
    words = (f"node {first.name}{more} does not have {', '.join(lacks)} yet", ctx.refused(first))
    return not_ready(Reason.AWAITING_NODE_JOIN, ": ".join(filter(None, words)))


def _recreating(sightings: Sightings, ctx: Round) -> tuple[Condition, TpuNodeGroupStatus]:
    group, manager = sightings.group, sightings.manager
    old = nodes.left_over(group, None, ctx) if manager is None else ()
    if manager is None and not old:
        # The transition time of ManagedInstanceGroupReady is cleared, so that it is set again for the new machines.
        kind = ConditionType.MANAGED_INSTANCE_GROUP_READY
        anew = tuple(
            replace(condition, last_transition_time=None) if condition.type == kind else condition
            for condition in group.status.conditions
        )
        summary = _summary(sightings.shape, None, None)
        status = replace(group.status, conditions=anew, machines=(), node_summary=summary)
        return not_ready(Reason.AWAITING_NODE_JOIN, "all machines are recreated"), status
    before = condition_of(group.status.conditions, ConditionType.READY)
    message = before.message if before is not None else ""
    if manager is not None and manager.meta.deleting:
        own = condition_of(manager.status.conditions, ConditionType.READY)
        if own is not None and not is_true(own) and own.message:
            message = f"all machines are recreated: {own.message}"
    elif manager is None:
        failed, exists = _failed(sightings), f"node {old[0].name} still exists{ctx.refusal(sightings.step)}"
        words = failed.message if failed is not None else nodes.silent_node(old, ctx.oldest_ready) or exists
        message = f"all machines are recreated: {words}"
    elif refusal := ctx.refusal(sightings.step):
        message = f"all machines are recreated{refusal}"
    return not_ready(Reason.RECREATING, message), group.status


def _waiting(sightings: Sightings) -> Condition:
    if sightings.problem_of_template:
        return not_ready(Reason.REQUEST_REJECTED, f"instanceTemplateURI: {sightings.problem_of_template}")
    failed = sightings.no_room or _failed(sightings)
    if failed is not None:
        return failed
    for kind in sightings.needed:
        needed = sightings.children.get(kind)
        if needed is None or not needed.status.url or needed.meta.deleting:
            words = "is being recreated" if needed is not None and needed.meta.deleting else "is being created"
            return not_ready(Reason.AWAITING_NODE_JOIN, ". ".join((f"{kind} {words}", *sightings.notes)))
    resolved, fleet = sightings.shape, sightings.fleet
    if resolved is None or fleet is None:
        return not_ready(Reason.AWAITING_NODE_JOIN, "the machines are not known yet")
    if fleet.refusals:
        condition = not_ready(Reason.REQUEST_REJECTED, nodes.refused_metadata(fleet))
        # Status False would mean that the group has failed: the provisioner of slices would delete the group.
        lasts = fleet.refusals[0][1].failures >= LASTING_FAILURES
        return condition if lasts else replace(condition, status=ConditionStatus.UNKNOWN)
    awaited = [_awaited(member) for member in fleet.members if not member.ready]
    words = f"{fleet.ready} of {resolved.node_count} nodes are ready"
    if awaited:
        words = f"{words}: {first_of(awaited, '; ')}"
    return not_ready(Reason.AWAITING_NODE_JOIN, ". ".join((words, *sightings.notes)))


def _failed(sightings: Sightings) -> Condition | None:
    for kind, child in sightings.children.items():
        own = condition_of(child.status.conditions, ConditionType.READY)
        if own is not None and not is_true(own) and own.reason in events.WARNED_OF:
            condition = not_ready(Reason(own.reason), f"{kind} {child.meta.name}: {own.message}")
            return replace(condition, status=own.status)
    return None


def _awaited(member: Member) -> str:
    if member.lacks:
        return member.lacks
    name, machine = member.machine.name, member.machine
    return f"machine {name} is {machine.status} and has not joined" if machine.has_machine else f"machine {name} waits"


def _machines(status: TpuNodeGroupStatus, fleet: Fleet, now: datetime) -> tuple[Machine, ...]:
    before = {machine.name: machine for machine in status.machines}
    at = now.astimezone(UTC).replace(microsecond=0)
    machines = []
    for member in fleet.members:
        machine = member.machine
        state, node = machine.status or machine.action, member.node.name if member.node is not None else ""
        old = before.get(machine.name)
        if old is not None and (old.state, old.node, old.ready) == (state, node, member.ready):
            machines.append(old)
        else:
            machines.append(Machine(name=machine.name, state=state, node=node, ready=member.ready, since=at))
    return tuple(machines)


def _summary(resolved: GroupShape | None, fleet: Fleet | None, loss: Loss | None) -> NodeSummary | None:
    if resolved is None:
        return None
    ready = fleet.ready if fleet is not None else 0
    failed = loss.machines if loss is not None else 0
    return NodeSummary(ready=ready, reconciling=max(0, resolved.node_count - ready - failed), failed=failed)
