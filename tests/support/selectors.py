"""What an API server's selectors, collections and merge patches mean."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from provisioner.kube.protocol import JsonObject


def belongs(path: str, collection: str) -> bool:
    """Whether an object's path lies in a collection, of one namespace or of all."""
    root, _, resource = collection.rpartition("/")
    if path.rpartition("/")[0] == collection:
        return True
    return bool(
        "/namespaces/" not in collection
        and re.fullmatch(rf"{re.escape(root)}/namespaces/[^/]+/{re.escape(resource)}/[^/]+", path)
    )


def matches(raw: JsonObject, query: Mapping[str, str]) -> bool:
    """Whether an object has the labels and fields that a query selects."""
    labels = raw.get("metadata", {}).get("labels") or {}
    return all(_holds(requirement, labels.get) for requirement in _requirements(query.get("labelSelector"))) and all(
        _holds(requirement, lambda path: _at(raw, path)) for requirement in _requirements(query.get("fieldSelector"))
    )


def _requirements(selector: str | None) -> list[str]:
    return selector.split(",") if selector else []


def _holds(requirement: str, value_of: Any) -> bool:
    if "!=" in requirement:
        key, _, value = requirement.partition("!=")
        return value_of(key) != value
    if "=" in requirement:
        key, _, value = requirement.partition("=")
        return value_of(key) == value
    if requirement.startswith("!"):
        return value_of(requirement.removeprefix("!")) is None
    return value_of(requirement) is not None


def _at(raw: Any, path: str) -> Any:
    if path == "spec.unschedulable":
        # Absent is false, and selectors are texts.
        return str(raw.get("spec", {}).get("unschedulable") is True).lower()
    for part in path.split("."):
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw


def merged(target: Any, change: Any) -> Any:
    """Return what a JSON merge patch makes of a value; null removes a field."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
