"""Reads plain Jobs: Jobs that have the annotation SERVE and no JobSet. The only group of a Job has the Job's name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import PodGroup, Workload, WorkloadKind
from provisioner.workloads.kind import Claim, Kind, begin, controller_of, marked, template_of, too_much

JOB = (WorkloadKind.JOB.api_version, WorkloadKind.JOB.value)
_NOT_OF_JOBSETS = f"!{constants.JOBSET_NAME}"


def pods_of_job(spec: Mapping[str, Any]) -> int:
    """Return the maximum number of pods of a Job that run at the same time, from the spec of the Job."""
    parallelism = fields.count(spec.get("parallelism"))
    return min(parallelism, fields.count(spec.get("completions"), default=parallelism))


def parse_job(raw: object) -> Workload | None:
    """Read a Job; None without the annotation SERVE, and for a Job of a JobSet. Raises MalformedObject."""
    metadata, spec = (fields.at(raw, part) for part in ("metadata", "spec"))
    asks = fields.mapping(metadata.get("annotations")).get(constants.SERVE) == "true"
    if not asks or constants.JOBSET_NAME in fields.mapping(metadata.get("labels")):
        return None
    owner = controller_of(metadata)
    if owner is not None and owner.kind == WorkloadKind.JOBSET.value:
        return None
    workload, reader = begin(WorkloadKind.JOB, raw, controller=constants.JOB_CONTROLLER)
    pods = pods_of_job(spec)
    title = f"Job {workload.namespace}/{workload.name}"
    template = template_of(title, spec.get("template"), podspec.reader_of_pod(within=reader))
    group = PodGroup(
        name="",
        replicas=1,
        numbered=False,
        lowest_leads=True,
        deadline_seconds=fields.count(spec.get("activeDeadlineSeconds"), default=0),
        parallelism=pods,
        template=template,
    )
    problem = reader.problem
    if not problem and template.chips > 0:
        problem = _not_served(spec, owner.kind if owner else "") or too_much(workload.kind, [group])
    # A parallelism of 0 counts as suspended: the Job controller deletes all pods in both cases.
    suspended = workload.suspended or fields.count(spec.get("parallelism")) == 0
    return replace(workload, groups=(group,), suspended=suspended, problem=problem)


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Read a pod's Job from the controller reference, and the completion index; None if the pod names no Job."""
    owner = controller_of(metadata, JOB)
    # Without a controller, the label names the Job, but the pod has no group: the Job may have been deleted.
    if owner is None or not (owner.name and owner.uid):
        name = fields.name(fields.mapping(metadata.get("labels")).get(constants.JOB_NAME))
        return Claim(kind=WorkloadKind.JOB, name=name) if name else None
    index = fields.index(marked(metadata, constants.COMPLETION_INDEX))
    return Claim(kind=WorkloadKind.JOB, name=owner.name, uid=owner.uid, group_name=owner.name, index=index)


def _not_served(spec: dict[str, Any], owner_kind: str) -> tuple[str, ...]:
    if owner_kind:
        return f"a {bounds.cut(owner_kind)} controls it", "annotate only Jobs that no other object controls"
    if spec.get("completionMode") != "Indexed":
        return (
            "its completionMode is not Indexed, so its pods have no completion index",
            "create it again with completionMode: Indexed",
        )
    if marked(fields.at(spec, "template", "metadata"), constants.JOBSET_NAME):
        return f"its pod template has {constants.JOBSET_NAME}, so its pods count as a JobSet's", "remove that"
    return ()


PLAIN_JOB = Kind(
    kind=WorkloadKind.JOB,
    pod_label=constants.JOB_NAME,
    selector=_NOT_OF_JOBSETS,
    parse=parse_job,
    templates="template",
    claim_of=claim_of,
    optional=True,
    on_request="SERVE_JOBS",
    served=lambda settings: settings.serve_jobs,
)
