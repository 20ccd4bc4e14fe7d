"""An HTTP API of resources: paths with names in them, methods, headers in and JSON out, answered in the event loop.

What answers must not block: it awaits whoever knows. How many wait for whom, and for how long, is its own to bound;
connections, bodies and the time of a request are bounded by the server's limits.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime.http import Address, HttpServer, Limits
from provisioner.runtime.pages import Content

_JSON = "application/json"
#: What stands for a name in the path of a resource.
NAME = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request for a resource."""

    #: What stands in the path for each NAME.
    names: tuple[str, ...]
    #: By name in small letters. Of those that were sent twice there is none: nobody can say which one counts.
    headers: Mapping[str, str]
    body: bytes
    #: The address of whoever asks, or of whatever stands between.
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A path with a method, and how it is answered."""

    method: str
    #: Such as /v1/things/{}: a NAME is one part of the path, and not empty.
    path: str
    answer: Callable[[Call], Awaitable[Content]]


class _App:
    """Finds the resource of a request; an ASGI app of its own, as for `endpoints`."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self._by_parts: dict[tuple[str, ...], dict[str, Resource]] = {}
        for each in resources:
            self._by_parts.setdefault(_parts(each.path), {})[each.method] = each
        self._listed = " ".join(sorted({each.path for each in resources}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope)
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        resource, names = found
        client = scope.get("client")
        call = Call(
            names=names,
            headers=_headers(scope["headers"]),
            body=await body_of(receive),
            client=client[0] if client else "",
        )
        content = await resource.answer(call)
        await Response(content.body, content.status, dict(content.headers), content.media_type)(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[Resource, tuple[str, ...]] | Response:
        parts, method = _parts(scope["path"]), scope["method"]
        for pattern, by_method in self._by_parts.items():
            names = _names(pattern, parts)
            if names is None:
                continue
            # Without a body in the answer, which the server leaves out.
            resource = by_method.get("GET" if method == "HEAD" else method)
            if resource is None:
                allowed = ", ".join(sorted(by_method))
                return PlainTextResponse(f"only {allowed} is served here\n", 405, {"Allow": allowed})
            if method == "POST" and not _is_json(scope["headers"]):
                return PlainTextResponse(f"the content type must be {_JSON}\n", 415)
            return resource, names
        return PlainTextResponse(f"not found; available: {self._listed}\n", 404)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("/"))


def _names(pattern: tuple[str, ...], parts: tuple[str, ...]) -> tuple[str, ...] | None:
    if len(pattern) != len(parts):
        return None
    names = []
    for wanted, found in zip(pattern, parts, strict=True):
        if wanted == NAME and found:
            names.append(found)
        elif wanted != found:
            return None
    return tuple(names)


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    twice = set()
    for name, value in raw:
        key = name.decode("latin-1").lower()
        if key in found:
            twice.add(key)
        found[key] = value.decode("latin-1")
    return {key: value for key, value in found.items() if key not in twice}


def _is_json(raw: Iterable[tuple[bytes, bytes]]) -> bool:
    return _headers(raw).get("content-type", "").partition(";")[0].strip().lower() == _JSON


async def body_of(receive: Receive) -> bytes:
    """Return the body of a request; raise ClientDisconnect where it does not come to its end."""
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def make_resource_server(
    name: str,
    address: Address,
    resources: Sequence[Resource],
    *,
    limits: Limits,
    tls: ssl.SSLContext | None = None,
    at_end: Callable[[], None] = lambda: None,
) -> HttpServer:
    """Return a server of resources. `at_end` is called in the event loop when it ends."""
    app: ASGIApp = _App(resources)
    return HttpServer({address: app}, name=name, limits=limits, tls=tls, at_end=at_end)
