"""Starts servers of small apps, and clients that send bytes to them over real sockets."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.runtime.http import Address, HttpServer, Limits

#: Time-out in seconds for any step on a busy machine.
PATIENCE_SECONDS = 10.0
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

Serve = Callable[..., HttpServer]


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hello")(scope, receive, send)


@contextmanager
def servers() -> Iterator[Serve]:
    """Yield a function that starts servers; they are stopped at the end of the block."""
    started: list[HttpServer] = []

    def start(*apps: ASGIApp, tls: ssl.SSLContext | None = None, **limits: float) -> HttpServer:
        at = {Address(f"127.0.0.{number}", 0): app for number, app in enumerate(apps or (hello,), 1)}
        server = HttpServer(at, name="a-server", limits=Limits(**limits), tls=tls)  # type: ignore[arg-type]
        started.append(server)
        server.start()
        return server

    try:
        yield start
    finally:
        for server in started:
            server.stop()


def connect(port: int, *, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, source_address=(source, 0))


def read_all(client: socket.socket) -> bytes:
    read = b""
    while piece := client.recv(65536):
        read += piece
    return read


def ends(client: socket.socket) -> bool:
    """Wait until the server ends a connection; return False after the time-out."""
    try:
        read_all(client)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
