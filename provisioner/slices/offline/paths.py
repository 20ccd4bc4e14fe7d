"""Finds the field of an object that a message is about. Pure."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from provisioner import constants
from provisioner.model import bounds
from provisioner.slices.offline.documents import Path, mappings_in, value_at
from provisioner.slices.offline.expand import Template

#: Keys of manifests that messages contain literally.
_FIELDS = frozenset(
    (
        *("affinity", "completionMode", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi", "managedBy", "memory"),
        *("namespace", "nodeSelector", "parallelism", "size"),
    )
)
#: Phrases in messages about fields, selectors and annotations, by key.
_WORDS: dict[str, tuple[str, ...]] = {
    constants.TPU_RESOURCE: (constants.TPU_RESOURCE, "chip"),
    "cpu": (" cpu", " CPU"),
    constants.TPU_TOPOLOGY: ("topology",),
    constants.TPU_ACCELERATOR: ("accelerator",),
    constants.INSTANCE_TYPE: ("machine type",),
    constants.ZONE: ("zone ",),
    constants.RESERVATION_NAME: ("reservation",),
    constants.FLEX_START: ("flex-start",),
    constants.ZONES: ("zone ",),
    constants.CAPACITY: ("reservation", "capacity"),
    constants.MAX_RUN_DURATION: ("max run duration",),
    constants.NODE_SERVICE_ACCOUNT: ("service account",),
    constants.ADDITIONAL_NODE_NETWORKS: ("network",),
    constants.ALL_OR_NOTHING: ("start together",),
    constants.SAME_ZONE: ("must be in one zone",),
    "tolerations": ("toleration", "tolerate"),
    "replicas": ("that request chips, and",),
    "subGroupPolicy": ("subGroupSize", "subgroups"),
    "leaderTemplate": ("leader template",),
}
#: Maps whose keys users choose. A message may also be about such a key if the whole key is a word of the message.
_MAPS = ("nodeSelector", "labels", "annotations")
_WORD = re.compile(r"[\w/-]+(?:\.[\w/-]+)*")


def path_of(message: str, raw: Mapping[str, Any], template: Template | None) -> Path:
    """Return the path of a field whose value a message quotes, otherwise of the first named field or the template."""
    matches = [
        (not (isinstance(value, str) and f"'{value}'" in message), message.index(phrase), -len(phrase), place, path)
        for place, (phrase, path, value) in enumerate(_candidates(set(_WORD.findall(message)), raw, template))
        if phrase in message
    ]
    return min(matches)[-1] if matches else template.path if template is not None else ()


def _candidates(
    words_of_message: set[str], raw: Mapping[str, Any], template: Template | None
) -> Iterator[tuple[str, Path, object]]:
    for path, mapping in _around(raw, template):
        # The provisioner reads at most MAP_ENTRIES entries of a map, so further entries are not searched.
        for key, value in islice(mapping.items(), bounds.MAP_ENTRIES):
            phrases = _WORDS.get(key, (key,) if key in _FIELDS else ())
            named = (key,) if path and path[-1] in _MAPS and key in words_of_message else ()
            yield from ((word, (*path, key), value) for word in (*phrases, *named))


def _around(raw: Mapping[str, Any], template: Template | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the JSON objects in the metadata, around a template, and in the template, but not in other templates."""
    above: Path = template.path if template is not None else ()
    # A pod is its own template (path ()), whose JSON objects the last statement yields.
    if above or template is None:
        yield (), dict(raw)
        yield from ((("metadata", *path), mapping) for path, mapping in mappings_in(raw.get("metadata")))
    for depth in range(1, len(above)):
        if isinstance(mapping := value_at(raw, above[:depth]), dict):
            yield above[:depth], mapping
    if template is not None:
        yield from (((*above, *path), mapping) for path, mapping in mappings_in(value_at(raw, above)))
