"""Objects of the simulated Kubernetes, and its API server: versions, selectors, pages, history.

Objects are never changed in place: a write replaces them, so readers may keep the objects that they got. Every write
increases the version by one. All pages of a list show the state at the time of its first page.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from provisioner.kube import errors
from provisioner.kube.protocol import JsonObject, Page
from tests.support.selectors import selected
from tests.support.simulations import stage


@dataclass(frozen=True, slots=True)
class Change:
    """One write or removal of an object."""

    version: int
    path: str
    before: JsonObject | None
    after: JsonObject | None


Listener = Callable[[Change], None]


def resource_of(path: str) -> str:
    return path.rsplit("/", 2)[-2]


class Store:
    """All objects, by resource and path."""

    def __init__(self) -> None:
        self.version = 0
        self._objects: dict[str, dict[str, JsonObject]] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._history: dict[str, list[Change]] = {}
        #: Version up to which the history has been compacted.
        self._compacted = 0
        #: Remaining objects of lists that are read page by page, by continue token.
        self._lists: dict[str, tuple[int, list[JsonObject]]] = {}
        self._numbers = 0
        self._uids = 0
        #: Resources that the API server does not know, and resources that it forbids to read.
        self.absent: set[str] = set()
        self.forbidden: set[str] = set()

    def new_uid(self, kind: str) -> str:
        self._uids += 1
        return f"{kind}-{self._uids:04d}"

    def find(self, path: str) -> JsonObject | None:
        return self._objects.get(resource_of(path), {}).get(path)

    def get(self, path: str) -> JsonObject:
        found = self.find(path)
        if found is None:
            raise errors.NotFound(f"{path} not found", status=404, reason="NotFound")
        return found

    def put(self, path: str, body: JsonObject) -> JsonObject:
        resource = resource_of(path)
        objects = self._objects.setdefault(resource, {})
        before = objects.get(path)
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        if not metadata.get("uid"):
            metadata["uid"] = before["metadata"]["uid"] if before else self.new_uid(resource)
        after = {**body, "metadata": metadata}
        objects[path] = after
        self._tell(resource, Change(self.version, path, before, after))
        return after

    def remove(self, path: str) -> None:
        resource = resource_of(path)
        before = self._objects.get(resource, {}).pop(path, None)
        if before is not None:
            self.version += 1
            self._tell(resource, Change(self.version, path, before, None))

    def select(self, collection: str, query: Mapping[str, str]) -> list[JsonObject]:
        selects = selector(collection, query)
        objects = self._objects.get(collection.rpartition("/")[2], {})
        return [raw for path, raw in objects.items() if selects(path, raw)]

    def page(self, collection: str, query: Mapping[str, str], *, limit: int, continue_token: str) -> Page:
        """Return one page. Raises Gone if the token was compacted, NotFound if `absent`, Forbidden if `forbidden`."""
        self._look_for(collection.rpartition("/")[2])
        if continue_token:
            if continue_token not in self._lists:
                raise errors.Gone("the provided continue parameter is too old", status=410, reason="Expired")
            version, items = self._lists.pop(continue_token)
        else:
            version, items = self.version, self.select(collection, query)
        token = ""
        if len(items) > limit:
            self._numbers += 1
            token = f"{version}-{self._numbers}"
            self._lists[token] = (version, items[limit:])
        return Page(items=items[:limit], resource_version=str(version), continue_token=token)

    def listen(self, resource: str, listener: Listener) -> None:
        self._listeners.setdefault(resource, []).append(listener)

    def unlisten(self, resource: str, listener: Listener) -> None:
        self._listeners[resource].remove(listener)

    def changes_since(self, resource: str, version: int) -> list[Change]:
        """Return the writes after a version. Raises Gone if some are compacted, NotFound or Forbidden like `page`."""
        self._look_for(resource)
        if version < self._compacted:
            text = f"too old resource version: {version} ({self._compacted})"
            raise errors.Gone(text, status=410, reason="Expired")
        history = self._history.get(resource, [])
        return history[bisect.bisect_right(history, version, key=attrgetter("version")) :]

    def compact(self) -> None:
        self._compacted = self.version
        self._history.clear()
        self._lists.clear()

    def _look_for(self, resource: str) -> None:
        if resource in self.absent:
            raise errors.NotFound("the server could not find the requested resource", status=404)
        if resource in self.forbidden:
            raise errors.Forbidden(f"{resource} is forbidden", status=403, reason="Forbidden")

    def _tell(self, resource: str, change: Change) -> None:
        self._history.setdefault(resource, []).append(change)
        for listener in tuple(self._listeners.get(resource, ())):
            listener(change)


def selector(collection: str, query: Mapping[str, str]) -> Callable[[str, JsonObject], bool]:
    """Return a predicate on path and content: whether an object is in a collection and matches the selectors."""
    root, selects = collection.rpartition("/")[0], selected(query)
    return lambda path, raw: path.startswith(root) and selects(raw)


class Stage(stage.Stage):
    """Environment of one run, with the objects of its Kubernetes."""

    who_width = 12

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        super().__init__(seed, recording=recording)
        self.store = Store()
