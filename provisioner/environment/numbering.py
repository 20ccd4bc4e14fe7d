"""Computes the index of a pod in its owner, slice or group, and the host names there, from raw JSON. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from provisioner import constants, tpu
from provisioner.environment.pods import NUM_SLICES, TpuPod
from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject
from provisioner.kube.podspec import OF_SLICES, node_selector_of, requested_chips
from provisioner.kube.protocol import object_path
from provisioner.model import bounds
from provisioner.workloads import JOBSET, PLAIN_JOB, RAY_CLUSTER
from provisioner.workloads.job import JOB, pods_of_job
from provisioner.workloads.jobset import DEFAULT_GROUP, JOBSET_TYPE, ended_before, jobs_of_slice
from provisioner.workloads.kind import STATEFUL_SET_TYPE, marked
from provisioner.workloads.leaderworkerset import subgroup_of
from provisioner.workloads.raycluster import RAY_CLUSTER_TYPE, replicas_of

#: First port of the TPU processes of a pod on GKE (libtpu's default).
PROCESS_PORT = 8471
_LWS_PROCESS_PORT = 8476
_NOT_IN_HOST_NAMES = re.compile("[^a-z0-9-]")


class NumberingError(ValueError):
    """The TPU variables of a pod cannot be determined, or exceed a bound; the message has the cause."""


class UnnumberedError(NumberingError):
    """This module cannot number the pods. The pods may need no numbers, or another controller may number them."""


class OwnerKey(NamedTuple):
    """Identifies an owner that has to be read from the API server."""

    #: API version and kind; a key of `_RESOURCES`.
    type: tuple[str, str]
    namespace: str
    name: str
    #: UID of the owner; empty if only the name is known.
    uid: str = ""

    @property
    def title(self) -> str:
        """Kind, namespace and name, for messages."""
        return f"{self.type[1]} {self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """API path of the object."""
        return object_path(_RESOURCES[self.type], self.name, namespace=self.namespace, root=f"/apis/{self.type[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """Indexes and host names of pods of a StatefulSet, Job, JobSet slice, Ray replica or LeaderWorkerSet (sub)group."""

    index: int
    #: Number of pods once all exist. Pods with consecutive indexes form a slice.
    pods: int
    #: The host name of a pod is `prefix`, the sum of `first` and the pod's index, and `suffix`.
    prefix: str
    suffix: str
    first: int = 0
    #: Pods per child Job if several Jobs form a slice; host names then have the numbers of Job and pod. 0 otherwise.
    job_pods: int = 0
    #: Host name of the pod of index 0; empty if it follows from the other fields.
    leader: str = ""
    #: Number of slices of the multislice that precede the pod's slice. Used if `slices` is not 0.
    slices_before: int = 0
    #: Number of slices of the multislice; 0 if it follows from the number of pods.
    slices: int = 0
    #: Host name of worker 0 of slice 0; empty if this worker is the pod of index 0.
    coordinator: str = ""
    #: Whether several slices of this owner form a multislice, unless the pod's label or annotation MULTISLICE decides.
    together: bool = True
    port: int = PROCESS_PORT
    #: Warning that a slice may be missing, perhaps the coordinator's slice; empty if none.
    problem: str = ""

    def host(self, index: int) -> str:
        """Return the host name of the pod with this index."""
        if index == 0 and self.leader:
            return self.leader
        if self.job_pods:
            return f"{self.prefix}{self.first + index // self.job_pods}-{index % self.job_pods}{self.suffix}"
        return f"{self.prefix}{self.first + index}{self.suffix}"


def owner_to_read(pod: TpuPod) -> OwnerKey | None:
    """Return the owner that must be read to number a pod; None if labels suffice, or if the pod cannot be numbered."""
    owner = pod.owner
    if owner is None or pod.marks.get(constants.LWS_NAME):
        return None
    if jobset := pod.marks.get(constants.JOBSET_NAME):
        return OwnerKey(JOBSET_TYPE, pod.namespace, jobset)
    return OwnerKey(owner.type, pod.namespace, owner.name, owner.uid) if owner.type in _RESOURCES else None


def numbering_of(pod: TpuPod, owner: Mapping[str, Any]) -> Numbering:
    """Return the numbering of a pod. Raises NumberingError. `owner` is the raw object of `owner_to_read`, or empty."""
    if pod.owner is None:
        raise UnnumberedError(
            "no controller owns it, so nothing shows which worker it is; create it by a StatefulSet, a Job, a "
            "JobSet or a LeaderWorkerSet, or set TPU_WORKER_ID and TPU_WORKER_HOSTNAMES"
        )
    if pod.marks.get(constants.LWS_NAME):
        return _of_leader_worker_set(pod)
    key = owner_to_read(pod)
    if key is None:
        raise UnnumberedError(
            f"it is owned by a {fields.shown(pod.owner.kind)} of {pod.owner.api_version}, whose pods are not numbered; "
            "use a StatefulSet of apps/v1, a Job of batch/v1, a JobSet or a LeaderWorkerSet, or set TPU_WORKER_ID and "
            "TPU_WORKER_HOSTNAMES"
        )
    uid = fields.name(fields.mapping(owner.get("metadata")).get("uid"))
    if key.uid and uid != key.uid:
        raise NumberingError(f"its {key.title} was deleted, and another one has its name")
    spec = fields.mapping(owner.get("spec"))
    return _NUMBERINGS[key.type](pod, key, spec)


def _of_stateful_set(pod: TpuPod, key: OwnerKey, spec: Mapping[str, Any]) -> Numbering:
    first = fields.count(fields.mapping(spec.get("ordinals")).get("start"), default=0)
    service = fields.name(spec.get("serviceName"))
    if not service:
        raise NumberingError(
            f"{key.title} has no spec.serviceName, so its pods have no host names; name a headless Service there"
        )
    if len(service) > bounds.LABEL_VALUE:
        problem = bounds.too_long(f"{key.title}: spec.serviceName", service, bounds.LABEL_VALUE)
        raise NumberingError("; ".join(problem))
    ordinal = fields.index(pod.marks.get(constants.POD_INDEX, "") or pod.name.removeprefix(f"{key.name}-"))
    if ordinal is None or ordinal < first:
        raise NumberingError(
            f"it has no number: neither label {constants.POD_INDEX} nor its name gives one from {first} on"
        )
    return Numbering(
        index=ordinal - first,
        pods=fields.count(spec.get("replicas")),
        prefix=f"{key.name}-",
        first=first,
        suffix=f".{service}",
    )


def _of_job(pod: TpuPod, key: OwnerKey, spec: Mapping[str, Any]) -> Numbering:
    return Numbering(
        index=_completion_index(pod, key),
        pods=pods_of_job(spec),
        prefix=f"{key.name}-",
        suffix=_subdomain(pod),
        # No multislice by default: pods with a higher index may start only after other pods of the Job have ended.
        together=False,
    )


def slices_together(pod: TpuPod, owner: Mapping[str, Any]) -> bool:
    """Return whether a one-VM slice is in a multislice, by MULTISLICE or its JobSet; True if the JobSet is not read."""
    mark = pod.marks.get(constants.MULTISLICE, "")
    if mark in ("true", "false") or constants.JOBSET_NAME not in pod.marks:
        return mark == "true"
    together = _slices_of(pod, fields.mapping(owner.get("spec")))
    # Child Jobs with several pods are left out: each of their pods is a slice, and these slices have no numbers.
    one_pod = (job for job in together if pods_of_job(_job_of(job)) == 1)
    return not owner or sum(fields.count(job.get("replicas")) for job in one_pod) > 1


def _slices_of(pod: TpuPod, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the replicated jobs of a pod's multislice: their slices are equal, and none waits for another's end."""
    own = pod.marks.get(constants.REPLICATED_JOB_NAME, "")
    listed = fields.mappings(spec.get("replicatedJobs"))[: bounds.REPLICATED_JOBS]
    by_name = {fields.name(job.get("name")): job for job in listed if fields.count(job.get("replicas"))}
    slices = {name: _slice_of(job, pod) for name, job in by_name.items()}
    equal = {name for name, slice_ in slices.items() if slice_ and slice_ == slices.get(own)}
    after = {name: ended & equal for name, ended in ended_before(spec).items()}
    return [job for name, job in by_name.items() if name in equal and after[name] == after[own]]


def _slice_of(replicated_job: Mapping[str, Any], pod: TpuPod) -> tuple[object, ...] | None:
    """Return the properties that replicated jobs of one multislice share; None without a valid number of chips."""
    job = _job_of(replicated_job)
    template = fields.mapping(job.get("template"))
    try:
        chips = requested_chips("pod template", template.get("spec"))
    except MalformedObject:
        return None
    selector = node_selector_of(template.get("spec"))
    group = fields.name(replicated_job.get("groupName")) or DEFAULT_GROUP
    apart = marked(fields.mapping(template.get("metadata")), constants.MULTISLICE) == "false"
    shape = (fields.text(selector.get(key)) for key in (constants.TPU_ACCELERATOR, constants.TPU_TOPOLOGY))
    return (
        (group, apart, *shape, chips, pods_of_job(job), _jobs_per_slice(replicated_job, chips, pod)) if chips else None
    )


def _jobs_per_slice(replicated_job: Mapping[str, Any], chips: int, pod: TpuPod) -> int:
    job = _job_of(replicated_job)
    # With exclusive placement (JobSet copies the annotation to pods) or dynamic slicing, each child Job is a slice.
    exclusive = not pod.marks.keys().isdisjoint((constants.EXCLUSIVE_TOPOLOGY, constants.SLICE_TOPOLOGY))
    find = node_selector_of(fields.at(job, "template", "spec")).get
    accelerator, topology, machine_type = (fields.text(find(key)) for key in OF_SLICES)
    try:
        hosts = tpu.resolve(accelerator, topology, chips, machine_type).nodes(1)
    except tpu.ShapeError:
        return 1
    return jobs_of_slice(fields.count(replicated_job.get("replicas")), pods_of_job(job), hosts, exclusive=exclusive)


def _of_jobset(pod: TpuPod, key: OwnerKey, spec: Mapping[str, Any]) -> Numbering:
    own = pod.marks.get(constants.REPLICATED_JOB_NAME, "")
    number = fields.index(pod.marks.get(constants.JOB_INDEX, ""))
    listed = len(fields.mappings(spec.get("replicatedJobs")))
    if listed > bounds.REPLICATED_JOBS:
        raise NumberingError("; ".join(bounds.too_many("replicated jobs", listed, bounds.REPLICATED_JOBS, key.title)))
    entries = _slices_of(pod, spec)
    names = [fields.name(entry.get("name")) for entry in entries]
    if own not in names or number is None:
        raise NumberingError(f"{key.title} has no replicated job {own!r} that requests chips")
    replicas = [fields.count(entry.get("replicas")) for entry in entries]
    place = names.index(own)
    subdomain, pods = _subdomain(pod), pods_of_job(_job_of(entries[place]))
    jobs = _jobs_per_slice(entries[place], pod.chips, pod)
    return Numbering(
        index=number % jobs * pods + _completion_index(pod, key),
        pods=jobs * pods,
        prefix=f"{key.name}-{own}-" if jobs > 1 else f"{key.name}-{own}-{number}-",
        first=number - number % jobs if jobs > 1 else 0,
        job_pods=pods if jobs > 1 else 0,
        suffix=subdomain,
        slices_before=(sum(replicas[:place]) + number) // jobs,
        slices=sum(replicas) // jobs,
        coordinator=f"{key.name}-{names[0]}-0-0{subdomain}",
    )


def _job_of(replicated_job: Mapping[str, Any]) -> Mapping[str, Any]:
    return fields.at(replicated_job, "template", "spec")


def ray_host(pod: TpuPod, cluster: str, replica: str, host: str) -> tuple[str, str]:
    """Return the host name and subdomain that GKE's Ray add-on and KubeRay give to a host of a replica."""
    longest = bounds.LABEL_VALUE - len(str(bounds.PARALLELISM))
    name = f"{pod.marks.get(constants.RAY_GROUP, '')}-{replica}-"[-longest:].lower()
    # Names of worker groups may contain characters that are invalid in host names; these become hyphens.
    name = _NOT_IN_HOST_NAMES.sub("-", name).lstrip("-")
    return f"{name}{host}", pod.subdomain or f"{cluster}-headless"


def _of_raycluster(pod: TpuPod, key: OwnerKey, spec: Mapping[str, Any]) -> Numbering:
    group = pod.marks.get(constants.RAY_GROUP, "")
    entries = (entry for entry in fields.mappings(spec.get("workerGroupSpecs")) if entry.get("groupName") == group)
    entry = next(entries, {})
    host, replica = (
        fields.index(pod.marks.get(label, "")) for label in (constants.RAY_HOST_INDEX, constants.RAY_REPLICA_INDEX)
    )
    pods = fields.count(entry.get("numOfHosts"))
    if host is None and entry and pods == 1:
        raise UnnumberedError(
            f"{key.title}: numOfHosts of its worker group is 1, and KubeRay gives numbers and host names only to hosts "
            f"of larger slices; set it to the hosts of a slice, or remove {constants.MULTISLICE} and {NUM_SLICES}"
        )
    if host is None or replica is None:
        raise UnnumberedError(
            f"{key.title}: it lacks the label {constants.RAY_HOST_INDEX}; install KubeRay 1.6 or newer, or enable its "
            "feature gate RayMultiHostIndexing"
        )
    name, service = ray_host(pod, key.name, str(replica), "")
    if pod.hostname not in ("", f"{name}{host}"):
        raise NumberingError(
            f"its host name is {pod.hostname!r}, but the pods of its slice are found as {name}0 to {name}{pods - 1}; "
            "remove spec.hostname from the template of the worker group"
        )
    # While replicas are added one by one, only the pod template may contain the final number of slices.
    given = (container.given[NUM_SLICES].value for container in pod.containers if NUM_SLICES in container.given)
    number = max([replicas_of(entry), *(fields.index(value or "") or 0 for value in given)])
    slices = number if pod.marks.get(constants.MULTISLICE) == "true" else 0
    return Numbering(
        index=host,
        pods=pods,
        prefix=name,
        suffix=f".{service}",
        slices_before=replica,
        slices=slices,
        coordinator=".".join(ray_host(pod, key.name, "0", "0")),
        together=False,
        problem=f"{key.title}: its replica has the index {replica}, but worker group {group} has {slices} replicas, so "
        "that one index is missing, perhaps that of the coordinator, 0; recreate the replicas of the group"
        if 1 < slices <= replica
        else "",
    )


def _of_leader_worker_set(pod: TpuPod) -> Numbering:
    name, marks = pod.marks[constants.LWS_NAME], pod.marks
    worker, group, size = (
        fields.index(marks.get(key, ""))
        for key in (constants.LWS_WORKER_INDEX, constants.LWS_GROUP_INDEX, constants.LWS_SIZE)
    )
    if worker is None or group is None or size is None:
        raise NumberingError(f"LeaderWorkerSet {pod.namespace}/{name}: its group, number or size is missing")
    if marks.get(constants.LWS_SUBGROUP_SIZE) and len(pod.workers) > 1:
        raise UnnumberedError("its group has subgroups, of which LeaderWorkerSet numbers only the first container")
    # A leader without chips is not a host of the slice.
    with_leader = worker == 0 or constants.LWS_LEADER_REQUESTS_TPUS in marks
    subgroup_size = fields.index(marks.get(constants.LWS_SUBGROUP_SIZE, "")) or max(1, size)
    _, pods = subgroup_of(worker, size, subgroup_size, with_leader=with_leader)
    subdomain = _subdomain(pod)
    return Numbering(
        index=worker - pods.start,
        pods=len(pods),
        prefix=f"{name}-{group}-",
        first=pods.start,
        suffix=subdomain,
        leader=f"{name}-{group}{subdomain}" if pods.start == 0 else "",
        together=False,
        port=_LWS_PROCESS_PORT,
    )


def _completion_index(pod: TpuPod, key: OwnerKey) -> int:
    index = fields.index(pod.marks.get(constants.COMPLETION_INDEX, ""))
    if index is None:
        raise NumberingError(
            f"{key.title} has no completionMode Indexed, so nothing shows which worker a pod is; set it"
        )
    return index


def _subdomain(pod: TpuPod) -> str:
    if not pod.subdomain:
        remedy = "name a headless Service in spec.template.spec.subdomain"
        if constants.JOBSET_NAME in pod.marks:
            remedy = "set spec.network.enableDNSHostnames of its JobSet to true"
        raise NumberingError(f"its template has no subdomain, so it has no host name; {remedy}")
    return f".{pod.subdomain}"


_RESOURCES = {
    STATEFUL_SET_TYPE: "statefulsets",
    JOB: PLAIN_JOB.resource,
    JOBSET_TYPE: JOBSET.resource,
    RAY_CLUSTER_TYPE: RAY_CLUSTER.resource,
}
_NUMBERINGS = {
    STATEFUL_SET_TYPE: _of_stateful_set,
    JOB: _of_job,
    JOBSET_TYPE: _of_jobset,
    RAY_CLUSTER_TYPE: _of_raycluster,
}
