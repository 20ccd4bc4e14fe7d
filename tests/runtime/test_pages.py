"""Pages of a product, over real sockets."""

from __future__ import annotations

import gzip
import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from provisioner.runtime.http import HttpServer
from provisioner.runtime.pages import Content, Page
from provisioner.runtime.status import Probes, Scrapes, make_status_server

_HEADERS = {"Content-Security-Policy": "x", "ETag": 'W/"abc"'}
_LARGE = b'{"a": "b"}' * 10_000


class Ground:
    """A server with pages."""

    def __init__(self) -> None:
        self.counting, self.entered, self.go_on = threading.Lock(), threading.Semaphore(0), threading.Event()
        self.working = self.most_working = 0
        self.begins: list[float] = []
        self.ends: list[float] = []
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
            ),
        )
        self.server.start()
        [self.port] = self.server.ports

    def _page(self) -> Content:
        return Content(body=b"<p>", media_type="text/html; charset=utf-8", headers=_HEADERS)

    def _heavy(self) -> Content:
        with self.counting:
            self.working += 1
            self.most_working = max(self.most_working, self.working)
            self.begins.append(time.monotonic())
            self.entered.release()
        self.go_on.wait(5)
        with self.counting:
            self.ends.append(time.monotonic())
            self.working -= 1
        return Content(body=b"heavy", media_type="text/plain")

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


@pytest.fixture
def ground() -> Iterator[Ground]:
    """Return a server, which ends with the test."""
    made = Ground()
    yield made
    made.server.stop()


def test_a_page_has_its_headers_whatever_the_query(ground: Ground) -> None:
    """What a product adds to the probes."""
    status, headers, body = ground.get("/?namespace=a%20b")
    assert (status, body, headers["content-security-policy"]) == (200, b"<p>", "x")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert ground.get("/nothing")[2] == b"not found; available: / /healthz /heavy /large /readyz\n"


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
        assert not ground.entered.acquire(timeout=0.6)
        assert ask("/healthz") == b"ok\n"
        ground.go_on.set()
        assert {each.result(10) for each in asking} == {b"heavy"}
    assert ground.most_working == 1
    # As much time passes after the first as it took, half a second at most.
    assert ground.begins[1] - ground.ends[0] >= 0.45
