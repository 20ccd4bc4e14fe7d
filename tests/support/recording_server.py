"""Small HTTP server that records requests and returns configured responses, byte for byte if a test needs that."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

#: Special lines of a stream: HANG keeps the connection open until the server ends, for at most 30 s; DROP closes it.
HANG = object()
DROP = object()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.path).query))


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `hang_up` closes the connection, `wait_for` delays the response, and `lines` replace `body`."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    wait_for: threading.Event | None = None
    lines: list[Any] | None = None


def google_error(code: int, status: str, message: str, *, reason: str = "", **extra: Any) -> Answer:
    error: dict[str, Any] = {"code": code, "message": message, "status": status, **extra}
    if reason:
        error["errors"] = [{"message": message, "domain": "global", "reason": reason}]
    return Answer(status=code, body={"error": error})


class RecordingServer:
    """Responds to every request with `answer`, an Answer or a function of the request."""

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self.answer: Answer | Callable[[Recorded], Answer] = Answer(body={})
        self.connections = 0
        self._ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            #: Nagle's algorithm would delay the body, which is written after the headers, by 40 ms.
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def answer_as_told(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                headers = {key.lower(): value for key, value in self.headers.items()}
                request = Recorded(self.command, self.path, headers, self.rfile.read(length))
                outer.requests.append(request)
                answer = outer.answer(request) if callable(outer.answer) else outer.answer
                if answer.wait_for is not None:
                    answer.wait_for.wait(10)
                if answer.hang_up:
                    self.close_connection = True
                    return
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                if answer.lines is not None:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    outer._stream(self, answer.lines)
                    return
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer_as_told  # noqa: N815 - names of http.server

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _stream(self, handler: BaseHTTPRequestHandler, lines: list[Any]) -> None:
        for line in lines:
            if line in (HANG, DROP):
                handler.wfile.flush()
                handler.close_connection = True
                if line is HANG:
                    self._ended.wait(30)
                return
            data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.write(b"0\r\n\r\n")
