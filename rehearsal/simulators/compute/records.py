"""The things that the simulated Compute Engine keeps. Mutable; only the model changes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from rehearsal.simulators.compute import names
from rehearsal.simulators.compute.errors import Failure
from rehearsal.simulators.compute.faults import FLEX_START, SPOT, STANDARD
from rehearsal.simulators.compute.names import Scope
from rehearsal.simulators.http import google

POLICIES = "resourcePolicies"
TEMPLATES = "instanceTemplates"
GROUPS = "instanceGroupManagers"
INSTANCES = "instances"
RESERVATIONS = "reservations"
OPERATIONS = "operations"


class OperationStatus(StrEnum):
    """Operation.status."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"


class MachineStatus(StrEnum):
    """Instance.status, as far as VMs of groups get there."""

    PROVISIONING = "PROVISIONING"
    STAGING = "STAGING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    REPAIRING = "REPAIRING"
    TERMINATED = "TERMINATED"


class Action(StrEnum):
    """ManagedInstance.currentAction, as far as groups get there."""

    NONE = "NONE"
    CREATING = "CREATING"
    RECREATING = "RECREATING"
    RESTARTING = "RESTARTING"
    DELETING = "DELETING"


class Loss(StrEnum):
    """Why a VM goes without its group's doing."""

    PREEMPTED = "preempted"
    HOST_ERROR = "host_error"
    MAINTENANCE = "maintenance"
    DELETED = "deleted"
    """Somebody deleted it."""

    RUN_TIME_OVER = "run_time_over"
    """Its maxRunDuration is over."""


@dataclass(kw_only=True, eq=False)
class Operation:
    """A long-running operation."""

    name: str
    scope: Scope
    method: str
    target: str
    target_number: int
    user: str
    request_id: str
    inserted: datetime
    status: OperationStatus
    started: datetime | None = None
    ended: datetime | None = None
    failure: Failure | None = None
    fate: Failure | None = None
    """What a fault makes of it."""
    fate_seconds: float | None = None
    held_by: str | None = None
    """The fault that keeps it from ending."""
    due: bool = False

    @property
    def is_done(self) -> bool:
        """Tell whether it has ended, well or badly."""
        return self.status is OperationStatus.DONE


@dataclass(kw_only=True, eq=False)
class Resource:
    """What is made by an insert; `body` is what its creator sent."""

    collection: ClassVar[str]

    scope: Scope
    name: str
    body: dict[str, Any]
    created: datetime
    inserting: Operation | None = None
    deleting: Operation | None = None

    @property
    def path(self) -> str:
        """Its full name."""
        return self.scope.resource(self.collection, self.name)

    @property
    def number(self) -> int:
        """Its id: another one for each incarnation of a name."""
        return google.number_of(f"{self.path} {self.created.isoformat()}")

    @property
    def mark(self) -> str:
        """Its description."""
        return str(self.body.get("description", ""))

    @property
    def is_ready(self) -> bool:
        """Tell whether others may use it."""
        return self.inserting is None and self.deleting is None


@dataclass(kw_only=True, eq=False)
class Policy(Resource):
    """A workload policy."""

    collection = POLICIES

    @property
    def topology(self) -> str:
        """The shape of its slices; empty where it gives none."""
        return str(self.body["workloadPolicy"].get("acceleratorTopology", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a template asks for, as far as capacity goes: machine type, provisioning model, reservation."""

    machine_type: str
    chips: int
    model: str = STANDARD
    reservation: str = ""

    @property
    def is_preemptible(self) -> bool:
        """Tell whether Compute Engine may take the VM back."""
        return self.model == SPOT

    @property
    def ends_by_itself(self) -> bool:
        """Tell whether VMs are given for some time only."""
        return self.model == FLEX_START


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation at a moment; `in_use` counts its VMs."""

    scope: Scope
    name: str
    machine_type: str
    count: int
    in_use: int
    status: str


@dataclass(kw_only=True, eq=False)
class Template(Resource):
    """An instance template."""

    collection = TEMPLATES
    terms: Terms

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of its VMs."""
        found: dict[str, Any] = self.body["properties"]
        return found

    @property
    def scheduling(self) -> dict[str, Any]:
        """Its scheduling, empty where none was sent."""
        found: dict[str, Any] = self.properties.get("scheduling", {})
        return found


@dataclass(kw_only=True, eq=False)
class Machine:
    """A VM. `items` is its metadata; `boots` counts its starts."""

    scope: Scope
    name: str
    group: Group
    template: Template
    created: datetime
    address: str
    items: dict[str, str]
    status: MachineStatus = MachineStatus.PROVISIONING
    started: datetime | None = None
    stopped: datetime | None = None
    ends_at: datetime | None = None
    boots: int = 0
    revision: int = 0
    """How often its metadata changed."""
    step: int = 0
    """Which of its steps is the next: whatever was planned for an earlier one no longer applies."""
    is_replaced: bool = False
    """It goes for another one to come under its name."""

    @property
    def path(self) -> str:
        """Its full name."""
        return self.scope.resource(INSTANCES, self.name)

    @property
    def number(self) -> int:
        """Its id: another one for each incarnation of a name."""
        return google.number_of(f"{self.path} {self.created.isoformat()}")

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its metadata."""
        return names.fingerprint(self.items, self.revision)

    @property
    def holds_capacity(self) -> bool:
        """Tell whether it takes room: one that was TERMINATED has given it back, also while it is being deleted."""
        return self.stopped is None

    @property
    def restarts(self) -> bool:
        """Tell whether Compute Engine starts it again after a host error: not spot and flex-start VMs."""
        terms = self.template.terms
        usual = not terms.is_preemptible and not terms.ends_by_itself
        return bool(self.template.scheduling.get("automaticRestart", usual))

    @property
    def deleted_at_end(self) -> bool:
        """Tell whether Compute Engine deletes it where it would stop it."""
        return bool(self.template.scheduling.get("instanceTerminationAction") == "DELETE")


@dataclass(kw_only=True, eq=False)
class Member:
    """A managed instance: a place in a group, with a VM or, while the group waits for capacity, without one."""

    name: str
    action: Action = Action.CREATING
    machine: Machine | None = None
    errors: tuple[Failure, ...] = ()
    """What its last attempt met."""

    @property
    def wants_machine(self) -> bool:
        """Tell whether the group is to make a VM for it."""
        return self.machine is None and self.action in (Action.CREATING, Action.RECREATING)


@dataclass(kw_only=True, eq=False)
class Group(Resource):
    """A managed instance group."""

    collection = GROUPS
    template: Template
    policy: Policy | None
    base_name: str
    size: int
    members: list[Member] = field(default_factory=list)
    bulk_running: bool = False
    checked: datetime | None = None
    check_failure: Failure | None = None
    retry_due: datetime | None = None

    @property
    def is_bulk(self) -> bool:
        """Tell whether its VMs are made all at once or not at all."""
        return bool(self.body.get("targetSizePolicy", {}).get("mode") == "BULK")

    @property
    def is_slice(self) -> bool:
        """Tell whether its VMs are one slice: none can go or come alone."""
        return self.policy is not None and bool(self.policy.topology)

    @property
    def repairs(self) -> bool:
        """Tell whether it makes lost VMs again; REPAIR is the default (InstanceGroupManagerInstanceLifecyclePolicy)."""
        policy = self.body.get("instanceLifecyclePolicy", {})
        return bool(policy.get("defaultActionOnFailure", "REPAIR") == "REPAIR")

    @property
    def is_stable(self) -> bool:
        """Tell whether nothing changes and nothing is going to. A group that has lost VMs and does not repair is."""
        return self.is_ready and not self.bulk_running and all(member.action is Action.NONE for member in self.members)

    @property
    def machines(self) -> list[Machine]:
        """Its VMs."""
        return [member.machine for member in self.members if member.machine is not None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a VM of a group would be."""

    group: Group
    name: str

    @property
    def scope(self) -> Scope:
        """The group's scope."""
        return self.group.scope

    @property
    def path(self) -> str:
        """The full name that the VM would have."""
        return self.scope.resource(INSTANCES, self.name)

    @property
    def number(self) -> int:
        """An id of nothing."""
        return google.number_of(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """What observers see of a VM. `status` is empty once the VM is gone; `metadata` is what it can read of itself."""

    scope: Scope
    name: str
    number: int
    status: str
    boots: int
    address: str
    metadata: dict[str, str]
    group: str
    machine_type: str
    chips: int


def view_of(machine: Machine, *, gone: bool = False) -> MachineView:
    """Return a frozen picture of a VM."""
    return MachineView(
        scope=machine.scope,
        name=machine.name,
        number=machine.number,
        status="" if gone else machine.status.value,
        boots=machine.boots,
        address=machine.address,
        metadata=dict(machine.items),
        group=machine.group.name,
        machine_type=machine.template.terms.machine_type,
        chips=machine.template.terms.chips,
    )
