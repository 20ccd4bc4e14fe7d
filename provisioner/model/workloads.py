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

    #: Group and version of the API in which objects of the kind are read.
    api_version: str
    #: Word for a group of pods in messages.
    group_title: str
    #: Name of the field in the spec with the number of pods per group.
    size_field: str

    JOBSET = "JobSet", "jobset.x-k8s.io/v1alpha2"
    LEADER_WORKER_SET = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "group", "size"
    RAY_CLUSTER = "RayCluster", "ray.io/v1", "replica", "numOfHosts"
    JOB = "Job", "batch/v1"
    #: Pods that belong to no other kind. Their workload is their controller; without a controller, the pod itself.
    POD = "Pod", "v1", "pod", "replicas"
    PROVISIONING_REQUEST = "ProvisioningRequest", "autoscaling.x-k8s.io/v1", "slice", "count"
    CAPACITY_BUFFER = "CapacityBuffer", "autoscaling.x-k8s.io/v1beta1", "slice", "replicas"

    def __new__(cls, value: str, api_version: str, group_title: str = "job", size_field: str = "parallelism") -> Self:
        """Create a member from its value and attributes."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.api_version, member.group_title, member.size_field = api_version, group_title, size_field
        return member

    # Use the hash of str, because members are parts of dictionary keys and the hash of Enum is slow.
    __hash__ = str.__hash__

    @property
    def has_pods(self) -> bool:
        """Whether objects of the kind have pods. Objects of other kinds request capacity for pods to come (`Ask`)."""
        return self not in (WorkloadKind.PROVISIONING_REQUEST, WorkloadKind.CAPACITY_BUFFER)


WorkloadUid = NewType("WorkloadUid", str)
#: SHA1 of "<namespace>/<group name>" in hexadecimal, as in the job key of JobSets and group key of LeaderWorkerSets.
GroupKey = NewType("GroupKey", str)


class WorkloadName(NamedTuple):
    """Kind, namespace and name of a workload, which no other existing workload has."""

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
    """Return the kind and name that a workload has in Kubernetes.

    A workload of kind POD whose pods have a controller is named `<kind>.<name>` after the controller. No pod can have
    such a name, because names of pods have no capital letters.
    """
    owner, dot, rest = name.partition(".")
    return (owner, rest) if kind is WorkloadKind.POD and dot and owner[:1].isupper() else (kind.value, name)


@lru_cache(maxsize=65536)
def group_key(namespace: str, group_name: str) -> GroupKey:
    """Return the key of a group, as the JobSet controller computes the key of a child Job. Restarts keep the key."""
    text = f"{namespace}/{group_name}".encode("utf-8", "surrogatepass")
    return GroupKey(hashlib.sha1(text, usedforsecurity=False).hexdigest())


@lru_cache(maxsize=65536)
def uid_in(namespace: str, uid: str) -> WorkloadUid:
    """Return a UID that depends on the namespace, because users can write the UID of any object in owner references."""
    text = f"{namespace}/{uid}".encode("utf-8", "surrogatepass")
    return WorkloadUid(hashlib.sha256(text).hexdigest()[:32])


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """Toleration of a pod. An empty effect matches all effects; an empty key with Exists matches all taints."""

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


#: Node selector term: all its expressions must hold. A node must satisfy at least one term of a pod.
Term = tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """PersistentVolumeClaims of a pod, and the restrictions by their volumes, which `model.volumes` adds."""

    #: Names of the claims in the namespace of the pod.
    claims: tuple[str, ...] = ()
    #: Zones in which all the volumes can be used; None for any zone.
    zones: tuple[str, ...] | None = None
    #: Types of the disks of Compute Engine among the volumes.
    disks: tuple[str, ...] = ()
    #: Reason why no node can attach the volumes now; empty if a node can, or if that is unknown.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of a pod, or of the pods of a template, on their nodes."""

    chips: int = 0
    #: Whether the pod requests all chips of its host by ResourceClaims. If so, `chips` is taken from the catalogue.
    claims: bool = False
    cpu_millicores: int = 0
    memory_bytes: int = 0
    #: Requested bytes of ephemeral storage and of huge pages by resource, without resources that are not requested.
    other_bytes: tuple[tuple[str, int], ...] = ()
    #: Volumes that may restrict the node; None if the pod has no PersistentVolumeClaims.
    volumes: Volumes | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    #: Terms of requiredDuringSchedulingIgnoredDuringExecution; empty if the pod has no such affinity.
    affinity_terms: tuple[Term, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Annotations whose keys are in `constants.READ_ANNOTATIONS`.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Message about a limit of `model.bounds` because of which requirements are incomplete; empty if they are complete.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Pod that requests chips. `Workloads.uid_of` checks whether its workload exists."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: str
    #: Name of the workload in a label of the pod, which users can write.
    workload_name: str
    #: UID of the workload in a label; empty if pods of the kind, or of the installed release, lack the label.
    workload_uid: str = ""
    #: Name of the group by the pod's owner reference, such as the child Job of a JobSet; empty if the pod has no group.
    group_name: str = ""
    #: Key of the group; empty if the pod has no group.
    group_key: GroupKey
    #: Controller, only for pods of Jobs and pods of kind POD; None for other pods and without a controller.
    owner: ObjectRef | None = None
    #: Index of the pod in its group; 0 for the leader, None if unknown.
    completion_index: int | None = None
    #: Number of pods that the group had when it was created; 0 if all groups of the workload have the same number.
    group_size: int = 0
    phase: str = "Pending"
    #: Name of the pod's node; empty if the pod is not bound.
    node_name: str = ""
    requirements: Requirements
    #: Value of spec.priority, which the PriorityClass sets; 0 without a priority.
    priority: int = 0
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: Time since which the scheduler has reported the pod as Unschedulable; None if the scheduler does not report it.
    unschedulable_since: datetime | None = None
    unschedulable_message: str = ""
    #: Whether the scheduler ignores the pod until enough pods of its gang exist.
    gated: bool = False
    #: Value of deletionTimestamp, which for pods is the end of the grace period.
    deletion_deadline: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Entry in the spec of a workload with equal groups, such as one of spec.replicatedJobs with its child Jobs."""

    #: Name of the entry; empty if all groups of a workload are equal.
    name: str
    #: Number of groups.
    replicas: int
    #: Maximum number of additional groups, such as during a rolling update. An additional group counts if it has pods.
    surge: int = 0
    #: Whether the name of each group ends with a number. If not, the entry has one group with the name of the workload.
    numbered: bool = True
    #: Name of the entry without chips whose pods must be ready before pods of this entry are created; empty if none.
    after: str = ""
    #: Whether the name of a group may end with any number, even above `replicas`. Groups without pods count only while
    #: fewer than `replicas` groups have pods.
    any_number: bool = False
    #: Whether the existing pod with the lowest index is the leader. If not, only the pod of index 0 can be the leader.
    lowest_leads: bool = False
    #: Number of groups that have succeeded and get pods again only if the workload restarts.
    succeeded: int = 0
    #: Value of activeDeadlineSeconds of the Job; 0 if the Job has none.
    deadline_seconds: int = 0
    #: Whether JobSet lets the pods of each child Job select nodes that are labelled with the name of the Job.
    selects_job_nodes: bool = False
    #: Number of child Jobs that form one group, because only their pods together fill a slice.
    jobs: int = 1
    #: Number of pods per group.
    parallelism: int
    template: Requirements


class Condition(NamedTuple):
    """Condition in the status of an object."""

    true: bool
    reason: str = ""
    message: str = ""
    #: Time of the last transition; None if the condition has no time.
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Spec and status of a ProvisioningRequest (request) or CapacityBuffer (buffer), without the pod templates."""

    resource_version: str
    #: Names of PodTemplates in the namespace, each with the number of pods (request) or slices (buffer). None if other
    #: fields of the buffer determine the number.
    pod_sets: tuple[tuple[str, int | None], ...] = ()
    #: Buffers only: API group, kind and name of the workload whose slices the buffer copies.
    scalable: tuple[str, str, str] = ("", "", "")
    #: Buffers only: number of slices in percent of the slices of `scalable`; None if not set.
    percentage: int | None = None
    #: Buffers only: maximum number of chips; None if not limited.
    max_chips: int | None = None
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: Requests only: names of node pools in the status of a request that has been served.
    named: tuple[str, ...] = ()

    def is_true(self, condition: str) -> bool:
        """Whether a condition is true in the status."""
        return condition in self.conditions and self.conditions[condition].true


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Object that owns groups of pods, or requests slices. The pods end when the object ends."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: WorkloadUid
    groups: tuple[PodGroup, ...] = ()
    suspended: bool = False
    #: "Completed" or "Failed"; empty if the workload has not finished.
    terminal_state: str = ""
    #: Whether deletionTimestamp is set.
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Annotations whose keys are in `constants.READ_ANNOTATIONS`.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Value of spec.managedBy if another controller than the usual one of the kind runs the workload; otherwise empty.
    managed_by: str = ""
    #: Message why the workload is not served, such as about an exceeded limit; empty if it can be served.
    problem: str = ""
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: Time of the last suspension or resumption, by the clock of the workload's controller; None if never or unknown.
    suspension_changed_at: datetime | None = None
    #: Request for slices; None for kinds with pods.
    ask: Ask | None = None
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
        """Kind of the object in Kubernetes; for pods with a controller, the kind of the controller."""
        return self.controller.kind if self.controller is not None else self.kind.value

    @property
    def owner_name(self) -> str:
        """Name of the object in Kubernetes; for pods with a controller, the name of the controller."""
        return self.controller.name if self.controller is not None else self.name

    @property
    def finished(self) -> bool:
        """Whether the workload completed or failed permanently."""
        return self.terminal_state != ""

    @property
    def lives(self) -> bool:
        """Whether the workload has or will have pods: it is not finished, not suspended, and not being deleted."""
        return self.keeps_pools(while_suspended=False)

    def keeps_pools(self, *, while_suspended: bool) -> bool:
        """Whether the pools of the workload are kept: it `lives`, or is suspended and `while_suspended` is True."""
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
        """Return the UID of a pod's workload; None if no workload has the name, or if the pod has another workload UID.

        A pod without a workload UID that is older than the workload belonged to an earlier workload of the same name.
        """
        if pod.kind is WorkloadKind.POD:
            found = self.by_uid.get(WorkloadUid(pod.workload_uid))
            return found.uid if found is not None and found.namespace == pod.namespace else None
        uid = self.uid_of_name.get((pod.kind, pod.namespace, pod.workload_name))
        if uid is None or pod.workload_uid == uid:
            return uid
        return uid if not pod.workload_uid and pod.created_at >= self.by_uid[uid].created_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Reference to an object. In a reference to a controller, which users can write, name or UID may be empty."""

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
    """Return the reference to a pod or, if the pod only represents a requested slice, to the request."""
    if not pod.kind.has_pods:
        kind, uid = pod.kind, pod.workload_uid
        return ObjectRef(
            kind=kind, api_version=kind.api_version, namespace=pod.namespace, name=pod.workload_name, uid=uid
        )
    return ObjectRef(kind="Pod", api_version="v1", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def workload_ref(workload: Workload) -> ObjectRef:
    """Return the reference to a workload; for pods with a controller, the reference to the controller."""
    return workload.controller or ObjectRef(
        kind=workload.kind.value,
        api_version=workload.kind.api_version,
        namespace=workload.namespace,
        name=workload.name,
        uid=workload.uid,
    )
