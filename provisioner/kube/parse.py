"""Turn raw JSON of nodes into the narrow records of the model.

Total: whatever JSON comes in, a record, None ("not one of ours") or MalformedObject comes out. A field of a wrong type
counts as absent, except where a guess would be dangerous: an identity, or an amount of chips, CPU or memory. The API
server has validated the objects; nothing here checks them again.
"""

from __future__ import annotations

import itertools

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.model.capacity import Node, PoolName, Taint


def parse_node(raw: object) -> Node | None:
    """Read a node; None unless GKE's label says which node pool it belongs to."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    pool_name = fields.name(fields.mapping(metadata.get("labels")).get(constants.NODE_POOL))
    if not pool_name:
        return None
    name = fields.name(metadata.get("name"))
    what = f"node {name}"
    created_at = parse_timestamp(metadata.get("creationTimestamp"))
    if not name or created_at is None:
        raise fields.MalformedObject(
            f"node {name or '?'} of pool {pool_name}: it has no name, or creationTimestamp "
            f"{fields.shown(metadata.get('creationTimestamp'))} is not an RFC 3339 time"
        )
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    status = fields.mapping(fields.mapping(raw).get("status"))
    allocatable = fields.mapping(status.get("allocatable"))
    chips = podspec.quantity_of(what, "allocatable", constants.TPU_RESOURCE, allocatable)
    return Node(
        name=name,
        uid=fields.name(metadata.get("uid")),
        pool_name=PoolName(pool_name),
        labels=kept_labels(metadata.get("labels")),
        taints=tuple(
            Taint(
                key=fields.name(taint.get("key")),
                value=fields.name(taint.get("value")),
                effect=fields.name(taint.get("effect")),
            )
            for taint in itertools.islice(fields.mappings(spec.get("taints")), bounds.NODE_TAINTS)
        ),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in fields.mappings(status.get("conditions"))
        ),
        cordoned=spec.get("unschedulable") is True,
        cordoned_by_us=fields.mapping(metadata.get("annotations")).get(constants.CORDONED) == "true",
        # A device plugin reports whole devices; a fraction could only be a promise that no pod can use.
        allocatable_chips=int(chips),
        allocatable_cpu_millicores=int(podspec.quantity_of(what, "allocatable", "cpu", allocatable) * 1000),
        allocatable_memory_bytes=int(podspec.quantity_of(what, "allocatable", "memory", allocatable)),
        provider_id=fields.name(spec.get("providerID")),
        created_at=created_at,
    )


def kept_labels(raw: object) -> dict[str, str]:
    """Read the labels of a node or namespace, as many as such an object needs; only administrators write them."""
    entries = (
        (fields.name(key), fields.name(value)) for key, value in fields.mapping(raw).items() if isinstance(value, str)
    )
    return dict(itertools.islice(entries, bounds.CLUSTER_OBJECT_LABELS))
