"""Serves version 1 of the HTTP API, its OpenAPI document, and the files of the status page. All paths are read-only."""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from provisioner.runtime.resources import Page, file_pages
from provisioner.slices.board import About, Board, Document
from provisioner.slices.view.timeline import Track
from provisioner.slices.view.types import AlertView, CapacityView, Entry, PoolView, SliceView, WorkloadView

ROOT: Final = "/api/v1"
DESCRIPTION: Final = """The JSON behind the status page and the commands: what exists, why it waits, and what happens \
next. Read-only. Version 1 keeps its names and their meanings; fields may be added.

- Times are in UTC, in the form `2026-11-22T12:00:00Z`. Count durations up to `served_at`.
- Only the process that leads has a view; another one answers with `leading: false` and no `view`.
- While nothing can be decided, the last view stays, and `problems` has the reasons.
- To poll, send the answer's `ETag` as `If-None-Match`: it is 304 while nothing but `served_at` and `at` changed.
- All clients together get 100 answers a second, and 200 more at once; then each waits for a quarter of a second.
- There is no authentication."""
_JSON = "application/json"
_NO_STORE = {"Cache-Control": "no-store"}
_ENCODER = msgspec.json.Encoder()


class _Part(NamedTuple):
    summary: str
    #: Types of the fields of the response, by name; every response also has the field `version`.
    fields: Mapping[str, Any]
    #: Returns the values of `fields`, in the same order.
    find: Callable[[Document], tuple[Any, ...]]


def _viewed(name: str, absent: Any = ()) -> Callable[[Document], tuple[Any, ...]]:
    return lambda document: (getattr(document.view, name) if document.view is not None else absent,)


def _timeline(document: Document) -> tuple[Any, ...]:
    return (tuple(track for track in document.tracks if track.is_of_interest),)


_ABOUT = {"about": About, "leading": bool, "leader": str, "problems": tuple[str, ...], "alerts": tuple[AlertView, ...]}
_PARTS: Mapping[str, _Part] = {
    "about": _Part(
        "Release, cluster, who leads, problems, alerts",
        _ABOUT,
        lambda it: (it.about, it.leading, it.leader, it.problems, *_viewed("alerts")(it)),
    ),
    "capacity": _Part("Chips, limits, back-off", {"capacity": CapacityView | None}, _viewed("capacity", None)),
    "workloads": _Part("Workloads", {"items": tuple[WorkloadView, ...]}, _viewed("workloads")),
    "slices": _Part("Slices of workloads", {"items": tuple[SliceView, ...]}, _viewed("slices")),
    "pools": _Part("Node pools of the provisioner", {"items": tuple[PoolView, ...]}, _viewed("pools")),
    "timeline": _Part("The states of each node pool over time", {"items": tuple[Track, ...]}, _timeline),
    "activity": _Part("The last 500 decisions, oldest first", {"items": tuple[Entry, ...]}, lambda it: (it.activity,)),
}


def pages(board: Board) -> tuple[Page, ...]:
    """Return the files of the status page and the paths of the API; the data come from `board`."""
    return (
        *file_pages("provisioner.slices"),
        Page(path=ROOT, make=lambda: _json(json.dumps({"paths": sorted(description()["paths"])}).encode())),
        Page(path=f"{ROOT}/openapi.json", make=lambda: _json(json.dumps(description(), indent=1).encode())),
        Page(path=f"{ROOT}/board", make=lambda: _versioned(*board.everything())),
        Page(path=f"{ROOT}/settings", make=lambda: _json(_ENCODER.encode({"settings": board.settings()}))),
        *(Page(path=f"{ROOT}/{name}", make=functools.partial(_part, board, part)) for name, part in _PARTS.items()),
    )


def _json(body: bytes) -> Response:
    return Response(body, 200, _NO_STORE, _JSON)


def _versioned(document: Document, body: bytes) -> Response:
    """Return a response with an ETag, which names the process, because each process counts its own versions."""
    about = document.about
    tag = f'W/"{about.identity}.{about.started_at.timestamp():.6f}.{document.version}"'
    return Response(body, 200, {**_NO_STORE, "ETag": tag}, _JSON)


def _part(board: Board, part: _Part) -> Response:
    document = board.document()
    body = {"version": document.version, **dict(zip(part.fields, part.find(document), strict=True))}
    return _versioned(document, _ENCODER.encode(body))


@functools.cache
def description() -> dict[str, Any]:
    """Return the OpenAPI document, which is derived from the Python types of the responses."""
    types = [Document, dict[str, str], *(kind for part in _PARTS.values() for kind in part.fields.values())]
    roots, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    document, variables, *schemas = roots
    paths = {f"{ROOT}/board": _path("Everything", document)}
    number = {"type": "integer", "description": "Counts the changes since the process started."}
    for name, part in _PARTS.items():
        properties = {"version": number} | {field: schemas.pop(0) for field in part.fields}
        paths[f"{ROOT}/{name}"] = _path(part.summary, _object(properties))
    paths[f"{ROOT}/settings"] = _path("The settings in effect, by variable", _object({"settings": variables}))
    return {
        "openapi": "3.1.0",
        "info": {"title": "tpu-provisioner", "version": "1", "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _path(summary: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "get": {
            "summary": summary,
            "responses": {
                "200": {"description": "OK", "content": {_JSON: {"schema": schema}}},
                "304": {"description": "The version that If-None-Match names is the latest."},
            },
        }
    }
