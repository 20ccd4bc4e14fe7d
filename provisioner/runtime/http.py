"""An HTTP server for ASGI apps: a thread with an event loop of its own, on one address or several.

uvicorn speaks HTTP, within the bounds of `connections`. When there are too many connections, the oldest one of the
client that has the most is closed, so slow clients never keep others from their answers. Apps must not block the event
loop. With TLS, a certificate that is loaded into the context again is used from the next connection on.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from provisioner.runtime.connections import BACKLOG, GRACE_SECONDS, Config, Connection, Limits

_log = structlog.get_logger(__name__)
#: controller-runtime's word for "do not serve".
DISABLED = "0"
_LIMITS = Limits()
#: How often overdue connections are looked for.
_LOOK_SECONDS = 0.1
#: The thread gets this much longer, in case an app blocks the event loop.
_STOP_SECONDS = 5.0


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
        limits: Limits = _LIMITS,
        tls: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` is sent in the Server header; without `tls` connections are not encrypted.

        `at_end` is called in the event loop when it ends.
        """
        self._apps = apps
        self._name = name
        self._limits = limits
        self._tls = tls
        self._monotonic = monotonic
        self._at_end = at_end
        self._sockets: list[socket.socket] = []
        self._servers: list[uvicorn.Server] = []
        self._thread: threading.Thread | None = None
        self._draining = threading.Event()
        #: The ports that are served; with port 0 the system chooses one.
        self.ports: tuple[int, ...] = ()

    def start(self) -> None:
        """Listen and serve in the background; raise ServerError, and serve nothing, if an address is not free."""
        try:
            self._sockets.extend(_listen(each, self._limits) for each in self._apps)
        except ServerError:
            self._close()
            raise
        if not self._sockets:
            return
        self.ports = tuple(each.getsockname()[1] for each in self._sockets)
        self._servers = [uvicorn.Server(self._config(app)) for app in self._apps.values()]
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        _log.debug("http_server.started", ports=self.ports)

    def drain(self) -> None:
        """Close each connection with its next answer, so that clients go elsewhere and none waits for a closed one."""
        self._draining.set()

    def stop(self) -> None:
        """Free the addresses and end all connections; answers under way get a second."""
        for server in self._servers:
            server.should_exit = True
        if self._thread is not None:
            self._thread.join(GRACE_SECONDS + _STOP_SECONDS)
        self._close()
        self._servers.clear()
        self._thread, self.ports = None, ()

    def _config(self, app: ASGIApp) -> Config:
        return Config(
            app,
            name=self._name,
            limits=self._limits,
            monotonic=self._monotonic,
            tls=self._tls,
            draining=self._draining.is_set,
        )

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
            self._at_end()
            # Connections are closed in the next turn of the loop.
            await asyncio.sleep(0)

    async def _cut_overdue(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = self._monotonic()
            for connection in self._connections():
                if connection.deadline <= now:
                    connection.cut()

    def _connections(self) -> list[Connection]:
        return [cast(Connection, each) for server in self._servers for each in server.server_state.connections]


def _listen(address: Address, limits: Limits) -> socket.socket:
    where = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
    try:
        listening = _listen_on(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"address {where!r} is in use by another process; choose another port") from error
        raise ServerError(f"address {where!r} cannot be served: {error}") from error
    except UnicodeError as error:
        raise ServerError(f"address {where!r} cannot be served: the host is not a name") from error
    # Connections inherit these. An answer is written in two pieces; the second must not wait for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A client whose machine is gone acknowledges nothing. The kernel would go on for a quarter of an hour.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.request_seconds * 1000))
    return listening


def _listen_on(address: Address) -> socket.socket:
    if not address.host:
        return _listen_everywhere(address.port)
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, target = found[0]
    # Every interface means both families, whatever the system's default.
    both = target[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((str(target[0]), address.port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


def _listen_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    # A kernel with the code for IPv6 and no address of it.
    return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)
