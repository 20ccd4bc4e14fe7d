"""Pages for scrapers and probes over real sockets."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.responses import Response

from provisioner.runtime.http import Address, HttpServer, ServerError, parse_address
from provisioner.runtime.resources import Page
from provisioner.runtime.status import make_status_server


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(":8080", Address("", 8080), id="every interface"),
        pytest.param("127.0.0.1:8080", Address("127.0.0.1", 8080), id="one address"),
        pytest.param("localhost:0", Address("localhost", 0), id="a name and any port"),
        pytest.param("[::1]:8080", Address("::1", 8080), id="an IPv6 address"),
        pytest.param("0", None, id="0 disables"),
        pytest.param("", None, id="nothing disables"),
    ],
)
def test_address_is_read_in_the_form_of_go(text: str, want: Address | None) -> None:
    assert parse_address(text) == want


@pytest.mark.parametrize(
    "text", ["8080", "host", "::1:8080", "h:99999", "h:-1", "h:http", "h:1:2", "*:80", "[::1]8080", "[]:1"]
)
def test_invalid_address_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ServerError, match="write") as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


Serve = Callable[..., HttpServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    started: list[HttpServer] = []

    def start(
        metrics_address: str = "127.0.0.1:0",
        probe_address: str = "127.0.0.1:0",
        *,
        exposition: Callable[[], bytes] = lambda: b"m 1\n",
        failures: Callable[[], Sequence[str]] = tuple,
        problems: Callable[[], Sequence[str]] = lambda: (),
        pages: Sequence[Page] = (),
    ) -> HttpServer:
        server = make_status_server(
            "a-controller",
            metrics=metrics_address,
            exposition=exposition,
            probes=probe_address,
            failures=failures,
            problems=problems,
            pages=pages,
        )
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


def ask(
    port: int, path: str, method: str = "GET", host: str = "127.0.0.1", headers: Any = None, **parts: Any
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=5, **parts)
    try:
        connection.request(method, path, body=b"x=1" if method == "POST" else None, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_one_address_has_all_pages(serve: Serve) -> None:
    server = serve()
    [port] = server.ports
    assert ask(port, "/metrics") == (200, "m 1\n")
    assert ask(port, "/healthz") == (200, "ok\n")
    assert ask(port, "/readyz?verbose") == (200, "ok\n")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        pytest.param("10.0.0.7:8081", True, id="the pod's address, as probes and scrapers use it"),
        pytest.param("[fd00::7]:8081", True, id="an IPv6 address"),
        pytest.param("[::1]", True, id="an IPv6 address without a port"),
        pytest.param("localhost:8081", True, id="a port that is forwarded"),
        pytest.param("LocalHost", True, id="in any case"),
        pytest.param("tpu-provisioner", True, id="a name without dots"),
        pytest.param("tpu-provisioner.tpu-provisioner-system.svc:8081", True, id="a Service"),
        pytest.param("tpu-provisioner.tpu-provisioner-system.svc.cluster.local.", True, id="a Service's whole name"),
        pytest.param("gke-0123.us-central2.gke.goog", True, id="through the API server's proxy of GKE"),
        pytest.param("attacker.example:8081", False, id="a public name"),
        pytest.param("localhost.attacker.example", False, id="a public name that begins like a known one"),
        pytest.param("x.svc.attacker.example:8081", False, id="a public name with svc in it"),
        pytest.param("127.0.0.1.attacker.example", False, id="a public name that begins like an address"),
    ],
)
def test_request_with_a_foreign_host_is_rejected(serve: Serve, host: str, *, known: bool) -> None:
    """A hostile web page could send requests under its own name (DNS rebinding)."""
    [port] = serve().ports
    for path in ("/metrics", "/readyz", "/nowhere"):
        status, body = ask(port, path, headers={"Host": host})
        assert (status != 421) is known
        assert ("have a reverse proxy set Host" in body) is not known


def test_request_without_a_host_is_answered(serve: Serve) -> None:
    """HTTP/1.0 requires no Host header, and browsers do not use HTTP/1.0."""
    [port] = serve().ports
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert connection.recv(100).split()[1] == b"200"


def test_two_addresses_have_separate_pages(serve: Serve) -> None:
    server = serve(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    metrics, probes = server.ports
    assert ask(metrics, "/metrics")[0] == 200
    assert ask(metrics, "/healthz") == (404, "not found; available: /metrics\n")
    assert ask(probes, "/readyz")[0] == 200
    assert ask(probes, "/healthz/")[0] == 404
    assert ask(probes, "/metrics") == (404, "not found; available: /healthz /readyz\n")


@pytest.mark.parametrize(
    ("metrics", "probes", "paths"),
    [
        pytest.param("0", "127.0.0.1:0", {"/healthz": 200, "/metrics": 404}, id="no metrics"),
        pytest.param("127.0.0.1:0", "0", {"/metrics": 200, "/healthz": 404}, id="no probes"),
    ],
)
def test_address_zero_is_not_served(serve: Serve, metrics: str, probes: str, paths: dict[str, int]) -> None:
    [port] = serve(metrics, probes).ports
    assert {path: ask(port, path)[0] for path in paths} == paths


def test_server_without_addresses_starts_and_stops(serve: Serve) -> None:
    assert serve("0", "0").ports == ()


def _fail() -> bytes:
    raise ZeroDivisionError


_NOT_READY = ["watch of pods: not synced", "cluster: not proven"]


@pytest.mark.parametrize(
    ("parts", "method", "path", "want"),
    [
        pytest.param(
            {"failures": lambda: ("the loop has stopped making rounds",)},
            "GET",
            "/healthz",
            (503, "the loop has stopped making rounds\n"),
            id="a loop that has stopped is not healthy, and may be ready",
        ),
        pytest.param(
            {"problems": lambda: _NOT_READY},
            "GET",
            "/readyz",
            (503, "watch of pods: not synced\ncluster: not proven\n"),
            id="a process that is not ready says why, line by line, and is healthy",
        ),
        pytest.param(
            {"exposition": _fail}, "GET", "/metrics", (500, "Internal Server Error"), id="what fails is a 500"
        ),
        pytest.param({}, "HEAD", "/metrics", (200, ""), id="HEAD answers as GET does, without the body"),
        pytest.param({}, "POST", "/metrics", (405, "Method Not Allowed"), id="nothing can be changed"),
    ],
)
def test_request_gets_its_response_and_the_server_continues(
    serve: Serve, parts: dict[str, Any], method: str, path: str, want: tuple[int, str]
) -> None:
    [port] = serve(**parts).ports
    assert ask(port, path, method) == want
    assert ask(port, "/readyz" if path == "/healthz" else "/healthz")[0] == 200


def test_pages_are_errors_only_while_no_thread_can_start(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = serve().ports

    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        assert {ask(port, "/metrics")[0] for _ in range(6)} == {500}
    assert ask(port, "/metrics")[0] == 200


def test_probes_need_no_thread(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequent probes should take little time of the interpreter."""
    [port] = serve(problems=lambda: ["cluster: not proven"]).ports

    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        assert ask(port, "/healthz") == (200, "ok\n")
        assert ask(port, "/readyz") == (503, "cluster: not proven\n")
        assert ask(port, "/healthz", "HEAD") == (200, "")


def test_port_in_use_is_named_and_other_ports_are_freed(serve: Serve) -> None:
    """The first port was opened before the second one failed, and must be closed again."""
    [taken] = serve().ports
    free = free_port()
    with pytest.raises(ServerError, match=f"'127.0.0.1:{taken}' is in use"):
        serve(f"127.0.0.1:{free}", f"127.0.0.1:{taken}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", free))


def test_address_of_another_machine_is_named_in_the_error(serve: Serve) -> None:
    with pytest.raises(ServerError, match=r"'192\.0\.2\.1:0' cannot be served"):
        serve("192.0.2.1:0", "0")


def test_empty_host_serves_ipv4_and_ipv6(serve: Serve) -> None:
    [port] = serve(":0", ":0").ports
    assert ask(port, "/healthz")[0] == 200
    if socket.has_dualstack_ipv6():
        try:
            assert ask(port, "/healthz", host="::1")[0] == 200
        except OSError:
            pytest.skip("no IPv6 loopback on this machine")


def test_slow_scrapes_do_not_block_probes_and_other_clients(serve: Serve) -> None:
    goes_on, entered = threading.Semaphore(0), threading.Event()

    def slow() -> bytes:
        entered.set()
        return b"late\n" if goes_on.acquire(timeout=10) else b""

    [port] = serve(exposition=slow).ports
    with ThreadPoolExecutor(9) as threads:
        waiting = [threads.submit(ask, port, "/metrics") for _ in range(8)]
        assert entered.wait(5)
        other = threads.submit(ask, port, "/metrics", source_address=("127.0.0.2", 0))
        assert ask(port, "/healthz")[0] == 200
        goes_on.release(4)
        assert other.result(5) == (200, "late\n")
        goes_on.release(5)
        assert {future.result(10) for future in waiting} == {(200, "late\n")}


_LARGE = b'{"a": "b"}' * 10_000
_HEADERS = {"Content-Security-Policy": "x", "ETag": 'W/"abc"'}


@pytest.fixture
def get(serve: Serve) -> Iterator[Callable[..., tuple[int, Mapping[str, str], bytes]]]:
    pages = [
        Page(path="/", make=lambda: Response(b"<p>", 200, _HEADERS, "text/html")),
        Page(path="/large", make=lambda: Response(_LARGE, media_type="application/json")),
    ]
    connection = http.client.HTTPConnection("127.0.0.1", serve("0", pages=pages).ports[0], timeout=10)

    def get(path: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    yield get
    connection.close()


def test_page_has_its_headers_with_any_query(get: Callable[..., Any]) -> None:
    status, headers, body = get("/?namespace=a%20b")
    assert (status, body, headers["content-security-policy"]) == (200, b"<p>", "x")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert get("/nothing")[2] == b"not found; available: / /healthz /large /readyz\n"


@pytest.mark.parametrize("has", ['W/"abc"', '"abc"', '"x", W/"abc"'])
def test_page_is_not_sent_to_a_client_that_has_it(get: Callable[..., Any], has: str) -> None:
    """Browsers revalidate each time, and reuse the connection."""
    for _ in range(2):
        status, headers, body = get("/", If_None_Match=has)
        assert (status, headers["etag"], body) == (304, 'W/"abc"', b"")


@pytest.mark.parametrize("has", ['"ab"', "", "W/", ",", '"abc'])
def test_page_is_sent_to_a_client_that_has_another_version(get: Callable[..., Any], has: str) -> None:
    """The client may have the page of the previous release, for example."""
    assert get("/", If_None_Match=has)[::2] == (200, b"<p>")


@pytest.mark.parametrize(
    ("takes", "coding"),
    [("gzip", "gzip"), ("br;q=1.0, GZIP;q=0.5", "gzip"), ("identity, br", None), ("", None)],
)
def test_large_page_is_compressed_if_the_client_accepts_that(
    get: Callable[..., Any], takes: str, coding: str | None
) -> None:
    """Megabytes of JSON take seconds over `kubectl port-forward`."""
    status, headers, body = get("/large", Accept_Encoding=takes)
    assert (status, headers.get("content-encoding"), headers["vary"]) == (200, coding, "Accept-Encoding")
    assert (gzip.decompress(body) if coding else body) == _LARGE
    assert int(headers["content-length"]) == len(body) <= len(_LARGE) / (50 if coding else 1)
    assert "content-encoding" not in get("/", Accept_Encoding=takes)[1]


def test_pages_are_created_one_at_a_time_without_delaying_probes(serve: Serve) -> None:
    """A client with many connections gets the processor time of one thread, not of one thread for each connection."""
    entered, go_on = threading.Semaphore(0), threading.Event()
    moments: list[float] = []

    def heavy() -> Response:
        moments.append(time.monotonic())
        entered.release()
        go_on.wait(5)
        moments.append(time.monotonic())
        return Response(b"heavy", media_type="text/plain")

    [port] = serve("0", pages=[Page(path="/heavy", make=heavy)]).ports
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, port, "/heavy") for _ in range(4)]
        assert entered.acquire(timeout=5)
        assert not entered.acquire(timeout=0.6)
        assert ask(port, "/healthz") == (200, "ok\n")
        go_on.set()
        assert {future.result(10) for future in asking} == {(200, "heavy")}
    # After the first page was created, the queue pauses for as long as this took, but at most for 0.5 s.
    assert moments[2] - moments[1] >= 0.45
