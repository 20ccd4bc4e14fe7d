"""Reviews workloads when they are created or updated, and changes the node selectors of Jobs. Pure.

A review reports problems that the owner can usually correct in the workload; Events report other causes of a wait.
A review rejects only objects that no provisioner can serve, because the cluster may have another provisioner.

Selectors are changed as by the Go provisioner's admission_controller, but only if the Job then gets a node pool.
Otherwise its pods would wait for nodes that are never created, or lose selectors that another controller reads.
No existing selector gets another value. The change of a child Job does not depend on other slices of its JobSet.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

from provisioner import constants, tpu
from provisioner.admission.review import Answer, Operation, Request, pointer
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import ObjectRef, WorkloadKind, group_key
from provisioner.settings import Settings
from provisioner.settings.webhook import WebhookSettings
from provisioner.slices.demand.allowlists import NO_SELECTORS, NO_TOPOLOGY, asks_for_slices
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.offline.controllers import template_of
from provisioner.slices.offline.documents import Document, Finding, Path, Severity, mappings_in, value_at
from provisioner.slices.offline.expand import Template, jobs_together, templates_of
from provisioner.slices.offline.forecast import NOT_SERVED, forecast, forecast_of
from provisioner.slices.offline.mistakes import unread_keys
from provisioner.slices.offline.paths import path_of
from provisioner.slices.offline.placement import NOT_PLACED
from provisioner.slices.offline.reading import MAX_KEYS, Reading, is_served_job, read_document, title
from provisioner.slices.supplier import PoolRules
from provisioner.workloads.jobset import ended_before, jobs_in_slice
from provisioner.workloads.kind import controller_of, marked
from provisioner.workloads.plain import misfit_of

STATEFUL_SET, CRON_JOB, POD = "StatefulSet", "CronJob", WorkloadKind.POD.value
_UNNUMBERED = ("Deployment", "ReplicaSet")
#: Kinds that are reviewed, except objects whose controller is in REVIEWED_OWNERS, such as the Jobs of a JobSet.
REVIEWED_KINDS = frozenset(
    {*(kind.value for kind in WorkloadKind if kind.has_pods), STATEFUL_SET, *_UNNUMBERED, CRON_JOB}
)
REVIEWED_OWNERS = frozenset(
    {
        *(("apps", kind) for kind in (STATEFUL_SET, *_UNNUMBERED)),
        ("batch", CRON_JOB),
        *((kind.api_version.partition("/")[0], kind.value) for kind in WorkloadKind),
    }
)
_COUNTS = ("replicas", "parallelism", "completions")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
#: Maximum number of checked slices of an object, and of their capacity choices in zones: more would delay reviews.
_MAX_SLICES, _MAX_CHOICES = 256, 1024
_ORDER = {severity: place for place, severity in enumerate(Severity)}
#: Kinds of workloads that the provisioner reads. For controllers of other kinds, it reads only the pods.
_WORKLOAD_KINDS = {kind.value: kind for kind in WorkloadKind if kind is not WorkloadKind.POD}
_JOB = WorkloadKind.JOB.value
_QUEUE = "kueue.x-k8s.io/queue-name"


class _Pods(NamedTuple):
    template: Template
    #: Number of pods; None if it is not compared with the number of hosts.
    number: int | None = None
    #: Whether the pods may fill several slices: pods of a StatefulSet, or of a Job or CronJob with MULTISLICE.
    several: bool = False


def _shape_problems(document: Document, kind: str, namespace: str, *, opted_out: bool) -> Iterator[Finding]:
    """Yield the problems with the slices that an object's pod templates request, and with keys that are never read."""
    metadata = fields.mapping(document.raw.get("metadata"))
    name = fields.text(metadata.get("name")) or f"{fields.text(metadata.get('generateName'))}xxxxx"
    subject = title(kind, {"namespace": namespace, "name": name})
    for pods in [] if opted_out else _pods_of(document.raw, kind):
        if _opts_out(fields.mapping(value_at(document.raw, (*pods.template.path, "metadata")))):
            continue
        impossible = True
        try:
            accelerator, topology, chips, machine_type = _asked_at(document.raw, pods.template.path)
            if not (chips and accelerator and topology):
                continue
            impossible = not tpu.may_be_sold(accelerator, topology, machine_type)
            shape = tpu.resolve(accelerator, topology, chips, machine_type)
        except (fields.MalformedObject, tpu.ShapeError) as error:
            message, path = str(error), path_of(str(error), document.raw, pods.template)
        else:
            message, path = "; ".join(_misfit(document.raw, kind, pods, shape)), pods.template.pods_path
            # Too many pods cannot be served. Too few pods can be, because other pods may use the remaining hosts.
            impossible = not pods.several and (pods.number or 0) > shape.nodes(1)
            doubt = _doubt(document.raw, kind, pods, shape)
            if doubt and not message:
                yield Finding(document, path, doubt, Severity.WARNING, subject)
        if message:
            severity = Severity.ERROR if impossible else Severity.WARNING
            yield Finding(document, path, message, severity, subject, impossible=impossible)
    for path, message in (
        islice(unread_keys(document.value), MAX_KEYS) if kind not in _WORKLOAD_KINDS or kind == _JOB else ()
    ):
        yield Finding(document, path, message, Severity.WARNING, subject)


def _asked_at(raw: dict[str, Any], template: Path) -> tuple[str, str, int, str]:
    spec = fields.mapping(value_at(raw, (*template, "spec")))
    selector = podspec.node_selector_of(spec)
    return (
        fields.text(selector.get(constants.TPU_ACCELERATOR)),
        fields.text(selector.get(constants.TPU_TOPOLOGY)),
        podspec.requested_chips("pod template", spec),
        fields.text(selector.get(constants.INSTANCE_TYPE)),
    )


def _pods_of(raw: dict[str, Any], kind: str) -> list[_Pods]:
    if kind == WorkloadKind.LEADER_WORKER_SET.value:
        # The leader may request no chips, or another slice than the workers, so both templates are checked.
        base: Path = ("spec", "leaderWorkerTemplate")
        parts = ((*base, part) for part in ("leaderTemplate", "workerTemplate"))
        return [_Pods(Template(path, (*base, "size"), (*base, "size"))) for path in parts if value_at(raw, path)]
    if kind in _WORKLOAD_KINDS and kind != _JOB:
        return [_Pods(part, part.pods) for part in templates_of(_WORKLOAD_KINDS[kind], raw)]
    template = template_of(raw)
    if template is None:
        return []
    number = template.replicas if kind in (STATEFUL_SET, CRON_JOB, _JOB) else None
    asks = marked(fields.mapping(value_at(raw, (*template.path, "metadata"))), constants.MULTISLICE) == "true"
    return [_Pods(template, number, several=kind == STATEFUL_SET or (asks and kind in (CRON_JOB, _JOB)))]


def _opts_out(metadata: Mapping[str, Any]) -> bool:
    labels, annotations = (fields.mapping(metadata.get(key)) for key in ("labels", "annotations"))
    return (
        "true" in (labels.get(constants.DISABLE), annotations.get(constants.DISABLE))
        or constants.SLICE_TOPOLOGY in annotations
        or asks_for_slices(labels, annotations)
    )


def _doubt(raw: dict[str, Any], kind: str, pods: _Pods, shape: tpu.Shape) -> str:
    """Return why the pods of a Job may not form a slice although their number is right; empty if no reason is found."""
    if kind not in (_JOB, CRON_JOB, WorkloadKind.JOBSET.value) or not shape.multi_host:
        return ""
    spec = fields.mapping(value_at(raw, pods.template.pods_path[:-1]))
    parallelism = fields.count(spec.get("parallelism"))
    completions = fields.count(spec.get("completions"), default=parallelism)
    if completions != parallelism:
        return (
            f"completions is {completions} and parallelism {parallelism}, but all pods of a slice run at the same "
            f"time, each once; make both {shape.nodes(1)}"
        )
    serves = fields.at(raw, "metadata", "annotations").get(constants.SERVE) == "true"
    if kind in (_JOB, CRON_JOB) and not pods.template.indexed and not serves:
        return (
            f"its completionMode is not Indexed, so nothing shows which of the {shape.nodes(1)} workers of the "
            f"slice a pod is; set completionMode: Indexed"
        )
    return ""


def _misfit(raw: dict[str, Any], kind: str, pods: _Pods, shape: tpu.Shape) -> tuple[str, ...]:
    """Return why the pods do not fill whole multi-host slices; empty if no reason is found."""
    if kind in _UNNUMBERED:
        return misfit_of((), ObjectRef(kind=kind, api_version="apps/v1", namespace="", name="", uid=""), shape)
    if pods.number is None or not shape.multi_host:
        return ()
    hosts = shape.nodes(1)
    if kind == WorkloadKind.JOBSET.value and pods.number * jobs_together(raw, pods.template, hosts) == hosts:
        return ()
    return shape.pods_problem(pods.number, several=pods.several)


def judge(raw: object, settings: Settings, rules: PoolRules, *, namespace: str = "default") -> tuple[Finding, ...]:
    """Return the findings that the provisioner would report if an object were created now, in a cluster without pools.

    `raw` is decoded JSON of any kind; `namespace` is used if the object has none. OPT_IN_LABEL is not checked, because
    the labels of the namespace are unknown. Errors come first. Makes no calls, and never raises. To bound the duration,
    at most 256 slices are checked, and fewer if each has many pairs of capacity choice and zone.
    """
    document = Document(raw)
    max_slices = min(_MAX_SLICES, _MAX_CHOICES // _choices_of_slice(document, settings))
    reading = Reading(replace(settings, opt_in_label=None), namespace, max_of_object=max_slices)
    read_document(reading, document, 1)
    every = (finding._replace(slices=1) for finding in forecast_of(reading, rules, options=False).remarks)
    return tuple(sorted(every, key=lambda finding: _ORDER[finding.severity]))


def _choices_of_slice(document: Document, settings: Settings) -> int:
    """Return the maximum number of pairs of choice and zone of a slice, from the settings and all annotations."""
    choices, zones = max(1, len(settings.capacity)), max(1, len(settings.zones))
    for _, mapping in mappings_in(document.value):
        choices = max(choices, fields.text(mapping.get(constants.CAPACITY)).count(",") + 1)
        zones = max(zones, fields.text(mapping.get(constants.ZONES)).count(",") + 1)
    return min(choices * zones, bounds.CHOICES_IN_ZONES)


class Mode(Enum):
    """Reaction of a review to a mistake in an object."""

    OFF = "off"
    WARN = "warn"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Settings and rules by which objects are reviewed."""

    settings_of: Callable[[Document], Settings]
    rules: PoolRules
    #: Returns warnings about environment variables in the pods of an object; the second argument is its namespace.
    doubts: Callable[[Mapping[str, Any], str], Sequence[str]] = lambda _raw, _namespace: ()


def review_scale(request: Request, stateful_set: Mapping[str, Any], by: Judge, mode: Mode) -> Answer:
    """Answer the review of a change of a StatefulSet's scale; `stateful_set` is the StatefulSet before the change."""
    spec = fields.mapping(stateful_set.get("spec"))
    # The API server omits replicas if it is 0.
    replicas = fields.mapping(request.object.get("spec")).get("replicas", 0)
    after = {**stateful_set, "spec": {**spec, "replicas": replicas}}
    return review_workload(
        replace(request, kind=STATEFUL_SET, subresource="", object=after, old_object=stateful_set), by, mode
    )


def review_workload(request: Request, by: Judge, mode: Mode) -> Answer:
    """Answer the review of an object: admit it, with or without warnings, or reject it."""
    if mode is Mode.OFF or request.kind not in REVIEWED_KINDS or request.subresource:
        return Answer()
    metadata = fields.mapping(request.object.get("metadata"))
    if request.operation not in ("CREATE", "UPDATE") or metadata.get("deletionTimestamp") is not None:
        return Answer()
    maker = controller_of(metadata)
    if maker is not None and (maker.api_version.partition("/")[0], maker.kind) in REVIEWED_OWNERS:
        return Answer()
    scaled = request.operation == "UPDATE" and _only_scales(request)
    findings = _findings(request, request.object, by, scaled=scaled)
    if findings and request.operation == "UPDATE":
        # Problems that the object had before the update must not prevent its owner from suspending or labelling it.
        before = {
            (finding.reason, finding.message) for finding in _findings(request, request.old_object, by, scaled=scaled)
        }
        findings = [finding for finding in findings if (finding.reason, finding.message) not in before]
    if request.operation == "UPDATE" and _is_suspended(request.object) != _is_suspended(request.old_object):
        # Kueue changes selectors when it suspends or resumes a workload. A rejected update would keep the quota in use.
        return Answer(warnings=tuple(str(finding) for finding in findings if finding.impossible))
    denies = mode is Mode.DENY and not (scaled and _only_scales(request, up=False))
    denied = [str(finding) for finding in findings if denies and finding.impossible]
    return Answer(denied="\n".join(denied), warnings=tuple(text for text in map(str, findings) if text not in denied))


def _findings(request: Request, raw: Mapping[str, Any], by: Judge, *, scaled: bool) -> list[Finding]:
    document = Document(dict(raw))
    own_namespace = fields.text(fields.mapping(raw.get("metadata")).get("namespace"))
    namespace = request.namespace or own_namespace or "default"
    if _is_to_be_completed(document.raw, request.kind):
        return []
    settings = by.settings_of(document)
    found = _of_slices(request.kind, document, namespace, settings, by.rules, scaled=scaled)
    # The opt-in label may have any key, so the finding that this key is never read is dropped.
    found = [finding for finding in found if finding.path[-1:] != (settings.opt_in_label or ())[:1] or not finding.path]
    # Environment variables depend on the slice, so they are not checked if the object has another mistake.
    mistakes = any(not finding.message.startswith(NOT_PLACED) for finding in found)
    if mistakes or request.kind == POD or _is_suspended(document.raw):
        return found
    return [*found, *(Finding(document, (), doubt, Severity.WARNING) for doubt in by.doubts(document.raw, namespace))]


def _of_slices(
    kind: str, document: Document, namespace: str, settings: Settings, rules: PoolRules, *, scaled: bool
) -> list[Finding]:
    metadata = fields.mapping(document.raw.get("metadata"))
    of_pods = kind not in _WORKLOAD_KINDS or (kind == _JOB and not is_served_job(WorkloadKind.JOB, metadata, settings))
    # If an object is served through its pods, only an opt-out on the pod template counts.
    opted_out = (kind == POD or not of_pods) and _opts_out(metadata)
    shapes, raw = list(_shape_problems(document, kind, namespace, opted_out=opted_out)), document.raw
    # If an object is served through its pods, limits are not checked after scaling, often by an autoscaler.
    if of_pods and (scaled or opted_out):
        return shapes
    if of_pods and kind != POD:
        # Owner references are left out, because this object controls its pods even if another controller created it.
        raw = {**raw, "metadata": {key: value for key, value in metadata.items() if key != "ownerReferences"}}
    judged = [finding for finding in judge(raw, lasting(settings, raw), rules, namespace=namespace) if _shown(finding)]
    if of_pods and any(finding.reason == EventReason.INVALID_REQUEST for finding in judged):
        # `judge` does not know that too many pods are impossible, but `_shape_problems` does.
        if any(finding.impossible for finding in shapes):
            judged = [finding._replace(impossible=finding.reason == EventReason.INVALID_REQUEST) for finding in judged]
        shapes = []
    # Findings about requests that another provisioner could serve lose the reason INVALID_REQUEST.
    judged = [
        entry._replace(reason="") if entry.reason == EventReason.INVALID_REQUEST and not entry.impossible else entry
        for entry in judged
    ]
    if any(finding.impossible or finding.reason == EventReason.UNDERUSED for finding in judged):
        return judged
    messages = [finding.message for finding in judged]
    return [*judged, *(finding for finding in shapes if not any(finding.message in message for message in messages))]


def _shown(finding: Finding) -> bool:
    """Return whether the owner can usually correct the cause of a finding, and the API server does not report it."""
    if finding.severity is Severity.NOT_SERVED:
        return finding.message.removeprefix(NOT_SERVED) in map("; ".join, (NO_TOPOLOGY.why, NO_SELECTORS.why))
    return bool(finding.subject) and finding.severity is not Severity.NOTE


def _is_suspended(raw: Mapping[str, Any]) -> bool:
    return fields.mapping(raw.get("spec")).get("suspend") is True


def _is_to_be_completed(raw: dict[str, Any], kind: str) -> bool:
    """Return whether a workload lacks selectors that Kueue may add when it admits the workload or its pods."""
    if not _is_suspended(raw) and _QUEUE not in fields.at(raw, "metadata", "labels"):
        return False
    for pods in _pods_of(raw, kind):
        with suppress(fields.MalformedObject):
            accelerator, topology, chips, _ = _asked_at(raw, pods.template.path)
            if chips and not (accelerator and topology):
                return True
    return False


def lasting(settings: Settings, raw: dict[str, Any]) -> Settings:
    """Return the settings without the pause, and without limits that only delay workloads or do not apply to `raw`."""
    settings = replace(settings, pause_creation=False, max_creates_per_hour=None)
    if any(ended_before(fields.mapping(raw.get("spec"))).values()):
        # Some replicated jobs start after others have ended, so the limits do not apply to the sum of all pools.
        settings = replace(
            settings,
            max_chips=None,
            max_chips_per_namespace=(),
            max_chips_per_accelerator=(),
            max_pools_per_jobset=None,
        )
    return settings


def _only_scales(request: Request, *, up: bool = True) -> bool:
    """Return whether an update changes only numbers of pods or groups and, if `up` is False, increases none of them."""
    todo: list[tuple[object, object]] = [(_read_fields(request.object), _read_fields(request.old_object))]
    while todo:
        now, before = todo.pop()
        if isinstance(now, dict) and isinstance(before, dict) and now.keys() == before.keys():
            counts = {key for key in _COUNTS if isinstance(now.get(key), int) and isinstance(before.get(key), int)}
            scaled = {key for key in counts if up or now[key] <= before[key]}
            todo += [(value, before[key]) for key, value in now.items() if key not in scaled]
        elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
            todo += zip(now, before, strict=True)
        elif isinstance(now, (dict, list)) or now != before:
            return False
    return True


def _read_fields(raw: Mapping[str, Any]) -> dict[str, object]:
    metadata = fields.mapping(raw.get("metadata"))
    annotations = fields.mapping(metadata.get("annotations"))
    kept = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return {"labels": fields.mapping(metadata.get("labels")), "annotations": kept, "spec": raw.get("spec")}


#: Selector that keeps each job on its own nodes; the provisioner copies this selector to the labels of the nodes.
JOB_KEY_SELECTOR = "job-key"
_AT = ("spec", "template", "spec", "nodeSelector")
#: Selectors that request capacity other than on-demand, or limit the run duration.
_NOT_ON_DEMAND = (constants.SPOT, constants.PREEMPTIBLE, constants.FLEX_START, constants.MAX_RUN_SECONDS)


def jobset_to_read(request: Request, changes: WebhookSettings) -> str:
    """Return the name of the JobSet that determines whether a child Job is served; empty if no JobSet must be read."""
    return _jobset_of(request) if _changed(request, changes) is not None else ""


def review_job(
    request: Request, changes: WebhookSettings, by: Judge, jobset: Mapping[str, Any] | None = None
) -> Answer:
    """Answer the review of a Job: change its selectors if the request starts the Job, and the Job gets a node pool.

    `changes` has the settings JOB_KEY_SELECTOR, RESERVATION_LOCATION_HINT and FORCE_ON_DEMAND. `jobset` is the JobSet
    that `jobset_to_read` names. Without it, a child Job is admitted unchanged.
    """
    name = marked(fields.mapping(request.object.get("metadata")), constants.REPLICATED_JOB_NAME)
    jobs = jobs_in_slice(jobset, name) if jobset is not None else 1
    # Child Jobs that together fill a slice must select the same nodes, so they get no JOB_KEY_SELECTOR.
    selectors = _changed(request, replace(changes, job_key_selector=changes.job_key_selector and jobs == 1))
    if selectors is None or (_jobset_of(request) and jobset is None):
        return Answer()
    (before, after), spec = selectors, request.object["spec"]
    changed = {**spec["template"], "spec": {**spec["template"]["spec"], "nodeSelector": after}}
    document = Document(_alone({**request.object, "spec": {**spec, "template": changed}}, jobset, jobs))
    settings = lasting(by.settings_of(document), document.raw)
    if not forecast([document], settings, by.rules, default_namespace=request.namespace, options=False).pools:
        return Answer()
    added = (Operation(op="add", path=pointer(*_AT, key), value=after[key]) for key in after if key not in before)
    removed = (Operation(op="remove", path=pointer(*_AT, key)) for key in before if key not in after)
    return Answer(patch=(*added, *removed))


def _alone(job: dict[str, Any], jobset: Mapping[str, Any] | None, jobs: int) -> dict[str, Any]:
    """Return the JobSet of a child Job with only the child Jobs of one slice; without a JobSet, return the Job."""
    if jobset is None:
        return job
    only = {"name": "only", "replicas": jobs, "template": {"metadata": job.get("metadata"), "spec": job["spec"]}}
    return {**jobset, "spec": {**fields.mapping(jobset.get("spec")), "replicatedJobs": [only]}}


def _changed(request: Request, changes: WebhookSettings) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return a Job's node selector before and after the changes; None if the review must not change it."""
    if (request.kind, request.subresource) != ("Job", "") or not _starts(request):
        return None
    spec = fields.at(request.object, "spec", "template", "spec")
    before, chips = spec.get("nodeSelector"), 0
    # Malformed resources are ignored here, because `review_workload` reports them.
    with suppress(fields.MalformedObject):
        chips = podspec.requested_chips("pod template", spec)
    if chips == 0 or not isinstance(before, dict):
        return None
    name = fields.name(fields.at(request.object, "metadata").get("name"))
    has_key = changes.job_key_selector and name and _jobset_of(request)
    added: dict[str, Any] = {JOB_KEY_SELECTOR: group_key(request.namespace, name)} if has_key else {}
    added |= {constants.LOCATION_HINT: changes.location_hint} if changes.location_hint else {}
    kept = {key: value for key, value in before.items() if not (changes.force_on_demand and _is_other(key, value))}
    after = {**added, **kept}
    return (before, after) if after != before else None


def _starts(request: Request) -> bool:
    """Return whether a request starts a child Job of a JobSet for the first time, or creates a Job without a JobSet.

    False for later starts, when the pod template is immutable, and if a ProvisioningRequest has requested the nodes.
    """
    is_child, before = bool(_jobset_of(request)), request.old_object
    resumed = is_child and _is_suspended(before) and "startTime" not in fields.at(before, "status")
    waits = is_child and _is_suspended(request.object)
    annotations = fields.at(request.object, "spec", "template", "metadata", "annotations")
    return (request.operation == "CREATE" or resumed) and not (waits or constants.CONSUMES_REQUEST in annotations)


def _is_other(key: str, value: object) -> bool:
    not_on_demand = key in _NOT_ON_DEMAND or (key == constants.PROVISIONING and value != "standard")
    return not_on_demand or key.startswith("cloud.google.com/reservation-")


def _jobset_of(request: Request) -> str:
    maker = controller_of(fields.mapping(request.object.get("metadata")))
    return maker.name if maker is not None and maker.kind == WorkloadKind.JOBSET.value else ""
