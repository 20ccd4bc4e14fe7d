"""TLS over real sockets: handshakes that do not end, certificates that change, and clients without TLS."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from provisioner.admission.files import server_context
from provisioner.admission.keeper import load, make_keys
from provisioner.admission.rotation import Keys
from provisioner.runtime.http import HttpServer
from tests.support.serving import ASK, Serve, connect, ends


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


def test_request_together_with_the_end_of_the_handshake_is_answered(serve: Serve, keys: Keys):
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
        # The end of the handshake and the request are sent together.
        plain.sendall(outgoing.read())
        text = b""
        while b"hello" not in text:
            try:
                text += client.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(65536))


def test_new_certificate_is_served_from_the_next_connection_on(
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
        replaced = threads.submit(lambda: [load(context, pair) for pair in (keys, new) * 200])
        while not replaced.done():
            with contextlib.suppress(ssl.SSLCertVerificationError):
                encrypted(server, new).close()


def test_oldest_handshake_beyond_the_maximum_ends(serve: Serve, keys: Keys):
    """Each handshake takes 0.3 MiB, so silent connections could fill the memory."""
    server = serve(connections=2, request_seconds=30.0)
    with encrypted(server, keys) as connection, connect(server.ports[0]) as first, connect(server.ports[0]):
        with encrypted(server, keys) as late:
            assert ends(first)
            assert ask(late) == "hello"
        assert ask(connection) == "hello"


def test_http_without_tls_ends_the_connection(serve: Serve, keys: Keys):
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


def test_stop_ends_all_connections(serve: Serve, keys: Keys):
    server = serve(request_seconds=30.0, idle_seconds=30)
    with encrypted(server, keys) as connection, connect(server.ports[0]) as silent:
        assert ask(connection) == "hello"
        server.stop()
        assert ends(connection)
        assert ends(silent)


def test_drain_closes_each_connection_with_its_next_response(serve: Serve, keys: Keys):
    server = serve()
    with encrypted(server, keys) as connection:
        assert ask(connection) == "hello"
        server.drain()
        # uvicorn updates its headers, such as `Connection: close`, only once a second.
        time.sleep(1.2)
        assert ask(connection) == "hello"
        assert ends(connection)
    with encrypted(server, keys) as connection:
        assert ask(connection) == "hello"
        assert ends(connection)
