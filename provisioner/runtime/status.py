"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

A product adds pages and streams of its own to those of the probes.

Addresses are in Go's form, as the Go provisioner's flags have them. There is neither TLS nor authentication; what is
served is no secret, and network policies decide who may ask. Each page is created in a thread of its own, and the
number of threads is limited: a page that hangs does not block the others. What a product adds is created one at a time:
threads share the interpreter, and whoever asks all the time must not slow down the controller's loop and the probes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from provisioner.runtime.connections import Limits
from provisioner.runtime.http import Address, HttpServer, parse_address
from provisioner.runtime.pages import Content, Feed, Page, Stream

_T = TypeVar("_T")

#: How many probes (of each page) run at once; more are answered 503.
_PROBES = 32
_LIMITS = Limits()
#: A stream is looked at so often, and says that it is alive after so long without anything to say.
_STREAM_LOOK_SECONDS = 0.5
_STREAM_ALIVE_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrapes:
    """What scrapers are served, and at which address."""

    address: str
    #: Returns all metrics in Prometheus' text format.
    exposition: Callable[[], bytes]
    #: So many scrapes run at once; more are answered 503.
    at_once: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What probes and people are served, and at which address."""

    address: str
    #: The heartbeat of the loop.
    alive: Callable[[], bool]
    #: What keeps the process from being ready, one line each.
    problems: Callable[[], Sequence[str]]
    #: What a product adds.
    pages: Sequence[Page] = ()
    streams: Sequence[Stream] = ()


def make_status_server(
    name: str,
    scrapes: Scrapes,
    probes: Probes,
    *,
    limits: Limits = _LIMITS,
    monotonic: Callable[[], float] = time.monotonic,
) -> HttpServer:
    """Return the server of metrics, health and readiness; raise ServerError for an invalid address."""
    limits = replace(limits, streams=frozenset(each.path for each in probes.streams))
    routes: dict[Address, list[Route]] = {}
    for text, served in ((scrapes.address, _routes_of_scrapes(scrapes)), (probes.address, _routes_of_probes(probes))):
        address = parse_address(text)
        if address is not None:
            routes.setdefault(address, []).extend(served)
    apps = {address: _app(pages) for address, pages in routes.items()}
    return HttpServer(apps, name=name, limits=limits, monotonic=monotonic)


def _routes_of_scrapes(scrapes: Scrapes) -> list[Route]:
    def expose(_query: Mapping[str, str]) -> Response:
        return Response(scrapes.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [_page("/metrics", expose, scrapes.at_once)]


def _routes_of_probes(probes: Probes) -> list[Route]:
    turn = threading.Lock()
    return [
        _page("/healthz", lambda _: _text([] if probes.alive() else ["the loop has stopped making rounds"]), _PROBES),
        _page("/readyz", lambda _: _text(probes.problems()), _PROBES),
        *(_page(each.path, _response_of(each, turn), each.at_once) for each in probes.pages),
        *(_stream(each, turn) for each in probes.streams),
    ]


def _text(problems: Sequence[str]) -> Response:
    if problems:
        return PlainTextResponse("\n".join(problems) + "\n", 503)
    return PlainTextResponse("ok\n")


def _app(routes: Sequence[Route]) -> Starlette:
    paths = " ".join(sorted(each.path for each in routes))

    async def reject(request: Request, _error: Exception) -> Response:
        if request.method not in ("GET", "HEAD"):
            headers = {"Allow": "GET, HEAD", "Connection": "close"}
            return PlainTextResponse("only GET and HEAD are served here\n", 405, headers)
        return PlainTextResponse(f"not found; available: {paths}\n", 404)

    async def fail(_request: Request, _error: Exception) -> Response:
        # The server logs it.
        return PlainTextResponse("internal error; see the log\n", 500)

    app = Starlette(routes=routes, exception_handlers={HTTPException: reject, Exception: fail})
    app.router.redirect_slashes = False
    return app


def _response_of(page: Page, turn: threading.Lock) -> Callable[[Mapping[str, str]], Response]:
    def make(query: Mapping[str, str]) -> Response:
        with turn:
            content: Content = page.make(query)
        return Response(content.body, content.status, dict(content.headers), content.media_type)

    return make


def _page(path: str, make: Callable[[Mapping[str, str]], Response], at_once: int) -> Route:
    room = threading.BoundedSemaphore(at_once)

    async def endpoint(request: Request) -> Response:
        # The time-out of a connection does not stop a page that hangs.
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many requests at once\n", 503)
        query = dict(request.query_params)
        return await _in_thread(lambda: make(query), room.release)

    return Route(path, endpoint)


def _stream(stream: Stream, turn: threading.Lock) -> Route:
    room = threading.BoundedSemaphore(stream.at_once)

    async def endpoint(request: Request) -> Response:
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many streams at once\n", 503, {"Retry-After": "5"})
        try:
            feed = stream.open(dict(request.query_params))
        except BaseException:
            room.release()
            raise
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return _EventStream(_events(feed, turn), headers, room.release)

    return Route(stream.path, endpoint)


class _EventStream(StreamingResponse):
    """Server-sent events; gives its room back however it ends, begun or not."""

    def __init__(self, events: AsyncIterator[bytes], headers: Mapping[str, str], release: Callable[[], None]) -> None:
        super().__init__(events, 200, headers, "text/event-stream")
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _events(feed: Feed, turn: threading.Lock) -> AsyncIterator[bytes]:
    """Yield what a feed has to say, and a comment now and then, so that both ends know that the other is there."""

    def read() -> bytes:
        with turn:
            return feed.read()

    loop = asyncio.get_running_loop()
    said = float("-inf")
    while True:
        text = await _in_thread(read, _nothing) if feed.pending() else b""
        if not text and loop.time() - said >= _STREAM_ALIVE_SECONDS:
            text = b": alive\n\n"
        if text:
            said = loop.time()
            yield text
        await asyncio.sleep(_STREAM_LOOK_SECONDS)


def _nothing() -> None:
    """Nothing is to be given back."""


def _in_thread(make: Callable[[], _T], release: Callable[[], None]) -> Awaitable[_T]:
    """Do something in a thread that does not delay the end of the process."""
    made: Future[_T] = Future()
    # From now on it cannot be cancelled.
    made.set_running_or_notify_cancel()

    def work() -> None:
        try:
            try:
                page = make()
            finally:
                release()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            made.set_exception(error)
        else:
            made.set_result(page)

    try:
        threading.Thread(target=work, name="http-page", daemon=True).start()
    except RuntimeError:
        # The system gives no more threads.
        release()
        raise
    return asyncio.wrap_future(made)
