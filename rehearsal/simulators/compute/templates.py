"""Checks instance templates, and reads their requirements.

From the references of InstanceProperties, Scheduling, ReservationAffinity and Metadata: a machine type is a name and
not a link; spot and flex-start VMs cannot restart automatically, and TERMINATE is the only maintenance behaviour of
spot VMs (and of VMs with TPUs); a specific reservation has a key and one value; keys and sizes of metadata are bounded.
"About provisioning models" has the requirements of reservation-bound and flex-start VMs. A template without a disk or a
network interface is rejected, like the insert of such an instance; no document describes this case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.simulators.compute import errors
from rehearsal.simulators.compute.faults import FLEX_START, RESERVATION_BOUND, SPOT, STANDARD
from rehearsal.simulators.compute.records import Terms
from rehearsal.simulators.http import google
from rehearsal.simulators.machines import find_machine

_MACHINE_TYPE = re.compile(r"[a-z][a-z0-9-]*")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,127}")
_METADATA_VALUE_BYTES = 262_144
_METADATA_BYTES = 512 * 1024
_DESCRIPTION_LENGTH = 2048
_PROPERTIES = "resource.properties"


def check_description(body: Mapping[str, Any]) -> None:
    """Raise ApiError if the description is too long."""
    text = body.get("description", "")
    if len(text) > _DESCRIPTION_LENGTH:
        raise errors.invalid("resource.description", text[:20], f"At most {_DESCRIPTION_LENGTH} characters.")


def check_template(body: Mapping[str, Any], project: str) -> Terms:
    """Return the requirements of a template. Raises ApiError if it is invalid."""
    properties = body.get("properties")
    if properties is None:
        raise errors.required(_PROPERTIES)
    machine_type = properties.get("machineType", "")
    if not machine_type:
        raise errors.required(f"{_PROPERTIES}.machineType")
    if _MACHINE_TYPE.fullmatch(machine_type) is None:
        raise errors.invalid(f"{_PROPERTIES}.machineType", machine_type, "Must be the name of a machine type.")
    _check_disks(properties.get("disks", []))
    if not properties.get("networkInterfaces"):
        raise errors.invalid(f"{_PROPERTIES}.networkInterfaces", "", "At least one network interface is required.")
    for place, interface in enumerate(properties["networkInterfaces"]):
        for field in ("network", "subnetwork"):
            if interface.get(field) and "/" not in interface[field]:
                where = f"{_PROPERTIES}.networkInterfaces[{place}].{field}"
                raise errors.invalid(where, interface[field], "The URL is malformed.")
    items_of(properties.get("metadata", {}), f"{_PROPERTIES}.metadata")
    _check_tags(properties)
    if len(properties.get("serviceAccounts", [])) > 1:
        raise errors.invalid(f"{_PROPERTIES}.serviceAccounts", "", "At most one service account can be specified.")
    return _terms(properties, machine_type, project)


def items_of(metadata: Mapping[str, Any], field: str) -> dict[str, str]:
    """Return the metadata's items by key. Raises ApiError if they are invalid."""
    items: dict[str, str] = {}
    for item in metadata.get("items", []):
        key, value = item.get("key", ""), item.get("value", "")
        if _METADATA_KEY.fullmatch(key) is None:
            raise errors.invalid(f"{field}.items.key", key, "Must be a match of regex '[a-zA-Z0-9-_]{1,127}'")
        if key in items:
            raise errors.invalid(f"{field}.items.key", key, "Metadata has duplicate keys.")
        if len(value.encode()) > _METADATA_VALUE_BYTES:
            raise errors.invalid(f"{field}.items.value", key, f"At most {_METADATA_VALUE_BYTES} bytes.")
        items[key] = value
    if sum(len(key.encode()) + len(value.encode()) for key, value in items.items()) >= _METADATA_BYTES:
        raise errors.invalid(field, "", f"The total size of all keys and values must be less than {_METADATA_BYTES}.")
    return items


def service_account(properties: Mapping[str, Any], project: str) -> str:
    """Return the service account of the VMs; empty if they have none."""
    accounts = properties.get("serviceAccounts", [])
    email = accounts[0].get("email", "default") if accounts else ""
    return google.default_account(project) if email == "default" else str(email)


def _check_disks(disks: Sequence[Mapping[str, Any]]) -> None:
    boot = [disk for disk in disks if disk.get("boot")]
    if len(boot) != 1:
        raise errors.invalid(f"{_PROPERTIES}.disks", len(boot), "Exactly one boot disk must be specified.")
    if not boot[0].get("initializeParams", {}).get("sourceImage"):
        raise errors.invalid(f"{_PROPERTIES}.disks[0]", "", "A boot disk must have a source image.")


def _check_tags(properties: Mapping[str, Any]) -> None:
    for tag in properties.get("tags", {}).get("items", []):
        if not google.is_name(tag):
            raise errors.invalid(f"{_PROPERTIES}.tags.items", tag, f"Must be a match of regex '{google.NAME_PATTERN}'")


def _terms(properties: Mapping[str, Any], machine_type: str, project: str) -> Terms:
    scheduling = properties.get("scheduling", {})
    model = scheduling.get("provisioningModel", SPOT if scheduling.get("preemptible") else STANDARD)
    machine = find_machine(machine_type)
    chips = machine.chips if machine is not None else 0
    reservation = _reservation(properties.get("reservationAffinity", {}), project)
    _check_scheduling(scheduling, model, has_chips=chips > 0)
    if model == RESERVATION_BOUND and not reservation:
        raise _scheduling("provisioningModel", model, "A specific reservation is required.")
    if model in (SPOT, FLEX_START) and reservation:
        raise _scheduling("provisioningModel", model, "Can't consume a reservation.")
    if chips and properties.get("reservationAffinity", {}).get("consumeReservationType") == "ANY_RESERVATION":
        field = f"{_PROPERTIES}.reservationAffinity.consumeReservationType"
        raise errors.invalid(field, "ANY_RESERVATION", "Not supported with TPUs.")
    return Terms(machine_type=machine_type, chips=chips, model=model, reservation=reservation)


def _scheduling(field: str, value: object, rule: str) -> errors.ApiError:
    return errors.invalid(f"{_PROPERTIES}.scheduling.{field}", value, rule)


def _check_scheduling(scheduling: Mapping[str, Any], model: str, *, has_chips: bool) -> None:
    maintenance = scheduling.get("onHostMaintenance", "MIGRATE" if model == STANDARD else "TERMINATE")
    action = scheduling.get("instanceTerminationAction")
    if maintenance != "TERMINATE" and (has_chips or model != STANDARD):
        raise _scheduling("onHostMaintenance", maintenance, "Must be TERMINATE for this machine type and model.")
    if scheduling.get("automaticRestart") and model in (SPOT, FLEX_START):
        raise _scheduling("automaticRestart", "true", f"Must be false for provisioning model {model}.")
    duration = scheduling.get("maxRunDuration")
    if action is not None and model == STANDARD and duration is None:
        raise _scheduling("instanceTerminationAction", action, "Not supported for standard VMs without a run duration.")
    if model in (RESERVATION_BOUND, FLEX_START) and action != "DELETE":
        raise _scheduling("instanceTerminationAction", action, f"Must be DELETE for provisioning model {model}.")
    if model == FLEX_START and duration is None:
        raise _scheduling("maxRunDuration", "", "Required for provisioning model FLEX_START.")
    if duration is not None:
        low, high = google.run_seconds(flex_start=model == FLEX_START)
        if not low <= duration.get("seconds", 0) <= high:
            raise _scheduling("maxRunDuration", duration.get("seconds"), f"Must be from {low} to {high} seconds.")
        if action is None:
            raise _scheduling("instanceTerminationAction", "", "Required with a run duration.")


def _reservation(affinity: Mapping[str, Any], project: str) -> str:
    """Return the requested reservation as PROJECT/NAME, empty if no specific one is requested. Raises ApiError."""
    kind, values = affinity.get("consumeReservationType", "ANY_RESERVATION"), affinity.get("values", [])
    field = f"{_PROPERTIES}.reservationAffinity"
    if kind != "SPECIFIC_RESERVATION":
        if values or affinity.get("key"):
            raise errors.invalid(field, kind, "Key and values are for SPECIFIC_RESERVATION only.")
        return ""
    if affinity.get("key") != google.RESERVATION_KEY:
        raise errors.invalid(f"{field}.key", affinity.get("key"), f"Must be {google.RESERVATION_KEY}.")
    if len(values) != 1:
        raise errors.invalid(f"{field}.values", values, "Exactly one reservation must be specified.")
    parts = values[0].split("/")
    if len(parts) >= 4 and parts[0] == "projects" and parts[2] == "reservations":
        return f"{parts[1]}/{parts[3]}"
    if len(parts) == 1 and google.is_name(parts[0]):
        return f"{project}/{parts[0]}"
    raise errors.invalid(f"{field}.values", values[0], "Not the name of a reservation.")
