"""The objects in the state of the simulated Compute Engine. Mutable; only the model changes them."""

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
OPERATIONS = "operations"


class OperationStatus(StrEnum):
    """Values of Operation.status."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"


class MachineStatus(StrEnum):
    """Values of Instance.status that VMs of groups can have."""

    PROVISIONING = "PROVISIONING"
    STAGING = "STAGING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    REPAIRING = "REPAIRING"
    TERMINATED = "TERMINATED"


class Action(StrEnum):
    """Values of ManagedInstance.currentAction that simulated groups use."""

    NONE = "NONE"
    CREATING = "CREATING"
    RECREATING = "RECREATING"
    DELETING = "DELETING"


class Loss(StrEnum):
    """Reason for the loss of a VM, other than an action of its group."""

    PREEMPTED = "preempted"
    HOST_ERROR = "host_error"
    MAINTENANCE = "maintenance"
    #: A user deleted the VM.
    DELETED = "deleted"
    RUN_TIME_OVER = "run_time_over"


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
    #: Error that a fault determines for the operation; None if there is no such fault.
    fate: Failure | None = None
    fate_seconds: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the operation has ended, with or without an error."""
        return self.status is OperationStatus.DONE


@dataclass(kw_only=True, eq=False)
class Resource:
    """A resource that an insert creates; `body` is the body of that request."""

    collection: ClassVar[str]

    scope: Scope
    name: str
    body: dict[str, Any]
    created: datetime
    inserting: Operation | None = None
    deleting: Operation | None = None

    @property
    def path(self) -> str:
        """Full name of the resource."""
        return self.scope.resource(self.collection, self.name)

    @property
    def number(self) -> int:
        """ID of the resource; it changes if the name is used again."""
        return google.number_of(f"{self.path} {self.created.isoformat()}")

    @property
    def mark(self) -> str:
        """Description of the resource."""
        return str(self.body.get("description", ""))

    @property
    def is_ready(self) -> bool:
        """Whether the resource may be used: it is neither being created nor being deleted."""
        return self.inserting is None and self.deleting is None


@dataclass(kw_only=True, eq=False)
class Policy(Resource):
    """A workload policy."""

    collection = POLICIES

    @property
    def topology(self) -> str:
        """Topology of the policy's slices; empty if it has no topology."""
        return str(self.body["workloadPolicy"].get("acceleratorTopology", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Requirements of a template that affect capacity: machine type, provisioning model, reservation."""

    machine_type: str
    chips: int
    model: str = STANDARD
    reservation: str = ""

    @property
    def is_preemptible(self) -> bool:
        """Whether Compute Engine may preempt the VM."""
        return self.model == SPOT

    @property
    def ends_by_itself(self) -> bool:
        """Whether Compute Engine ends the VMs after a limited time, as for flex-start."""
        return self.model == FLEX_START


@dataclass(kw_only=True, eq=False)
class Template(Resource):
    """An instance template."""

    collection = TEMPLATES
    terms: Terms

    @property
    def properties(self) -> dict[str, Any]:
        """Properties of the template's VMs."""
        found: dict[str, Any] = self.body["properties"]
        return found

    @property
    def scheduling(self) -> dict[str, Any]:
        """Scheduling properties of the template's VMs; empty if none were sent."""
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
    #: Number of changes of the metadata.
    revision: int = 0
    #: Number of the last scheduled change of status. Changes with an earlier number are ignored.
    step: int = 0
    #: Whether the VM is being stopped so that another one replaces it under the same name.
    is_replaced: bool = False

    @property
    def path(self) -> str:
        """Full name of the VM."""
        return self.scope.resource(INSTANCES, self.name)

    @property
    def number(self) -> int:
        """ID of the VM; it changes if the name is used again."""
        return google.number_of(f"{self.path} {self.created.isoformat()}")

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the VM's metadata."""
        return names.fingerprint(self.items, self.revision)

    @property
    def holds_capacity(self) -> bool:
        """Whether the VM uses capacity. A TERMINATED VM uses none, even while it is being deleted."""
        return self.stopped is None

    @property
    def restarts(self) -> bool:
        """Whether Compute Engine restarts the VM after a host error; by default not for spot and flex-start VMs."""
        terms = self.template.terms
        usual = not terms.is_preemptible and not terms.ends_by_itself
        return bool(self.template.scheduling.get("automaticRestart", usual))

    @property
    def deleted_at_end(self) -> bool:
        """Whether Compute Engine deletes the VM instead of stopping it."""
        return bool(self.template.scheduling.get("instanceTerminationAction") == "DELETE")


@dataclass(kw_only=True, eq=False)
class Member:
    """A managed instance of a group. It has no VM while the group waits for capacity."""

    name: str
    action: Action = Action.CREATING
    machine: Machine | None = None
    #: Errors of the last attempt to create the VM.
    errors: tuple[Failure, ...] = ()

    @property
    def wants_machine(self) -> bool:
        """Whether the group must create a VM for the instance."""
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
        """Whether the VMs of the group are created all together or not at all."""
        return bool(self.body.get("targetSizePolicy", {}).get("mode") == "BULK")

    @property
    def is_slice(self) -> bool:
        """Whether the VMs form one slice, so that they are restarted and recreated only together."""
        return self.policy is not None and bool(self.policy.topology)

    @property
    def repairs(self) -> bool:
        """Whether the group recreates lost VMs; REPAIR is the default (InstanceGroupManagerInstanceLifecyclePolicy)."""
        policy = self.body.get("instanceLifecyclePolicy", {})
        return bool(policy.get("defaultActionOnFailure", "REPAIR") == "REPAIR")

    @property
    def is_stable(self) -> bool:
        """Whether no change is in progress or planned. The group may lack lost VMs that it does not repair."""
        return self.is_ready and not self.bulk_running and all(member.action is Action.NONE for member in self.members)

    @property
    def machines(self) -> list[Machine]:
        """The group's VMs."""
        return [member.machine for member in self.members if member.machine is not None]


@dataclass(frozen=True, slots=True)
class Place:
    """Name of a VM that a group has not created yet, as the target of an operation."""

    group: Group
    name: str

    @property
    def scope(self) -> Scope:
        """The group's scope."""
        return self.group.scope

    @property
    def path(self) -> str:
        """Full name that the VM would have."""
        return self.scope.resource(INSTANCES, self.name)

    @property
    def number(self) -> int:
        """A made-up ID for a VM that does not exist."""
        return google.number_of(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    """Snapshot of a VM for observers. `status` is empty if the VM is deleted; `metadata` is visible to its guest."""

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
    """Return a frozen snapshot of a VM."""
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
