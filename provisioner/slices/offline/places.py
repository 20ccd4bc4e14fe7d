"""Which field of an object a message is about: the one whose value it quotes, else the one that it names first.

Messages name selectors, annotations and labels by their keys, and other fields by a few words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from provisioner import constants
from provisioner.model import bounds
from provisioner.slices.offline.documents import Path, mappings_in, value_at
from provisioner.slices.offline.expand import Template

#: Fields, and words that stand for them beside their keys.
_WORDS: dict[str, tuple[str, ...]] = {
    constants.TPU_RESOURCE: (constants.TPU_RESOURCE, "chips", "chip"),
    "cpu": (" cpu", "millicores of CPU", " CPU"),
    "memory": ("memory",),
    constants.TPU_TOPOLOGY: ("topology", "slice of"),
    constants.TPU_ACCELERATOR: ("accelerator",),
    constants.INSTANCE_TYPE: ("machine type",),
    constants.ZONE: ("zone ",),
    constants.RESERVATION_NAME: ("reservation",),
    constants.FLEX_START: ("flex-start",),
    constants.SPOT: ("spot",),
    constants.ZONES: ("zone ",),
    constants.CAPACITY: ("reservation", "choices of capacity", "capacity"),
    constants.MAX_RUN_DURATION: ("max run duration",),
    constants.NODE_SERVICE_ACCOUNT: ("service account",),
    constants.ADDITIONAL_NODE_NETWORKS: ("network",),
    constants.ALL_OR_NOTHING: ("start together",),
    constants.SAME_ZONE: ("must be in one zone",),
    "nodeSelector": ("nodeSelector",),
    "tolerations": ("toleration", "tolerate"),
    "affinity": ("affinity",),
    "parallelism": ("parallelism", "pods at once", "pods of one"),
    "completions": ("completions",),
    "completionMode": ("completionMode",),
    "size": ("size", "have "),
    "replicas": ("child Jobs", "groups that request", "replicas"),
    "replicatedJobs": ("replicatedJobs",),
    "managedBy": ("managedBy",),
    "namespace": ("namespace",),
    "subGroupPolicy": ("subgroups",),
    "leaderTemplate": ("leader template",),
}
#: Their keys are anybody's.
_MAPS = ("nodeSelector", "labels", "annotations")


def path_of(message: str, raw: Mapping[str, Any], template: Template | None) -> Path:
    """Return the field that a message is about, else the template, else the object."""
    found = [
        (not (isinstance(value, str) and f"'{value}'" in message), message.index(words), -len(words), place, path)
        for place, (words, path, value) in enumerate(_candidates(raw, template))
        if words in message
    ]
    return min(found)[-1] if found else template.path if template is not None else ()


def _candidates(raw: Mapping[str, Any], template: Template | None) -> Iterator[tuple[str, Path, object]]:
    """Yield words, and the field that they stand for with its value: in the template, and around it."""
    for path, found in _around(raw, template):
        # More are read of none.
        for key, value in islice(found.items(), bounds.MAP_ENTRIES):
            words = _WORDS.get(key, ())
            named = (key,) if path[-1:] and path[-1] in _MAPS else ()
            yield from ((each, (*path, key), value) for each in (*words, *named))


def _around(raw: Mapping[str, Any], template: Template | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the objects above a template and those in it; there may be hundreds of other templates."""
    above: Path = template.path if template is not None else ()
    # A pod is its own template.
    if above or template is None:
        yield (), dict(raw)
        yield from ((("metadata", *path), found) for path, found in mappings_in(raw.get("metadata")))
    for depth in range(1, len(above)):
        if isinstance(found := value_at(raw, above[:depth]), dict):
            yield above[:depth], found
    if template is not None:
        yield from (((*above, *path), found) for path, found in mappings_in(value_at(raw, above)))
