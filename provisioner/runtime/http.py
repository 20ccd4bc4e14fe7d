"""Serves ASGI apps over HTTP: uvicorn in a thread, with bounds on the time, number and size of requests.

Apps must not block the event loop. If a new certificate is loaded into the TLS context, later connections use it. The
number of TLS handshakes is bounded, because asyncio takes 0.3 MiB for each handshake, for up to 60 s.
"""

import asyncio
import contextlib
import errno
import logging
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import h11
import structlog
import uvicorn
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from provisioner.model.waits import TokenBucket
from provisioner.model.wording import UserError
from provisioner.runtime.repeats import Repeats, place_of

_log = structlog.get_logger(__name__)
#: Address that disables serving, as in controller-runtime.
DISABLED = "0"
#: Maximum seconds that a stop waits for responses in progress, and after that for the thread, which an app may block.
_GRACE_SECONDS, _STOP_SECONDS = 1, 5.0
#: Maximum number of connections that wait to be accepted, and that are accepted in one step of the event loop. In a
#: flood, a larger number delays probes; with a smaller number, the kernel drops probes' connections.
_BACKLOG = 256
#: Number of requests in a burst, and pause in seconds before the response to a request that exceeds the rate.
_BURST, _PAUSE_SECONDS = 200, 0.25
#: Maximum bytes of all large bodies at one address, and of a small body. Limits.connections limits small bodies.
_HELD_BYTES, _SMALL_BYTES = 48 * 1024 * 1024, 65536
#: A request head with this many spaces or tabs in a row is rejected: h11 may take quadratic time (3 s for 32,000).
_SPACES = b" " * 32
_BLANK_LINE = re.compile(rb"\n\r?\n")


#: Connections in a TLS handshake by the address of the client, oldest first. Some may be closed already.
Handshakes = dict[Any, socket.socket]


class ServerError(UserError):
    """An address cannot be served. The message is for the user."""


class Address(NamedTuple):
    """Address of a server. An empty host means all interfaces."""

    host: str
    port: int


def parse_address(text: str) -> Address | None:
    """Read an address in Go's form (":8080", "[::1]:8080"); None for "0" and "". Raises ServerError if invalid."""
    if text in ("", DISABLED):
        return None
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]/ *]*)):(?P<port>[0-9]{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise ServerError(f'address {text!r}: write ":8080", "127.0.0.1:8080", "[::1]:8080", or "0" to disable it')
    return Address(host=match["v6"] or match["host"] or "", port=int(match["port"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on the requests to one address."""

    #: Maximum number of open connections; beyond it, the client with the most connections loses its oldest connection.
    #: Also the maximum number of TLS handshakes; beyond it, the oldest handshake ends.
    connections: int = 32
    #: Maximum time from a connection to its first byte, and from a request's first byte to the end of the response.
    request_seconds: float = 10.0
    #: Maximum time without a request after a response.
    idle_seconds: int = 10
    #: Maximum size of request line and headers together.
    header_bytes: int = 16384
    body_bytes: int = 65536
    #: Requests per second without a delay, after a burst of 200; further ones wait for 0.25 s. None for no delay.
    answers_per_second: float | None = None


class _Requests(h11.Connection):
    """Parser that limits complete heads of requests. h11 limits only a head whose end has not been received."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE and (blank := _BLANK_LINE.search(received := self.trailing_data[0])):
            head = received[: blank.start()]
            if len(head) > self._max_head_bytes or _SPACES in head.replace(b"\t", b" "):
                raise h11.RemoteProtocolError("a head that is too large, or takes long to read")
        return super().next_event()


class _Connection(H11Protocol):
    """A connection that is aborted at its deadline, or to make room if its client has the most connections."""

    def __init__(self, limits: Limits, handshakes: Handshakes, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._handshakes = handshakes
        self.conn = _Requests(limits.header_bytes)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._handshakes.pop(self.client, None)
        self.opened_at = self.loop.time()
        self._deadline, self._rests = self.loop.call_later(self._limits.request_seconds, transport.abort), True
        if len(self.connections) > self._limits.connections:
            self._make_room()

    def _make_room(self) -> None:
        connections = cast("set[_Connection]", self.connections)
        by_client = Counter(connection.client and connection.client[0] for connection in connections)
        oldest = max(
            connections,
            key=lambda connection: (by_client[connection.client and connection.client[0]], -connection.opened_at),
        )
        connections.discard(oldest)
        oldest.transport.abort()

    def _allow(self, seconds: float, *, rests: bool) -> None:
        """Abort the connection after `seconds`. With `rests`, the next request replaces this deadline."""
        self._deadline.cancel()
        self._deadline, self._rests = self.loop.call_later(seconds, self.transport.abort), rests

    def data_received(self, data: bytes) -> None:
        if self._rests:
            self._allow(self._limits.request_seconds, rests=False)
        # Bytes after the last request are ignored; otherwise uvicorn would respond to them before the request.
        if self.conn.their_state is not h11.MUST_CLOSE and not self.transport.is_closing():
            super().data_received(data)

    def on_response_complete(self) -> None:
        # This deadline is for a client that does not read the response; uvicorn closes other idle connections earlier.
        self._allow(self._limits.idle_seconds + self._limits.request_seconds, rests=True)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._deadline.cancel()
        # If uvicorn got the error, its timer would keep the connection in memory until the idle time ends.
        super().connection_lost(None)


class _TlsListener(socket.socket):
    """Listening socket that ends the oldest TLS handshakes if there are too many."""

    def __init__(self, listening: socket.socket, handshakes: Handshakes, max_handshakes: int) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._handshakes, self._max_handshakes = handshakes, max_handshakes

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self._handshakes[address[:2]] = connection
        while len(self._handshakes) > self._max_handshakes:
            oldest = self._handshakes.pop(next(iter(self._handshakes)))
            with contextlib.suppress(OSError):
                # After the shutdown, asyncio closes the connection. An OSError means that it was already closed.
                oldest.shutdown(socket.SHUT_RDWR)
        return connection, address


def _make_server(
    app: ASGIApp, name: str, limits: Limits, tls: ssl.SSLContext | None, handshakes: Handshakes
) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            _guarded(app, limits),
            http=cast(Any, partial(_Connection, limits, handshakes)),
            ws="none",
            lifespan="off",
            # uvicorn logs nothing, because `_guarded` logs the failures of the app.
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            # With the defaults, WEB_CONCURRENCY and FORWARDED_ALLOW_IPS in the environment would change the server.
            workers=1,
            proxy_headers=False,
            headers=[("Server", name)],
            backlog=_BACKLOG,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_context_factory=(lambda _config, _default: tls) if tls is not None else None,
        )
    )


def _guarded(app: ASGIApp, limits: Limits) -> ASGIApp:
    """Limit request bodies and the rate of responses of an app. Log its errors, which uvicorn answers with 500."""
    repeats, rate, held = Repeats(), limits.answers_per_second, 0
    pace = TokenBucket(_BURST, rate, 0.0) if rate is not None else None

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal held
        if pace is not None and not pace.spend(asyncio.get_running_loop().time()):
            await asyncio.sleep(_PAUSE_SECONDS)
        headers = Headers(scope=scope)
        size = int(headers.get("content-length", 0))
        large = size if size > _SMALL_BYTES else 0
        if "transfer-encoding" in headers:
            # Chunked bodies are rejected: h11 takes microseconds per chunk, and a client may send chunks of one byte.
            rejected = PlainTextResponse("send Content-Length\n", 411)
        elif size > limits.body_bytes:
            rejected = PlainTextResponse(f"the body has more than {limits.body_bytes} bytes\n", 413)
        elif held + large > _HELD_BYTES:
            rejected = PlainTextResponse("too many large requests at once\n", 503)
        else:
            rejected = None
        if rejected is not None:
            rejected.headers["Connection"] = "close"
            await rejected(scope, receive, send)
            return
        held += large
        try:
            await app(scope, receive, send)
        except ClientDisconnect:
            # The client closed the connection before the request's body was read, which is no failure of the app.
            return
        except Exception as error:
            if (left_out := repeats.left_out(place_of(error))) is not None:
                about = {"method": scope["method"], "path": scope["path"]}
                _log.error("http_request.failed", **about, left_out=left_out, exc_info=error)
            raise
        finally:
            held -= large

    return guarded


class HttpServer:
    """Serves an app on each address, over TLS if `tls` is given. `name` is the Server header. Starts and stops once."""

    def __init__(
        self,
        apps: Mapping[Address, ASGIApp],
        *,
        name: str,
        limits: Limits = Limits(),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits, self._tls = limits, tls
        self._handshakes: dict[Address, Handshakes] = {address: {} for address in apps}
        self._servers = [
            _make_server(app, name, limits, tls, self._handshakes[address]) for address, app in apps.items()
        ]
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._failed = False
        #: Ports that are served. The system replaces port 0 by a free port.
        self.ports: tuple[int, ...] = ()

    def start(self) -> None:
        """Serve all addresses in the background. Raises ServerError, and serves none, if one cannot be served."""
        with contextlib.ExitStack() as opened:
            self._sockets = [opened.enter_context(self._listen(address)) for address in self._handshakes]
            opened.pop_all()
        self.ports = tuple(listening.getsockname()[1] for listening in self._sockets)
        if self.ports:
            self._thread.start()
            _log.debug("http_server.started", ports=self.ports)

    def _listen(self, address: Address) -> socket.socket:
        listening = _listen(address)
        if self._tls is None:
            return listening
        return _TlsListener(listening, self._handshakes[address], self._limits.connections)

    def failures(self) -> Sequence[str]:
        """Return the reason why the process must be restarted; empty without a failure."""
        return ("the thread that serves HTTP requests has ended",) if self._failed else ()

    def drain(self) -> None:
        """Close each connection with its next response, so that clients reconnect. Takes effect within 1 s."""
        for server in self._servers:
            server.config.encoded_headers.append((b"connection", b"close"))

    def stop(self) -> None:
        """Free the addresses and end all connections. Responses in progress have 1 s to complete."""
        for server in self._servers:
            server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_GRACE_SECONDS + _STOP_SECONDS)
        self._close()

    def _close(self) -> None:
        for listening in self._sockets:
            listening.close()
        self.ports = ()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # noqa: BLE001
            self._failed = True
            _log.exception("http_server.failed")
            self._close()

    async def _serve(self) -> None:
        pairs = zip(self._servers, self._sockets, strict=True)
        await asyncio.gather(*(server.serve(sockets=[listening]) for server, listening in pairs))
        states = [server.server_state for server in self._servers]
        if cancelled := {task for state in states for task in state.tasks}:
            # Wait until uvicorn has responded 500 to each cancelled request.
            await asyncio.wait(cancelled, timeout=_GRACE_SECONDS)
        for connection in {connection for state in states for connection in state.connections}:
            connection.transport.abort()


def _listen(address: Address) -> socket.socket:
    # Without a host, IPv4 and IPv6 are served if one socket can serve both, regardless of the system's default.
    both = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
    where = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
    try:
        listening = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ServerError(f"address {where!r} is in use by another process; choose another port") from error
        raise ServerError(f"address {where!r} cannot be served: {error}") from error
    # Connections inherit TCP_NODELAY; otherwise the second part of a response would wait for the client's ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
