"""JobSets and pods as they really are, and as the API server shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from provisioner import constants
from provisioner.kube.protocol import JOBSETS_ROOT, JsonObject, object_path
from provisioner.kube.quantities import format_time
from provisioner.model.workloads import WorkloadUid, group_key
from provisioner.slices.demand import SliceId
from tests.kube.builders import job_reference
from tests.simulation.agenda import Agenda

NAMESPACE = "research"


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

    workload: JobSetRun
    job: int
    #: A Job of the same name controls it, in its own namespace.
    of_a_job: bool


@dataclass(eq=False, slots=True, kw_only=True)
class PodRun:
    """A pod as it really is."""

    name: str
    namespace: str = NAMESPACE
    uid: str
    #: None for a pod that no JobSet made.
    workload: JobSetRun | None
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
class JobSetRun:
    """A JobSet as it really is: one incarnation."""

    name: str
    uid: str
    shape: Shape
    replicas: int
    run_seconds: float
    #: complete, fail, forever
    fate: str
    restarts_left: int
    ordered: bool
    created: float
    labels_uid: bool
    #: Of the nodes that its pods ask for; empty for the default.
    service_account: str = ""
    #: Its slices start together.
    gang: bool = False
    suspended: bool = False
    deleting: bool = False
    terminal: str = ""
    restarting: bool = False
    attempt: int = 0
    gone: bool = False
    pods: dict[tuple[int, int], PodRun] = field(default_factory=dict)
    ended_jobs: set[int] = field(default_factory=set)
    #: When anything last happened to each slice.
    changed: dict[int, float] = field(default_factory=dict)
    #: The pool that each slice's pods were last bound to.
    last_pool: dict[int, str] = field(default_factory=dict)
    sync_due: bool = False
    #: What its slices have ever looked like, and how many there have been at most.
    shapes: set[Shape] = field(default_factory=set)
    most_replicas: int = 0

    @property
    def path(self) -> str:
        """Its address."""
        return object_path("jobsets", self.name, namespace=NAMESPACE, root=JOBSETS_ROOT)

    @property
    def alive(self) -> bool:
        """Whether its slices need pools."""
        return not (self.gone or self.deleting or self.suspended or self.terminal)

    def selector(self) -> dict[str, str]:
        """Return its pods' nodeSelector: where its slices start together, no other JobSet's pods fit its nodes."""
        return self.shape.selector() | ({constants.LEGACY_POOL_ID: self.name} if self.gang else {})

    def pod_annotations(self) -> dict[str, str]:
        """Return its pods' annotations."""
        return {constants.NODE_SERVICE_ACCOUNT: self.service_account} if self.service_account else {}

    def group_name(self, job: int) -> str:
        """Name a child Job."""
        return f"{self.name}-workers-{job}"

    def slice_id(self, job: int) -> SliceId:
        """Identify a slice as the provisioner does."""
        return SliceId(workload_uid=WorkloadUid(self.uid), group_key=group_key(NAMESPACE, self.group_name(job)))

    def touch(self, now: float, job: int | None = None) -> None:
        """Note that something happened to one slice, or all."""
        self.shapes.add(self.shape)
        self.most_replicas = max(self.most_replicas, self.replicas)
        for each in range(self.replicas) if job is None else (job,):
            self.changed[each] = now


def raw_jobset(workload: JobSetRun, agenda: Agenda) -> JsonObject:
    """Return the object as the API server shows it."""
    metadata: dict[str, Any] = {
        "name": workload.name,
        "namespace": NAMESPACE,
        "uid": workload.uid,
        "creationTimestamp": format_time(agenda.wall(workload.created - agenda.now)),
    }
    if workload.gang:
        metadata["annotations"] = {constants.ALL_OR_NOTHING: "true"}
    if workload.deleting:
        metadata["deletionTimestamp"] = format_time(agenda.wall())
    template = {
        "spec": {
            "parallelism": workload.shape.parallelism,
            "template": {
                "metadata": {"annotations": workload.pod_annotations()},
                "spec": {**_pod_spec(workload.shape), "nodeSelector": workload.selector()},
            },
        }
    }
    helper = {"spec": {"parallelism": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}}
    return {
        "metadata": metadata,
        "spec": {
            "suspend": workload.suspended,
            "replicatedJobs": [
                {"name": "workers", "replicas": workload.replicas, "template": template},
                {"name": "coordinator", "replicas": 1, "template": helper},
            ],
        },
        "status": {"terminalState": workload.terminal} if workload.terminal else {},
    }


def raw_pod(pod: PodRun, agenda: Agenda) -> JsonObject:
    """Return the object as the API server shows it."""
    metadata: dict[str, Any] = {
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "creationTimestamp": format_time(agenda.wall(pod.created - agenda.now)),
    }
    if pod.workload is not None:
        metadata["labels"] = _labels(pod.workload, pod.job, pod.index)
        metadata["annotations"] = pod.workload.pod_annotations()
        metadata["ownerReferences"] = [job_reference(pod.workload.group_name(pod.job))]
    elif pod.claim is not None:
        metadata["labels"] = _labels(pod.claim.workload, pod.claim.job, pod.index)
        if pod.claim.of_a_job:
            metadata["ownerReferences"] = [job_reference(pod.claim.workload.group_name(pod.claim.job))]
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
    spec = {**_pod_spec(pod.shape), "nodeSelector": pod.selector}
    if pod.node:
        spec["nodeName"] = pod.node
    return {"metadata": metadata, "spec": spec, "status": status}


def _labels(workload: JobSetRun, job: int, index: int) -> dict[str, str]:
    labels = {
        constants.JOBSET_NAME: workload.name,
        constants.JOB_KEY: workload.slice_id(job).group_key,
        constants.JOB_NAME: workload.group_name(job),
        constants.COMPLETION_INDEX: str(index),
        constants.RESTART_ATTEMPT: str(workload.attempt),
    }
    return labels | ({constants.JOBSET_UID: workload.uid} if workload.labels_uid else {})


def _pod_spec(shape: Shape) -> dict[str, Any]:
    spot = shape.spot or shape.tolerant
    tolerations = [{"key": constants.SPOT, "operator": "Exists"}] if spot else []
    return {
        "nodeSelector": shape.selector(),
        "tolerations": [*tolerations, {"key": constants.TPU_RESOURCE, "operator": "Exists"}],
        "containers": [{"name": "main", "resources": {"requests": {constants.TPU_RESOURCE: str(shape.chips)}}}],
    }
