"""Which field of an object a message is about: the one that it names first.

Messages name selectors, annotations and labels by their keys, and other fields by a few words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from provisioner import constants
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.slices.offline.documents import Path, value_at
from provisioner.slices.offline.expand import Template

_RESOURCES = {
    constants.TPU_RESOURCE: ("chips", "chip", constants.TPU_RESOURCE),
    "cpu": (" cpu", "millicores of CPU", " CPU"),
    "memory": ("memory",),
}
#: No pod that somebody writes has more.
_MOST_CONTAINERS = 64
#: Words, and the selector that they are about.
_SELECTORS = (
    ("topology", constants.TPU_TOPOLOGY),
    ("slice of", constants.TPU_TOPOLOGY),
    ("accelerator", constants.TPU_ACCELERATOR),
    ("machine type", constants.INSTANCE_TYPE),
    ("zone ", constants.ZONE),
    ("reservation", constants.RESERVATION_NAME),
    ("flex-start", constants.FLEX_START),
    ("spot", constants.SPOT),
)
#: Words, and the annotation that they are about.
_ANNOTATIONS = (
    ("zone ", constants.ZONES),
    ("reservation", constants.CAPACITY),
    ("choices of capacity", constants.CAPACITY),
    ("capacity", constants.CAPACITY),
    ("max run duration", constants.MAX_RUN_DURATION),
    ("service account", constants.NODE_SERVICE_ACCOUNT),
    ("network", constants.ADDITIONAL_NODE_NETWORKS),
    ("start together", constants.ALL_OR_NOTHING),
    ("must be in one zone", constants.SAME_ZONE),
)


def path_of(message: str, raw: Mapping[str, Any], template: Template | None) -> Path:
    """Return the field that a message is about, else the template, else the object.

    It is the field whose value the message quotes, else the one that it names first.
    """
    found = [
        (not _is_quoted(value_at(raw, path), message), message.index(words), -len(words), place, path)
        for place, (words, path) in enumerate(_candidates(raw, template))
        if words in message
    ]
    return min(found)[-1] if found else template.path if template is not None else ()


def _is_quoted(value: object, message: str) -> bool:
    return isinstance(value, str) and f"'{value}'" in message


def _candidates(raw: Mapping[str, Any], template: Template | None) -> Iterator[tuple[str, Path]]:
    """Yield words and the field that they stand for, of the fields that are there."""
    if template is not None:
        yield from _of_template(raw, template)
    metadata = fields.mapping(raw.get("metadata"))
    yield from _marks(metadata, ("metadata",))
    if "namespace" in metadata:
        yield "namespace", ("metadata", "namespace")
    spec = fields.mapping(raw.get("spec"))
    for key in ("replicatedJobs", "completionMode", "managedBy"):
        if key in spec:
            yield key, ("spec", key)
    groups = fields.mapping(spec.get("leaderWorkerTemplate"))
    for words, key in (("subgroups", "subGroupPolicy"), ("leader template", "leaderTemplate"), ("have ", "size")):
        if key in groups:
            yield words, ("spec", "leaderWorkerTemplate", key)


def _of_template(raw: Mapping[str, Any], template: Template) -> Iterator[tuple[str, Path]]:
    pod = fields.mapping(value_at(raw, template.path))
    metadata, spec = fields.mapping(pod.get("metadata")), fields.mapping(pod.get("spec"))
    at_metadata, at_spec = (*template.path, "metadata"), (*template.path, "spec")
    yield from _marks(metadata, at_metadata)
    selector = fields.mapping(spec.get("nodeSelector"))
    for key in itertools.islice(selector, bounds.MAP_ENTRIES):
        yield key, (*at_spec, "nodeSelector", key)
    for words, key in _SELECTORS:
        if key in selector:
            yield words, (*at_spec, "nodeSelector", key)
    for words, part in (("toleration", "tolerations"), ("tolerate", "tolerations"), ("affinity", "affinity")):
        if part in spec:
            yield words, (*at_spec, part)
    yield "nodeSelector", (*at_spec, "nodeSelector")
    yield from _of_containers(spec, at_spec)
    parent = fields.mapping(value_at(raw, template.pods_path[:-1]))
    for words in ("parallelism", "size", "pods at once", "pods of one"):
        yield words, template.pods_path
    for key in ("completionMode", "completions"):
        if key in parent:
            yield key, (*template.pods_path[:-1], key)
    for words in ("child Jobs", "groups that request", "replicas"):
        yield words, template.replicas_path


def _of_containers(spec: Mapping[str, Any], at_spec: Path) -> Iterator[tuple[str, Path]]:
    for resource in fields.mapping(spec.get("overhead")):
        yield from ((words, (*at_spec, "overhead", resource)) for words in _RESOURCES.get(resource, ()))
    for part in ("containers", "initContainers"):
        containers = spec.get(part)
        for index, container in enumerate(fields.sequence(containers)[:_MOST_CONTAINERS]):
            resources = fields.mapping(fields.mapping(container).get("resources"))
            for kind in ("requests", "limits"):
                for resource, words in _RESOURCES.items():
                    if resource in fields.mapping(resources.get(kind)):
                        path = (*at_spec, part, index, "resources", kind, resource)
                        yield from ((each, path) for each in words)


def _marks(metadata: Mapping[str, Any], at: Path) -> Iterator[tuple[str, Path]]:
    annotations = fields.mapping(metadata.get("annotations"))
    for key in constants.READ_ANNOTATIONS:
        if key in annotations:
            yield key, (*at, "annotations", key)
    for words, key in _ANNOTATIONS:
        if key in annotations:
            yield words, (*at, "annotations", key)
    # More are read of none.
    for key in itertools.islice(fields.mapping(metadata.get("labels")), bounds.MAP_ENTRIES):
        yield key, (*at, "labels", key)
