"""Workloads and their pods, reduced to the fields that decisions need."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, NewType, Self


class WorkloadKind(StrEnum):
    """Kind of a workload. The value is the name of the kind in Kubernetes."""

    api_version: str
    #: Word for a group of pods in messages.
    group_title: str
    #: Field of the spec with the number of pods, for messages.
    size_field: str

    JOBSET = "JobSet", "jobset.x-k8s.io/v1alpha2"
    LEADER_WORKER_SET = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "group", "size"
    RAY_CLUSTER = "RayCluster", "ray.io/v1", "replica", "numOfHosts"
    JOB = "Job", "batch/v1"
    #: Pods that belong to no other kind. The workload is the controller of the pods or, without a controller, the pod.
    POD = "Pod", "v1", "pod", "replicas"
    PROVISIONING_REQUEST = "ProvisioningRequest", "autoscaling.x-k8s.io/v1", "slice", "count"
    CAPACITY_BUFFER = "CapacityBuffer", "autoscaling.x-k8s.io/v1beta1", "slice", "replicas"

    def __new__(cls, value: str, api_version: str, group_title: str = "job", size_field: str = "parallelism") -> Self:
        """Create a member from its value and attributes."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.api_version, member.group_title, member.size_field = api_version, group_title, size_field
        return member

    # The hash of str is faster than the hash of Enum; members are parts of dictionary keys.
    __hash__ = str.__hash__

    @property
    def has_pods(self) -> bool:
        """Whether objects of the kind have pods. Kinds without pods request slices for future pods."""
        return self not in (WorkloadKind.PROVISIONING_REQUEST, WorkloadKind.CAPACITY_BUFFER)


WorkloadUid = NewType("WorkloadUid", str)
#: SHA1 of "<namespace>/<group name>" in hexadecimal, as in the labels JOB_KEY (JobSet) and LWS_GROUP_KEY.
GroupKey = NewType("GroupKey", str)


class WorkloadName(NamedTuple):
    """Kind, namespace and name, which identify one existing workload."""

    kind: WorkloadKind
    namespace: str
    name: str

    @property
    def text(self) -> str:
        """Form for messages, such as "JobSet research/train" or "ReplicaSet research/server-5d9"."""
        kind, name = owner_of_name(self.kind, self.name)
        return f"{kind} {self.namespace}/{name}"

    @property
    def id(self) -> str:
        """Form that users can type, such as "JobSet/research/train"."""
        return self.text.replace(" ", "/")


def owner_of_name(kind: WorkloadKind, name: str) -> tuple[str, str]:
    """Return kind and name in Kubernetes; a workload of pods with a controller has the name `<Kind>.<name>`."""
    # Names of pods have no capital letters, so a capital letter shows the kind of a controller.
    owner, dot, owned_name = name.partition(".")
    return (owner, owned_name) if kind is WorkloadKind.POD and dot and owner[:1].isupper() else (kind.value, name)


@lru_cache(maxsize=65536)
def group_key(namespace: str, group_name: str) -> GroupKey:
    """Return the key of a group, as the JobSet controller computes the key of a child Job. Restarts keep the key."""
    text = f"{namespace}/{group_name}".encode("utf-8", "surrogatepass")
    return GroupKey(hashlib.sha1(text, usedforsecurity=False).hexdigest())


@lru_cache(maxsize=65536)
def uid_in(namespace: str, uid: str) -> WorkloadUid:
    """Return a UID that differs between namespaces, because users can write any UID in an owner reference."""
    text = f"{namespace}/{uid}".encode("utf-8", "surrogatepass")
    return WorkloadUid(hashlib.sha256(text).hexdigest()[:32])


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """Toleration of a pod. An empty effect matches all effects; an empty key with operator Exists matches all keys."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """One expression of a node selector term. `on_field` is True in matchFields, whose only key is metadata.name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    on_field: bool = False


#: Node selector term. A node must satisfy all expressions of at least one term.
Term = tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """PersistentVolumeClaims of a pod. `model.volumes` adds the other fields: how the claims restrict the node."""

    claims: tuple[str, ...] = ()
    #: Zones in which all the volumes can be used; None if no restriction is known.
    zones: tuple[str, ...] | None = None
    #: Types of Compute Engine disks that will be created for the claims; claims with a volume are left out.
    disks: tuple[str, ...] = ()
    #: Reason why the pod cannot use a claim now, such as its deletion; empty if no reason is known.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of a pod, or of the pods of a template, on their nodes."""

    chips: int = 0
    #: Whether the pod requests all chips of a host by ResourceClaims. `chips` is then from the catalogue.
    claims: bool = False
    cpu_millicores: int = 0
    memory_bytes: int = 0
    #: Requested bytes of ephemeral storage and of huge pages, by resource.
    other_bytes: tuple[tuple[str, int], ...] = ()
    volumes: Volumes | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    #: Terms of requiredDuringSchedulingIgnoredDuringExecution; empty if the pod has no such affinity.
    affinity_terms: tuple[Term, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Annotations whose keys are in `kube.podspec.READ_ANNOTATIONS`.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Clauses about an exceeded limit of `model.bounds`, because of which other fields are incomplete; empty if none.
    problem: tuple[str, ...] = ()

    @property
    def has_chips(self) -> bool:
        """Whether the pod requests chips, as a resource or by ResourceClaims."""
        return self.chips > 0 or self.claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Pod that requests chips, or leader of workers that do. `Workloads.uid_of` checks whether the workload exists."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: str
    #: Name of the workload, for kind POD as in `owner_of_name`; empty if SERVE_PODS does not select the pod.
    workload_name: str
    #: UID of the workload; empty if the pod does not contain it, such as before JobSet 0.8.
    workload_uid: str = ""
    #: Name of the group, such as the child Job of a JobSet; empty if the pod has no group.
    group_name: str = ""
    group_key: GroupKey
    #: Controller of a pod of kind JOB or POD; None for other kinds, or without a complete controller reference.
    owner: ObjectRef | None = None
    #: Index of the pod in its group, from 0; None if unknown.
    completion_index: int | None = None
    #: Number of pods of the group according to the pod; 0 if the spec of the workload determines the number.
    group_size: int = 0
    phase: str = "Pending"
    node_name: str = ""
    requirements: Requirements
    priority: int = 0
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: Time since which the pod is reported as Unschedulable, or is `gated`; None if neither.
    unschedulable_since: datetime | None = None
    unschedulable_message: str = ""
    #: Name of the PodGroup whose pods the scheduler binds only together; empty if the pod has none.
    gang: str = ""
    #: Whether the scheduler ignores the pod until enough pods of its gang exist.
    gated: bool = False
    #: deletionTimestamp, which is the end of the grace period; None if the pod is not being deleted.
    deletion_deadline: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Groups of one entry of a workload's spec, such as the child Jobs of a replicated job."""

    #: Name of the entry; empty if it has none.
    name: str
    replicas: int
    #: Maximum number of groups beyond `replicas`, such as in a rolling update; only groups with pods count.
    surge: int = 0
    #: Whether the names of groups end with numbers. False for POD, and for JOB, whose only group has the Job's name.
    numbered: bool = True
    #: Name of an entry without chips that must be ready or complete before this entry gets pods; empty if none.
    after: str = ""
    #: Whether group numbers may exceed `replicas`. If so, groups without pods count only up to a total of `replicas`.
    any_number: bool = False
    #: Whether the unfinished pod with the lowest index leads the group. If not, only the pod of index 0 can lead.
    lowest_leads: bool = False
    #: Number of child Jobs that succeeded and get pods again only if the workload restarts.
    succeeded: int = 0
    #: activeDeadlineSeconds of the Job; 0 without a deadline.
    deadline_seconds: int = 0
    #: Whether JobSet lets the pods of each child Job select nodes that are labelled with the name of the Job.
    selects_job_nodes: bool = False
    #: Number of child Jobs whose pods together are one group.
    jobs: int = 1
    parallelism: int
    template: Requirements


class Condition(NamedTuple):
    """Condition in the status of an object."""

    true: bool
    reason: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """Spec and status of a ProvisioningRequest (request) or CapacityBuffer (buffer)."""

    resource_version: str
    #: Names of PodTemplates, with number of pods (request) or slices (buffer, None if other fields set the number).
    pod_sets: tuple[tuple[str, int | None], ...] = ()
    #: Buffers only: API group, kind and name of the workload whose slices the buffer copies.
    scalable: tuple[str, str, str] = ("", "", "")
    #: Buffers only: number of slices in percent of the slices of `scalable`; None if not set.
    percentage: int | None = None
    #: Buffers only: maximum number of chips; None if not limited.
    max_chips: int | None = None
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: Requests only: names of node pools in the status, which the provisioner writes.
    named: tuple[str, ...] = ()

    def is_true(self, condition: str) -> bool:
        """Whether the status has a condition of this type that is true."""
        return condition in self.conditions and self.conditions[condition].true


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Object that owns groups of pods, or that requests slices for future pods."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: WorkloadUid
    groups: tuple[PodGroup, ...] = ()
    suspended: bool = False
    #: "Completed" or "Failed"; empty if the workload has not finished.
    terminal_state: str = ""
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Value of spec.managedBy if another controller than the usual one of the kind runs the workload; otherwise empty.
    managed_by: str = ""
    #: Clauses of the problem that prevents all slices, the next step last if known; empty if slices can be served.
    problem: tuple[str, ...] = ()
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: Time of the last change of `suspended`, by the clock of the workload's controller; None if never or unknown.
    suspension_changed_at: datetime | None = None
    #: None for kinds with pods.
    capacity_request: CapacityRequest | None = None
    #: Controller of the pods, only for kind POD; None for other kinds, and if the workload is a pod.
    controller: ObjectRef | None = None

    def __str__(self) -> str:
        return f"{self.owner_kind} {self.owner_name}"

    @property
    def full_name(self) -> WorkloadName:
        """Kind, namespace and name."""
        return WorkloadName(self.kind, self.namespace, self.name)

    @property
    def owner_kind(self) -> str:
        """Kind in Kubernetes; for a workload of kind POD, the kind of the controller if there is one."""
        return self.controller.kind if self.controller is not None else self.kind.value

    @property
    def owner_name(self) -> str:
        """Name in Kubernetes; for a workload of kind POD, the name of the controller if there is one."""
        return self.controller.name if self.controller is not None else self.name

    @property
    def finished(self) -> bool:
        """Whether the workload completed or failed permanently."""
        return self.terminal_state != ""

    @property
    def lives(self) -> bool:
        """Whether the workload is neither finished, suspended nor being deleted."""
        return self.keeps_pools(while_suspended=False)

    def keeps_pools(self, *, while_suspended: bool) -> bool:
        """Whether the pools of the workload are kept: it `lives` or, with `while_suspended`, is only suspended."""
        return not (self.finished or self.deleting or (self.suspended and not while_suspended))


@dataclass(frozen=True, slots=True)
class Workloads:
    """Existing workloads by UID and by name, because some pods and pools have only the name of their workload."""

    by_uid: Mapping[WorkloadUid, Workload]
    uid_of_name: Mapping[tuple[WorkloadKind, str, str], WorkloadUid]

    @classmethod
    def of(cls, by_uid: Mapping[WorkloadUid, Workload]) -> Workloads:
        """Return the workloads with an index by name."""
        return cls(by_uid, {workload.full_name: uid for uid, workload in by_uid.items()})

    def uid_of(self, pod: Pod) -> WorkloadUid | None:
        """Return the UID of a pod's workload; None if the workload does not exist, even if another one has its name.

        A pod that contains only the name belongs to the existing workload unless the pod is older than the workload.
        """
        if pod.kind is WorkloadKind.POD:
            workload = self.by_uid.get(WorkloadUid(pod.workload_uid))
            return workload.uid if workload is not None and workload.namespace == pod.namespace else None
        uid = self.uid_of_name.get((pod.kind, pod.namespace, pod.workload_name))
        if uid is None or pod.workload_uid == uid:
            return uid
        return uid if not pod.workload_uid and pod.created_at >= self.by_uid[uid].created_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Reference to an object. Any field may be empty in a reference that users can write (owner reference)."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str

    @property
    def type(self) -> tuple[str, str]:
        """API version and kind, in this order."""
        return self.api_version, self.kind


def pod_ref(pod: Pod) -> ObjectRef:
    """Return the reference to a pod or, for the virtual leader pod of a requested slice, to the request."""
    if not pod.kind.has_pods:
        kind, uid = pod.kind, pod.workload_uid
        return ObjectRef(
            kind=kind, api_version=kind.api_version, namespace=pod.namespace, name=pod.workload_name, uid=uid
        )
    return ObjectRef(kind="Pod", api_version="v1", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def workload_ref(workload: Workload) -> ObjectRef:
    """Return the reference to a workload; for a workload of kind POD, to the controller if there is one."""
    return workload.controller or ObjectRef(
        kind=workload.kind.value,
        api_version=workload.kind.api_version,
        namespace=workload.namespace,
        name=workload.name,
        uid=workload.uid,
    )
