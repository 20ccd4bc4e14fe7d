"""Description of a kind of workloads, and readers of the fields that all kinds have."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.fields import BoundedReader
from provisioner.kube.kept import NamespaceBound
from provisioner.model import bounds
from provisioner.model.workloads import ObjectRef, PodGroup, Requirements, Workload, WorkloadKind, WorkloadUid
from provisioner.settings import Settings

#: Keys of labels and annotations that are kept even if a workload exceeds a limit, because decisions need them.
_KEPT_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING)
_TERMINAL_STATES = {"Complete": "Completed", "Completed": "Completed", "Failed": "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Workload and group of a pod according to its metadata. Users can write most of the metadata."""

    kind: WorkloadKind
    name: str
    #: UID of the workload; empty if the pod does not contain it.
    uid: str = ""
    #: Name of the group; empty if the pod has no controller, or lacks the labels that determine the group.
    group_name: str = ""
    index: int | None = None
    #: Number of pods of the group; 0 if the spec of the workload determines the number.
    group_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of workloads: its API, and the functions that read its objects and pods."""

    kind: WorkloadKind
    #: Reads an object; returns None for an object that is not served as this kind. Raises MalformedObject.
    parse: Callable[[object], Workload | None]
    #: Key of the pod label that contains the name of the workload; empty for a kind without pods.
    pod_label: str = ""
    #: Field of the spec with the pod templates; empty for a kind without templates.
    templates: str = ""
    #: Reads a pod's claim from its metadata; None if the pod belongs to no workload of the kind.
    claim_of: Callable[[dict[str, Any]], Claim | None] = lambda _metadata: None
    #: Web page about the installation; empty for a kind that every API server has.
    installation: str = ""
    #: Label selector of the objects that are watched; empty for all.
    selector: str = ""
    #: Whether other kinds are served while objects of this kind cannot be read.
    optional: bool = False
    #: Setting that must be true for the kind to be served; empty if the kind is always served.
    on_request: str = ""
    served: Callable[[Settings], bool] = lambda _settings: True

    @property
    def plural(self) -> str:
        """Plural for messages, such as "JobSets"."""
        return f"{self.kind}s"

    @property
    def resource(self) -> str:
        """Plural in paths of the API, such as "jobsets"."""
        return self.plural.lower()

    @property
    def root(self) -> str:
        """Path of the API, such as /apis/jobset.x-k8s.io/v1alpha2."""
        return f"/apis/{self.kind.api_version}"

    @property
    def api_group(self) -> str:
        """Group of the API, as in RBAC rules."""
        return self.kind.api_version.partition("/")[0]

    @property
    def install_hint(self) -> str:
        """Message for users if the API server does not know the kind; empty if every API server knows it."""
        if not self.installation:
            return ""
        missing = f"the {self.kind} CRD is not installed: "
        if self.optional:
            return f"{missing}{self.plural} are served once it is installed"
        return f"{missing}install {self.kind} ({self.installation})"

    def bound(self, labels: Collection[str]) -> NamespaceBound[Workload]:
        """Return the bound on the objects in one namespace. Reduced objects keep few fields, and these labels."""
        return NamespaceBound(
            plural=self.plural,
            max_bytes=bounds.NAMESPACE_WORKLOADS,
            max_objects=None if self.kind.has_pods else bounds.NAMESPACE_REQUESTS,
            reduce=lambda workload, problem: reduced(workload, problem, labels),
            # Finished objects are reduced first, because they need no pools and many users never delete them.
            is_finished=lambda workload: workload.finished,
        )

    def without_templates(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return an object without pod templates, which do not affect its lifetime and may be malformed."""
        spec = fields.mapping(raw.get("spec"))
        return {**raw, "spec": {key: value for key, value in spec.items() if key != self.templates}}


def begin(kind: WorkloadKind, raw: object, *, controller: str = "") -> tuple[Workload, BoundedReader]:
    """Return a workload with the fields that all kinds have, and the reader for all other fields.

    `controller` is the usual spec.managedBy of the kind. Raises MalformedObject without namespace, name or UID.
    """
    metadata, spec, status = (fields.at(raw, part) for part in ("metadata", "spec", "status"))
    namespace, name, uid = fields.identity(kind.value, metadata)
    reader = BoundedReader(f"a {kind.value}", max_characters=bounds.JOBSET)
    managed_by = fields.name(spec.get("managedBy"))
    conditions = fields.conditions(status)
    workload = Workload(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=WorkloadUid(uid),
        suspended=spec.get("suspend") is True,
        # Older releases of JobSet have conditions and no terminalState.
        terminal_state=fields.name(status.get("terminalState")) or _terminal_state(conditions),
        deleting=metadata.get("deletionTimestamp") is not None,
        labels=reader.labels("labels", metadata.get("labels"), keep=_KEPT_LABELS),
        annotations=reader.annotations(metadata.get("annotations"), keep=podspec.READ_ANNOTATIONS),
        managed_by="" if managed_by == controller else managed_by,
        created_at=fields.parse_timestamp(metadata.get("creationTimestamp")) or fields.UNKNOWN_TIME,
        suspension_changed_at=fields.parse_timestamp(conditions.get("Suspended", {}).get("lastTransitionTime")),
    )
    return workload, reader


def _terminal_state(conditions: dict[str, dict[str, Any]]) -> str:
    true = (type_ for type_, condition in conditions.items() if condition.get("status") == "True")
    return next((_TERMINAL_STATES[type_] for type_ in true if type_ in _TERMINAL_STATES), "")


def entries_of(part: str, raw: object, reader: BoundedReader) -> Sequence[dict[str, Any]]:
    """Return at most REPLICATED_JOBS entries of a list. A longer list is recorded as the reader's problem."""
    entries = fields.mappings(raw)
    if len(entries) > bounds.REPLICATED_JOBS:
        reader.refuse(*bounds.too_many("entries", len(entries), bounds.REPLICATED_JOBS, part))
    return entries[: bounds.REPLICATED_JOBS]


def template_of(title: str, raw: object, reader: BoundedReader) -> Requirements:
    """Read the requirements in a pod template. Raises MalformedObject."""
    template = fields.mapping(raw)
    spec, metadata = fields.mapping(template.get("spec")), fields.mapping(template.get("metadata"))
    return podspec.requirements(title, spec, metadata, reader=reader)


def too_much(kind: WorkloadKind, groups: Iterable[PodGroup], *, part: str = "") -> tuple[str, ...]:
    """Return the problem with the first limit that the groups with chips exceed; empty if they exceed none."""
    with_chips = [group for group in groups if group.template.chips]
    for group in with_chips:
        where = f"{part} {bounds.cut(group.name)}: " if part and group.name else ""
        if group.template.problem:
            problem, *step = group.template.problem
            return f"{where}{problem}", *step
        if group.parallelism > bounds.PARALLELISM:
            served = f"at most {bounds.PARALLELISM:,} pods of a {kind.group_title} are served"
            return f"{where}{kind.size_field} is {group.parallelism:,}, and {served}", "no slice has more hosts"
    replicas = sum(group.replicas for group in with_chips)
    if replicas > bounds.CHILD_JOBS:
        return (
            f"it has {replicas:,} {kind.group_title}s that request chips, and at most {bounds.CHILD_JOBS:,} are served",
            f"split it into several {kind}s",
        )
    return ()


def reduced(workload: Workload, problem: tuple[str, ...], labels: Collection[str]) -> Workload:
    """Return a workload with `problem`, few labels and annotations, and one small group if it requests chips."""
    with_chips = next((group.template for group in workload.groups if group.template.chips), None)
    kept = [podspec.reduced(with_chips, problem, labels)] if with_chips is not None else []
    return replace(
        workload,
        groups=tuple(PodGroup(name="", replicas=0, parallelism=0, template=requirements) for requirements in kept),
        labels=podspec.only(workload.labels, (*_KEPT_LABELS, *labels)),
        annotations=podspec.only(workload.annotations, _KEPT_LABELS),
        problem=workload.problem or problem,
    )


STATEFUL_SET_TYPE = ("apps/v1", "StatefulSet")


def marked(metadata: Mapping[str, Any], key: str) -> str:
    """Return the value of a label or, without the label, of the annotation with the same key. JobSet sets both."""
    labels, annotations = (fields.mapping(metadata.get(part)) for part in ("labels", "annotations"))
    return fields.name(labels.get(key)) or fields.name(annotations.get(key))


def marks(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return labels and annotations in one mapping, without empty values. A label takes precedence, as in `marked`."""
    parts = (fields.mapping(metadata.get(part)) for part in ("annotations", "labels"))
    return {key: value for part in parts for key, raw in part.items() if (value := fields.name(raw))}


def controller_of(metadata: Mapping[str, Any], kind: tuple[str, str] | None = None) -> ObjectRef | None:
    """Return the controller in an object's owner references; None if absent, or not of `kind` (API version, kind)."""
    for reference in fields.mappings(metadata.get("ownerReferences")):
        if reference.get("controller") is not True:
            continue
        if kind in (None, (reference.get("apiVersion"), reference.get("kind"))):
            return ObjectRef(
                kind=fields.name(reference.get("kind")),
                api_version=fields.name(reference.get("apiVersion")),
                namespace=fields.name(metadata.get("namespace")),
                name=fields.name(reference.get("name")),
                uid=fields.name(reference.get("uid")),
            )
    return None
