"""An HTTP API of resources: paths with names in them, methods, headers in and JSON out, answered in the event loop.

What answers must not block: it awaits whoever knows. How many wait for whom, and for how long, is its own to bound;
connections, bodies and the time of a request are bounded by the server's limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime.pages import Content

_JSON = "application/json"
#: What stands for a name in the path of a resource.
NAME = "{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request for a resource."""

    #: What stands in the path for NAME; empty without it.
    name: str
    #: By name in small letters. Of those that were sent twice there is none: nobody can say which one counts.
    headers: Mapping[str, str]
    body: bytes
    #: The address of whoever asks, or of whatever stands between.
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A path with a method, and how it is answered."""

    method: str
    #: Such as /v1/things/{name}: a NAME is one part of the path, and not empty; there is one at most.
    path: str
    answer: Callable[[Call], Awaitable[Content]]


class _Path:
    """Answers the requests of one path, whatever their method."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        # Without a body in the answer, which the server leaves out.
        resource = self._resources.get("GET" if request.method == "HEAD" else request.method)
        if resource is None:
            allowed = ", ".join(sorted(self._resources))
            return PlainTextResponse(f"only {allowed} is served here\n", 405, {"Allow": allowed})
        headers = {name: value for name, value in request.headers.items() if len(request.headers.getlist(name)) == 1}
        if request.method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            return PlainTextResponse(f"the content type must be {_JSON}\n", 415)
        call = Call(
            name=request.path_params.get("name", ""),
            headers=headers,
            body=await request.body(),
            client=request.client.host if request.client is not None else "",
        )
        content = await resource.answer(call)
        return Response(content.body, content.status, dict(content.headers), content.media_type)


def resource_app(resources: Sequence[Resource]) -> ASGIApp:
    """Return an ASGI app of resources."""
    by_path: dict[str, dict[str, Resource]] = {}
    for each in resources:
        by_path.setdefault(each.path, {})[each.method] = each
    not_found = PlainTextResponse(f"not found; available: {' '.join(sorted(by_path))}\n", 404)
    routes = [Route(path, _Path(found)) for path, found in by_path.items()]
    return Router(routes, redirect_slashes=False, default=not_found)
