"""Derives the first pod of each group that the controllers of a workload would create, as an unschedulable pod.

Decisions need no other pods. The pods are like those of JobSet 0.11, LeaderWorkerSet 0.9, KubeRay and Kubernetes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.placement import selects_job_nodes, with_job_nodes
from provisioner.model.workloads import Pod, Toleration, Workload, WorkloadKind, group_key
from provisioner.slices.demand.groups import name_of_group
from provisioner.slices.offline.documents import Path, value_at
from provisioner.workloads.job import pods_of_job
from provisioner.workloads.jobset import jobs_of_slice, replicated_jobs_of
from provisioner.workloads.leaderworkerset import slices_of_group
from provisioner.workloads.raycluster import MAKERS, replicas_of

Json = dict[str, Any]

#: Annotations that JobSet copies to pods from a JobSet or child Job template that has EXCLUSIVE_TOPOLOGY.
_PLACEMENT = (constants.EXCLUSIVE_TOPOLOGY, constants.NODE_SELECTOR_STRATEGY)
INDEXED = "Indexed"
NO_NODES = "0/0 nodes are available: no nodes available to schedule pods."
#: Toleration that the admission plugin ExtendedResourceToleration adds to pods with the resource google.com/tpu.
_CHIP_TOLERATION = Toleration(key=constants.TPU_RESOURCE, operator="Exists", effect="NoSchedule")
#: Format of placeholders for UIDs. They are as long as UIDs, so that labels with a UID have their real length.
_MADE_UP = "00000000-0000-4000-8000-{:012x}"


class Template(NamedTuple):
    """Pod template for `replicas` groups of `pods` pods; `place` is the template's index in `Workload.groups`."""

    path: Path
    pods_path: Path
    replicas_path: Path
    place: int = 0
    #: Name of the replicated job, worker group or subgroup; otherwise empty.
    name: str = ""
    replicas: int = 1
    pods: int = 1
    #: Whether the pods have an index. Without an index, a Job has no leader, and each pod of a Deployment is a group.
    indexed: bool = True
    #: Worker index of the first pod of this template in a group of a LeaderWorkerSet; 0 is the leader pod.
    first: int = 0


def made_up_uid(number: int) -> str:
    """Return a placeholder for the UID of an object that does not exist yet."""
    return _MADE_UP.format(number)


def is_made_up(uid: str) -> bool:
    """Return whether a UID is a placeholder of `made_up_uid`."""
    return uid.startswith(_MADE_UP[:24])


def templates_of(kind: WorkloadKind, raw: Json) -> list[Template]:
    """Return the pod templates of a workload, one for each entry of `Workload.groups`."""
    spec = fields.mapping(raw.get("spec"))
    if kind is WorkloadKind.JOB:
        return [template_of_job(spec, ("spec",), replicas_path=("spec", "parallelism"))]
    if kind is WorkloadKind.LEADER_WORKER_SET:
        base: Path = ("spec", "leaderWorkerTemplate")
        parts = fields.mapping(spec.get("leaderWorkerTemplate"))
        has_leader, size = bool(parts.get("leaderTemplate")), fields.count(parts.get("size"))
        of_leader = fields.at(parts, "leaderTemplate", "spec")
        # A leader pod without chips needs no host, so only worker pods count as hosts.
        chipless = has_leader and size > 1 and not _has_chips(of_leader)
        return [
            Template(
                place=place,
                name=name,
                replicas=fields.count(spec.get("replicas")),
                pods=len(indexes),
                first=indexes.start,
                path=(*base, "leaderTemplate" if has_leader and indexes.start == 0 else "workerTemplate"),
                pods_path=(*base, "subGroupPolicy", "subGroupSize") if name else (*base, "size"),
                replicas_path=("spec", "replicas"),
            )
            for place, (name, indexes) in enumerate(slices_of_group(parts, leader_has_chips=not chipless).items())
        ]
    if kind is WorkloadKind.RAY_CLUSTER:
        return list(_templates_of_raycluster(raw))
    templates = []
    # A JobSet with more than REPLICATED_JOBS replicated jobs is not served, so further entries are not read.
    for place, entry in enumerate(fields.mappings(spec.get("replicatedJobs"))[: bounds.REPLICATED_JOBS]):
        job: Path = ("spec", "replicatedJobs", place)
        job_spec = fields.at(entry, "template", "spec")
        # JobSet sets an absent completionMode to Indexed, although the default of the API server is NonIndexed.
        job_spec = {**job_spec, "completionMode": job_spec.get("completionMode") or INDEXED}
        template = template_of_job(job_spec, (*job, "template", "spec"), replicas_path=(*job, "replicas"))
        replicas = fields.count(entry.get("replicas"))
        templates.append(template._replace(place=place, name=fields.name(entry.get("name")), replicas=replicas))
    return templates


def _has_chips(spec: Json) -> bool:
    try:
        return podspec.requested_chips("pod template", spec) > 0
    except fields.MalformedObject:
        return True


def cluster_of(raw: Json) -> Json:
    """Return the RayCluster that a RayJob or RayService creates. An object of another kind is returned unchanged."""
    part = MAKERS.get(fields.text(raw.get("kind")))
    spec = fields.mapping(raw.get("spec"))
    return {**raw, "kind": WorkloadKind.RAY_CLUSTER.value, "spec": fields.mapping(spec.get(part))} if part else raw


def _templates_of_raycluster(raw: Json) -> Iterator[Template]:
    part = MAKERS.get(fields.text(raw.get("kind")))
    base: Path = ("spec", part) if part else ("spec",)
    groups = fields.mapping(value_at(raw, base)).get("workerGroupSpecs")
    for place, entry in enumerate(fields.mappings(groups)[: bounds.REPLICATED_JOBS]):
        worker_group: Path = (*base, "workerGroupSpecs", place)
        yield Template(
            place=place,
            name=fields.name(entry.get("groupName")),
            replicas=replicas_of(entry),
            pods=fields.count(entry.get("numOfHosts")),
            path=(*worker_group, "template"),
            pods_path=(*worker_group, "numOfHosts"),
            replicas_path=(*worker_group, "replicas"),
        )


def template_of_job(spec: Json, at: Path, *, replicas_path: Path) -> Template:
    """Return the template of a Job with its spec at the path `at`. All pods that run at the same time are one group."""
    return Template(
        pods=pods_of_job(spec),
        indexed=spec.get("completionMode") == INDEXED,
        path=(*at, "template"),
        pods_path=(*at, "parallelism"),
        replicas_path=replicas_path,
    )


def leaders_of(
    workload: Workload, raw: Json, template: Template, now: datetime, numbers: Iterable[int] | None = None
) -> Iterator[Pod]:
    """Yield the first pod of each group of a template, or of the groups `numbers`; none without pods or chips."""
    spec = fields.mapping(value_at(raw, (*template.path, "spec")))
    if template.pods == 0 or not podspec.requested_chips("pod template", spec):
        return
    name, demand = workload.name, workload.groups[template.place].template
    if podspec.counted_chips("pod template", spec):
        demand = replace(demand, tolerations=(*demand.tolerations, _CHIP_TOLERATION))
    index = {constants.COMPLETION_INDEX: "0"} if template.indexed else {}

    def leader(group: str, pod: str, labels: dict[str, str], *, uid: str = "", size: int = 0) -> Pod:
        return Pod(
            kind=workload.kind,
            namespace=workload.namespace,
            name=pod,
            uid=f"uid-of-{workload.uid}-{pod}",
            workload_name=name,
            workload_uid=uid,
            group_name=group,
            group_key=group_key(workload.namespace, group),
            completion_index=0 if template.indexed else None,
            group_size=size,
            requirements=replace(demand, labels={**demand.labels, **labels}),
            created_at=now,
            unschedulable_since=now,
            unschedulable_message=NO_NODES,
        )

    numbers = range(template.replicas) if numbers is None else numbers
    if workload.kind is WorkloadKind.JOB:
        yield leader(name, f"{name}-0-xxxxx", index | _labels_of_job(name, workload.uid), uid=workload.uid)
    elif workload.kind is WorkloadKind.LEADER_WORKER_SET:
        # The LeaderWorkerSet controller copies annotations for exclusive placement to the pods.
        keys = (constants.LWS_EXCLUSIVE_TOPOLOGY, constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY)
        exclusive = {key: workload.annotations[key] for key in keys if key in workload.annotations}
        demand = replace(demand, annotations={**demand.annotations, **exclusive})
        for number in numbers:
            of_group, group = f"{name}-{number}", name_of_group(name, template.name, number, numbered=True)
            pod = f"{of_group}-{template.first}" if template.first else of_group
            labels = {
                constants.LWS_NAME: name,
                constants.LWS_WORKER_INDEX: str(template.first),
                constants.LWS_GROUP_INDEX: str(number),
                constants.LWS_GROUP_KEY: group_key(workload.namespace, of_group),
                constants.POD_INDEX: str(template.first or number),
                constants.STATEFUL_SET_POD_NAME: pod,
            }
            if (subgroup := template.name.removeprefix("subgroup-")).isdigit():
                labels[constants.LWS_SUBGROUP_INDEX] = subgroup
                labels[constants.LWS_SUBGROUP_KEY] = group_key(of_group, subgroup)
            yield leader(group, pod, labels, size=0 if template.name else template.pods)
    elif workload.kind is WorkloadKind.RAY_CLUSTER:
        for number in numbers:
            group = f"{name}-{template.name}-{number}"
            labels = {
                constants.RAY_CLUSTER_NAME: name,
                constants.RAY_GROUP: template.name,
                constants.RAY_REPLICA_INDEX: str(number),
            }
            yield leader(group, f"{name}-{template.name}-worker-xxxxx", labels, uid=workload.uid)
    else:
        job, of_jobset, of_job = replicated_jobs_of(raw)[template.place], *_annotations_of(raw, template)
        placed, inherited = selects_job_nodes(of_jobset, of_job), dict[str, str]()
        for annotations in (of_jobset, of_job):
            if constants.EXCLUSIVE_TOPOLOGY in annotations:
                inherited |= {key: fields.text(annotations[key]) for key in _PLACEMENT if key in annotations}
        demand = replace(demand, annotations={**demand.annotations, **inherited})
        for number in numbers:
            child = job.child(number)
            labels = index | job.marks(number) | _labels_of_job(child, f"uid-of-{child}")
            made = leader(child, f"{child}-0-xxxxx", labels, uid=job.jobset_uid)
            requirements = with_job_nodes(made.requirements, job.namespace, child) if placed else made.requirements
            yield replace(made, requirements=requirements)


def jobs_together(raw: Json, template: Template, hosts: int) -> int:
    """Return the number of child Jobs of a JobSet that together form one slice of `hosts` hosts."""
    exclusive = any(constants.EXCLUSIVE_TOPOLOGY in annotation for annotation in _annotations_of(raw, template))
    return jobs_of_slice(template.replicas, template.pods, hosts, exclusive=exclusive)


def _annotations_of(raw: Json, template: Template) -> tuple[Json, Json]:
    of_jobset, of_job = (
        value_at(raw, (*path, "metadata", "annotations")) for path in ((), (*template.path[:3], "template"))
    )
    return fields.mapping(of_jobset), fields.mapping(of_job)


def _labels_of_job(name: str, uid: str) -> dict[str, str]:
    return {constants.CONTROLLER_UID: uid, constants.JOB_NAME: name, "controller-uid": uid, "job-name": name}
