"""The pods that the controllers of a workload would make, as they are read: unschedulable.

Only the first pod of each group is made, which leads it where pods have an index: the decision goes by these. JobSet
0.11, LeaderWorkerSet 0.9 and Kubernetes' own controllers are followed in what is read of pods: names, labels,
annotations, selectors and tolerations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import Pod, WorkloadKind, group_key
from provisioner.slices.offline.documents import Path, value_at
from provisioner.workloads.jobset import replicated_jobs_of

Json = dict[str, Any]

_JOBSET = "alpha.jobset.sigs.k8s.io/"
_EXCLUSIVE = f"{_JOBSET}exclusive-topology"
_PLACEMENT = (_EXCLUSIVE, f"{_JOBSET}node-selector")
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
                pods=fields.count(fields.mapping(spec.get("leaderWorkerTemplate")).get("size"), default=1),
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


class _Group(NamedTuple):
    """A group of pods, and what its controllers add to the template of its first pod."""

    name: str
    #: Of the first pod.
    pod: str
    labels: Json
    annotations: Json
    workload_uid: str = ""
    #: Of the pods, where each group says it itself.
    size: int = 0
    #: The value of the selector by which JobSet places jobs on nodes that somebody labelled beforehand; empty for none.
    pinned: str = ""


def leaders_of(
    kind: WorkloadKind, raw: Json, template: Template, now: datetime, numbers: Iterable[int] | None = None
) -> Iterator[Pod]:
    """Yield the first pod of each group of a template that requests chips, or of those with some numbers."""
    if template.pods == 0:
        return
    metadata = fields.mapping(raw.get("metadata"))
    name, namespace = fields.name(metadata.get("name")), fields.name(metadata.get("namespace"))
    read = _what_is_read(fields.mapping(value_at(raw, template.path)))
    index = {constants.COMPLETION_INDEX: "0"} if template.indexed and kind is not WorkloadKind.LEADER_WORKER_SET else {}
    for group in _groups(kind, raw, template, range(template.replicas) if numbers is None else numbers):
        spec, marks = read["spec"], read["metadata"]
        if group.pinned:
            selector = {**fields.mapping(spec.get("nodeSelector")), f"{_JOBSET}namespaced-job": group.pinned}
            toleration = {"key": f"{_JOBSET}no-schedule", "operator": "Exists", "effect": "NoSchedule"}
            tolerations = [*fields.sequence(spec.get("tolerations")), toleration]
            spec = {**spec, "nodeSelector": selector, "tolerations": tolerations}
        spec = {**spec, "tolerations": [*fields.sequence(spec.get("tolerations")), _CHIP_TOLERATION]}
        marked = {
            "labels": {**fields.mapping(marks.get("labels")), **index, **group.labels},
            "annotations": {**marks["annotations"], **index, **group.annotations},
        }
        requirements = podspec.requirements(f"pod {namespace}/{group.pod}", spec, marked)
        if requirements.chips:
            yield Pod(
                kind=kind,
                namespace=namespace,
                name=group.pod,
                uid=f"uid-of-{metadata.get('uid')}-{group.pod}",
                workload_name=name,
                workload_uid=group.workload_uid,
                group_name=group.name,
                group_key=group_key(namespace, group.name),
                completion_index=0 if template.indexed else None,
                group_size=group.size,
                requirements=requirements,
                created_at=now,
                unschedulable_since=now,
                unschedulable_message=_NO_NODES,
            )


def _groups(kind: WorkloadKind, raw: Json, template: Template, numbers: Iterable[int]) -> Iterator[_Group]:
    metadata = fields.mapping(raw.get("metadata"))
    own, name, uid = fields.mapping(metadata.get("annotations")), fields.name(metadata.get("name")), metadata.get("uid")
    if kind is WorkloadKind.JOB:
        yield _Group(name, f"{name}-0-xxxxx", _labels_of_job(name, str(uid)), {}, str(uid))
        return
    if kind is WorkloadKind.LEADER_WORKER_SET:
        namespace = fields.name(metadata.get("namespace"))
        size = fields.count(value_at(raw, ("spec", "leaderWorkerTemplate", "size")), default=1)
        placed = {key: own[key] for key in (constants.LWS_EXCLUSIVE_TOPOLOGY,) if key in own}
        for number in numbers:
            leader = f"{name}-{number}"
            labels = {
                constants.LWS_NAME: name,
                constants.LWS_WORKER_INDEX: "0",
                constants.LWS_GROUP_INDEX: str(number),
                constants.LWS_GROUP_KEY: group_key(namespace, leader),
                constants.POD_INDEX: str(number),
                constants.STATEFUL_SET_POD_NAME: leader,
            }
            yield _Group(leader, leader, labels, {constants.LWS_SIZE: str(size), **placed}, size=size)
        return
    job = replicated_jobs_of(raw)[template.place]
    of_job = fields.mapping(value_at(raw, (*template.path[:3], "template", "metadata", "annotations")))
    exclusive = {key: each[key] for each in (own, of_job) if _EXCLUSIVE in each for key in _PLACEMENT if key in each}
    for number in numbers:
        child, marks = job.child(number), job.marks(number)
        yield _Group(
            child,
            f"{child}-0-xxxxx",
            {**marks, **_labels_of_job(child, f"uid-of-{child}")},
            {**marks, **exclusive},
            job.jobset_uid,
            pinned=f"{job.namespace}_{child}" if exclusive.keys() == set(_PLACEMENT) else "",
        )


def _labels_of_job(name: str, uid: str) -> Json:
    return {
        "batch.kubernetes.io/controller-uid": uid,
        constants.JOB_NAME: name,
        "controller-uid": uid,
        "job-name": name,
    }


def _what_is_read(template: Json) -> Json:
    """Return a pod template with no more than what is read of pods, its containers put together: there may be many."""
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
