"""Raw JSON of the kinds of tpu.google.com, and strategies that draw values from their schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from provisioner.kube.fields import format_time
from provisioner.nodegroups.api.types import API_VERSION, Kind

Json = dict[str, Any]

UID = "0b5c9f0e-6f63-4c2b-9b6e-6d7f9a3d1c11"
CLUSTER_UID = "9d2e7c66-0f0a-4b0e-8f0f-0a4c6c1b2d3e"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/ubuntu-accel-2404-amd64-tpu-tpu7x"
_COMPUTE = "https://www.googleapis.com/compute/v1/projects/research-project"

#: The `instanceConfig` with every field that gke-labs/tpu-operator has, as its manifests write them.
INSTANCE_CONFIG: Mapping[str, Any] = {
    "machineType": "tpu7x-standard-4t",
    "image": IMAGE,
    "bootDiskSizeGB": 250,
    "diskType": "hyperdisk-balanced",
    "subnetwork": "regions/us-central1/subnetworks/default",
    "provisioningModel": "RESERVATION_BOUND",
    "reservation": "research-reservation",
    "metadata": {"team": "research"},
    "networkTags": ["research", "tpu"],
    "serviceAccounts": [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
}
#: Fields of specs that have no effect, because the controller does not read them.
UNREAD = ("minNodeCount", "acceleratorConnectionMode", "bootDisk")
#: Spec of each kind, with every field of gke-labs/tpu-operator.
SPECS: Mapping[Kind, Mapping[str, Any]] = {
    Kind.TPU_NODE_GROUP: {
        "project": "research-project",
        "nodeLocation": "us-central1-c",
        "nodeCount": 2,
        "minNodeCount": 0,
        "acceleratorConnectionMode": "STATIC",
        "topology": "2x2x2",
        "targetSizePolicyMode": "BULK",
        "bootstrapKubernetes": {"version": "1.31", "controlPlaneIP": "10.128.0.2"},
        "instanceConfig": INSTANCE_CONFIG,
    },
    Kind.WORKLOAD_POLICY: {
        "project": "research-project",
        "region": "us-central1",
        "acceleratorTopology": "2x2x2",
        "type": "HIGH_THROUGHPUT",
    },
    Kind.INSTANCE_TEMPLATE: {
        "project": "research-project",
        **INSTANCE_CONFIG,
        "maintenancePolicy": "TERMINATE",
        "bootDisk": {"autoDelete": True},
    },
    Kind.MANAGED_INSTANCE_GROUP: {
        "project": "research-project",
        "location": "us-central1-c",
        "instanceTemplate": f"{_COMPUTE}/global/instanceTemplates/slice-template-4d7d1bc1",
        "targetSize": 2,
        "workloadPolicy": f"{_COMPUTE}/regions/us-central1/resourcePolicies/slice-policy-4d7d1bc1",
        "targetSizePolicyMode": "BULK",
        "defaultActionOnFailure": "DO_NOTHING",
    },
}


def raw_object(kind: Kind, spec: object, *, name: str = "slice", **parts: Any) -> Json:
    """Return an object as the API server returns it; `metadata` adds fields."""
    metadata = {"namespace": "research", "name": name, "uid": UID, **parts.pop("metadata", {})}
    return {"apiVersion": API_VERSION, "kind": kind.value, "metadata": metadata, "spec": spec, **parts}


def without(spec: Mapping[str, Any], *names: str, **changes: Any) -> Json:
    return {key: value for key, value in {**spec, **changes}.items() if key not in names}


_MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0)
)


def valid(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for raw values of an OpenAPI schema; rules between fields are ignored."""
    match schema:
        case {"enum": choices}:
            return st.sampled_from(choices)
        case {"format": "date-time"}:
            return _MOMENTS.map(format_time)
        case {"type": "string", "maxLength": most}:
            if pattern := _pattern_of(schema):
                return st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) <= most)
            return st.text(st.characters(codec="utf-8"), min_size=schema.get("minLength", 0), max_size=min(most, 40))
        case {"type": "integer", "minimum": least, "maximum": most}:
            return st.integers(least, most)
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "array", "items": items, "maxItems": most}:
            (key,) = schema.get("x-kubernetes-list-map-keys", [""])
            unique = (lambda entry: entry[key]) if key else None
            return st.lists(valid(items), max_size=min(most, 3), unique_by=unique)
        case {"additionalProperties": values}:
            return st.dictionaries(st.from_regex("[A-Za-z0-9_-]{1,20}", fullmatch=True), valid(values), max_size=3)
    required = schema.get("required", ())
    parts = schema["properties"].items()
    return st.fixed_dictionaries(
        {name: valid(part) for name, part in parts if name in required},
        optional={name: valid(part) for name, part in parts if name not in required},
    )


def _pattern_of(schema: Mapping[str, Any]) -> str:
    rules = (validation["rule"] for validation in schema.get("x-kubernetes-validations", ()))
    return next((found[1] for rule in rules if (found := re.fullmatch(r"self\.matches\(r'\^(.*)\$'\)", rule))), "")
