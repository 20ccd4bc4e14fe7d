"""HTTP for simulated services: sockets, JSON, latency, errors and dropped connections on demand, the log of calls.

Each connection has a thread and is kept alive between requests. Stopping closes every connection, even if its client
waits for a delayed response. There is no TLS and no authentication: only this machine should reach the port.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import structlog

from rehearsal.simulators.http.exchange import Call, CallLog, RefusalError, Request, Route
from rehearsal.simulators.http.faults import HANG, BaseFault
from rehearsal.simulators.http.service import ADMIN_PREFIX, BaseService
from rehearsal.simulators.http.world import Clock

_log = structlog.get_logger(__name__)

_MAX_BODY_BYTES = 4 * 1024 * 1024
_STOP_LOOK_SECONDS = 0.05
_LOOK_AGAIN_SECONDS = 0.02
_ADMIN_METHOD = "simulator"


class DropConnectionError(Exception):
    """A fault requires that the connection is closed without a response."""


class _RawAnswerError(Exception):
    """The response has a body that no service returns, such as the page of a proxy."""

    def __init__(self, code: int, raw: bytes) -> None:
        super().__init__(code)
        self.code = code
        self.raw = raw


class Server(ThreadingHTTPServer):
    """Listens, and passes requests to the service's API or to the simulator's own API."""

    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        *,
        make_service: Callable[[str], BaseService[Any]],
        calls: CallLog,
        clock: Clock,
    ) -> None:
        self.calls = calls
        self.clock = clock
        self.stopping = threading.Event()
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(address, _Handler)
        self.service = make_service(self.address)

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        host, port = self.server_address[:2]
        shown = host.decode() if isinstance(host, bytes) else str(host)
        return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"

    def server_bind(self) -> None:
        """Bind without the base class's look-up of the host's name, which can take seconds."""
        if ":" in str(self.server_address[0]):
            self.address_family = socket.AF_INET6
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and let `stop` close it."""
        with self._connections_lock:
            self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._connections_lock:
                self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as the base class has it
        """Log the exception of a request, unless its client disconnected, as clients do in rehearsals of time-outs."""
        if not isinstance(sys.exception(), ConnectionError):
            _log.exception("request.failed", client=str(client_address))

    def listen(self) -> None:
        """Serve until stopped."""
        self.serve_forever(poll_interval=_STOP_LOOK_SECONDS)

    def stop(self) -> None:
        """Stop listening and close all connections."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
        with self._connections_lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one write for head and body
    server_version = "ESF"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Log nothing, because the log of calls has all requests."""

    def _serve(self) -> None:
        began = time.monotonic()
        when = self.server.clock()
        address = urlsplit(self.path)
        path = unquote(address.path)
        method = _ADMIN_METHOD
        status = 0
        try:
            request = self._request(path, address.query)
            if path.startswith(ADMIN_PREFIX):
                status, body = 200, self._json(self.server.service.admin(request))
            else:
                found = self.server.service.route(self.command, path)
                method = found.method
                status, body = self._call(found, request)
        except _RawAnswerError as error:
            status, body = error.code, error.raw
        except RefusalError as error:
            status, body = error.code, self._json(self._error_body(error))
        except DropConnectionError:
            self.close_connection = True
            self._note(when, began, method, path, status=0)
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._note(when, began, method, path, status=status)
        self._answer(status, body)

    def _note(self, when: Any, began: float, method: str, path: str, *, status: int) -> None:
        if method == _ADMIN_METHOD:
            return
        latency = time.monotonic() - began
        self.server.calls.add(
            Call(
                when=when,
                method=method,
                http_method=self.command,
                path=path,
                status=status,
                latency_seconds=latency,
            )
        )

    def _request(self, path: str, query: str) -> Request:
        body = self._body()
        return Request(
            http_method=self.command,
            path=path,
            query=dict(parse_qsl(query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
        )

    def _body(self) -> object:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            raise self.server.service.refusal(400, f"Content-Length {length!r} is not from 0 to {_MAX_BODY_BYTES}.")
        raw = self.rfile.read(int(length))
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError as error:
            raise self.server.service.refusal(400, f"Invalid JSON payload received. {error}") from error

    def _call(self, found: Route, request: Request) -> tuple[int, bytes]:
        service = self.server.service
        self._wait(service.request_seconds)
        fault = service.fault_of(found, request)
        if fault is not None and fault.before_effect:
            self._strike(fault)
        body = self._handled(found, request)
        if fault is not None and not fault.before_effect:
            self._strike(fault)
        return 200, self._json(body)

    def _handled(self, found: Route, request: Request) -> dict[str, Any]:
        service, began = self.server.service, time.monotonic()
        body = service.handle(found, request)
        while (newer := service.newer(found, body, time.monotonic() - began)) is not None:
            self._wait(_LOOK_AGAIN_SECONDS)
            body = newer
        return body

    def _strike(self, fault: BaseFault) -> None:
        if fault.kind == HANG:
            self._wait(fault.seconds)
        elif fault.code == 0:
            raise DropConnectionError
        elif fault.body is not None:
            raise _RawAnswerError(fault.code, fault.body.encode())
        else:
            raise self.server.service.broken(fault)

    def _wait(self, seconds: float) -> None:
        if seconds > 0 and self.server.stopping.wait(seconds):
            raise DropConnectionError

    def _error_body(self, error: RefusalError) -> dict[str, Any]:
        return error.body(request_id=f"0x{secrets.randbits(64):x}")

    @staticmethod
    def _json(body: object) -> bytes:
        return json.dumps(body, separators=(",", ":")).encode()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
