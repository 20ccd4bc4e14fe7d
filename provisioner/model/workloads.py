"""Workloads and their pods, narrowed to what decisions need."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, NewType, Self


class WorkloadKind(StrEnum):
    """What a workload is; the value is Kubernetes' own word."""

    #: The API version that is read, with its group.
    api_version: str
    #: What people call one of its groups of pods.
    group_title: str
    #: The field of its specification that says how many pods a group has.
    size_field: str

    JOBSET = "JobSet", "jobset.x-k8s.io/v1alpha2"
    LEADER_WORKER_SET = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "group", "size"
    RAY_CLUSTER = "RayCluster", "ray.io/v1", "replica", "numOfHosts"
    JOB = "Job", "batch/v1"
    PROVISIONING_REQUEST = "ProvisioningRequest", "autoscaling.x-k8s.io/v1", "slice", "count"
    CAPACITY_BUFFER = "CapacityBuffer", "autoscaling.x-k8s.io/v1beta1", "slice", "replicas"

    def __new__(cls, value: str, api_version: str, group_title: str = "job", size_field: str = "parallelism") -> Self:
        """Make a member of its value and what belongs to it."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.api_version, member.group_title, member.size_field = api_version, group_title, size_field
        return member

    # Part of the key of maps; Python's enumerations hash slowly.
    __hash__ = str.__hash__

    @property
    def has_pods(self) -> bool:
        """Whether its objects have pods; the others ask for the capacity alone, by an `Ask`."""
        return self not in (WorkloadKind.PROVISIONING_REQUEST, WorkloadKind.CAPACITY_BUFFER)


WorkloadUid = NewType("WorkloadUid", str)
#: SHA1 hex of "<namespace>/<group name>": the job key of JobSets, the group key of LeaderWorkerSets.
GroupKey = NewType("GroupKey", str)


class WorkloadName(NamedTuple):
    """What tells a workload from all that are there at one time."""

    kind: WorkloadKind
    namespace: str
    name: str

    @property
    def text(self) -> str:
        """The name in messages, such as JobSet research/train."""
        return f"{self.kind.value} {self.namespace}/{self.name}"


@lru_cache(maxsize=65536)
def group_key(namespace: str, group_name: str) -> GroupKey:
    """Compute the key of a group as the JobSet controller does of a child Job: the same over restarts."""
    text = f"{namespace}/{group_name}".encode("utf-8", "surrogatepass")
    return GroupKey(hashlib.sha1(text, usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """One toleration of a pod; empty strings match everything, as in Kubernetes."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """One requirement of a node selector term; `on_field` marks matchFields, whose only key is metadata.name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    on_field: bool = False


#: All expressions of one term must hold; any one term of a pod suffices.
Term = tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What one pod asks of a node: a pod's own spec, or the template of a replicated job."""

    chips: int = 0
    #: Whether ResourceClaims request all chips of the host; then `chips` is their number by the catalogue when read.
    claims: bool = False
    cpu_millicores: int = 0
    memory_bytes: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)
    #: requiredDuringSchedulingIgnoredDuringExecution; empty means no constraint.
    affinity_terms: tuple[Term, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Only those that are read (`constants.READ_ANNOTATIONS`).
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Which bound is exceeded, so that this is not all of it; empty for none.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that asks for chips and says that it is a workload's; `Workloads.uid_of` tells whether that is so."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: str
    #: By a label that whoever makes the pod can write.
    workload_name: str
    #: Likewise; empty where pods of the kind, or of the installed release, do not carry it.
    workload_uid: str = ""
    #: The group that controls the pod by its owner reference, for a JobSet the child Job; empty where none does.
    group_name: str = ""
    #: Likewise.
    group_key: GroupKey
    #: The place in the group, 0 for the leader; None where nothing tells it.
    completion_index: int | None = None
    #: Pods of its group, where that may differ from what the workload says now; 0 where it cannot.
    group_size: int = 0
    phase: str = "Pending"
    #: Empty until the pod is bound.
    node_name: str = ""
    requirements: Requirements
    #: spec.priority, which its PriorityClass sets; 0 if it has none.
    priority: int = 0
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: Since when the scheduler says PodScheduled=False with reason Unschedulable; None when it does not.
    unschedulable_since: datetime | None = None
    #: The scheduler's own words.
    unschedulable_message: str = ""
    #: It is of a gang that the scheduler does not look at before enough of its pods are there.
    gated: bool = False
    #: deletionTimestamp: for pods the moment at which the grace ends.
    deletion_deadline: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether the pod will never run (again)."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Groups of pods that are alike: of a JobSet one entry of spec.replicatedJobs, each child Job a group."""

    #: Empty where all groups of a workload are alike.
    name: str
    replicas: int
    #: Groups beyond the replicas that may exist for a while, as during a rolling update: their pods alone tell of them.
    surge: int = 0
    #: Whether the name of each group ends with its number; where not, there is one, with the workload's own name.
    numbered: bool = True
    #: The group without chips whose pods have to be ready before there are any of this one; empty for none.
    after: str = ""
    #: Whether groups have whatever numbers are free: of those without pods as many count as are missing.
    any_number: bool = False
    #: Whether the lowest index that is left leads, and not 0 alone: pods come at once, and end and return one by one.
    lowest_leads: bool = False
    #: Number of groups that have succeeded, and get pods again only if the workload restarts.
    succeeded: int = 0
    #: activeDeadlineSeconds of its Job; 0 for none.
    deadline_seconds: int = 0
    #: Whether JobSet lets the pods of each child Job select nodes that are labelled with the name of the Job.
    selects_job_nodes: bool = False
    #: Pods of a group.
    parallelism: int
    template: Requirements


class Condition(NamedTuple):
    """A condition of a status."""

    true: bool
    reason: str = ""
    message: str = ""
    #: Of its last transition; None where the status does not say.
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a ProvisioningRequest or a CapacityBuffer asks for, before its templates are read, and its status."""

    resource_version: str
    #: PodTemplates of its namespace, each with a number: of pods for a request; of slices for a buffer, None for all
    #: that its other fields allow.
    pod_sets: tuple[tuple[str, int | None], ...] = ()
    #: Of a buffer: API group, kind and name of the workload whose slices it is to be like.
    scalable: tuple[str, str, str] = ("", "", "")
    #: Of a buffer: how much of that workload's slices.
    percentage: int | None = None
    #: Of a buffer: the most chips; None for no bound.
    most_chips: int | None = None
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: Of a request that has been served: its node pools, by its status.
    named: tuple[str, ...] = ()

    def is_true(self, condition: str) -> bool:
        """Whether the status has a condition that is true."""
        return condition in self.conditions and self.conditions[condition].true


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What groups of pods belong to, and end with."""

    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    name: str
    uid: WorkloadUid
    groups: tuple[PodGroup, ...] = ()
    suspended: bool = False
    #: "Completed", "Failed" or "" while it lives.
    terminal_state: str = ""
    #: deletionTimestamp is set.
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Only those that are read.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: The controller that runs it, where that is not the usual one of this cluster; else empty.
    managed_by: str = ""
    #: Which bound is exceeded, so that it is not served; empty for none.
    problem: str = ""
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    #: When it was last suspended or resumed, by the clock of its controller; None: it never was, or nobody tells.
    suspension_changed_at: datetime | None = None
    #: Of a kind without pods.
    ask: Ask | None = None

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"

    @property
    def full_name(self) -> WorkloadName:
        """What tells it from all that are there."""
        return WorkloadName(self.kind, self.namespace, self.name)

    @property
    def finished(self) -> bool:
        """Whether it completed or failed for good."""
        return self.terminal_state != ""

    @property
    def lives(self) -> bool:
        """Whether it has pods, or will have: not finished, not suspended, not being deleted."""
        return self.keeps_pools(while_suspended=False)

    def keeps_pools(self, *, while_suspended: bool) -> bool:
        """Whether its pools are for it still: it lives, or it is only suspended and keeps them `while_suspended`."""
        return not (self.finished or self.deleting or (self.suspended and not while_suspended))


@dataclass(frozen=True, slots=True)
class Workloads:
    """The workloads that are there, also by name: some pods and pools tell no more than that."""

    by_uid: Mapping[WorkloadUid, Workload]
    #: By `WorkloadName`.
    uid_of_name: Mapping[tuple[WorkloadKind, str, str], WorkloadUid]

    @classmethod
    def of(cls, by_uid: Mapping[WorkloadUid, Workload]) -> Workloads:
        """Index them by name."""
        return cls(by_uid, {each.full_name: uid for uid, each in by_uid.items()})

    def uid_of(self, pod: Pod) -> WorkloadUid | None:
        """Return the workload of a pod; None where it is not there, or is another one than the pod names.

        Pods that name no UID and are older than the workload are left from an earlier one of that name.
        """
        uid = self.uid_of_name.get((pod.kind, pod.namespace, pod.workload_name))
        if uid is None or pod.workload_uid == uid:
            return uid
        return uid if not pod.workload_uid and pod.created_at >= self.by_uid[uid].created_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Points an Event at its object."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str


def pod_ref(pod: Pod) -> ObjectRef:
    """Return the reference of a pod; for a leader pod that only stands for a slice, of what asks for that."""
    if not pod.kind.has_pods:
        kind, uid = pod.kind, pod.workload_uid
        return ObjectRef(
            kind=kind, api_version=kind.api_version, namespace=pod.namespace, name=pod.workload_name, uid=uid
        )
    return ObjectRef(kind="Pod", api_version="v1", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def workload_ref(workload: Workload) -> ObjectRef:
    """Return the reference of a workload."""
    return ObjectRef(
        kind=workload.kind.value,
        api_version=workload.kind.api_version,
        namespace=workload.namespace,
        name=workload.name,
        uid=workload.uid,
    )
