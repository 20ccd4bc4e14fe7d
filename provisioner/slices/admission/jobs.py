"""Selectors of Jobs, changed when they are created, as the Go provisioner's admission_controller did.

Only of those that get a node pool with the changed selectors: others would wait for nodes that nobody makes, or lose
what they ask somebody else for. Bounds and limits on all Jobs of a JobSet together are not looked at.
Single keys are added and removed, so that all others stay; what a Job says itself stays, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provisioner import constants
from provisioner.admission.review import Answer, Operation, Request, pointer
from provisioner.kube import fields, podspec
from provisioner.model.workloads import WorkloadKind, group_key
from provisioner.slices.admission.validation import Judge, lasting
from provisioner.slices.offline.documents import Document
from provisioner.slices.offline.forecast import forecast
from provisioner.workloads.kind import controller_of

#: The selector that keeps each job on nodes of its own; the provisioner copies it to them.
JOB_KEY_SELECTOR = "job-key"
_AT = ("spec", "template", "spec", "nodeSelector")
#: What asks for other capacity than on-demand, or is only read with it.
_NOT_ON_DEMAND = (constants.SPOT, constants.PREEMPTIBLE, constants.FLEX_START, constants.MAX_RUN_SECONDS)
_RESERVATIONS = "cloud.google.com/reservation-"
_STANDARD = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """What the administrator wants of the Jobs that request chips."""

    #: Child Jobs of JobSets get a selector that no other job has.
    job_key: bool = False
    #: The value of a selector; empty for none.
    location_hint: str = ""
    on_demand: bool = False


def jobset_to_read(request: Request, changes: JobChanges) -> str:
    """Return the JobSet without which nothing tells whether a child Job is served; empty where nothing would change."""
    return _jobset_of(request) if _changed(request, changes) is not None else ""


def review_job(request: Request, changes: JobChanges, by: Judge, jobset: Mapping[str, Any] | None = None) -> Answer:
    """Answer the review of a Job that is created, with its JobSet as it was read; all else is admitted as it is."""
    selectors = _changed(request, changes)
    if selectors is None or (_jobset_of(request) and jobset is None):
        return Answer()
    before, after = selectors
    document = Document(_alone(_with_selector(request.object, after), jobset))
    settings = lasting(by.settings_of(document), document.raw)
    if not forecast([document], settings, by.rules, default_namespace=request.namespace).pools:
        return Answer()
    added = (Operation(op="add", path=pointer(*_AT, key), value=after[key]) for key in after if key not in before)
    removed = (Operation(op="remove", path=pointer(*_AT, key)) for key in before if key not in after)
    return Answer(patch=(*added, *removed))


def _with_selector(job: Mapping[str, Any], selector: Mapping[str, Any]) -> dict[str, Any]:
    spec = job["spec"]
    pod_spec = {**spec["template"]["spec"], "nodeSelector": selector}
    return {**job, "spec": {**spec, "template": {**spec["template"], "spec": pod_spec}}}


def _alone(job: dict[str, Any], jobset: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a JobSet with one child Job alone, or a Job of no JobSet as it is."""
    if jobset is None:
        return job
    only = {"name": "only", "replicas": 1, "template": {"spec": job["spec"]}}
    return {**jobset, "spec": {**fields.mapping(jobset.get("spec")), "replicatedJobs": [only]}}


def _changed(request: Request, changes: JobChanges) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the node selector of a Job that is created, and what it is to be; None where nothing is to change."""
    if (request.kind, request.operation, request.subresource) != ("Job", "CREATE", ""):
        return None
    spec = fields.mapping(fields.mapping(fields.mapping(request.object.get("spec")).get("template")).get("spec"))
    before = spec.get("nodeSelector")
    try:
        chips = podspec.requested_chips("pod template", spec)
    except fields.MalformedObject:
        # It is somebody else's to say.
        return None
    if chips == 0 or not isinstance(before, dict):
        return None
    kept = {key: value for key, value in before.items() if not (changes.on_demand and _is_other(key, value))}
    after = {**kept, **{key: value for key, value in _additions(request, changes).items() if key not in before}}
    return (before, after) if after != before else None


def _is_other(key: str, value: object) -> bool:
    """Whether a selector is one of other capacity than on-demand."""
    other = key in _NOT_ON_DEMAND or (key == constants.PROVISIONING and value != _STANDARD)
    return other or key.startswith(_RESERVATIONS)


def _jobset_of(request: Request) -> str:
    maker = controller_of(fields.mapping(request.object.get("metadata")))
    return maker.name if maker is not None and maker.kind == WorkloadKind.JOBSET.value else ""


def _additions(request: Request, changes: JobChanges) -> dict[str, str]:
    added: dict[str, str] = {}
    metadata = fields.mapping(request.object.get("metadata"))
    name = fields.name(metadata.get("name"))
    if changes.job_key and name and _jobset_of(request):
        added[JOB_KEY_SELECTOR] = group_key(request.namespace or fields.name(metadata.get("namespace")), name)
    if changes.location_hint:
        added[constants.LOCATION_HINT] = changes.location_hint
    return added
