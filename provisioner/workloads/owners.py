"""What controls an object: its owner references, and spec.managedBy; these, not labels, are what controllers go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from provisioner.kube import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An object's controller."""

    kind: str
    name: str
    #: Empty where the reference does not say; an API server requires it.
    uid: str


def marked(metadata: dict[str, Any], key: str) -> str:
    """Return a label's value, or that of an annotation where there is no such label: JobSet sets both."""
    labels, annotations = (fields.mapping(metadata.get(each)) for each in ("labels", "annotations"))
    return fields.name(labels.get(key)) or fields.name(annotations.get(key))


def managed_elsewhere(spec: dict[str, Any], *, usual: str) -> str:
    """Return the controller that spec.managedBy names; empty where it names none, or the usual one of this cluster."""
    named = fields.name(spec.get("managedBy"))
    return "" if named == usual else named


def controller_of(metadata: dict[str, Any], kind: tuple[str, str] | None = None) -> Owner | None:
    """Return an object's controller; None where there is none, or none of the kind (API version and kind)."""
    for reference in fields.mappings(metadata.get("ownerReferences")):
        if reference.get("controller") is not True:
            continue
        if kind in (None, (reference.get("apiVersion"), reference.get("kind"))):
            own_kind, name, uid = (fields.name(reference.get(key)) for key in ("kind", "name", "uid"))
            return Owner(kind=own_kind, name=name, uid=uid)
    return None
