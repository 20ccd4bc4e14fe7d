"""TLS: handshakes that never end, certificates that change, clients that speak something else, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import struct
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from benchmarks.admitting import write_kubeconfig
from benchmarks.webhook_server import HOST, webhook_server
from provisioner.admission.files import server_context
from provisioner.admission.keeper import load, make_keys
from provisioner.admission.rotation import Keys
from provisioner.runtime.http import HttpServer
from tests.support.serving import ASK, Serve, connect, ends
from tests.support.waiting import wait_for


def make() -> Keys:
    return make_keys(["server.test"], now=datetime.now(UTC), valid=timedelta(days=1))


@pytest.fixture(scope="module")
def keys() -> Keys:
    return make()


@pytest.fixture
def context(keys: Keys) -> ssl.SSLContext:
    found = server_context()
    load(found, keys)
    return found


@pytest.fixture(name="serve")
def _serve(serve: Serve, context: ssl.SSLContext) -> Serve:
    return partial(serve, tls=context)


def trusting(keys: Keys) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=keys.authority_pem)


def encrypted(server: HttpServer, keys: Keys, source: str = "127.0.0.1") -> ssl.SSLSocket:
    return trusting(keys).wrap_socket(connect(server.ports[0], source=source), server_hostname="server.test")


def ask(connection: ssl.SSLSocket) -> str:
    connection.sendall(ASK)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.read().decode()


def test_a_request_that_comes_with_the_end_of_the_handshake_is_not_lost(serve: Serve, keys: Keys):
    server = serve()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(keys).wrap_bio(incoming, outgoing, server_hostname="server.test")
    with connect(server.ports[0]) as plain:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(65536))
        client.write(ASK)
        # The end of the handshake and the request in one piece.
        plain.sendall(outgoing.read())
        text = b""
        while b"hello" not in text:
            try:
                text += client.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(65536))


def test_a_new_certificate_of_any_kind_of_key_is_served_from_the_next_connection_on(
    serve: Serve, keys: Keys, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("provisioner.runtime.authority.new_key", lambda: rsa.generate_private_key(65537, 2048))
    server, new = serve(), make()
    with encrypted(server, keys) as before:
        assert ask(before) == "hello"
        load(context, new)
        with encrypted(server, new) as after:
            assert ask(after) == "hello"
        assert ask(before) == "hello"
        with pytest.raises(ssl.SSLCertVerificationError):
            encrypted(server, keys)
    with ThreadPoolExecutor(1) as threads:
        replaced = threads.submit(lambda: [load(context, each) for each in (keys, new) * 200])
        while not replaced.done():
            with contextlib.suppress(ssl.SSLCertVerificationError):
                encrypted(server, new).close()


@pytest.mark.parametrize("begins", [True, False])
def test_a_handshake_that_never_ends_is_cut(serve: Serve, keys: Keys, *, begins: bool):
    server = serve(request_seconds=0.3)
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting(keys).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="server.test").do_handshake()
    with connect(server.ports[0]) as plain:
        plain.sendall(outgoing.read() if begins else b"")
        assert ends(plain)


def test_a_client_that_goes_in_the_middle_of_the_handshake_is_forgotten(serve: Serve, keys: Keys):
    server = serve(request_seconds=30.0)
    with connect(server.ports[0]):
        wait_for(lambda: len(server._servers[0].open) == 1)
    wait_for(lambda: not server._servers[0].open)
    with encrypted(server, keys) as connection:
        assert ask(connection) == "hello"


def test_http_without_tls_is_no_handshake(serve: Serve, keys: Keys):
    server = serve()
    with connect(server.ports[0]) as plain, encrypted(server, keys) as connection:
        plain.sendall(ASK)
        assert ends(plain)
        assert ask(connection) == "hello"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_rejected(serve: Serve, keys: Keys):
    old = trusting(keys)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with connect(serve().ports[0]) as plain, pytest.raises((ssl.SSLError, ConnectionResetError)):
        old.wrap_socket(plain, server_hostname="server.test")


def test_a_connection_may_rest_longer_than_a_request_may_take(serve: Serve, keys: Keys):
    server = serve(request_seconds=0.3, idle_seconds=30)
    with encrypted(server, keys) as connection, encrypted(server, keys) as other:
        assert ask(connection) == "hello"
        # Its own time has begun later.
        assert ends(other)
        assert ask(connection) == "hello"
        # What is begun has to end in time.
        connection.sendall(ASK[:10])
        assert ends(connection)


def test_a_server_that_stops_ends_all_connections(serve: Serve, keys: Keys):
    server = serve(request_seconds=30.0, idle_seconds=30)
    with encrypted(server, keys) as connection, connect(server.ports[0]) as silent:
        assert ask(connection) == "hello"
        server.stop()
        assert ends(connection)
        assert ends(silent)


def test_a_server_that_drains_answers_and_closes(serve: Serve, keys: Keys):
    server = serve()
    with encrypted(server, keys) as connection:
        assert ask(connection) == "hello"
        server.drain()
        assert ask(connection) == "hello"
        assert ends(connection)
    with encrypted(server, keys) as connection:
        assert ask(connection) == "hello"


def sent(server: HttpServer, keys: Keys, source: str, size: int, *, of: int) -> ssl.SSLSocket:
    """Send a part of a body."""
    connection = encrypted(server, keys, source)
    with contextlib.suppress(OSError):
        # The server may cut it meanwhile.
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % of + b"x" * size)
    return connection


def test_whoever_sends_the_most_loses_it_where_all_together_sent_too_much(serve: Serve, keys: Keys):
    """Bodies that never end take no more memory than the limit, and cost others none of theirs."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        await PlainTextResponse(str(len(body)))(scope, receive, send)

    server = serve(read, body_bytes=2_000_000, held_bytes=1_000_000, connections=64, request_seconds=30.0)
    modest = sent(server, keys, "127.0.0.1", 150_000, of=200_000)
    # Five bytes let OpenSSL take 180 KB: so much counts a handshake, whatever was sent.
    silent = [connect(server.ports[0], source="127.0.0.3") for _ in range(10)]
    assert ends(silent[0])
    for each in silent:
        each.close()
    greedy = [sent(server, keys, "127.0.0.2", 200_000, of=1_900_000) for _ in range(20)]
    wait_for(lambda: len(server._servers[0].open) <= 6)
    # And one handshake.
    assert 0 < sum(each.held for each in server._servers[0].open) <= 1_200_000
    modest.sendall(b"x" * 50_000)
    answer = http.client.HTTPResponse(modest)
    answer.begin()
    assert answer.read() == b"200000"
    for each in (modest, *greedy):
        each.close()


def test_a_connection_that_is_over_is_over_whatever_the_client_does(serve: Serve, keys: Keys):
    """Both stayed uncounted, with their memory: one that resets, and one that does not answer the end of TLS."""
    server = serve(request_seconds=0.3, idle_seconds=60)
    [state] = server._servers
    with encrypted(server, keys) as connection:
        assert ask(connection) == "hello"
        gone = weakref.ref(next(iter(state.open)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with encrypted(server, keys) as connection:
        wait_for(lambda: gone() is None)
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n")
        wait_for(lambda: state.server_state.connections)
        wait_for(lambda: not state.server_state.connections)


def test_what_the_server_does_not_read_and_the_client_does_not_take_is_little(serve: Serve, keys: Keys):
    """Five hundred such clients held 400 MiB."""

    async def long(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(4000):
            await send({"type": "http.response.body", "body": b"x" * 4096, "more_body": True})

    server = serve(long, request_seconds=30.0)
    with encrypted(server, keys) as connection:
        connection.settimeout(1)
        with contextlib.suppress(TimeoutError):
            connection.sendall(ASK * 300_000)
        [held] = server._servers[0].open
        assert 0 < held.transport.get_write_buffer_size() < 64 * 1024
        assert 0 < held.transport._ssl_protocol._incoming.pending < 64 * 1024  # type: ignore[attr-defined]


@pytest.mark.timeout(60)  # A process, and 4,000 connections.
def test_handshakes_that_never_begin_take_little_memory_and_keep_nobody_out(tmp_path: Path):
    """Eight times five hundred silent connections; each held 300 KiB, most of which never came back."""
    write_kubeconfig(tmp_path / "kubeconfig", 1)
    with webhook_server(tmp_path, tmp_path / "kubeconfig") as server:

        def served() -> bool:
            # Answered after all that were there before it have been accepted.
            with (
                socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
                ssl.create_default_context(cadata=server.authority_pem).wrap_socket(plain, server_hostname=HOST) as it,
            ):
                return "webhook" in ask(it)

        assert served()
        before = server.values().memory_bytes
        for _ in range(8):
            silent = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(500)]
            assert served()
            assert server.values().memory_bytes - before < 64 * 2**20
            for each in silent:
                each.close()
