"""Checks JSON against the published message types of the GKE API: request bodies and field masks.

The field names come from the descriptors in google-cloud-container: a request with an unknown field is rejected with
GKE's message, and the stored form is canonical JSON. Only the form is checked here; validation.py checks the meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.cloud import container_v1beta1
from google.cloud.container_v1.types import cluster_service

from rehearsal.simulators.gke.errors import ApiError, FieldViolation

_INTEGERS = {3: "TYPE_INT64", 4: "TYPE_UINT64", 5: "TYPE_INT32", 13: "TYPE_UINT32"}
_LONG = (3, 4)
_INTEGER_TEXT = re.compile(r"-?\d{1,20}")
_DURATION = re.compile(r"-?\d+(\.\d{1,9})?s")
_PREFIX = "Invalid JSON payload received. "

# protobuf descriptors have no type stubs, so they are treated as Any.
Descriptor = Any


def message(name: str, version: str = "v1") -> Descriptor:
    """Return the descriptor of an API message such as NodePool."""
    return getattr(cluster_service if version == "v1" else container_v1beta1, name).pb().DESCRIPTOR


def read(descriptor: Descriptor, raw: object) -> dict[str, Any]:
    """Return a request body in canonical JSON. Raises one ApiError with every mistake."""
    violations: list[FieldViolation] = []
    if not isinstance(raw, dict):
        raise ApiError("INVALID_ARGUMENT", f"{_PREFIX}Root element must be a message.")
    parsed = _read_message(descriptor, raw, "", violations)
    if violations:
        text = "\n".join(item.description for item in violations)
        raise ApiError("INVALID_ARGUMENT", text, violations=tuple(violations))
    return parsed


def _field_of(descriptor: Descriptor, name: str) -> Descriptor | None:
    if name.endswith("_"):
        # The library writes Python's keywords with an underscore (type_); the JSON has none.
        return None
    return descriptor.fields_by_name.get(name) or descriptor.fields_by_camelcase_name.get(name)


def _is_map(descriptor: Descriptor) -> bool:
    return bool(descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry)


def _read_message(
    descriptor: Descriptor, raw: Mapping[str, Any], path: str, violations: list[FieldViolation]
) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for name, value in raw.items():
        found = _field_of(descriptor, name)
        if found is None:
            place = f" at '{path}'" if path else ""
            text = f'{_PREFIX}Unknown name "{name}"{place}: Cannot find field.'
            violations.append(FieldViolation(path=path, description=text))
        elif value is not None:
            spelling = found.name.rstrip("_")
            where = f"{path}.{spelling}" if path else spelling
            parsed[found.json_name] = _read_field(found, value, where, violations)
    return parsed


def _read_field(field: Descriptor, value: Any, path: str, violations: list[FieldViolation]) -> Any:
    if _is_map(field):
        if not isinstance(value, dict):
            return _refuse(field, value, path, violations)
        entry = field.message_type.fields_by_name["value"]
        return {key: _read_single(entry, item, f"{path}[{key}]", violations) for key, item in value.items()}
    if field.is_repeated:
        # Google's parser accepts a single value as a list with one element.
        items = value if isinstance(value, list) else [value]
        return [_read_single(field, item, f"{path}[{index}]", violations) for index, item in enumerate(items)]
    return _read_single(field, value, path, violations)


def _read_single(field: Descriptor, value: Any, path: str, violations: list[FieldViolation]) -> Any:
    if field.message_type is not None:
        return _read_submessage(field, value, path, violations)
    if field.enum_type is not None:
        return _read_enum(field, value, path, violations)
    if field.type in _INTEGERS:
        if isinstance(value, str) and _INTEGER_TEXT.fullmatch(value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return _refuse(field, value, path, violations)
        return str(value) if field.type in _LONG else value
    expected: tuple[type, ...] = {8: (bool,), 9: (str,), 12: (str,)}.get(field.type, (int, float))
    if not isinstance(value, expected):
        return _refuse(field, value, path, violations)
    return value


def _read_submessage(field: Descriptor, value: Any, path: str, violations: list[FieldViolation]) -> Any:
    kind = field.message_type.full_name
    if kind == "google.protobuf.Duration":
        valid = isinstance(value, str) and _DURATION.fullmatch(value) is not None
        return value if valid else _refuse(field, value, path, violations)
    if kind.startswith("google.protobuf."):
        return value
    if not isinstance(value, dict):
        return _refuse(field, value, path, violations)
    return _read_message(field.message_type, value, path, violations)


def _read_enum(field: Descriptor, value: Any, path: str, violations: list[FieldViolation]) -> Any:
    if isinstance(value, str) and value in field.enum_type.values_by_name:
        return value
    if isinstance(value, int) and value in field.enum_type.values_by_number:
        return field.enum_type.values_by_number[value].name
    return _refuse(field, value, path, violations)


def _refuse(field: Descriptor, value: Any, path: str, violations: list[FieldViolation]) -> None:
    if field.message_type is not None:
        kind = f"type.googleapis.com/{field.message_type.full_name}"
    elif field.enum_type is not None:
        kind = f"type.googleapis.com/{field.enum_type.full_name}"
    else:
        kind = {8: "TYPE_BOOL", 9: "TYPE_STRING"}.get(field.type, _INTEGERS.get(field.type, "TYPE_DOUBLE"))
    shown = f'"{value}"' if isinstance(value, str) else value
    violations.append(FieldViolation(path=path, description=f"Invalid value at '{path}' ({kind}), {shown}"))


def numbered(descriptor: Descriptor, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the numbers of its enum values; values that the API does not have remain texts."""
    return {name: _numbered(_field_of(descriptor, name), value) for name, value in body.items()}


def _numbered(field: Descriptor | None, value: Any) -> Any:
    if field is None or _is_map(field):
        return value
    if isinstance(value, list):
        return [_numbered(field, item) for item in value]
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        return value if known is None else known.number
    return numbered(field.message_type, value) if isinstance(value, dict) else value


def canonical_path(descriptor: Descriptor, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return a mask's path in JSON names; None if the message has no such field."""
    names: list[str] = []
    current: Descriptor | None = descriptor
    for step, name in enumerate(path):
        if current is None:
            return None
        field = _field_of(current, name)
        if field is None:
            return None
        names.append(field.json_name)
        if _is_map(field):
            # Keys of a map are data, not fields.
            return (*names, *path[step + 1 :])
        current = field.message_type
    return tuple(names)
