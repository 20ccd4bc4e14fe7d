"""Plain Jobs, served only with the annotation that asks for it: the one group of a Job has the Job's own name.

A cluster may have tens of thousands of Jobs that are none of our business. Nothing is kept of those.
"""

from __future__ import annotations

from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.bounded import BoundedReader
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.model.workloads import PodGroup, Requirements, Workload, WorkloadKind, WorkloadUid
from provisioner.workloads.kind import Claim, Kind
from provisioner.workloads.owners import controller_of, managed_elsewhere, marked
from provisioner.workloads.suspension import suspension_changed_at

#: API version and kind, as in owner references.
JOB = (WorkloadKind.JOB.api_version, WorkloadKind.JOB.value)

#: What a decision needs of a Job that is rejected for having too many labels.
_KEPT_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING)
_TERMINAL_STATES = {"Complete": "Completed", "Failed": "Failed"}
#: Child Jobs of JobSets are part of their JobSet.
_NOT_OF_JOBSETS = f"!{constants.JOBSET_NAME}"


def parse_job(raw: object) -> Workload | None:
    """Read a Job of API version v1; None for one that does not ask to be served, or is of a JobSet."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    own = fields.mapping(metadata.get("annotations"))
    if own.get(constants.SERVE) != "true" or constants.JOBSET_NAME in fields.mapping(metadata.get("labels")):
        return None
    owner = controller_of(metadata)
    if owner is not None and owner.kind == WorkloadKind.JOBSET.value:
        return None
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    namespace, name, uid = fields.identity("Job", metadata)
    reader = BoundedReader("a Job", most_characters=bounds.JOBSET)
    labels = reader.labels("labels", metadata.get("labels"), keep=_KEPT_LABELS)
    annotations = reader.annotations(own, keep=constants.READ_ANNOTATIONS)
    parallelism = fields.count(spec.get("parallelism"), default=1)
    pods = min(parallelism, fields.count(spec.get("completions"), default=parallelism))
    template = fields.mapping(spec.get("template"))
    requirements = podspec.requirements(
        f"Job {namespace}/{name}",
        fields.mapping(template.get("spec")),
        fields.mapping(template.get("metadata")),
        reader=podspec.reader_of_pod(within=reader),
    )
    problem = reader.problem
    if not problem and requirements.chips > 0:
        problem = requirements.problem or _not_served(spec, owner.kind if owner else "") or _too_many_pods(pods)
    return Workload(
        kind=WorkloadKind.JOB,
        namespace=namespace,
        name=name,
        uid=WorkloadUid(uid),
        groups=(_group(pods, requirements),),
        # The Job controller deletes all pods in both cases.
        suspended=spec.get("suspend") is True or parallelism == 0,
        terminal_state=_terminal_state(fields.mapping(fields.mapping(raw).get("status"))),
        deleting=metadata.get("deletionTimestamp") is not None,
        labels=labels,
        annotations=annotations,
        managed_by=managed_elsewhere(spec, usual=constants.JOB_CONTROLLER),
        problem=problem,
        created_at=parse_timestamp(metadata.get("creationTimestamp")) or fields.UNKNOWN_TIME,
        suspension_changed_at=suspension_changed_at(fields.mapping(fields.mapping(raw).get("status"))),
    )


def claim_of(_namespace: str, metadata: dict[str, Any]) -> Claim | None:
    """Read of which Job a pod is, by the controller reference alone, and its completion index.

    One that only its label calls a Job's is of no group: it may outlive a Job that was deleted without its pods.
    """
    owner = controller_of(metadata, JOB)
    if owner is None or not (owner.name and owner.uid):
        name = fields.name(fields.mapping(metadata.get("labels")).get(constants.JOB_NAME))
        return Claim(kind=WorkloadKind.JOB, name=name) if name else None
    index = fields.index(marked(metadata, constants.COMPLETION_INDEX))
    return Claim(kind=WorkloadKind.JOB, name=owner.name, uid=owner.uid, group_name=owner.name, index=index)


def _group(pods: int, template: Requirements) -> PodGroup:
    return PodGroup(name="", replicas=1, numbered=False, lowest_leads=True, parallelism=pods, template=template)


def _not_served(spec: dict[str, Any], owner_kind: str) -> str:
    """Say why a Job that asks to be served is not; empty where it is."""
    if owner_kind:
        return f"a {bounds.cut(owner_kind)} controls it; annotate only Jobs that no other object controls"
    if spec.get("completionMode") != "Indexed":
        return (
            "its completionMode is not Indexed, so that its pods have no completion index; create it again with "
            "completionMode: Indexed"
        )
    if marked(fields.mapping(fields.mapping(spec.get("template")).get("metadata")), constants.JOBSET_NAME):
        return f"its pod template has {constants.JOBSET_NAME}, so that its pods count as a JobSet's; remove that"
    return ""


def _too_many_pods(pods: int) -> str:
    if pods > bounds.PARALLELISM:
        return f"it has {pods:,} pods at once, and at most {bounds.PARALLELISM:,} are served; no slice has more hosts"
    return ""


def _terminal_state(status: dict[str, Any]) -> str:
    for condition in fields.mappings(status.get("conditions")):
        state = _TERMINAL_STATES.get(fields.text(condition.get("type")))
        if state is not None and condition.get("status") == "True":
            return state
    return ""


def _without_templates(raw: dict[str, Any]) -> dict[str, Any]:
    spec = fields.mapping(raw.get("spec"))
    return {**raw, "spec": {key: value for key, value in spec.items() if key != "template"}}


PLAIN_JOB = Kind(
    kind=WorkloadKind.JOB,
    resource="jobs",
    plural="Jobs",
    pod_label=constants.JOB_NAME,
    selector=_NOT_OF_JOBSETS,
    parse=parse_job,
    without_templates=_without_templates,
    claim_of=claim_of,
    optional=True,
    # Of which a cluster may have very many.
    served=lambda settings: settings.serve_jobs,
)
