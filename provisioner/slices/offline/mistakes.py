"""Finds mistakes that no Event reports: wrong API versions, wrong resources, and keys without effect. Pure."""

from collections.abc import Iterator
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import WorkloadKind
from provisioner.settings.forms import nearest
from provisioner.slices.offline.controllers import template_of
from provisioner.slices.offline.documents import Document, Path, mappings_in
from provisioner.slices.offline.makers import TRAIN_JOB

#: Minimum similarity, from 0 to 1, of a resource's name to google.com/tpu for which the name counts as misspelled.
_LIKE = 0.8
#: Minimum similarity, from 0 to 1, of an unknown key to a valid key for which the message suggests the valid key.
_LIKE_KEY = 0.85
_PREFIX = "tpu-provisioner.cloud.google.com/"
#: Prefix of the labels and annotations of pods with IPUs, which are not checked here.
_OF_PARTITIONS = f"{_PREFIX}partition"
_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING, constants.INJECT, constants.MULTISLICE)
_ANNOTATIONS = (*_LABELS, *podspec.READ_ANNOTATIONS, constants.SERVE)
#: Kinds whose own metadata may contain INJECT_KEYS; for other kinds, these keys are read only on the pod template.
_INJECT_KINDS = (WorkloadKind.POD, "StatefulSet")
#: Valid values by key. Other values have no effect. Keys whose invalid values an Event reports are not listed here.
_VALUES = {
    **dict.fromkeys(constants.INJECT_KEYS, ("enabled", "disabled")),
    **dict.fromkeys((constants.DISABLE, constants.MULTISLICE, constants.SERVE), ("true", "false")),
    **dict.fromkeys((constants.ALLOW_UNUSED_HOSTS, constants.IGNORE_NODE_ESTIMATE), ("true", "false")),
}
_NAMES = ("tpu", "tpus", constants.TPU_RESOURCE)
_SELECTORS = (constants.TPU_ACCELERATOR, constants.TPU_TOPOLOGY)
#: Valid API versions that the provisioner does not read itself (CRDs of KubeRay 1.6, Kueue 0.14, autoscaler 1.34).
_OTHER_VERSIONS = {
    WorkloadKind.RAY_CLUSTER: ("ray.io/v1alpha1",),
    WorkloadKind.PROVISIONING_REQUEST: ("autoscaling.x-k8s.io/v1beta1",),
    WorkloadKind.CAPACITY_BUFFER: ("autoscaling.x-k8s.io/v1alpha1",),
}


def unknown_version(kind: WorkloadKind, document: Document) -> Iterator[tuple[Path, str]]:
    """Yield a path and a message if the apiVersion of a document is not valid for its kind."""
    version = fields.text(document.raw.get("apiVersion"))
    if version not in (kind.api_version, *_OTHER_VERSIONS.get(kind, ())):
        yield ("apiVersion",), f"apiVersion {bounds.cut(version)} is unknown; write {kind.api_version}"


def wrong_resources(document: Document) -> Iterator[tuple[Path, str]]:
    """Yield paths and messages about names like `google.com/tpus`, and about requests of chips unlike their limit."""
    seen = {constants.TPU_RESOURCE}
    for path, spec in _pods_on_tpus(document):
        for inner, amounts in mappings_in(spec.get("containers")):
            if inner[-1:] == ("resources",):
                both = [fields.at(amounts, role).get(constants.TPU_RESOURCE) for role in ("requests", "limits")]
                if both[0] is not None and fields.parse_quantity(both[0]) != fields.parse_quantity(both[1]):
                    request = f"the request of {constants.TPU_RESOURCE} is {fields.shown(both[0])}"
                    message = f"{request}, unlike its limit, so the pods are rejected; write only the limit"
                    yield (*path, "containers", *inner), message
            for key in map(str, amounts) if inner[-1:] in (("requests",), ("limits",)) else ():
                if key not in seen and nearest(key.lower(), _NAMES, _LIKE):
                    seen.add(key)
                    message = f"{bounds.cut(key)} is not a resource of TPU nodes; write {constants.TPU_RESOURCE}"
                    yield (*path, "containers", *inner, key), message


def _pods_on_tpus(document: Document) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path, mapping in mappings_in(document.value):
        selector = mapping.get("nodeSelector")
        if isinstance(selector, dict) and any(key in selector for key in _SELECTORS):
            yield path, mapping


def unread_keys(raw: object) -> Iterator[tuple[Path, str]]:
    """Yield paths and messages about labels and annotations of the provisioner that have no effect on their object.

    A misplaced key is no mistake if it is also at a valid place: Kubernetes copies labels of pod templates to Jobs.
    """
    kind = fields.text(fields.mapping(raw).get("kind"))
    read_keys, misplaced = set(), {}
    for path, mapping in mappings_in(raw):
        for marks, read in (("labels", _LABELS), ("annotations", _ANNOTATIONS)):
            for key, value in fields.mapping(mapping.get(marks)).items() if path[-1:] == ("metadata",) else ():
                name, at = str(key), (*path, marks, key)
                title, is_inject = f"the {marks[:-1]} {bounds.cut(name)}", name in constants.INJECT_KEYS
                if not (is_inject or name.startswith(_PREFIX)) or name.startswith(_OF_PARTITIONS):
                    continue
                if name not in read and not is_inject:
                    yield at, f"{title} is not read; {_mended(name)}"
                elif name in _VALUES and isinstance(value, str) and value not in _VALUES[name]:
                    yield at, f"{title} is {fields.shown(value)}; write {' or '.join(_VALUES[name])}"
                elif place := _unread_place(raw, kind, path, name, mapping):
                    misplaced[at] = f"{title} is not read on a {place}; put it on the pod template"
                else:
                    read_keys.add(key)
    yield from ((at, message) for at, message in misplaced.items() if at[-1] not in read_keys)


def _unread_place(raw: Any, kind: str, path: Path, key: str, metadata: dict[str, Any]) -> str:
    """Return the kind of object (or "Job template") with the metadata at `path`; empty if a key may be valid there."""
    of_object, of_cron_job = path == ("metadata",), path[-2:] == ("jobTemplate", "metadata")
    # Job templates of a JobSet have their metadata at spec.replicatedJobs[0].template.metadata, pod templates deeper.
    if not (of_object or of_cron_job or (path[1:2] == ("replicatedJobs",) and path[4:] == ("metadata",))):
        return ""
    place = bounds.cut(kind) if of_object else "Job template"
    if key in constants.INJECT_KEYS:
        return "" if of_object and kind in _INJECT_KINDS else place
    if of_cron_job or (of_object and kind == WorkloadKind.JOB):
        served = fields.mapping(metadata.get("annotations")).get(constants.SERVE) == "true"
        return "" if served or key == constants.SERVE else place
    template = template_of(raw) if of_object else None
    is_read = of_object and kind != TRAIN_JOB[1] and (template is None or template.path == ())
    return "" if is_read else place


def _mended(key: str) -> str:
    if key in _ANNOTATIONS:
        return "make it an annotation"
    near = nearest(
        key.removeprefix(_PREFIX), [annotation.removeprefix(_PREFIX) for annotation in _ANNOTATIONS], _LIKE_KEY
    )
    return f"did you mean {_PREFIX}{near}?" if near else "remove it"
