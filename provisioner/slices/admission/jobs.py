"""Selectors of Jobs, changed when they are created, as the Go provisioner's admission_controller did.

Only of those that get node pools: others would wait for nodes that nobody makes, or lose what they ask somebody else
for.
Single keys are added and removed, so that all others stay; what a Job says itself stays, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provisioner import constants
from provisioner.admission.patch import Operation, pointer
from provisioner.admission.review import Answer, Request
from provisioner.kube import fields, podspec
from provisioner.model.workloads import WorkloadKind, group_key
from provisioner.slices.admission.shapes import is_left_alone
from provisioner.workloads.owners import controller_of

#: The selector that keeps each job on nodes of its own; the provisioner copies it to them.
JOB_KEY_SELECTOR = "job-key"
_AT = ("spec", "template", "spec", "nodeSelector")
#: What asks for other capacity than on-demand.
_NOT_ON_DEMAND = (
    constants.RESERVATION_NAME,
    constants.RESERVATION_PROJECT,
    constants.RESERVATION_BLOCK,
    constants.RESERVATION_SUB_BLOCK,
    constants.SPOT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """What the administrator wants of the Jobs that request chips."""

    #: Child Jobs of JobSets get a selector that no other job has.
    job_key: bool = False
    #: The value of a selector; empty for none.
    location_hint: str = ""
    #: Selectors of reservations and spot are removed.
    on_demand: bool = False
    #: Those that are served; empty: all.
    namespaces: frozenset[str] = frozenset()
    #: Plain Jobs that ask for it are served.
    serve_jobs: bool = True

    @property
    def any(self) -> bool:
        """Whether there is something to change."""
        return self.job_key or bool(self.location_hint) or self.on_demand


def jobset_to_read(request: Request, changes: JobChanges) -> str:
    """Return the JobSet that may keep its child Job from being changed; empty where there is nothing to read."""
    jobset = _jobset_of(request)
    # It opts out of nothing that would not be done.
    return jobset if jobset and review_job(request, changes, {}).patch else ""


def review_job(request: Request, changes: JobChanges, jobset: Mapping[str, Any] | None = None) -> Answer:
    """Answer the review of a Job that is created, with its JobSet as it was read; all else is admitted as it is."""
    if not changes.any or (request.kind, request.operation, request.subresource) != ("Job", "CREATE", ""):
        return Answer()
    template = fields.mapping(fields.mapping(request.object.get("spec")).get("template"))
    spec = fields.mapping(template.get("spec"))
    selector = spec.get("nodeSelector")
    try:
        chips = podspec.requested_chips("pod template", spec)
    except fields.MalformedObject:
        # It is somebody else's to say.
        return Answer()
    if chips == 0 or not isinstance(selector, dict) or not _is_served(request, template, jobset, changes):
        return Answer()
    return Answer(patch=tuple(_operations(selector, _additions(request, changes), changes)))


def _is_served(
    request: Request, template: Mapping[str, Any], jobset: Mapping[str, Any] | None, changes: JobChanges
) -> bool:
    """Whether the Job gets a node pool here, as far as it can be told."""
    metadata = fields.mapping(request.object.get("metadata"))
    if _jobset_of(request):
        asks = jobset is not None
    else:
        asks = changes.serve_jobs and fields.mapping(metadata.get("annotations")).get(constants.SERVE) == "true"
    marked = (metadata, fields.mapping(template.get("metadata")), fields.mapping((jobset or {}).get("metadata")))
    selector = fields.mapping(fields.mapping(template.get("spec")).get("nodeSelector"))
    return (
        asks
        and constants.TPU_TOPOLOGY in selector
        and (not changes.namespaces or request.namespace in changes.namespaces)
        and not any(map(is_left_alone, marked))
    )


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


def _operations(selector: Mapping[str, Any], added: Mapping[str, str], changes: JobChanges) -> Iterator[Operation]:
    for key, value in added.items():
        if key not in selector:
            yield Operation(op="add", path=pointer(*_AT, key), value=value)
    for key in _NOT_ON_DEMAND if changes.on_demand else ():
        if key in selector:
            yield Operation(op="remove", path=pointer(*_AT, key))
