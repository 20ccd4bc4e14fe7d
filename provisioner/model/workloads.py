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
    """Kind of a workload. The value is Kubernetes' name of the kind."""

    #: Group and version of the API that is read.
    api_version: str
    #: Name of a group of pods in messages.
    group_title: str
    #: Field in the specification with the number of pods per group.
    size_field: str

    JOBSET = "JobSet", "jobset.x-k8s.io/v1alpha2"
    LEADER_WORKER_SET = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "group", "size"
    RAY_CLUSTER = "RayCluster", "ray.io/v1", "replica", "numOfHosts"
    JOB = "Job", "batch/v1"
    #: Pods that belong to no workload of another kind. The workload is their controller, or the pod if it has none.
    POD = "Pod", "v1", "pod", "replicas"
    PROVISIONING_REQUEST = "ProvisioningRequest", "autoscaling.x-k8s.io/v1", "slice", "count"
    CAPACITY_BUFFER = "CapacityBuffer", "autoscaling.x-k8s.io/v1beta1", "slice", "replicas"

    def __new__(cls, value: str, api_version: str, group_title: str = "job", size_field: str = "parallelism") -> Self:
        """Create a member from its value and attributes."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.api_version, member.group_title, member.size_field = api_version, group_title, size_field
        return member

    # Members are parts of dictionary keys, and the hash of Enum is slow.
    __hash__ = str.__hash__

    @property
    def has_pods(self) -> bool:
        """Whether objects of the kind have pods; the others request capacity with an `Ask`."""
        return self not in (WorkloadKind.PROVISIONING_REQUEST, WorkloadKind.CAPACITY_BUFFER)


WorkloadUid = NewType("WorkloadUid", str)
#: SHA1 hex of "<namespace>/<group name>": the job key of JobSets, the group key of LeaderWorkerSets.
GroupKey = NewType("GroupKey", str)


class WorkloadName(NamedTuple):
    """Identity of a workload among those that exist at the same time."""

    kind: WorkloadKind
    namespace: str
    name: str

    @property
    def text(self) -> str:
        """Name in messages, such as JobSet research/train or ReplicaSet research/server-5d9."""
        kind, name = owner_of_name(self.kind, self.name)
        return f"{kind} {self.namespace}/{name}"

    @property
    def id(self) -> str:
        """Name that users see and can type, such as JobSet/research/train."""
        return self.text.replace(" ", "/")


def owner_of_name(kind: WorkloadKind, name: str) -> tuple[str, str]:
    """Return Kubernetes' kind and name of a workload. For pods with a controller, both are in the workload's name.

    Such a name is `<kind>.<name>`. It is no name of a pod, because names of objects have no capital letters.
    """
    owner, dot, rest = name.partition(".")
    return (owner, rest) if kind is WorkloadKind.POD and dot and owner[:1].isupper() else (kind.value, name)


@lru_cache(maxsize=65536)
def group_key(namespace: str, group_name: str) -> GroupKey:
    """Return the key of a group, as the JobSet controller computes it for a child Job. Restarts do not change it."""
    text = f"{namespace}/{group_name}".encode("utf-8", "surrogatepass")
    return GroupKey(hashlib.sha1(text, usedforsecurity=False).hexdigest())


@lru_cache(maxsize=65536)
def uid_in(namespace: str, uid: str) -> WorkloadUid:
    """Return the UID of a workload for the UID in an owner reference, which users can write, in one namespace."""
    text = f"{namespace}/{uid}".encode("utf-8", "surrogatepass")
    return WorkloadUid(hashlib.sha256(text).hexdigest()[:32])


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """Toleration of a pod. An empty effect matches every effect, an empty key with Exists every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """One requirement of a node selector term; `on_field` means matchFields, whose only key is metadata.name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    on_field: bool = False


#: Expressions of a term, all of which must hold. At least one term of a pod must hold.
Term = tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Volumes of a pod by PersistentVolumeClaims, and their restriction (`model.volumes`)."""

    #: Names of the claims, which are in the namespace of the pod.
    claims: tuple[str, ...] = ()
    #: Zones in which all volumes are available; None for any zone.
    zones: tuple[str, ...] | None = None
    #: Types of Compute Engine's disks among the volumes.
    disks: tuple[str, ...] = ()
    #: Why no node can attach the volumes now; empty if one can, or if that is unknown.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements of a pod, or of the template of a replicated job, on its node."""

    chips: int = 0
    #: Whether ResourceClaims request all chips of the host; `chips` is then their number by the catalogue.
    claims: bool = False
    cpu_millicores: int = 0
    memory_bytes: int = 0
    #: Bytes of ephemeral storage and of huge pages by resource, only those that are requested.
    other_bytes: tuple[tuple[str, int], ...] = ()
    #: None without volumes that restrict the node.
    volumes: Volumes | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    #: requiredDuringSchedulingIgnoredDuringExecution; empty if there is no constraint.
    affinity_terms: tuple[Term, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Only annotations in `constants.READ_ANNOTATIONS`.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Limit that is exceeded, so that these requirements are incomplete; empty if none.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Pod with chips and the labels of a workload, which `Workloads.uid_of` verifies."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: str
    #: Name in a label, which users can write.
    workload_name: str
    #: UID in a label; empty if pods of the kind, or of the installed release, do not have it.
    workload_uid: str = ""
    #: Group that controls the pod by its owner reference, for a JobSet the child Job; empty if none.
    group_name: str = ""
    #: Key of that group.
    group_key: GroupKey
    #: Controller of a Job's pod or of a pod of kind POD; None if the pod has none, or for other kinds.
    owner: ObjectRef | None = None
    #: Index in the group, 0 for the leader; None if unknown.
    completion_index: int | None = None
    #: Number of pods in the group when it was created; 0 if every group of the workload has the same number.
    group_size: int = 0
    phase: str = "Pending"
    #: Name of the pod's node; empty if not bound.
    node_name: str = ""
    requirements: Requirements
    #: spec.priority, which its PriorityClass sets; 0 if it has none.
    priority: int = 0
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: Time since which the scheduler has reported the pod as Unschedulable; None if it does not.
    unschedulable_since: datetime | None = None
    unschedulable_message: str = ""
    #: Whether the pod belongs to a gang, which the scheduler ignores until enough pods of the gang exist.
    gated: bool = False
    #: deletionTimestamp, which for pods is the end of the grace period.
    deletion_deadline: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Groups of equal pods, such as an entry of spec.replicatedJobs of a JobSet, in which each child Job is a group."""

    #: Name of the entry; empty if all groups of a workload are equal.
    name: str
    replicas: int
    #: Maximum number of additional groups, for example during a rolling update. Only their pods show that they exist.
    surge: int = 0
    #: Whether each group's name ends with a number. If not, there is one group, with the workload's name.
    numbered: bool = True
    #: Group without chips whose pods must be ready before this group's pods are created; empty if none.
    after: str = ""
    #: Whether a group may have any number in its name. A number without pods counts only while fewer than `replicas`
    #: groups have pods.
    any_number: bool = False
    #: Whether the pod with the lowest unfinished index leads. False with exclusive placement: only index 0 can lead.
    lowest_leads: bool = False
    #: Number of groups that have succeeded; they get pods again only if the workload restarts.
    succeeded: int = 0
    #: activeDeadlineSeconds of the Job; 0 if none.
    deadline_seconds: int = 0
    #: Whether JobSet lets the pods of each child Job select nodes that are labelled with the Job's name.
    selects_job_nodes: bool = False
    #: Number of child Jobs that are one group, because only together their pods fill a slice.
    jobs: int = 1
    #: Number of pods per group.
    parallelism: int
    template: Requirements


class Condition(NamedTuple):
    """Condition of a status."""

    true: bool
    reason: str = ""
    message: str = ""
    #: Time of the last transition; None if the status has none.
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Request of a ProvisioningRequest or a CapacityBuffer, before its templates are read, and its status."""

    resource_version: str
    #: Names of PodTemplates of the namespace, each with the number of pods (request) or slices (buffer), or with None
    #: if the other fields of a buffer determine the number of slices.
    pod_sets: tuple[tuple[str, int | None], ...] = ()
    #: Buffers only: API group, kind and name of the workload whose slices are the model.
    scalable: tuple[str, str, str] = ("", "", "")
    #: Buffers only: number of slices in percent of those of that workload.
    percentage: int | None = None
    #: Buffers only: maximum number of chips; None if not limited.
    max_chips: int | None = None
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: Requests only: node pools in the status of a request that has been served.
    named: tuple[str, ...] = ()

    def is_true(self, condition: str) -> bool:
        """Whether a condition is true in the status."""
        return condition in self.conditions and self.conditions[condition].true


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Owner of groups of pods. The pods end when their owner ends."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: WorkloadUid
    groups: tuple[PodGroup, ...] = ()
    suspended: bool = False
    #: "Completed" or "Failed"; empty if not finished.
    terminal_state: str = ""
    #: Whether deletionTimestamp is set.
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Only annotations that are read.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Controller of the workload, if it is not the usual one of this cluster; otherwise empty.
    managed_by: str = ""
    #: Limit that is exceeded, so that the workload is not served; empty if none.
    problem: str = ""
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: Time at which the workload was last suspended or resumed, by its controller's clock; None if never or unknown.
    suspension_changed_at: datetime | None = None
    #: Requested slices; None for kinds with pods.
    ask: Ask | None = None
    #: Only for kind POD: the controller of the pods; None if the workload is the pod.
    controller: ObjectRef | None = None

    def __str__(self) -> str:
        return f"{self.owner_kind} {self.owner_name}"

    @property
    def full_name(self) -> WorkloadName:
        """Identity among the existing workloads."""
        return WorkloadName(self.kind, self.namespace, self.name)

    @property
    def owner_kind(self) -> str:
        """Kubernetes' kind of the object; for pods with a controller, of the controller."""
        return self.controller.kind if self.controller is not None else self.kind.value

    @property
    def owner_name(self) -> str:
        """Name of the object; for pods with a controller, of the controller."""
        return self.controller.name if self.controller is not None else self.name

    @property
    def finished(self) -> bool:
        """Whether the workload completed or failed permanently."""
        return self.terminal_state != ""

    @property
    def lives(self) -> bool:
        """Whether the workload has pods, or will have: not finished, not suspended, not being deleted."""
        return self.keeps_pools(while_suspended=False)

    def keeps_pools(self, *, while_suspended: bool) -> bool:
        """Whether the workload keeps its pools: it lives, or is suspended and `while_suspended` is true."""
        return not (self.finished or self.deleting or (self.suspended and not while_suspended))


@dataclass(frozen=True, slots=True)
class Workloads:
    """Existing workloads by UID and by name, because some pods and pools contain only the name."""

    by_uid: Mapping[WorkloadUid, Workload]
    uid_of_name: Mapping[tuple[WorkloadKind, str, str], WorkloadUid]

    @classmethod
    def of(cls, by_uid: Mapping[WorkloadUid, Workload]) -> Workloads:
        """Index workloads by name."""
        return cls(by_uid, {each.full_name: uid for uid, each in by_uid.items()})

    def uid_of(self, pod: Pod) -> WorkloadUid | None:
        """Return the UID of a pod's workload; None if none of that name exists, or the pod has another workload UID.

        Pods without a workload UID that are older than the workload belong to an earlier workload of the same name.
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
    """Reference to an object. The reference to a controller comes from a user, and may lack a name or UID."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str

    @property
    def type(self) -> tuple[str, str]:
        """API version and kind."""
        return self.api_version, self.kind


def pod_ref(pod: Pod) -> ObjectRef:
    """Return the reference of a pod, or of the requesting object if the pod only represents a slice."""
    if not pod.kind.has_pods:
        kind, uid = pod.kind, pod.workload_uid
        return ObjectRef(
            kind=kind, api_version=kind.api_version, namespace=pod.namespace, name=pod.workload_name, uid=uid
        )
    return ObjectRef(kind="Pod", api_version="v1", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def workload_ref(workload: Workload) -> ObjectRef:
    """Return the reference of a workload; for pods with a controller, the reference of the controller."""
    return workload.controller or ObjectRef(
        kind=workload.kind.value,
        api_version=workload.kind.api_version,
        namespace=workload.namespace,
        name=workload.name,
        uid=workload.uid,
    )
