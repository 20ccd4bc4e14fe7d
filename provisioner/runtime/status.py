"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

There is neither TLS nor authentication: what is served is no secret. Probes are answered at once, scrapes and pages of
a product one at a time each, for half of the time at most, and clients take turns.
"""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime.http import Address, HttpServer, Limits, parse_address
from provisioner.runtime.resources import Call, Content, Lane, Page, Resource, ResourceApp, text

#: Probes, scrapers and people ask far less often.
_LIMITS = Limits(answers_per_second=100.0)
#: Pages that are smaller are not compressed. Higher levels take twice as long and more for a tenth less.
_GZIP_BYTES, _GZIP_LEVEL = 16384, 3
#: So many requests for pages are answered or wait; those of connections that were cut may still wait.
#: After a page as much time passes as it took, and no more than this.
_PAGES, _LONGEST_REST_SECONDS = _LIMITS.connections, 0.5
#: Services, and GKE's DNS endpoint of a control plane: the API server's proxy hands on the Host that it was called by.
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
    alive: Callable[[], bool],
    problems: Callable[[], Sequence[str]],
    stopped: str = "the loop has stopped making rounds",
    pages: Sequence[Page] = (),
    limits: Limits = _LIMITS,
) -> HttpServer:
    """Return the server of two addresses, `metrics` and `probes`; raise ServerError where one is invalid.

    `alive` is the heartbeat; /healthz says `stopped` without it. `problems` keep the process from being ready. Both are
    called by the thread of the server, and must not block. `pages` are what a product adds to the probes.
    """
    served: dict[Address, list[Resource]] = {}
    if (address := parse_address(metrics)) is not None:
        scraped = Page(path="/metrics", make=lambda: Content(body=exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4))
        served[address] = _pages([scraped])
    if (address := parse_address(probes)) is not None:
        served.setdefault(address, []).extend(
            (
                _probe("/healthz", lambda: () if alive() else (stopped,)),
                _probe("/readyz", problems),
                *_pages(pages),
            )
        )
    apps = {address: _for_known_hosts(ResourceApp(resources)) for address, resources in served.items()}
    return HttpServer(apps, name=name, limits=limits)


def _probe(path: str, problems: Callable[[], Sequence[str]]) -> Resource:
    async def answer(_call: Call) -> Content:
        found = problems()
        return text("\n".join((*found, "")), 503) if found else text("ok\n")

    return Resource(method="GET", path=path, answer=answer)


def _pages(pages: Sequence[Page]) -> list[Resource]:
    lane = Lane(places=1, room=_PAGES, longest_rest_seconds=_LONGEST_REST_SECONDS)

    def resource(page: Page) -> Resource:
        async def answer(call: Call) -> Content:
            async with lane.place(flow=call.client):
                return await _in_thread(lambda: _as_asked(page.make(), call.headers))

        return Resource(method="GET", path=page.path, answer=answer)

    return [resource(each) for each in pages]


async def _in_thread(make: Callable[[], Content]) -> Content:
    """Make an answer in a thread that does not delay the end of the process."""
    made: Future[Content] = Future()
    # From now on it cannot be cancelled.
    made.set_running_or_notify_cancel()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            made.set_exception(error)

    threading.Thread(target=run, name="http-page", daemon=True).start()
    return await asyncio.wrap_future(made)


def _as_asked(content: Content, asked: Mapping[str, str]) -> Content:
    """Return a page as a client asks for it: not at all where it has the same one, compressed where it takes that."""
    headers = dict(content.headers)
    if "ETag" in headers and _tags(headers["ETag"]) & _tags(asked.get("if-none-match", "")):
        return replace(content, body=b"", status=304)
    body = content.body
    if len(body) >= _GZIP_BYTES:
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in asked.get("accept-encoding", "").lower():
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, _GZIP_LEVEL)
    return replace(content, body=body, headers=headers)


def _tags(header: str) -> frozenset[str]:
    return frozenset(each.strip().removeprefix("W/") for each in header.split(",")) - {""}


def _for_known_hosts(app: ASGIApp) -> ASGIApp:
    """Answer 421 to requests for public names: by DNS rebinding a hostile web page would read what is served."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        known = _is_known(Headers(scope=scope).get("host", ""))
        await (app if known else PlainTextResponse(_REJECTED, 421))(scope, receive, send)

    return answer


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
