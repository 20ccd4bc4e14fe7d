"""Slow, greedy and silent clients, over real sockets with small limits."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.serving import ASK, PATIENCE_SECONDS, Serve, connect, ends

Connect = Callable[..., socket.socket]


@pytest.fixture(name="connect")
def _connect() -> Iterator[Connect]:
    """Return a function that opens connections, which are closed with the test."""
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


def test_silent_clients_hold_no_more_than_the_limit(serve: Serve, connect: Connect) -> None:
    """Of a hundred connections that say nothing four are kept, and who asks is answered each time."""
    [port] = serve(connections=4, request_seconds=60.0).ports
    clients = []
    for number in range(100):
        clients.append(connect(port))
        if number % 10 == 0:
            assert asked(port)
    assert asked(port)
    assert all(ends(client) for client in clients[:96])
    # The last who asked took the place of another one.
    assert 3 <= sum(not _ended_by_now(client) for client in clients) <= 4


def test_who_asks_all_the_time_waits_and_others_do_not(serve: Serve, connect: Connect) -> None:
    """Answers cost processor time; a connection that is new, as that of a probe, is answered at once."""
    [port] = serve(answers_per_second=0.0, answers_at_once=5).ports
    greedy = connect(port)
    started = time.monotonic()
    greedy.sendall(ASK * 9)
    read = b""
    while read.count(b"hello") < 6:
        read += greedy.recv(65536)
    assert asked(port)
    while read.count(b"hello") < 9:
        read += greedy.recv(65536)
    # After the fifth three times a quarter of a second.
    assert time.monotonic() - started > 0.7


def test_the_greediest_client_gives_way(serve: Serve, connect: Connect) -> None:
    """One who opens many connections cuts own ones, not the one that somebody else opened before."""
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
def test_the_whole_request_has_one_time(serve: Serve, connect: Connect, piece: bytes) -> None:
    """Bytes that come one by one, none of them late by itself, do not make it longer."""
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


def test_a_kept_connection_has_its_time_for_each_request(serve: Serve, connect: Connect) -> None:
    """Not one time for all of them; one on which nothing is asked ends."""
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
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 90 + b"c: " + b"d" * 600, id="many headers"),
        pytest.param(ASK[:-2] + b"a: b\r\n" * 9000 + b"\r\n", id="more headers, all at once"),
    ],
)
def test_a_request_that_is_too_long(serve: Serve, connect: Connect, request_: bytes) -> None:
    """It is refused, and its connection closed."""
    [port] = serve(header_bytes=1024).ports
    client = connect(port)
    client.sendall(request_)
    assert client.recv(12) == b"HTTP/1.1 400"
    assert ends(client)
    assert asked(port)


def test_a_request_that_just_fits(serve: Serve, connect: Connect) -> None:
    """Twice on one connection: the limit is for each."""
    client = connect(serve(header_bytes=1024).ports[0])
    for _ in range(2):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"a" * 900 + b"\r\n\r\n")
        assert answered(client)
