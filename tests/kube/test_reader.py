"""Reads for an event loop, on the wire: connections that are kept, bounded and given up, each failure in our words."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from provisioner import __version__
from provisioner.admission.keys import load, make_keys
from provisioner.kube import errors, reader
from provisioner.kube.api import KubeApi, connect
from provisioner.kube.protocol import Timeouts
from provisioner.kube.reader import Direct, InThreads, Reader, reader_of
from tests.support.kube import FakeKube
from tests.support.kubeconfig import write_kubeconfig

PATH = "/apis/apps/v1/namespaces/ml/statefulsets/train"
LONG = Timeouts(connect_seconds=5.0, read_seconds=5.0)
SHORT = Timeouts(connect_seconds=0.3, read_seconds=0.3)
TRAIN = {"metadata": {"name": "train"}}


def answer(body: object = TRAIN, status: str = "200 OK", headers: str = "") -> bytes:
    """Return an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Server:
    """Answers the requests of each connection with what was written down for it; then it closes, or says nothing."""

    def __init__(self, *scripts: Sequence[bytes | None]) -> None:
        #: For each connection its answers; None: none ever. The last script stays.
        self._scripts = list(scripts)
        self.connections = 0
        self.open = 0
        self.requests: list[list[str]] = []
        self.url = ""

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
        """Serve."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.connections += 1
        self.open += 1
        try:
            for each in script:
                request = await source.readuntil(b"\r\n\r\n")
                self.requests.append(request.decode().split("\r\n"))
                if each is None:
                    await source.read()
                    return
                target.write(each)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self.open -= 1
            target.close()


def client(server: Server, folder: Path, **parts: Any) -> KubeApi:
    """Return a connection to a server by a kubeconfig."""
    return connect(str(write_kubeconfig(folder / "config", server.url, **parts)))


def play(server: Server, folder: Path, scene: Callable[[Direct], Awaitable[None]], **parts: Any) -> None:
    """Play a scene with a reader of a server."""

    async def run() -> None:
        async with server.running():
            direct = reader_of(client(server, folder, **parts))
            assert isinstance(direct, Direct)
            try:
                await scene(direct)
            finally:
                direct.close()
                await asyncio.sleep(0)

    asyncio.run(run())


async def read(direct: Reader, timeouts: Timeouts) -> tuple[Any, bool]:
    """Return what is read, and whether it is small."""
    found = await direct.read(PATH, timeouts)
    return found.load(), not found.large_bytes


def test_a_read_carries_credentials_and_a_name_and_keeps_its_connection(tmp_path: Path) -> None:
    """Three reads, one connection."""
    server = Server([answer(), answer(), answer()])

    async def scene(direct: Direct) -> None:
        for _ in range(3):
            assert await read(direct, LONG) == (TRAIN, True)

    play(server, tmp_path, scene, user={"token": "secret"})
    assert server.connections == 1
    line, *headers = server.requests[0]
    assert line == f"GET {PATH} HTTP/1.1"
    assert f"host: {server.url.removeprefix('http://')}" in headers
    assert "authorization: Bearer secret" in headers
    assert "accept: application/json" in headers
    assert f"user-agent: tpu-provisioner/{__version__}" in headers


def test_reads_at_once_have_connections_of_their_own_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for one that is free."""
    monkeypatch.setattr(reader, "_AT_ONCE", 4)
    server = Server([answer()] * 20)

    async def scene(direct: Direct) -> None:
        found = await asyncio.gather(*(read(direct, LONG) for _ in range(20)))
        assert found == [(TRAIN, True)] * 20

    play(server, tmp_path, scene)
    assert server.connections == 4
    assert len(server.requests) == 20


@pytest.mark.parametrize("kept", [1, 5])
def test_a_kept_connection_that_was_closed_meanwhile_costs_nothing(tmp_path: Path, kept: int) -> None:
    """The server closes after its last answer, and may do so just when the next request is on its way."""
    server = Server(*[[answer()]] * kept, [answer()] * 9)

    async def scene(direct: Direct) -> None:
        await asyncio.gather(*(direct.read(PATH, LONG) for _ in range(kept)))
        # It does not know yet that they are closed.
        assert len(direct._idle) == kept
        assert await read(direct, LONG) == (TRAIN, True)

    play(server, tmp_path, scene)
    assert server.connections == kept + 1


CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n'


@pytest.mark.parametrize(
    ("sent", "want", "again"),
    [
        pytest.param(CHUNKED, {"a": 1}, 1, id="in chunks"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(), TRAIN, 1, id="announced"),
        pytest.param(answer(headers="Connection: close\r\n"), TRAIN, 2, id="the last on its connection"),
        pytest.param(answer() + answer({"b": 2}), TRAIN, 2, id="with one that nobody asked for"),
        pytest.param(answer() + b"garbage", TRAIN, 2, id="with garbage behind it"),
        pytest.param(answer({"x": "y" * 100_000}), {"x": "y" * 100_000}, 1, id="large"),
        pytest.param(answer(b'{"a": "\\ud800", "b": NaN}'), None, 1, id="what only lenient readers take"),
    ],
)
def test_an_answer(tmp_path: Path, sent: bytes, want: Any, again: int) -> None:
    """It is read whole, and the next request is never given what came behind it."""
    server = Server([sent, answer()], [answer()])

    async def scene(direct: Direct) -> None:
        found = await direct.read(PATH, LONG)
        assert found.load()["a"] == "\ud800" if want is None else found.load() == want
        assert (not found.large_bytes) == (len(sent) < 1000)
        assert await read(direct, LONG) == (TRAIN, True)

    play(server, tmp_path, scene)
    assert server.connections == again


STATUS = {"kind": "Status", "message": "words of the server", "reason": "Why"}


@pytest.mark.parametrize(
    ("script", "want", "words"),
    [
        pytest.param([answer(STATUS, "404 Not Found")], errors.NotFound, "words of the server", id="not there"),
        pytest.param([answer(STATUS, "403 Forbidden")], errors.Forbidden, "words of the server", id="no right"),
        pytest.param([answer(b"", "502 Bad Gateway")], errors.Unavailable, "Bad Gateway", id="a proxy's error"),
        pytest.param([answer(b"", "302 Found")], errors.Unavailable, "Found", id="a redirect, not followed"),
        pytest.param([answer(b"<html>")], errors.Malformed, "is not JSON: '<html>'", id="not JSON"),
        pytest.param([answer([1])], errors.Malformed, "is not a JSON object", id="JSON of another type"),
        pytest.param([b"what?\r\n\r\n"], errors.Malformed, "no HTTP answer", id="not HTTP"),
        pytest.param([answer()[:-3]], errors.Unavailable, "closed the connection", id="an answer that breaks off"),
        pytest.param([b""], errors.Unavailable, "closed the connection", id="a server that hangs up"),
        pytest.param([None], errors.Unavailable, "did not answer within 0.3 s", id="a server that never answers"),
    ],
)
def test_a_failure_has_its_error(
    tmp_path: Path, script: list[bytes | None], want: type[errors.ClusterError], words: str
) -> None:
    """What was asked is in its words, where they are ours; the next read is one of its own."""
    server = Server(script, [answer()])

    async def scene(direct: Direct) -> None:
        with pytest.raises(want, match=words) as caught:
            await direct.read(PATH, SHORT if script == [None] else LONG)
        assert words == STATUS["message"] or PATH in str(caught.value) or want is errors.Malformed
        assert await read(direct, LONG) == (TRAIN, True)

    play(server, tmp_path, scene)


def test_a_large_answer_that_is_no_object_is_told_when_it_is_loaded(tmp_path: Path) -> None:
    """Nobody else waits while it is decoded."""
    server = Server([answer(b"[" + b"1," * 100_000), answer({"message": "x" * 100_000}, "403 Forbidden")])

    async def scene(direct: Direct) -> None:
        found = await direct.read(PATH, LONG)
        assert found.large_bytes
        with pytest.raises(errors.Malformed, match="is not JSON"):
            found.load()
        # What is refused is told at once, whatever its size.
        with pytest.raises(errors.Forbidden):
            await direct.read(PATH, LONG)

    play(server, tmp_path, scene)


def test_an_endless_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers: memory is bounded."""
    monkeypatch.setattr(reader, "ANSWER_BYTES", 100_000)
    server = Server([answer(b"x" * 200_000)])

    async def scene(direct: Direct) -> None:
        with pytest.raises(errors.TooLarge, match="more than 100,000 bytes"):
            await direct.read(PATH, LONG)

    play(server, tmp_path, scene)


def test_a_server_that_hangs_costs_its_time_only_once(tmp_path: Path) -> None:
    """Where one connection leads to nowhere, the kept ones may, too: the next read makes a new one."""
    server = Server([answer(), None], [answer(), None], [answer(), answer()])

    async def scene(direct: Direct) -> None:
        await asyncio.gather(*(direct.read(PATH, LONG) for _ in range(2)))
        with pytest.raises(errors.Unavailable):
            await direct.read(PATH, SHORT)
        assert await read(direct, SHORT) == (TRAIN, True)

    play(server, tmp_path, scene)
    assert server.connections == 3


def test_nobody_listens(tmp_path: Path) -> None:
    """It is named."""
    server = Server([])

    async def scene(_: Direct) -> None:
        """Only learn a port."""

    play(server, tmp_path, scene)
    api = client(server, tmp_path)
    with pytest.raises(errors.Unavailable, match="can't be reached: Connect"):
        asyncio.run(reader_of(api).read(PATH, SHORT))


@pytest.mark.parametrize(
    ("name", "trusted", "words"),
    [
        pytest.param("api.test", True, "", id="trusted"),
        pytest.param("other.test", True, "certificate", id="of another name"),
        pytest.param("api.test", False, "certificate", id="of another authority"),
    ],
)
def test_the_server_is_verified(tmp_path: Path, name: str, *, trusted: bool, words: str) -> None:
    """As by KubeApi: by the authority and the name of the kubeconfig."""
    now = datetime.now(UTC)
    keys, others = (make_keys(["api.test"], now=now, valid=timedelta(days=1)) for _ in range(2))
    authority = tmp_path / "ca.pem"
    authority.write_text((keys if trusted else others).authority_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, keys)
    server = Server([answer(), answer()])

    async def run() -> None:
        async with server.running(context):
            cluster = {"certificate-authority": str(authority), "tls-server-name": name}
            direct = reader_of(client(server, tmp_path, cluster=cluster))
            assert isinstance(direct, Direct)
            if words:
                with pytest.raises(errors.Unavailable, match=words):
                    await direct.read(PATH, LONG)
            else:
                assert await read(direct, LONG) == (TRAIN, True)
                assert await read(direct, LONG) == (TRAIN, True)
            direct.close()
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert server.connections == (0 if words else 1)


def test_a_proxy_needs_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3 knows how to speak with one."""
    server = Server([])
    server.url = "http://api.test"
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
    assert isinstance(reader_of(client(server, tmp_path)), InThreads)
    monkeypatch.setenv("NO_PROXY", "api.test")
    assert isinstance(reader_of(client(server, tmp_path)), Direct)


@pytest.mark.parametrize("in_cluster", [False, True])
def test_nobody_waits_while_credentials_are_renewed(tmp_path: Path, *, in_cluster: bool) -> None:
    """A program may do it, which takes its time; that of a service account only reads a file."""
    server = Server([answer()])
    renewed_in = []

    def renew(configuration: Any) -> None:
        renewed_in.append(threading.current_thread())
        configuration.api_key["BearerToken"] = "Bearer newer\n"

    async def run() -> None:
        async with server.running():
            api = client(server, tmp_path, user={"token": "secret"})
            api._configuration.refresh_api_key_hook = renew
            api._context_name = "in-cluster" if in_cluster else "here"
            direct = reader_of(api)
            assert isinstance(direct, Direct)
            await direct.read(PATH, LONG)
            direct.close()

    asyncio.run(run())
    assert "authorization: Bearer newer" in server.requests[0]
    assert (renewed_in[0] is threading.current_thread()) == in_cluster


def test_a_token_that_is_no_header_is_not_sent(tmp_path: Path) -> None:
    """Whatever is in a file of credentials: it makes no second header, and no second request."""
    server = Server([answer()])

    def renew(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = "Bearer a\r\nx: y"

    async def run() -> None:
        async with server.running():
            api = client(server, tmp_path, user={"token": "secret"})
            api._configuration.refresh_api_key_hook = renew
            with pytest.raises(errors.Unavailable, match="can't be sent"):
                await reader_of(api).read(PATH, LONG)

    asyncio.run(run())
    assert server.requests == []


def test_reads_in_threads(tmp_path: Path) -> None:
    """The same, of any Api."""
    kube = FakeKube()
    kube.put_object(PATH, TRAIN)
    in_threads = reader_of(kube)

    async def run() -> None:
        found = await in_threads.read(PATH, LONG)
        assert found.load()["metadata"]["name"] == "train"
        assert found.large_bytes
        with pytest.raises(errors.NotFound):
            await in_threads.read(f"{PATH}-2", LONG)

    asyncio.run(run())
    in_threads.close()
