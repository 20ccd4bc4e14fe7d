"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

Addresses are in Go's form, as the Go provisioner's flags have them. There is neither TLS nor authentication; what is
served is no secret, and network policies decide who may ask. Each page is created in a thread of its own, and the
number of threads is limited: a page that hangs does not block the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from provisioner.runtime.http import Address, HttpServer, Limits, parse_address

#: How many scrapes and probes (of each page) run at once; more are answered 503.
_SCRAPES = 4
_PROBES = 32
_LIMITS = Limits()


def make_status_server(
    *,
    name: str,
    metrics_address: str,
    probe_address: str,
    exposition: Callable[[], bytes],
    alive: Callable[[], bool],
    problems: Callable[[], Sequence[str]],
    scrapes: int = _SCRAPES,
    limits: Limits = _LIMITS,
    monotonic: Callable[[], float] = time.monotonic,
) -> HttpServer:
    """Return the server of metrics, health and readiness; raise ServerError for an invalid address.

    `alive` is the heartbeat of the loop; `problems` is what keeps the process from being ready, one line each.
    """
    metrics_routes = [_page("/metrics", lambda: Response(exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4), scrapes)]
    probe_routes = [
        _page("/healthz", lambda: _text([] if alive() else ["the loop has stopped making rounds"]), _PROBES),
        _page("/readyz", lambda: _text(problems()), _PROBES),
    ]
    routes: dict[Address, list[Route]] = {}
    for text, pages in ((metrics_address, metrics_routes), (probe_address, probe_routes)):
        address = parse_address(text)
        if address is not None:
            routes.setdefault(address, []).extend(pages)
    apps = {address: _app(pages) for address, pages in routes.items()}
    return HttpServer(apps, name=name, limits=limits, monotonic=monotonic)


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


def _page(path: str, make: Callable[[], Response], at_once: int) -> Route:
    room = threading.BoundedSemaphore(at_once)

    async def endpoint(_request: Request) -> Response:
        # The time-out of a connection does not stop a page that hangs.
        if not room.acquire(blocking=False):
            return PlainTextResponse("too many scrapes at once\n", 503)
        return await _in_thread(make, room.release)

    return Route(path, endpoint)


def _in_thread(make: Callable[[], Response], release: Callable[[], None]) -> Awaitable[Response]:
    """Create a page in a thread that does not delay the end of the process."""
    made: Future[Response] = Future()
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
