"""Resources of a server, answered in the event loop, and lanes for what takes its time.

The routing is not a framework's, which would cost as much as a whole answer of a webhook.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

_JSON = "application/json"
#: What stands for a name in the path of a resource.
NAME = "{name}"
#: OpenSSL keeps a buffer of the largest piece, or of a slow reader's answer: a large one ends its connection.
_PIECE_BYTES, _KEPT_BYTES = 16 * 1024, 64 * 1024
#: A request waits for its turn for so long: its caller would have gone when it is answered.
_PATIENCE_SECONDS = 4.0
#: So many flows of a lane are remembered.
_FLOWS = 1000
_BUSY = "too many requests at once\n"
#: Nothing but what is served here; not even a frame of somebody else's around it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The answer to one request."""

    body: bytes
    media_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A path, and what it answers, whatever the query; called in a thread, one page at a time."""

    path: str
    make: Callable[[], Content]


def text(words: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Content:
    """Return an answer in words."""
    return Content(body=words.encode(), media_type="text/plain; charset=utf-8", status=status, headers=headers or {})


def file_pages(package: str) -> tuple[Page, ...]:
    """Return the status page of a package: the files of its folder "page", as they are, index.html at the root."""
    folder = resources.files(package) / "page"
    pages = []
    for file in folder.iterdir():
        if media_type := _MEDIA_TYPES.get(file.name.rpartition(".")[2]):
            make = functools.partial(_content, file.read_bytes(), f"{media_type}; charset=utf-8")
            pages.append(Page(path="/" if file.name == "index.html" else f"/page/{file.name}", make=make))
    return tuple(pages)


def _content(body: bytes, media_type: str) -> Content:
    headers = {
        # A browser asks each time: a new release is seen at once.
        "Cache-Control": "no-cache",
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # The same, compressed or not.
        "ETag": f'W/"{hashlib.sha256(body).hexdigest()[:16]}"',
    }
    return Content(body=body, media_type=media_type, headers=headers)


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

    #: GET answers HEAD, too. POST takes JSON.
    method: str
    #: Such as /v1/things/{name}: a NAME is one part of the path, and not empty; there is one at most.
    path: str
    #: May raise Busy.
    answer: Callable[[Call], Awaitable[Content]]


class Busy(Exception):  # noqa: N818 - it names what the server is
    """There is no place for a request now, nor soon."""


class Lane:
    """Places with a bounded queue: next is the flow whose places have taken the least time; of one event loop.

    Not handled: whoever makes up flow after flow has a share with each.
    """

    def __init__(
        self,
        *,
        places: int,
        room: int,
        longest_rest_seconds: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Let all that have a place or wait for one weigh `room` at most; a used place rests for at most so long."""
        self._free = places
        self._room = room
        #: Those that have a place or wait for one, with their flow and weight; and the weight of each flow.
        self._there: dict[asyncio.Future[bool], tuple[str, int]] = {}
        self._taken: Counter[str] = Counter()
        #: By flow, those that wait for a place. A turn is True; False: others need the room.
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        #: By flow, the time that its places have taken. Who begins to wait has at least that of one who waits already.
        self._used: dict[str, float] = {}
        self._longest_rest_seconds = longest_rest_seconds
        self._monotonic = monotonic

    @asynccontextmanager
    async def place(self, weight: int = 1, flow: str = "") -> AsyncIterator[None]:
        """Wait for a place; raise Busy where none comes in time, or where this flow weighs most and all is full."""
        self._make_room(weight, flow)
        if flow not in self._waiting:
            least = self._least(max(self._used.values(), default=0.0))
            self._used[flow] = max(least, self._used.get(flow, least))
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._there[turn] = flow, weight
        self._taken[flow] += weight
        try:
            await self._wait(turn, flow)
            began = self._monotonic()
            try:
                yield
            finally:
                took = self._monotonic() - began
                self._used[flow] += took
                asyncio.get_running_loop().call_later(min(took, self._longest_rest_seconds), self._give_back)
        finally:
            self._leave(turn)

    def _make_room(self, weight: int, flow: str) -> None:
        while self._taken and self._taken.total() + weight > self._room:
            heaviest = max(self._waiting, key=self._taken.__getitem__, default=flow)
            if self._taken[heaviest] <= self._taken[flow] + weight:
                raise Busy
            last = self._waiting[heaviest][-1]
            if not last.done():
                last.set_result(False)
            self._leave(last)

    def _leave(self, turn: asyncio.Future[bool]) -> None:
        flow, weight = self._there.pop(turn, ("", 0))
        turns = self._waiting.get(flow, deque())
        if turn in turns:
            turns.remove(turn)
        if not turns:
            self._waiting.pop(flow, None)
        self._taken[flow] -= weight
        self._taken += Counter()
        # A flow that has ended is forgotten, unless it has had more than those that wait.
        least = self._least(math.inf) if len(self._used) <= _FLOWS else math.inf
        self._used = {each: used for each, used in self._used.items() if each in self._taken or used > least}

    def _least(self, default: float) -> float:
        return min((self._used[each] for each in self._waiting), default=default)

    async def _wait(self, turn: asyncio.Future[bool], flow: str) -> None:
        if self._free:
            self._free -= 1
            return
        self._waiting.setdefault(flow, deque()).append(turn)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                try:
                    has_place = await turn
                except asyncio.CancelledError:
                    if not turn.cancelled() and turn.result():
                        self._give_back()
                    raise
        except TimeoutError:
            has_place = False
        if not has_place:
            raise Busy

    def _give_back(self) -> None:
        """Give a place to the next one of the flow whose turn it is; of equal ones that which has waited longest."""
        while self._waiting:
            flow = min(self._waiting, key=self._used.__getitem__)
            turns = self._waiting.pop(flow)
            turn = turns.popleft()
            if turns:
                self._waiting[flow] = turns
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


class ResourceApp:
    """An ASGI app of resources."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self._by_path: dict[str, dict[str, Resource]] = {}
        for each in resources:
            self._by_path.setdefault(each.path, {})[each.method] = each
        self._named = [(path.partition(NAME), found) for path, found in self._by_path.items() if NAME in path]
        self._not_found = text(f"not found; available: {' '.join(sorted(self._by_path))}\n", 404)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implement ASGI."""
        content = await self._answer(scope, receive)
        fields = dict(content.headers)
        if content.status != 304:
            fields |= {"content-type": content.media_type, "content-length": str(len(content.body))}
        if scope["scheme"] == "https" and len(content.body) > _KEPT_BYTES:
            fields["connection"] = "close"
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": content.status, "headers": headers})
        for begin in range(0, len(content.body) or 1, _PIECE_BYTES):
            end = begin + _PIECE_BYTES
            more = end < len(content.body)
            await send({"type": "http.response.body", "body": content.body[begin:end], "more_body": more})
            if more:
                # So that it is heard of a client that has gone.
                await asyncio.sleep(0)

    async def _answer(self, scope: Scope, receive: Receive) -> Content:
        name, resources = self._find(scope["path"])
        if resources is None:
            return self._not_found
        # Without a body in the answer, which the server leaves out.
        resource = resources.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if resource is None:
            allowed = ", ".join(sorted(resources) + ["HEAD"] * ("GET" in resources))
            return text(f"only {allowed} is served here\n", 405, {"Allow": allowed})
        headers = _headers(scope)
        if resource.method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            return text(f"the content type must be {_JSON}\n", 415)
        body = await Request(scope, receive).body()
        client = scope.get("client")
        try:
            return await resource.answer(
                Call(name=name, headers=headers, body=body, client=client[0] if client is not None else "")
            )
        except Busy:
            return text(_BUSY, 503, {"Retry-After": "1"})

    def _find(self, path: str) -> tuple[str, dict[str, Resource] | None]:
        """Return the name in a path, and what is there by method."""
        if (found := self._by_path.get(path)) is not None:
            return "", found
        for (before, _, after), found in self._named:
            name = path.removeprefix(before).removesuffix(after)
            if name and "/" not in name and path == before + name + after:
                return name, found
        return "", None


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[bytes, bytes | None] = {}
    for name, value in scope["headers"]:
        found[name] = None if name in found else value
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in found.items() if value is not None}
