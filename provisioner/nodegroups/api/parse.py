"""Turn raw JSON of the four kinds into records.

Whatever JSON comes in, a record or MalformedObject comes out. The API server has checked the object by its definition;
those of earlier definitions may lack fields.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from provisioner.kube import fields
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.nodegroups.api import codec, names
from provisioner.nodegroups.api.specs import (
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    TpuNodeGroupSpec,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.statuses import ResourceStatus, TpuNodeGroupStatus
from provisioner.nodegroups.api.types import (
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    ObjectMeta,
    Record,
    TpuNodeGroup,
    WorkloadPolicy,
)

S = TypeVar("S")
T = TypeVar("T")


def parse(kind: Kind, raw: object) -> Record:
    """Read an object of a kind; MalformedObject where it cannot be told whose it is, or what it asks for."""
    match kind:
        case Kind.TPU_NODE_GROUP:
            return parse_group(raw)
        case Kind.WORKLOAD_POLICY:
            return parse_policy(raw)
        case Kind.INSTANCE_TEMPLATE:
            return parse_template(raw)
        case Kind.MANAGED_INSTANCE_GROUP:
            return parse_manager(raw)


def parse_group(raw: object) -> TpuNodeGroup:
    """Read a TPUNodeGroup; MalformedObject as `parse`."""
    meta, spec = _meta_and_spec(Kind.TPU_NODE_GROUP, raw, TpuNodeGroupSpec)
    return TpuNodeGroup(meta=meta, spec=spec, status=_status(raw, TpuNodeGroupStatus))


def parse_policy(raw: object) -> WorkloadPolicy:
    """Read a WorkloadPolicy; MalformedObject as `parse`."""
    meta, spec = _meta_and_spec(Kind.WORKLOAD_POLICY, raw, WorkloadPolicySpec)
    return WorkloadPolicy(meta=meta, spec=spec, status=_status(raw, ResourceStatus))


def parse_template(raw: object) -> InstanceTemplate:
    """Read an InstanceTemplate; MalformedObject as `parse`."""
    meta, spec = _meta_and_spec(Kind.INSTANCE_TEMPLATE, raw, InstanceTemplateSpec)
    return InstanceTemplate(meta=meta, spec=spec, status=_status(raw, ResourceStatus))


def parse_manager(raw: object) -> ManagedInstanceGroup:
    """Read a ManagedInstanceGroup; MalformedObject as `parse`."""
    meta, spec = _meta_and_spec(Kind.MANAGED_INSTANCE_GROUP, raw, ManagedInstanceGroupSpec)
    return ManagedInstanceGroup(meta=meta, spec=spec, status=_status(raw, ResourceStatus))


def _meta_and_spec(kind: Kind, raw: object, cls: type[S]) -> tuple[ObjectMeta, S]:
    whole = fields.mapping(raw)
    meta = _meta(kind, fields.mapping(whole.get("metadata")))
    try:
        return meta, codec.read(cls, whole.get("spec"))
    except (TypeError, ValueError) as error:
        raise fields.MalformedObject(f"{kind} {meta}: spec: {error}") from error


def _status(raw: object, cls: type[T]) -> T:
    """Read the status. The controller alone writes it: one that cannot be read is written anew."""
    status = fields.mapping(fields.mapping(raw).get("status"))
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
