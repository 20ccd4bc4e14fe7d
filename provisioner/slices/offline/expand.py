"""The pods that the controllers of a workload would make, as they are read: unschedulable.

Only the first pod of each group is made, which leads it where pods have an index: the decision goes by these. JobSet
0.11, LeaderWorkerSet 0.9 and Kubernetes' own controllers are followed in what is read of pods: names, labels,
selectors and tolerations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import Pod, Toleration, Workload, WorkloadKind, group_key
from provisioner.slices.offline.documents import Path, value_at
from provisioner.workloads.jobset import replicated_jobs_of

Json = dict[str, Any]

_JOBSET = "alpha.jobset.sigs.k8s.io/"
_EXCLUSIVE = f"{_JOBSET}exclusive-topology"
_PLACEMENT = (_EXCLUSIVE, f"{_JOBSET}node-selector")
_INDEXED = "Indexed"
#: What the scheduler says where there is no node at all.
_NO_NODES = "0/0 nodes are available: no nodes available to schedule pods."
#: Kubernetes' admission adds it to pods that ask for chips.
_CHIP_TOLERATION = Toleration(key=constants.TPU_RESOURCE, operator="Exists", effect="NoSchedule")
#: That of pods which JobSet places on nodes that somebody labelled beforehand, by a selector with their job.
_PLACED_TOLERATION = Toleration(key=f"{_JOBSET}no-schedule", operator="Exists", effect="NoSchedule")
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
    labels: dict[str, str]
    workload_uid: str = ""
    #: Of the pods, where each group says it itself.
    size: int = 0
    #: The value of the selector by which JobSet places jobs on nodes that somebody labelled beforehand; empty for none.
    pinned: str = ""


def leaders_of(
    workload: Workload, raw: Json, template: Template, now: datetime, numbers: Iterable[int] | None = None
) -> Iterator[Pod]:
    """Yield the first pod of each group of a template that requests chips, or of those with some numbers."""
    spec = fields.mapping(value_at(raw, (*template.path, "spec")))
    if template.pods == 0 or not podspec.requested_chips("pod template", spec):
        return
    asked = workload.groups[template.place].template
    asked = replace(asked, tolerations=(*asked.tolerations, _CHIP_TOLERATION))
    by_index = template.indexed and workload.kind is not WorkloadKind.LEADER_WORKER_SET
    index = {constants.COMPLETION_INDEX: "0"} if by_index else {}
    for group in _groups(workload, raw, template, range(template.replicas) if numbers is None else numbers):
        requirements = replace(asked, labels={**asked.labels, **index, **group.labels})
        if group.pinned:
            requirements = replace(
                requirements,
                node_selector={**asked.node_selector, f"{_JOBSET}namespaced-job": group.pinned},
                tolerations=(*asked.tolerations, _PLACED_TOLERATION),
            )
        yield Pod(
            kind=workload.kind,
            namespace=workload.namespace,
            name=group.pod,
            uid=f"uid-of-{workload.uid}-{group.pod}",
            workload_name=workload.name,
            workload_uid=group.workload_uid,
            group_name=group.name,
            group_key=group_key(workload.namespace, group.name),
            completion_index=0 if template.indexed else None,
            group_size=group.size,
            requirements=requirements,
            created_at=now,
            unschedulable_since=now,
            unschedulable_message=_NO_NODES,
        )


def _groups(workload: Workload, raw: Json, template: Template, numbers: Iterable[int]) -> Iterator[_Group]:
    name = workload.name
    if workload.kind is WorkloadKind.JOB:
        yield _Group(name, f"{name}-0-xxxxx", _labels_of_job(name, workload.uid), workload.uid)
        return
    if workload.kind is WorkloadKind.LEADER_WORKER_SET:
        for number in numbers:
            leader = f"{name}-{number}"
            labels = {
                constants.LWS_NAME: name,
                constants.LWS_WORKER_INDEX: "0",
                constants.LWS_GROUP_INDEX: str(number),
                constants.LWS_GROUP_KEY: group_key(workload.namespace, leader),
                constants.POD_INDEX: str(number),
                constants.STATEFUL_SET_POD_NAME: leader,
            }
            yield _Group(leader, leader, labels, size=template.pods)
        return
    job = replicated_jobs_of(raw)[template.place]
    metadata_of_job = (*template.path[:3], "template", "metadata")
    annotated = [fields.mapping(value_at(raw, (*path, "annotations"))) for path in (("metadata",), metadata_of_job)]
    placed = {key for each in annotated if _EXCLUSIVE in each for key in _PLACEMENT if key in each}
    for number in numbers:
        child = job.child(number)
        yield _Group(
            child,
            f"{child}-0-xxxxx",
            {**job.marks(number), **_labels_of_job(child, f"uid-of-{child}")},
            job.jobset_uid,
            pinned=f"{job.namespace}_{child}" if placed == set(_PLACEMENT) else "",
        )


def _labels_of_job(name: str, uid: str) -> dict[str, str]:
    return {
        "batch.kubernetes.io/controller-uid": uid,
        constants.JOB_NAME: name,
        "controller-uid": uid,
        "job-name": name,
    }
