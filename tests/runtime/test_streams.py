"""Streams of server-sent events and pages of a product, over real sockets."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import pytest

from provisioner.runtime.http import HttpServer
from provisioner.runtime.pages import Content, Feed, Page, Stream
from provisioner.runtime.status import Probes, Scrapes, make_status_server
from tests.support.waiting import wait_for

_AT_ONCE = 3


class QueueFeed(Feed):
    """Sends what a test puts into its queue."""

    def __init__(self) -> None:
        self.texts: SimpleQueue[bytes] = SimpleQueue()
        self.broken = False

    def pending(self) -> bool:
        """Whether there is something."""
        return self.broken or not self.texts.empty()

    def read(self) -> bytes:
        """Return the next text."""
        if self.broken:
            raise RuntimeError("planted")
        try:
            return self.texts.get_nowait()
        except Empty:
            return b""


class Ground:
    """A server with a stream and a page."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0
        self.feeds: list[QueueFeed] = []
        self.queries: list[Mapping[str, str]] = []
        self.counting, self.entered, self.go_on = threading.Lock(), threading.Semaphore(0), threading.Event()
        self.working = self.most_working = 0
        self.server: HttpServer = make_status_server(
            "a-controller",
            Scrapes(address="0", exposition=bytes),
            Probes(
                address="127.0.0.1:0",
                alive=lambda: True,
                problems=tuple,
                pages=[Page(path="/", make=self._page), Page(path="/heavy", make=self._heavy)],
                streams=[Stream(path="/events", open=self._open, at_once=_AT_ONCE)],
            ),
            monotonic=lambda: time.monotonic() + self.ahead_seconds,
        )
        self.server.start()
        [self.port] = self.server.ports
        self.clients: list[socket.socket] = []

    def _page(self, query: Mapping[str, str]) -> Content:
        self.queries.append(query)
        return Content(body=b"<p>", media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": "x"})

    def _heavy(self, _query: Mapping[str, str]) -> Content:
        with self.counting:
            self.working += 1
            self.most_working = max(self.most_working, self.working)
            self.entered.release()
        self.go_on.wait(5)
        with self.counting:
            self.working -= 1
        return Content(body=b"heavy", media_type="text/plain")

    def _open(self, _query: Mapping[str, str]) -> Feed:
        self.feeds.append(QueueFeed())
        return self.feeds[-1]

    def follow(self) -> socket.socket:
        """Open the stream; return the connection."""
        client = socket.create_connection(("127.0.0.1", self.port), 10)
        client.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        self.clients.append(client)
        return client

    def get(self, path: str, method: str = "GET") -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of a page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def renewed(self) -> bool:
        """Whether all connections have nearly all of their time before them."""
        return all(each.deadline - each.config.monotonic() > 9 for each in self.server._connections())


@pytest.fixture
def ground() -> Iterator[Ground]:
    """Return a server, which ends with the test."""
    made = Ground()
    yield made
    for client in made.clients:
        client.close()
    made.server.stop()


def until(client: socket.socket, text: bytes) -> bytes:
    """Read until a text has come."""
    got = b""
    while text not in got:
        more = client.recv(65536)
        assert more, got
        got += more
    return got


def test_a_client_gets_each_event_when_it_happens(ground: Ground) -> None:
    """On one connection, as server-sent events."""
    client = ground.follow()
    head = until(client, b": alive")
    assert b"200 OK" in head
    assert b"content-type: text/event-stream" in head
    for text in (b"event: a\ndata: 1\n\n", b"event: b\ndata: 2\n\n"):
        ground.feeds[0].texts.put(text)
        until(client, text)


def test_a_stream_lasts_as_long_as_its_client_reads(ground: Ground) -> None:
    """The time for an answer is 10 s, and a stream has no end."""
    client = ground.follow()
    until(client, b": alive")
    for number in range(4):
        ground.ahead_seconds += 8
        wait_for(ground.renewed, what="the server looks at its connections")
        text = b"data: %d\n\n" % number
        ground.feeds[0].texts.put(text)
        until(client, text)


def test_a_client_that_does_not_read_is_cut(ground: Ground) -> None:
    """What it was sent must not stay in memory for ever."""
    client = ground.follow()
    until(client, b": alive")
    ground.feeds[0].texts.put(b"data: " + 30_000_000 * b"x" + b"\n\n")
    # Sent as far as the system's buffers take it; then nothing moves.
    wait_for(lambda: _stalled(ground), what="the connection stalls")
    ground.ahead_seconds += 60
    wait_for(lambda: not _connections(ground), what="the connection is cut")


def _connections(ground: Ground) -> list[object]:
    return list(ground.server._connections())


def _stalled(ground: Ground) -> bool:
    return any(each.transport.get_write_buffer_size() for each in ground.server._connections())


def test_too_many_streams_are_told_to_poll(ground: Ground) -> None:
    """Probes must still find a connection; the room of one that goes is free again."""
    clients = [ground.follow() for _ in range(_AT_ONCE)]
    for client in clients:
        until(client, b": alive")
    status, headers, _ = ground.get("/events")
    assert (status, headers["retry-after"]) == (503, "5")
    clients[0].close()

    def let_in() -> bool:
        client = ground.follow()
        return b"200 OK" in client.recv(64)

    wait_for(let_in, what="there is room again", seconds=3)


def test_a_feed_that_fails_ends_its_stream_and_nothing_else(ground: Ground) -> None:
    """The client tries again."""
    client = ground.follow()
    until(client, b": alive")
    ground.feeds[0].broken = True
    while client.recv(65536):
        pass
    assert ground.get("/healthz")[0] == 200


def test_stopping_does_not_wait_for_streams(ground: Ground) -> None:
    """They have no end of their own."""
    client = ground.follow()
    until(client, b": alive")
    ground.server.stop()
    assert client.recv(65536) == b""


def test_a_page_has_its_headers_and_gets_its_query(ground: Ground) -> None:
    """What a product adds to the probes."""
    status, headers, body = ground.get("/?namespace=a%20b")
    assert (status, body, headers["content-security-policy"]) == (200, b"<p>", "x")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert ground.queries == [{"namespace": "a b"}]
    assert ground.get("/nothing")[2] == b"not found; available: / /events /healthz /heavy /readyz\n"


def test_only_reading_is_served(ground: Ground) -> None:
    """Nothing can be changed here."""
    assert [ground.get(path, "POST")[0] for path in ("/", "/events")] == [405, 405]


def test_pages_are_created_one_at_a_time_and_probes_do_not_wait_for_them(ground: Ground) -> None:
    """Whoever asks from many connections gets one thread's share of the interpreter, not that of all."""

    def ask(path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", ground.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    with ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(ask, "/heavy") for _ in range(5)]
        assert ground.entered.acquire(timeout=5)
        assert not ground.entered.acquire(timeout=0.3)
        assert ask("/healthz") == b"ok\n"
        ground.go_on.set()
        assert {each.result(10) for each in asking} == {b"heavy"}
    assert ground.most_working == 1
