"""What the nodes of a group carry, and which of them are left over from machines that are gone."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.constants import TPU_RESOURCE
from provisioner.model.capacity import Taint
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.types import Kind, TpuNodeGroup
from provisioner.nodegroups.planning.fleet import Fleet, is_of_earlier
from provisioner.nodegroups.planning.round import Proposed, Round, Step
from provisioner.nodegroups.planning.snapshot import Node
from provisioner.nodegroups.planning.writes import DeleteNode, PatchNode

#: Keeps pods without chips off the nodes; GKE's nodes with TPUs have the same.
TPU_TAINT = Taint(key=TPU_RESOURCE, value="present", effect="NoSchedule")


def labels_of(group: TpuNodeGroup, shape: GroupShape) -> dict[str, str]:
    """Return the labels that all nodes of a group have."""
    labels = {
        names.ACCELERATOR: shape.accelerator,
        names.CHIP_COUNT: str(shape.chips_per_machine),
        names.TOPOLOGY: shape.topology,
        **names.group_labels(group.meta),
    }
    whole = f"{group.meta.namespace}-{group.meta.name}"
    return labels | ({names.GROUP: whole} if len(whole) <= names.RESOURCE_NAME else {})


def mark_nodes(group: TpuNodeGroup, shape: GroupShape, fleet: Fleet, round_: Round) -> Step:
    """Propose labels and taint for nodes that lack them."""
    changes = marks_to_set(group, shape, fleet, round_)
    return Step(writes=tuple(Proposed(write=write, seen=write.resource_version) for write in changes))


def marks_to_set(group: TpuNodeGroup, shape: GroupShape, fleet: Fleet, round_: Round) -> tuple[PatchNode, ...]:
    """Return the changes after which all nodes carry their labels, the worker index among them, and the taint."""
    shared, indices = labels_of(group, shape), worker_indices(shape, fleet)
    tokens = round_.tokens.get((group.meta.namespace, group.meta.name), ())
    joining = {(token.machine, token.machine_id) for token in tokens}
    changes = []
    for member in fleet.members:
        node, machine = member.node, member.machine
        if node is None:
            continue
        wanted = {**shared, names.TRUSTED_NAMESPACE: group.meta.namespace}
        certain = node.ready or (machine.name, machine.id) in joining
        if group.spec.bootstrap_kubernetes is not None and machine.id and certain:
            # Another node may be that of an earlier machine. Other images may join again as the node that is there.
            wanted[names.MACHINE_ID] = machine.id
        if node.name in indices:
            wanted[names.WORKER_INDEX] = str(indices[node.name])
        missing = {key: value for key, value in wanted.items() if node.labels.get(key) != value}
        tainted = any((taint.key, taint.effect) == (TPU_TAINT.key, TPU_TAINT.effect) for taint in node.taints)
        if missing or not tainted:
            change = PatchNode(
                name=node.name,
                uid=node.uid,
                resource_version=node.resource_version,
                labels=missing,
                taints=None if tainted else (*node.taints, TPU_TAINT),
            )
            changes.append(change)
    return tuple(changes)


def provider_id(group: TpuNodeGroup, machine: str) -> str:
    """Return what the node of a group's machine has in spec.providerID."""
    return f"gce://{group.spec.project}/{group.spec.node_location}/{machine}"


def is_marked(group: TpuNodeGroup, node: Node) -> bool:
    """Whether a node carries the labels by which it is known as the group's."""
    return all(node.labels.get(key) == value for key, value in names.group_labels(group.meta).items())


def worker_indices(shape: GroupShape, fleet: Fleet) -> Mapping[str, int]:
    """Number the machines of one slice, by the names of their nodes; none before all machines are known.

    A number that a node has stays its own: pods go by it. Others are given in the order of the machines' names.
    """
    present = [(member.machine.name, member.node) for member in fleet.members]
    if not shape.one_slice:
        return {node.name: 0 for _, node in present if node is not None}
    if len(present) != shape.node_count:
        return {}
    taken: dict[int, str] = {}
    for machine, node in present:
        index = _index(node, shape.node_count)
        if index is not None:
            taken.setdefault(index, machine)
    free = iter([index for index in range(shape.node_count) if index not in taken])
    keepers = set(taken.values())
    numbered = {machine: index for index, machine in taken.items()}
    numbered |= {machine: next(free) for machine, _ in present if machine not in keepers}
    return {node.name: numbered[machine] for machine, node in present if node is not None}


def _index(node: Node | None, count: int) -> int | None:
    text = node.labels.get(names.WORKER_INDEX, "") if node is not None else ""
    # Of at most as many digits as Python turns into a number without effort, and in its one spelling.
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(count)) or text != str(int(text)):
        return None
    return int(text) if int(text) < count else None


def left_over(group: TpuNodeGroup, fleet: Fleet | None, round_: Round) -> tuple[Node, ...]:
    """List the nodes of a group whose machines are gone.

    They are known by their labels; until they have got these, by the tokens with which they joined, which stay as long,
    and by the machines in the group's status.
    `fleet` None stands for a group without a managed instance group: all its machines are gone. Else a node that is
    ready may be that of a machine which is not listed yet.
    """
    place = provider_id(group, names.child_name(group.meta, Kind.MANAGED_INSTANCE_GROUP))
    known = {} if fleet is None else {member.machine.provider_id: member.machine for member in fleet.members}
    key = (group.meta.namespace, group.meta.name)
    found = {node.name: node for node in round_.labelled.get(key, ())}
    machines = {machine.name for machine in group.status.machines}
    for machine in machines | {token.machine for token in round_.tokens.get(key, ())}:
        node = round_.nodes.get(provider_id(group, machine))
        if node is not None and not _is_of_another(group, node):
            found[node.name] = node
    return tuple(
        node
        for _, node in sorted(found.items())
        if names.manager_of(node.provider_id) == place
        and (node.provider_id not in known or is_of_earlier(known[node.provider_id], node))
        and (fleet is None or not node.ready)
    )


def _is_of_another(group: TpuNodeGroup, node: Node) -> bool:
    """Whether a node says that it is another group's: then neither a token nor a status makes it this one's."""
    return names.GROUP_NAME in node.labels and not is_marked(group, node)


def remove(nodes: tuple[Node, ...], *, forced: bool = False) -> Step:
    """Propose to delete those that are not ready any more: what still reports runs, whatever the caches have of it.

    Unless that is forced: whoever has copied a kubelet's certificate could report for a machine that is gone.
    """
    return Step(
        writes=tuple(
            Proposed(write=DeleteNode(name=node.name, uid=node.uid), seen=node.resource_version)
            for node in nodes
            if forced or not node.ready
        )
    )
