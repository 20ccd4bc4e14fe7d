"""Calls to Compute Engine and writes to Kubernetes of a plan. At most one with the same key is in flight."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from provisioner.model.capacity import Operation, OperationName
from provisioner.model.workloads import ObjectRef
from provisioner.model.writes import AnsweredCall, AnsweredWrite
from provisioner.nodegroups.api.statuses import OperationType, ResourceStatus, TpuNodeGroupStatus
from provisioner.nodegroups.api.types import Child, InstanceTemplate, Kind, ManagedInstanceGroup, Record, WorkloadPolicy
from provisioner.nodegroups.compute.records import Instance, ManagedInstance, Manager, Resource, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A resource of Compute Engine, with its Kubernetes object; in `strays`, a whole project."""

    #: UID of the child, or of the group if a user created its template; for a project, "project " and its id.
    uid: str
    namespace: str
    kind: Kind
    scope: Scope
    name: str


def target_of(child: Child) -> Target:
    """Return the resource that a child represents."""
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
    """Kinds of calls, most urgent first. Compute Engine limits each kind separately."""

    CHANGE = "change"
    POLL = "poll"
    READ = "read"
    LIST = "list"


@functools.cache
def words_of(name: str) -> str:
    """Return the name of a class or a kind as lower-case words: ReadMachines -> read machines."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfTarget:
    sort: ClassVar[Sort] = Sort.READ
    target: Target

    @property
    def key(self) -> str:
        return f"{words_of(type(self).__name__)} {self.target.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(_OfTarget):
    """Read the resource. The result is a Resource, None if the resource does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListManagers(_OfTarget):
    """List the managed instance groups of a project that have an ownership mark. The result is a tuple of Manager."""

    sort: ClassVar[Sort] = Sort.LIST
    #: Names of all ManagedInstanceGroups, and of all possible children of TPUNodeGroups, when the call is planned.
    own: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMachines(_OfTarget):
    """List a managed instance group's machines. The result is a tuple of ManagedInstance, None without the group."""

    sort: ClassVar[Sort] = Sort.LIST


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(_OfTarget):
    """Create the resource of a child. The result is an Operation."""

    sort: ClassVar[Sort] = Sort.CHANGE
    child: Child
    #: Ownership mark of the resource.
    mark: str
    attempt: int
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Conditions for the delete of a managed instance group, which the gate checks live right before the delete.

    The ManagedInstanceGroup object exists with this UID and is being deleted. Nothing shows that its kubelets report to
    another control plane (`silent_node`). The nodes of the machines in `provider_ids`, and ready nodes with the labels
    in `group_labels`, are unschedulable. No pod keeps one of the machines (`Pod.keeps_machine`).
    """

    namespace: str
    name: str
    uid: str
    #: Labels that identify the nodes of the TPUNodeGroup; empty if the managed instance group belongs to none.
    group_labels: Mapping[str, str] = field(default_factory=dict)
    #: Prefix of the machines' provider ids. The labels of nodes with another prefix do not count.
    place: str = ""
    #: Time of the delete request, None if unknown. Pods that were created later do not hold chips (`Pod.holds_chips`).
    requested_at: datetime | None = None
    #: Time until which pods without chips in this namespace keep the machines. None if these pods never do.
    deadline: datetime | None = None
    #: Time until which all other pods that do not hold chips (`Pod.holds_chips`) keep the machines.
    deadline_of_others: datetime | None = None
    #: See `Round.oldest_ready`.
    oldest_ready: datetime | None = None
    #: Provider ids of the listed machines that may run. Their nodes are checked even without the labels.
    provider_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(_OfTarget):
    """Delete the resource. The result is an Operation, None if the resource does not exist or must be kept."""

    sort: ClassVar[Sort] = Sort.CHANGE
    attempt: int
    request_id: str
    proof: Proof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(_OfTarget):
    """Read an operation. The result is an Operation, None if Google has forgotten it."""

    sort: ClassVar[Sort] = Sort.POLL
    operation: OperationName
    type: OperationType


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMachines(_OfTarget):
    """Read the metadata of machines of one group. The result is a tuple of Instance, without missing machines."""

    sort: ClassVar[Sort] = Sort.LIST
    machines: tuple[ManagedInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMetadata(_OfTarget):
    """Replace all metadata items of a machine. The result is an Operation, None if the machine does not exist."""

    sort: ClassVar[Sort] = Sort.CHANGE
    machine: ManagedInstance
    items: Mapping[str, str] = field(repr=False)
    fingerprint: str
    request_id: str

    @property
    def key(self) -> str:
        """Identity of the call."""
        return f"set metadata {self.machine.provider_id}"

    @property
    def machines(self) -> tuple[ManagedInstance, ...]:
        """The machine as a tuple, like `ReadMachines.machines`."""
        return (self.machine,)


Call = Read | ListManagers | ListMachines | Insert | Delete | Poll | ReadMachines | SetMetadata
Result = Resource | tuple[Manager, ...] | tuple[ManagedInstance, ...] | tuple[Instance, ...] | Operation


#: Result of a call. If `result`, `failure` and `kept` are all unset, the call ended with NOT_FOUND.
CallAnswer = AnsweredCall[Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A Kubernetes Event that a decision requests."""

    object: ObjectRef
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRecord:
    record: Record

    @property
    def key(self) -> str:
        return f"{self.record.kind} {self.record.meta}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateChild(_OfRecord):
    """Create a group's child. The record has a name and an owner, and no UID yet."""

    record: Child


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteChild(_OfRecord):
    """Delete a child, with its UID as precondition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFinalizers(_OfRecord):
    """Replace an object's finalizers, with the resource version as precondition."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchStatus(_OfRecord):
    """Patch the changed fields of an object's status, with the resource version as precondition."""

    new: ResourceStatus | TpuNodeGroupStatus
    #: Events to record when the status has been written.
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfObject:
    kind: ClassVar[str]
    name: str
    uid: str

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchNode(_OfObject):
    """Change a node, with the resource version as precondition."""

    kind: ClassVar[str] = "Node"
    resource_version: str
    labels: Mapping[str, str]
    taint: bool = False
    cordon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNode(_OfObject):
    """Delete a node, with its UID as precondition."""

    kind: ClassVar[str] = "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictPod:
    """Evict a pod, with its UID as precondition. A PodDisruptionBudget may forbid the eviction for some time."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """Identity of the pod."""
        return f"Pod {self.namespace}/{self.name} {self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Create a token's Secret for one machine of the group with this namespace and name."""

    namespace: str
    name: str
    machine: str
    machine_id: str
    expires_at: datetime

    @property
    def key(self) -> str:
        """Identity of the token, by the machine that needs it."""
        return f"token of machine {self.machine} {self.machine_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteToken(_OfObject):
    """Delete a token's Secret, with its UID as precondition."""

    kind: ClassVar[str] = "Secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveRequest(_OfObject):
    """Approve the certificate request of a machine's kubelet, with UID and resource version as preconditions."""

    kind: ClassVar[str] = "CertificateSigningRequest"
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyDevicePlugin:
    """Apply the DaemonSet of the device plugin by server-side apply. `version` is the hash of its manifest."""

    key: ClassVar[str] = "device plugin"
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDevicePlugin:
    """Delete the DaemonSet of the device plugin, with its UID as precondition."""

    key: ClassVar[str] = "device plugin"
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
WriteAnswer = AnsweredWrite[Write]
Answer = CallAnswer | WriteAnswer
