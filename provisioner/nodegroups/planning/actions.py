"""Calls to Compute Engine and writes to Kubernetes, which a plan contains, and their answers.

At most one action of a key is in flight; the key of a write names its object. Each action is answered exactly once.
Writes are idempotent: NotFound of a delete and AlreadyExists of a create count as done.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from provisioner.model.capacity import OperationName
from provisioner.model.workloads import ObjectRef
from provisioner.model.writes import Answered, AnsweredCall
from provisioner.nodegroups.api.statuses import OperationType, ResourceStatus, TpuNodeGroupStatus
from provisioner.nodegroups.api.types import Child, InstanceTemplate, Kind, ManagedInstanceGroup, Record, WorkloadPolicy
from provisioner.nodegroups.compute.records import Instance, ManagedInstance, Manager, Operation, Resource, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A resource of Compute Engine, and the object on whose behalf it is called."""

    #: UID of the child that stands for it, or of the group that names a template of its user's.
    uid: str
    namespace: str
    kind: Kind
    scope: Scope
    name: str


def target_of(child: Child) -> Target:
    """Return the resource that a child stands for."""
    match child:
        case WorkloadPolicy(spec=policy):
            scope = Scope(project=policy.project, region=policy.region)
        case InstanceTemplate(spec=template):
            scope = Scope(project=template.project)
        case ManagedInstanceGroup(spec=manager):
            scope = Scope(project=manager.project, zone=manager.location)
    return Target(
        uid=child.meta.uid, namespace=child.meta.namespace, kind=child.kind, scope=scope, name=child.meta.name
    )


class Sort(StrEnum):
    """Sorts of calls that Compute Engine counts apart, most urgent first."""

    CHANGE = "change"
    POLL = "poll"
    READ = "read"
    LIST = "list"


@functools.cache
def words_of(name: str) -> str:
    """Return the name of a class in words: ReadMachines -> read machines."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfTarget:
    """A call."""

    sort: ClassVar[Sort] = Sort.READ
    target: Target

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"{words_of(type(self).__name__)} {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(_OfTarget):
    """Read the resource. The answer has a Resource, None for absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListManagers(_OfTarget):
    """`list_managers`, of the project of the target. The answer has a tuple of Manager."""

    sort: ClassVar[Sort] = Sort.LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMachines(_OfTarget):
    """`list_managed_instances`. The answer has a tuple of ManagedInstance, None where there is no such group."""

    sort: ClassVar[Sort] = Sort.LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(_OfTarget):
    """Create the resource. The answer has an Operation."""

    sort: ClassVar[Sort] = Sort.CHANGE
    resource: Resource
    attempt: int
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the gate reads live, right before a managed instance group is deleted with its machines.

    The child exists with this UID and is being deleted. Every node of these machines, and every ready node with the
    group's labels, is unschedulable. No unfinished pod within its grace period keeps them (`Pod.keeps_machine`).
    """

    namespace: str
    name: str
    uid: str
    #: The labels of its nodes; empty for a managed instance group that belongs to no TPUNodeGroup.
    group_labels: Mapping[str, str] = field(default_factory=dict)
    #: What the provider ids of all its machines have before their suffix; a labelled node of another does not count.
    place: str = ""
    #: Pods without chips of the child's namespace, and of other namespaces, keep the machines until then. None: never.
    deadline: datetime | None = None
    deadline_of_others: datetime | None = None
    #: Of all machines that may run: their nodes may lack the labels.
    provider_ids: frozenset[str] = frozenset()

    def deadline_for(self, namespace: str) -> datetime | None:
        """Return the deadline for pods without chips of a namespace."""
        return self.deadline if namespace == self.namespace else self.deadline_of_others


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(_OfTarget):
    """Delete the resource. The answer has an Operation, None where it is not there, or says why it is kept."""

    sort: ClassVar[Sort] = Sort.CHANGE
    attempt: int
    request_id: str
    proof: Proof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(_OfTarget):
    """`get_operation`. The answer has an Operation, None where Google has forgotten it."""

    sort: ClassVar[Sort] = Sort.POLL
    operation: OperationName
    type: OperationType


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMachines(_OfTarget):
    """`list_instances`, for machines of one group. The answer has a tuple of Instance, without those that are none."""

    sort: ClassVar[Sort] = Sort.LIST
    machines: tuple[ManagedInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMetadata(_OfTarget):
    """`set_metadata`: replace all items. The answer has an Operation, None where there is no such machine."""

    sort: ClassVar[Sort] = Sort.CHANGE
    machine: ManagedInstance
    items: Mapping[str, str] = field(repr=False)
    fingerprint: str
    request_id: str

    @property
    def key(self) -> str:
        """Names the call: equal while it is the same one."""
        return f"set metadata {self.machine.provider_id}"

    @property
    def machines(self) -> tuple[ManagedInstance, ...]:
        """The one machine that it is about."""
        return (self.machine,)


Call = Read | ListManagers | ListMachines | Insert | Delete | Poll | ReadMachines | SetMetadata
Result = Resource | tuple[Manager, ...] | tuple[ManagedInstance, ...] | tuple[Instance, ...] | Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer(AnsweredCall[Call]):
    """How a call ended. `result` None without failure: what was asked for is not there (NOT_FOUND)."""

    result: Any = None
    #: Google's own wish, None for none.
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRecord:
    """A write of an object of one of the four kinds, as it was seen."""

    record: Record

    @property
    def key(self) -> str:
        """Names what is written."""
        return f"{self.record.kind} {self.record.meta}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateChild(_OfRecord):
    """Create a group's child: its metadata has its name and its owner, and no UID yet."""

    record: Child


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteChild(_OfRecord):
    """Delete a child, with its UID as precondition. Its finalizer keeps it until its resource is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFinalizers(_OfRecord):
    """Replace an object's finalizers, with UID and resource version as preconditions."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchStatus(_OfRecord):
    """Patch what differs of an object's status, with UID and resource version as preconditions."""

    new: ResourceStatus | TpuNodeGroupStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfObject:
    """A write of an object that belongs to no namespace, or to one alone."""

    kind: ClassVar[str]
    name: str
    uid: str

    @property
    def key(self) -> str:
        """Names what is written."""
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchNode(_OfObject):
    """Change a node, with UID and resource version as preconditions."""

    kind: ClassVar[str] = "Node"
    resource_version: str
    labels: Mapping[str, str]
    #: Whether to add the taint of TPU nodes.
    taint: bool = False
    cordon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNode(_OfObject):
    """Delete a node whose machine is gone, with its UID as precondition."""

    kind: ClassVar[str] = "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictPod:
    """Ask for the eviction of a pod, with its UID as precondition: disruption budgets may refuse it for now."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """Names what is written."""
        return f"Pod {self.namespace}/{self.name} {self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Draw a token for one machine, and create its Secret with the labels of the group."""

    namespace: str
    name: str
    machine: str
    machine_id: str
    expires_at: datetime

    @property
    def key(self) -> str:
        """Names what is written."""
        return f"token of machine {self.machine} {self.machine_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteToken(_OfObject):
    """Delete a Secret, with its UID as precondition."""

    kind: ClassVar[str] = "Secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveRequest(_OfObject):
    """Approve the certificate of a machine's kubelet, with UID and resource version as preconditions."""

    kind: ClassVar[str] = "CertificateSigningRequest"
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfDevicePlugin:
    """A write of the DaemonSet of the device plugin."""

    @property
    def key(self) -> str:
        """Names what is written."""
        return "device plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyDevicePlugin(_OfDevicePlugin):
    """Apply it on the server's side, marked with its version."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDevicePlugin(_OfDevicePlugin):
    """Delete it, with its UID as precondition."""

    uid: str


Write = (
    CreateChild
    | DeleteChild
    | SetFinalizers
    | PatchStatus
    | PatchNode
    | DeleteNode
    | EvictPod
    | CreateToken
    | DeleteToken
    | ApproveRequest
    | ApplyDevicePlugin
    | DeleteDevicePlugin
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that people are told once, when it happens."""

    object: ObjectRef
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnswer(Answered[Write]):
    """How a write ended."""
