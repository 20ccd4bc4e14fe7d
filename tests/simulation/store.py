"""The objects of the simulated Kubernetes, and what an API server does with them: versions, selectors, listeners.

Objects are never changed in place: a write replaces them, so readers may keep what they got. There is no validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from provisioner.cluster import errors
from provisioner.cluster.protocol import JsonObject

#: resource, path, before, after.
Listener = Callable[[str, str, JsonObject | None, JsonObject | None], None]


def resource_of(path: str) -> str:
    """Return the resource in an object's path."""
    return path.rsplit("/", 2)[-2]


class Store:
    """All objects, by resource and path."""

    def __init__(self) -> None:
        self.version = 0
        self.listeners: list[Listener] = []
        self._objects: dict[str, dict[str, JsonObject]] = {}
        self._uids = 0

    def new_uid(self, kind: str) -> str:
        """Return a UID that was never given before."""
        self._uids += 1
        return f"{kind}-{self._uids:04d}"

    def find(self, path: str) -> JsonObject | None:
        """Return an object, or None."""
        return self._objects.get(resource_of(path), {}).get(path)

    def get(self, path: str) -> JsonObject:
        """Return an object; raise NotFound as the API server does."""
        found = self.find(path)
        if found is None:
            raise errors.NotFound(f"{path} not found", status=404, reason="NotFound")
        return found

    def all(self, resource: str) -> Mapping[str, JsonObject]:
        """Return the objects of a resource by path."""
        return self._objects.get(resource, {})

    def put(self, path: str, body: JsonObject) -> JsonObject:
        """Create or replace an object."""
        resource = resource_of(path)
        objects = self._objects.setdefault(resource, {})
        before = objects.get(path)
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        if not metadata.get("uid"):
            metadata["uid"] = before["metadata"]["uid"] if before else self.new_uid(resource)
        after = {**body, "metadata": metadata}
        objects[path] = after
        self._tell(resource, path, before, after)
        return after

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        before = self._objects.get(resource_of(path), {}).pop(path, None)
        if before is not None:
            self.version += 1
            self._tell(resource_of(path), path, before, None)

    def select(self, collection: str, query: Mapping[str, str]) -> Iterator[JsonObject]:
        """Yield the objects of a collection that the selectors leave."""
        root, _, resource = collection.rpartition("/")
        labels = _parsed(query.get("labelSelector", ""))
        fields = _parsed(query.get("fieldSelector", ""))
        for path, raw in list(self._objects.get(resource, {}).items()):
            if not path.startswith(root):
                continue
            marks = raw["metadata"].get("labels") or {}
            if all(_holds(marks.get(key), sign, value) for key, sign, value in labels) and all(
                _holds(_field(raw, key), sign, value) for key, sign, value in fields
            ):
                yield raw

    def _tell(self, resource: str, path: str, before: JsonObject | None, after: JsonObject | None) -> None:
        for listener in self.listeners:
            listener(resource, path, before, after)


def merged(target: Any, change: Any) -> Any:
    """Apply a merge patch."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _parsed(selector: str) -> list[tuple[str, str, str]]:
    parts = []
    for requirement in selector.split(",") if selector else ():
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
    return found == value if sign else found is not None


def _field(raw: Any, path: str) -> Any:
    for part in path.split("."):
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw
