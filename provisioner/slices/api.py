"""The HTTP API of the board, version 1, and the page at the root: paths, what they answer, and their description.

Everything is read-only. What is added to version 1 later has a default; what is there keeps its name and its meaning.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from provisioner.runtime.pages import Content, Page
from provisioner.slices import page
from provisioner.slices.board import About, Board, Document
from provisioner.slices.view.timeline import Track
from provisioner.slices.view.types import CapacityView, Entry, PoolView, SliceView, WorkloadView

ROOT: Final = "/api/v1"
_JSON = "application/json"
_NO_STORE = {"Cache-Control": "no-store"}
_ENCODER = msgspec.json.Encoder()
#: Lists, their types, and how they are found in a document.
_LISTS: Mapping[str, tuple[type, str, Callable[[Document], Any]]] = {
    "workloads": (WorkloadView, "Workloads", lambda it: it.view.workloads if it.view is not None else ()),
    "slices": (SliceView, "Slices of workloads", lambda it: it.view.slices if it.view is not None else ()),
    "pools": (PoolView, "Node pools of the provisioner", lambda it: it.view.pools if it.view is not None else ()),
    "timeline": (Track, "What became of each node pool over time", lambda it: it.tracks),
    "activity": (Entry, "The last 500 decisions, oldest first", lambda it: it.activity),
}


def pages(board: Board) -> tuple[Page, ...]:
    """Return the pages that the board is served as."""
    return (
        *page.pages(),
        Page(path=ROOT, make=lambda: _json(_paths())),
        Page(path=f"{ROOT}/openapi.json", make=lambda: _json(_described())),
        Page(path=f"{ROOT}/board", make=lambda: _versioned(*board.everything())),
        Page(path=f"{ROOT}/about", make=_part(board, _about)),
        Page(path=f"{ROOT}/capacity", make=_part(board, _capacity)),
        Page(path=f"{ROOT}/settings", make=lambda: _json(_ENCODER.encode({"settings": board.settings()}))),
        *(Page(path=f"{ROOT}/{name}", make=_part(board, functools.partial(_list, name))) for name in _LISTS),
    )


def _json(body: bytes) -> Content:
    return Content(body=body, media_type=_JSON, headers=_NO_STORE)


def _versioned(document: Document, body: bytes) -> Content:
    """Return a part of a document. Its tag names the process, too: each counts versions anew."""
    about = document.about
    tag = f'W/"{about.identity}.{about.started_at.timestamp():.6f}.{document.version}"'
    return Content(body=body, media_type=_JSON, headers={**_NO_STORE, "ETag": tag})


def _part(board: Board, find: Callable[[Document], dict[str, Any]]) -> Callable[[], Content]:
    def make() -> Content:
        document = board.document()
        return _versioned(document, _ENCODER.encode(find(document)))

    return make


def _list(name: str, document: Document) -> dict[str, Any]:
    return {"version": document.version, "items": _LISTS[name][2](document)}


def _about(document: Document) -> dict[str, Any]:
    return {
        "version": document.version,
        "about": document.about,
        "leading": document.leading,
        "leader": document.leader,
        "problems": document.problems,
        "alerts": document.view.alerts if document.view is not None else (),
    }


def _capacity(document: Document) -> dict[str, Any]:
    view = document.view
    return {"version": document.version, "capacity": view.capacity if view is not None else None}


@functools.cache
def _paths() -> bytes:
    return json.dumps({"paths": sorted(description()["paths"])}).encode()


@functools.cache
def _described() -> bytes:
    return json.dumps(description(), indent=1).encode()


def description() -> dict[str, Any]:
    """Describe the API in OpenAPI's form, from the types that are served."""
    types = [About, CapacityView, Document, *(each[0] for each in _LISTS.values())]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip((each.__name__ for each in types), schemas, strict=True))
    number = {"type": "integer", "description": "Counts the changes since the process started."}

    def listed(name: str) -> dict[str, Any]:
        items = {"type": "array", "items": by_type[_LISTS[name][0].__name__]}
        return {"type": "object", "required": ["version", "items"], "properties": {"version": number, "items": items}}

    about = {"version": number, "about": by_type["About"], "leading": {"type": "boolean"}, "leader": {"type": "string"}}
    texts = {"type": "array", "items": {"type": "string"}}
    about |= {"problems": texts, "alerts": {"type": "array", "items": {"$ref": "#/components/schemas/AlertView"}}}
    variables = {"type": "object", "additionalProperties": {"type": "string"}}
    capacity = {"version": number, "capacity": {"anyOf": [by_type["CapacityView"], {"type": "null"}]}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tpu-provisioner",
            "version": "1",
            "description": "What there is, why it waits, and what happens next. Read-only; moments are in UTC.",
        },
        "paths": {
            f"{ROOT}/board": _path("Everything", by_type["Document"]),
            f"{ROOT}/about": _path(
                "Release, cluster, who leads, problems, alerts", {"type": "object", "properties": about}
            ),
            f"{ROOT}/capacity": _path("Chips, limits, back-off", {"type": "object", "properties": capacity}),
            f"{ROOT}/settings": _path(
                "The settings in effect, by variable", {"type": "object", "properties": {"settings": variables}}
            ),
            **{f"{ROOT}/{name}": _path(each[1], listed(name)) for name, each in _LISTS.items()},
        },
        "components": {"schemas": components},
    }


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
