"""Tests that a server cannot extend a call beyond its deadline by sending single bytes."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from provisioner.admission.keeper import make_keys
from provisioner.kube import errors
from provisioner.kube.api import KubeApi, connect
from provisioner.kube.protocol import Request, Timeouts
from tests.support.kubeconfig import write_kubeconfig

#: Serves one connection; the Event is set when the client has finished.
Talk = Callable[[socket.socket, threading.Event], object]
#: Time-outs whose sum, 0.6 s, limits each call.
TIMEOUTS = Timeouts(connect_seconds=0.2, read_seconds=0.4)
#: Interval in seconds between two bytes: well below each single time-out.
_INTERVAL_SECONDS = 0.05
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def _running(tmp_path: Path, talk: Talk, *, tls: bool) -> Iterator[KubeApi]:
    cluster: dict[str, Any] = {}
    context = None
    if tls:
        keys = make_keys(("localhost",), now=datetime.now(UTC), valid=timedelta(days=1))
        chain = tmp_path / "chain.pem"
        chain.write_text(keys.certificate_pem + keys.key_pem)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(chain)
        cluster = {"certificate-authority-data": base64.b64encode(keys.authority_pem.encode()).decode()}
    finished = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            try:
                if context is not None:
                    connection = context.wrap_socket(connection, server_side=True)
                talk(connection, finished)
            except OSError:
                # The client has closed the connection, as the test expects.
                pass
            finally:
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"{'https' if tls else 'http'}://localhost:{listener.getsockname()[1]}"
        api = connect(str(write_kubeconfig(tmp_path / "config", url, cluster=cluster)))
        yield api
        api.close()
        finished.set()
        thread.join(5)
        assert not thread.is_alive()


def _dripping(whole: bytes, rest: bytes) -> Talk:

    def talk(connection: socket.socket, finished: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(whole)
        for place in range(len(rest)):
            connection.sendall(rest[place : place + 1])
            finished.wait(_INTERVAL_SECONDS)

    return talk


_CALLS: dict[str, Callable[[KubeApi], object]] = {
    "read": lambda api: api.get("/x", timeouts=TIMEOUTS),
    "write": lambda api: api.post("/x", {}, timeouts=TIMEOUTS),
    "list": lambda api: api.list_page(Request("GET", "/x", timeouts=TIMEOUTS)),
    "watch": lambda api: api.stream("/x", {}, timeouts=TIMEOUTS),
}
_BODY, _PART = b"x" * 1000, b"1" * 1000


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("call", "talk"),
    [
        *(pytest.param(call, _dripping(b"", _HEAD + _BODY), id=f"headers of a {call}") for call in _CALLS),
        *(pytest.param(call, _dripping(_HEAD, _BODY), id=f"body of a {call}") for call in ("read", "write", "list")),
        pytest.param("read", _dripping(_CHUNKED, _PART), id="size of a chunk"),
    ],
)
def test_call_ends_at_its_deadline_while_bytes_arrive(tmp_path: Path, call: str, talk: Talk, *, tls: bool) -> None:
    """Each byte restarts the socket's time-out, so eight calls once blocked all slots of the webhook server."""
    with _running(tmp_path, talk, tls=tls) as api:
        began = time.monotonic()
        with pytest.raises(errors.Unavailable, match=r"did not answer within 0.2 s \(connect\) or 0.4 s \(read\)"):
            _CALLS[call](api)
        assert time.monotonic() - began < 2.0


def test_stream_lasts_longer_than_the_deadline_of_its_call(tmp_path: Path) -> None:
    """A watch lasts for up to 60 s, and a call only for the sum of its time-outs. The server ends each watch."""

    def talk(connection: socket.socket, finished: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for number in range(10):
            connection.sendall(b"%d\n" % number)
            finished.wait(0.1)

    with _running(tmp_path, talk, tls=False) as api, api.stream("/x", {}, timeouts=TIMEOUTS) as stream:
        assert list(stream) == [b"%d" % number for number in range(10)]
