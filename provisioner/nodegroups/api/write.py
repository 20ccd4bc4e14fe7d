"""Turn records into what is sent to the API server: children to create, and patches of what changed.

What is written is read back as the same record. Specs are written with the defaults that the API server would add, so
that a child that is as it should be reads equal to what it was made from, and nothing is patched.
"""

from __future__ import annotations

from provisioner.nodegroups.api import codec, names
from provisioner.nodegroups.api.forms import Json
from provisioner.nodegroups.api.specs import (
    InstanceTemplateSpec,
    ManagedInstanceGroupSpec,
    TpuNodeGroupSpec,
    WorkloadPolicySpec,
)
from provisioner.nodegroups.api.statuses import ResourceStatus, TpuNodeGroupStatus
from provisioner.nodegroups.api.types import API_VERSION, Child, Kind, ObjectMeta, Record

Spec = TpuNodeGroupSpec | WorkloadPolicySpec | InstanceTemplateSpec | ManagedInstanceGroupSpec
Status = TpuNodeGroupStatus | ResourceStatus


def child(wanted: Child) -> Json:
    """Return a child as it is created: it has its finalizer from the start, and goes with its owner."""
    meta = wanted.meta
    metadata: Json = {
        "namespace": meta.namespace,
        "name": meta.name,
        **({"labels": dict(meta.labels)} if meta.labels else {}),
        **({"annotations": dict(meta.annotations)} if meta.annotations else {}),
        "finalizers": [names.CHILD_FINALIZERS[wanted.kind]],
    }
    if meta.owner is not None:
        # Without blockOwnerDeletion, which would need a right to the owner's finalizers: the owner has its own.
        owner = {"kind": Kind.TPU_NODE_GROUP.value, "name": meta.owner.name, "uid": meta.owner.uid, "controller": True}
        metadata["ownerReferences"] = [{"apiVersion": API_VERSION, **owner}]
    return {
        "apiVersion": API_VERSION,
        "kind": wanted.kind.value,
        "metadata": metadata,
        "spec": spec_document(wanted.spec),
    }


def finalizers_patch(meta: ObjectMeta, finalizers: tuple[str, ...]) -> Json:
    """Return the merge patch that makes these an object's finalizers; a conflict where it is not as it was read."""
    return {"metadata": {**_as_read(meta), "finalizers": list(finalizers)}}


def status_patch(record: Record, new: Status) -> Json | None:
    """Return the merge patch from the status of an object to another, with what differs alone.

    None where nothing does. A conflict comes of it where the object is not as it was read.
    """
    before, after = status_document(record.kind, record.status), status_document(record.kind, new)
    changed = {key: after.get(key) for key in before | after if before.get(key) != after.get(key)}
    return {"metadata": _as_read(record.meta), "status": changed} if changed else None


def spec_document(spec: Spec) -> Json:
    """Return a spec as JSON, with defaults."""
    return codec.write(spec)


def status_document(kind: Kind, status: Status) -> Json:
    """Return the status of an object of a kind as JSON."""
    written = codec.write(status)
    if kind is not Kind.MANAGED_INSTANCE_GROUP and "url" in written:
        written["uri"] = written.pop("url")
    return written


def _as_read(meta: ObjectMeta) -> Json:
    # No other object has it, under the same name or another. A UID beside it would be refused as a change, with 422.
    return {"resourceVersion": meta.resource_version}
