"""What every kind of workloads is described by, and what objects of all kinds have in common.

What controls an object is read from its owner references alone: controllers go by these, not by labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.fields import BoundedReader
from provisioner.kube.kept import NamespaceBound
from provisioner.model import bounds
from provisioner.model.workloads import PodGroup, Requirements, Workload, WorkloadKind, WorkloadUid
from provisioner.settings import Settings

#: What a decision needs of a workload that is rejected for having too many labels.
_KEPT_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING)
#: Seconds by which a finished object counts as younger, more than any two objects differ: unfinished ones come first.
_FINISHED_LAST = 1e12
#: By the condition of Jobs, and of JobSets.
_TERMINAL_STATES = {"Complete": "Completed", "Completed": "Completed", "Failed": "Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a pod says of the workload that it belongs to; the group is told by its controller reference alone."""

    kind: WorkloadKind
    name: str
    #: Empty where the pods of the kind, or of the installed release, do not carry it.
    uid: str = ""
    #: The group of pods that it is one of; empty where nothing controls it.
    group_name: str = ""
    #: Its place in the group; 0 is the leader.
    index: int | None = None
    #: Pods of the group; 0 where the workload alone tells it.
    group_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Where the objects of a kind live, and how they and their pods are read."""

    kind: WorkloadKind
    #: Plural, as in the address of a collection.
    resource: str
    #: As people call several of them.
    plural: str
    #: Reads an object; None for one that is not to be served. Raises MalformedObject.
    parse: Callable[[object], Workload | None]
    #: The label that all its pods carry; its value is the name of the workload. Empty for a kind without pods.
    pod_label: str = ""
    #: The field of a specification that has the templates of pods; empty for none.
    templates: str = ""
    #: Reads a pod's claim from the pod's metadata; None for a pod of no workload of the kind.
    claim_of: Callable[[dict[str, Any]], Claim | None] = lambda _metadata: None
    #: The page on how to install it; empty for a kind that every API server has.
    installation: str = ""
    #: A label selector for what else holds of all its objects and pods.
    selector: str = ""
    #: Where the API server does not know it, or does not let us read it, all other kinds are served as ever.
    optional: bool = False
    served: Callable[[Settings], bool] = lambda _settings: True

    @property
    def root(self) -> str:
        """The address of its API, such as /apis/jobset.x-k8s.io/v1alpha2."""
        return f"/apis/{self.kind.api_version}"

    @property
    def api_group(self) -> str:
        """The group of its API, as RBAC names it."""
        return self.kind.api_version.partition("/")[0]

    @property
    def pod_selector(self) -> str:
        """The label selector of its pods."""
        return ",".join(filter(None, (self.pod_label, self.selector)))

    @property
    def install_hint(self) -> str:
        """Say what to do where the API server does not know the kind."""
        if not self.installation:
            return ""
        remedy = (
            f"{self.plural} are served once it is" if self.optional else f"install {self.kind} ({self.installation})"
        )
        return f"the {self.kind} CRD is not installed: {remedy}"

    def bound(self, labels: Collection[str]) -> NamespaceBound[Workload]:
        """Return the bound on its objects in one namespace; `labels` are also kept of objects beyond the bound."""
        return NamespaceBound(
            plural=self.plural,
            max_bytes=bounds.NAMESPACE_WORKLOADS,
            max_objects=None if self.kind.has_pods else bounds.NAMESPACE_ASKS,
            reduce=lambda each, problem: reduced(each, problem, labels),
            # Finished objects need nothing, and many users never delete them.
            rank=lambda each: each.created_at.timestamp() + each.finished * _FINISHED_LAST,
        )

    def without_templates(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Leave out of an object what says nothing of whether it lives, and may be malformed all the same."""
        spec = fields.mapping(raw.get("spec"))
        return {**raw, "spec": {key: value for key, value in spec.items() if key != self.templates}}


def begin(kind: WorkloadKind, raw: object, *, controller: str = "") -> tuple[Workload, BoundedReader]:
    """Read what objects of all kinds have, groups and problems left out; and return what reads the rest of it.

    `controller` is the usual one of this cluster. MalformedObject where an identity is missing.
    """
    metadata, spec, status = (fields.mapping(fields.mapping(raw).get(part)) for part in ("metadata", "spec", "status"))
    namespace, name, uid = fields.identity(kind.value, metadata)
    reader = BoundedReader(f"a {kind.value}", most_characters=bounds.JOBSET)
    managed_by = fields.name(spec.get("managedBy"))
    conditions = {fields.text(each.get("type")): each for each in reversed(fields.mappings(status.get("conditions")))}
    workload = Workload(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=WorkloadUid(uid),
        suspended=spec.get("suspend") is True,
        # Releases of JobSet before terminalState only have conditions.
        terminal_state=fields.name(status.get("terminalState")) or _terminal_state(conditions),
        deleting=metadata.get("deletionTimestamp") is not None,
        labels=reader.labels("labels", metadata.get("labels"), keep=_KEPT_LABELS),
        annotations=reader.annotations(metadata.get("annotations"), keep=constants.READ_ANNOTATIONS),
        managed_by="" if managed_by == controller else managed_by,
        created_at=fields.parse_timestamp(metadata.get("creationTimestamp")) or fields.UNKNOWN_TIME,
        suspension_changed_at=fields.parse_timestamp(conditions.get("Suspended", {}).get("lastTransitionTime")),
    )
    return workload, reader


def _terminal_state(conditions: dict[str, dict[str, Any]]) -> str:
    true = (type_ for type_, condition in conditions.items() if condition.get("status") == "True")
    return next((_TERMINAL_STATES[type_] for type_ in true if type_ in _TERMINAL_STATES), "")


def template_of(what: str, raw: object, reader: BoundedReader) -> Requirements:
    """Read a template of pods."""
    template = fields.mapping(raw)
    spec, metadata = fields.mapping(template.get("spec")), fields.mapping(template.get("metadata"))
    return podspec.requirements(what, spec, metadata, reader=reader)


def too_much(kind: WorkloadKind, groups: Iterable[PodGroup], *, part: str = "") -> str:
    """Say what there is too much of, empty for nothing; groups without chips are no work. `part` is a named group."""
    with_chips = [group for group in groups if group.template.chips]
    for group in with_chips:
        where = f"{part} {bounds.cut(group.name)}: " if group.name else ""
        if group.template.problem:
            return f"{where}{group.template.problem}"
        if group.parallelism > bounds.PARALLELISM:
            return (
                f"{where}{kind.size_field} is {group.parallelism:,}, and at most {bounds.PARALLELISM:,} pods of a "
                f"{kind.group_title} are served; no slice has more hosts"
            )
    replicas = sum(group.replicas for group in with_chips)
    if replicas > bounds.CHILD_JOBS:
        return (
            f"it has {replicas:,} {kind.group_title}s that request chips, and at most {bounds.CHILD_JOBS:,} are served;"
            f" split it into several {kind}s"
        )
    return ""


def reduced(workload: Workload, problem: str, labels: Collection[str] = ()) -> Workload:
    """Return the identity and state of a workload, with one group that decides whether it is served."""
    with_chips = next((group.template for group in workload.groups if group.template.chips), None)
    kept = [podspec.reduced(with_chips, problem, labels)] if with_chips is not None else []
    return replace(
        workload,
        groups=tuple(PodGroup(name="", replicas=0, parallelism=0, template=each) for each in kept),
        labels=podspec.only(workload.labels, (*_KEPT_LABELS, *labels)),
        annotations=podspec.only(workload.annotations, _KEPT_LABELS),
        problem=workload.problem or problem,
    )


#: API version and kind, as in owner references.
STATEFUL_SET = ("apps/v1", "StatefulSet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An object's controller."""

    api_version: str
    kind: str
    name: str
    #: Empty where the reference does not say; an API server requires it.
    uid: str

    @property
    def type(self) -> tuple[str, str]:
        """API version and kind."""
        return self.api_version, self.kind


def marked(metadata: Mapping[str, Any], key: str) -> str:
    """Return a label's value, or that of an annotation where there is no such label: JobSet sets both."""
    labels, annotations = (fields.mapping(metadata.get(each)) for each in ("labels", "annotations"))
    return fields.name(labels.get(key)) or fields.name(annotations.get(key))


def marks(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return all that is `marked`."""
    parts = (fields.mapping(metadata.get(each)) for each in ("annotations", "labels"))
    return {key: value for part in parts for key, raw in part.items() if (value := fields.name(raw))}


def controller_of(metadata: Mapping[str, Any], kind: tuple[str, str] | None = None) -> Owner | None:
    """Return an object's controller; None where there is none, or none of the kind (API version and kind)."""
    for reference in fields.mappings(metadata.get("ownerReferences")):
        if reference.get("controller") is not True:
            continue
        if kind in (None, (reference.get("apiVersion"), reference.get("kind"))):
            return Owner(
                api_version=fields.name(reference.get("apiVersion")),
                kind=fields.name(reference.get("kind")),
                name=fields.name(reference.get("name")),
                uid=fields.name(reference.get("uid")),
            )
    return None
