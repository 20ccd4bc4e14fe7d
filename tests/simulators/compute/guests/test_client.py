"""Calls over TLS: whom a VM believes, and as whom it comes."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rehearsal.localcluster.credentials import Authority, write
from rehearsal.simulators.compute.guests.client import MERGE, Access, HttpsClient, ServerError


class Server:
    """A server with a certificate, which tells what it saw of its client."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        seen: list[dict[str, Any]] = []
        self.seen = seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                certificate = self.connection.getpeercert()  # type: ignore[attr-defined]
                seen.append(
                    {
                        "port": self.client_address[1],
                        "token": self.headers.get("Authorization"),
                        "type": self.headers.get("Content-Type"),
                        "subject": certificate["subject"][0][0][1] if certificate else None,
                        "body": json.loads(body) if body else None,
                    }
                )
                status, text = {
                    "/ok": (200, b'{"answer": 1}'),
                    "/refused": (403, b'{"message": "no right"}'),
                    "/broken": (200, b"<html>"),
                    "/list": (200, b"[]"),
                }[self.path]
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_PATCH = _serve  # noqa: N815 - the base class names them so

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        class Quiet(HTTPServer):
            def handle_error(self, *_: object) -> None:
                """Keep quiet: clients refuse this server on purpose."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served = authority.server_at("server", names=(), addresses=("127.0.0.1",))
        context.load_cert_chain(*write(served, folder, "server"))
        context.load_verify_locations(cadata=authority.certificate_pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        """Close it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def authority() -> Authority:
    """Give an authority."""
    return Authority("kubernetes", now=datetime.now(UTC), valid=timedelta(days=1))


@pytest.fixture
def server(authority: Authority, tmp_path: Path) -> Iterator[Server]:
    """Give a server that it has signed for."""
    server = Server(authority, tmp_path)
    yield server
    server.close()


def test_a_kubelet_comes_with_its_certificate_on_one_connection(server: Server, authority: Authority) -> None:
    """Which stays open."""
    pair = authority.client("system:node:a")
    pem = authority.certificate_pem.decode()
    access = Access(
        host="127.0.0.1",
        port=server.port,
        authority_pem=pem,
        certificate_pem=pair.certificate_pem,
        key_pem=pair.key_pem,
    )
    client = HttpsClient(access)
    assert client.call("GET", "/ok") == {"answer": 1}
    assert client.call("PATCH", "/ok", {"a": 1}, content_type=MERGE) == {"answer": 1}
    client.close()
    assert [(each["subject"], each["type"], each["body"]) for each in server.seen] == [
        ("system:node:a", None, None),
        ("system:node:a", MERGE, {"a": 1}),
    ]
    assert len({each["port"] for each in server.seen}) == 1


def test_whom_nobody_has_vouched_for_is_believed_only_where_that_is_asked_for(server: Server) -> None:
    """For the one read that proves itself; no token goes along with it."""
    anyone = HttpsClient(Access(host="127.0.0.1", port=server.port))
    assert anyone.call("GET", "/ok") == {"answer": 1}
    anyone.close()
    assert server.seen[0]["token"] is None
    other = Authority("other", now=datetime.now(UTC), valid=timedelta(days=1)).certificate_pem.decode()
    careful = HttpsClient(Access(host="127.0.0.1", port=server.port, authority_pem=other, token="abc"))
    with pytest.raises(ServerError, match="SSLCertVerificationError") as caught:
        careful.call("GET", "/ok")
    assert caught.value.status == 0
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        pytest.param("/refused", 403, "403: no right", id="a refusal"),
        pytest.param("/broken", 0, "JSONDecodeError", id="no JSON"),
        pytest.param("/list", 200, "no reason given", id="no object"),
    ],
)
def test_a_refusal_has_its_status(server: Server, authority: Authority, path: str, status: int, words: str) -> None:
    """And what cannot be read is no answer."""
    pem = authority.certificate_pem.decode()
    client = HttpsClient(Access(host="127.0.0.1", port=server.port, authority_pem=pem, token="abc"))
    with pytest.raises(ServerError, match=words) as caught:
        client.call("GET", path)
    client.close()
    assert caught.value.status == status
    assert server.seen[0]["token"] == "Bearer abc"
