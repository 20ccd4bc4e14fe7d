"""Read single objects for an event loop: what `KubeApi.get` does in a thread, at a tenth of its processor time.

Reads are sent over connections of their own that are kept, within bounds on their number and time, and without
urllib3. Where that takes what only `KubeApi` knows, such as a proxy, its own calls are made in threads.

What is not promised: that a read is sent once. One that was sent over a kept connection which ended before any of its
answer came is sent again; reading twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

import httptools
import msgspec

from provisioner.kube import errors
from provisioner.kube.api import KubeApi
from provisioner.kube.protocol import ANSWER_BYTES, Api, JsonObject, Timeouts
from provisioner.kube.route import Route
from provisioner.kube.wire import decode_object, error_of

#: Connections, or threads, at once: far more than a process can use, and few enough that the largest objects fit.
_AT_ONCE = 16
#: Larger answers take more than a millisecond to decode, and decoded up to thirty times their size.
_LARGE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An object, as it was after it had been asked for."""

    #: Decodes it, unless it is already; raises ClusterError.
    load: Callable[[], JsonObject]
    #: What it holds until it is loaded, and best one is loaded at a time; 0: it is small and decoded, and whatever
    #: reads all of it takes no time.
    large_bytes: int = 0


class Reader(Protocol):
    """Reads objects; used from one event loop."""

    async def read(self, path: str, timeouts: Timeouts) -> Read:
        """Return one object. Raises ClusterError."""

    def close(self) -> None:
        """End all connections; called in the event loop."""


def reader_of(api: Api) -> Reader:
    """Return what reads from an API server, in the cheapest way that it allows."""
    route = api.route() if isinstance(api, KubeApi) else None
    return InThreads(api) if route is None else Direct(route)


class InThreads:
    """Reads by an `Api`, in threads."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="reader")

    async def read(self, path: str, timeouts: Timeouts) -> Read:
        """Return one object."""
        get = partial(self._api.get, path, timeouts=timeouts)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, get)
        # Nobody has counted its bytes.
        return Read(load=lambda: found, large_bytes=_LARGE_BYTES)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)


class Direct:
    """Reads over connections of its own."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._places = asyncio.Semaphore(_AT_ONCE)
        #: The last is used first, so that the API server ends what is not needed any more.
        self._idle: list[_Connection] = []

    async def read(self, path: str, timeouts: Timeouts) -> Read:
        """Return one object."""
        what = f"GET {path}"
        async with self._places:
            answer = await self._exchange(what, path, timeouts)
        body = bytes(answer.body)
        if not 200 <= answer.status < 300:
            raise error_of(what, answer, body)
        if len(body) > _LARGE_BYTES:
            return Read(load=lambda: _decoded(what, body), large_bytes=len(body))
        found = _decoded(what, body)
        return Read(load=lambda: found)

    def close(self) -> None:
        """End the connections that nobody uses."""
        while self._idle:
            self._idle.pop().end()

    async def _exchange(self, what: str, path: str, timeouts: Timeouts) -> _Answer:
        renewing = self._route.headers_take_time
        request = await asyncio.to_thread(self._request, path) if renewing else self._request(path)
        while True:
            connection = self._kept()
            is_new = connection is None
            connection = connection or await self._connect(what, timeouts.connect_seconds)
            try:
                async with asyncio.timeout(timeouts.read_seconds):
                    answer = await connection.ask(request)
            except TimeoutError as error:
                connection.end()
                # The others may lead to nowhere, too: whatever is between may have forgotten them without a word.
                self.close()
                raise errors.Unavailable(
                    f"{what}: {self._route.server} did not answer within {timeouts.read_seconds:g} s"
                ) from error
            except _Ended as error:
                if not is_new and not error.answering:
                    continue
                raise errors.Unavailable(f"{what}: {self._route.server} can't be reached: {error}") from error
            except BaseException:
                connection.end()
                raise
            if answer.keeps:
                self._idle.append(connection)
            else:
                connection.end()
            return answer

    def _request(self, path: str) -> bytes:
        lines = [f"GET {self._route.prefix}{path} HTTP/1.1", f"host: {self._route.authority}"]
        lines += [f"{name}: {value}" for name, value in self._route.headers(path).items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise errors.Unavailable(f"the credentials for {self._route.server} can't be sent in a header")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace")

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
        return None

    async def _connect(self, what: str, seconds: float) -> _Connection:
        route = self._route
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection,
                    route.host,
                    route.port,
                    ssl=route.tls,
                    server_hostname=route.server_hostname if route.tls is not None else None,
                )
        except TimeoutError as error:
            raise errors.Unavailable(f"{what}: {route.server} can't be reached within {seconds:g} s") from error
        except OSError as error:
            # Also ssl.SSLError.
            raise errors.Unavailable(f"{what}: {route.server} can't be reached: {_plain(error)}") from error
        connection.set_options(route.socket_options)
        return connection


@dataclass(slots=True, kw_only=True)
class _Answer:
    """An answer, as far as it has come."""

    status: int = 0
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    #: Whether its connection can be used again.
    keeps: bool = False


class _Ended(Exception):  # noqa: N818 - it names what happened
    """A connection ended before its answer did."""

    def __init__(self, text: str, *, answering: bool) -> None:
        super().__init__(text)
        #: Something of the answer had come.
        self.answering = answering


class _Connection(asyncio.Protocol):
    """One connection to the API server: one request at a time."""

    _transport: asyncio.Transport
    _asked: asyncio.Future[_Answer] | None = None
    _answering = False
    _answer: _Answer

    def ask(self, request: bytes) -> asyncio.Future[_Answer]:
        """Send a request; the answer raises _Ended or ClusterError."""
        asked = self._asked = asyncio.get_running_loop().create_future()
        self._answering = False
        if not self.is_open():
            self._fail(_Ended("the connection was closed", answering=False))
        else:
            self._transport.write(request)
        return asked

    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return not self._transport.is_closing()

    def set_options(self, options: Iterable[tuple[int, int, int | bytes]]) -> None:
        """Set what the system is to do about it."""
        for level, name, value in options:
            self._transport.get_extra_info("socket").setsockopt(level, name, value)

    def end(self) -> None:
        """Close it now."""
        self._asked = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._asked is None:
            # Nothing was asked: whatever it is, what comes next could not be told from an answer.
            self._transport.abort()
            return
        self._answering = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            what = cause if isinstance(cause, errors.ClusterError) else errors.Malformed(f"no HTTP answer: {error}")
            self._fail(what)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        self._fail(_Ended(_plain(exc) if exc is not None else "it closed the connection", answering=self._answering))

    # What the parser tells.

    def on_message_begin(self) -> None:
        """Begin with an answer, unless nothing was asked."""
        if self._asked is None:
            raise ValueError
        self._answer = _Answer()

    def on_status(self, reason: bytes) -> None:
        """Keep the words of the status."""
        self._answer.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        self._answer.body += piece
        if len(self._answer.body) > ANSWER_BYTES:
            raise errors.TooLarge(f"the answer has more than {ANSWER_BYTES:,} bytes")

    def on_message_complete(self) -> None:
        """Hand the answer over, unless it only announces one."""
        status = self._parser.get_status_code()
        asked, answer = self._asked, self._answer
        if status < 200 or asked is None:
            return
        answer.status, answer.keeps = status, self._parser.should_keep_alive()
        self._asked = None
        if not asked.done():
            asked.set_result(answer)

    def _fail(self, error: Exception) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(error)
        self._transport.abort()


def _decoded(what: str, body: bytes) -> JsonObject:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # In its words, and for what json alone takes.
        return decode_object(what, body)


def _plain(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
