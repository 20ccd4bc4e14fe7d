"""Workloads and pods of the simulated world, and their API objects."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from provisioner import constants
from provisioner.kube.fields import format_time
from provisioner.kube.protocol import JsonObject, object_path
from provisioner.model.workloads import WorkloadKind, WorkloadUid, group_key
from provisioner.slices.demand import SliceId
from provisioner.workloads import JOBSET, Kind
from tests.support.objects import job_reference
from tests.support.simulations.stage import Agenda

if TYPE_CHECKING:
    from tests.simulation.deployments import Controller

NAMESPACE = "research"
HOSTILE_NAMESPACE = "mallory"
#: Namespace of further honest workloads in runs with the placement policy.
SECOND_NAMESPACE = "lab"
#: Namespace of foreign pods, unless their creator gives another namespace.
OTHER_NAMESPACE = "other"
#: Namespace of the Deployments and StatefulSets of most runs that have them.
POD_NAMESPACE = "apps"
#: Label of nodes that names the slice; a copy, so that a wrong constant of the product is found.
SLICE = "tpu-provisioner/slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Pods and machines of a slice."""

    accelerator: str
    topology: str
    hosts: int
    chips: int
    parallelism: int
    spot: bool = False
    #: Whether the pods may run on spot nodes and on other nodes.
    tolerant: bool = False
    feasible: bool = True

    def selector(self) -> dict[str, str]:
        selector = {constants.TPU_TOPOLOGY: self.topology}
        if self.accelerator:
            selector[constants.TPU_ACCELERATOR] = self.accelerator
        if self.spot:
            selector[constants.SPOT] = "true"
        return selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Workload that a pod of another namespace claims to belong to."""

    workload: WorkloadRun
    job: int
    #: Whether an object in the pod's own namespace controls the pod and has the name of the workload's child object.
    controlled: bool


@dataclass(eq=False, slots=True, kw_only=True)
class PodRun:
    """State of a pod in the simulated world."""

    name: str
    namespace: str = NAMESPACE
    uid: str
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
    message: str = "0 nodes are available"
    bound_at: float = 0.0
    #: Node that the scheduler has chosen, from its decision until the binding; empty otherwise.
    assigned: str = ""
    #: Time of the scheduler's decision if the binding takes effect later; 0 otherwise.
    assigned_at: float = 0.0
    #: Leader that a worker of a LeaderWorkerSet was created for; None for other pods.
    leader: PodRun | None = None
    #: Name of the replica of a worker of a RayCluster; empty for other pods.
    replica: str = ""
    priority: int = 0
    #: Whether the placement policy reviewed the pod when it was created.
    reviewed: bool = False
    #: Whether a node affinity keeps the pod off all nodes that have the label `SLICE`.
    kept_off: bool = False
    tolerates_all: bool = False
    #: Controller of a pod without a workload, such as a ReplicaSet; None for other pods.
    owner: Controller | None = None
    #: Metadata of a pod without a workload, in addition to its name, namespace, UID and creation time.
    metadata: JsonObject = field(default_factory=dict)
    #: Requests of a pod without a workload in addition to chips, and whether the scheduler can bind it.
    requests: dict[str, str] = field(default_factory=dict)
    bindable: bool = True
    #: Deletion cost that a process has written (empty if none), and the time of the write.
    cost: str = ""
    cost_at: float = 0.0
    #: Whether a finalizer keeps the object (`held`), and whether the object is removed with the finalizer (`due`).
    held: bool = False
    due: bool = False
    gone: bool = False

    @property
    def path(self) -> str:
        return object_path("pods", self.name, namespace=self.namespace)

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def blocks(self, now: float) -> bool:
        """Whether the pod is bound, unfinished, no guest and not past a grace period, so that its node must stay."""
        unfinished = not (self.gone or self.finished or self.is_guest) and self.node != ""
        return unfinished and (self.deadline is None or self.deadline > now)

    @property
    def is_guest(self) -> bool:
        """Whether the pod has neither chips nor marks, so that its pool may be deleted anyway."""
        return not self.shape.chips and SLICE not in self.selector


@dataclass(eq=False, slots=True, kw_only=True)
class WorkloadRun(abc.ABC):
    """State of one workload; a recreated workload of the same name has another WorkloadRun."""

    of: ClassVar[Kind]
    name: str
    uid: str
    shape: Shape
    replicas: int
    #: How the workload ends: "complete", "fail" or "forever" (never).
    fate: str
    created: float
    #: Whether the pods have a label with the UID of the workload.
    labels_uid: bool
    namespace: str = NAMESPACE
    #: Service account that the pods request for their nodes; empty for the default.
    service_account: str = ""
    networks: str = ""
    #: Whether the scheduler can bind the pods; False has the effect of a missing volume.
    bindable: bool = True
    #: Requests of the pods in addition to chips.
    requests: dict[str, str] = field(default_factory=dict)
    #: Whether the workload requests that its slices start together (`together`), and whether they do so (`gang`).
    together: bool = False
    gang: bool = False
    #: Whether the pods keep other slices off their pools, in addition to the placement policy.
    exclusive: bool = True
    priority: int = 0
    #: Selectors of the pods in addition to the selectors of the shape, such as forged marks.
    extra_selector: dict[str, str] = field(default_factory=dict)
    suspended: bool = False
    suspended_at: float | None = None
    deleting: bool = False
    terminal: str = ""
    restarting: bool = False
    gone: bool = False
    pods: dict[tuple[int, int], PodRun] = field(default_factory=dict)
    ended_jobs: set[int] = field(default_factory=set)
    changed: dict[int, float] = field(default_factory=dict)
    #: Pool that each slice's pods were last bound to, and the time.
    last_pool: dict[int, str] = field(default_factory=dict)
    last_bound_at: dict[int, float] = field(default_factory=dict)
    #: Whether the placement policy reviewed the last bound pod of each slice.
    last_reviewed: dict[int, bool] = field(default_factory=dict)
    #: Time at which each slice last stopped needing a pool.
    released_at: dict[int, float] = field(default_factory=dict)
    #: All pools to which pods of the workload were ever bound.
    pools: set[str] = field(default_factory=set)
    sync_due: bool = False
    #: All shapes that slices of the workload have had, and maximum number of slices.
    shapes: set[Shape] = field(default_factory=set)
    max_replicas: int = 0

    @property
    def kind(self) -> WorkloadKind:
        return self.of.kind

    @property
    def path(self) -> str:
        return object_path(self.of.resource, self.name, namespace=self.namespace, root=self.of.root)

    @property
    def alive(self) -> bool:
        """Whether the slices of the workload need pools."""
        return not (self.gone or self.deleting or self.suspended or self.terminal)

    @abc.abstractmethod
    def group_name(self, job: int) -> str:
        """Return the name of a child Job or a group."""

    @abc.abstractmethod
    def raw(self, agenda: Agenda) -> JsonObject:
        """Return the object as the API server shows it."""

    @abc.abstractmethod
    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        """Return the metadata of a pod that identifies its workload and group."""

    @property
    def separate(self) -> bool:
        """Whether the pods select nodes that are labelled with the name of the workload."""
        return self.gang and self.exclusive

    def leader(self, job: int) -> PodRun | None:
        return self.pods.get((job, 0))

    def pods_due(self, job: int) -> int:
        return self.shape_of(job).parallelism

    def slots(self) -> Sequence[int]:
        return range(self.replicas)

    def shape_of(self, job: int) -> Shape:
        return self.shape

    def pod_shape(self, job: int, index: int) -> Shape:
        return self.shape_of(job)

    def selector(self, job: int) -> dict[str, str]:
        """Return the nodeSelector of a slice's pods, with the name of the workload if the workload is `separate`."""
        return self._selector(self.shape_of(job))

    def _selector(self, shape: Shape) -> dict[str, str]:
        own = {constants.LEGACY_POOL_ID: self.name} if self.separate else {}
        return shape.selector() | own | self.extra_selector

    def pod_annotations(self) -> dict[str, str]:
        account = {constants.NODE_SERVICE_ACCOUNT: self.service_account} if self.service_account else {}
        return account | ({constants.ADDITIONAL_NODE_NETWORKS: self.networks} if self.networks else {})

    def slice_id(self, job: int) -> SliceId:
        return SliceId(workload_uid=WorkloadUid(self.uid), group_key=group_key(self.namespace, self.group_name(job)))

    def exclusive_key(self, pod: PodRun) -> object:
        return self, pod.job

    def touch(self, now: float, job: int | None = None) -> None:
        """Record a change of a slice; None means all slices."""
        self.shapes.add(self.shape)
        self.max_replicas = max(self.max_replicas, len(self.slots()))
        for slot in self.slots() if job is None else (job,):
            self.changed[slot] = now

    def release(self, now: float, job: int | None = None) -> None:
        """Record that a slice no longer needs a pool; None means all slices."""
        for slot in self.slots() if job is None else (job,):
            self.released_at[slot] = now

    def suspension(self, agenda: Agenda) -> list[JsonObject]:
        """Return the condition Suspended, which a resumption does not change; empty before the first suspension."""
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
    """A JobSet whose slices are the child Jobs of the replicated Job "workers"."""

    of = JOBSET
    run_seconds: float
    restarts_left: int
    ordered: bool
    attempt: int = 0

    def group_name(self, job: int) -> str:
        return f"{self.name}-workers-{job}"

    def raw(self, agenda: Agenda) -> JsonObject:
        metadata = self._metadata(agenda)
        exclusive = {constants.EXCLUSIVE_TOPOLOGY: constants.NODE_POOL} if self.exclusive else {}
        metadata["annotations"] = exclusive | ({constants.ALL_OR_NOTHING: "true"} if self.together else {})
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
        return "workers"

    def _jobs(self) -> list[JsonObject]:
        template = {"spec": {"parallelism": self.shape.parallelism, "template": self._template()}}
        return [{"name": "workers", "replicas": self.replicas, "template": template}]

    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        labels = {
            constants.JOBSET_NAME: self.name,
            constants.JOB_KEY: self.slice_id(job).group_key,
            constants.JOB_NAME: self.group_name(job),
            constants.COMPLETION_INDEX: str(index),
            constants.RESTART_ATTEMPT: str(self.attempt),
            # This label has the UID of the child Job, which changes with each restart.
            constants.CONTROLLER_UID: f"job-{self.uid}-{job}-{self.attempt}",
        }
        marks: JsonObject = {"labels": labels | ({constants.JOBSET_UID: self.uid} if self.labels_uid else {})}
        return marks | ({"ownerReferences": [job_reference(self.group_name(job))]} if controlled else {})


@dataclass(eq=False, slots=True, kw_only=True)
class MixedRun(JobSetRun):
    """A JobSet of two replicated Jobs, whose last slice has another shape."""

    other_shape: Shape

    def shape_of(self, job: int) -> Shape:
        return self.shape if job < self.replicas - 1 else self.other_shape

    def group_name(self, job: int) -> str:
        return f"{self.name}-workers-{job}" if job < self.replicas - 1 else f"{self.name}-others-0"

    def _job_of(self, job: int) -> str:
        return "workers" if job < self.replicas - 1 else "others"

    def touch(self, now: float, job: int | None = None) -> None:
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
    metadata |= pod.metadata
    if pod.cost:
        metadata["annotations"] = {**metadata.get("annotations", {}), constants.POD_DELETION_COST: pod.cost}
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
                "message": pod.message,
                "lastTransitionTime": since,
            }
        ]
    spec = {**pod_spec(pod.shape), "nodeSelector": pod.selector, "priority": pod.priority}
    spec["containers"][0]["resources"]["requests"] |= pod.workload.requests if pod.workload else pod.requests
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
    spot = shape.spot or shape.tolerant
    tolerations = [{"key": constants.SPOT, "operator": "Exists"}] if spot else []
    chips = {constants.TPU_RESOURCE: str(shape.chips)} if shape.chips else {}
    return {
        "nodeSelector": shape.selector(),
        "tolerations": [*tolerations, {"key": constants.TPU_RESOURCE, "operator": "Exists"}],
        "containers": [{"name": "main", "resources": {"requests": chips}}],
    }
