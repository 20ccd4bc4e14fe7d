"""Streams of server-sent events and pages of a product, over real sockets."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

import pytest
from structlog.testing import capture_logs

from provisioner.runtime.http import HttpServer
from provisioner.runtime.pages import Content, Feed, Page, Stream
from provisioner.runtime.status import Probes, Scrapes, make_status_server
from tests.support.waiting import wait_for

_AT_ONCE = 3
_HEADERS = {"Content-Security-Policy": "x", "ETag": 'W/"abc"'}
_LARGE = b'{"a": "b"}' * 10_000


class QueueFeed(Feed):
    """Sends what a test puts into its queue."""

    def __init__(self) -> None:
        self.texts: SimpleQueue[bytes] = SimpleQueue()
        self.broken = False

    def pending(self) -> bool:
        """Whether there is something."""
        return self.broken or not self.texts.empty()

    def read(self) -> tuple[bytes, ...]:
        """Return the next text."""
        if self.broken:
            raise RuntimeError("planted")
        try:
            return (self.texts.get_nowait(),)
        except Empty:
            return ()


class Ground:
    """A server with a stream and a page."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0
        #: How often the server has asked for the time.
        self.asked = 0
        self.feeds: list[QueueFeed] = []
        #: What each feed begins with.
        self.greeting = b""
        self.counting, self.entered, self.go_on = threading.Lock(), threading.Semaphore(0), threading.Event()
        self.working = self.most_working = 0
        self.server: HttpServer = make_status_server(
            "a-controller",
            Scrapes(address="0", exposition=bytes),
            Probes(
                address="127.0.0.1:0",
                alive=lambda: True,
                problems=tuple,
                pages=[
                    Page(path="/", make=self._page),
                    Page(path="/heavy", make=self._heavy),
                    Page(path="/large", make=lambda: Content(body=_LARGE, media_type="application/json")),
                ],
                streams=[Stream(path="/events", open=self._open, at_once=_AT_ONCE)],
            ),
            monotonic=self._monotonic,
        )
        self.server.start()
        [self.port] = self.server.ports
        self.clients: list[socket.socket] = []

    def _monotonic(self) -> float:
        self.asked += 1
        return time.monotonic() + self.ahead_seconds

    def _page(self) -> Content:
        return Content(body=b"<p>", media_type="text/html; charset=utf-8", headers=_HEADERS)

    def _heavy(self) -> Content:
        with self.counting:
            self.working += 1
            self.most_working = max(self.most_working, self.working)
            self.entered.release()
        self.go_on.wait(5)
        with self.counting:
            self.working -= 1
        return Content(body=b"heavy", media_type="text/plain")

    def _open(self) -> Feed:
        feed = QueueFeed()
        if self.greeting:
            feed.texts.put(self.greeting)
        self.feeds.append(feed)
        return feed

    def follow(self) -> socket.socket:
        """Open the stream; return the connection."""
        client = socket.create_connection(("127.0.0.1", self.port), 10)
        client.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        self.clients.append(client)
        return client

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of a page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            asked = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=asked)
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


def test_a_client_that_reads_slowly_is_served(ground: Ground) -> None:
    """By a telephone, megabytes take longer than the time for an answer; meanwhile they are not copied for it."""
    client = socket.socket()
    client.settimeout(10)
    # What the system takes for it counts as read.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.connect(("127.0.0.1", ground.port))
    ground.clients.append(client)
    client.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
    until(client, b": alive")
    ground.feeds[0].texts.put(b"data: " + 16 * 2**20 * b"x" + b"\n\n")
    for _ in range(16):
        left = 2**20
        while left > 0:
            got = len(client.recv(left))
            assert got
            left -= got
        assert sum(each.transport.get_write_buffer_size() for each in ground.server._connections()) < 300_000
        ground.ahead_seconds += 1.5
        before = ground.asked
        wait_for(lambda asked=before: ground.asked >= asked + 2, what="the server looks at its connections")
    text = b"data: 2\n\n"
    ground.feeds[0].texts.put(text)
    until(client, text)


@pytest.mark.parametrize("body", ["content-length: 100000", "content-length: 3", "transfer-encoding: chunked"])
def test_a_stream_takes_no_body(ground: Ground, body: str) -> None:
    """It gets one answer, and nothing is logged: whoever sends many fills no log."""
    client = socket.create_connection(("127.0.0.1", ground.port), 10)
    with client, capture_logs() as lines:
        client.sendall(f"GET /events HTTP/1.1\r\nHost: x\r\n{body}\r\n\r\n".encode())
        answer = b""
        while more := client.recv(65536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 4")
    assert lines == []


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


def test_a_page_has_its_headers_whatever_the_query(ground: Ground) -> None:
    """What a product adds to the probes."""
    status, headers, body = ground.get("/?namespace=a%20b")
    assert (status, body, headers["content-security-policy"]) == (200, b"<p>", "x")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert ground.get("/nothing")[2] == b"not found; available: / /events /healthz /heavy /large /readyz\n"


@pytest.mark.parametrize("has", ['W/"abc"', '"abc"', '"x", W/"abc"'])
def test_a_client_that_has_a_page_is_not_sent_it_again(ground: Ground, has: str) -> None:
    """A browser asks each time, and on the same connection for what comes next."""
    connection = http.client.HTTPConnection("127.0.0.1", ground.port, timeout=10)
    for _ in range(2):
        connection.request("GET", "/", headers={"If-None-Match": has})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("ETag"), answer.read()) == (304, 'W/"abc"', b"")
    connection.close()


@pytest.mark.parametrize("has", ['"ab"', "", "W/", ",", '"abc'])
def test_a_client_that_has_another_page_is_sent_this_one(ground: Ground, has: str) -> None:
    """Such as that of the release before."""
    assert ground.get("/", If_None_Match=has)[::2] == (200, b"<p>")


@pytest.mark.parametrize(
    ("takes", "coding"),
    [
        ("gzip", "gzip"),
        ("br;q=1.0, GZIP;q=0.5", "gzip"),
        ("gzip;q=1", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.00", None),
        ("identity, br", None),
        ("", None),
    ],
)
def test_a_large_page_is_compressed_for_those_who_take_that(ground: Ground, takes: str, coding: str | None) -> None:
    """Megabytes of JSON over `kubectl port-forward` take seconds."""
    for _ in range(2):
        status, headers, body = ground.get("/large", Accept_Encoding=takes)
        assert (status, headers.get("content-encoding"), headers["vary"]) == (200, coding, "Accept-Encoding")
        assert (gzip.decompress(body) if coding else body) == _LARGE
        assert int(headers["content-length"]) == len(body) <= len(_LARGE) / (50 if coding else 1)
    assert "content-encoding" not in ground.get("/", Accept_Encoding=takes)[1]


def test_a_stream_is_compressed_and_each_event_comes_at_once(ground: Ground) -> None:
    """Clients that come at different times are sent the same parts."""
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", ground.port, timeout=10)
        connection.request("GET", "/events", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        assert answer.getheader("Content-Encoding") == "gzip"
        unpacker = zlib.decompressobj(31)
        for text in (b": alive\n\n", b"data: " + _LARGE + b"\n\n", b"data: 2\n\n"):
            if text[:1] != b":":
                ground.feeds[-1].texts.put(text)
            got = b""
            while got != text:
                more = unpacker.decompress(answer.read1(65536))
                got += more
                assert text.startswith(got)
        connection.close()


def test_the_head_of_a_stream_ends(ground: Ground) -> None:
    """It would hold a stream for ever, of which there are few."""
    for _ in range(_AT_ONCE + 1):
        status, headers, body = ground.get("/events", "HEAD")
        assert (status, headers["content-type"], body) == (200, "text/event-stream; charset=utf-8", b"")
    assert ground.feeds == []


def test_clients_that_come_and_go_leave_no_threads(ground: Ground) -> None:
    """While a page takes long: what nobody waits for any more is not begun."""
    ground.greeting = b"data: hello\n\n"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ground.get, "/heavy")
        assert ground.entered.acquire(timeout=5)
        before = threading.active_count()
        for number in range(1, 21):
            ground.follow()
            wait_for(lambda wanted=number: len(ground.feeds) == wanted, what="the stream begins")
            ground.clients.pop().close()
            wait_for(lambda: len(_connections(ground)) == 1, what="the server notices")
        assert threading.active_count() <= before
        ground.go_on.set()
        assert slow.result(10)[0] == 200
    client = ground.follow()
    until(client, ground.greeting)
    # What was waited for in vain was not read; of the last one the server may have heard too late.
    read = [not each.pending() for each in ground.feeds]
    assert not any(read[:19])
    assert read[20]


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
