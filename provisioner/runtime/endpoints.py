"""Endpoints that take a JSON body and answer at once: what callers wait for, such as an API server for a webhook.

Bodies are answered by a fixed number of threads. When all are busy, requests wait for their turn, up to a limit; more
are answered 503 at once, so that a caller learns it in time.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime.connections import Limits
from provisioner.runtime.http import Address, HttpServer
from provisioner.runtime.pages import Content

_JSON = "application/json"
#: Bodies that are answered at the same time, and those that wait besides.
_THREADS = 16
_WAITING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path, and how a body that is posted there is answered; called in a thread."""

    path: str
    answer: Callable[[bytes], Content]


class _App:
    """An ASGI app of its own: a framework's routing would cost as much as a whole answer."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        self._greeting = f"{name}\n"
        self._endpoints = {each.path: each for each in endpoints}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="endpoint")
        self._room = threading.BoundedSemaphore(_THREADS + _WAITING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = request.url.path
        if path == "/" and request.method in ("GET", "HEAD"):
            return PlainTextResponse(self._greeting)
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            return PlainTextResponse(f"not found; available: {' '.join(sorted(self._endpoints))}\n", 404)
        if request.method != "POST":
            return PlainTextResponse("only POST is served here\n", 405, {"Allow": "POST"})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            return PlainTextResponse(f"the content type must be {_JSON}\n", 415)
        body = await request.body()
        if not self._room.acquire(blocking=False):
            return PlainTextResponse("too many requests at once\n", 503, {"Retry-After": "1"})
        loop = asyncio.get_running_loop()
        try:
            content = await loop.run_in_executor(self._threads, endpoint.answer, body)
        finally:
            self._room.release()
        return Response(content.body, content.status, dict(content.headers), content.media_type)


def make_endpoint_server(
    name: str,
    address: Address,
    endpoints: Sequence[Endpoint],
    *,
    limits: Limits,
    tls: ssl.SSLContext | None = None,
) -> HttpServer:
    """Return a server of endpoints; at / it tells its name, as probes of what it replaces ask there."""
    app: ASGIApp = _App(name, endpoints)
    return HttpServer({address: app}, name=name, limits=limits, tls=tls)
