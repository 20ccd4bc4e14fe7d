"""Slow, greedy and silent clients over real sockets, with small limits."""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from provisioner.runtime import http as http_server
from tests.support.serving import ASK, PATIENCE_SECONDS, Serve, connect, ends
from tests.support.waiting import wait_for

Connect = Callable[..., socket.socket]


@pytest.fixture(name="connect")
def _connect() -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:
        yield lambda port, **options: stack.enter_context(connect(port, **options))


def _ended_by_now(client: socket.socket) -> bool:
    readable, _, _ = select.select([client], [], [], 0)
    try:
        return bool(readable) and client.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def answered(client: socket.socket) -> bool:
    answer = b""
    while not answer.endswith(b"\r\n\r\nhello"):
        piece = client.recv(65536)
        if not piece:
            return False
        answer += piece
    return answer.startswith(b"HTTP/1.1 200")


def asked(port: int, *, source: str = "127.0.0.1") -> bool:
    with connect(port, source=source) as client:
        client.sendall(ASK)
        return answered(client)


def test_silent_connections_beyond_the_limit_are_closed(serve: Serve, connect: Connect) -> None:
    [port] = serve(connections=4, request_seconds=60.0).ports
    clients = []
    for number in range(100):
        clients.append(connect(port))
        if number % 10 == 0:
            assert asked(port)
    assert asked(port)
    assert all(ends(client) for client in clients[:96])
    # The last request may have replaced one silent connection.
    assert 3 <= sum(not _ended_by_now(client) for client in clients) <= 4


def test_requests_beyond_the_rate_wait(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection, such as that of a probe, is answered after one pause."""
    monkeypatch.setattr(http_server, "_BURST", 5)
    [port] = serve(answers_per_second=0.0).ports
    greedy = connect(port)
    started = time.monotonic()
    greedy.sendall(ASK * 9)
    read = b""
    while read.count(b"hello") < 6:
        read += greedy.recv(65536)
    assert asked(port)
    while read.count(b"hello") < 9:
        read += greedy.recv(65536)
    # The server makes at least three whole pauses of 0.25 s after the fifth request.
    assert time.monotonic() - started > 0.7


def test_client_with_the_most_connections_loses_its_oldest(serve: Serve, connect: Connect) -> None:
    """A client that opens many connections loses one of its own, not an older connection of another client."""
    [port] = serve(connections=4, request_seconds=60.0).ports
    patient = connect(port)
    for _ in range(40):
        connect(port, source="127.0.0.2")
    patient.sendall(ASK)
    assert answered(patient)


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(b"a", id="a request line"),
        pytest.param(b"GET / HTTP/1.1\r\na:", id="headers"),
    ],
)
def test_request_sent_byte_by_byte_ends_at_the_deadline(serve: Serve, connect: Connect, piece: bytes) -> None:
    """A client that sends byte by byte has no more time than any other client."""
    client = connect(serve(request_seconds=0.3).ports[0])
    started = time.monotonic()
    client.sendall(piece)
    over = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                client.sendall(b"a")

    thread = threading.Thread(target=trickle)
    thread.start()
    assert ends(client)
    over.set()
    thread.join(PATIENCE_SECONDS)
    assert time.monotonic() - started < PATIENCE_SECONDS / 2


def test_each_request_on_a_connection_has_its_own_deadline(serve: Serve, connect: Connect) -> None:
    """The deadline counts from the first byte of a request. A connection without a request is closed."""
    [port] = serve(request_seconds=0.5, idle_seconds=1).ports
    client, silent = connect(port), connect(port)
    client.sendall(ASK)
    assert answered(client)
    assert ends(silent)
    client.sendall(ASK)
    assert answered(client)
    assert ends(client)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET /" + b"a" * 2000, id="a request line without an end"),
        pytest.param(b"GET / HTTP/1.1\r\na: " + b"a" * 2000, id="a header without an end"),
        pytest.param(ASK[:-2] + b"a: b\r\n" * 9000 + b"\r\n", id="more headers, all at once"),
    ],
)
def test_head_that_is_too_long_is_rejected(serve: Serve, connect: Connect, request_: bytes) -> None:
    [port] = serve(header_bytes=1024).ports
    client = connect(port)
    client.sendall(request_)
    assert client.recv(12) == b"HTTP/1.1 400"
    assert ends(client)
    assert asked(port)


def test_head_of_the_maximum_size_is_accepted_repeatedly(serve: Serve, connect: Connect) -> None:
    client = connect(serve(header_bytes=1024).ports[0])
    for _ in range(2):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"a" * 900 + b"\r\n\r\n")
        assert answered(client)


def test_connection_that_its_client_resets_is_not_kept(serve: Serve, connect: Connect) -> None:
    """In the past, uvicorn's timer for idle connections kept such connections in memory."""
    server = serve(idle_seconds=60)
    client = connect(server.ports[0])
    client.sendall(ASK)
    assert answered(client)
    kept = weakref.ref(next(iter(server._servers[0].server_state.connections)))
    # With a linger time of zero, closing sends a reset.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    wait_for(lambda: gc.collect() >= 0 and kept() is None)
