"""HTTP for the simulated GKE: sockets, JSON, latency, lost answers, the log of calls.

One thread a connection, kept alive between requests. Stopping closes every connection, also those of clients that wait
for a delayed answer. There is no TLS and no authentication: it is for the machine that it runs on.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

from provisioner.simulators.gke import api, errors, names, schema
from provisioner.simulators.gke.admin import PREFIX, Admin
from provisioner.simulators.gke.calls import Call, CallLog
from provisioner.simulators.gke.capacity import capacity_of, reservation_of
from provisioner.simulators.gke.faults import CALL_FAULTS, Fault, FaultKind, Target
from provisioner.simulators.gke.model import World
from provisioner.simulators.gke.timeline import Clock

_log = structlog.get_logger(__name__)

_MAX_BODY_BYTES = 4 * 1024 * 1024
_STOP_LOOK_SECONDS = 0.05
_ADMIN_METHOD = "simulator"


class DropConnectionError(Exception):
    """The answer is to be lost."""


class Server(ThreadingHTTPServer):
    """Listens, and hands requests to the API and to the simulator's own API."""

    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        *,
        make_api: Callable[[str], api.Api],
        world: World,
        calls: CallLog,
        clock: Clock,
    ) -> None:
        self.calls = calls
        self.clock = clock
        self.world = world
        self.stopping = threading.Event()
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(address, _Handler)
        self.api = make_api(self.address)
        self.admin = Admin(world, calls)

    @property
    def address(self) -> str:
        """HOST:PORT as clients reach it."""
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
        """Serve a connection, known to `stop` while it lasts."""
        with self._connections_lock:
            self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._connections_lock:
                self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as the base class has it
        """Log what went wrong in a request; clients that go away are part of every rehearsal of time-outs."""
        if not isinstance(sys.exception(), ConnectionError):
            _log.exception("request.failed", client=str(client_address))

    def listen(self) -> None:
        """Serve until stopped."""
        self.serve_forever(poll_interval=_STOP_LOOK_SECONDS)

    def stop(self) -> None:
        """Stop listening and cut all connections."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
        with self._connections_lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

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
        """Leave logging to the log of calls."""

    def _serve(self) -> None:
        began = time.monotonic()
        when = self.server.clock()
        address = urlsplit(self.path)
        path = unquote(address.path)
        method = _ADMIN_METHOD
        status = 0
        try:
            request = self._request(path, address.query)
            if path.startswith(PREFIX):
                status, body = 200, self._json(self.server.admin.handle(request))
            else:
                found = api.route(self.command, path)
                method = found.method
                status, body = self._call(found, request)
        except errors.ApiError as error:
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

    def _request(self, path: str, query: str) -> api.Request:
        body = self._body()
        return api.Request(
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
            raise errors.ApiError("INVALID_ARGUMENT", f"Content-Length {length!r} is not from 0 to {_MAX_BODY_BYTES}.")
        raw = self.rfile.read(int(length))
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError as error:
            raise errors.ApiError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from error

    def _call(self, found: api.Route, request: api.Request) -> tuple[int, bytes]:
        self._wait(self.server.world.settings.request_seconds)
        fault = self._fault_for(found, request)
        if fault is not None and fault.before_effect:
            self._strike(fault)
            if fault.kind is FaultKind.HTTP_ERROR:
                return self._broken_answer(fault)
        body = self.server.api.handle(found, request)
        if fault is not None and not fault.before_effect:
            self._strike(fault)
            if fault.kind is FaultKind.HTTP_ERROR:
                return self._broken_answer(fault)
        return 200, self._json(body)

    def _fault_for(self, found: api.Route, request: api.Request) -> Fault | None:
        return self.server.world.faults.take(CALL_FAULTS, self._target(found, request))

    def _target(self, found: api.Route, request: api.Request) -> Target:
        """Return the call, and the pool that it is about, as far as it shows."""
        if found.method == "nodePools.create":
            return self._target_of_create(found, request)
        pool = self.server.world.peek(found.cluster, found.pool) if found.pool else None
        if pool is None:
            return Target(method=found.method, pool=found.pool)
        return dataclasses.replace(pool.target, method=found.method)

    def _target_of_create(self, found: api.Route, request: api.Request) -> Target:
        try:
            sent = schema.read(schema.message("CreateNodePoolRequest"), request.body).get("nodePool", {})
        except errors.ApiError:
            return Target(method=found.method)
        return Target(
            method=found.method,
            pool=sent.get("name"),
            zones=sent.get("locations") or names.zones_of(found.parts["location"]),
            machine_type=sent.get("config", {}).get("machineType"),
            topology=self.server.world.asked_topology(found.cluster, sent),
            capacity=capacity_of(sent),
            reservation=reservation_of(sent),
        )

    def _strike(self, fault: Fault) -> None:
        if fault.kind is FaultKind.HANG:
            self._wait(fault.seconds)
        elif fault.code == 0:
            raise DropConnectionError

    def _broken_answer(self, fault: Fault) -> tuple[int, bytes]:
        if fault.body is not None:
            return fault.code, fault.body.encode()
        status = fault.status if fault.status != "INTERNAL" else None
        error = errors.of_http_code(fault.code, fault.message or "The service is currently unavailable.", status=status)
        return fault.code, self._json(self._error_body(error))

    def _wait(self, seconds: float) -> None:
        if seconds > 0 and self.server.stopping.wait(seconds):
            raise DropConnectionError

    def _error_body(self, error: errors.ApiError) -> dict[str, Any]:
        return errors.body_of(error, request_id=f"0x{secrets.randbits(64):x}")

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
