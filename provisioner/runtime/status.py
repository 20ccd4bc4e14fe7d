"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

The pages contain no secrets, so there is no TLS or authentication. Probes do not wait in a queue. /metrics has a queue,
and all `pages` share one. A queue serves one request at a time, then pauses for at most 0.5 s; clients alternate.
"""

import asyncio
import gzip
import ipaddress
import re
from collections.abc import Callable, Sequence

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime.http import Address, HttpServer, Limits, parse_address
from provisioner.runtime.lanes import Lane
from provisioner.runtime.resources import Page, client_of, make_app

#: Limits of an address; probes, scrapers and browsers send far fewer requests.
_LIMITS = Limits(answers_per_second=100.0)
#: Minimum bytes of a page that is compressed; gzip's level. Higher levels save 10 %, but take at least twice as long.
_GZIP_BYTES, _GZIP_LEVEL = 16384, 3
#: Maximum number of running and waiting requests in a queue, including requests whose connection was aborted.
_PAGES = _LIMITS.connections
#: Maximum pause in seconds after a page. The pause is as long as the page took, if that is shorter.
_MAX_REST_SECONDS = 0.5
#: Suffixes of accepted Host headers: Services, and GKE's DNS endpoint, whose name the API server's proxy passes on.
_SUFFIXES = (".svc", ".svc.cluster.local", ".gke.goog")
_PORT = re.compile(r":[0-9]*$")
_REJECTED = (
    "this server does not answer to the name in the Host header; use an IP address, localhost (kubectl port-forward) "
    "or NAME.NAMESPACE.svc, and have a reverse proxy set Host to the Service's name\n"
)


def make_status_server(
    name: str,
    *,
    metrics: str,
    exposition: Callable[[], bytes],
    probes: str,
    failures: Callable[[], Sequence[str]],
    problems: Callable[[], Sequence[str]],
    pages: Sequence[Page] = (),
    limits: Limits = _LIMITS,
) -> HttpServer:
    """Return the server for the addresses `metrics` and `probes`. Raises ServerError if one is invalid.

    `failures` returns the reasons for a restart of the process, for /healthz, and `problems` the reasons why it is not
    ready, for /readyz. The server's thread calls both: they must not block. The address `probes` serves `pages`.
    """
    served: dict[Address, list[Route]] = {}
    if (address := parse_address(metrics)) is not None:
        served[address] = _routes(
            [Page(path="/metrics", make=lambda: Response(exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4))]
        )
    if (address := parse_address(probes)) is not None:
        served.setdefault(address, []).extend(
            (_probe("/healthz", failures), _probe("/readyz", problems), *_routes(pages))
        )
    apps = {address: _for_known_hosts(make_app(routes)) for address, routes in served.items()}
    return HttpServer(apps, name=name, limits=limits)


def _probe(path: str, problems: Callable[[], Sequence[str]]) -> Route:
    async def answer(_request: Request) -> Response:
        found = problems()
        return PlainTextResponse("\n".join((*found, "")), 503) if found else PlainTextResponse("ok\n")

    return Route(path, answer)


def _routes(pages: Sequence[Page]) -> list[Route]:
    lane = Lane(places=1, room=_PAGES, max_rest_seconds=_MAX_REST_SECONDS)

    def route(page: Page) -> Route:
        async def answer(request: Request) -> Response:
            async with lane.place(flow=client_of(request)):
                return await asyncio.to_thread(lambda: _as_asked(page.make(), request.headers))

        return Route(page.path, answer)

    return [route(page) for page in pages]


def _as_asked(response: Response, asked: Headers) -> Response:
    if _tags(response.headers.get("etag", "")) & _tags(asked.get("if-none-match", "")):
        del response.headers["content-length"]
        return Response(status_code=304, headers=response.headers)
    if len(response.body) >= _GZIP_BYTES:
        response.headers["Vary"] = "Accept-Encoding"
        if "gzip" in asked.get("accept-encoding", "").lower():
            response.body = gzip.compress(response.body, _GZIP_LEVEL)
            response.headers.update({"Content-Encoding": "gzip", "Content-Length": str(len(response.body))})
    return response


def _tags(header: str) -> frozenset[str]:
    return frozenset(tag.strip().removeprefix("W/") for tag in header.split(",")) - {""}


def _for_known_hosts(app: ASGIApp) -> ASGIApp:
    """Respond 421 to public names in Host; otherwise a hostile web page could read pages by DNS rebinding."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        known = _is_known(Headers(scope=scope).get("host", ""))
        await (app if known else PlainTextResponse(_REJECTED, 421))(scope, receive, send)

    return answer


def _is_known(host: str) -> bool:
    """Whether a Host header is accepted. An empty header is accepted, because no browser sends it."""
    name = _PORT.sub("", host).lower().removesuffix(".")
    return not {".", ":"} & set(name) or _is_address(name) or name.endswith(_SUFFIXES)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
