"""The four kinds of tpu.google.com/v1alpha1 as records."""

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
from provisioner.nodegroups.api.statuses import ResourceStatus, TpuNodeGroupStatus

GROUP = "tpu.google.com"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Kind(StrEnum):
    """The kinds: a TPUNodeGroup, and its children, each of which stands for one resource of Compute Engine."""

    TPU_NODE_GROUP = "TPUNodeGroup"
    WORKLOAD_POLICY = "WorkloadPolicy"
    INSTANCE_TEMPLATE = "InstanceTemplate"
    MANAGED_INSTANCE_GROUP = "ManagedInstanceGroup"

    @property
    def plural(self) -> str:
        """The kind's name in paths."""
        return _PLURALS[self]


_PLURALS = {
    Kind.TPU_NODE_GROUP: "tpunodegroups",
    Kind.WORKLOAD_POLICY: "workloadpolicies",
    Kind.INSTANCE_TEMPLATE: "instancetemplates",
    Kind.MANAGED_INSTANCE_GROUP: "managedinstancegroups",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """What matters of an object's metadata."""

    namespace: str
    name: str
    uid: str
    generation: int = 0
    resource_version: str = ""
    created_at: datetime | None = None
    #: deletionTimestamp: when somebody asked for the deletion.
    deleted_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    #: Only those that are read (`names.READ_ANNOTATIONS`).
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: The group that controls it. Written, and not read: anybody may write one. None also where it was read.
    owner: ObjectMeta | None = None

    @property
    def deleting(self) -> bool:
        """Whether somebody asked for the deletion; the object stays until its last finalizer goes."""
        return self.deleted_at is not None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuNodeGroup:
    """A group of TPU machines that are nodes of this cluster."""

    kind: ClassVar[Kind] = Kind.TPU_NODE_GROUP
    meta: ObjectMeta
    spec: TpuNodeGroupSpec
    status: TpuNodeGroupStatus = field(default_factory=TpuNodeGroupStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicy:
    """The child that stands for a workload policy."""

    kind: ClassVar[Kind] = Kind.WORKLOAD_POLICY
    meta: ObjectMeta
    spec: WorkloadPolicySpec
    status: ResourceStatus = field(default_factory=ResourceStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTemplate:
    """The child that stands for an instance template."""

    kind: ClassVar[Kind] = Kind.INSTANCE_TEMPLATE
    meta: ObjectMeta
    spec: InstanceTemplateSpec
    status: ResourceStatus = field(default_factory=ResourceStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstanceGroup:
    """The child that stands for a managed instance group."""

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
