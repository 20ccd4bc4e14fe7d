"""Read the objects of manifests as the API server would show them, with all that is wrong with each alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from provisioner import constants, workloads
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import Pod, Workload, WorkloadKind, WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.offline import schema
from provisioner.slices.offline.documents import MOST_BYTES, Document, Path, Problem, walk
from provisioner.slices.offline.expand import Template, leaders_of, made_up_uid, templates_of
from provisioner.slices.offline.places import line_of
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


class Remark(NamedTuple):
    """Something that is said of an object."""

    document: Document
    line: int
    #: As kind, namespace and name.
    subject: str
    #: Of the Event; empty for what no Event says.
    reason: str
    message: str
    #: Something is wrong, so that there is no node pool.
    refused: bool = False
    #: The slice that it is about; empty where it is about all.
    group_name: str = ""
    #: How many slices it is about.
    slices: int = 1

    def __str__(self) -> str:
        times = f" ({self.slices} slices)" if self.slices > 1 else ""
        reason = f"{self.reason}: " if self.reason else ""
        return f"{self.document.source}:{self.line}: {self.subject}: {reason}{self.message}{times}"


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
    """What is read of all manifests."""

    settings: Settings
    default_namespace: str
    subjects: dict[WorkloadUid, Subject] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    namespace_labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    #: Kind, namespace and name -> where.
    seen: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    others: int = 0
    slices: int = 0


def read_document(reading: Reading, document: Document, number: int) -> None:
    """Read one object."""
    raw = document.raw
    kind, version = fields.text(raw.get("kind")), fields.text(raw.get("apiVersion"))
    if not kind or not version:
        message = "is no Kubernetes object: apiVersion or kind is missing"
        reading.problems.append(document.problem(message))
        return
    if document.node.size > MOST_BYTES:
        message = f"has {document.node.size:,} characters, its aliases expanded; the API server takes {MOST_BYTES:,}"
        reading.problems.append(document.problem(message))
        return
    if kind not in _VERSIONS or version.partition("/")[0] != _VERSIONS[kind].partition("/")[0]:
        reading.others += 1
        _tell_of_others(reading, document, kind)
        return
    if version != _VERSIONS[kind]:
        message = f"apiVersion {bounds.cut(version)} of a {kind} is not served; use {_VERSIONS[kind]}"
        reading.problems.append(document.problem(message, ("apiVersion",)))
        return
    meant, wrong = schema.checked(kind, raw)
    reading.problems += [document.problem(message, path) for path, message in wrong]
    if not isinstance(meant, dict):
        return
    meant = _as_created(meant, reading.default_namespace, number)
    metadata = meant["metadata"]
    if not metadata["name"]:
        reading.problems.append(document.problem(f"the {kind} has no metadata.name; add one", ("metadata",)))
        return
    identity = (kind, metadata["namespace"], metadata["name"])
    first = reading.seen.setdefault(identity, document)
    if first is not document:
        there = f"{first.source}:{first.line}"
        message = f"{title(kind, metadata)} is there twice, first in {there}; only the first is planned"
        reading.problems.append(document.problem(message))
        return
    if kind == _NAMESPACE:
        reading.others += 1
        labels = fields.mapping(metadata.get("labels"))
        reading.namespace_labels[metadata["name"]] = {key: str(value) for key, value in labels.items()}
    elif kind == _POD:
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
    if kind is WorkloadKind.JOB and not _asks_to_be_served(raw):
        reading.others += 1
        path = _chips_path(raw, templates[0].path)
        if path is not None:
            message = (
                f'its pods request chips, but Jobs are served only with the annotation {constants.SERVE}: "true" and '
                "the setting SERVE_JOBS=true; add the annotation, or use a JobSet"
            )
            add_remark(reading, document, document.line_of(path), named, message)
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
        add_remark(reading, document, line_of(str(error), document, only), named, str(error))
        return
    if fields.mapping(document.raw.get("spec")).get("suspend") is True:
        message = "is suspended; this is what it gets when it is resumed"
        add_remark(reading, document, document.line_of(("spec", "suspend")), named, message, refused=False)
    if workload.uid in reading.subjects:
        message = f"metadata.uid {bounds.cut(workload.uid)} is that of another object in these files; remove it"
        reading.problems.append(document.problem(message, ("metadata", "uid")))
        return
    if kind is WorkloadKind.JOB and not reading.settings.serve_jobs:
        message = "Jobs are served only with the setting SERVE_JOBS=true; ask the administrator to set it"
        add_remark(reading, document, document.line, named, message)
        # What else is wrong with it is said all the same.
        subject.accepted = False
    reading.subjects[workload.uid] = subject


def _expand(reading: Reading, subject: Subject, kind: WorkloadKind, raw: dict[str, Any], template: Template) -> None:
    """Make the leader pods of one template that request chips."""
    workload = subject.workload
    if workload.problem or template.place >= len(workload.groups):
        # It is told once, and no pod of it is served.
        return
    if workload.groups[template.place].template.chips == 0:
        return
    room = MOST_SLICES - reading.slices
    found = list(itertools.islice(leaders_of(kind, raw, template, MOMENT), room + 1))
    named = title(kind.value, raw["metadata"])
    if len(found) > room:
        message = f"is left out: at most {MOST_SLICES:,} slices are planned at once; plan fewer files at once"
        add_remark(reading, subject.document, subject.document.line_of(template.replicas_path), named, message)
        return
    if not found and template.replicas:
        message = (
            "its completionMode is not Indexed, so that its pods have no completion index, and no leader; set "
            "completionMode: Indexed"
        )
        path = (*template.pods_path[:-1], "completionMode")
        add_remark(reading, subject.document, subject.document.line_of(path), named, message)
        return
    reading.slices += len(found)
    subject.pods += filter(None, map(parse_pod, found))


def _read_pod(reading: Reading, document: Document, raw: dict[str, Any]) -> None:
    """Say of a pod that nobody makes a node pool for it: pods belong to workloads."""
    named = title(_POD, raw["metadata"])
    try:
        pod = parse_pod(raw)
        chips = podspec.requested_chips(f"pod {named}", raw["spec"])
    except fields.MalformedObject as error:
        add_remark(reading, document, line_of(str(error), document, _BARE), named, str(error))
        return
    reading.others += 1
    if chips == 0:
        return
    path = _chips_path(raw, ()) or ()
    if pod is not None:
        message = (
            f"is a pod of {pod.kind.value} {pod.workload_name}; plan the {pod.kind.value} itself, which its pods are "
            "made from"
        )
        add_remark(reading, document, document.line_of(("metadata",)), named, message, refused=False)
        return
    message = (
        "requests chips, but no JobSet, LeaderWorkerSet or Job controls it, and other pods are not served; create it "
        "as a JobSet, or as a Job"
    )
    add_remark(reading, document, document.line_of(path), named, message)


def _tell_of_others(reading: Reading, document: Document, kind: str) -> None:
    """Say of an object of another kind that its pods request chips and are not served."""
    path = _find_chips(document)
    if path is not None:
        metadata = fields.mapping(document.raw.get("metadata"))
        shown = {
            "namespace": fields.text(metadata.get("namespace")) or reading.default_namespace,
            "name": fields.text(metadata.get("name")),
        }
        message = (
            f"its pods request chips, but a {bounds.cut(kind)} is not served; use a JobSet, a LeaderWorkerSet or a Job"
        )
        add_remark(reading, document, document.line_of(path), title(bounds.cut(kind), shown), message)


_BARE = Template(place=0, name="", replicas=1, path=(), pods_path=("spec",), replicas_path=("spec",))


def _asks_to_be_served(raw: dict[str, Any]) -> bool:
    annotations = fields.mapping(raw["metadata"].get("annotations"))
    return annotations.get(constants.SERVE) == "true"


def _chips_path(raw: dict[str, Any], template: Path) -> Path | None:
    """Return the field of a pod template that requests chips; None where none does."""
    pod: Any = raw
    for step in template:
        pod = fields.mapping(pod).get(step) if isinstance(step, str) else None
    for part in ("containers", "initContainers"):
        for index, container in enumerate(fields.sequence(fields.mapping(fields.mapping(pod).get("spec")).get(part))):
            resources = fields.mapping(fields.mapping(container).get("resources"))
            for kind in ("requests", "limits"):
                if fields.mapping(resources.get(kind)).get(constants.TPU_RESOURCE):
                    return (*template, "spec", part, index, "resources", kind, constants.TPU_RESOURCE)
    return None


def _find_chips(document: Document) -> Path | None:
    """Search an object of any kind for a container that requests chips."""
    for path, _ in walk(document):
        if path[-1:] == (constants.TPU_RESOURCE,) and path[-2:-1] in (("requests",), ("limits",)):
            return path
    return None


def title(kind: str, metadata: Mapping[str, Any]) -> str:
    """Return kind, namespace and name, for people."""
    namespace, name = bounds.cut(str(metadata.get("namespace", ""))), bounds.cut(str(metadata.get("name", "")))
    return f"{kind} {namespace}/{name}"


def add_remark(
    reading: Reading, document: Document, line: int, subject: str, message: str, *, refused: bool = True
) -> None:
    """Say something that no Event says."""
    remark = Remark(document=document, line=line, subject=subject, reason="", message=message, refused=refused)
    reading.remarks.append(remark)


def title_of(workload: Workload) -> str:
    """Return the same of a workload."""
    return title(workload.kind.value, {"namespace": workload.namespace, "name": workload.name})
