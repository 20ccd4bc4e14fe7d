"""The pods that the controllers of a workload would make: as the API server would show them, unschedulable.

Only the first pod of each group is made, which leads it where pods have an index: the decision goes by these. JobSet
0.11, LeaderWorkerSet 0.9 and Kubernetes' own controllers are followed in what is read of pods: names, labels,
annotations, owner references, selectors and tolerations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import WorkloadKind, group_key
from provisioner.slices.offline.documents import Path
from provisioner.workloads.job import JOB
from provisioner.workloads.jobset import replicated_jobs_of
from provisioner.workloads.owners import STATEFUL_SET

Json = dict[str, Any]

_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_BY_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
_PLACEMENT = (_EXCLUSIVE, _BY_SELECTOR)
_INDEXED = "Indexed"
_RESOURCES = (constants.TPU_RESOURCE, "cpu", "memory")
#: What the scheduler says where there is no node at all.
_NO_NODES = "0/0 nodes are available: no nodes available to schedule pods."
#: Kubernetes' admission adds it to pods that ask for chips.
_CHIP_TOLERATION = {"key": constants.TPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
#: The digits of made-up UIDs: as many as real ones have, which count for the length of labels.
_MADE_UP = "00000000-0000-4000-8000-{:012x}"


class Template(NamedTuple):
    """Where a workload says what the pods of its groups are."""

    #: In the order of `Workload.groups`.
    place: int
    #: Of the replicated job; empty where all groups are alike.
    name: str
    replicas: int
    #: Of a group.
    pods: int
    #: To the pod template, to the number of pods of a group, and to the number of groups.
    path: Path
    pods_path: Path
    replicas_path: Path
    #: Whether pods have an index: without one, none of them leads.
    indexed: bool = True


def made_up_uid(number: int) -> str:
    """Return what stands for the UID of an object that does not exist yet."""
    return _MADE_UP.format(number)


def is_made_up(uid: str) -> bool:
    """Whether a UID is not real."""
    return uid.startswith(_MADE_UP[:24])


def templates_of(kind: WorkloadKind, raw: Json) -> list[Template]:
    """List the templates of a workload."""
    spec = fields.mapping(raw.get("spec"))
    if kind is WorkloadKind.JOB:
        return [
            Template(
                place=0,
                name="",
                replicas=1,
                pods=_pods_of_job(spec),
                indexed=spec.get("completionMode") == _INDEXED,
                path=("spec", "template"),
                pods_path=("spec", "parallelism"),
                replicas_path=("spec", "parallelism"),
            )
        ]
    if kind is WorkloadKind.LEADER_WORKER_SET:
        base: Path = ("spec", "leaderWorkerTemplate")
        has_leader = bool(fields.mapping(spec.get("leaderWorkerTemplate")).get("leaderTemplate"))
        return [
            Template(
                place=0,
                name="",
                replicas=fields.count(spec.get("replicas"), default=1),
                # The API server takes no 0.
                pods=max(1, fields.count(fields.mapping(spec.get("leaderWorkerTemplate")).get("size"), default=1)),
                path=(*base, "leaderTemplate" if has_leader else "workerTemplate"),
                pods_path=(*base, "size"),
                replicas_path=("spec", "replicas"),
            )
        ]
    found = []
    # A JobSet with more is not served.
    for place, entry in enumerate(fields.mappings(spec.get("replicatedJobs"))[: bounds.REPLICATED_JOBS]):
        job: Path = ("spec", "replicatedJobs", place)
        job_spec = fields.mapping(fields.mapping(entry.get("template")).get("spec"))
        found.append(
            Template(
                place=place,
                name=fields.name(entry.get("name")),
                replicas=fields.count(entry.get("replicas"), default=1),
                pods=_pods_of_job(job_spec),
                # JobSet's own default.
                indexed=(job_spec.get("completionMode") or _INDEXED) == _INDEXED,
                path=(*job, "template", "spec", "template"),
                pods_path=(*job, "template", "spec", "parallelism"),
                replicas_path=(*job, "replicas"),
            )
        )
    return found


def _pods_of_job(spec: Json) -> int:
    """Return how many pods a Job has at once."""
    parallelism = fields.count(spec.get("parallelism"), default=1)
    return min(parallelism, fields.count(spec.get("completions"), default=parallelism))


def leaders_of(
    kind: WorkloadKind, raw: Json, template: Template, now: datetime, numbers: Iterable[int] | None = None
) -> Iterator[Json]:
    """Yield the first pod of each group of a template, or of those with some numbers; none where there are no pods."""
    if template.pods == 0:
        return
    numbers = range(template.replicas) if numbers is None else numbers
    if kind is WorkloadKind.LEADER_WORKER_SET:
        pods = fields.mapping(fields.mapping(raw.get("spec")).get("leaderWorkerTemplate"))
        pod_template = _what_is_read(fields.mapping(pods.get(str(template.path[-1]))))
        for number in numbers:
            yield _leader_of_group(raw, pod_template, number, now)
    elif kind is WorkloadKind.JOB:
        metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
        marked = _indexed(_what_is_read(fields.mapping(spec.get("template"))), template)
        yield _pod_of_job(metadata, marked, fields.name(metadata.get("name")), fields.name(metadata.get("uid")), now)
    else:
        yield from _leaders_of_jobset(raw, template, now, numbers)


def _leaders_of_jobset(raw: Json, template: Template, now: datetime, numbers: Iterable[int]) -> Iterator[Json]:
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    entries = fields.mappings(spec.get("replicatedJobs"))
    entry = entries[template.place]
    job_template = fields.mapping(entry.get("template"))
    job_spec = fields.mapping(job_template.get("spec"))
    pod_template = _indexed(_what_is_read(fields.mapping(job_spec.get("template"))), template)
    own = fields.mapping(metadata.get("annotations"))
    of_job = fields.mapping(fields.mapping(job_template.get("metadata")).get("annotations"))
    exclusive = {key: each[key] for each in (own, of_job) if _EXCLUSIVE in each for key in _PLACEMENT if key in each}
    job = replicated_jobs_of(raw)[template.place]
    for number in numbers:
        job_name, marks = job.child(number), job.marks(number)
        marked = _with_marks(pod_template, labels=marks, annotations={**marks, **exclusive})
        if _EXCLUSIVE in exclusive and _BY_SELECTOR in exclusive:
            marked = _pinned(marked, f"{job.namespace}_{job_name}")
        yield _pod_of_job(metadata, marked, job_name, f"uid-of-{job_name}", now)


def _pinned(template: Json, job: str) -> Json:
    """Add the selector by which JobSet places jobs on nodes that somebody labelled beforehand."""
    spec = fields.mapping(template.get("spec"))
    selector = {**fields.mapping(spec.get("nodeSelector")), "alpha.jobset.sigs.k8s.io/namespaced-job": job}
    toleration = {"key": "alpha.jobset.sigs.k8s.io/no-schedule", "operator": "Exists", "effect": "NoSchedule"}
    tolerations = [*fields.sequence(spec.get("tolerations")), toleration]
    return {**template, "spec": {**spec, "nodeSelector": selector, "tolerations": tolerations}}


def _indexed(pod_template: Json, template: Template) -> Json:
    """Add the index of the first pod, where the pods of a template have one."""
    index = {constants.COMPLETION_INDEX: "0"}
    return _with_marks(pod_template, labels=index, annotations=index) if template.indexed else pod_template


def _pod_of_job(owner: Json, template: Json, job_name: str, job_uid: str, now: datetime) -> Json:
    """Return the first pod of a Job, as the Job controller makes it."""
    labels = {
        "batch.kubernetes.io/controller-uid": job_uid,
        constants.JOB_NAME: job_name,
        "controller-uid": job_uid,
        "job-name": job_name,
    }
    marked = _with_marks(template, labels=labels, annotations={})
    return _pod(marked, owner, f"{job_name}-0-xxxxx", (*JOB, job_name, job_uid), now)


def _leader_of_group(raw: Json, template: Json, number: int, now: datetime) -> Json:
    """Return the leader pod of a group, as the controllers of LeaderWorkerSets and StatefulSets make it."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    name, namespace = fields.name(metadata.get("name")), fields.name(metadata.get("namespace"))
    pods = fields.mapping(spec.get("leaderWorkerTemplate"))
    own = fields.mapping(metadata.get("annotations"))
    leader = f"{name}-{number}"
    labels = {
        constants.LWS_NAME: name,
        constants.LWS_WORKER_INDEX: "0",
        constants.LWS_GROUP_INDEX: str(number),
        constants.LWS_GROUP_KEY: group_key(namespace, leader),
        constants.POD_INDEX: str(number),
        constants.STATEFUL_SET_POD_NAME: leader,
    }
    annotations = {constants.LWS_SIZE: str(fields.count(pods.get("size"), default=1))}
    if constants.LWS_EXCLUSIVE_TOPOLOGY in own:
        annotations[constants.LWS_EXCLUSIVE_TOPOLOGY] = own[constants.LWS_EXCLUSIVE_TOPOLOGY]
    marked = _with_marks(template, labels=labels, annotations=annotations)
    return _pod(marked, metadata, leader, (*STATEFUL_SET, name, f"uid-of-statefulset-{name}"), now)


def _what_is_read(template: Json) -> Json:
    """Return a pod template with no more than what is read of pods, its containers put together.

    Thousands of pods may be made of it, and it may have thousands of containers.
    """
    metadata, spec = fields.mapping(template.get("metadata")), fields.mapping(template.get("spec"))
    asked = {each: f"{podspec.pod_requests('pod template', spec, each):f}" for each in _RESOURCES}
    annotations = fields.mapping(metadata.get("annotations"))
    return {
        "metadata": {
            "labels": metadata.get("labels"),
            "annotations": {key: annotations[key] for key in constants.READ_ANNOTATIONS if key in annotations},
        },
        "spec": {
            **{key: spec[key] for key in ("nodeSelector", "tolerations", "affinity") if key in spec},
            "containers": [{"resources": {"requests": asked}}],
        },
    }


def _with_marks(template: Json, *, labels: Json, annotations: Json) -> Json:
    metadata = fields.mapping(template.get("metadata"))
    marked = {
        **metadata,
        "labels": {**fields.mapping(metadata.get("labels")), **labels},
        "annotations": {**fields.mapping(metadata.get("annotations")), **annotations},
    }
    return {**template, "metadata": marked}


def _pod(template: Json, workload: Json, name: str, owner: tuple[str, str, str, str], now: datetime) -> Json:
    """Return a pod of a template, which the scheduler finds no node for."""
    spec = fields.mapping(template.get("spec"))
    api_version, kind, owner_name, uid = owner
    moment = now.isoformat()
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": _NO_NODES,
        "lastTransitionTime": moment,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **fields.mapping(template.get("metadata")),
            "name": name,
            "namespace": workload.get("namespace"),
            "uid": f"uid-of-{workload.get('uid')}-{name}",
            "creationTimestamp": moment,
            "ownerReferences": [
                {"apiVersion": api_version, "kind": kind, "name": owner_name, "uid": uid, "controller": True}
            ],
        },
        "spec": {**spec, "tolerations": [*fields.sequence(spec.get("tolerations")), _CHIP_TOLERATION]},
        "status": {"phase": "Pending", "conditions": [condition]},
    }
