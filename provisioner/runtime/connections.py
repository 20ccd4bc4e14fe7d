"""Connections of clients to an HTTP server, as uvicorn speaks with them, and the bounds that it lacks.

The time for a request and its answer, the size of headers and body, and the number of connections are bounded. The time
of a connection begins when it is accepted, so that a client that never ends its TLS handshake counts as any slow one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, cast

import httptools
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from provisioner.runtime.guarding import Guarded
from provisioner.runtime.joining import JoinedWrites

_log = structlog.get_logger(__name__)

#: Answers under way when the server stops get this long.
GRACE_SECONDS = 1
#: Connections that wait in the kernel to be accepted.
BACKLOG = 128
#: So long a connection waits when all clients together have asked too much.
_PAUSE_SECONDS = 0.25
#: A request of so much is not worth counting.
_SMALL_BYTES = 65536
_TOO_LONG = "request line and headers are too long\n"
_VERSIONS = ("1.1", "1.0")
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one address spends on its clients."""

    connections: int = 32
    #: From the connection, or the previous answer, to the end of the answer.
    request_seconds: float = 10.0
    #: How long a connection may stay without a request after an answer; None: as long as for a request.
    idle_seconds: float | None = None
    #: Request line and headers together.
    header_bytes: int = 16384
    body_bytes: int = 65536
    #: All connections together hold so much of requests that are not answered; beyond it the client that has sent the
    #: most loses its largest. None: as much as the bodies of all connections.
    held_bytes: int | None = None
    #: All clients together are answered so often, and so many times more at once; None: as often as they ask. Who asks
    #: more waits for a moment, so that whoever asks all the time leaves the processor to others.
    answers_per_second: float | None = None
    answers_at_once: int = 200


class Config(uvicorn.Config):
    """uvicorn's settings, and what our connections need besides."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        name: str,
        limits: Limits,
        monotonic: Callable[[], float],
        tls: ssl.SSLContext | None = None,
        draining: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(
            Guarded(app, body_bytes=limits.body_bytes, draining=draining),
            loop="none",
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            # uvicorn logs nothing; failures of an app are logged here.
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            # Set explicitly, otherwise uvicorn reads them from the environment.
            workers=1,
            proxy_headers=False,
            headers=[("Server", name)],
            backlog=BACKLOG,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self.limits = limits
        self.monotonic = monotonic
        self.pace = _Pace(limits, monotonic)
        #: Not uvicorn's own: connections would count after their handshake alone.
        self.tls = tls


class _Pace:
    """How often clients are answered."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._left = float(limits.answers_at_once)
        self._counted_at = monotonic()

    def is_exceeded(self) -> bool:
        """Count one answer; return whether it was one too many."""
        per_second = self._limits.answers_per_second
        if per_second is None:
            return False
        now = self._monotonic()
        passed, self._counted_at = now - self._counted_at, now
        left = min(float(self._limits.answers_at_once), self._left + passed * per_second) - 1
        self._left = max(0.0, left)
        return left < 0


class _Awaited(Enum):
    """What a client sends next."""

    HEAD = auto()
    BODY = auto()
    #: Nothing: it is to be answered. The next request waits for that.
    NOTHING = auto()


class Connection(HttpToolsProtocol):
    """One client's connection, and the deadline for the answer to its current request.

    The parser is given one request at a time, up to the end of its headers and then of its body: it would go on with
    whatever comes behind.
    """

    config: Config
    deadline: float
    _early: list[bytes] | None = None
    _lost = False
    _idle = False
    #: What was received of a request that is not answered.
    held = 0
    _handshake: asyncio.Task[None] | None = None
    _awaited = _Awaited.HEAD
    #: Of request line and headers, as far as they have come; and the last of it, in which their end may begin.
    _head_bytes = 0
    _head_last = b""
    #: Of the body, as far as it has not come; None: it comes in chunks.
    _body_left: int | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: Received, and not yet given to the parser.
        self._unparsed = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for it if there are too many; with TLS, shake hands before anything else."""
        others = [cast(Connection, each) for each in self.connections if not each.transport.is_closing()]
        if len(others) >= self.config.limits.connections:
            _most_spent(others).cut()
        self._begin()
        if self.config.tls is None:
            self._early = None
            super().connection_made(transport)
            return
        transport.pause_reading()
        #: What comes after the handshake and before this is told of its end.
        self._early = []
        self.transport = transport
        self.client = get_remote_addr(transport)
        self.connections.add(self)
        self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(transport, self.config.tls))

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                context,
                server_side=True,
                # The deadline is earlier.
                ssl_handshake_timeout=2 * self.config.limits.request_seconds,
            )
        except OSError as error:
            # Also ssl.SSLError, and a connection that the client or the deadline ended.
            _log.debug("tls_handshake.failed", client=_host(self), error=str(error))
            encrypted = None
        if encrypted is None or self._lost:
            self.connections.discard(self)
            transport.abort()
            return
        super().connection_made(encrypted)
        early, self._early = self._early or [], None
        for data in early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Take what a client sends."""
        if self._early is not None:
            self._early.append(data)
            return
        if self.transport.is_closing():
            # With TLS there may still come some.
            return
        if self._idle:
            # The first bytes of a request: from now on its time counts.
            self._idle = False
            self._begin()
        self.held += len(data)
        if self._has_room():
            self._unparsed += data
            self._parse()

    def _parse(self) -> None:
        """Read on, until there is no more or a request is whole."""
        while self._unparsed and not self._is_whole():
            piece = self._next_piece()
            if self._head_bytes > self.config.limits.header_bytes:
                self._reject(431, _TOO_LONG)
                return
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade:
                # To a protocol that nobody speaks here: what comes next may be in it.
                self.cycle.keep_alive = False
            except httptools.HttpParserError:
                if self._is_whole():
                    # It came behind a body in chunks, after which the connection ends.
                    return
                self._reject(400, "bad request\n")
                return
        if self._unparsed:
            self.flow.pause_reading()

    def _is_whole(self) -> bool:
        return self._awaited is _Awaited.NOTHING

    def _next_piece(self) -> bytes:
        """Take what is there of the headers or of the body, and nothing behind them."""
        size = len(self._unparsed)
        if self._awaited is _Awaited.HEAD:
            window = self._head_last + self._unparsed[: self.config.limits.header_bytes + len(_HEAD_END)]
            end = window.find(_HEAD_END)
            if end >= 0:
                size = end + len(_HEAD_END) - len(self._head_last)
            self._head_bytes += size
            self._head_last = bytes(window[: len(self._head_last) + size][1 - len(_HEAD_END) :])
        elif self._body_left is not None:
            size = min(size, self._body_left)
            self._body_left -= size
        piece = bytes(self._unparsed[:size])
        del self._unparsed[:size]
        return piece

    def on_headers_complete(self) -> None:
        """Begin with the request; an error in here rejects it."""
        names = [name for name, _ in self.headers]
        version = self.parser.get_http_version()
        if version not in _VERSIONS or (names.count(b"host") != 1 and version != "1.0"):
            raise ValueError
        chunks, size = b"transfer-encoding" in names, int(dict(self.headers).get(b"content-length", 0))
        if self.parser.should_upgrade() and (chunks or size):
            # The parser does not read such a body.
            raise ValueError
        super().on_headers_complete()
        self.cycle.transport = cast(asyncio.Transport, JoinedWrites(self.transport, self.loop))
        self._awaited, self._body_left = _Awaited.BODY, None if chunks else size
        if chunks:
            # Its end is found by the parser alone.
            self.cycle.keep_alive = False

    def on_message_begin(self) -> None:
        """Begin with a request, unless the one before is not answered."""
        if self._is_whole():
            raise ValueError
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """Let what comes next wait for the answer."""
        super().on_message_complete()
        self._awaited = _Awaited.NOTHING

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a client that has gone."""
        if self._early is not None:
            self._lost = True
        else:
            super().connection_lost(exc)

    def _has_room(self) -> bool:
        """Cut connections until all together hold no more than they may; return whether this one is left."""
        most = self.config.limits.held_bytes
        if most is None or self.held <= _SMALL_BYTES:
            return True
        while not self.transport.is_closing():
            others = [cast(Connection, each) for each in self.connections if not each.transport.is_closing()]
            if sum(each.held for each in others) <= most:
                return True
            _largest(others).cut()
        return False

    def cut(self) -> None:
        """Close it now; what is not yet read or written is lost."""
        self.transport.abort()

    def on_response_complete(self) -> None:
        """Start the time of the next request, unless the client has not yet received this answer."""
        self.held = 0
        if not self.flow.write_paused:
            self._rest()
        self.server_state.total_requests += 1
        if self.config.pace.is_exceeded():
            # What comes meanwhile stays unread.
            self.loop.call_later(_PAUSE_SECONDS, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Turn to the next request."""
        if self.transport.is_closing():
            return
        self._awaited, self._head_bytes, self._head_last = _Awaited.HEAD, 0, b""
        self.flow.resume_reading()
        self._parse()

    def resume_writing(self) -> None:
        """Start the time of the next request once the client has received the answer."""
        super().resume_writing()
        if not self._answering:
            self._rest()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep answering a client that has closed its sending half; uvicorn would drop the answer."""
        encrypted = self.config.tls is not None
        if encrypted or not self._answering or self.cycle.more_body:
            return None
        self.cycle.keep_alive = False
        return True

    def _reject(self, status: int, text: str) -> None:
        """Answer what is too long or is not HTTP, and end the connection."""
        if self._answering:
            # The body of a request is invalid while an app works on it: the app must not answer as well.
            self.cycle.disconnected = True
            if self.cycle.response_started:
                self.cut()
                return
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
            (b"connection", b"close"),
        ]
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), *(b": ".join(each) for each in headers)]
        self.transport.write(b"\r\n".join(lines) + _HEAD_END + text.encode())
        self.transport.close()

    @property
    def _answering(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is not None and not cycle.response_complete

    def _begin(self) -> None:
        self.deadline = self.config.monotonic() + self.config.limits.request_seconds

    def _rest(self) -> None:
        idle = self.config.limits.idle_seconds
        self._idle = idle is not None
        self.deadline = self.config.monotonic() + (idle or self.config.limits.request_seconds)


def _most_spent(connections: Sequence[Connection]) -> Connection:
    """Return the oldest connection of the client that has the most."""
    by_client = Counter(_host(each) for each in connections)
    return max(connections, key=lambda each: (by_client[_host(each)], -each.deadline))


def _largest(connections: Sequence[Connection]) -> Connection:
    """Return the connection that holds the most of the client that has sent the most."""
    by_client: Counter[str] = Counter()
    for each in connections:
        by_client[_host(each)] += each.held
    return max(connections, key=lambda each: (by_client[_host(each)], each.held))


def _host(connection: Connection) -> str:
    return connection.client[0] if connection.client is not None else ""
