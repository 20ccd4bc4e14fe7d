"""Read objects as the API server would show them once they are created, with all that is wrong with each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from provisioner import constants, workloads
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import Pod, Workload, WorkloadKind, WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.offline import schema
from provisioner.slices.offline.documents import MOST_BYTES, Document, Path, dotted, mappings_in, value_at
from provisioner.slices.offline.expand import Template, leaders_of, made_up_uid, templates_of
from provisioner.slices.offline.findings import Finding, Severity
from provisioner.slices.offline.places import path_of
from provisioner.workloads.owners import controller_of
from provisioner.workloads.pods import parse_pod

#: Nothing depends on it: all objects are equally old.
MOMENT = datetime(2000, 1, 1, tzinfo=UTC)
#: Of all files together: more than one cluster has.
MOST_SLICES = 5_000
_KINDS = {each.value: each for each in WorkloadKind}
_POD, _NAMESPACE = "Pod", "Namespace"
_VERSIONS = {
    **{kind.value: described.root.removeprefix("/apis/") for kind, described in workloads.KINDS.items()},
    _POD: "v1",
    _NAMESPACE: "v1",
}


@dataclass(slots=True)
class Subject:
    """A workload of a manifest."""

    document: Document
    workload: Workload
    templates: list[Template]
    pods: list[Pod] = field(default_factory=list)
    #: The API server takes it.
    accepted: bool = True


@dataclass(slots=True)
class Reading:
    """What is read of all objects."""

    settings: Settings
    default_namespace: str
    #: So many slices of each template stand for all of them; None: all are looked at.
    most_of_template: int | None = None
    subjects: dict[WorkloadUid, Subject] = field(default_factory=dict)
    remarks: list[Finding] = field(default_factory=list)
    #: What the API server rejects in the text of objects.
    problems: list[Finding] = field(default_factory=list)
    namespace_labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    #: Kind, namespace and name -> where.
    seen: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    others: int = 0
    slices: int = 0

    def reject(self, document: Document, message: str, path: Path = ()) -> None:
        """Say what the API server rejects in the text of an object."""
        self.problems.append(Finding(document, path, message, Severity.ERROR))

    def remark(
        self,
        document: Document,
        path: Path,
        subject: str,
        message: str,
        severity: Severity = Severity.ERROR,
        *,
        impossible: bool = False,
    ) -> None:
        """Say something that no Event says."""
        self.remarks.append(Finding(document, path, message, severity, subject, impossible=impossible))


def read_document(reading: Reading, document: Document, number: int) -> None:
    """Read one object."""
    raw = document.raw
    kind, version = fields.text(raw.get("kind")), fields.text(raw.get("apiVersion"))
    if not kind or not version:
        reading.reject(document, "is no Kubernetes object: apiVersion or kind is missing")
        return
    if document.size > MOST_BYTES:
        message = f"has {document.size:,} characters, its aliases expanded; the API server takes {MOST_BYTES:,}"
        reading.reject(document, message)
        return
    if kind not in _VERSIONS or version.partition("/")[0] != _VERSIONS[kind].partition("/")[0]:
        reading.others += 1
        _tell_of_others(reading, document, kind)
        return
    if version != _VERSIONS[kind]:
        message = f"apiVersion {bounds.cut(version)} of a {kind} is not served; use {_VERSIONS[kind]}"
        reading.reject(document, message, ("apiVersion",))
        return
    meant, wrong = schema.checked(kind, raw)
    for path, message in wrong:
        reading.reject(document, message, path)
    if not isinstance(meant, dict):
        return
    meant = _as_created(meant, reading.default_namespace, number)
    metadata = meant["metadata"]
    if not metadata["name"]:
        reading.reject(document, f"the {kind} has no metadata.name; add one", ("metadata",))
        return
    identity = (kind, metadata["namespace"], metadata["name"])
    first = reading.seen.setdefault(identity, document)
    if first is not document:
        there = f"{first.source}:{first.line}"
        message = f"{title(kind, metadata)} is there twice, first in {there}; only the first is planned"
        reading.reject(document, message)
        return
    if kind == _NAMESPACE:
        reading.others += 1
        labels = fields.mapping(metadata.get("labels"))
        reading.namespace_labels[metadata["name"]] = {key: str(value) for key, value in labels.items()}
        return
    _tell_of_keys(reading, document, title(kind, metadata))
    if kind == _POD:
        _read_pod(reading, document, meant)
    else:
        _read_workload(reading, document, _KINDS[kind], meant, accepted=not wrong)


def _as_created(raw: dict[str, Any], namespace: str, number: int) -> dict[str, Any]:
    """Return an object as the API server would show it right after it was created, and not suspended."""
    metadata = fields.mapping(raw.get("metadata"))
    name = fields.text(metadata.get("name"))
    if not name and fields.text(metadata.get("generateName")):
        name = f"{metadata['generateName']}xxxxx"
    kept = {key: value for key, value in metadata.items() if key != "deletionTimestamp"}
    created = {
        **kept,
        "name": name,
        "namespace": fields.text(metadata.get("namespace")) or namespace,
        "uid": fields.text(metadata.get("uid")) or made_up_uid(number),
        "creationTimestamp": MOMENT.isoformat(),
    }
    spec = {key: value for key, value in fields.mapping(raw.get("spec")).items() if key != "suspend"}
    return {**{key: value for key, value in raw.items() if key != "status"}, "metadata": created, "spec": spec}


def _read_workload(
    reading: Reading, document: Document, kind: WorkloadKind, raw: dict[str, Any], *, accepted: bool
) -> None:
    named = title(kind.value, raw["metadata"])
    templates = templates_of(kind, raw)
    if kind is WorkloadKind.JOB and not _is_for_us(reading, document, raw, named):
        reading.others += 1
        return
    try:
        workload = workloads.KINDS[kind].parse(raw)
        if workload is None:
            reading.others += 1
            return
        subject = Subject(document, workload, templates, accepted=accepted)
        for template in templates:
            _expand(reading, subject, kind, raw, template)
    except fields.MalformedObject as error:
        only = templates[0] if len(templates) == 1 else None
        reading.remark(document, path_of(str(error), document.raw, only), named, str(error), impossible=True)
        return
    if fields.mapping(document.raw.get("spec")).get("suspend") is True:
        message = "is suspended; this is what it gets when it is resumed"
        reading.remark(document, ("spec", "suspend"), named, message, Severity.NOTE)
    if workload.uid in reading.subjects:
        message = f"metadata.uid {bounds.cut(workload.uid)} is that of another object in these files; remove it"
        reading.reject(document, message, ("metadata", "uid"))
        return
    if kind is WorkloadKind.JOB and not reading.settings.serve_jobs:
        message = "Jobs are served only with the setting SERVE_JOBS=true; ask the administrator to set it"
        reading.remark(document, (), named, message, Severity.NOT_SERVED)
        # What else is wrong with it is said all the same.
        subject.accepted = False
    reading.subjects[workload.uid] = subject


def _is_for_us(reading: Reading, document: Document, raw: dict[str, Any], named: str) -> bool:
    """Whether a Job asks to be served; where it does not and requests chips, that is said."""
    asks = fields.mapping(raw["metadata"].get("annotations")).get(constants.SERVE) == "true"
    path = _chips_path(raw, ("spec", "template"))
    jobset = _jobset_of(raw["metadata"])
    if jobset:
        if path is not None:
            message = f"is a Job of JobSet {bounds.cut(jobset)}; plan the JobSet itself, which it is made from"
            reading.remark(document, ("metadata",), named, message, Severity.NOTE)
        return False
    if path is not None and not asks:
        message = (
            f'its pods request chips, but Jobs are served only with the annotation {constants.SERVE}: "true" and '
            "the setting SERVE_JOBS=true; add the annotation, or use a JobSet"
        )
        reading.remark(document, path, named, message, Severity.NOT_SERVED)
    return asks


def _jobset_of(metadata: dict[str, Any]) -> str:
    """Return the JobSet that a Job is one of; empty for none."""
    owner = controller_of(metadata)
    if owner is not None and owner.kind == WorkloadKind.JOBSET.value:
        return owner.name
    return fields.text(fields.mapping(metadata.get("labels")).get(constants.JOBSET_NAME))


def _expand(reading: Reading, subject: Subject, kind: WorkloadKind, raw: dict[str, Any], template: Template) -> None:
    """Make the leader pods of one template that request chips."""
    workload = subject.workload
    if workload.problem or template.place >= len(workload.groups):
        # It is told once, and no pod of it is served.
        return
    if workload.groups[template.place].template.chips == 0:
        return
    numbers = _numbers(template.replicas, reading.most_of_template)
    named = title(kind.value, raw["metadata"])
    if len(numbers) > MOST_SLICES - reading.slices:
        message = f"is left out: at most {MOST_SLICES:,} slices are planned at once; plan fewer files at once"
        reading.remark(subject.document, template.replicas_path, named, message)
        return
    found = list(leaders_of(kind, raw, template, MOMENT, numbers))
    if template.replicas == 0 or template.pods == 0:
        path = template.pods_path if template.replicas else template.replicas_path
        message = f"{dotted(path)} is 0, so that there are no pods and no node pools"
        reading.remark(subject.document, path, named, message, Severity.NOTE)
        return
    if not template.indexed:
        message = (
            "its completionMode is not Indexed, so that its pods have no completion index, and no leader; set "
            "completionMode: Indexed"
        )
        reading.remark(subject.document, (*template.pods_path[:-1], "completionMode"), named, message)
    reading.slices += len(found)
    subject.pods += filter(None, map(parse_pod, found))


def _numbers(replicas: int, most: int | None) -> Sequence[int]:
    """Return which slices stand for all of a template: the first ones, and the last one, whose name is the longest."""
    if most is None or replicas <= most:
        return range(replicas)
    return [*range(most - 1), replicas - 1]


def _read_pod(reading: Reading, document: Document, raw: dict[str, Any]) -> None:
    """Say of a pod that nobody makes a node pool for it: pods belong to workloads."""
    named = title(_POD, raw["metadata"])
    try:
        pod = parse_pod(raw)
        chips = podspec.requested_chips(named.replace(_POD, "pod", 1), raw["spec"])
    except fields.MalformedObject as error:
        reading.remark(document, path_of(str(error), document.raw, _BARE), named, str(error))
        return
    reading.others += 1
    if chips == 0:
        return
    if pod is not None:
        message = (
            f"is a pod of {pod.kind.value} {bounds.cut(pod.workload_name)}; plan the {pod.kind.value} itself, which "
            "its pods are made from"
        )
        reading.remark(document, ("metadata",), named, message, Severity.NOTE)
        return
    message = (
        "requests chips, but no JobSet, LeaderWorkerSet or Job controls it, and other pods are not served; create it "
        "as a JobSet, or as a Job"
    )
    reading.remark(document, _chips_path(raw, ()) or (), named, message, Severity.NOT_SERVED)


def _tell_of_others(reading: Reading, document: Document, kind: str) -> None:
    """Say of an object of another kind that its pods request chips and are not served."""
    path = _find_chips(document)
    if path is None:
        return
    metadata = fields.mapping(document.raw.get("metadata"))
    shown = {
        "namespace": fields.text(metadata.get("namespace")) or reading.default_namespace,
        "name": fields.text(metadata.get("name")) or fields.text(metadata.get("generateName")),
    }
    named = title(bounds.cut(kind), shown)
    # Its label is on the StatefulSets that the controller makes.
    of_set = fields.text(fields.mapping(metadata.get("labels")).get(constants.LWS_NAME))
    if of_set:
        message = (
            f"is a {bounds.cut(kind)} of LeaderWorkerSet {bounds.cut(of_set)}; plan that itself, which it is made from"
        )
        reading.remark(document, ("metadata",), named, message, Severity.NOTE)
        return
    message = (
        f"its pods request chips, but a {bounds.cut(kind)} is not served; use a JobSet, a LeaderWorkerSet or a Job"
    )
    reading.remark(document, path, named, message, Severity.NOT_SERVED)
    _tell_of_keys(reading, document, named)


def _tell_of_keys(reading: Reading, document: Document, named: str) -> None:
    opts_in = (reading.settings.opt_in_label or ())[:1]
    for path, message in islice(schema.unread_keys(document.value), schema.MOST_PROBLEMS):
        if path[-1:] != opts_in:
            reading.remark(document, path, named, message, Severity.WARNING)


_BARE = Template(
    place=0, name="", replicas=1, pods=1, indexed=False, path=(), pods_path=("spec",), replicas_path=("spec",)
)


def _chips_path(raw: dict[str, Any], template: Path) -> Path | None:
    """Return the field of a pod template that requests chips; None where none does."""
    spec = fields.mapping(value_at(raw, (*template, "spec")))
    for part in ("containers", "initContainers"):
        for index, container in enumerate(fields.sequence(spec.get(part))):
            resources = fields.mapping(fields.mapping(container).get("resources"))
            for kind in ("requests", "limits"):
                if fields.mapping(resources.get(kind)).get(constants.TPU_RESOURCE):
                    return (*template, "spec", part, index, "resources", kind, constants.TPU_RESOURCE)
    return None


def _find_chips(document: Document) -> Path | None:
    """Search an object of any kind for a container that requests chips."""
    for path, found in mappings_in(document.value):
        if constants.TPU_RESOURCE in found and path[-1:] in (("requests",), ("limits",)):
            return (*path, constants.TPU_RESOURCE)
    return None


def title(kind: str, metadata: Mapping[str, Any]) -> str:
    """Return kind, namespace and name, for people."""
    namespace, name = bounds.cut(str(metadata.get("namespace", ""))), bounds.cut(str(metadata.get("name", "")))
    return f"{kind} {namespace}/{name}"


def title_of(workload: Workload) -> str:
    """Return the same of a workload."""
    return title(workload.kind.value, {"namespace": workload.namespace, "name": workload.name})
