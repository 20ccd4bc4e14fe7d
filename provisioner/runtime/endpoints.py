"""Endpoints that take a JSON body and answer at once: what callers wait for, such as an API server for a webhook.

What is quick is answered in the event loop, because a thread costs as much as a whole answer. The rest has lanes of
threads, so that nothing waits for what is slower than itself: small bodies; large ones, one at a time; and answers that
wait for another server (`Later`). When all places of a lane are taken, its requests wait for their turn, up to a limit;
more are answered 503 at once, so that a caller learns it in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from provisioner.runtime.pages import Content

_T = TypeVar("_T")

_JSON = b"application/json"
#: Larger bodies take their time and memory: a decoded one needs up to thirty times its size.
_LARGE_BYTES = 128 * 1024
#: So many bytes, objects and lists are decoded and read in a millisecond or two, whatever they say.
_QUICK_BYTES = 64 * 1024
_QUICK_PARTS = 1000
#: OpenSSL keeps a buffer of the largest piece as long as there is a connection. Where a client is slow to read, it may
#: become as large as the answer: so a large one ends its connection.
_PIECE_BYTES, _KEPT_BYTES = 16 * 1024, 64 * 1024
#: A request that has waited for so long for its turn is not begun: its caller would have gone when it is answered.
_PATIENCE_SECONDS = 4.0
_BUSY = "too many requests at once\n"
#: More threads would not be faster: Python computes in one at a time.
_SMALL_AT_ONCE, _LARGE_AT_ONCE = 4, 1
#: Each may hold a large object that it has read: more would need more memory than the server has.
_LATER_AT_ONCE = 8
#: Those that wait keep what was read of their bodies.
_LATER_BYTES = 4 * 1024 * 1024


#: The rest of an answer, which waits for another server.
Later = Callable[[], Content]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path, and how a body that is posted there is answered."""

    path: str
    #: Takes the body, and since when it is there (of `time.perf_counter`).
    begin: Callable[[bytes, float], Content | Later]
    #: It takes no longer than reading the body does: small ones are begun in the event loop, all others in threads.
    quick: bool = False


class _Busy(Exception):  # noqa: N818 - it names what the server is
    """There is no place for a request now, nor soon."""


class _Lane:
    """Some places, and a bounded queue for them; used from one event loop."""

    def __init__(
        self,
        *,
        places: int,
        waiting: int,
        most_bytes: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = asyncio.Semaphore(places)
        self._free = places + waiting
        self._most_bytes = most_bytes
        self._bytes = 0
        self._monotonic = monotonic

    @asynccontextmanager
    async def place(self, size_bytes: int = 0) -> AsyncIterator[None]:
        """Wait for a place, and give it back in the end; raise _Busy where there is none in time."""
        full = self._most_bytes is not None and self._bytes and self._bytes + size_bytes > self._most_bytes
        if not self._free or full:
            raise _Busy
        latest = self._monotonic() + _PATIENCE_SECONDS
        self._free -= 1
        self._bytes += size_bytes
        try:
            async with self._places:
                if self._monotonic() > latest:
                    raise _Busy
                yield
        finally:
            self._free += 1
            self._bytes -= size_bytes


class EndpointApp:
    """An ASGI app of endpoints; at / it tells its name, as probes of what it replaces ask there.

    It is one of its own: a framework's routing would cost as much as a whole answer.
    """

    def __init__(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        """Serve these; `name` is the greeting."""
        self._greeting = f"{name}\n"
        self._endpoints = {each.path: each for each in endpoints}
        threads = _SMALL_AT_ONCE + _LARGE_AT_ONCE + _LATER_AT_ONCE
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="endpoint")
        self._small = _Lane(places=_SMALL_AT_ONCE, waiting=256)
        self._large = _Lane(places=_LARGE_AT_ONCE, waiting=256, most_bytes=24 * 1024 * 1024)
        self._later = _Lane(places=_LATER_AT_ONCE, waiting=256, most_bytes=_LATER_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        found = self._find(scope)
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        try:
            content = await self._answer(found, body, time.perf_counter())
        except _Busy:
            await PlainTextResponse(_BUSY, 503, {"Retry-After": "1"})(scope, receive, send)
            return
        # As a Response would, in a fraction of its time.
        fields = {"content-type": content.media_type, "content-length": str(len(content.body)), **content.headers}
        if len(content.body) > _KEPT_BYTES:
            fields["connection"] = "close"
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": content.status, "headers": headers})
        for begin in range(0, len(content.body) or 1, _PIECE_BYTES):
            end = begin + _PIECE_BYTES
            more = end < len(content.body)
            await send({"type": "http.response.body", "body": content.body[begin:end], "more_body": more})
            if more:
                # So that it is heard of a client that has gone.
                await asyncio.sleep(0)

    def _find(self, scope: Scope) -> Endpoint | Response:
        """Return what answers a request, or the answer to one that asks for something else."""
        path, method = scope["path"], scope["method"]
        if path == "/" and method in ("GET", "HEAD"):
            return PlainTextResponse(self._greeting)
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            return PlainTextResponse(f"not found; available: {' '.join(sorted(self._endpoints))}\n", 404)
        if method != "POST":
            return PlainTextResponse("only POST is served here\n", 405, {"Allow": "POST"})
        media_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        if media_type.partition(b";")[0].strip().lower() != _JSON:
            return PlainTextResponse(f"the content type must be {_JSON.decode()}\n", 415)
        return endpoint

    async def _answer(self, endpoint: Endpoint, body: bytes, since: float) -> Content:
        if len(body) > _LARGE_BYTES:
            async with self._large.place(len(body)):
                # Its rest is answered here, too: nobody keeps many of them while they wait.
                content = await self._in_thread(lambda: endpoint.begin(body, since))
                return await self._in_thread(content) if callable(content) else content
        if endpoint.quick and _is_quick(body):
            content = endpoint.begin(body, since)
        else:
            async with self._small.place():
                content = await self._in_thread(lambda: endpoint.begin(body, since))
        if not callable(content):
            return content
        async with self._later.place(len(body)):
            return await self._in_thread(content)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _is_quick(body: bytes) -> bool:
    return len(body) <= _QUICK_BYTES and body.count(b"{") + body.count(b"[") <= _QUICK_PARTS
