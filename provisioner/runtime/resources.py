"""ASGI app with a list of routes, and the files of a status page."""

import functools
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from provisioner.runtime.lanes import Busy

Endpoint = Callable[[Request], Awaitable[Response]]
_PAGE_HEADERS = {
    # Browsers revalidate each time, so that they show a new release immediately.
    "Cache-Control": "no-cache",
    # Browsers load nothing from other servers, and do not show the page in a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Path and response of a page; the query is ignored. `make` is called in a worker thread."""

    path: str
    make: Callable[[], Response]


def file_pages(package: str) -> tuple[Page, ...]:
    """Return HTML, CSS and JS files in the folder "page" of a package: index.html as "/", others as "/page/NAME"."""
    pages = []
    for file in (resources.files(package) / "page").iterdir():
        if media_type := _MEDIA_TYPES.get(file.name.rpartition(".")[2]):
            body = file.read_bytes()
            # The tag is weak, because a compressed response has the same tag.
            headers = {**_PAGE_HEADERS, "ETag": f'W/"{hashlib.sha256(body).hexdigest()[:16]}"'}
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            pages.append(Page(path=path, make=functools.partial(Response, body, 200, headers, media_type)))
    return tuple(pages)


def make_app(routes: Sequence[Route]) -> ASGIApp:
    """Return an app with these routes. Other paths get a 404. If an endpoint raises Busy, the response is 503."""
    not_found = f"not found; available: {' '.join(sorted({route.path for route in routes}))}\n"

    async def answer_not_found(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse(not_found, 404)

    async def answer_busy(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("too many requests at once\n", 503, {"Retry-After": "1"})

    app = Starlette(routes=routes, exception_handlers={404: answer_not_found, Busy: answer_busy})
    app.router.redirect_slashes = False
    return app


def is_json(request: Request) -> bool:
    """Return whether the body's type is JSON. Browsers do not let pages of other sites send JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def client_of(request: Request) -> str:
    """Return the address of the client, or of the last proxy; empty if the connection has ended."""
    return request.client.host if request.client is not None else ""
