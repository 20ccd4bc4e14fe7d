"""Streams of server-sent events: compressed for clients that take that, in pieces, and as fast as each one reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from provisioner.runtime import gzipped
from provisioner.runtime.background import Worker
from provisioner.runtime.pages import Feed, Stream

#: A feed is looked at so often, and a stream says that it is alive after so long without anything to say.
_LOOK_SECONDS = 0.5
_ALIVE_SECONDS = 4.0
#: So much is copied at once for a client: what it has not read yet is shared with others.
_PIECE_BYTES = 65536
_MEDIA_TYPE = "text/event-stream"


def route_of_stream(stream: Stream, worker: Worker, packer: gzipped.Packer) -> Route:
    """Return what serves a stream; the worker alone uses the packer."""
    room = threading.BoundedSemaphore(stream.at_once)

    async def endpoint(request: Request) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept-Encoding"}
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            return PlainTextResponse("a stream takes no body\n", 400)
        if request.method == "HEAD":
            # A body that nobody is sent has no end, either.
            return Response(headers=headers, media_type=_MEDIA_TYPE)
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many streams at once\n", 503, {"Retry-After": "5"})
        try:
            events = _parts(stream.open(), worker)
        except BaseException:
            room.release()
            raise
        if gzipped.takes_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            events = _packed(events, worker, packer)
        return _EventStream(_pieces(events), headers, room.release)

    return Route(stream.path, endpoint)


class _EventStream(StreamingResponse):
    """Server-sent events; gives its room back however it ends, begun or not."""

    def __init__(self, pieces: AsyncIterator[bytes], headers: Mapping[str, str], release: Callable[[], None]) -> None:
        super().__init__(pieces, 200, headers, _MEDIA_TYPE)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _parts(feed: Feed, worker: Worker) -> AsyncIterator[Sequence[bytes]]:
    """Yield what a feed has to say, and a comment now and then, so that both ends know that the other is there."""
    loop = asyncio.get_running_loop()
    said = float("-inf")
    while True:
        parts = await worker.do(feed.read) if feed.pending() else ()
        if not parts and loop.time() - said >= _ALIVE_SECONDS:
            parts = (b": alive\n\n",)
        if parts:
            said = loop.time()
            yield parts
        await asyncio.sleep(_LOOK_SECONDS)


async def _packed(
    events: AsyncIterator[Sequence[bytes]], worker: Worker, packer: gzipped.Packer
) -> AsyncIterator[Sequence[bytes]]:
    """Yield the same, compressed, each as soon as it comes."""
    yield (gzipped.BEGIN,)
    async for parts in events:
        yield await worker.do(lambda parts=parts: [packer.block(each) for each in parts])  # type: ignore[misc]


async def _pieces(events: AsyncIterator[Sequence[bytes]]) -> AsyncIterator[bytes]:
    async for parts in events:
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                yield part[start : start + _PIECE_BYTES]
