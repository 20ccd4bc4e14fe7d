"""The machines of a group with their nodes: what these carry, and which are left over from machines that are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import FailureKind
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.shape import GroupShape
from provisioner.nodegroups.api.statuses import STARTING_OR_RUNNING
from provisioner.nodegroups.api.types import Kind, ManagedInstanceGroup, TpuNodeGroup
from provisioner.nodegroups.compute.records import NO_ACTION, ManagedInstance
from provisioner.nodegroups.planning.actions import DeleteNode, PatchNode
from provisioner.nodegroups.planning.ownership import is_ours
from provisioner.nodegroups.planning.round import Node, Round, Step, merged, to_write

#: Statuses of machines that have stopped: nothing runs on them.
STOPPED = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
_RUNNING = "RUNNING"
_REFUSALS = frozenset({FailureKind.PERMISSION, FailureKind.INVALID})
_STOPPING = frozenset({"STOPPING", "SUSPENDING", "DEPROVISIONING", "PENDING_STOP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One machine."""

    machine: ManagedInstance
    #: None: it has not joined, or its node is gone.
    node: Node | None = None
    #: Its node is ready and has all its chips.
    ready: bool = False
    #: What its node lacks, in words; empty where there is none, and where it lacks nothing.
    lacks: str = ""
    #: Why Compute Engine does not let it be told how to join; empty where it does.
    refusal: str = ""

    @property
    def reports(self) -> bool:
        """Whether its node is ready: then it runs, whatever was last listed of it; it may have been started since."""
        return self.node is not None and self.node.ready

    @property
    def doubtful(self) -> bool:
        """Whether its node is not ready although it runs."""
        return self.node is not None and not self.node.ready and self.machine.status in STARTING_OR_RUNNING

    @property
    def runs(self) -> bool:
        """Whether something may be running on it."""
        return self.reports or (self.machine.has_machine and self.machine.status not in STOPPED)

    @property
    def stopped(self) -> bool:
        """Whether it has stopped or is about to, and nobody starts it again."""
        return not self.reports and (self.machine.status in STOPPED or self.machine.status in _STOPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All machines that are known, by name."""

    asked_at: datetime
    members: tuple[Member, ...] = ()

    @property
    def ready(self) -> int:
        """How many are ready."""
        return sum(member.ready for member in self.members)

    @property
    def made(self) -> bool:
        """Whether all are there, and listed as they will stay, whatever their nodes are like."""
        return all(member.machine.status == _RUNNING and member.machine.action == NO_ACTION for member in self.members)


def running(fleet: Fleet, labels: Mapping[str, str], place: str, round_: Round) -> tuple[Node, ...]:
    """Return the nodes of all machines that may run: those of listed ones, and those that say so themselves.

    A labelled node whose machine is not listed may be one that joined since; not one of another name, whatever it says.
    `place` is what the provider ids of all machines have before their suffix.
    """
    # Also that of an earlier machine of the name, which may have pods bound to it: the gate goes by the name, too.
    ids = [member.machine.provider_id for member in fleet.members if member.runs]
    found = {node.name: node for node in map(round_.nodes.get, ids) if node is not None}
    key = (labels.get(names.GROUP_NAMESPACE, ""), labels.get(names.GROUP_NAME, ""))
    for node in round_.labelled.get(key, ()):
        if names.manager_of(node.provider_id) == place and node.ready:
            found.setdefault(node.name, node)
    return tuple(found[name] for name in sorted(found))


def silent_node(nodes: Iterable[Node]) -> str:
    """Explain why the kubelets of a group may report to another control plane. Empty if there is no doubt.

    A control plane that was restored from a backup has the nodes of the original, whose kubelets do not report to it.
    """
    nodes = tuple(nodes)
    found = next((node.name for node in nodes if node.silent), "")
    if not found or any(node.ready for node in nodes):
        return ""
    return (
        f"no node of the group reports, and {found} had not reported for ten minutes when it was found not ready: its "
        "machine may work for another control plane with the same backup. If not, delete the node"
    )


def labelled(group: TpuNodeGroup, round_: Round) -> tuple[Node, ...]:
    """Return the nodes with the labels of a group that are called as its machines."""
    found, place = round_.labelled.get((group.meta.namespace, group.meta.name), ()), place_of(group)
    return tuple(node for node in found if names.manager_of(node.provider_id) == place)


def fleet_of(manager: ManagedInstanceGroup, round_: Round, chips: int | None = None) -> Fleet | None:
    """Return the machines as last listed, with their nodes as they are now; None where that is not known.

    `chips` is how many each has to have; None where nobody says.
    """
    known = round_.known(manager)
    if known.reading is None:
        return None
    reading, listing = known.reading, known.listing
    if reading.resource is None and reading.asked_at >= known.changed_at:
        return Fleet(asked_at=reading.asked_at)
    if reading.resource is not None and not is_ours(manager, reading.resource, round_):
        # Whatever was listed is somebody else's.
        return None
    if listing is None or listing.asked_at < known.changed_at:
        return None
    members = tuple(_member(machine, round_, chips) for machine in listing.machines)
    return Fleet(asked_at=listing.asked_at, members=members)


def _member(machine: ManagedInstance, round_: Round, chips: int | None) -> Member:
    node = round_.nodes.get(machine.provider_id)
    if node is None or is_of_earlier(machine, node):
        return Member(machine=machine, refusal=_refusal(machine, round_))
    lacks = ""
    expected = chips if chips is not None else node.capacity_chips
    if not node.ready:
        lacks = f"node {node.name} is not ready"
    elif node.capacity_chips != expected or node.allocatable_chips != expected:
        lacks = f"node {node.name} has {min(node.allocatable_chips, node.capacity_chips)} of {expected} chips"
    return Member(machine=machine, node=node, ready=not lacks, lacks=lacks)


def is_of_earlier(machine: ManagedInstance, node: Node) -> bool:
    """Whether a node is that of an earlier machine of the same name, which was created again with an empty disk."""
    return bool(machine.id) and node.labels.get(names.MACHINE_ID, machine.id) != machine.id


def _refusal(machine: ManagedInstance, round_: Round) -> str:
    known = round_.memory.machines.get(machine.provider_id)
    if known is None or known.id != machine.id or known.backoff is None:
        return ""
    failure = known.backoff.failure
    return failure.message if failure.kind in _REFUSALS else ""


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


def marks_to_set(group: TpuNodeGroup, shape: GroupShape, fleet: Fleet, round_: Round) -> tuple[PatchNode, ...]:
    """Return the changes after which all nodes carry their labels, the worker index among them, and the taint."""
    shared, indices = labels_of(group, shape), worker_indices(shape, fleet)
    tokens = round_.tokens.get((group.meta.namespace, group.meta.name), ())
    changes = []
    for member in fleet.members:
        node, machine = member.node, member.machine
        if node is None:
            continue
        wanted = {**shared, names.TRUSTED_NAMESPACE: group.meta.namespace}
        if group.spec.bootstrap_kubernetes is not None and machine.id:
            # Other images may join again as the node that exists. A node that is not ready, and has only a token of an
            # earlier machine, is the node of that one, which was lost before it had its labels.
            joined = [token.machine_id for token in tokens if token.machine == machine.name]
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


def provider_id(group: TpuNodeGroup, machine: str) -> str:
    """Return what the node of a group's machine has in spec.providerID."""
    return f"gce://{group.spec.project}/{group.spec.node_location}/{machine}"


def place_of(group: TpuNodeGroup) -> str:
    """Return what the provider ids of all machines of a group have before their suffix."""
    return provider_id(group, names.child_name(group.meta, Kind.MANAGED_INSTANCE_GROUP))


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
    group: TpuNodeGroup, fleet: Fleet | None, round_: Round, *, count: int = 0, lost: Collection[str] = ()
) -> tuple[Node, ...]:
    """List the nodes of a group whose machines are gone.

    They are known by labels, tokens, or the machines in the status. `fleet` is None if all machines are gone. Otherwise
    the machine of a node may not be listed yet: if the node is ready, or if fewer than `count` machines are listed and
    the node is not `lost` for good (`repair.lost_for_good`).
    """
    place, own = place_of(group), labelled(group, round_)
    if fleet is not None and silent_node(own):
        return ()
    known = {} if fleet is None else {member.machine.provider_id: member.machine for member in fleet.members}
    whole = fleet is None or len(known) >= count
    key = (group.meta.namespace, group.meta.name)
    found = {node.name: node for node in own}
    machines = {machine.name for machine in group.status.machines}
    for machine in machines | {token.machine for token in round_.tokens.get(key, ())}:
        node = round_.nodes.get(provider_id(group, machine))
        # One that says that it is another group's is not this one's, whatever token or status says.
        if node is not None and (names.GROUP_NAME not in node.labels or is_marked(group, node)):
            found[node.name] = node
    return tuple(
        node
        for _, node in sorted(found.items())
        if names.manager_of(node.provider_id) == place
        and (_is_over(known[node.provider_id], node) if node.provider_id in known else whole or node.name in lost)
        and (fleet is None or not node.ready)
    )


def _is_over(machine: ManagedInstance, node: Node) -> bool:
    """Whether a node's machine is gone: another one of its name is there, or one waits for capacity."""
    return is_of_earlier(machine, node) or (not machine.has_machine and names.MACHINE_ID in node.labels)


def remove(nodes: tuple[Node, ...], *, forced: bool = False) -> Step:
    """Propose to delete those that are not ready any more: what still reports runs, whatever the caches have of it.

    Unless that is forced: whoever has copied a kubelet's certificate could report for a machine that is gone.
    """
    return merged(
        to_write(DeleteNode(name=node.name, uid=node.uid), node.resource_version)
        for node in nodes
        if forced or not node.ready
    )
