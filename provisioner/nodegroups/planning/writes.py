"""Writes to Kubernetes that a plan asks for, and their answers.

One write of a key is under way at a time; a key names the object that is written. Each write may be sent again: what it
comes to is the same. NotFound of what is to go counts as done, and so does AlreadyExists of what is to be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from provisioner.model.capacity import Taint
from provisioner.model.workloads import ObjectRef
from provisioner.model.writes import Answered
from provisioner.nodegroups.api.statuses import ResourceStatus, TpuNodeGroupStatus
from provisioner.nodegroups.api.types import Child, Record


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
    """Create a group's child: its metadata has its name, its labels and its owner, and no UID yet."""

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
class _OfNode:
    """A write of a node."""

    name: str
    uid: str

    @property
    def key(self) -> str:
        """Names what is written."""
        return f"Node {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchNode(_OfNode):
    """Change a node, with UID and resource version as preconditions."""

    resource_version: str
    #: Those to be set; the others stay.
    labels: Mapping[str, str]
    #: All of them as they are to be; None: they stay.
    taints: tuple[Taint, ...] | None = None
    #: Set spec.unschedulable; it is never cleared.
    cordon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNode(_OfNode):
    """Delete a node whose machine is gone, with its UID as precondition."""


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

    #: Of the group.
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
class DeleteToken:
    """Delete a Secret, with its UID as precondition."""

    name: str
    uid: str

    @property
    def key(self) -> str:
        """Names what is written."""
        return f"Secret {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveRequest:
    """Approve the certificate of a machine's kubelet, with UID and resource version as preconditions."""

    name: str
    uid: str
    resource_version: str

    @property
    def key(self) -> str:
        """Names what is written."""
        return f"CertificateSigningRequest {self.name}"


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
