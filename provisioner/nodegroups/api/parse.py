"""Turn raw JSON of the four kinds into records.

Whatever JSON comes in, a record or MalformedObject comes out. The API server has checked the object by its definition;
those of earlier definitions may lack fields.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from provisioner.kube import fields
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.nodegroups.api import codec, names
from provisioner.nodegroups.api.types import RECORDS, Kind, ObjectMeta, Record

R = TypeVar("R", bound=Record)


def parse(cls: type[R], raw: object) -> R:
    """Read an object of a kind; MalformedObject where it cannot be told whose it is, or what it asks for."""
    whole, hints = fields.mapping(raw), _hints(cls.kind)
    meta = _meta(cls.kind, fields.mapping(whole.get("metadata")))
    try:
        spec = codec.read(hints["spec"], whole.get("spec"))
    except (TypeError, ValueError) as error:
        raise fields.MalformedObject(f"{cls.kind} {meta}: spec: {error}") from error
    return cls(meta=meta, spec=spec, status=_status(whole.get("status"), hints["status"]))


@functools.cache
def _hints(kind: Kind) -> dict[str, Any]:
    """Return the types of a record's fields."""
    return get_type_hints(RECORDS[kind])


def _status(raw: object, cls: Callable[..., Any]) -> Any:
    """Read the status. The controller alone writes it: one that cannot be read is written anew."""
    status = fields.mapping(raw)
    if "uri" in status:
        # Only of a ManagedInstanceGroup it is called url.
        status = {**status, "url": status["uri"]}
    try:
        return codec.read(cls, status)
    except (TypeError, ValueError):
        return cls()


def _meta(kind: Kind, metadata: dict[str, Any]) -> ObjectMeta:
    namespace, name, uid = fields.identity(kind, metadata)
    if not names.is_identity(namespace, name, uid):
        raise fields.MalformedObject(
            f"{kind} {bounds.cut(namespace)}/{bounds.cut(name)} with uid {bounds.quoted(uid)}: namespace, name or uid "
            f"is none that the API server gives"
        )
    annotations = fields.mapping(metadata.get("annotations"))
    return ObjectMeta(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=fields.count(metadata.get("generation"), default=0),
        resource_version=fields.name(metadata.get("resourceVersion")),
        created_at=parse_timestamp(metadata.get("creationTimestamp")),
        deleted_at=fields.deletion_deadline(f"{kind} {namespace}/{name}", metadata),
        # All of them, as they are: whoever takes one off writes the others.
        finalizers=tuple(each for each in fields.sequence(metadata.get("finalizers")) if isinstance(each, str)),
        labels=_texts(metadata.get("labels")),
        annotations={
            key: bounds.cut(annotations[key], bounds.ANNOTATION)
            for key in names.READ_ANNOTATIONS
            if isinstance(annotations.get(key), str)
        },
    )


def _texts(raw: object) -> dict[str, str]:
    entries = ((key, value) for key, value in fields.mapping(raw).items() if isinstance(value, str))
    return {fields.name(key): fields.name(value) for key, value in itertools.islice(entries, bounds.MAP_ENTRIES)}
