"""Endpoints that take a JSON body and answer at once: what callers wait for, such as an API server for a webhook.

Bodies are answered in three lanes, each with its own threads, so that none waits for what is slower than itself: small
bodies; large ones, one at a time; and answers that wait for somebody else (`Later`). When all threads of a lane work,
its requests wait for their turn, up to a limit; more are answered 503 at once, so that a caller learns it in time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
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
#: Larger bodies take their time and memory: a decoded one needs up to thirty times its size.
_LARGE_BYTES = 128 * 1024
#: A request that has waited for so long for its turn is not begun: its caller would have gone when it is answered.
_PATIENCE_SECONDS = 4.0
_BUSY = "too many requests at once\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """The rest of an answer, which has to wait for somebody else."""

    answer: Callable[[], Content | Later]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path, and how a body that is posted there is answered; called in a thread."""

    path: str
    begin: Callable[[bytes], Content | Later]

    def answer(self, body: bytes) -> Content:
        """Return the whole answer, and wait for it."""
        content = self.begin(body)
        while isinstance(content, Later):
            content = content.answer()
        return content


class _Busy(Exception):  # noqa: N818 - it names what the server is
    """There is no thread for a request now, nor soon."""


class _Lane:
    """Some threads, and a bounded queue for them; used from one event loop."""

    def __init__(
        self,
        name: str,
        *,
        threads: int,
        waiting: int,
        most_bytes: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"endpoint-{name}")
        self._free = threads + waiting
        self._most_bytes = most_bytes
        self._bytes = 0
        self._monotonic = monotonic

    async def run(self, work: Callable[[], Content | Later], size_bytes: int = 0) -> Content | Later:
        """Return what `work` returns in a thread; raise _Busy where it is not begun."""
        full = self._most_bytes is not None and self._bytes and self._bytes + size_bytes > self._most_bytes
        if not self._free or full:
            raise _Busy
        latest = self._monotonic() + _PATIENCE_SECONDS

        def begin() -> Content | Later | None:
            return None if self._monotonic() > latest else work()

        future = asyncio.get_running_loop().run_in_executor(self._threads, begin)
        # Until it ends, also where the client has gone meanwhile.
        self._free -= 1
        self._bytes += size_bytes
        future.add_done_callback(lambda _: self._leave(size_bytes))
        content = await future
        if content is None:
            raise _Busy
        return content

    def _leave(self, size_bytes: int) -> None:
        self._free += 1
        self._bytes -= size_bytes


class _App:
    """An ASGI app of its own: a framework's routing would cost as much as a whole answer."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        self._greeting = f"{name}\n"
        self._endpoints = {each.path: each for each in endpoints}
        # More threads would not be faster: Python computes in one at a time.
        self._small = _Lane("small", threads=4, waiting=256)
        self._large = _Lane("large", threads=1, waiting=64, most_bytes=24 * 1024 * 1024)
        self._later = _Lane("later", threads=64, waiting=256)

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
        try:
            content = await self._answer(endpoint, body)
        except _Busy:
            return PlainTextResponse(_BUSY, 503, {"Retry-After": "1"})
        return Response(content.body, content.status, dict(content.headers), content.media_type)

    async def _answer(self, endpoint: Endpoint, body: bytes) -> Content:
        if len(body) > _LARGE_BYTES:
            # Its rest is answered here, too: nobody keeps many of them while they wait.
            content = await self._large.run(lambda: endpoint.answer(body), len(body))
        else:
            content = await self._small.run(lambda: endpoint.begin(body))
        while isinstance(content, Later):
            content = await self._later.run(content.answer)
        return content


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
