"""Implements selectors, collections and merge patches as in an API server."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from provisioner.kube.protocol import JsonObject


def belongs(path: str, collection: str) -> bool:
    """Return whether an object's path is in a collection of one namespace or of all namespaces."""
    root, _, resource = collection.rpartition("/")
    if path.rpartition("/")[0] == collection:
        return True
    return bool(
        "/namespaces/" not in collection
        and re.fullmatch(rf"{re.escape(root)}/namespaces/[^/]+/{re.escape(resource)}/[^/]+", path)
    )


def selected(query: Mapping[str, str]) -> Callable[[JsonObject], bool]:
    return _selected(query.get("labelSelector") or "", query.get("fieldSelector") or "")


@functools.lru_cache(maxsize=256)
def _selected(label_selector: str, field_selector: str) -> Callable[[JsonObject], bool]:
    labels, fields = _parsed(label_selector), _parsed(field_selector)

    def selects(raw: JsonObject) -> bool:
        marks = raw.get("metadata", {}).get("labels") or {}
        return all(_holds(marks.get(key), sign, value) for key, sign, value in labels) and all(
            _holds(_field(raw, key) or "", sign, value) for key, sign, value in fields
        )

    return selects


def _parsed(text: str) -> list[tuple[str, str, str]]:
    parts = []
    for requirement in text.split(",") if text else ():
        if requirement.startswith("!"):
            parts.append((requirement[1:], "!", ""))
            continue
        for sign in ("!=", "="):
            key, found, value = requirement.partition(sign)
            if found:
                parts.append((key, sign, value))
                break
        else:
            parts.append((requirement, "", ""))
    return parts


def _holds(found: object, sign: str, value: str) -> bool:
    if sign == "!=":
        return found != value
    if sign == "!":
        return found is None
    return found == value if sign else found is not None


def _field(raw: Any, path: str) -> Any:
    if path == "spec.unschedulable":
        # An absent field counts as false, and selectors compare strings.
        return str(raw.get("spec", {}).get("unschedulable") is True).lower()
    for part in path.split("."):
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw


#: Lists of which a strategic merge patch changes single items, identified by their name.
_LISTS_BY_NAME = ("webhooks",)


def merged(target: Any, change: Any, *, strategic: bool = False) -> Any:
    """Return the result of a JSON merge patch, or a strategic one; it shares unchanged parts with `target`."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif strategic and key in _LISTS_BY_NAME:
            items = {item["name"]: item for item in result.get(key, [])}
            new = {item["name"]: merged(items.get(item["name"]), item, strategic=True) for item in value}
            result[key] = list({**items, **new}.values())
        else:
            result[key] = merged(result.get(key), value, strategic=strategic)
    return result
