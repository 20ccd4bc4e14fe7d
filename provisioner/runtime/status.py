"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

A product adds pages of its own to those of the probes.

Addresses are in Go's form, as the Go provisioner's flags have them. There is neither TLS nor authentication; what is
served is no secret, network policies decide who may ask, and web pages of others may not (`_KnownHosts`). Probes are
answered at once, by the thread of the server. Scrapes are created in threads of their own, and the number of threads is
limited: one that hangs does not block the others. What a product adds is created one at a time, and for half of the
time at most: threads share the interpreter, and whoever asks all the time must not slow down the controller.
"""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime.http import Address, HttpServer, Limits, parse_address
from provisioner.runtime.pages import Content, Page

#: Probes, scrapers and people ask far less often.
_LIMITS = Limits(answers_per_second=100.0)
#: Pages that are smaller are not compressed. Higher levels take twice as long and more for a tenth less.
_GZIP_BYTES, _GZIP_LEVEL = 16384, 3
#: After a page as much time passes as it took, and no more than this.
_LONGEST_REST_SECONDS = 0.5
#: Services, and GKE's DNS endpoint of a control plane: the API server's proxy hands on the Host that it was called by.
_SUFFIXES = (".svc", ".svc.cluster.local", ".gke.goog")
_PORT = re.compile(r":[0-9]*$")
_REJECTED = (
    "this server does not answer to the name in the Host header; use an IP address, localhost (kubectl port-forward) "
    "or NAME.NAMESPACE.svc, and have a reverse proxy set Host to the Service's name\n"
)
_T = TypeVar("_T")
Endpoint = Callable[[Request], Awaitable[Response]]


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
        turn = asyncio.Lock()
        routes.setdefault(address, []).extend(
            (
                _probe("/healthz", lambda: () if probes.alive() else (probes.stopped,)),
                _probe("/readyz", probes.problems),
                *(_page(each, turn) for each in probes.pages),
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
    return _KnownHosts(app)


def _probe(path: str, problems: Callable[[], Sequence[str]]) -> Route:
    async def endpoint(_request: Request) -> Response:
        found = problems()
        return PlainTextResponse("\n".join((*found, "")) if found else "ok\n", 503 if found else 200)

    return Route(path, endpoint)


def _metrics(scrapes: Scrapes) -> Route:
    async def endpoint(_request: Request) -> Response:
        return Response(await _in_thread(scrapes.exposition), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    # The time-out of a connection does not stop a scrape that hangs.
    return Route("/metrics", _at_once(scrapes.at_once, endpoint))


def _page(page: Page, turn: asyncio.Lock) -> Route:
    async def endpoint(request: Request) -> Response:
        await turn.acquire()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await _in_thread(lambda: _response(page.make(), request.headers))
        finally:
            loop.call_later(min(loop.time() - began, _LONGEST_REST_SECONDS), turn.release)

    return Route(page.path, _at_once(page.at_once, endpoint))


def _at_once(most: int, endpoint: Endpoint) -> Endpoint:
    """Answer 503 beyond so many requests at once."""
    room = threading.BoundedSemaphore(most)

    async def limited(request: Request) -> Response:
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many requests at once\n", 503)
        try:
            return await endpoint(request)
        finally:
            room.release()

    return limited


async def _in_thread(make: Callable[[], _T]) -> _T:
    """Do something in a thread that does not delay the end of the process."""
    made: Future[_T] = Future()
    # From now on it cannot be cancelled.
    made.set_running_or_notify_cancel()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            made.set_exception(error)

    threading.Thread(target=run, name="http-page", daemon=True).start()
    return await asyncio.wrap_future(made)


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


class _KnownHosts:
    """Answers 421 to requests for hosts that are not this server, against DNS rebinding.

    By that a hostile web page reads what its visitor can reach. A browser that such a page leads astray sends the
    page's own name, which is a public one with dots. Addresses, names without dots and names of the cluster's own DNS
    are no such names.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Hand all other requests to `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        app = self._app
        if not _is_known(Headers(scope=scope).get("host", "")):
            app = PlainTextResponse(_REJECTED, 421)
        await app(scope, receive, send)


def _is_known(host: str) -> bool:
    """Whether a Host header, with or without a port, names this server; one that is empty comes from no browser."""
    name = _PORT.sub("", host).lower().removesuffix(".")
    return not {".", ":"} & set(name) or _is_address(name) or name.endswith(_SUFFIXES)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
