"""The HTTP server with small apps, over real sockets: hostile clients, failing apps, starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import socket
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from provisioner.runtime import http as http_server
from provisioner.runtime import logs
from provisioner.runtime.http import Address, HttpServer, Limits, ServerError, _Connection, _make_server
from tests.support.serving import ASK, PATIENCE_SECONDS, Serve, connect, hello, read_all
from tests.support.waiting import wait_for


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


ECHO = Starlette(routes=[Route("/", echo, methods=["POST"])])


def answer(port: int, request: bytes, *, half_close: bool = False) -> bytes:
    with connect(port) as client:
        client.sendall(request)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        return read_all(client)


def test_response_has_server_and_date_headers(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server replaces uvicorn's Server header, and ignores environment variables of uvicorn."""
    monkeypatch.setenv("WEB_CONCURRENCY", "many")
    [port] = serve().ports
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.read() == b"hello"
    assert response.getheader("Server") == "a-server"
    assert response.getheader("Date", "").endswith("GMT")
    connection.close()


def test_two_apps_are_served_by_one_thread(serve: Serve) -> None:
    before = set(threading.enumerate())
    first, second = serve(hello, ECHO).ports
    assert len(set(threading.enumerate()) - before) == 1
    assert b"hello" in answer(first, b"GET / HTTP/1.0\r\n\r\n")
    with socket.create_connection(("127.0.0.2", second), PATIENCE_SECONDS) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 405"


_SIZED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: "
_CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 200, 400, id="a TLS hello"),
        pytest.param(b"GET\r\n\r\n", 400, id="no HTTP version"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="bytes that are not ASCII"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, id="a space behind a header's name"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost:" + b"\t " * 17 + b"x\r\n\r\n",
            400,
            id="many spaces, which h11 may split in each way",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nHost:" + b"a" * 16384 + b"\r\n\r\n", 400, id="long headers"),
        pytest.param(_SIZED + b"+2\r\n\r\nab", 400, id="a size with a sign"),
        pytest.param(_SIZED + b"99999999999999999999999\r\n\r\n", 400, id="a size that no number holds"),
        pytest.param(_SIZED + b"5\r\nContent-Length: 6\r\n\r\n", 400, id="two sizes of one body"),
        pytest.param(_SIZED + b"101\r\n\r\n", 413, id="a long body, declared"),
        pytest.param(_CHUNKED + b"1\r\na\r\n0\r\n\r\n", 411, id="a body in chunks, which may be of one byte each"),
    ],
)
def test_bad_request_is_rejected(serve: Serve, capfd: pytest.CaptureFixture[str], request_: bytes, status: int) -> None:
    [port] = serve(ECHO, body_bytes=100).ports
    capfd.readouterr()
    with capture_logs() as lines:
        answered = answer(port, request_)
    assert answered.startswith(f"HTTP/1.1 {status} ".encode())
    assert answered.count(b"HTTP/1.1") == 1
    assert lines == []
    # A body of the maximum size is read.
    assert answer(port, b"POST / HTTP/1.0\r\nContent-Length: 100\r\n\r\n" + b"a" * 100).endswith(b"\r\n\r\n100")
    assert capfd.readouterr() == ("", "")


def test_total_size_of_large_bodies_is_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_HELD_BYTES", 250_000)
    [port] = serve(ECHO, body_bytes=100_000).ports
    large = _SIZED + b"100000\r\nConnection: close\r\n\r\n"
    with connect(port) as first, connect(port) as second:
        for client in (first, second):
            client.sendall(large)
        answers = [answer(port, large), answer(port, _SIZED + b"2\r\nConnection: close\r\n\r\nab")]
        assert [response[9:12] for response in answers] == [b"503", b"200"]
        first.sendall(b"a" * 100_000)
        assert read_all(first).endswith(b"100000")
    # The bytes reserved for a request are released after its response, and when its connection ends.
    wait_for(lambda: answer(port, large + b"a" * 100_000).endswith(b"100000"))


_PIPELINED = (
    _SIZED
    + b"4\r\n\r\n\r\n\r\n"
    + _SIZED
    + b"0\r\n\r\n"
    + _SIZED
    + b"38\r\n\r\n"
    + b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
    + b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"
    + b"GET / HTTP/1.1\r\n\r\n"
)


@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(1, len(_PIPELINED) - 1)))
def test_pipelined_requests_are_separated_at_any_cut(cuts: set[int]) -> None:
    """A body that looks like a request is read as a body. Bytes after the last request are ignored."""

    async def play() -> bytes:
        written = Written()
        connection = make_connection(Limits())
        connection.connection_made(written)
        bounds = [0, *sorted(cuts), len(_PIPELINED)]
        for begin, end in pairwise(bounds):
            connection.data_received(_PIPELINED[begin:end])
            if end % 3 == 0:
                await asyncio.sleep(0)
        await written.closed.wait()
        return bytes(written.data)

    answered = asyncio.run(play())
    bodies = [response.partition(b"\r\n\r\n")[2] for response in answered.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"4", b"0", b"38", b"3"]


_FRAGMENTS = [
    *(b"GET", b"POST", b"HEAD", b"CONNECT", b" ", b"/", b"*", b"http://x/", b"/%zz?a=b#c"),
    *(b" HTTP/1.1", b" HTTP/1.0", b" HTTP/9.9", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"\xff", b":"),
    *(b"Host: x", b"host:y", b"Content-Length: 3", b"Content-Length: -1", b"Content-Length: 3, 3"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", b"Connection: close", b"Connection: upgrade"),
    *(b"Upgrade: websocket", b"Expect: 100-continue", b"3\r\nabc\r\n", b"0\r\n\r\n", b"abc", b"a" * 300),
    *(ASK, _CHUNKED, _PIPELINED),
]


@given(pieces=st.lists(st.sampled_from(_FRAGMENTS), max_size=14), cut=st.integers(1, 400))
def test_any_bytes_raise_no_exception_and_keep_no_task(pieces: list[bytes], cut: int) -> None:
    """If a response says that it closes the connection, it is the last response."""
    sent = b"".join(pieces)

    async def play() -> bytes:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        written = Written()
        connection = make_connection(Limits(header_bytes=500))
        connection.connection_made(written)
        for begin in range(0, len(sent), cut):
            connection.data_received(sent[begin : begin + cut])
            await asyncio.sleep(0)
        for _ in range(60):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not failures
        assert not connection.server_state.tasks
        return bytes(written.data)

    answered = asyncio.run(play())
    heads = answered.split(b"HTTP/1.1 ")[1:]
    ends = [number for number, head in enumerate(heads) if b"connection: close" in head]
    assert ends in ([], [len(heads) - 1])


def make_connection(limits: Limits) -> _Connection:
    server = _make_server(ECHO, "a-server", limits, None, {})
    server.config.load()
    return _Connection(limits, {}, config=server.config, server_state=server.server_state, app_state={})


class Written(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.closed = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def close(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.closed.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        """Do nothing: no data are read from this transport."""

    def resume_reading(self) -> None:
        """Do nothing: no data are read from this transport."""


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", _SIZED + b"3\r\n\r\na"], ids=["nothing", "half a request", "half a body"]
)
def test_client_that_closes_before_its_request_gets_no_response(serve: Serve, sent: bytes) -> None:
    """The client closes its sending half before the request is complete, which causes no log line."""
    [port] = serve(ECHO, request_seconds=60.0).ports
    with capture_logs() as lines:
        assert answer(port, sent, half_close=True) == b""
    assert lines == []


def test_at_most_two_responses_are_created_for_a_client_that_does_not_read(serve: Serve) -> None:
    made = 0

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal made
        made += 1
        await Response(b"x" * 20_000_000)(scope, receive, send)

    server = serve(large, request_seconds=0.5, idle_seconds=1)
    [port] = server.ports
    with connect(port) as client:
        client.sendall(ASK * 1000)
        wait_for(lambda: made)
        pause = threading.Event()
        assert any(not server._servers[0].server_state.connections or pause.wait(0.05) for _ in range(200))
        with contextlib.suppress(ConnectionResetError):
            assert len(read_all(client)) < 20_000_000
    # The second response waits until the first is read.
    assert made == 2


def test_error_of_an_app_is_a_500_and_one_log_line(serve: Serve) -> None:
    async def fail(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ZeroDivisionError

    [port] = serve(fail).ports
    with capture_logs() as lines:
        answered = answer(port, b"GET /a HTTP/1.0\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 500 ")
    assert answered.endswith(b"Internal Server Error")
    assert [(line["event"], line["path"]) for line in lines] == [("http_request.failed", "/a")]


def test_every_log_line_is_in_json(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of level debug, and of the start and stop of the server, are included."""
    logs.configure("debug", force_json=True)
    server = serve()
    [port] = server.ports
    answer(port, ASK + b"garbage\r\n\r\n")
    server.stop()
    written, errors = capsys.readouterr()
    assert errors == ""
    assert {json.loads(line)["event"] for line in written.splitlines()} == {"http_server.started"}


def test_stop_does_not_wait_for_clients_or_apps(serve: Serve) -> None:
    """`stop` ends an app that hangs, a client that does not read, and a silent client within its time-out."""
    entered = threading.Event()

    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/large":
            await Response(b"x" * 20_000_000)(scope, receive, send)
            return
        entered.set()
        await asyncio.Event().wait()

    server = serve(hang, request_seconds=60.0)
    clients = [connect(server.ports[0]) for _ in range(3)]
    clients[1].sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    clients[2].sendall(ASK)
    assert entered.wait(PATIENCE_SECONDS)
    server.stop()
    for client in clients:
        with contextlib.suppress(ConnectionResetError):
            read_all(client)
        client.close()


@pytest.mark.timeout(30)  # six servers, each of which takes time to end
def test_stopped_servers_leave_no_thread_and_no_socket(serve: Serve) -> None:
    def once() -> None:
        server = serve()
        answer(server.ports[0], ASK, half_close=True)
        server.stop()

    once()
    gc.collect()
    # Threads of other tests may end at the same time, so only new threads count.
    threads, descriptors = set(threading.enumerate()), len([*Path("/proc/self/fd").iterdir()])
    for _ in range(5):
        once()
    gc.collect()
    assert set(threading.enumerate()) - threads == set()
    assert len([*Path("/proc/self/fd").iterdir()]) <= descriptors


def test_host_that_is_too_long_is_named_in_the_error() -> None:
    """Python raises UnicodeError, not OSError, for a label of more than 63 characters."""
    host = "a" * 64
    with pytest.raises(ServerError, match=f"'{host}:0' cannot be served"):
        HttpServer({Address(host, 0): hello}, name="a-server").start()
