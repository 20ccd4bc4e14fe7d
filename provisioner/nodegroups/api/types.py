"""Records of TPUNodeGroups and their three kinds of children, in the API tpu.google.com/v1alpha1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, get_type_hints

from provisioner.nodegroups.api.specs import (
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    TpuNodeGroupSpec,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.statuses import ResourceStatus, TpuNodeGroupStatus, UriStatus

GROUP = "tpu.google.com"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Kind(StrEnum):
    """Kind of an object: a TPUNodeGroup, or a child, which represents one resource of Compute Engine."""

    TPU_NODE_GROUP = "TPUNodeGroup"
    WORKLOAD_POLICY = "WorkloadPolicy"
    INSTANCE_TEMPLATE = "InstanceTemplate"
    MANAGED_INSTANCE_GROUP = "ManagedInstanceGroup"

    @property
    def plural(self) -> str:
        """Name of the kind in URL paths of the API server, such as tpunodegroups."""
        return _PLURALS[self]


_PLURALS = {
    Kind.TPU_NODE_GROUP: "tpunodegroups",
    Kind.WORKLOAD_POLICY: "workloadpolicies",
    Kind.INSTANCE_TEMPLATE: "instancetemplates",
    Kind.MANAGED_INSTANCE_GROUP: "managedinstancegroups",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """Fields of an object's metadata that the controller uses."""

    namespace: str
    name: str
    uid: str
    generation: int = 0
    resource_version: str = ""
    created_at: datetime | None = None
    #: Time of the delete request (metadata.deletionTimestamp). None if the object is not being deleted.
    deleted_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    #: Only the annotations in `names.READ_ANNOTATIONS`.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: TPUNodeGroup for the owner reference of a new child. None in objects that were read: users can write any owner.
    owner: ObjectMeta | None = None

    @property
    def deleting(self) -> bool:
        """Whether the deletion was requested. The object exists until its last finalizer is removed."""
        return self.deleted_at is not None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroup:
    """A group of TPU machines that become nodes of this cluster."""

    kind: ClassVar[Kind] = Kind.TPU_NODE_GROUP
    meta: ObjectMeta
    spec: TpuNodeGroupSpec
    status: TpuNodeGroupStatus = field(default_factory=TpuNodeGroupStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicy:
    """An object that represents one workload policy of Compute Engine, usually the child of a group."""

    kind: ClassVar[Kind] = Kind.WORKLOAD_POLICY
    meta: ObjectMeta
    spec: WorkloadPolicySpec
    status: UriStatus = field(default_factory=UriStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTemplate:
    """An object that represents one instance template of Compute Engine, usually the child of a group."""

    kind: ClassVar[Kind] = Kind.INSTANCE_TEMPLATE
    meta: ObjectMeta
    spec: InstanceTemplateSpec
    status: UriStatus = field(default_factory=UriStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstanceGroup:
    """An object that represents one managed instance group of Compute Engine, usually the child of a group."""

    kind: ClassVar[Kind] = Kind.MANAGED_INSTANCE_GROUP
    meta: ObjectMeta
    spec: ManagedInstanceGroupSpec
    status: ResourceStatus = field(default_factory=ResourceStatus)


Child = WorkloadPolicy | InstanceTemplate | ManagedInstanceGroup
Record = TpuNodeGroup | Child
RECORDS: Mapping[Kind, type[Record]] = {
    record.kind: record for record in (TpuNodeGroup, WorkloadPolicy, InstanceTemplate, ManagedInstanceGroup)
}
HINTS = {kind: get_type_hints(record) for kind, record in RECORDS.items()}
