"""Kubernetes API server in memory that implements the `Api` protocol.

It stores raw objects, resource versions and a history of events; implements selectors and pages; and rejects outdated
writes. A watch without lines from `script` waits for more events until it is closed. The server does not validate
objects, set defaults, or know which kinds are namespaced.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from provisioner.kube import errors
from provisioner.kube.protocol import (
    ANSWER_BYTES,
    APPLY_PATCH,
    PAGE_SIZE,
    STRATEGIC_PATCH,
    Api,
    JsonObject,
    Page,
    Request,
    Timeouts,
)
from provisioner.slices.preflight.in_kubernetes import ACCESS_REVIEWS
from tests.support.selectors import belongs, merged, selected


@dataclass(kw_only=True)
class Call:
    """A call that a client made."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: JsonObject | None = None


@dataclass(kw_only=True)
class _Fault:
    method: str
    pattern: re.Pattern[str]
    error: Exception
    times: int
    after_effect: bool


@dataclass(kw_only=True)
class _Event:
    version: int
    path: str
    before: JsonObject | None
    after: JsonObject | None


class FakeKube(Api):
    """API server in memory. `calls` contains every call, oldest first."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._changed = threading.Condition(threading.RLock())
        self._objects: dict[str, JsonObject] = {}
        self._history: list[_Event] = []
        self._version = 100
        self._oldest = 0
        self._uids = 0
        self._faults: list[_Fault] = []
        self._absent: set[str] = set()
        self._scripts: dict[str, list[list[Any]]] = {}
        self._streams: list[FakeStream] = []
        #: Verb and resource of the rights that access reviews deny.
        self.denied: set[tuple[str, str]] = set()

    # --- methods for tests

    def put_object(self, path: str, body: JsonObject) -> JsonObject:
        """Create or replace an object at its path, regardless of its resourceVersion."""
        with self._changed:
            return self._store(path, body)

    def remove_object(self, path: str) -> None:
        with self._changed:
            self._drop(path)

    def object(self, path: str) -> JsonObject | None:
        with self._changed:
            return copy.deepcopy(self._objects.get(path))

    def objects(self, collection: str) -> list[JsonObject]:
        with self._changed:
            return [copy.deepcopy(raw) for path, raw in self._objects.items() if belongs(path, collection)]

    def fail(self, method: str, pattern: str, error: Exception, *, times: int = 1, after_effect: bool = False) -> None:
        """Make the next `times` calls of a method on matching paths raise `error`; "*" is any method, "WATCH" a watch.

        With `after_effect`, the call takes effect first, as if its response were lost.
        """
        self._faults.append(
            _Fault(method=method, pattern=re.compile(pattern), error=error, times=times, after_effect=after_effect)
        )

    def clear_faults(self) -> None:
        self._faults.clear()

    def uninstall(self, root: str) -> None:
        """Respond 404 for all paths below `root`, as if its kinds were not installed."""
        self._absent.add(root)

    def install(self, root: str) -> None:
        self._absent.discard(root)

    def script(self, path: str, *lines: Any) -> None:
        """Set the lines of the next watch of a path: objects become JSON, bytes are raw, exceptions are raised."""
        self._scripts.setdefault(path, []).append(list(lines))

    def compact(self) -> None:
        """Respond 410 to watches from earlier versions and to earlier continue tokens, as after a compaction."""
        with self._changed:
            self._version += 1
            self._oldest = self._version

    def open_streams(self) -> int:
        return len(self._streams)

    def wait_for_streams(self, count: int, *, timeout_seconds: float = 5.0) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self._streams) >= count, timeout=timeout_seconds)

    # --- the Api protocol

    def exchange(self, request: Request) -> JsonObject:
        """Process a request. Unlike in Kubernetes, an apply keeps fields that the manager no longer applies."""
        method = "APPLY" if request.content_type == APPLY_PATCH else request.method
        with self._call(method, request.path, request.query, body=None if method == "DELETE" else request.body):
            found = copy.deepcopy(self._done(method, request, request.body or {}))
        if request.max_bytes < ANSWER_BYTES and len(json.dumps(found)) > request.max_bytes:
            raise errors.TooLarge(request.title)
        return found

    def _done(self, method: str, request: Request, body: JsonObject) -> JsonObject:
        path = request.path.removesuffix("/status") if method == "PATCH" else request.path
        if path == ACCESS_REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return {**body, "status": {"allowed": (asked["verb"], resource) not in self.denied}}
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self._objects:
                raise errors.Conflict(f"{path} already exists", status=409, reason="AlreadyExists")
            return self._store(path, body)
        if method == "APPLY" and path not in self._objects:
            return {"metadata": self._store(path, body)["metadata"]}
        current = self._existing(path)
        if method == "GET":
            return current
        if method == "DELETE":
            if body and body["preconditions"]["uid"] != current["metadata"]["uid"]:
                raise errors.Conflict(f"{path} has another uid", status=409, reason="Conflict")
            return self._drop(path)
        version = body.get("metadata", {}).get("resourceVersion")
        if method != "APPLY" and version not in (None, current["metadata"]["resourceVersion"]):
            raise errors.Conflict(f"{path} was modified", status=409, reason="Conflict")
        if method == "PUT":
            return self._store(path, body)
        after = merged(current, body, strategic=request.content_type == STRATEGIC_PATCH)
        return {"metadata": self._store(path, after)["metadata"]}

    def list_page(self, request: Request, *, limit: int = PAGE_SIZE, continue_token: str = "") -> Page:
        path, asked = request.path, {**request.query, "limit": str(limit), "continue": continue_token}
        with self._call("GET", path, asked):
            version, start = self._version, 0
            if continue_token:
                version, start = (int(part) for part in continue_token.split(":"))
                if version < self._oldest:
                    raise errors.Gone("The provided continue parameter is too old", status=410, reason="Expired")
            selects = selected(asked)
            found = [raw for where, raw in sorted(self._objects.items()) if belongs(where, path) and selects(raw)]
            page = found[start : start + limit]
            if request.metadata_only:
                page = [{"metadata": raw["metadata"]} for raw in page]
            more = start + limit < len(found)
            return Page(
                items=copy.deepcopy(page),
                resource_version=str(version),
                continue_token=f"{version}:{start + limit}" if more else "",
            )

    def stream(self, path: str, query: Mapping[str, str], *, timeouts: Timeouts) -> FakeStream:
        with self._call("WATCH", path, query):
            scripts = self._scripts.get(path)
            if scripts:
                return FakeStream(self, path, dict(query), script=scripts.pop(0))
            version = int(query.get("resourceVersion") or self._version)
            if version < self._oldest:
                raise errors.Gone("too old resource version", status=410, reason="Expired")
            stream = FakeStream(self, path, dict(query), version=version)
            self._streams.append(stream)
            self._changed.notify_all()
            return stream

    # --- implementation

    def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, *, body: JsonObject | None = None
    ) -> _Guard:
        self.calls.append(Call(method=method, path=path, query=dict(query or {}), body=copy.deepcopy(body)))
        late = None
        for fault in self._faults:
            if fault.times > 0 and fault.method in ("*", method) and fault.pattern.search(path):
                fault.times -= 1
                if not fault.after_effect:
                    raise fault.error
                late = fault.error
                break
        if any(path == root or path.startswith(root + "/") for root in self._absent):
            raise errors.NotFound("404 page not found", status=404)
        return _Guard(self._changed, late)

    def _existing(self, path: str) -> JsonObject:
        try:
            return self._objects[path]
        except KeyError:
            raise errors.NotFound(f"{path} not found", status=404, reason="NotFound") from None

    def _store(self, path: str, body: JsonObject) -> JsonObject:
        before = self._objects.get(path)
        raw = copy.deepcopy(body)
        metadata = raw.setdefault("metadata", {})
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        if not metadata.get("uid"):
            self._uids += 1
            metadata["uid"] = before["metadata"]["uid"] if before else f"uid-{self._uids}"
        metadata.setdefault("name", path.rsplit("/", 1)[-1])
        self._objects[path] = raw
        self._record(path, before, raw)
        return raw

    def _drop(self, path: str) -> JsonObject:
        before = self._objects.pop(path)
        self._version += 1
        self._record(path, before, None)
        return before

    def _record(self, path: str, before: JsonObject | None, after: JsonObject | None) -> None:
        self._history.append(_Event(version=self._version, path=path, before=before, after=copy.deepcopy(after)))
        self._changed.notify_all()


class _Guard:
    """Context of one call: holds the server's lock, and raises the error of a lost response at the end."""

    def __init__(self, lock: threading.Condition, late: Exception | None) -> None:
        self._lock = lock
        self._late = late

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._lock.release()
        if kind is None and self._late is not None:
            raise self._late


class FakeStream:
    """A watch on a FakeKube."""

    def __init__(
        self, kube: FakeKube, path: str, query: dict[str, str], *, version: int = 0, script: list[Any] | None = None
    ) -> None:
        self._kube = kube
        self._path = path
        self._selects = selected(query)
        self._version = version
        self._script = script
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()
        if self in self._kube._streams:
            self._kube._streams.remove(self)

    def close(self) -> None:
        with self._kube._changed:
            self._closed = True
            self._kube._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        if self._script is not None:
            yield from _scripted(self._script)
            return
        while True:
            event = self._next()
            if event is None:
                return
            line = self._line(event)
            if line is not None:
                yield line

    def _next(self) -> _Event | None:
        with self._kube._changed:
            while not self._closed:
                for event in self._kube._history:
                    if event.version > self._version:
                        self._version = event.version
                        return event
                self._kube._changed.wait()
            return None

    def _line(self, event: _Event) -> bytes | None:
        if not belongs(event.path, self._path):
            return None
        was = event.before is not None and self._selects(event.before)
        is_now = event.after is not None and self._selects(event.after)
        if is_now:
            kind, raw = ("MODIFIED" if was else "ADDED"), event.after
        elif was:
            kind, raw = "DELETED", copy.deepcopy(event.after or event.before)
            raw["metadata"]["resourceVersion"] = str(event.version)
        else:
            return None
        return json.dumps({"type": kind, "object": raw}).encode()


def _scripted(lines: list[Any]) -> Iterator[bytes]:
    for line in lines:
        if isinstance(line, Exception):
            raise line
        yield line if isinstance(line, bytes) else json.dumps(line).encode()
