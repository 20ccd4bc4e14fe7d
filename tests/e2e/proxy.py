"""A way to the API server on which answers get lost: items missing from lists, watches that fall silent.

It speaks plain HTTP to one client and uses an administrator's kubeconfig to go on. It forwards whole answers, and
watches line by line; it knows nothing of upgrades (exec, port-forward).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import queue
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.kubeconfig import write_kubeconfig

Hidden = Callable[[str, dict[str, Any]], bool]
#: Lists and reads are answered at once; a watch that says nothing for so long has ended without a word.
_UPSTREAM_SECONDS = 300.0
#: How soon a watch notices that it is to expire.
_LOOK_SECONDS = 0.2
_EXPIRED = {
    "type": "ERROR",
    "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410},
}


class Proxy:
    """Forwards what one kubeconfig may do; use it as a context."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        server = content["clusters"][0]["cluster"]
        user = content["users"][0]["user"]
        self._upstream = urlsplit(server["server"]).netloc
        self._tls = ssl.create_default_context(cadata=_decoded(server["certificate-authority-data"]).decode())
        # Certificates of a client are read from files only.
        with tempfile.TemporaryDirectory() as directory:
            certificate, key = Path(directory) / "certificate", Path(directory) / "key"
            certificate.write_bytes(_decoded(user["client-certificate-data"]))
            key.write_bytes(_decoded(user["client-key-data"]))
            self._tls.load_cert_chain(certificate, key)
        self._lock = threading.Lock()
        self._hidden: Hidden | None = None
        self._age = 0
        #: Lists that were answered with something left out.
        self.lists_cut = 0
        #: Set: watches are forwarded. Clear: they are held, open and silent.
        self._flowing = threading.Event()
        self._flowing.set()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._flowing.set()
        self.expire_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write the kubeconfig of the client."""
        host, port = self._server.server_address[:2]
        return write_kubeconfig(path, f"http://{host!s}:{port}")

    def hide(self, hidden: Hidden | None) -> None:
        """Leave out of lists and watches of whole collections what this says of a path and an item; None: nothing."""
        with self._lock:
            self._hidden = hidden

    def expire_watches(self) -> None:
        """Tell each watch that its resource version is too old, so that its client lists anew."""
        with self._lock:
            self._age += 1

    def hold_watches(self) -> None:
        """Let open watches, and those to come, fall silent: neither a line nor an end arrives any more."""
        self._flowing.clear()

    def let_watches_flow(self) -> None:
        """End the silence: what was held arrives."""
        self._flowing.set()

    # --- for the handler

    def connection(self) -> http.client.HTTPSConnection:
        """Return a new way to the API server."""
        return http.client.HTTPSConnection(self._upstream, context=self._tls, timeout=_UPSTREAM_SECONDS)

    def cut(self, path: str, body: bytes) -> bytes:
        """Return a list without what is hidden."""
        with self._lock:
            hidden = self._hidden
        if hidden is None:
            return body
        content = json.loads(body)
        kept = [item for item in content.get("items", ()) if not hidden(path, item)]
        if len(kept) == len(content.get("items", ())):
            return body
        with self._lock:
            self.lists_cut += 1
        return json.dumps({**content, "items": kept}).encode()

    def flow(self, path: str, lines: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
        """Hand out the lines of a watch as they may pass; None is its end."""
        age = self._age
        while True:
            self._flowing.wait()
            if self._age != age:
                yield json.dumps(_EXPIRED).encode() + b"\n"
                return
            try:
                line = lines.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            self._flowing.wait()
            if line is None:
                return
            if not self._hides(path, line):
                yield line

    def _hides(self, path: str, line: bytes) -> bool:
        """Whether a line would bring back what the list left out."""
        with self._lock:
            hidden = self._hidden
        if hidden is None:
            return False
        event = json.loads(line)
        return event["type"] in ("ADDED", "MODIFIED") and hidden(path, event["object"])


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def do_PUT(self) -> None:
        self._forward()

    def do_PATCH(self) -> None:
        self._forward()

    def do_DELETE(self) -> None:
        self._forward()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""

    def _forward(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length) if length else None
        passed = {name: self.headers[name] for name in ("Accept", "Content-Type") if name in self.headers}
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        connection = self.owner.connection()
        try:
            connection.request(self.command, self.path, body=sent, headers=passed)
            # Before the answer, which takes the socket from the connection where it has no known end.
            sock = connection.sock
            response = connection.getresponse()
            if "watch" in query and response.status == http.HTTPStatus.OK:
                self._stream(response, sock, address.path)
                return
            body = response.read()
        except OSError:
            self.close_connection = True
            return
        finally:
            connection.close()
        # A collection as a cache lists it; the pods of one node are a live look.
        if self.command == "GET" and "limit" in query and "spec.nodeName" not in address.query:
            body = self.owner.cut(address.path, body)
        self.send_response(response.status)
        self.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _stream(self, response: http.client.HTTPResponse, sock: socket.socket, path: str) -> None:
        self.close_connection = True
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_read_lines, args=(response, lines), daemon=True)
        reader.start()
        # The client may have gone.
        with contextlib.suppress(OSError):
            for line in self.owner.flow(path, lines):
                self.wfile.write(line)
                self.wfile.flush()
        # Wakes the reader.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        reader.join()


def _read_lines(response: http.client.HTTPResponse, lines: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        while line := response.readline():
            lines.put(line)
    lines.put(None)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)
