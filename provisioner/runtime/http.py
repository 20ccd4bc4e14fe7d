"""An HTTP server for ASGI apps: a thread with an event loop of its own, on one address or several.

uvicorn speaks HTTP. The bounds that it lacks are added here: the time for a request and its answer, the size of headers
and body, and the number of connections. When there are too many connections, the oldest one of the client that has the
most is closed, so slow clients never keep others from their answers. Apps must not block the event loop.

TLS is not served yet. uvicorn can (`ssl_context_factory`), and a certificate that is loaded into that context again is
used from the next connection on; but connections count only after their handshake, for which asyncio allows 60 s.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple, cast

import h11
import structlog
import uvicorn
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

_log = structlog.get_logger(__name__)
#: controller-runtime's word for "do not serve".
DISABLED = "0"
#: How often overdue connections are looked for.
_LOOK_SECONDS = 0.1
#: Answers under way when the server stops get this long.
_GRACE_SECONDS = 1
#: The thread gets this much longer, in case an app blocks the event loop.
_STOP_SECONDS = 5.0
#: Connections that wait in the kernel to be accepted.
_BACKLOG = 128
_TOO_LONG = "request line and headers are too long\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one address spends on its clients."""

    connections: int = 32
    #: From the connection, or the previous answer, to the end of the answer.
    request_seconds: float = 10.0
    #: Request line and headers together.
    header_bytes: int = 16384
    body_bytes: int = 65536
    #: Paths whose answers have no end: their time starts anew as long as the client takes what it is sent.
    streams: frozenset[str] = frozenset()


class ServerError(Exception):
    """An address that cannot be served, in words for the user."""


class Address(NamedTuple):
    """Where to listen; an empty host is every interface."""

    host: str
    port: int


def parse_address(text: str) -> Address | None:
    """Return the address in Go's form (":8080", "127.0.0.1:8080", "[::1]:8080"), None for "0" and ""."""
    if text in ("", DISABLED):
        return None
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]/ ]*)):(?P<port>[0-9]{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise ServerError(f'address {text!r}: write ":8080", "127.0.0.1:8080", "[::1]:8080", or "0" to disable it')
    return Address(host=match["v6"] or match["host"] or "", port=int(match["port"]))


class HttpServer:
    """Serves an app on each address; start and stop once each."""

    def __init__(
        self,
        apps: Mapping[Address, ASGIApp],
        *,
        name: str,
        limits: Limits = Limits(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is sent in the Server header."""
        self._apps = apps
        self._name = name
        self._limits = limits
        self._monotonic = monotonic
        self._sockets: list[socket.socket] = []
        self._servers: list[uvicorn.Server] = []
        self._thread: threading.Thread | None = None
        #: The ports that are served; with port 0 the system chooses one.
        self.ports: tuple[int, ...] = ()

    def start(self) -> None:
        """Listen and serve in the background; raise ServerError, and serve nothing, if an address is not free."""
        try:
            self._sockets.extend(map(_listen, self._apps))
        except ServerError:
            self._close()
            raise
        if not self._sockets:
            return
        self.ports = tuple(each.getsockname()[1] for each in self._sockets)
        self._servers = [
            uvicorn.Server(_Config(app, name=self._name, limits=self._limits, monotonic=self._monotonic))
            for app in self._apps.values()
        ]
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        _log.debug("http_server.started", ports=self.ports)

    def stop(self) -> None:
        """Free the addresses and end all connections; answers under way get a second."""
        for server in self._servers:
            server.should_exit = True
        if self._thread is not None:
            self._thread.join(_GRACE_SECONDS + _STOP_SECONDS)
        self._close()
        self._servers.clear()
        self._thread, self.ports = None, ()

    def _close(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # noqa: BLE001
            # The edge of the thread. Probes fail from now on, so Kubernetes restarts the process.
            _log.exception("http_server.failed")
            self._close()

    async def _serve(self) -> None:
        looking = asyncio.create_task(self._cut_overdue())
        try:
            await asyncio.gather(
                *(each.serve(sockets=[sock]) for each, sock in zip(self._servers, self._sockets, strict=True))
            )
        finally:
            looking.cancel()
            for connection in self._connections():
                connection.cut()
            # Connections are closed in the next turn of the loop.
            await asyncio.sleep(0)

    async def _cut_overdue(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = self._monotonic()
            for connection in self._connections():
                connection.look_at_stream()
                if connection.deadline <= now:
                    connection.cut()

    def _connections(self) -> list[_Connection]:
        return [cast(_Connection, each) for server in self._servers for each in server.server_state.connections]


class _Config(uvicorn.Config):
    """uvicorn's settings, and what our connections need besides."""

    def __init__(self, app: ASGIApp, *, name: str, limits: Limits, monotonic: Callable[[], float]) -> None:
        super().__init__(
            _Guarded(app, limits),
            loop="none",
            http=_Connection,
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
            backlog=_BACKLOG,
            # Never reached: the deadline of a connection is earlier.
            timeout_keep_alive=int(2 * limits.request_seconds) + 1,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        self.limits = limits
        self.monotonic = monotonic


class _Connection(H11Protocol):
    """One client's connection, and the deadline for the answer to its current request."""

    config: _Config
    deadline: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for it if there are too many."""
        others = [cast(_Connection, each) for each in self.connections if not each.transport.is_closing()]
        if len(others) >= self.config.limits.connections:
            _most_spent(others).cut()
        super().connection_made(transport)
        self._begin()

    def cut(self) -> None:
        """Close it now; what is not yet read or written is lost."""
        self.transport.abort()

    def on_response_complete(self) -> None:
        """Start the time of the next request, unless the client has not yet received this answer."""
        if not self.flow.write_paused:
            self._begin()
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Start the time of the next request once the client has received the answer."""
        super().resume_writing()
        if not self._answering:
            self._begin()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep answering a client that has closed its sending half; uvicorn would drop the answer."""
        if not self._answering or self.cycle.more_body or self.scheme == "https" or self._streaming:
            # A stream has no end: whoever closes has gone.
            return None
        self.cycle.keep_alive = False
        return True

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the parent's interface
        """Reject what is too long or is not HTTP, with the status that h11 suggests."""
        if self._answering:
            # The body of a request is invalid while an app works on it: the app must not answer as well.
            self.cycle.disconnected = True
            if self.cycle.response_started:
                self.cut()
                return
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        body = (_TOO_LONG if status == 431 else "bad request\n").encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
        for event in (response, h11.Data(body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def look_at_stream(self) -> None:
        """Start the time anew for a stream whose client has taken all that it was sent."""
        if self._streaming and self.cycle.response_started and not self.transport.get_write_buffer_size():
            self._begin()

    @property
    def _answering(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is not None and not cycle.response_complete

    @property
    def _streaming(self) -> bool:
        return self._answering and self.cycle.scope["path"] in self.config.limits.streams

    def _begin(self) -> None:
        self.deadline = self.config.monotonic() + self.config.limits.request_seconds


def _most_spent(connections: Sequence[_Connection]) -> _Connection:
    """Return the oldest connection of the client that has the most."""
    by_client = Counter(_host(each) for each in connections)
    return max(connections, key=lambda each: (by_client[_host(each)], -each.deadline))


def _host(connection: _Connection) -> str:
    return connection.client[0] if connection.client is not None else ""


class _Guarded:
    """Limits what an app is sent; if the app fails, answers 500 and logs it."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = RequestBodyLimitMiddleware(app, max_body_size=limits.body_bytes)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        unread = bool(names & {b"content-length", b"transfer-encoding"})
        started = False

        async def receive_and_note() -> Message:
            nonlocal unread
            message = await receive()
            unread = bool(message.get("more_body", False))
            return message

        async def send_and_close(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if unread:
                    # Otherwise the rest of the body would still be read, however long.
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        if _header_bytes(scope) > self._limits.header_bytes:
            # h11 does not limit headers that arrive all at once.
            await PlainTextResponse(_TOO_LONG, 431, {"Connection": "close"})(scope, receive, send)
            return
        try:
            await self._app(scope, receive_and_note, send_and_close)
        except ClientDisconnect:
            # The app was reading the body.
            return
        except Exception:  # noqa: BLE001
            # The edge of the process: whatever fails in an app, the client gets an answer.
            _log.exception("http_request.failed", method=scope["method"], path=scope["path"])
            if not started:
                await PlainTextResponse("internal error; see the log\n", 500)(scope, receive, send_and_close)


def _header_bytes(scope: Scope) -> int:
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    return len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"]) + lines


def _listen(address: Address) -> socket.socket:
    where = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
    try:
        listening = _listen_on(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"address {where!r} is in use by another process; choose another port") from error
        raise ServerError(f"address {where!r} cannot be served: {error}") from error
    except UnicodeError as error:
        raise ServerError(f"address {where!r} cannot be served: the host is not a name") from error
    # Connections inherit it. An answer is written in two pieces; the second must not wait for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _listen_on(address: Address) -> socket.socket:
    if not address.host:
        return _listen_everywhere(address.port)
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, target = found[0]
    # Every interface means both families, whatever the system's default.
    both = target[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((str(target[0]), address.port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def _listen_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    # A kernel with the code for IPv6 and no address of it.
    return socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)
