"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

A product adds pages of its own to those of the probes.

Addresses are in Go's form, as the Go provisioner's flags have them. There is neither TLS nor authentication; what is
served is no secret, network policies decide who may ask, and web pages of others may not (`hosts.py`). Probes are
answered at once, by the thread of the server. Scrapes are created in threads of their own, and the number of threads is
limited: one that hangs does not block the others. What a product adds is created one at a time: threads share the
interpreter, and whoever asks all the time must not slow down the controller's loop and the probes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime import gzipped
from provisioner.runtime.background import Worker, in_thread
from provisioner.runtime.connections import Limits
from provisioner.runtime.hosts import KnownHosts
from provisioner.runtime.http import Address, HttpServer, parse_address
from provisioner.runtime.pages import Content, Page

#: Returns the status and the body of an answer.
_Probe = Callable[[], tuple[int, bytes]]

#: Probes, scrapers and people ask far less often.
_LIMITS = Limits(answers_per_second=100.0)
#: Pages that are smaller are not compressed.
_GZIP_BYTES = 16384


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


def make_status_server(
    name: str,
    scrapes: Scrapes,
    probes: Probes,
    *,
    limits: Limits = _LIMITS,
    monotonic: Callable[[], float] = time.monotonic,
) -> HttpServer:
    """Return the server of metrics, health and readiness; raise ServerError for an invalid address."""
    routes: dict[Address, list[Route]] = {}
    answers: dict[Address, Mapping[str, _Probe]] = {}
    if (address := parse_address(scrapes.address)) is not None:
        routes[address] = [_metrics(scrapes)]
    if (address := parse_address(probes.address)) is not None:
        routes.setdefault(address, []).extend(_routes_of_product(probes))
        answers[address] = _answers(probes)
    apps = {address: _app(served, answers.get(address, {})) for address, served in routes.items()}
    return HttpServer(apps, name=name, limits=limits, monotonic=monotonic)


def _answers(probes: Probes) -> Mapping[str, _Probe]:
    return {
        "/healthz": lambda: _text([] if probes.alive() else [probes.stopped]),
        "/readyz": lambda: _text(probes.problems()),
    }


def _routes_of_product(probes: Probes) -> list[Route]:
    worker, packer = Worker(), gzipped.Packer()
    return [_page(each, worker, packer) for each in probes.pages]


def _text(problems: Sequence[str]) -> tuple[int, bytes]:
    return (503, "\n".join((*problems, "")).encode()) if problems else (200, b"ok\n")


def _app(routes: Sequence[Route], probes: Mapping[str, _Probe]) -> ASGIApp:
    paths = " ".join(sorted((*probes, *(each.path for each in routes))))

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
    return KnownHosts(_Probed(app, probes))


class _Probed:
    """Answers probes before anything else is looked at: whoever asks all the time costs as little as can be."""

    def __init__(self, app: ASGIApp, probes: Mapping[str, _Probe]) -> None:
        self._app = app
        self._probes = probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        probe = self._probes.get(scope["path"])
        if probe is None or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        status, body = probe()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _metrics(scrapes: Scrapes) -> Route:
    room = threading.BoundedSemaphore(scrapes.at_once)

    async def endpoint(_request: Request) -> Response:
        # The time-out of a connection does not stop a scrape that hangs.
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many requests at once\n", 503)
        return Response(await in_thread(scrapes.exposition, room.release), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Route("/metrics", endpoint)


def _page(page: Page, worker: Worker, packer: gzipped.Packer) -> Route:
    room = threading.BoundedSemaphore(page.at_once)

    async def endpoint(request: Request) -> Response:
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many requests at once\n", 503)
        try:
            return await worker.do(lambda: _response(page.make(), request.headers, packer))
        finally:
            room.release()

    return Route(page.path, endpoint)


def _response(content: Content, asked: Mapping[str, str], packer: gzipped.Packer) -> Response:
    """Return a page as a client asks for it: not at all where it has the same one, compressed where it takes that."""
    headers = dict(content.headers)
    if "ETag" in headers and _tags(headers["ETag"]) & _tags(asked.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    body = content.body
    if len(body) >= _GZIP_BYTES:
        headers["Vary"] = "Accept-Encoding"
        if gzipped.takes_gzip(asked.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            body = packer.whole(body)
    return Response(body, content.status, headers, content.media_type)


def _tags(header: str) -> frozenset[str]:
    """Return the versions that a header names."""
    return frozenset(each.strip().removeprefix("W/") for each in header.split(",")) - {""}
