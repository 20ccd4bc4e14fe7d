"""Finds the nodes of a group's machines, labels and taints them, and deletes nodes without a machine. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import FailureKind
from provisioner.model.waits import Backoff
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.statuses import STARTING_OR_RUNNING
from provisioner.nodegroups.api.types import ManagedInstanceGroup, TpuNodeGroup
from provisioner.nodegroups.compute.records import NO_ACTION, ManagedInstance
from provisioner.nodegroups.planning.actions import DeleteNode, PatchNode
from provisioner.nodegroups.planning.ownership import is_ours
from provisioner.nodegroups.planning.round import Node, Round, Step, grouped, merged, place_of, to_write, zone_of

STOPPED = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
_RUNNING = "RUNNING"
_REFUSALS = frozenset({FailureKind.PERMISSION, FailureKind.INVALID})
_STOPPING = frozenset({"STOPPING", "SUSPENDING", "DEPROVISIONING", "PENDING_STOP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine of a group, with its node."""

    machine: ManagedInstance
    #: Node of the machine. None if the machine has not joined, or its node was deleted or is of an earlier machine.
    node: Node | None = None
    #: Whether the node is ready and has all chips.
    ready: bool = False
    #: Message if the node is not ready or lacks chips; otherwise empty.
    lacks: str = ""
    #: Back-off of a rejected call for the machine's metadata, if the machine has no node; otherwise None.
    refusal: Backoff | None = None

    @property
    def reports(self) -> bool:
        """Whether the node is ready. The machine then runs, even if an older list shows it as stopped."""
        return self.node is not None and self.node.ready

    @property
    def doubtful(self) -> bool:
        """Whether the node is not ready although the machine is starting or running."""
        return self.node is not None and not self.node.ready and self.machine.status in STARTING_OR_RUNNING

    @property
    def runs(self) -> bool:
        """Whether pods may be running on the machine."""
        return self.reports or (self.machine.has_machine and self.machine.status not in STOPPED)

    @property
    def stopped(self) -> bool:
        """Whether the machine has stopped or is stopping, and has no ready node."""
        return not self.reports and (self.machine.status in STOPPED or self.machine.status in _STOPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The machines of a managed instance group as of one list, sorted by name."""

    asked_at: datetime
    members: tuple[Member, ...] = ()

    @property
    def ready(self) -> int:
        """Number of ready machines."""
        return sum(member.ready for member in self.members)

    @property
    def refusals(self) -> tuple[tuple[str, Backoff], ...]:
        """Names and refusals of the machines for which `Member.refusal` is set."""
        return tuple((member.machine.name, member.refusal) for member in self.members if member.refusal is not None)

    @property
    def made(self) -> bool:
        """Whether all machines run, with or without a node, and Compute Engine is changing none of them."""
        return all(member.machine.status == _RUNNING and member.machine.action == NO_ACTION for member in self.members)


def running(fleet: Fleet, group: TpuNodeGroup | None, ctx: Round) -> tuple[Node, ...]:
    """Return the nodes of listed machines that may run, and all ready nodes with the group's labels, sorted by name."""
    # Nodes of earlier machines with the same names are included, because pods may be bound to them.
    ids = [member.machine.provider_id for member in fleet.members if member.runs]
    by_name = {node.name: node for node in map(ctx.nodes.get, ids) if node is not None}
    # A labelled node may belong to a machine that was created after the list.
    for node in ctx.labelled_of(group) if group is not None else ():
        if node.ready:
            by_name.setdefault(node.name, node)
    return tuple(by_name[name] for name in sorted(by_name))


def silent_node(nodes: Iterable[Node], oldest_ready: datetime | None) -> str:
    """Return why a group's kubelets may report to another control plane; empty if there is no sign of it.

    A control plane that was restored from a backup lists the nodes of the original control plane, to which their
    kubelets report. If a node older than the backup reports (`Round.oldest_ready`), this control plane is the original.
    """
    nodes = tuple(nodes)
    silent = {node.silent_since: node.name for node in reversed(nodes) if node.silent_since is not None}
    if not silent or any(node.ready for node in nodes):
        return ""
    # If a backup contains the report at `last`, nodes that are older than `last` are older than the backup.
    last = max(silent)
    name = silent[last]
    if oldest_ready is not None and oldest_ready < last:
        return ""
    return (
        f"no node of the group reports, and {name} had not reported for ten minutes when it was found not ready: its "
        "machine may work for another control plane with the same backup. If not, delete the node"
    )


def fleet_of(manager: ManagedInstanceGroup, ctx: Round, chips: int | None = None) -> Fleet | None:
    """Return the machines as last listed, None if they are unknown. `chips` is the number per machine, if known."""
    known = ctx.known(manager)
    if known.reading is None:
        return None
    reading, listing = known.reading, known.listing
    if reading.resource is None and reading.asked_at >= known.changed_at:
        return Fleet(asked_at=reading.asked_at)
    if reading.resource is not None and not is_ours(manager, reading.resource, ctx):
        return None
    if listing is None or listing.asked_at < known.changed_at:
        return None
    members = tuple(_member(machine, ctx, chips) for machine in listing.machines)
    return Fleet(asked_at=listing.asked_at, members=members)


def _member(machine: ManagedInstance, ctx: Round, chips: int | None) -> Member:
    node = ctx.nodes.get(machine.provider_id)
    if node is None or is_of_earlier(machine, node):
        return Member(machine=machine, refusal=_refusal(machine, ctx))
    lacks = ""
    expected = chips if chips is not None else node.capacity_chips
    if not node.ready:
        lacks = f"node {node.name} is not ready"
    elif node.capacity_chips != expected or node.allocatable_chips != expected:
        lacks = f"node {node.name} has {min(node.allocatable_chips, node.capacity_chips)} of {expected} chips"
    return Member(machine=machine, node=node, ready=not lacks, lacks=lacks)


def is_of_earlier(machine: ManagedInstance, node: Node) -> bool:
    """Return whether a node belongs to an earlier machine of this name, which was recreated with an empty disk."""
    return bool(machine.id) and node.labels.get(names.MACHINE_ID, machine.id) != machine.id


def _refusal(machine: ManagedInstance, ctx: Round) -> Backoff | None:
    known = ctx.memory.machines.get(machine.provider_id)
    if known is None or known.id != machine.id or known.backoff is None:
        return None
    return known.backoff if known.backoff.failure.kind in _REFUSALS else None


def labels_of(group: TpuNodeGroup, shape: GroupShape) -> dict[str, str]:
    """Return the labels that all nodes of a group must have."""
    labels = {
        **({names.ACCELERATOR: shape.accelerator} if shape.accelerator else {}),
        names.CHIP_COUNT: str(shape.chips_per_machine),
        names.TOPOLOGY: shape.topology,
        **names.group_labels(group.meta),
    }
    whole = f"{group.meta.namespace}-{group.meta.name}"
    return labels | ({names.GROUP: whole} if len(whole) <= names.RESOURCE_NAME else {})


def refused_metadata(fleet: Fleet | None) -> str:
    """Return why machines cannot get the metadata with which they join; empty if no call for it was rejected."""
    refused = fleet.refusals if fleet is not None else ()
    if not refused:
        return ""
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    name, refusal = refused[0]
    return f"machine {name}{more} cannot be given its join token: {refusal.failure.message}"


def marks_to_set(group: TpuNodeGroup, shape: GroupShape, fleet: Fleet, ctx: Round) -> tuple[PatchNode, ...]:
    """Return the patches that set the labels, including the worker index, and the taint of nodes that lack them."""
    shared, indices = labels_of(group, shape), worker_indices(shape, fleet)
    tokens = grouped(ctx.tokens.get((group.meta.namespace, group.meta.name), ()), lambda token: token.machine)
    changes = []
    for member in fleet.members:
        node, machine = member.node, member.machine
        if node is None:
            continue
        wanted = {**shared, names.TRUSTED_NAMESPACE: group.meta.namespace}
        if group.spec.bootstrap_kubernetes is not None and machine.id:
            # Without bootstrapKubernetes, a recreated machine may join as the existing node, so MACHINE_ID is not set.
            # If a node is not ready and only an earlier machine of its name has a token, the node is of that machine.
            joined = [token.machine_id for token in tokens.get(machine.name, ())]
            number = machine.id if node.ready or machine.id in joined else next(iter(joined), "")
            wanted |= {names.MACHINE_ID: number} if number else {}
        if node.name in indices:
            wanted[names.WORKER_INDEX] = str(indices[node.name])
        missing = {key: value for key, value in wanted.items() if node.labels.get(key) != value}
        if missing or not node.tainted:
            change = PatchNode(
                name=node.name,
                uid=node.uid,
                resource_version=node.resource_version,
                labels=missing,
                taint=not node.tainted,
            )
            changes.append(change)
    return tuple(changes)


def is_marked(group: TpuNodeGroup, node: Node) -> bool:
    """Return whether a node has the two labels that identify its group."""
    return all(node.labels.get(key) == value for key, value in names.group_labels(group.meta).items())


def worker_indices(shape: GroupShape, fleet: Fleet) -> Mapping[str, int]:
    """Return worker indices by node name; empty if a slice has the wrong number of machines. Nodes keep their index."""
    present = [(member.machine.name, member.node) for member in fleet.members]
    if not shape.one_slice:
        return {node.name: 0 for _, node in present if node is not None}
    if len(present) != shape.node_count:
        return {}
    free = {str(index): index for index in range(shape.node_count)}
    numbered: dict[str, int] = {}
    for machine, node in present:
        label = node.labels.get(names.WORKER_INDEX, "") if node is not None else ""
        if label in free:
            numbered[machine] = free.pop(label)
    others = (machine for machine, _ in present if machine not in numbered)
    numbered |= dict(zip(others, free.values(), strict=True))
    return {node.name: numbered[machine] for machine, node in present if node is not None}


def left_over(
    group: TpuNodeGroup, fleet: Fleet | None, ctx: Round, *, count: int = 0, lost: Collection[str] = ()
) -> tuple[Node, ...]:
    """Return the nodes of a group whose machines no longer exist; without a `fleet`, all nodes of the group.

    Nodes are found by labels, tokens and the machines in the status. With a fleet, ready nodes are left out, because
    their machines may not be listed yet, and all nodes if `silent_node` returns a reason. While a fleet has fewer than
    `count` machines, nodes without a listed machine are left out, except those in `lost`.
    """
    place, own = place_of(group), ctx.labelled_of(group)
    if fleet is not None and silent_node(own, ctx.oldest_ready):
        return ()
    known = {} if fleet is None else {member.machine.provider_id: member.machine for member in fleet.members}
    whole = fleet is None or len(known) >= count
    key = (group.meta.namespace, group.meta.name)
    by_name = {node.name: node for node in own}
    machines = {machine.name for machine in group.status.machines}
    for machine in machines | {token.machine for token in ctx.tokens.get(key, ())}:
        node = ctx.nodes.get(f"{zone_of(group)}/{machine}")
        # The labels of another group take precedence over a token or a status that names the node.
        if node is not None and (names.GROUP_NAME not in node.labels or is_marked(group, node)):
            by_name[node.name] = node
    return tuple(
        node
        for _, node in sorted(by_name.items())
        if names.manager_of(node.provider_id) == place
        and (_is_over(known[node.provider_id], node) if node.provider_id in known else whole or node.name in lost)
        and (fleet is None or not node.ready)
    )


def _is_over(machine: ManagedInstance, node: Node) -> bool:
    """Return whether a node's machine no longer exists: it was recreated, or now is a placeholder without a machine."""
    return is_of_earlier(machine, node) or (not machine.has_machine and names.MACHINE_ID in node.labels)


def remove(nodes: tuple[Node, ...], *, forced: bool = False) -> Step:
    """Return a step that deletes the nodes that are not ready and, if `forced`, ready nodes."""
    # Machines of ready nodes usually run, but a copied kubelet certificate can keep a node ready without its machine.
    return merged(
        to_write(DeleteNode(name=node.name, uid=node.uid), node.resource_version)
        for node in nodes
        if forced or not node.ready
    )
