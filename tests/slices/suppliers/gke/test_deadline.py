"""Nothing is sent after its time, whatever was slow before it; over real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from google.auth import credentials as auth_credentials

from provisioner.google.deadline import Deadline, DeadlineAdapter, until
from provisioner.model.capacity import FailureKind, NodePoolRequest, Zone
from provisioner.model.capacity import PoolName as Name
from provisioner.runtime.authority import Authority
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError
from tests.support.clock import FakeClock
from tests.support.gke import CLUSTER_NAME
from tests.support.recording_server import Answer, RecordingServer

#: Long enough for a busy machine to connect to itself, short enough for a test.
SHORT_SECONDS = 0.4
REQUEST = NodePoolRequest(
    name=Name("js-0123456789"), zone=Zone("us-east5-b"), machine_type="ct6e-standard-1t", hosts=1, topology="1x1"
)


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    """Return a server that records."""
    with RecordingServer() as running:
        running.answer = Answer(body={"name": "operation-1"})
        yield running


def client_of(endpoint: str, **options: Any) -> GkeClient:
    """Return a client."""
    return GkeClient(CLUSTER_NAME, endpoint=endpoint, **options)


def kind_of_create(client: GkeClient) -> FailureKind | None:
    """Send a create and return what its failure means, None without one."""
    try:
        client.create_node_pool(REQUEST)
    except GkeError as error:
        return error.failure.kind
    finally:
        client.close()
    return None


@contextlib.contextmanager
def listening(behave: Callable[[socket.socket, threading.Event], None]) -> Iterator[tuple[int, list[bytes]]]:
    """Serve one connection as a test says; give the port, and what was received."""
    over = threading.Event()
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5)
                    behave(Recording(connection, received), over)  # type: ignore[arg-type]

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], received
        finally:
            over.set()
            with contextlib.suppress(OSError):
                # accept() returns when nobody connected.
                socket.create_connection(listener.getsockname(), 1).close()
            thread.join(10)


class Recording:
    """A socket that keeps what it receives."""

    def __init__(self, sock: socket.socket, received: list[bytes]) -> None:
        self._sock = sock
        self._received = received

    def recv(self, size: int) -> bytes:
        """Receive, and keep it."""
        data = self._sock.recv(size)
        self._received.append(data)
        return data

    def sendall(self, data: bytes) -> None:
        """Send."""
        self._sock.sendall(data)

    def shutdown(self, how: int) -> None:
        """Say that no more will come."""
        self._sock.shutdown(how)


def say_nothing(_: socket.socket, over: threading.Event) -> None:
    """Neither read nor answer."""
    over.wait(5)


def byte_by_byte(sock: socket.socket, over: threading.Event, head: bytes) -> None:
    """Answer for ever, one byte at a time, none of which is late by itself."""
    sock.recv(65536)
    sock.sendall(head)
    while not over.wait(SHORT_SECONDS / 8):
        sock.sendall(b"a")


# --- Before anything is sent ---


def test_a_name_that_resolves_too_late(server: RecordingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that takes longer than the create keeps it from being sent, though it answers in the end."""
    clock, real = FakeClock(), socket.getaddrinfo

    def slow(*arguments: Any, **options: Any) -> Any:
        clock.advance(12)
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert kind_of_create(client_of(server.url, monotonic=clock)) is FailureKind.UNAVAILABLE
    assert server.requests == []


def test_a_name_that_does_not_resolve(server: RecordingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as such, and had no effect."""

    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert kind_of_create(client_of(server.url)) is FailureKind.UNAVAILABLE


class Addresses:
    """A name with several addresses of which the first ones never answer."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, clock: FakeClock, server: RecordingServer, *, dead: int
    ) -> None:
        self.clock = clock
        self.waited: list[float] = []
        self.port = int(server.host.rpartition(":")[2])
        self.connect = socket.socket.connect
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{9 + number}", 1)) for number in range(dead)]
        found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", self.port)))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        # A bound method would not be given the socket.
        monkeypatch.setattr(socket.socket, "connect", lambda *given: self.try_to_connect(*given))  # noqa: PLW0108

    def try_to_connect(self, sock: socket.socket, address: Any) -> None:
        """Let the whole time pass for a dead address."""
        if address[1] == self.port:
            self.connect(sock, address)
            return
        self.waited.append(sock.gettimeout() or 0.0)
        self.clock.advance(sock.gettimeout() or 0.0)
        raise TimeoutError("timed out")


@pytest.mark.parametrize("dead", [1, 3, 9])
def test_an_address_that_answers_is_reached_in_time_behind_some_that_do_not(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    """Each address gets its share of the time, and no more than three seconds."""
    clock = FakeClock()
    started = clock()
    addresses = Addresses(monkeypatch, clock, server, dead=dead)
    assert kind_of_create(client_of(server.url, monotonic=clock)) is None
    assert clock() - started < 10
    assert max(addresses.waited) <= 3
    assert len(server.requests) == 1


def test_a_connection_that_stands_too_late(server: RecordingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is looked at after the last address too."""
    clock = FakeClock()
    Addresses(monkeypatch, clock, server, dead=0)
    connect = socket.socket.connect

    def slow(sock: socket.socket, address: Any) -> None:
        clock.advance(12)
        connect(sock, address)

    monkeypatch.setattr(socket.socket, "connect", slow)
    assert kind_of_create(client_of(server.url, monotonic=clock)) is FailureKind.UNAVAILABLE
    assert server.requests == []


def test_a_handshake_of_tls_that_hangs() -> None:
    """A peer that says nothing to our greeting got no request."""
    with listening(say_nothing) as (port, received):
        client = client_of(f"https://127.0.0.1:{port}", change_seconds=SHORT_SECONDS)
        assert kind_of_create(client) is FailureKind.UNAVAILABLE
    assert received == []


def test_a_proxy_that_answers_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that never quite answers holds the call no longer than its time, and got no request to pass on."""
    with listening(lambda sock, over: byte_by_byte(sock, over, b"HTTP/1.0 200 ")) as (port, received):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        client = client_of("https://gke.example.com", change_seconds=SHORT_SECONDS)
        assert kind_of_create(client) is FailureKind.UNAVAILABLE
    assert b"".join(received).startswith(b"CONNECT gke.example.com:443 ")
    assert b"nodePools" not in b"".join(received)


class TokenFrom(auth_credentials.Credentials):
    """Credentials that fetch their token with the request they are given."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def refresh(self, request: Any) -> None:
        """Fetch the token."""
        self.token = request(url=self.url, method="GET").data.decode()


def test_a_token_that_comes_byte_by_byte(server: RecordingServer) -> None:
    """A token server that never quite answers holds the call no longer than its time."""
    with listening(lambda sock, over: byte_by_byte(sock, over, b"HTTP/1.0 200 OK\r\n\r\n")) as (port, _):
        client = client_of(server.url, credentials=TokenFrom(f"http://127.0.0.1:{port}"), change_seconds=SHORT_SECONDS)
        assert kind_of_create(client) is FailureKind.UNAVAILABLE
    assert server.requests == []


def test_a_kept_connection_is_no_way_round_the_clock(server: RecordingServer) -> None:
    """A connection that stands already sends nothing after the time, either."""
    clock, session = FakeClock(), requests.Session()
    session.mount("http://", DeadlineAdapter(connections=1))
    with until(Deadline(clock() + 10.0, clock)):
        session.post(server.url)
        clock.advance(10.0)
        with pytest.raises(requests.ConnectTimeout, match="nothing was sent"):
            session.post(server.url)
    session.close()
    assert len(server.requests) == 1


def test_an_outer_deadline_is_not_put_off_by_an_inner_one(server: RecordingServer) -> None:
    """What is called within a call has no more time than that."""
    clock, session = FakeClock(), requests.Session()
    session.mount("http://", DeadlineAdapter(connections=1))
    with until(Deadline(clock() + 5.0, clock)), until(Deadline(clock() + 10.0, clock)):
        clock.advance(6.0)
        with pytest.raises(requests.ConnectTimeout):
            session.post(server.url)
    session.post(server.url)
    session.close()
    assert len(server.requests) == 1


# --- After something was sent ---


def test_a_body_that_nobody_takes(server: RecordingServer) -> None:
    """The sending of a body ends with the time, as an outcome that is not known."""
    with listening(say_nothing) as (port, _):
        client = client_of(f"http://127.0.0.1:{port}")
        with pytest.raises(requests.ConnectionError) as caught:
            client._session.request("POST", f"http://127.0.0.1:{port}", data=b"x" * 30_000_000, timeout=SHORT_SECONDS)
        client.close()
    assert not isinstance(caught.value, requests.ConnectTimeout)
    assert server.requests == []


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_an_answer_that_comes_byte_by_byte(head: bytes) -> None:
    """Its time is over when the time is over, and whether the create had its effect is not known."""
    with listening(lambda sock, over: byte_by_byte(sock, over, head)) as (port, received):
        client = client_of(f"http://127.0.0.1:{port}", change_seconds=SHORT_SECONDS)
        assert kind_of_create(client) is FailureKind.UNKNOWN_OUTCOME
    assert received[0].startswith(b"POST ")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(server: RecordingServer, code: int) -> None:
    """A create goes where it was sent, once."""
    server.answer = Answer(status=code, headers={"Location": f"{server.url}/elsewhere"}, body={})
    assert kind_of_create(client_of(server.url)) is FailureKind.UNAVAILABLE
    assert len(server.requests) == 1


# --- TLS and proxies that work ---


@pytest.fixture
def tls_server(server: RecordingServer, tmp_path: Path) -> tuple[int, Path]:
    """Let the server speak TLS as gke.example.com; return its port and the authority to trust."""
    authority = Authority("a test", now=datetime.now(UTC), valid=timedelta(days=1))
    chain, key = authority.server("gke", names=["gke.example.com"], addresses=["127.0.0.1"]).write(tmp_path, "tls")
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(authority.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    return int(server.host.rpartition(":")[2]), trusted


def test_calls_over_tls(server: RecordingServer, tls_server: tuple[int, Path]) -> None:
    """Two calls on one connection; a certificate of somebody else is refused, and nothing sent."""
    port, trusted = tls_server
    client = client_of(f"https://127.0.0.1:{port}")
    assert kind_of_create(client) is FailureKind.UNAVAILABLE
    assert server.requests == []
    client = client_of(f"https://127.0.0.1:{port}")
    client._session.verify = str(trusted)
    assert client.create_node_pool(REQUEST) == "operation-1"
    assert kind_of_create(client) is None
    assert len(server.requests) == 2


def test_a_call_over_tls_through_a_proxy(
    server: RecordingServer, tls_server: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is asked for a tunnel, and the certificate is that of the address behind it."""
    port, trusted = tls_server

    def tunnel(sock: socket.socket, over: threading.Event) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port), 5) as behind:
            back = threading.Thread(target=pass_on, args=(behind, sock))
            back.start()
            pass_on(sock, behind)
            back.join(10)

    with listening(tunnel) as (proxy, received):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{proxy}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted))
        assert kind_of_create(client_of("https://gke.example.com")) is None
    assert received[0].startswith(b"CONNECT gke.example.com:443 ")
    assert [one.method for one in server.requests] == ["POST"]


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Copy what comes until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
