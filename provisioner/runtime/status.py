"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

A product adds pages of its own to those of the probes.

Addresses are in Go's form, as the Go provisioner's flags have them. There is neither TLS nor authentication; what is
served is no secret, network policies decide who may ask, and web pages of others may not (`hosts.py`). Probes are
answered at once, by the thread of the server. Scrapes are created in threads of their own, and the number of threads is
limited: one that hangs does not block the others. What a product adds is created one at a time: threads share the
interpreter, and whoever asks all the time must not slow down the controller's loop and the probes.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from provisioner.runtime.background import Worker, in_thread
from provisioner.runtime.hosts import KnownHosts
from provisioner.runtime.http import Address, HttpServer, Limits, parse_address
from provisioner.runtime.pages import Content, Page

#: Probes, scrapers and people ask far less often.
_LIMITS = Limits(answers_per_second=100.0)
#: Pages that are smaller are not compressed. Higher levels take twice as long and more for a tenth less.
_GZIP_BYTES, _GZIP_LEVEL = 16384, 3


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
    """What probes and people are served, and at which address.

    `alive` and `problems` are called by the thread of the server, and must not block.
    """

    address: str
    #: The heartbeat of what the process is there for.
    alive: Callable[[], bool]
    #: What keeps the process from being ready, one line each.
    problems: Callable[[], Sequence[str]]
    #: What /healthz says when `alive` is false.
    stopped: str = "the loop has stopped making rounds"
    #: What a product adds.
    pages: Sequence[Page] = ()


def make_status_server(name: str, scrapes: Scrapes, probes: Probes, *, limits: Limits = _LIMITS) -> HttpServer:
    """Return the server of metrics, health and readiness; raise ServerError for an invalid address."""
    routes: dict[Address, list[Route]] = {}
    if (address := parse_address(scrapes.address)) is not None:
        routes[address] = [_metrics(scrapes)]
    if (address := parse_address(probes.address)) is not None:
        worker = Worker()
        routes.setdefault(address, []).extend(
            (
                _probe("/healthz", lambda: () if probes.alive() else (probes.stopped,)),
                _probe("/readyz", probes.problems),
                *(_page(each, worker) for each in probes.pages),
            )
        )
    return HttpServer({address: _app(served) for address, served in routes.items()}, name=name, limits=limits)


def _app(routes: Sequence[Route]) -> ASGIApp:
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
    return KnownHosts(app)


def _probe(path: str, problems: Callable[[], Sequence[str]]) -> Route:
    async def endpoint(_request: Request) -> Response:
        found = problems()
        return PlainTextResponse("\n".join((*found, "")) if found else "ok\n", 503 if found else 200)

    return Route(path, endpoint)


def _metrics(scrapes: Scrapes) -> Route:
    room = threading.BoundedSemaphore(scrapes.at_once)

    async def endpoint(_request: Request) -> Response:
        # The time-out of a connection does not stop a scrape that hangs.
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many requests at once\n", 503)
        return Response(await in_thread(scrapes.exposition, room.release), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Route("/metrics", endpoint)


def _page(page: Page, worker: Worker) -> Route:
    room = threading.BoundedSemaphore(page.at_once)

    async def endpoint(request: Request) -> Response:
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many requests at once\n", 503)
        try:
            return await worker.do(lambda: _response(page.make(), request.headers))
        finally:
            room.release()

    return Route(page.path, endpoint)


def _response(content: Content, asked: Mapping[str, str]) -> Response:
    """Return a page as a client asks for it: not at all where it has the same one, compressed where it takes that."""
    headers = dict(content.headers)
    if "ETag" in headers and _tags(headers["ETag"]) & _tags(asked.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    body = content.body
    if len(body) >= _GZIP_BYTES:
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in asked.get("accept-encoding", "").lower():
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, _GZIP_LEVEL)
    return Response(body, content.status, headers, content.media_type)


def _tags(header: str) -> frozenset[str]:
    """Return the versions that a header names."""
    return frozenset(each.strip().removeprefix("W/") for each in header.split(",")) - {""}
