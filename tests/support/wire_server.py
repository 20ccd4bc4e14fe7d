"""A tiny HTTP server that answers exactly what a test wrote down, byte for byte if need be."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

#: Lines of a stream: wait until the test ends, or cut the connection without the end of the body.
HANG = object()
DROP = object()


@dataclass(kw_only=True)
class Answer:
    """One response; `lines` make it a chunked stream."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    lines: list[Any] | None = None


@dataclass(kw_only=True)
class Request:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class WireServer:
    """Answers are taken from a queue for "METHOD path" ("WATCH path" for watches); the last one stays."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.arrived = threading.Condition()
        self.ended = threading.Event()
        self._answers: dict[str, deque[Answer]] = defaultdict(deque)
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                wire.handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - names of http.server

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name of http.server
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.02), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, what: str, *answers: Answer) -> None:
        """Queue answers for "METHOD path"."""
        self._answers[what].extend(answers)

    def of(self, what: str) -> list[Request]:
        """Return the requests of one "METHOD path" so far."""
        return [request for request in list(self.requests) if _what(request) == what]

    def wait_for(self, what: str, count: int, *, timeout_seconds: float = 5.0) -> bool:
        """Wait until so many requests of one kind have come."""
        with self.arrived:
            return self.arrived.wait_for(lambda: len(self.of(what)) >= count, timeout=timeout_seconds)

    def close(self) -> None:
        """End everything, hanging streams too."""
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        url = urlsplit(handler.path)
        length = int(handler.headers.get("content-length") or 0)
        data = handler.rfile.read(length)
        request = Request(
            method=handler.command,
            path=url.path,
            query=dict(parse_qsl(url.query)),
            headers={name.lower(): value for name, value in handler.headers.items()},
            body=json.loads(data) if data else None,
        )
        queue = self._answers[_what(request)]
        answer = (queue.popleft() if len(queue) > 1 else queue[0]) if queue else Answer(status=404)
        with self.arrived:
            self.requests.append(request)
            self.arrived.notify_all()
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        if answer.lines is None:
            handler.send_header("content-length", str(len(answer.body)))
            handler.end_headers()
            handler.wfile.write(answer.body)
            return
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        self._stream(handler, answer.lines)

    def _stream(self, handler: BaseHTTPRequestHandler, lines: list[Any]) -> None:
        for line in lines:
            if line is HANG:
                handler.wfile.flush()
                self.ended.wait(30)
                handler.close_connection = True
                return
            if line is DROP:
                handler.wfile.flush()
                handler.close_connection = True
                return
            data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.write(b"0\r\n\r\n")


def _what(request: Request) -> str:
    return f"{'WATCH' if 'watch' in request.query else request.method} {request.path}"


def as_json(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(status=status, body=json.dumps(body).encode(), headers=headers or {})


@contextmanager
def running() -> Iterator[WireServer]:
    """Run a server for the length of a block."""
    server = WireServer()
    try:
        yield server
    finally:
        server.close()
