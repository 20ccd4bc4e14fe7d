"""A group: its children, what it says of them and of its nodes, and what its nodes carry.

Children are made in order, each as soon as what it refers to is there; what there is of them is taken from their
status. A child whose specification is not as it should be (a new startup script, somebody's edit) is made anew with the
slice, since Compute Engine changes none of these resources, and until then the group says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.model import bounds
from provisioner.nodegroups.api import names, shape
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.specs import ProvisioningModel
from provisioner.nodegroups.api.types import Child, Kind, ManagedInstanceGroup, TpuNodeGroup
from provisioner.nodegroups.bootstrap.script import with_users_script
from provisioner.nodegroups.compute.links import region_of
from provisioner.nodegroups.compute.records import STANDARD, Manager, Template
from provisioner.nodegroups.planning import answers, conditions, desired, joining, nodes, repair
from provisioner.nodegroups.planning.calls import Read
from provisioner.nodegroups.planning.child import later, want
from provisioner.nodegroups.planning.conditions import Sightings
from provisioner.nodegroups.planning.fleet import fleet_of
from provisioner.nodegroups.planning.memory import LONG_AGO, Lost, ResourceMemory
from provisioner.nodegroups.planning.refusal import Refusal, invalid, names_others, not_allowed
from provisioner.nodegroups.planning.round import NOTHING, Proposed, Round, Step
from provisioner.nodegroups.planning.template import external_problem, external_target
from provisioner.nodegroups.planning.writes import CreateChild, DeleteChild, SetFinalizers
from provisioner.tpu import ShapeError

#: A template that the user names is read again after this: once it is found good, and while it is not.
_EXTERNAL_SECONDS = 3600.0
_EXTERNAL_AGAIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a group comes to in one round."""

    step: Step = NOTHING
    #: Of a template that its user names; None for none.
    external: ResourceMemory | None = None
    #: Machines of it that are lost (`Memory.lost`).
    lost: Mapping[str, Lost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machines:
    """What the group's machines are to be; without a shape nothing can be made of them."""

    shape: GroupShape | None = None
    model: ProvisioningModel = ProvisioningModel.STANDARD
    refusal: Refusal | None = None
    #: Of a template that the user names.
    external: ResourceMemory | None = None
    external_url: str = ""
    external_problem: str = ""
    step: Step = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Children:
    """What there is of the children."""

    found: dict[Kind, Child] = field(default_factory=dict)
    #: Kinds that the group needs.
    needed: tuple[Kind, ...] = ()
    #: What is not as it should be and waits for the slice to be made anew, or for what the cluster does not say.
    notes: tuple[str, ...] = ()
    step: Step = NOTHING


def step_of(group: TpuNodeGroup, round_: Round) -> Outcome:
    """Decide about one group that nobody deletes."""
    refusal = _refusal(group, round_)
    if refusal is not None:
        return Outcome(step=conditions.refused(group, refusal, round_.now))
    missing = tuple(each for each in names.GROUP_FINALIZERS if each not in group.meta.finalizers)
    if missing:
        finalizers = (*group.meta.finalizers, *missing)
        write = SetFinalizers(kind=Kind.TPU_NODE_GROUP, meta=group.meta, finalizers=finalizers)
        return Outcome(step=Step(writes=(Proposed(write=write, seen=group.meta.resource_version),)))
    machines = _machines(group, round_)
    if machines.refusal is not None:
        step = machines.step + conditions.refused(group, machines.refusal, round_.now)
        return Outcome(step=step, external=machines.external)
    if machines.shape is None:
        manager = round_.child_of(group, Kind.MANAGED_INSTANCE_GROUP)
        children = {} if manager is None else {Kind.MANAGED_INSTANCE_GROUP: manager}
        sightings = Sightings(group=group, children=children, problem_of_template=machines.external_problem)
        return Outcome(step=machines.step + conditions.report(sightings, round_), external=machines.external)
    return _with_shape(group, machines, machines.shape, round_)


def _with_shape(group: TpuNodeGroup, machines: _Machines, resolved: GroupShape, round_: Round) -> Outcome:
    children = _children(group, machines, resolved, round_)
    manager = children.found.get(Kind.MANAGED_INSTANCE_GROUP)
    fleet, resource = None, None
    if isinstance(manager, ManagedInstanceGroup):
        fleet = fleet_of(manager, round_, resolved.chips_per_machine)
        known = round_.remembered(manager.meta.uid)
        if known is not None and known.reading is not None and isinstance(known.reading.resource, Manager):
            resource = known.reading.resource
    loss = None
    step = machines.step + children.step
    if fleet is not None and isinstance(manager, ManagedInstanceGroup) and not manager.meta.deleting:
        loss = repair.find_loss(group, resolved, fleet, resource, round_)
        step += nodes.mark_nodes(group, resolved, fleet, round_)
        step += joining.join_machines(group, manager, resolved, fleet, round_)
        step += nodes.remove(nodes.left_over(group, fleet, round_))
    sightings = Sightings(
        group=group,
        shape=resolved,
        children=children.found,
        needed=children.needed,
        external_url=machines.external_url,
        problem_of_template=machines.external_problem,
        notes=tuple(
            filter(
                None,
                (
                    *children.notes,
                    joining.problem_of(group, round_),
                    joining.refused_token(group, fleet, round_),
                    _of_users_script(group),
                ),
            )
        ),
        fleet=fleet,
        loss=loss,
    )
    return Outcome(
        step=step + conditions.report(sightings, round_),
        external=machines.external,
        lost=loss.lost if loss is not None else {},
    )


def _of_users_script(group: TpuNodeGroup) -> str:
    """Say what becomes of a startup script of the user's."""
    return "the startup-script in metadata runs at each boot, before the join" if desired.users_script(group) else ""


def _refusal(group: TpuNodeGroup, round_: Round) -> Refusal | None:
    problem = names.group_name_problem(group.meta.name)
    if not problem and not region_of(group.spec.node_location):
        problem = f"nodeLocation {group.spec.node_location!r:.80} is not a zone such as us-east5-b"
    problem = problem or _problem_of_script(group, round_)
    return invalid(problem) if problem else not_allowed(group.meta, group.spec.project, round_)


def _problem_of_script(group: TpuNodeGroup, round_: Round) -> str:
    users = desired.users_script(group)
    whole = with_users_script(round_.settings.startup_script, users)
    if not users or len(whole) <= bounds.METADATA_VALUE:
        return ""
    room = len(users) - (len(whole) - bounds.METADATA_VALUE)
    return (
        f"instanceConfig.metadata: startup-script has {len(users)} characters; beside the script with which machines "
        f"join, {room} fit"
    )


def _machines(group: TpuNodeGroup, round_: Round) -> _Machines:
    """Find out what machines the group is made of: from its own specification, or from its user's template."""
    config = group.spec.instance_config
    if config is not None:
        try:
            resolved = shape.resolve(group.spec, config.machine_type)
        except ShapeError as error:
            return _Machines(refusal=invalid(str(error)))
        return _Machines(shape=resolved, model=config.effective_provisioning_model)
    target = external_target(group.meta.uid, group.spec.instance_template_uri)
    if target is None:
        return _Machines(refusal=invalid("neither instanceConfig nor instanceTemplateURI says what machines to make"))
    refusal = not_allowed(group.meta, target.scope.project, round_)
    refusal = refusal or names_others(
        group.meta.namespace, {"instanceTemplateURI": group.spec.instance_template_uri}, round_
    )
    if refusal is not None:
        return _Machines(refusal=refusal)
    known = round_.remembered(group.meta.uid) or ResourceMemory()
    template, problem = _external(known)
    again = _EXTERNAL_AGAIN_SECONDS if problem or template is None else _EXTERNAL_SECONDS
    due_at = later(known.reading.asked_at, again, group.meta.uid) if known.reading is not None else LONG_AGO
    step = want(known, answers.READ, Read(target=target), due_at, round_)
    if template is None:
        return _Machines(external=known, external_problem=problem, step=step)
    try:
        resolved = shape.resolve(group.spec, template.machine_type)
    except ShapeError as error:
        return _Machines(external=known, refusal=invalid(str(error)), step=step)
    return _Machines(
        shape=resolved,
        model=_model_of(template),
        external=known,
        external_url=template.url or group.spec.instance_template_uri,
        external_problem=problem,
        step=step,
    )


def _external(known: ResourceMemory) -> tuple[Template | None, str]:
    """Return the template that the user names, and what is wrong with it."""
    if known.reading is None:
        wait = known.backoffs.get(answers.READ)
        return None, "" if wait is None else f"the template cannot be read: {wait.failure.message}"
    template = known.reading.resource
    if not isinstance(template, Template):
        return None, "there is no instance template of this name"
    return template, external_problem(template)


def _model_of(template: Template) -> ProvisioningModel:
    try:
        return ProvisioningModel(template.provisioning_model or STANDARD)
    except ValueError:
        return ProvisioningModel.STANDARD


def _children(group: TpuNodeGroup, machines: _Machines, resolved: GroupShape, round_: Round) -> _Children:
    wanted: dict[Kind, Child] = {}
    notes: list[str] = []
    policy = desired.workload_policy(group, resolved)
    if policy is not None:
        wanted[Kind.WORKLOAD_POLICY] = policy
    config = group.spec.instance_config
    if config is not None:
        script = round_.settings.startup_script if group.spec.bootstrap_kubernetes is not None else ""
        wanted[Kind.INSTANCE_TEMPLATE] = desired.instance_template(group, config, script)
    needed = (*wanted, Kind.MANAGED_INSTANCE_GROUP)
    found = {kind: child for kind in needed if (child := round_.child_of(group, kind)) is not None}
    template_url = machines.external_url or _url(found.get(Kind.INSTANCE_TEMPLATE))
    policy_url = _url(found.get(Kind.WORKLOAD_POLICY))
    # Without machines a child that is out of date can be made anew.
    free = Kind.MANAGED_INSTANCE_GROUP not in found
    old = nodes.left_over(group, None, round_) if free else ()
    # Their names may come again, and a node that a new machine takes over must not be deleted.
    step = nodes.remove(old) if old else NOTHING
    for kind, child in wanted.items():
        there = found.get(kind)
        if there is None:
            step += _create(kind, child)
        elif desired.differs(there, child):
            if free and not there.meta.deleting:
                step += _delete(kind, there)
            notes.append(f"{kind} {there.meta.name} is out of date and is made anew with the slice")
    outdated = bool(notes)
    if template_url and (policy_url or policy is None) and not machines.external_problem:
        child = desired.managed_instance_group(group, resolved, machines.model, template_url, policy_url)
        manager = found.get(Kind.MANAGED_INSTANCE_GROUP)
        deleting = any(each.meta.deleting for each in found.values())
        # Machines that cannot join would cost, and do nothing.
        in_vain = joining.problem_of(group, round_)
        # The status has to say otherwise first that the slice is made anew (`conditions`).
        if manager is None and not (outdated or deleting or old or in_vain or repair.recreating(group)):
            step += _create(Kind.MANAGED_INSTANCE_GROUP, child)
        elif manager is not None and desired.differs(manager, child):
            notes.append(f"{Kind.MANAGED_INSTANCE_GROUP} {manager.meta.name} is not as it is made today")
    manager = found.get(Kind.MANAGED_INSTANCE_GROUP)
    if manager is not None and not manager.meta.deleting and repair.recreating(group):
        step += _delete(Kind.MANAGED_INSTANCE_GROUP, manager)
    return _Children(found=found, needed=needed, notes=tuple(notes), step=step)


def _url(child: Child | None) -> str:
    return child.status.url if child is not None and not child.meta.deleting else ""


def _create(kind: Kind, child: Child) -> Step:
    return Step(writes=(Proposed(write=CreateChild(kind=kind, child=child), seen=""),))


def _delete(kind: Kind, child: Child) -> Step:
    write = DeleteChild(kind=kind, meta=child.meta)
    return Step(writes=(Proposed(write=write, seen=child.meta.resource_version),))
