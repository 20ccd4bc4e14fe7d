"""A tiny Kubernetes API server that knows Nodes and nothing else, and can be away for a while."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.kubeconfig import write_kubeconfig
from tests.support.selectors import merged


class FakeKubeNodes:
    """Stores Nodes; while `away` it answers 503."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.away = False
        self.lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = fake.answer(self.command, self.path, body)
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - the base class names them so

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                fake.connections.add(request)
                super().process_request_thread(request, client_address)

        self.connections: set[Any] = set()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Return status and body."""
        parts = urlsplit(path)
        name, _, subresource = parts.path.removeprefix("/api/v1/nodes").strip("/").partition("/")
        with self.lock:
            self.calls.append((method, parts.path))
            if self.away:
                return 503, {"message": "away"}
            if method == "GET":
                label = parse_qs(parts.query)["labelSelector"][0]
                items = [node for node in self.nodes.values() if label in node["metadata"]["labels"]]
                return 200, {"metadata": {"resourceVersion": "1"}, "items": items}
            if method == "POST":
                name = body["metadata"]["name"]
                if name in self.nodes:
                    return 409, {"message": "exists"}
                self.nodes[name] = body
                return 201, self.nodes[name]
            if name not in self.nodes:
                return 404, {"message": "gone"}
            if method == "DELETE":
                return 200, self.nodes.pop(name)
            change = {"status": body["status"]} if subresource else body
            self.nodes[name] = merged(self.nodes[name], change)
            return 200, self.nodes[name]

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig that leads here."""
        return write_kubeconfig(folder / "kubeconfig", f"http://127.0.0.1:{self._server.server_port}")

    def stop(self) -> None:
        """Close it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.close()
