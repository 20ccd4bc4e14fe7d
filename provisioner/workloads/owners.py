"""What controls an object: its owner references; these, not labels, are what controllers go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.kube import fields

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
    return marks(metadata, (key,)).get(key, "")


def marks(metadata: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """Return, of several keys, the labels that are there, or annotations where there is no such label."""
    labels, annotations = (fields.mapping(metadata.get(each)) for each in ("labels", "annotations"))
    there = (key for key in keys if key in labels or key in annotations)
    found = ((key, fields.name(labels.get(key)) or fields.name(annotations.get(key))) for key in there)
    return {key: value for key, value in found if value}


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
