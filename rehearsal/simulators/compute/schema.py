"""Defines the fields of request bodies that the simulator supports, with their types.

Any other field is rejected, as Compute Engine's front end rejects unknown fields. A field that only Compute Engine sets
(id, selfLink ...) is ignored, as the references say. Numbers of 64 bits may be sent as texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.simulators.compute import errors
from rehearsal.simulators.compute.faults import PROVISIONING_MODELS

Kind = object
TEXT, WHOLE, FLAG = str, int, bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A field with one of these texts."""

    values: tuple[str, ...]


class _Ignored:
    """A field that only the service sets."""


IGNORED = _Ignored()


def _ignored(*fields: str) -> dict[str, Kind]:
    return dict.fromkeys(("kind", "id", "creationTimestamp", "selfLink", *fields), IGNORED)


METADATA: Mapping[str, Kind] = {"kind": IGNORED, "fingerprint": TEXT, "items": [{"key": TEXT, "value": TEXT}]}

RESOURCE_POLICY: Mapping[str, Kind] = {
    **_ignored("region", "status", "resourceStatus"),
    "name": TEXT,
    "description": TEXT,
    "workloadPolicy": {
        "type": Choice(("HIGH_AVAILABILITY", "HIGH_THROUGHPUT")),
        "acceleratorTopology": TEXT,
    },
}

SCHEDULING: Mapping[str, Kind] = {
    "automaticRestart": FLAG,
    "preemptible": FLAG,
    "provisioningModel": Choice(PROVISIONING_MODELS),
    "onHostMaintenance": Choice(("MIGRATE", "TERMINATE")),
    "instanceTerminationAction": Choice(("DELETE", "STOP")),
    "maxRunDuration": {"seconds": WHOLE, "nanos": WHOLE},
}

INSTANCE_PROPERTIES: Mapping[str, Kind] = {
    "description": TEXT,
    "machineType": TEXT,
    "metadata": METADATA,
    "scheduling": SCHEDULING,
    "reservationAffinity": {
        "consumeReservationType": Choice(("ANY_RESERVATION", "NO_RESERVATION", "SPECIFIC_RESERVATION")),
        "key": TEXT,
        "values": [TEXT],
    },
    "disks": [
        {
            "kind": IGNORED,
            "autoDelete": FLAG,
            "boot": FLAG,
            "type": Choice(("PERSISTENT", "SCRATCH")),
            "mode": Choice(("READ_WRITE", "READ_ONLY")),
            "deviceName": TEXT,
            "diskSizeGb": WHOLE,
            "initializeParams": {
                "sourceImage": TEXT,
                "diskSizeGb": WHOLE,
                "diskType": TEXT,
            },
        }
    ],
    "networkInterfaces": [
        {
            "kind": IGNORED,
            "name": IGNORED,
            "network": TEXT,
            "subnetwork": TEXT,
            "nicType": Choice(("GVNIC", "VIRTIO_NET")),
            "accessConfigs": [{"kind": IGNORED, "type": TEXT, "name": TEXT, "networkTier": TEXT}],
        }
    ],
    "serviceAccounts": [{"email": TEXT, "scopes": [TEXT]}],
    "tags": {"items": [TEXT], "fingerprint": TEXT},
    "canIpForward": FLAG,
    "shieldedInstanceConfig": {"enableSecureBoot": FLAG, "enableVtpm": FLAG, "enableIntegrityMonitoring": FLAG},
}

INSTANCE_TEMPLATE: Mapping[str, Kind] = {
    **_ignored("region"),
    "name": TEXT,
    "description": TEXT,
    "properties": INSTANCE_PROPERTIES,
}

INSTANCE_GROUP_MANAGER: Mapping[str, Kind] = {
    **_ignored("zone", "region", "status", "currentActions", "instanceGroup", "fingerprint"),
    "name": TEXT,
    "description": TEXT,
    "instanceTemplate": TEXT,
    "baseInstanceName": TEXT,
    "targetSize": WHOLE,
    "targetSizePolicy": {"mode": Choice(("BULK", "INDIVIDUAL"))},
    "resourcePolicies": {"workloadPolicy": TEXT},
    "instanceLifecyclePolicy": {
        "defaultActionOnFailure": Choice(("DO_NOTHING", "REPAIR")),
        "forceUpdateOnRepair": Choice(("NO", "YES")),
    },
}


def read(body: object, fields: Mapping[str, Kind]) -> dict[str, Any]:
    """Return the fields of a body, without ignored ones. Raises ApiError if the body is invalid."""
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise errors.malformed("Invalid JSON payload received. Unexpected token. Expected an object.")
    return _message(body, fields, "")


def _message(raw: Mapping[str, Any], fields: Mapping[str, Kind], path: str) -> dict[str, Any]:
    result = {}
    for name, value in raw.items():
        kind = fields.get(name)
        if kind is None:
            place = f" at '{path}'" if path else ""
            raise errors.malformed(f'Invalid JSON payload received. Unknown name "{name}"{place}: Cannot find field.')
        inner = f"{path}.{name}" if path else name
        if kind is not IGNORED and value is not None:
            result[name] = _value(value, kind, inner)
    return result


def _value(value: object, kind: Kind, path: str) -> Any:
    match kind:
        case Choice(values=values):
            if value not in values:
                raise errors.invalid(f"resource.{path}", value, f"Must be one of {', '.join(values)}.")
            return value
        case dict() if isinstance(value, dict):
            return _message(value, kind, path)
        case list() if isinstance(value, list):
            return [_value(item, kind[0], f"{path}[{index}]") for index, item in enumerate(value)]
        case _ if kind is TEXT and isinstance(value, str):
            return value
        case _ if kind is FLAG and isinstance(value, bool):
            return value
        case _ if kind is WHOLE and (number := _whole(value)) is not None:
            return number
    raise errors.malformed(f"Invalid value at '{path}': {value!r}")


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if value.removeprefix("-").isdecimal() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
