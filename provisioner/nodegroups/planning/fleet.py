"""The machines of one managed instance group, each with its node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import FailureKind
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind, ManagedInstanceGroup
from provisioner.nodegroups.compute.records import NO_ACTION, ManagedInstance
from provisioner.nodegroups.planning.ownership import is_ours
from provisioner.nodegroups.planning.round import Round
from provisioner.nodegroups.planning.snapshot import Node

#: Statuses of machines that have stopped: nothing runs on them.
STOPPED = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
_RUNNING = "RUNNING"
#: Failures that last until somebody does something.
_REFUSALS = frozenset({FailureKind.PERMISSION, FailureKind.INVALID})
#: Statuses of machines that are about to.
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

    #: When they were asked for.
    asked_at: datetime
    members: tuple[Member, ...] = ()

    @property
    def ready(self) -> int:
        """How many are ready."""
        return sum(member.ready for member in self.members)

    @property
    def settled(self) -> bool:
        """Whether all are ready, and listed as they will stay."""
        return self.made and all(member.ready for member in self.members)

    @property
    def made(self) -> bool:
        """Whether all are there, and listed as they will stay, whatever their nodes are like."""
        return all(member.machine.status == _RUNNING and member.machine.action == NO_ACTION for member in self.members)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes of machines on which something may be running."""
        return tuple(member.node for member in self.members if member.node is not None and member.runs)

    @property
    def provider_ids(self) -> frozenset[str]:
        """All of them."""
        return frozenset(member.machine.provider_id for member in self.members)


def fleet_of(manager: ManagedInstanceGroup, round_: Round, chips: int | None = None) -> Fleet | None:
    """Return the machines as last listed, with their nodes as they are now; None where that is not known.

    `chips` is how many each has to have; None where nobody says.
    """
    known = round_.remembered(manager.meta.uid)
    if known is None or known.reading is None:
        return None
    reading, listing = known.reading, known.listing
    if reading.resource is None and reading.asked_at >= known.changed_at:
        return Fleet(asked_at=reading.asked_at)
    if reading.resource is not None and not is_ours(manager, Kind.MANAGED_INSTANCE_GROUP, reading.resource, round_):
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
