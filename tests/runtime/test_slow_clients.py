"""Slow, greedy and silent clients, over real sockets with small limits."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from provisioner.runtime.http import Limits
from provisioner.runtime.status import Probes, Scrapes, make_status_server

#: As long as a busy machine may take for anything.
_PATIENCE_SECONDS = 10.0


class Ground:
    """A server on one address, and its clients."""

    def __init__(self, limits: Limits, exposition: Callable[[], bytes]) -> None:
        self.clients: list[socket.socket] = []
        self.server = make_status_server(
            "a-controller",
            Scrapes(address="127.0.0.1:0", exposition=exposition),
            Probes(address="127.0.0.1:0", alive=lambda: True, problems=tuple),
            limits=limits,
        )
        #: Those of other servers in this process, which other tests share.
        self._threads_of_others = set(threading.enumerate())
        self.server.start()
        [self.port] = self.server.ports

    def connect(self, *, source: str = "127.0.0.1") -> socket.socket:
        """Open a connection."""
        client = socket.create_connection(("127.0.0.1", self.port), _PATIENCE_SECONDS, source_address=(source, 0))
        self.clients.append(client)
        return client

    def probe(self) -> int:
        """Return the status of a probe."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status
        finally:
            connection.close()

    def threads(self) -> int:
        """Return how many threads serve connections."""
        mine = set(threading.enumerate()) - self._threads_of_others
        return sum(each.name != "http" for each in mine)

    def held(self) -> int:
        """Return how many of the clients' connections the server has not ended."""
        return sum(not _ended_by_now(client) for client in self.clients)

    def end(self) -> None:
        """Close everything."""
        for client in self.clients:
            client.close()
        self.server.stop()


@pytest.fixture
def make() -> Iterator[Callable[..., Ground]]:
    """Return a function that makes grounds, which end with the test."""
    made: list[Ground] = []

    def ground(exposition: Callable[[], bytes] = lambda: b"m 1\n", **limits: float) -> Ground:
        made.append(Ground(Limits(**limits), exposition))  # type: ignore[arg-type]
        return made[-1]

    yield ground
    for each in made:
        each.end()


def _ended_by_now(client: socket.socket) -> bool:
    readable, _, _ = select.select([client], [], [], 0)
    try:
        return bool(readable) and client.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def ended(client: socket.socket) -> bool:
    """Wait until the server has ended a connection; False where it does not."""
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def healthy(client: socket.socket) -> bool:
    """Read the answer to a probe; it may come in pieces."""
    answer = b""
    while not answer.endswith(b"\r\n\r\nok\n"):
        piece = client.recv(65536)
        if not piece:
            return False
        answer += piece
    return answer.startswith(b"HTTP/1.1 200")


def test_silent_clients_hold_no_more_than_the_limit(make: Callable[..., Ground]) -> None:
    """Of a hundred connections that say nothing four are kept, and the probe is answered each time."""
    ground = make(connections=4, request_seconds=60.0)
    for number in range(100):
        ground.connect()
        if number % 10 == 0:
            assert ground.probe() == 200
    assert ground.threads() == 0
    assert ground.probe() == 200
    assert all(ended(client) for client in ground.clients[:96])
    # The last probe took the place of another one.
    assert 3 <= ground.held() <= 4


def test_who_asks_all_the_time_waits_and_others_do_not(make: Callable[..., Ground]) -> None:
    """Answers cost processor time; a connection that is new, as that of a probe, is answered at once."""
    ground = make(answers_per_second=0.0, answers_at_once=5)
    greedy = ground.connect()
    started = time.monotonic()
    greedy.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 9)
    answered = b""
    while answered.count(b"ok\n") < 6:
        answered += greedy.recv(65536)
    assert ground.probe() == 200
    while answered.count(b"ok\n") < 9:
        answered += greedy.recv(65536)
    # After the fifth three times a quarter of a second.
    assert time.monotonic() - started > 0.7


def test_the_greediest_client_gives_way(make: Callable[..., Ground]) -> None:
    """One who opens many connections cuts own ones, not the one that somebody else opened before."""
    ground = make(connections=4, request_seconds=60.0)
    patient = ground.connect()
    for _ in range(40):
        ground.connect(source="127.0.0.2")
    patient.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert patient.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(b"a", id="a request line"),
        pytest.param(b"GET /healthz HTTP/1.1\r\na:", id="headers"),
    ],
)
def test_the_whole_request_has_one_time(make: Callable[..., Ground], piece: bytes) -> None:
    """Bytes that come one by one, none of them late by itself, do not make it longer."""
    ground = make(request_seconds=0.3)
    client = ground.connect()
    started = time.monotonic()
    client.sendall(piece)
    over = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                client.sendall(b"a")

    thread = threading.Thread(target=trickle)
    thread.start()
    assert ended(client)
    over.set()
    thread.join(_PATIENCE_SECONDS)
    assert time.monotonic() - started < _PATIENCE_SECONDS / 2


def test_a_kept_connection_has_its_time_for_each_request(make: Callable[..., Ground]) -> None:
    """Not one time for all of them; one on which nothing is asked ends."""
    ground = make(request_seconds=0.5, idle_seconds=1)
    client, silent = ground.connect(), ground.connect()
    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert healthy(client)
    assert ended(silent)
    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert healthy(client)
    assert ended(client)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET /" + b"a" * 2000, id="a request line without an end"),
        pytest.param(b"GET / HTTP/1.1\r\na: " + b"a" * 2000, id="a header without an end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 90 + b"c: " + b"d" * 600, id="many headers"),
    ],
)
def test_a_request_that_is_too_long(make: Callable[..., Ground], request_: bytes) -> None:
    """It is refused, and its connection closed."""
    ground = make(header_bytes=1024)
    client = ground.connect()
    client.sendall(request_)
    assert client.recv(12) == b"HTTP/1.1 400"
    assert ended(client)
    assert ground.probe() == 200


def test_a_request_that_just_fits(make: Callable[..., Ground]) -> None:
    """Twice on one connection: the limit is for each."""
    ground = make(header_bytes=1024)
    client = ground.connect()
    for _ in range(2):
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\na: " + b"a" * 900 + b"\r\n\r\n")
        assert healthy(client)


def test_scrapes_that_hang_leave_room_for_probes(make: Callable[..., Ground]) -> None:
    """So many are made at once; more are told so."""
    release, entered = threading.Event(), threading.Semaphore(0)

    def hang() -> bytes:
        entered.release()
        release.wait(_PATIENCE_SECONDS)
        return b"late\n"

    ground = make(exposition=hang, connections=6, request_seconds=60.0)
    for _ in range(4):
        ground.connect().sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.acquire(timeout=_PATIENCE_SECONDS)
    fifth = ground.connect()
    fifth.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert fifth.recv(12) == b"HTTP/1.1 503"
    for _ in range(30):
        assert ground.probe() == 200
    release.set()
