"""HTTP connections that know until when a request may be sent and answered.

The time-outs of `requests` hold for one attempt to connect and for one read: name resolution, a second address, a slow
handshake, a proxy or an answer that comes byte by byte are not in them, so a request could leave long after its time.
Here the clock is looked at when the connection stands, proxy and TLS included, before each piece that is sent, and
before each read. What is not bounded is how long the system's resolver hangs: nothing is sent after it.
"""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import requests.adapters
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util.connection import allowed_gai_family

#: A body is sent in pieces of this size, with a look at the clock before each.
_PIECE_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of a monotonic clock."""

    moment: float
    monotonic: Callable[[], float]

    def left_seconds(self) -> float:
        """Return how much time is left; negative when it is over."""
        return self.moment - self.monotonic()


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextlib.contextmanager
def until(deadline: Deadline) -> Iterator[None]:
    """Let everything that this thread sends meanwhile keep to a deadline, and to one that is set already."""
    outer = _current.get()
    if outer is not None and outer.left_seconds() < deadline.left_seconds():
        deadline = outer
    token = _current.set(deadline)
    try:
        yield
    finally:
        _current.reset(token)


def _left_seconds() -> float | None:
    deadline = _current.get()
    return deadline.left_seconds() if deadline is not None else None


class _Answer(io.RawIOBase):
    """The bytes of an answer, none of them waited for longer than there is time."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = _left_seconds()
        if left is not None:
            if left <= 0:
                raise TimeoutError("the time limit for the answer is over")
            self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _KeepsTime(HTTPConnection):
    """What both kinds of connection do beyond urllib3's."""

    #: Whether the connection stands, and whether anything of the present request has left.
    _stands = False
    _begun = False

    def _new_conn(self) -> socket.socket:
        """Connect to the first address that answers; each gets its share of the time that is left."""
        try:
            # The property without the dot at the end of a full name is for certificates.
            found = socket.getaddrinfo(self._dns_host, self.port, allowed_gai_family(), socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise NameResolutionError(self.host, self, _as_gaierror(error)) from error
        problem: OSError = OSError(f"{self.host} has no address")
        for tried, (family, kind, protocol, _, address) in enumerate(found):
            try:
                return self._connect_to(family, kind, protocol, address, shares=len(found) - tried)
            except OSError as error:
                problem = error
        if isinstance(problem, TimeoutError):
            raise ConnectTimeoutError(self, f"no address of {self.host} answers: {problem}") from problem
        raise NewConnectionError(self, f"Failed to establish a new connection: {problem}") from problem

    def _connect_to(self, family: int, kind: int, protocol: int, address: Any, *, shares: int) -> socket.socket:
        left = self._time_to_send()
        limit = self.timeout if isinstance(self.timeout, (int, float)) else None
        if left is not None:
            limit = left / shares if limit is None else min(limit, left / shares)
        sock = socket.socket(family, kind, protocol)
        try:
            for option in self.socket_options or ():
                sock.setsockopt(*option)
            sock.settimeout(limit)
            sock.connect(address)
            # For the handshakes that follow, with a proxy and by TLS.
            sock.settimeout(self._time_to_send() or limit)
        except BaseException:
            sock.close()
            raise
        return sock

    def connect(self) -> None:
        self._stands = False
        try:
            super().connect()
        except TimeoutError as error:
            # urllib3 takes a handshake that is too slow for an answer that is too slow.
            raise ConnectTimeoutError(self, f"the connection was not established in time: {error}") from error
        self._time_to_send()
        self._stands = True

    def request(self, *args: Any, **kwargs: Any) -> None:
        self._begun = False
        super().request(*args, **kwargs)

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        view = memoryview(data) if isinstance(data, (bytes, bytearray, memoryview)) else None
        pieces = (
            [data]
            if view is None
            else [view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES)]
        )
        for piece in pieces:
            left = self._time_to_send()
            if left is not None:
                self.sock.settimeout(left)
            self._begun = self._begun or self._stands
            super().send(piece)

    def response_class(self, sock: socket.socket, *args: Any, **kwargs: Any) -> HTTPResponse:  # type: ignore[override]
        """Make the answer, as http.client asks for it."""
        answer = HTTPResponse(sock, *args, **kwargs)
        answer.fp = io.BufferedReader(_Answer(answer.fp.detach(), sock))
        return answer

    def _time_to_send(self) -> float | None:
        """Return the seconds that are left, None for no limit; raise when there are none."""
        left = _left_seconds()
        if left is not None and left <= 0:
            if self._begun:
                raise TimeoutError("the time limit ended while the request was being sent")
            raise ConnectTimeoutError(
                self, "the time limit ended before the connection was established; nothing was sent"
            )
        return left


def _as_gaierror(error: OSError | UnicodeError) -> socket.gaierror:
    return error if isinstance(error, socket.gaierror) else socket.gaierror(str(error))


class _Connection(_KeepsTime):
    """To http addresses."""


class _TlsConnection(_KeepsTime, HTTPSConnection):
    """To https addresses."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class DeadlineAdapter(requests.adapters.HTTPAdapter):
    """Sends through connections that keep to the deadline of `until`; never tries a second time."""

    def __init__(self, *, connections: int) -> None:
        super().__init__(pool_connections=2, pool_maxsize=connections, pool_block=False, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Let pools of connections without a proxy be ours."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Let pools of connections through a proxy be ours."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):
            # The others speak SOCKS, in connections of their own; the library for it is not installed.
            manager.pool_classes_by_scheme = _POOLS
        return manager
