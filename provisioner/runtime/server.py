"""HTTP pages for scrapers and probes: /metrics on one address, /healthz and /readyz on another, or all on one.

Addresses are in Go's form, as the Go provisioner's flags have them. There is neither TLS nor authentication; what is
served is no secret, and network policies decide who may ask. A thread serves each connection, and there are only so
many: of too many, the oldest of the client that has the most is cut. So slow clients never keep a probe from its
answer.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import io
import re
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import structlog
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

_log = structlog.get_logger(__name__)
#: controller-runtime's word for "do not serve".
DISABLED = "0"
_TEXT = "text/plain; charset=utf-8"
#: So often connections are looked at whose time is up.
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one address spends on its clients."""

    connections: int = 32
    #: From the connection, or the answer before, to the whole answer.
    request_seconds: float = 10.0
    #: Request line and headers together.
    request_bytes: int = 16384
    #: Pages that are being made at once; more get 503. Probes are not counted.
    scrapes: int = 4


class ServerError(Exception):
    """An address that cannot be served, in words for the user."""


class Page(NamedTuple):
    """One answer."""

    status: int
    content_type: str
    body: bytes


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


class StatusServer:
    """Serves metrics, health and readiness; start and stop once each."""

    def __init__(
        self,
        *,
        metrics_address: str,
        probe_address: str,
        exposition: Callable[[], bytes],
        alive: Callable[[], bool],
        problems: Callable[[], Sequence[str]],
        limits: Limits = Limits(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Parse the addresses; raise ServerError for one that cannot be read.

        `alive` is the heartbeat of the loop; `problems` is what keeps the process from being ready, one line each.
        """
        scrapes = threading.BoundedSemaphore(limits.scrapes)

        def scrape() -> Page:
            # One that hangs is stopped by no time-out of a socket.
            if not scrapes.acquire(blocking=False):
                return Page(503, _TEXT, b"too many scrapes at once\n")
            try:
                return Page(200, CONTENT_TYPE_PLAIN_0_0_4, exposition())
            finally:
                scrapes.release()

        metrics_pages = {"/metrics": scrape}
        probe_pages = {
            "/healthz": lambda: _text_page([] if alive() else ["the loop has stopped making rounds"]),
            "/readyz": lambda: _text_page(problems()),
        }
        self._limits = limits
        self._monotonic = monotonic
        self._pages: dict[Address, dict[str, Callable[[], Page]]] = {}
        for text, pages in ((metrics_address, metrics_pages), (probe_address, probe_pages)):
            address = parse_address(text)
            if address is not None:
                self._pages.setdefault(address, {}).update(pages)
        self._servers: list[_Server] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Listen and serve in the background; raise ServerError, serving nothing, where an address is not free."""
        try:
            for address, pages in self._pages.items():
                self._servers.append(
                    _listen(
                        address, functools.partial(_Server, pages=pages, limits=self._limits, monotonic=self._monotonic)
                    )
                )
        except ServerError:
            self.stop()
            raise
        for server in self._servers:
            thread = threading.Thread(
                target=server.serve_forever,
                kwargs={"poll_interval": _LOOK_SECONDS},
                name=f"status-{server.server_port}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)
            _log.debug("status_server.started", port=server.server_port, paths=sorted(server.pages))

    def stop(self) -> None:
        """Stop serving and free the addresses."""
        # serve_forever must run for shutdown() to return.
        for server, _ in zip(self._servers, self._threads, strict=False):
            server.shutdown()
        for server in self._servers:
            server.server_close()
        for thread in self._threads:
            thread.join()
        self._servers.clear()
        self._threads.clear()

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that are served, of use where port 0 let the system choose."""
        return tuple(server.server_port for server in self._servers)


def _text_page(problems: Sequence[str]) -> Page:
    if problems:
        return Page(503, _TEXT, ("\n".join(problems) + "\n").encode())
    return Page(200, _TEXT, b"ok\n")


@dataclass(slots=True, eq=False)
class _Connection:
    """One client's connection, and until when its present request must be answered."""

    sock: socket.socket
    client: str
    deadline: float
    cut: bool = False

    def cut_off(self) -> None:
        """Wake its thread, whatever it waits for on the socket, and let it end."""
        self.cut = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A scrape under way does not hold up the end of the process.
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: Address,
        family: int,
        *,
        pages: Mapping[str, Callable[[], Page]],
        limits: Limits,
        monotonic: Callable[[], float],
    ) -> None:
        self.address_family = family
        self.pages = pages
        self.limits = limits
        self._monotonic = monotonic
        self._connections: dict[socket.socket, _Connection] = {}
        self._changed = threading.Condition()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, and make room for it before."""
        with self._changed:
            open_ones = [each for each in self._connections.values() if not each.cut]
            if len(open_ones) >= self.limits.connections:
                _most_spent(open_ones).cut_off()
            # Those that were cut end at once, unless a page hangs in the making.
            room = self._changed.wait_for(
                lambda: len(self._connections) < 2 * self.limits.connections, timeout=_LOOK_SECONDS
            )
            if room:
                client = str(client_address[0])
                self._connections[request] = _Connection(request, client, self._deadline())
        if not room:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # The system gives no more threads.
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and forget it."""
        super().shutdown_request(request)
        with self._changed:
            self._connections.pop(request, None)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """Cut connections whose time is up; the accepting thread calls this after each look for new ones."""
        now = self._monotonic()
        with self._changed:
            for connection in self._connections.values():
                if connection.deadline <= now and not connection.cut:
                    connection.cut_off()

    def answered(self, request: socket.socket) -> None:
        """Begin the time of the next request on a connection."""
        with self._changed:
            connection = self._connections.get(request)
            if connection is not None:
                connection.deadline = self._deadline()

    def _deadline(self) -> float:
        return self._monotonic() + self.limits.request_seconds

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            # Every interface means both families, whatever the system's default.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's, which looks up the name of the host.
        socketserver.TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the parent's interface
        _log.debug("status_request.failed", client=str(client_address), error=repr(sys.exception()))


def _most_spent(connections: Sequence[_Connection]) -> _Connection:
    """Return the oldest connection of the client that has the most."""
    by_client = Counter(each.client for each in connections)
    return max(connections, key=lambda each: (by_client[each.client], -each.deadline))


def _listen(address: Address, make: Callable[[Address, int], _Server]) -> _Server:
    where = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
    try:
        if not address.host:
            return _listen_everywhere(address.port, make)
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, target = found[0]
        return make(Address(str(target[0]), address.port), family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"address {where!r} is in use by another process; choose another port") from error
        raise ServerError(f"address {where!r} cannot be served: {error}") from error


def _listen_everywhere(port: int, make: Callable[[Address, int], _Server]) -> _Server:
    if socket.has_dualstack_ipv6():
        try:
            return make(Address("::", port), socket.AF_INET6)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    # A kernel with the code for IPv6 and no address of it.
    return make(Address("0.0.0.0", port), socket.AF_INET)


class _Bounded:
    """The lines of a request, all together no longer than a limit."""

    def __init__(self, inner: io.BufferedIOBase, limit: int) -> None:
        self._inner = inner
        self._limit = limit
        self._left = limit

    def begin(self) -> None:
        """Begin with the next request."""
        self._left = self._limit

    def readline(self, size: int = -1) -> bytes:
        """Read a line; raise LineTooLong beyond the limit, as http.client does for headers."""
        most = self._left + 1 if size < 0 else min(size, self._left + 1)
        line = self._inner.readline(most)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("request")
        return line

    def close(self) -> None:
        """Close the connection's file."""
        self._inner.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        # The server cuts the connection when its time is up; this is for what it may miss.
        self.timeout = 2 * self.server.limits.request_seconds  # type: ignore[misc]
        super().setup()
        self._bounded = _Bounded(self.rfile, self.server.limits.request_bytes)
        self.rfile = self._bounded  # type: ignore[assignment]

    def handle_one_request(self) -> None:
        self._bounded.begin()
        try:
            super().handle_one_request()
        except http.client.LineTooLong:
            # The request line; the parent answers for the headers.
            self.requestline, self.request_version, self.command = "", "", ""
            self.send_error(431)
        self.server.answered(self.request)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the parent refuses (methods, bad lines) in plain text instead of HTML."""
        if code == 501:
            code, message = 405, "only GET and HEAD are served here"
        # What follows on this connection may be the body of the refused request.
        self.close_connection = True
        self._send(Page(code, _TEXT, f"{message or explain or code}\n".encode()), with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            paths = " ".join(sorted(self.server.pages))
            page = Page(404, _TEXT, f"not found; available: {paths}\n".encode())
        else:
            try:
                page = make()
            except Exception:  # noqa: BLE001
                # The edge of the process: a probe gets an answer whatever fails in a callback.
                _log.exception("status_page.failed", path=self.path)
                page = Page(500, _TEXT, b"internal error; see the log\n")
        self._send(page, with_body=with_body)

    def _send(self, page: Page, *, with_body: bool) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        if page.status == 405:
            self.send_header("Allow", "GET, HEAD")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def version_string(self) -> str:
        return "tpu-provisioner"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's interface
        """Log nothing: probes come every few seconds."""
