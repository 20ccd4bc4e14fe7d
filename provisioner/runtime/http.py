"""An HTTP server for ASGI apps: uvicorn in a thread, with bounds on time, connections and memory.

Of too many connections the oldest one of the client that has the most is closed. Apps must not block the event loop.
With TLS, a certificate that is loaded into the context again is used from the next connection on.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import asyncio.selector_events
import asyncio.sslproto
import contextlib
import errno
import logging
import re
import socket
import ssl
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import h11
import structlog
import uvicorn
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from provisioner.model.waits import Budget
from provisioner.model.wording import UserError
from provisioner.runtime.repeats import Repeats, place_of

_log = structlog.get_logger(__name__)
#: controller-runtime's word for "do not serve".
DISABLED = "0"
#: Answers under way when the server stops get a second; the thread gets longer, in case an app blocks the event loop.
_GRACE_SECONDS, _STOP_SECONDS = 1, 5.0
_BACKLOG = 1024
#: So long a request waits when all clients together have asked too much, and accepting when the system is out of files.
_PAUSE_SECONDS = 0.25
#: A request of so much is not worth counting.
_SMALL_BYTES = 65536
#: Each line of a head takes h11 microseconds, and up to fifty times its size of memory. Spaces before what is no text
#: take the square of their number: 32,000 of them 3 s, in which no thread of the process runs.
_LINES, _SPACES = 100, b" " * 32
#: OpenSSL takes so much for a handshake as soon as its first bytes say that it is long.
_HANDSHAKE_BYTES = 192 * 1024
_BLANK_LINE = re.compile(rb"\n\r?\n")

# Each TLS connection has a buffer of this size, 256 KiB by default: five hundred silent clients would take 128 MiB.
asyncio.sslproto.SSLProtocol.max_size = 16 * 1024
# It keeps so many KiB that are not yet read here, and not taken by the client, by default 256 and 512.
asyncio.constants.FLOW_CONTROL_HIGH_WATER_SSL_READ = 16  # type: ignore[misc]
asyncio.constants.FLOW_CONTROL_HIGH_WATER_SSL_WRITE = 16  # type: ignore[misc]
# Without TLS so much is read at once.
asyncio.selector_events._SelectorTransport.max_size = 16 * 1024  # type: ignore[attr-defined]  # noqa: SLF001


class ServerError(UserError):
    """An address that cannot be served, in words for the user."""


class Address(NamedTuple):
    """Where to listen; an empty host is every interface."""

    host: str
    port: int


def parse_address(text: str) -> Address | None:
    """Return the address in Go's form (":8080", "127.0.0.1:8080", "[::1]:8080"), None for "0" and ""."""
    if text in ("", DISABLED):
        return None
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]/ *]*)):(?P<port>[0-9]{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise ServerError(f'address {text!r}: write ":8080", "127.0.0.1:8080", "[::1]:8080", or "0" to disable it')
    return Address(host=match["v6"] or match["host"] or "", port=int(match["port"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one address spends on its clients."""

    connections: int = 32
    #: From the connection to the first byte of a request, and from there to the end of the answer.
    request_seconds: float = 10.0
    #: How long a connection may stay without a request after an answer.
    idle_seconds: int = 10
    #: Request line and headers together.
    header_bytes: int = 16384
    body_bytes: int = 65536
    #: Of requests that are not answered; beyond it the client that has the most loses its largest.
    held_bytes: int = 48 * 1024 * 1024
    #: Answers to all clients together, and so many more at once; None: no bound. Who asks more waits for a moment.
    answers_per_second: float | None = None
    answers_at_once: int = 200


class _Requests(h11.Connection):
    """Reads requests, without what would take the processor from all others: such as chunks of one byte each."""

    def next_event(self) -> Any:
        """Return what comes next. Raises RemoteProtocolError for a request that is rejected."""
        if self.their_state is h11.IDLE and (blank := _BLANK_LINE.search(received := self.trailing_data[0])):
            head = received[: blank.start()]
            costs = head.count(b"\n") > _LINES or _SPACES in head.replace(b"\t", b" ")
            if costs or len(head) > self._max_incomplete_event_size:
                raise h11.RemoteProtocolError("a head that is too large, or takes long to read")
        event = super().next_event()
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            raise h11.RemoteProtocolError("a body in chunks")
        return event


class _Connection(H11Protocol):
    """One client's connection, from its first packet on, and until when its request or its silence may last."""

    handshake: asyncio.Task[None] | None = None

    def __init__(self, server: _Server, host: str) -> None:
        super().__init__(server.config, server.server_state, {})
        #: What its handshake may take; later what was received since the last answer.
        self.held = _HANDSHAKE_BYTES if server.tls is not None else 0
        self.conn = _Requests(h11.SERVER, server.limits.header_bytes)
        self._server = server
        self.host = host
        self._allow(server.limits.request_seconds)

    def _allow(self, seconds: float) -> None:
        self.since = self.loop.time()
        self.until = self.since + seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # A TLS transport that was closed twice forgets it, and cannot be aborted any more.
        self._raw = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
        self.held = 0
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.MUST_CLOSE:
            # What is behind the last request; h11 would answer it, while the answer to that is written.
            return
        if not self.held:
            self._allow(self._server.limits.request_seconds)
        self.held += len(data)
        self._server.make_room_for(self)
        if not self.transport.is_closing():
            super().data_received(data)

    def on_response_complete(self) -> None:
        """Let the time without a request begin, or that of a request which is there already."""
        if self.conn.their_state is h11.SEND_BODY:
            # Nobody reads the rest of the body.
            self.transport.close()
        self.held = 0
        if not self.transport.is_closing():
            self._allow(self._server.limits.idle_seconds)
        super().on_response_complete()
        if not self.cycle.response_complete:
            self._allow(self._server.limits.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._server.open.discard(self)
        # As if it was not reset: otherwise uvicorn's timer keeps it, 50 KiB with TLS, as long as a rest may last.
        super().connection_lost(None)

    def cut(self) -> None:
        """Close it now; what is not yet read or written is lost."""
        self._server.open.discard(self)
        if (transport := cast(asyncio.Transport | None, self.transport)) is not None:
            transport.abort()
            self._raw.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


class _Server(uvicorn.Server):
    """uvicorn on one address; connections are counted from their first packet on, before TLS."""

    def __init__(self, app: ASGIApp, name: str, limits: Limits, tls: ssl.SSLContext | None) -> None:
        self.limits = limits
        self.open: set[_Connection] = set()
        self.is_draining = False
        self.tls = tls
        config = uvicorn.Config(
            self._guarded(app),
            ws="none",
            lifespan="off",
            # uvicorn logs nothing; failures of an app are logged here.
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            # Set explicitly, otherwise uvicorn reads them from the environment.
            workers=1,
            proxy_headers=False,
            headers=[("Server", name)],
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        """Limit what an app is sent, and how often; if it fails, log that, and uvicorn answers 500."""
        limited = RequestBodyLimitMiddleware(app, max_body_size=self.limits.body_bytes)
        repeats, rate = Repeats(), self.limits.answers_per_second
        pace = Budget(self.limits.answers_at_once, rate, 0.0) if rate is not None else None

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_last(message: Message) -> None:
                if self.is_draining and message["type"] == "http.response.start":
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                await send(message)

            if pace is not None and not pace.spend(asyncio.get_running_loop().time()):
                await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await limited(scope, receive, send_last)
            except ClientDisconnect:
                # While its body was read.
                return
            except Exception as error:
                if (left_out := repeats.left_out(place_of(error))) is not None:
                    about = {"method": scope["method"], "path": scope["path"]}
                    _log.error("http_request.failed", **about, left_out=left_out, exc_info=error)
                raise

        return guarded

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        [listening] = sockets or []
        self._accepting = asyncio.create_task(self._accept(listening))
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Cut each connection whose time is over; called ten times a second."""
        now = asyncio.get_running_loop().time()
        for each in [each for each in self.open if each.until < now]:
            each.cut()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let answers under way end, and close all connections."""
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        await super().shutdown(sockets)
        if cancelled := {*self.server_state.tasks}:
            # Each answers 500.
            await asyncio.wait(cancelled, timeout=_GRACE_SECONDS)
        for each in [*self.open]:
            each.cut()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (host, *_) = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self.open) >= self.limits.connections:
                self._cut_one(lambda _each: 1)
            connection = _Connection(self, host)
            # Before it is one of them: where it was cut before its handshake begins, its socket would stay open.
            self.make_room_for(connection)
            self.open.add(connection)
            connection.handshake = loop.create_task(self._connect(connection, accepted))
            # Those that are open get their turn, however many come.
            await asyncio.sleep(0)

    async def _connect(self, connection: _Connection, accepted: socket.socket) -> None:
        try:
            # The connection's own time is over earlier.
            seconds = 2 * self.limits.request_seconds if self.tls is not None else None
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self.tls, ssl_handshake_timeout=seconds
            )
        except (OSError, asyncio.CancelledError) as error:
            _log.debug("connection.failed", client=connection.host, error=str(error))
            connection.cut()
            # asyncio's refer to themselves: the memory of the connection would wait for a look for garbage.
            traceback.clear_frames(error.__traceback__)

    def make_room_for(self, connection: _Connection) -> None:
        """Cut connections until all together hold no more than they may, unless this one holds next to nothing."""
        while connection.held > _SMALL_BYTES and sum(each.held for each in self.open) > self.limits.held_bytes:
            self._cut_one(lambda each: each.held)

    def _cut_one(self, weight: Callable[[_Connection], int]) -> None:
        """Cut the heaviest connection of the client whose connections weigh the most; of equal ones the oldest."""
        by_client: Counter[str] = Counter()
        for each in self.open:
            by_client[each.host] += weight(each)
        max(self.open, key=lambda each: (by_client[each.host], weight(each), -each.since)).cut()


class HttpServer:
    """Serves an app on each address as `name`, over TLS where `tls` is given; start and stop once each."""

    def __init__(
        self,
        apps: Mapping[Address, ASGIApp],
        *,
        name: str,
        limits: Limits = Limits(),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._addresses = tuple(apps)
        self._servers = [_Server(app, name, limits, tls) for app in apps.values()]
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        #: The ports that are served; with port 0 the system chooses one.
        self.ports: tuple[int, ...] = ()

    def start(self) -> None:
        """Listen and serve in the background; raise ServerError, and serve nothing, if an address is not free."""
        with contextlib.ExitStack() as opened:
            self._sockets = [opened.enter_context(_listen(each)) for each in self._addresses]
            opened.pop_all()
        self.ports = tuple(each.getsockname()[1] for each in self._sockets)
        if self.ports:
            self._thread.start()
            _log.debug("http_server.started", ports=self.ports)

    def drain(self) -> None:
        """Close each connection with its next answer, so that clients go elsewhere and none waits for a closed one."""
        for each in self._servers:
            each.is_draining = True

    def stop(self) -> None:
        """Free the addresses and end all connections; answers under way get a second."""
        for server in self._servers:
            server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_GRACE_SECONDS + _STOP_SECONDS)
        self._close()

    def _close(self) -> None:
        for each in self._sockets:
            each.close()
        self.ports = ()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # noqa: BLE001
            # The edge of the thread. Probes fail from now on, so Kubernetes restarts the process.
            _log.exception("http_server.failed")
            self._close()

    async def _serve(self) -> None:
        pairs = zip(self._servers, self._sockets, strict=True)
        await asyncio.gather(*(server.serve(sockets=[listening]) for server, listening in pairs))


def _listen(address: Address) -> socket.socket:
    # Every interface means both families, whatever the system's default.
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    where = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
    try:
        [(family, *_, target), *_] = socket.getaddrinfo(
            address.host or everywhere, address.port, type=socket.SOCK_STREAM
        )
        both = target[0] == "::" == everywhere
        listening = socket.create_server(target[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"address {where!r} is in use by another process; choose another port") from error
        raise ServerError(f"address {where!r} cannot be served: {error}") from error
    except UnicodeError as error:
        raise ServerError(f"address {where!r} cannot be served: the host is not a name") from error
    # Connections inherit it. An answer is written in two pieces; the second must not wait for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setblocking(False)
    return listening
