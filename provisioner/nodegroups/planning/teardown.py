"""How a group goes: machines, template, policy, nodes and tokens, device plugin, in this order.

Each round looks at what is left and takes the next step; a finalizer is removed when nothing of its step is left. So it
goes on after a crash at any line, and ends where everything is gone already.
"""

from __future__ import annotations

from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.conditions import ConditionType, Reason, condition_of, not_ready
from provisioner.nodegroups.api.types import Kind, TpuNodeGroup
from provisioner.nodegroups.planning import conditions, nodes
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, merged, of_record, to_write
from provisioner.nodegroups.planning.writes import DeleteChild, DeleteDevicePlugin, DeleteToken, SetFinalizers

_CHILDREN = {
    names.CLEANUP_MIG: (Kind.MANAGED_INSTANCE_GROUP, Reason.DELETING_MIG),
    names.CLEANUP_TEMPLATE: (Kind.INSTANCE_TEMPLATE, Reason.DELETING_TEMPLATE),
    names.CLEANUP_POLICY: (Kind.WORKLOAD_POLICY, Reason.DELETING_POLICY),
}


def step_of(group: TpuNodeGroup, round_: Round) -> Step:
    """Take the next step of a group that is being deleted."""
    finalizer = next((each for each in names.GROUP_FINALIZERS if each in group.meta.finalizers), None)
    if finalizer is None:
        return NOTHING
    if finalizer in _CHILDREN:
        step = _delete_child(group, *_CHILDREN[finalizer], round_)
    elif finalizer == names.CLEANUP_NODES:
        step = _delete_nodes(group, round_)
    else:
        step = _delete_device_plugin(group, round_)
    late = _late_children(group, round_)
    if step is not None:
        return step + late
    others = tuple(each for each in group.meta.finalizers if each != finalizer)
    return of_record(SetFinalizers(record=group, finalizers=others)) + late


def _late_children(group: TpuNodeGroup, round_: Round) -> Step:
    """Delete children that show up after their turn: one was on its way when the group was deleted."""
    step = NOTHING
    for finalizer, (kind, _) in _CHILDREN.items():
        child = round_.child_of(group, kind)
        turn_is_over = finalizer not in group.meta.finalizers
        if turn_is_over and child is not None and not child.meta.deleting:
            step += of_record(DeleteChild(record=child))
    return step


def _delete_child(group: TpuNodeGroup, kind: Kind, reason: Reason, round_: Round) -> Step | None:
    """Delete a child; None: it is gone."""
    child = round_.child_of(group, kind)
    if child is None:
        return None
    step = NOTHING
    message = f"{kind} {child.meta.name} is being deleted"
    if not child.meta.deleting:
        step = of_record(DeleteChild(record=child))
    else:
        own = condition_of(child.status.conditions, ConditionType.READY)
        if own is not None and own.reason == Reason.DRAINING_NODES:
            reason = Reason.DRAINING_NODES
        if own is not None and own.status.value != "True" and own.message:
            message = f"{message}: {own.message}"
    return step + conditions.say(group, not_ready(reason, message), round_.now)


def _delete_nodes(group: TpuNodeGroup, round_: Round) -> Step | None:
    left = nodes.left_over(group, None, round_)
    if group.meta.annotations.get(names.ABANDON) == "true":
        # Machines that run stay nodes.
        left = tuple(node for node in left if not node.ready)
    tokens = round_.tokens.get((group.meta.namespace, group.meta.name), ())
    if not left and not tokens:
        return None
    ready = [node.name for node in left if node.ready]
    forced = group.meta.annotations.get(names.FORCE) == "true"
    message = "nodes and tokens are being deleted"
    if ready and not forced:
        message = (
            f"node {ready[0]} still reports; it is deleted when it does not, or loses the labels of the group. The "
            f'annotation {names.FORCE}: "true" deletes it at once'
        )
    told = conditions.say(group, not_ready(Reason.DELETING_NODES, message), round_.now)
    # Tokens tell of nodes that have no labels.
    if left:
        return nodes.remove(left, forced=forced) + told
    return merged(to_write(DeleteToken(name=token.name, uid=token.uid), token.uid) for token in tokens) + told


def others_need_plugin(group: TpuNodeGroup, round_: Round) -> bool:
    """Whether pods with chips may run on nodes of other groups; those that are deleted may wait for theirs."""
    return any(
        not other.meta.deleting or names.CLEANUP_NODES in other.meta.finalizers
        for uid, other in round_.groups.items()
        if uid != group.meta.uid
    )


def _delete_device_plugin(group: TpuNodeGroup, round_: Round) -> Step | None:
    """Delete the DaemonSet with the last group; one that we did not make stays."""
    plugin = round_.snapshot.device_plugin
    if (
        plugin is None
        or others_need_plugin(group, round_)
        or not plugin.version
        or not round_.settings.device_plugin_version
    ):
        return None
    condition = not_ready(Reason.DELETING_DEVICE_PLUGIN, "the device plugin is being deleted")
    return to_write(DeleteDevicePlugin(uid=plugin.uid), plugin.uid) + conditions.say(group, condition, round_.now)
