"""Turn raw JSON of pods, JobSets and nodes into the narrow records of the model.

Total: whatever JSON comes in, a record, None ("not one of ours") or MalformedObject comes out. A field of a wrong type
counts as absent, except where a guess would be dangerous: an identity, or an amount of chips, CPU or memory. The API
server has validated the objects; nothing here checks them again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.bounded import BoundedReader
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.model.capacity import Node, PoolName, Taint
from provisioner.model.workloads import GroupKey, Pod, PodGroup, Workload, WorkloadUid, group_key

_JOB = ("batch/v1", "Job")
#: What a decision needs of a JobSet that is refused for having too many labels.
_KEPT_JOBSET_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING)


def parse_pod(raw: object) -> Pod | None:
    """Read a pod; None unless it belongs to a JobSet and asks for chips."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    labels = fields.mapping(metadata.get("labels"))
    annotations = fields.mapping(metadata.get("annotations"))

    def marked(key: str) -> str:
        return fields.name(labels.get(key)) or fields.name(annotations.get(key))

    workload_name = marked(constants.JOBSET_NAME)
    if not workload_name:
        return None
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    namespace, name, uid = fields.identity("pod", metadata)
    what = f"pod {namespace}/{name}"
    requirements = podspec.requirements(what, spec, metadata)
    if requirements.chips == 0:
        return None
    status = fields.mapping(fields.mapping(raw).get("status"))
    created_at = parse_timestamp(metadata.get("creationTimestamp"))
    phase = fields.name(status.get("phase")) or "Pending"
    since, words = None, ""
    if phase == "Pending":
        for condition in fields.mappings(status.get("conditions")):
            if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
                continue
            if condition.get("reason") == "Unschedulable":
                since = parse_timestamp(condition.get("lastTransitionTime")) or created_at
                words = bounds.cut(fields.text(condition.get("message")), bounds.SCHEDULER_MESSAGE)
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        workload_name=workload_name,
        workload_uid=marked(constants.JOBSET_UID),
        group_key=group_key_of(namespace, metadata),
        completion_index=fields.index(marked(constants.COMPLETION_INDEX)),
        phase=phase,
        node_name=fields.name(spec.get("nodeName")),
        requirements=requirements,
        created_at=created_at or fields.UNKNOWN_TIME,
        unschedulable_since=since,
        unschedulable_message=words,
        deletion_deadline=fields.deletion_deadline(what, metadata),
    )


def parse_jobset(raw: object) -> Workload:
    """Read a JobSet of API version v1alpha2."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    namespace, name, uid = fields.identity("JobSet", metadata)
    what = f"JobSet {namespace}/{name}"
    reader = BoundedReader("a JobSet", most_characters=bounds.JOBSET)
    labels = reader.labels("labels", metadata.get("labels"), keep=_KEPT_JOBSET_LABELS)
    annotations = reader.annotations(metadata.get("annotations"), keep=constants.READ_ANNOTATIONS)
    jobs = []
    entries = fields.mappings(spec.get("replicatedJobs"))
    if len(entries) > bounds.REPLICATED_JOBS:
        reader.refuse(f"spec.replicatedJobs {bounds.too_many('entries', len(entries), bounds.REPLICATED_JOBS)}")
    for entry in itertools.islice(entries, bounds.REPLICATED_JOBS):
        job_spec = fields.mapping(fields.mapping(entry.get("template")).get("spec"))
        template = fields.mapping(job_spec.get("template"))
        template_reader = podspec.reader_of_pod(within=reader)
        jobs.append(
            PodGroup(
                name=template_reader.text("the name of a replicated job", entry.get("name"), most=bounds.OBJECT_NAME),
                replicas=fields.count(entry.get("replicas"), default=1),
                parallelism=fields.count(job_spec.get("parallelism"), default=1),
                template=podspec.requirements(
                    what,
                    fields.mapping(template.get("spec")),
                    fields.mapping(template.get("metadata")),
                    reader=template_reader,
                ),
            )
        )
    return Workload(
        namespace=namespace,
        name=name,
        uid=WorkloadUid(uid),
        groups=tuple(jobs),
        suspended=spec.get("suspend") is True,
        terminal_state=_terminal_state(fields.mapping(fields.mapping(raw).get("status"))),
        deleting=metadata.get("deletionTimestamp") is not None,
        labels=labels,
        annotations=annotations,
        managed_by=fields.name(spec.get("managedBy")),
        problem=reader.problem or _too_much_work(jobs),
        created_at=parse_timestamp(metadata.get("creationTimestamp")) or fields.UNKNOWN_TIME,
    )


def _too_much_work(jobs: Iterable[PodGroup]) -> str:
    """Say what there is too much of in a JobSet; child Jobs without chips are no work here."""
    with_chips = [job for job in jobs if job.template.chips > 0]
    for job in with_chips:
        if job.template.problem:
            return f"replicated job {bounds.cut(job.name)}: {job.template.problem}"
        if job.parallelism > bounds.PARALLELISM:
            return (
                f"replicated job {bounds.cut(job.name)} has parallelism {job.parallelism:,}, and at most "
                f"{bounds.PARALLELISM:,} pods of one child Job are served; no slice has more hosts"
            )
    children = sum(job.replicas for job in with_chips)
    if children > bounds.CHILD_JOBS:
        return (
            f"it has {children:,} child Jobs that request chips, and at most {bounds.CHILD_JOBS:,} are served; split "
            f"it into several JobSets"
        )
    return ""


def parse_node(raw: object) -> Node | None:
    """Read a node; None unless GKE's label says which node pool it belongs to."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    pool_name = fields.name(fields.mapping(metadata.get("labels")).get(constants.NODE_POOL))
    if not pool_name:
        return None
    name = fields.name(metadata.get("name"))
    what = f"node {name}"
    created_at = parse_timestamp(metadata.get("creationTimestamp"))
    if not name or created_at is None:
        raise fields.MalformedObject(
            f"node {name or '?'} of pool {pool_name}: it has no name, or creationTimestamp "
            f"{fields.shown(metadata.get('creationTimestamp'))} is not an RFC 3339 time"
        )
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    status = fields.mapping(fields.mapping(raw).get("status"))
    allocatable = fields.mapping(status.get("allocatable"))
    chips = podspec.quantity_of(what, "allocatable", constants.TPU_RESOURCE, allocatable)
    return Node(
        name=name,
        uid=fields.name(metadata.get("uid")),
        pool_name=PoolName(pool_name),
        labels=kept_labels(metadata.get("labels")),
        taints=tuple(
            Taint(
                key=fields.name(taint.get("key")),
                value=fields.name(taint.get("value")),
                effect=fields.name(taint.get("effect")),
            )
            for taint in itertools.islice(fields.mappings(spec.get("taints")), bounds.NODE_TAINTS)
        ),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in fields.mappings(status.get("conditions"))
        ),
        cordoned=spec.get("unschedulable") is True,
        cordoned_by_us=fields.mapping(metadata.get("annotations")).get(constants.CORDONED) == "true",
        # A device plugin reports whole devices; a fraction could only be a promise that no pod can use.
        allocatable_chips=int(chips),
        allocatable_cpu_millicores=int(podspec.quantity_of(what, "allocatable", "cpu", allocatable) * 1000),
        allocatable_memory_bytes=int(podspec.quantity_of(what, "allocatable", "memory", allocatable)),
        provider_id=fields.name(spec.get("providerID")),
        created_at=created_at,
    )


def group_key_of(namespace: str, metadata: dict[str, Any]) -> GroupKey:
    """Return the key of the Job that controls a pod; empty where no Job does.

    The labels say the same, but whoever makes a pod writes its labels; the reference is what the Job controller and the
    garbage collector go by.
    """
    for reference in fields.mappings(metadata.get("ownerReferences")):
        if reference.get("controller") is True and (reference.get("apiVersion"), reference.get("kind")) == _JOB:
            name = fields.name(reference.get("name"))
            return group_key(namespace, name) if name else GroupKey("")
    return GroupKey("")


def _terminal_state(status: dict[str, Any]) -> str:
    """Read how a JobSet ended; releases before terminalState only have conditions."""
    state = fields.name(status.get("terminalState"))
    if state:
        return state
    for condition in fields.mappings(status.get("conditions")):
        if condition.get("type") in ("Completed", "Failed") and condition.get("status") == "True":
            return fields.text(condition["type"])
    return ""


def kept_labels(raw: object) -> dict[str, str]:
    """Read the labels of a node or namespace, as many as such an object needs; only administrators write them."""
    entries = (
        (fields.name(key), fields.name(value)) for key, value in fields.mapping(raw).items() if isinstance(value, str)
    )
    return dict(itertools.islice(entries, bounds.CLUSTER_OBJECT_LABELS))
