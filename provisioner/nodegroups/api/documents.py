"""Reads and writes the JSON of TPUNodeGroups and their children. Pure."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.nodegroups.api import codec, names
from provisioner.nodegroups.api.codec import Json
from provisioner.nodegroups.api.statuses import ConditionType, ResourceStatus, TpuNodeGroupStatus
from provisioner.nodegroups.api.types import API_VERSION, HINTS, Child, Kind, ObjectMeta, Record

R = TypeVar("R", bound=Record)


def parse(cls: type[R], raw: object, *, served: Collection[str] = ()) -> R:
    """Read an object of the kind of `cls`. Raises MalformedObject if its metadata or its spec is invalid.

    `served` are the served namespaces, empty if all are served. In other namespaces, long texts are cut, and nested
    fields except the condition Ready are dropped; otherwise users could fill the memory with large objects.
    """
    whole, hints = fields.mapping(raw), HINTS[cls.kind]
    meta = _meta(cls.kind, fields.mapping(whole.get("metadata")))
    spec, status = fields.mapping(whole.get("spec")), fields.mapping(whole.get("status"))
    if served and meta.namespace not in served:
        ready = [
            entry for entry in fields.mappings(status.get("conditions")) if entry.get("type") == ConditionType.READY
        ]
        spec, status = _scalars(spec), {**_scalars(status), "conditions": [_scalars(entry) for entry in ready[:1]]}
    try:
        return cls(meta=meta, spec=codec.read(hints["spec"], spec), status=_status(status, hints["status"]))
    except (TypeError, ValueError) as error:
        raise fields.MalformedObject(f"{cls.kind} {meta}: spec: {error}") from error


def _scalars(part: Json) -> Json:
    return {
        key: bounds.cut(value, bounds.CONDITION_MESSAGE) if isinstance(value, str) else value
        for key, value in part.items()
        if isinstance(value, str | int)
    }


def _status(status: Json, cls: Callable[..., Any]) -> Any:
    """Read a status; return an empty one if it is unreadable, because the controller will write it again."""
    try:
        return codec.read(cls, status)
    except (TypeError, ValueError):
        return cls()


def _meta(kind: Kind, metadata: dict[str, Any]) -> ObjectMeta:
    namespace, name, uid = fields.identity(kind, metadata)
    if not names.is_identity(namespace, name, uid):
        raise fields.MalformedObject(
            f"{kind} {bounds.cut(namespace)}/{bounds.cut(name)} with uid {bounds.quoted(uid)}: namespace, name or uid "
            "is invalid"
        )
    annotations = fields.mapping(metadata.get("annotations"))
    finalizers = tuple(text for text in fields.sequence(metadata.get("finalizers")) if isinstance(text, str))
    if sum(map(len, finalizers)) > bounds.FINALIZERS:
        raise fields.MalformedObject(
            f"{kind} {namespace}/{name}: finalizers have more than {bounds.FINALIZERS:,} characters; remove some"
        )
    return ObjectMeta(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=fields.count(metadata.get("generation"), default=0),
        resource_version=fields.name(metadata.get("resourceVersion")),
        created_at=fields.parse_timestamp(metadata.get("creationTimestamp")),
        deleted_at=fields.deletion_deadline(f"{kind} {namespace}/{name}", metadata),
        finalizers=finalizers,
        annotations={
            key: bounds.cut(annotations[key], bounds.ANNOTATION)
            for key in names.READ_ANNOTATIONS
            if isinstance(annotations.get(key), str)
        },
    )


Status = TpuNodeGroupStatus | ResourceStatus


def child(wanted: Child) -> Json:
    """Return the JSON that creates a child, with its finalizer and, if `owner` is set, labels and owner reference."""
    meta = wanted.meta
    metadata: Json = {
        "namespace": meta.namespace,
        "name": meta.name,
        "finalizers": [names.CHILD_FINALIZERS[wanted.kind]],
    }
    if meta.owner is not None:
        metadata["labels"] = {names.GROUP_NAMESPACE: meta.namespace, names.GROUP_NAME: meta.owner.name}
        # blockOwnerDeletion would need a further permission, and finalizers already delay the owner's deletion.
        owner = {"kind": Kind.TPU_NODE_GROUP.value, "name": meta.owner.name, "uid": meta.owner.uid, "controller": True}
        metadata["ownerReferences"] = [{"apiVersion": API_VERSION, **owner}]
    return {
        "apiVersion": API_VERSION,
        "kind": wanted.kind.value,
        "metadata": metadata,
        "spec": codec.write(wanted.spec),
    }


def finalizers_patch(meta: ObjectMeta, finalizers: tuple[str, ...]) -> Json:
    """Return the merge patch that sets an object's finalizers. The patch fails if the object changed after the read."""
    return {"metadata": {**_as_read(meta), "finalizers": list(finalizers)}}


def status_patch(record: Record, new: Status) -> Json | None:
    """Return the patch from the status of `record` to `new`, None if equal. The patch fails if the object changed."""
    before, after = codec.write(record.status), codec.write(new)
    changed = {key: after.get(key) for key in before | after if before.get(key) != after.get(key)}
    return {"metadata": _as_read(record.meta), "status": changed} if changed else None


def _as_read(meta: ObjectMeta) -> Json:
    # The UID is left out: if the object was recreated, a patch with the UID fails as invalid, not as a conflict.
    return {"resourceVersion": meta.resource_version}
