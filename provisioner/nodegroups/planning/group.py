"""Decides about a group: its children, its status, the labels of its nodes, and its deletion. Pure.

A child is created when the resources that it refers to exist. Outdated children are recreated with the slice, because
their resources cannot be changed. The order of deletion is: machines, template, policy, nodes and tokens, device
plugin. Each of these steps ends with the removal of its finalizer.
"""

from dataclasses import replace

from provisioner.model import bounds
from provisioner.nodegroups.api import names, shape
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.specs import (
    FailureAction,
    InstanceConfig,
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    ProvisioningModel,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.statuses import Condition, ConditionType, Reason, condition_of, is_true
from provisioner.nodegroups.api.types import (
    Child,
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    TpuNodeGroup,
    WorkloadPolicy,
)
from provisioner.nodegroups.bootstrap.metadata import with_users_script
from provisioner.nodegroups.compute.records import Manager, Template, region_of
from provisioner.nodegroups.planning import actions, conditions, events, joining, nodes, repair
from provisioner.nodegroups.planning.conditions import Sightings
from provisioner.nodegroups.planning.manager import no_room
from provisioner.nodegroups.planning.memory import LONG_AGO, READ, ResourceMemory
from provisioner.nodegroups.planning.nodes import fleet_of
from provisioner.nodegroups.planning.ownership import invalid, names_others, not_allowed
from provisioner.nodegroups.planning.resource import external_problem, external_target
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, delete_child, later, merged, to_write, want
from provisioner.tpu import ShapeError

#: Interval in seconds between reads of an instance template that a user created, if it is valid.
_EXTERNAL_SECONDS = 3600.0
#: Interval in seconds between reads of an instance template that a user named, if it is missing or invalid.
_EXTERNAL_AGAIN_SECONDS = 300.0
STARTUP_SCRIPT = "startup-script"
_NO_TEMPLATE = ". The slice is not recreated while its template is unknown or invalid"


def step_of(group: TpuNodeGroup, ctx: Round) -> Sightings:
    """Decide about one group that is not being deleted."""
    refusal = _refusal(group, ctx)
    missing = tuple(finalizer for finalizer in names.GROUP_FINALIZERS if finalizer not in group.meta.finalizers)
    if refusal is None and missing:
        return Sightings(group=group, step=events.set_finalizers(group, (*group.meta.finalizers, *missing), ctx))
    seen = _machines(group, ctx) if refusal is None else Sightings(group=group, refusal=refusal)
    if seen.refusal is not None:
        return replace(seen, step=seen.step + events.propose(group, group.status, (seen.refusal,), ctx.now))
    if seen.shape is not None:
        seen = _with_shape(seen, seen.shape, ctx)
    elif (manager := ctx.child_of(group, Kind.MANAGED_INSTANCE_GROUP)) is not None:
        seen = replace(seen, children={Kind.MANAGED_INSTANCE_GROUP: manager})
    return replace(seen, step=seen.step + conditions.report(seen, ctx))


def _with_shape(seen: Sightings, resolved: GroupShape, ctx: Round) -> Sightings:
    seen = _children(seen, resolved, ctx)
    group, manager = seen.group, seen.manager
    fleet, loss, step = None, None, seen.step
    if isinstance(manager, ManagedInstanceGroup):
        fleet = fleet_of(manager, ctx, resolved.chips_per_machine)
        if fleet is not None and not manager.meta.deleting:
            loss = repair.find_loss(group, resolved, fleet, _resource_of(manager, ctx), ctx)
            if loss is not None and loss.due_at is not None and seen.problem_of_template:
                # The managed instance group could be deleted, but not created again (`_children`).
                loss = replace(loss, due_at=None, note=_NO_TEMPLATE)
            step += merged(
                to_write(write, write.resource_version) for write in nodes.marks_to_set(group, resolved, fleet, ctx)
            )
            ends = repair.is_due_soon(loss, ctx)
            step += joining.join_machines(group, manager, resolved, fleet, ctx, ends=ends)
            lost = repair.lost_for_good(loss, ctx)
            step += nodes.remove(nodes.left_over(group, fleet, ctx, count=resolved.node_count, lost=lost))
    refused = ctx.refusal(step, actions.DeleteNode)
    notes = (
        *seen.notes,
        f"instanceTemplateURI: {seen.problem_of_template}" if seen.problem_of_template else "",
        joining.problem_of(group, ctx),
        joining.refused_join(group, fleet, ctx),
        joining.advice(group, fleet, ctx),
        nodes.refused_metadata(fleet),
        f"the node of an earlier machine is not deleted{refused}" if refused else "",
        "the startup-script in metadata runs at each boot, before the join" if users_script(group) else "",
    )
    return replace(seen, notes=tuple(filter(None, notes)), fleet=fleet, loss=loss, step=step)


def _resource_of(manager: ManagedInstanceGroup, ctx: Round) -> Manager | None:
    reading = ctx.known(manager).reading
    resource = reading.resource if reading is not None else None
    return resource if isinstance(resource, Manager) else None


def _refusal(group: TpuNodeGroup, ctx: Round) -> Condition | None:
    problem = names.group_name_problem(group.meta.name)
    if not problem and not region_of(group.spec.node_location):
        problem = f"nodeLocation {group.spec.node_location!r:.80} is not a zone such as us-east5-b"
    problem = problem or _problem_of_script(group, ctx)
    return invalid(problem) if problem else not_allowed(group.meta, group.spec.project, ctx)


def _problem_of_script(group: TpuNodeGroup, ctx: Round) -> str:
    users = users_script(group)
    whole, size = bounds.size(with_users_script(ctx.settings.startup_script, users)), bounds.size(users)
    if not users or whole <= bounds.METADATA_VALUE:
        return ""
    return (
        f"instanceConfig.metadata: startup-script has {size} bytes; with the script with which machines join, at most "
        f"{size - (whole - bounds.METADATA_VALUE)} fit"
    )


def _machines(group: TpuNodeGroup, ctx: Round) -> Sightings:
    config = group.spec.instance_config
    if config is not None:
        return _shaped(Sightings(group=group, model=config.effective_provisioning_model), config.machine_type)
    target = external_target(group.meta, group.spec.instance_template_uri)
    if target is None:
        return Sightings(group=group, refusal=invalid("neither instanceConfig nor instanceTemplateURI is set"))
    addresses = {"instanceTemplateURI": group.spec.instance_template_uri}
    refusal = not_allowed(group.meta, target.scope.project, ctx)
    refusal = refusal or names_others(group.meta.namespace, addresses, ctx)
    if refusal is not None:
        return Sightings(group=group, refusal=refusal)
    known = ctx.known(group)
    template, problem = _external(known)
    again = _EXTERNAL_AGAIN_SECONDS if problem or template is None else _EXTERNAL_SECONDS
    due_at = later(known.reading.asked_at, again, group.meta.uid) if known.reading is not None else LONG_AGO
    step = want(known, READ, actions.Read(target=target), due_at, ctx)
    if template is None:
        # If the template is unreadable or missing, the shape in the status is used, so that losses are still found.
        last = shape.of_status(group.status) if problem else None
        return Sightings(group=group, shape=last, problem_of_template=problem, step=step)
    # The provisioning model of a template with a problem may be invalid, but no machines are created from the template.
    model = template.provisioning_model if not problem else ""
    seen = Sightings(
        group=group,
        model=ProvisioningModel(model or ProvisioningModel.STANDARD),
        external_url=template.url or group.spec.instance_template_uri,
        problem_of_template=problem,
        step=step,
    )
    return _shaped(seen, template.machine_type)


def _shaped(seen: Sightings, machine_type: str) -> Sightings:
    try:
        return replace(seen, shape=shape.resolve(seen.group.spec, machine_type))
    except ShapeError as error:
        return replace(seen, refusal=invalid(str(error)))


def _external(known: ResourceMemory) -> tuple[Template | None, str]:
    if known.reading is None:
        wait = known.backoffs.get(READ)
        return None, "" if wait is None else f"the template cannot be read: {wait.failure.message}"
    template = known.reading.resource
    if not isinstance(template, Template):
        return None, "there is no instance template of this name"
    return template, external_problem(template)


def _children(seen: Sightings, resolved: GroupShape, ctx: Round) -> Sightings:
    group = seen.group
    wanted: dict[Kind, Child] = {}
    notes: list[str] = []
    policy = workload_policy(group, resolved)
    if policy is not None:
        wanted[Kind.WORKLOAD_POLICY] = policy
    config = group.spec.instance_config
    if config is not None:
        script = ctx.settings.startup_script if group.spec.bootstrap_kubernetes is not None else ""
        wanted[Kind.INSTANCE_TEMPLATE] = instance_template(group, config, script)
    needed = (*wanted, Kind.MANAGED_INSTANCE_GROUP)
    children = {kind: child for kind in needed if (child := ctx.child_of(group, kind)) is not None}
    manager = children.get(Kind.MANAGED_INSTANCE_GROUP)
    template_url = seen.external_url or _url(children.get(Kind.INSTANCE_TEMPLATE))
    policy_url = _url(children.get(Kind.WORKLOAD_POLICY))
    # Without a managed instance group, all nodes of the group are of earlier machines.
    old = nodes.left_over(group, None, ctx) if manager is None else ()
    # Nodes are deleted before machines are created, because a new machine of the same name could take over a node.
    step = nodes.remove(() if nodes.silent_node(old, ctx.oldest_ready) else old)
    refusal = no_room(group.meta.uid, group.meta.namespace, resolved.node_count, ctx)
    counted = not ctx.settings.machines_per_namespace or group.meta.uid in ctx.machines_before
    if not children and (refusal is not None or not counted):
        return replace(seen, needed=needed, no_room=refusal, step=seen.step + step)
    for kind, child in wanted.items():
        there = children.get(kind)
        if there is None:
            step += _create(child, notes, ctx)
        elif differs(there, child):
            if manager is None and not there.meta.deleting:
                step += delete_child(there)
            notes.append(f"{kind} {there.meta.name} is out of date and is recreated with the slice")
    outdated = bool(notes)
    if template_url and (policy_url or policy is None) and not seen.problem_of_template:
        child = managed_instance_group(group, resolved, seen.model, template_url, policy_url)
        deleting = any(existing.meta.deleting for existing in children.values())
        # Machines that could not join would only cost money, so none are created.
        in_vain = joining.problem_of(group, ctx)
        # While the status has the reason Recreating, a new managed instance group would be deleted again (`repair`).
        if manager is None and not (outdated or deleting or old or in_vain or repair.recreating(group)):
            step += _create(child, notes, ctx)
        elif manager is not None and differs(manager, child):
            notes.append(f"{Kind.MANAGED_INSTANCE_GROUP} {manager.meta.name} differs from what this release creates")
    if manager is not None and not manager.meta.deleting and repair.recreating(group):
        step += delete_child(manager)
    return replace(seen, children=children, needed=needed, notes=tuple(notes), step=seen.step + step)


def _create(child: Child, notes: list[str], ctx: Round) -> Step:
    write = actions.CreateChild(record=child)
    why = ctx.refused(write)
    if why:
        notes.append(f"{child.kind} {child.meta.name} cannot be created: {why}")
    return to_write(write)


def _url(child: Child | None) -> str:
    return child.status.url if child is not None and not child.meta.deleting else ""


def workload_policy(group: TpuNodeGroup, shape: GroupShape) -> WorkloadPolicy | None:
    """Return the child for the workload policy, None if each machine is a slice."""
    if not shape.one_slice:
        return None
    spec = WorkloadPolicySpec(
        project=group.spec.project, region=region_of(group.spec.node_location), accelerator_topology=shape.topology
    )
    return WorkloadPolicy(meta=_meta(group, Kind.WORKLOAD_POLICY), spec=spec)


def instance_template(group: TpuNodeGroup, config: InstanceConfig, startup_script: str) -> InstanceTemplate:
    """Return the child for the instance template. `startup_script` is empty if machines join by their image."""
    metadata = dict(config.metadata)
    if startup_script:
        metadata[STARTUP_SCRIPT] = with_users_script(startup_script, metadata.get(STARTUP_SCRIPT, ""))
    config = replace(
        config,
        provisioning_model=config.effective_provisioning_model,
        metadata=metadata,
        # Compute Engine rejects the bare name of a subnetwork.
        subnetwork=config.subnetwork
        if "/" in config.subnetwork
        else f"regions/{region_of(group.spec.node_location)}/subnetworks/{config.subnetwork}",
    )
    spec = InstanceTemplateSpec(project=group.spec.project, config=config)
    return InstanceTemplate(meta=_meta(group, Kind.INSTANCE_TEMPLATE), spec=spec)


def users_script(group: TpuNodeGroup) -> str:
    """Return the user's startup script if it must run before the controller's script; otherwise an empty text."""
    config = group.spec.instance_config
    if config is None or group.spec.bootstrap_kubernetes is None:
        return ""
    return config.metadata.get(STARTUP_SCRIPT, "")


def managed_instance_group(
    group: TpuNodeGroup, shape: GroupShape, model: ProvisioningModel, template_url: str, policy_url: str
) -> ManagedInstanceGroup:
    """Return the child for the managed instance group."""
    # A group that is one slice, even of one machine, is recreated as a whole by this controller (`repair`).
    several = not shape.one_slice and shape.node_count > 1
    repaired = several and model in (ProvisioningModel.STANDARD, ProvisioningModel.SPOT)
    spec = ManagedInstanceGroupSpec(
        project=group.spec.project,
        location=group.spec.node_location,
        instance_template=template_url,
        target_size=shape.node_count,
        workload_policy=policy_url,
        target_size_policy_mode=shape.mode,
        default_action_on_failure=FailureAction.REPAIR if repaired else FailureAction.DO_NOTHING,
    )
    return ManagedInstanceGroup(meta=_meta(group, Kind.MANAGED_INSTANCE_GROUP), spec=spec)


def differs(existing: Child, wanted: Child) -> bool:
    """Return whether a child's spec differs from the wanted spec. An unset model or mode equals its default."""
    match existing, wanted:
        case WorkloadPolicy(), WorkloadPolicy():
            return existing.spec != wanted.spec
        case InstanceTemplate(), InstanceTemplate():
            config = existing.spec.config
            if wanted.spec.config.subnetwork.endswith(f"/subnetworks/{config.subnetwork}"):
                # tpu-operator writes the bare name of the subnetwork, which counts as equal.
                config = replace(config, subnetwork=wanted.spec.config.subnetwork)
            config = replace(config, provisioning_model=config.effective_provisioning_model)
            return replace(existing.spec, config=config) != wanted.spec
        case ManagedInstanceGroup(), ManagedInstanceGroup():
            return replace(existing.spec, target_size_policy_mode=existing.spec.effective_mode) != wanted.spec
    return True


def _meta(group: TpuNodeGroup, kind: Kind) -> ObjectMeta:
    return ObjectMeta(namespace=group.meta.namespace, name=names.child_name(group.meta, kind), uid="", owner=group.meta)


_CHILDREN = {
    names.CLEANUP_MIG: (Kind.MANAGED_INSTANCE_GROUP, Reason.DELETING_MIG),
    names.CLEANUP_TEMPLATE: (Kind.INSTANCE_TEMPLATE, Reason.DELETING_TEMPLATE),
    names.CLEANUP_POLICY: (Kind.WORKLOAD_POLICY, Reason.DELETING_POLICY),
}


def tear_down(group: TpuNodeGroup, ctx: Round) -> Step:
    """Return the next step of a group that is being deleted."""
    finalizer = next((name for name in names.GROUP_FINALIZERS if name in group.meta.finalizers), None)
    if finalizer is None:
        return NOTHING
    if finalizer in _CHILDREN:
        step = _delete_child(group, *_CHILDREN[finalizer], ctx)
    elif finalizer == names.CLEANUP_NODES:
        step = _delete_nodes(group, ctx)
    else:
        step = _delete_device_plugin(group, ctx)
    late = _late_children(group, ctx)
    if step is not None:
        return step + late
    return events.set_finalizers(group, (name for name in group.meta.finalizers if name != finalizer), ctx) + late


def _late_children(group: TpuNodeGroup, ctx: Round) -> Step:
    """Return a step that deletes children that appeared after the group's finalizer for their kind was removed."""
    step = NOTHING
    for finalizer, (kind, _) in _CHILDREN.items():
        child = ctx.child_of(group, kind)
        if finalizer not in group.meta.finalizers and child is not None and not child.meta.deleting:
            step += delete_child(child)
    return step


def _delete_child(group: TpuNodeGroup, kind: Kind, reason: Reason, ctx: Round) -> Step | None:
    child = ctx.child_of(group, kind)
    if child is None:
        return None
    step = NOTHING
    message = f"{kind} {child.meta.name} is being deleted"
    if not child.meta.deleting:
        step = delete_child(child)
    else:
        own = condition_of(child.status.conditions, ConditionType.READY)
        if own is not None and own.reason == Reason.DRAINING_NODES:
            reason = Reason.DRAINING_NODES
        if own is not None and not is_true(own) and own.message:
            message = f"{message}: {own.message}"
    return conditions.deleting(group, reason, message, step, ctx)


def _delete_nodes(group: TpuNodeGroup, ctx: Round) -> Step | None:
    left = nodes.left_over(group, None, ctx)
    if group.meta.annotations.get(names.ABANDON) == "true":
        # If the group is abandoned, its machines may still run, so ready nodes are kept.
        left = tuple(node for node in left if not node.ready)
    tokens = ctx.tokens.get((group.meta.namespace, group.meta.name), ())
    if not left and not tokens:
        return None
    ready = [node.name for node in left if node.ready]
    forced = group.meta.annotations.get(names.FORCE) == "true"
    message = "nodes and tokens are being deleted"
    if ready and not forced:
        message = (
            f"node {ready[0]} still reports; it is deleted when it does not, usually within two minutes, or when it "
            f'loses the labels of the group. If it still reports after that, the annotation {names.FORCE}: "true" '
            "deletes it"
        )
    step = nodes.remove(left, forced=forced)
    if not left:
        # Tokens are deleted last, because a token shows which group a node without labels belongs to.
        step = merged(to_write(actions.DeleteToken(name=token.name, uid=token.uid), token.uid) for token in tokens)
    return conditions.deleting(group, Reason.DELETING_NODES, message, step, ctx)


def _delete_device_plugin(group: TpuNodeGroup, ctx: Round) -> Step | None:
    plugin = ctx.snapshot.device_plugin
    if plugin is None or ctx.has_nodes or not plugin.version or not ctx.settings.device_plugin_version:
        return None
    step = to_write(actions.DeleteDevicePlugin(uid=plugin.uid), plugin.uid)
    return conditions.deleting(group, Reason.DELETING_DEVICE_PLUGIN, "the device plugin is being deleted", step, ctx)
