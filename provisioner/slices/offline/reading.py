"""Reads objects as the API server would return them after their creation, and finds the problems of each object.

Not handled: if an object has several invalid quantities, only the first is reported.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from provisioner import constants, tpu, workloads
from provisioner.kube import fields
from provisioner.kube.volumes import parse_claim, parse_class, parse_volume
from provisioner.model import bounds
from provisioner.model.volumes import Claim, Storage, StorageClass
from provisioner.model.workloads import Pod, Requirements, Workload, WorkloadKind, WorkloadUid
from provisioner.settings import Settings
from provisioner.settings.forms import OBJECT_NAME
from provisioner.slices.offline import controllers, makers, mistakes, unknown
from provisioner.slices.offline.documents import Document, Finding, Path, Severity, dotted, mappings_in, value_at
from provisioner.slices.offline.expand import Template, cluster_of, leaders_of, made_up_uid, templates_of
from provisioner.slices.offline.paths import path_of
from provisioner.workloads.capacity_requests import parse_pod_template
from provisioner.workloads.kind import controller_of
from provisioner.workloads.plain import workloads_of

#: Creation time of all objects, and time of the decision.
MOMENT = datetime(2000, 1, 1, tzinfo=UTC)
#: Maximum number of slices of all files together, without slices of ProvisioningRequests and CapacityBuffers.
MAX_SLICES = 5_000
#: Maximum number of remarks of each kind about one object: about its keys, its invalid fields, and its resources.
MAX_KEYS = 100
_OF_VOLUMES = ("PersistentVolumeClaim", "PersistentVolume", "StorageClass")
_THROUGH_JOBSET = "is served through the JobSet that it creates"
_LEFT_OUT = f"is left out: at most {MAX_SLICES:,} slices are planned at once; plan fewer files at once"
_KIND_OF_TYPE = {(described.root.split("/")[2], kind.value): kind for kind, described in workloads.KINDS.items()}


@dataclass(slots=True)
class Subject:
    """Workload in a manifest, with its templates and pods that its controller would create."""

    document: Document
    workload: Workload
    templates: list[Template]
    #: Whether the object has no mistake that prevents its pods, and the settings let its kind be served.
    accepted: bool
    pods: list[Pod] = field(default_factory=list)
    #: Templates by name of the group of pods.
    template_of: dict[str, Template] = field(default_factory=dict)


@dataclass(slots=True)
class Reading:
    """Objects that have been read so far, and the remarks on them."""

    settings: Settings
    default_namespace: str
    #: Maximum number of slices that are derived from all templates of one object; None if unlimited.
    max_of_object: int | None = None
    subjects: dict[WorkloadUid, Subject] = field(default_factory=dict)
    remarks: list[Finding] = field(default_factory=list)
    namespace_labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    pod_templates: dict[tuple[str, str], Requirements] = field(default_factory=dict)
    claims: dict[tuple[str, str], Claim] = field(default_factory=dict)
    #: Zones of PersistentVolumes by name of the volume.
    zones: dict[str, frozenset[str]] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    #: Runtimes of TrainJobs by kind, namespace (empty for a ClusterTrainingRuntime) and name.
    runtimes: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    train_jobs: list[tuple[Document, dict[str, Any]]] = field(default_factory=list)
    #: First document of each planned object, by kind, namespace and name of the object.
    seen: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    #: Number of ignored objects, such as objects without chips, and the first such object, by kind.
    ignored: dict[str, tuple[int, Document]] = field(default_factory=dict)
    slices: int = 0

    @property
    def storage(self) -> Storage:
        """Volumes, claims and classes in the files. They are incomplete, because the cluster may have more of them."""
        return Storage(claims=self.claims, zones=self.zones, classes=self.classes, complete=False)

    def ignore(self, document: Document, kind: str) -> None:
        """Count an object that is not planned and needs no remark, such as an object without chips."""
        count, first = self.ignored.get(kind, (0, document))
        self.ignored[kind] = (count + 1, first)

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
        """Add a finding that is not the message of an Event. `subject` is described in `Finding`."""
        self.remarks.append(Finding(document, path, message, severity, subject, impossible=impossible))


def read_document(reading: Reading, document: Document, number: int) -> None:
    """Read one object. `number` is unique for each object; the placeholder of a missing UID contains it."""
    raw = document.raw
    kind, version = fields.text(raw.get("kind")), fields.text(raw.get("apiVersion"))
    if not kind or not version:
        missing = " and no ".join(key for key, text in (("apiVersion", version), ("kind", kind)) if not text)
        name = bounds.cut(fields.text(fields.mapping(raw.get("metadata")).get("name"))) or "it"
        message = f"{name} is not a Kubernetes object: it has no {missing}; add what is missing"
        reading.remark(document, (), "", message)
        return
    created = _as_created(raw, reading.default_namespace, number)
    metadata = created["metadata"]
    named = title(kind, metadata)
    if (version, kind) == ("v1", "Namespace"):
        labels = fields.mapping(metadata.get("labels"))
        reading.namespace_labels[metadata["name"]] = {key: str(value) for key, value in labels.items()}
        return
    if kind in _OF_VOLUMES:
        _read_storage(reading, kind, created)
        return
    if (version, kind) == ("v1", "PodTemplate"):
        _remark_on_keys(reading, document, named)
        try:
            reading.pod_templates[metadata["namespace"], metadata["name"]] = parse_pod_template(created)
        except fields.MalformedObject as error:
            _remark_on_malformed(reading, document, named, error)
        return
    if _read_maker(reading, document, created, (version.partition("/")[0], kind)):
        return
    cluster = cluster_of(created) if version.startswith("ray.io/") else created
    workload = _KIND_OF_TYPE.get((version.partition("/")[0], fields.text(cluster.get("kind"))))
    plain = None if is_served_job(workload, metadata, reading.settings) else controllers.template_of(created)
    if (workload or plain) is None or (plain is not None and controller_of(metadata) is not None):
        _read_unknown(reading, document, created, named)
        return
    _remark_on_keys(reading, document, named)
    first = reading.seen.setdefault((kind, metadata["namespace"], metadata["name"]), document)
    if first is not document:
        message = f"{named} occurs twice, first in {first.source}:{first.line}; only that is planned"
        reading.remark(document, (), "", message)
        return
    accepted = True
    counts = [plain.pods_path] if plain is not None and plain.path else []
    wrong = (
        mistakes.unknown_version(workload, document) if workload is not None else (),
        _field_mistakes(document, counts if workload is None else _counts(workload, document.raw)),
        _unquoted(document.value),
    )
    for path, message in islice(chain(*wrong), MAX_KEYS):
        reading.remark(document, path, "", f"{named}: {message}")
        accepted = False
    accepted = not _remark_on_resources(reading, document, named) and accepted
    if not metadata["name"]:
        return
    if plain is not None:
        _read_plain(reading, document, created, plain, accepted=accepted)
    elif workload is not None:
        _read_workload(reading, document, workload, created, accepted=accepted)


def _read_maker(reading: Reading, document: Document, raw: dict[str, Any], kind: tuple[str, str]) -> bool:
    """Read a TrainJob, a runtime of TrainJobs, or a PathwaysJob; do nothing and return False for another kind."""
    metadata = raw["metadata"]
    if kind in makers.RUNTIMES:
        namespace = "" if kind[1] == makers.CLUSTER_RUNTIME else metadata["namespace"]
        reading.runtimes[kind[1], namespace, metadata["name"]] = raw
        message = "is a template; each TrainJob that names it gets the node pools"
        reading.remark(document, (), title(kind[1], metadata), message, Severity.NOTE)
    elif kind == makers.TRAIN_JOB:
        # The runtime may be in a later document, so `read_train_jobs` reads TrainJobs after all other objects.
        reading.train_jobs.append((document, raw))
    elif kind == makers.PATHWAYS_JOB:
        try:
            jobset = makers.jobset_of_pathways_job(raw)
        except tpu.ShapeError as error:
            reading.remark(document, ("spec", "workers"), title(kind[1], metadata), str(error))
        else:
            reading.remark(document, (), title(kind[1], metadata), _THROUGH_JOBSET, Severity.NOTE)
            _read_workload(reading, document, WorkloadKind.JOBSET, jobset, accepted=True)
    else:
        return False
    return True


def read_train_jobs(reading: Reading) -> None:
    """Read the JobSets that Trainer would create for TrainJobs. Must be called after all documents have been read."""
    for document, raw in reading.train_jobs:
        named, runtime = title("TrainJob", raw["metadata"]), makers.runtime_of(raw)
        if runtime not in reading.runtimes:
            message = f"its {bounds.cut(runtime[0])} {bounds.cut(runtime[2])} is not in the files; add it"
            reading.remark(document, ("spec", "runtimeRef"), named, message, Severity.NOT_SERVED)
            continue
        reading.remark(document, (), named, _THROUGH_JOBSET, Severity.NOTE)
        _remark_on_keys(reading, document, named)
        jobset = makers.jobset_of_train_job(raw, reading.runtimes[runtime])
        _read_workload(reading, document, WorkloadKind.JOBSET, jobset, accepted=True)


def is_served_job(kind: WorkloadKind | None, metadata: dict[str, Any], settings: Settings) -> bool:
    """Return whether an object is a Job with the annotation SERVE that is planned as a Job, not through its pods."""
    asks = fields.mapping(metadata.get("annotations")).get(constants.SERVE) == "true"
    return kind is WorkloadKind.JOB and asks and (settings.serve_jobs or settings.serve_pods == "none")


def _read_plain(
    reading: Reading, document: Document, raw: dict[str, Any], template: Template, *, accepted: bool
) -> None:
    """Read a pod, or an object whose controller creates pods of kind POD."""
    named, serve_pods = title(raw["kind"], raw["metadata"]), reading.settings.serve_pods
    max_pods = min(limit for limit in (reading.max_of_object, MAX_SLICES - reading.slices + 1) if limit is not None)
    try:
        pods = list(controllers.pods_of(raw, template, limit=max_pods, serve_pods="all"))
        served = pods and list(controllers.pods_of(raw, template, limit=1, serve_pods=serve_pods))
    except fields.MalformedObject as error:
        # The message begins with the name of the derived pod, but the remark is about the object.
        message = str(error).partition(": ")[2] if str(error).startswith("pod ") else str(error)
        _remark_on_malformed(reading, document, named, fields.MalformedObject(message), template)
        return
    if not pods:
        if template.replicas == 0 and any(unknown.chips_in(document)):
            message = f"{dotted(template.pods_path)} is 0, so there are no pods and no node pools"
            reading.remark(document, template.pods_path, named, message, Severity.NOTE)
        elif accepted:
            reading.ignore(document, raw["kind"])
        return
    if not served:
        advice = f'annotate the pod template with {constants.SERVE}: "true", ' if serve_pods != "none" else ""
        message = f"its pods are not served with SERVE_PODS={serve_pods}; {advice}or ask the administrator"
        reading.remark(document, template.path, named, message, Severity.NOT_SERVED)
        return
    if reading.slices + len(pods) > MAX_SLICES:
        reading.remark(document, template.replicas_path, named, _LEFT_OUT)
        return
    workload = next(iter(workloads_of(pods)), None)
    if workload is None:
        message = "its labels name a workload such as a JobSet: plan that workload, or remove the labels"
        reading.remark(document, template.path, named, message, Severity.NOT_SERVED)
        return
    subject = Subject(document, workload, [template], accepted, pods)
    subject.template_of = {pod.group_name: template for pod in pods}
    reading.slices += len(pods)
    reading.subjects[workload.uid] = subject


def _as_created(raw: dict[str, Any], namespace: str, number: int) -> dict[str, Any]:
    """Return an object as the API server would return it right after its creation, but not suspended."""
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


def _read_storage(reading: Reading, kind: str, raw: dict[str, Any]) -> None:
    namespace, name = raw["metadata"]["namespace"], raw["metadata"]["name"]
    if kind == "PersistentVolumeClaim":
        reading.claims[namespace, name] = parse_claim(raw)
    elif kind == "StorageClass":
        reading.classes[name] = parse_class(raw)
    elif (zones := parse_volume(raw)) is not None:
        reading.zones[name] = zones


def _read_workload(
    reading: Reading, document: Document, kind: WorkloadKind, raw: dict[str, Any], *, accepted: bool
) -> None:
    named = title(kind.value, raw["metadata"])
    templates = templates_of(kind, raw) if kind.has_pods else []
    try:
        workload = workloads.KINDS[kind].parse(cluster_of(raw))
        if workload is None:
            reading.ignore(document, kind.value)
            return
        subject = Subject(document, workload, templates, accepted)
        for template in templates:
            _expand(reading, subject, kind, raw, template)
    except fields.MalformedObject as error:
        _remark_on_malformed(reading, document, named, error, templates[0] if len(templates) == 1 else None)
        return
    # Objects that are not accepted have a remark. ProvisioningRequests and CapacityBuffers get their slices later.
    if accepted and not (
        workload.capacity_request or workload.problem or any(group.template.chips for group in workload.groups)
    ):
        reading.ignore(document, kind.value)
    if fields.mapping(document.raw.get("spec")).get("suspend") is True:
        message = "is suspended; this is what it gets when it is resumed"
        reading.remark(document, ("spec", "suspend"), named, message, Severity.NOTE)
    if kind is WorkloadKind.JOB and not reading.settings.serve_jobs:
        message = "Jobs are served only with the setting SERVE_JOBS=true or SERVE_PODS=all; ask the administrator"
        reading.remark(document, (), named, message, Severity.NOT_SERVED)
        # The Job is planned although it is not served, so that its further problems are reported.
        subject.accepted = False
    reading.subjects[workload.uid] = subject


def _remark_on_malformed(
    reading: Reading, document: Document, named: str, error: fields.MalformedObject, only: Template | None = None
) -> None:
    message = str(error).removeprefix(f"{named}: ")
    reading.remark(document, path_of(message, document.raw, only), named, message, impossible=True)


def _expand(reading: Reading, subject: Subject, kind: WorkloadKind, raw: dict[str, Any], template: Template) -> None:
    workload = subject.workload
    group = workload.groups[template.place]
    if workload.problem or group.template.chips == 0:
        return
    if group.jobs > 1:
        template = template._replace(replicas=group.replicas, pods=group.parallelism)
    limit = reading.max_of_object
    numbers = _numbers(template.replicas, limit and limit // len(subject.templates))[: limit and limit - reading.slices]
    named = title(kind.value, raw["metadata"])
    if len(numbers) > MAX_SLICES - reading.slices:
        reading.remark(subject.document, template.replicas_path, named, _LEFT_OUT)
        return
    leaders = list(leaders_of(workload, raw, template, MOMENT, numbers))
    if (template.replicas == 0 or template.pods == 0) and subject.accepted:
        path = template.pods_path if template.replicas else template.replicas_path
        message = f"{dotted(path)} is 0, so there are no pods and no node pools"
        reading.remark(subject.document, path, named, message, Severity.NOTE)
        return
    if not template.indexed:
        message = (
            "its completionMode is not Indexed, so its pods have no completion index, and no leader; set "
            "completionMode: Indexed"
        )
        reading.remark(subject.document, (*template.pods_path[:-1], "completionMode"), named, message)
    reading.slices += len(leaders)
    subject.pods += leaders
    subject.template_of |= {pod.group_name: template for pod in leaders}


def _numbers(replicas: int, limit: int | None) -> Sequence[int]:
    """Return the indexes of at most max(1, `limit`) slices: the first ones, and the last, whose name is the longest."""
    if limit is None or replicas <= limit:
        return range(replicas)
    return [*range(limit - 1), replicas - 1]


def _read_unknown(reading: Reading, document: Document, created: dict[str, Any], named: str) -> None:
    """Read the pods of an object of an unknown kind that requests chips; report the object if this is not possible."""
    kind, version = created["kind"], fields.text(created["apiVersion"])
    path = next(unknown.chips_in(document), None)
    if path is None:
        if not _remark_on_resources(reading, document, named):
            reading.ignore(document, bounds.cut(kind))
        return
    maker = controller_of(fields.mapping(document.raw.get("metadata")))
    if maker is not None:
        owner = bounds.cut(maker.kind)
        message = f"is a {bounds.cut(kind)} of {owner} {bounds.cut(maker.name)}; plan the {owner} that creates it"
        reading.remark(document, ("metadata",), named, message, Severity.NOTE)
        return
    # A Job of another API group, such as Volcano's batch.volcano.sh, is not a misspelled Job of Kubernetes.
    same_name = (described for described in workloads.KINDS.values() if described.kind.value.lower() == kind.lower())
    meant = next(same_name, None) if kind != "Job" or "." not in version else None
    noun, advice = bounds.cut(kind), "plan a pod that it creates"
    parts = [] if meant is not None or kind == "DaemonSet" else unknown.parts_of(document, created)
    for part, template in parts:
        message = f"plan does not know how many pods of this template a {noun} creates, and assumes "
        reading.remark(part, (), named, f"{message}{template.replicas:,}", Severity.NOTE)
        _read_plain(reading, part, part.raw, template, accepted=True)
    if parts:
        return
    if meant is not None:
        noun += f" of {bounds.cut(version)}"
        advice = f"write kind: {meant.kind.value} and apiVersion: {meant.root.removeprefix('/apis/')}"
    message = f"requests chips, but plan does not know which pods a {noun} creates, which are served; {advice}"
    if kind == "DaemonSet":
        message = "requests chips; its pods are for existing nodes, so no node pools are created"
    reading.remark(document, path, named, message, Severity.NOT_SERVED)


def _remark_on_keys(reading: Reading, document: Document, named: str) -> None:
    opts_in = (reading.settings.opt_in_label or ())[:1]
    for path, message in islice(mistakes.unread_keys(document.value), MAX_KEYS):
        if path[-1:] != opts_in:
            reading.remark(document, path, named, message, Severity.WARNING)


def _remark_on_resources(reading: Reading, document: Document, named: str) -> bool:
    """Report resources that the API server accepts in templates, but no pod can get; return whether any were found."""
    resources = list(islice(mistakes.wrong_resources(document), MAX_KEYS))
    for path, message in resources:
        reading.remark(document, path, named, message)
    return bool(resources)


def _field_mistakes(document: Document, counts: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield paths and messages for an invalid name, and for invalid numbers at the paths `counts`."""
    metadata = fields.mapping(document.raw.get("metadata"))
    name, stem = fields.text(metadata.get("name")), fields.text(metadata.get("generateName"))
    if not OBJECT_NAME.fullmatch(name or (stem and f"{stem}x")):
        advice = "use at most 253 lower-case letters, digits, - and ."
        yield ("metadata", "name"), f"metadata.name is {fields.shown(name)}; {advice}"
    for path in dict.fromkeys(counts):
        value = value_at(document.raw, path)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            yield path, f"{dotted(path)} is {fields.shown(value)}; set a whole number from 0"


def _counts(kind: WorkloadKind, raw: dict[str, Any]) -> Iterator[Path]:
    if not kind.has_pods:
        sets = fields.sequence(fields.mapping(raw.get("spec")).get("podSets"))
        yield from (("spec", "podSets", place, "count") for place in range(len(sets)))
        yield from (("spec", "replicas"), ("spec", "percentage"))
    for template in templates_of(kind, raw):
        yield from (template.replicas_path, template.pods_path, (*template.pods_path[:-1], "completions"))


def _unquoted(raw: object) -> Iterator[tuple[Path, str]]:
    """Yield paths and messages for labels, annotations and selectors that are numbers or booleans, not strings."""
    for path, mapping in mappings_in(raw):
        if path[-1:] in (("labels",), ("annotations",), ("nodeSelector",)):
            for key, value in mapping.items():
                if isinstance(value, (bool, int, float)):
                    text = fields.shown(value).lower()
                    yield (*path, key), f'{dotted((*path, key))} is {text}, not a string; write "{text}" in quotes'


def title(kind: str, metadata: Mapping[str, Any]) -> str:
    """Return KIND NAMESPACE/NAME of an object, for messages."""
    namespace, name = bounds.cut(str(metadata.get("namespace", ""))), bounds.cut(str(metadata.get("name", "")))
    return f"{kind} {namespace}/{name}"
