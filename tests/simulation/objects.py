"""Workloads and pods as they really are, and as the API server shows them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from provisioner import constants
from provisioner.kube.fields import format_time
from provisioner.kube.protocol import JsonObject, object_path
from provisioner.model.workloads import WorkloadKind, WorkloadUid, group_key
from provisioner.slices.demand import SliceId
from provisioner.workloads import JOBSET, Kind
from tests.support.objects import job_reference
from tests.support.simulations.stage import Agenda

NAMESPACE = "research"
HOSTILE_NAMESPACE = "mallory"
#: Of more honest workloads in runs with the placement policy.
SECOND_NAMESPACE = "lab"
#: Of pods that no workload made.
OTHER_NAMESPACE = "other"
#: Label of nodes that names the slice; the simulation has its own copy.
SLICE = "tpu-provisioner/slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the pods of a JobSet ask for."""

    accelerator: str
    topology: str
    hosts: int
    chips: int
    parallelism: int
    spot: bool = False
    #: Its pods run on spot nodes as well as on others.
    tolerant: bool = False
    feasible: bool = True

    def selector(self) -> dict[str, str]:
        """Return the pods' nodeSelector."""
        selector = {constants.TPU_TOPOLOGY: self.topology}
        if self.accelerator:
            selector[constants.TPU_ACCELERATOR] = self.accelerator
        if self.spot:
            selector[constants.SPOT] = "true"
        return selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Whose pod a pod of another namespace says that it is."""

    workload: WorkloadRun
    job: int
    #: What has the name of the workload's own controls it, in its own namespace.
    controlled: bool


@dataclass(eq=False, slots=True, kw_only=True)
class PodRun:
    """A pod as it really is."""

    name: str
    namespace: str = NAMESPACE
    uid: str
    #: None for a pod that no workload made.
    workload: WorkloadRun | None
    claim: Claim | None = None
    job: int = 0
    index: int = 0
    shape: Shape
    selector: dict[str, str]
    created: float
    node: str = ""
    pool: str = ""
    phase: str = "Pending"
    deadline: float | None = None
    waiting_since: float | None = None
    bound_at: float = 0.0
    #: Where the scheduler wants it, from its decision until it is bound.
    assigned: str = ""
    #: When the scheduler decided, where it binds later; else 0.
    assigned_at: float = 0.0
    #: Of a worker of a LeaderWorkerSet: the leader that it was made for.
    leader: PodRun | None = None
    #: Of a worker of a RayCluster: the name of its replica.
    replica: str = ""
    #: Priority, which its PriorityClass sets.
    priority: int = 0
    #: Whether the placement policy was installed when it was created.
    reviewed: bool = False
    #: Whether a node affinity keeps it off all nodes that have the label of a slice.
    kept_off: bool = False
    #: Whether it tolerates every taint.
    tolerates_all: bool = False
    #: A finalizer keeps the object, and it is due to go.
    held: bool = False
    due: bool = False
    gone: bool = False

    @property
    def path(self) -> str:
        """Its address."""
        return object_path("pods", self.name, namespace=self.namespace)

    @property
    def finished(self) -> bool:
        """Whether it will never run again."""
        return self.phase in ("Succeeded", "Failed")

    def blocks(self, now: float) -> bool:
        """Whether nobody may take its node away: unfinished, bound, not past its grace."""
        return (
            not self.gone and not self.finished and self.node != "" and (self.deadline is None or self.deadline > now)
        )


@dataclass(eq=False, slots=True, kw_only=True)
class WorkloadRun(abc.ABC):
    """A workload as it really is: one incarnation."""

    of: ClassVar[Kind]
    name: str
    uid: str
    shape: Shape
    replicas: int
    #: complete, fail, forever
    fate: str
    created: float
    #: Its pods say its UID.
    labels_uid: bool
    namespace: str = NAMESPACE
    #: Of the nodes that its pods ask for; empty for the default.
    service_account: str = ""
    #: That the nodes need besides, as its pods ask for them.
    networks: str = ""
    #: Whether the scheduler can bind its pods: not where a volume is missing.
    bindable: bool = True
    #: Whether it asks that its slices start together, and whether they do: only those with marked pods.
    together: bool = False
    gang: bool = False
    #: Whether its pods themselves keep other slices off their pools, beside the placement policy.
    exclusive: bool = True
    #: Priority of its pods.
    priority: int = 0
    #: Selectors of its pods beside those of its shape, such as forged marks.
    extra_selector: dict[str, str] = field(default_factory=dict)
    suspended: bool = False
    #: When it was last suspended.
    suspended_at: float | None = None
    deleting: bool = False
    terminal: str = ""
    restarting: bool = False
    gone: bool = False
    pods: dict[tuple[int, int], PodRun] = field(default_factory=dict)
    ended_jobs: set[int] = field(default_factory=set)
    #: When anything last happened to each slice.
    changed: dict[int, float] = field(default_factory=dict)
    #: The pool that each slice's pods were last bound to, and when.
    last_pool: dict[int, str] = field(default_factory=dict)
    last_bound_at: dict[int, float] = field(default_factory=dict)
    #: Whether the pod of each slice that was bound last is one that the placement policy has seen.
    last_reviewed: dict[int, bool] = field(default_factory=dict)
    #: When each slice last ceased to need a pool.
    released_at: dict[int, float] = field(default_factory=dict)
    #: All that pods of it were ever bound to.
    pools: set[str] = field(default_factory=set)
    sync_due: bool = False
    #: What its slices have ever looked like, and how many there have been at most.
    shapes: set[Shape] = field(default_factory=set)
    most_replicas: int = 0

    @property
    def kind(self) -> WorkloadKind:
        """What it is."""
        return self.of.kind

    @property
    def path(self) -> str:
        """Its address."""
        return object_path(self.of.resource, self.name, namespace=self.namespace, root=self.of.root)

    @property
    def alive(self) -> bool:
        """Whether its slices need pools."""
        return not (self.gone or self.deleting or self.suspended or self.terminal)

    @abc.abstractmethod
    def group_name(self, job: int) -> str:
        """Name a child Job, or a group."""

    @abc.abstractmethod
    def raw(self, agenda: Agenda) -> JsonObject:
        """Return the object as the API server shows it."""

    @abc.abstractmethod
    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        """Return what the metadata of its pods say of whose they are."""

    @property
    def separate(self) -> bool:
        """Whether its pods select nodes that are marked with its name."""
        return self.gang and self.exclusive

    def leader(self, job: int) -> PodRun | None:
        """Return the pod that leads a slice."""
        return self.pods.get((job, 0))

    def pods_due(self, job: int) -> int:
        """Return how many pods a slice has when all of it runs."""
        return self.shape_of(job).parallelism

    def slots(self) -> Sequence[int]:
        """List the places of its slices."""
        return range(self.replicas)

    def shape_of(self, job: int) -> Shape:
        """Return what the pods of one slice ask for."""
        return self.shape

    def selector(self, job: int) -> dict[str, str]:
        """Return its pods' nodeSelector: where its slices start together, no other workload's pods fit its nodes."""
        return self._selector(self.shape_of(job))

    def _selector(self, shape: Shape) -> dict[str, str]:
        own = {constants.LEGACY_POOL_ID: self.name} if self.separate else {}
        return shape.selector() | own | self.extra_selector

    def pod_annotations(self) -> dict[str, str]:
        """Return its pods' annotations."""
        account = {constants.NODE_SERVICE_ACCOUNT: self.service_account} if self.service_account else {}
        return account | ({constants.ADDITIONAL_NODE_NETWORKS: self.networks} if self.networks else {})

    def slice_id(self, job: int) -> SliceId:
        """Identify a slice as the provisioner does."""
        return SliceId(workload_uid=WorkloadUid(self.uid), group_key=group_key(self.namespace, self.group_name(job)))

    def exclusive_key(self, pod: PodRun) -> object:
        """Return what pods have in common that may share a pool."""
        return self, pod.job

    def touch(self, now: float, job: int | None = None) -> None:
        """Note that something happened to one slice, or all."""
        self.shapes.add(self.shape)
        self.most_replicas = max(self.most_replicas, len(self.slots()))
        for each in self.slots() if job is None else (job,):
            self.changed[each] = now

    def release(self, now: float, job: int | None = None) -> None:
        """Note that one slice, or all, cease to need their pools."""
        for each in self.slots() if job is None else (job,):
            self.released_at[each] = now

    def suspension(self, agenda: Agenda) -> list[JsonObject]:
        """Return the condition that tells of it, as its controller has written it: a resumption is not told yet."""
        if self.suspended_at is None:
            return []
        since = format_time(agenda.wall(self.suspended_at - agenda.now))
        return [{"type": "Suspended", "status": "True", "lastTransitionTime": since}]

    def _metadata(self, agenda: Agenda) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
            "creationTimestamp": format_time(agenda.wall(self.created - agenda.now)),
        }
        if self.deleting:
            metadata["deletionTimestamp"] = format_time(agenda.wall())
        return metadata

    def _template(self, shape: Shape | None = None) -> dict[str, Any]:
        shape = shape or self.shape
        return {
            "metadata": {"annotations": self.pod_annotations()},
            "spec": {**pod_spec(shape), "nodeSelector": self._selector(shape)},
        }


@dataclass(eq=False, slots=True, kw_only=True)
class JobSetRun(WorkloadRun):
    """A JobSet: its child Jobs come to an end."""

    of = JOBSET
    run_seconds: float
    restarts_left: int
    ordered: bool
    attempt: int = 0

    def group_name(self, job: int) -> str:
        """Name a child Job."""
        return f"{self.name}-workers-{job}"

    def raw(self, agenda: Agenda) -> JsonObject:
        """Return the object as the API server shows it."""
        metadata = self._metadata(agenda)
        if self.together:
            metadata["annotations"] = {constants.ALL_OR_NOTHING: "true"}
        helper = {"spec": {"parallelism": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}}
        return {
            "metadata": metadata,
            "spec": {
                "suspend": self.suspended,
                "replicatedJobs": [
                    *self._jobs(),
                    {"name": "coordinator", "replicas": 1, "template": helper},
                ],
            },
            "status": {
                "replicatedJobsStatus": [
                    {"name": name, "succeeded": sum(self._job_of(job) == name for job in self.ended_jobs)}
                    for name in (job["name"] for job in self._jobs())
                ],
                **({"terminalState": self.terminal} if self.terminal else {}),
                "conditions": self.suspension(agenda),
            },
        }

    def _job_of(self, job: int) -> str:
        """Return the name of the replicated Job that a child Job comes from."""
        return "workers"

    def _jobs(self) -> list[JsonObject]:
        template = {"spec": {"parallelism": self.shape.parallelism, "template": self._template()}}
        return [{"name": "workers", "replicas": self.replicas, "template": template}]

    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        """Return what the metadata of its pods say of whose they are."""
        labels = {
            constants.JOBSET_NAME: self.name,
            constants.JOB_KEY: self.slice_id(job).group_key,
            constants.JOB_NAME: self.group_name(job),
            constants.COMPLETION_INDEX: str(index),
            constants.RESTART_ATTEMPT: str(self.attempt),
            # The Job's own, which is another after each restart.
            constants.CONTROLLER_UID: f"job-{self.uid}-{job}-{self.attempt}",
        }
        marks: JsonObject = {"labels": labels | ({constants.JOBSET_UID: self.uid} if self.labels_uid else {})}
        return marks | ({"ownerReferences": [job_reference(self.group_name(job))]} if controlled else {})


@dataclass(eq=False, slots=True, kw_only=True)
class MixedRun(JobSetRun):
    """A JobSet of two replicated Jobs: its last slice is of another shape."""

    other_shape: Shape

    def shape_of(self, job: int) -> Shape:
        """Return what the pods of one slice ask for."""
        return self.shape if job < self.replicas - 1 else self.other_shape

    def group_name(self, job: int) -> str:
        """Name a child Job."""
        return f"{self.name}-workers-{job}" if job < self.replicas - 1 else f"{self.name}-others-0"

    def _job_of(self, job: int) -> str:
        """Return the name of the replicated Job that a child Job comes from."""
        return "workers" if job < self.replicas - 1 else "others"

    def touch(self, now: float, job: int | None = None) -> None:
        """Note that something happened to one slice, or all."""
        JobSetRun.touch(self, now, job)
        self.shapes.add(self.other_shape)

    def _jobs(self) -> list[JsonObject]:
        return [
            {
                "name": name,
                "replicas": replicas,
                "template": {"spec": {"parallelism": parallelism, "template": template}},
            }
            for name, replicas, parallelism, template in (
                ("workers", self.replicas - 1, self.shape.parallelism, self._template()),
                ("others", 1, self.other_shape.parallelism, self._template(self.other_shape)),
            )
        ]


def raw_pod(pod: PodRun, agenda: Agenda) -> JsonObject:
    """Return the object as the API server shows it."""
    metadata: dict[str, Any] = {
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "creationTimestamp": format_time(agenda.wall(pod.created - agenda.now)),
    }
    if pod.workload is not None:
        metadata |= pod.workload.marks(pod.job, pod.index)
        if pod.replica:
            metadata["labels"] |= {constants.RAY_REPLICA_NAME: pod.replica}
        metadata["annotations"] = metadata.get("annotations", {}) | pod.workload.pod_annotations()
    elif pod.claim is not None:
        metadata |= pod.claim.workload.marks(pod.claim.job, pod.index, controlled=pod.claim.controlled)
    if pod.deadline is not None:
        metadata["deletionTimestamp"] = format_time(agenda.wall(pod.deadline - agenda.now))
    status: dict[str, Any] = {"phase": pod.phase}
    if pod.waiting_since is not None and not pod.node:
        since = format_time(agenda.wall(pod.waiting_since - agenda.now))
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0 nodes are available",
                "lastTransitionTime": since,
            }
        ]
    spec = {**pod_spec(pod.shape), "nodeSelector": pod.selector, "priority": pod.priority}
    if pod.node:
        spec["nodeName"] = pod.node
    if pod.tolerates_all:
        spec["tolerations"] = [{"operator": "Exists"}]
    if pod.kept_off:
        terms = [{"matchExpressions": [{"key": SLICE, "operator": "DoesNotExist"}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"metadata": metadata, "spec": spec, "status": status}


def pod_spec(shape: Shape) -> dict[str, Any]:
    """Return what the pods of slices of a shape ask for."""
    spot = shape.spot or shape.tolerant
    tolerations = [{"key": constants.SPOT, "operator": "Exists"}] if spot else []
    return {
        "nodeSelector": shape.selector(),
        "tolerations": [*tolerations, {"key": constants.TPU_RESOURCE, "operator": "Exists"}],
        "containers": [{"name": "main", "resources": {"requests": {constants.TPU_RESOURCE: str(shape.chips)}}}],
    }
