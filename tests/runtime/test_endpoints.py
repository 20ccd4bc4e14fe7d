"""Endpoints: what is quick waits for no thread; what is slow, large or waits for others has bounds of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from provisioner.runtime import endpoints
from provisioner.runtime.endpoints import Endpoint, EndpointApp, Later, _Busy, _Lane
from provisioner.runtime.pages import Content

DONE = Content(body=b"done", media_type="text/plain")
#: The machine may be busy.
pytestmark = pytest.mark.timeout(30)


async def settle() -> None:
    """Let everything that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def held(lane: _Lane, go_on: asyncio.Event, size_bytes: int = 0) -> asyncio.Task[None]:
    """Take a place until somebody says so."""

    async def hold() -> None:
        async with lane.place(size_bytes):
            await go_on.wait()

    task = asyncio.ensure_future(hold())
    await settle()
    return task


def test_a_full_lane_refuses_and_has_room_again():
    async def play() -> None:
        lane, go_on = _Lane(places=1, waiting=1), asyncio.Event()
        tasks = [await held(lane, go_on) for _ in range(2)]
        with pytest.raises(_Busy):
            async with lane.place():
                pass
        go_on.set()
        await asyncio.gather(*tasks)
        async with lane.place():
            pass

    asyncio.run(play())


def test_large_bodies_wait_within_their_bytes_and_one_of_any_size_is_taken():
    async def play() -> None:
        lane, go_on = _Lane(places=1, waiting=9, most_bytes=100), asyncio.Event()
        tasks = [await held(lane, go_on, size) for size in (60, 40)]
        with pytest.raises(_Busy):
            async with lane.place(1):
                pass
        go_on.set()
        await asyncio.gather(*tasks)
        async with lane.place(1000):
            pass

    asyncio.run(play())


def test_what_waited_for_too_long_is_not_begun():
    async def play() -> None:
        now, go_on = {"now": 0.0}, asyncio.Event()
        lane = _Lane(places=1, waiting=9, monotonic=lambda: now["now"])
        first, late = await held(lane, go_on), await held(lane, go_on)
        now["now"] = 5.0
        go_on.set()
        await first
        with pytest.raises(_Busy):
            await late
        async with lane.place():
            pass

    asyncio.run(play())


def test_who_leaves_while_waiting_gives_the_place_back():
    async def play() -> None:
        lane, go_on = _Lane(places=1, waiting=1), asyncio.Event()
        first, second = await held(lane, go_on), await held(lane, go_on)
        second.cancel()
        first.cancel()
        await asyncio.wait([first, second])
        tasks = [await held(lane, go_on) for _ in range(2)]
        go_on.set()
        await asyncio.gather(*tasks)

    asyncio.run(play())


Respond = Callable[..., Awaitable[tuple[int, bytes]]]


@asynccontextmanager
async def serving(*each: Endpoint) -> AsyncIterator[Respond]:
    """Give what posts a body to an app and returns status and body of the answer."""
    app = EndpointApp("a-server", each)

    async def respond(path: str, body: bytes = b"{}") -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    yield respond
    app._threads.shutdown()


LARGE = b" " * 200_000


@pytest.mark.parametrize(
    ("quick", "body", "in_loop"),
    [
        pytest.param(True, b"{}", True, id="a small body, read quickly"),
        pytest.param(False, b"{}", False, id="a small body that takes its time"),
        pytest.param(True, b" " * 64 * 1024, True, id="64 KiB"),
        pytest.param(True, b" " * (64 * 1024 + 1), False, id="more"),
        pytest.param(True, b"[{}," * 500, True, id="a thousand objects and lists"),
        pytest.param(True, b"[{}," * 500 + b"{", False, id="one more"),
        pytest.param(True, LARGE, False, id="a large body"),
    ],
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_what_the_event_loop_does_itself(*, quick: bool, body: bytes, in_loop: bool, later: bool):
    """Nothing that could hold up the others."""
    threads: list[bool] = []

    def note() -> Content:
        threads.append(threading.current_thread() is threading.main_thread())
        return DONE

    def begin(got: bytes, _since: float) -> Content | Later:
        assert got == body
        return (note(), note)[1] if later else note()

    async def play() -> None:
        async with serving(Endpoint(path="/", begin=begin, quick=quick)) as respond:
            assert await respond("/", body) == (200, b"done")

    asyncio.run(play())
    assert threads == [in_loop, False][: 1 + later]


def test_the_time_is_that_of_the_whole_body():
    """Waiting for a turn counts."""
    since = []

    def begin(_body: bytes, at: float) -> Content:
        since.append(time.perf_counter() - at)
        return DONE

    async def play() -> None:
        go_on = threading.Event()
        slow = Endpoint(path="/slow", begin=lambda _body, _at: (go_on.wait(10), DONE)[1])
        async with serving(slow, Endpoint(path="/", begin=begin)) as respond:
            waiting = [asyncio.ensure_future(respond("/slow")) for _ in range(4)]
            await settle()
            late = asyncio.ensure_future(respond("/"))
            await asyncio.sleep(0.05)
            go_on.set()
            await asyncio.gather(*waiting, late)

    asyncio.run(play())
    assert since[0] >= 0.05


def test_nobody_waits_for_what_is_slower(monkeypatch: pytest.MonkeyPatch):
    """While all places for slow, large and waiting answers are taken, quick ones are given, and more are refused."""
    monkeypatch.setattr(endpoints, "_SMALL_AT_ONCE", 2)
    go_on = threading.Event()

    def slow(_body: bytes, _since: float) -> Content:
        go_on.wait(20)
        return DONE

    paths = [
        Endpoint(path="/slow", begin=slow),
        Endpoint(path="/later", begin=lambda body, since: lambda: slow(body, since), quick=True),
        Endpoint(path="/quick", begin=lambda _body, _since: DONE, quick=True),
    ]

    async def play() -> None:
        async with serving(*paths) as respond:
            many = [asyncio.ensure_future(respond("/slow")) for _ in range(300)]
            many += [asyncio.ensure_future(respond("/slow", LARGE)) for _ in range(130)]
            many += [asyncio.ensure_future(respond("/later")) for _ in range(400)]
            await settle()
            refused = [each.result()[0] for each in many if each.done()]
            # 2 and 256 of the slow, 8 and 256 of those that wait, and the large of 24 MiB are kept.
            assert refused == [503] * (830 - 258 - 264 - 125)
            assert await respond("/quick") == (200, b"done")
            go_on.set()
            assert sorted(status for status, _ in await asyncio.gather(*many)) == [200] * 647 + [503] * 183

    asyncio.run(play())


def test_what_waits_for_others_waits_within_its_bytes():
    """What was read of a body takes dozens of times its size."""
    go_on = threading.Event()
    later = Endpoint(path="/", begin=lambda _body, _since: lambda: (go_on.wait(20), DONE)[1], quick=True)

    async def play() -> None:
        async with serving(later) as respond:
            many = [asyncio.ensure_future(respond("/", b"x" * 60_000)) for _ in range(100)]
            await settle()
            assert [each.result()[0] for each in many if each.done()] == [503] * 31
            go_on.set()
            await asyncio.gather(*many)

    asyncio.run(play())


@pytest.mark.parametrize(("size", "closes"), [(0, False), (60_000, False), (70_000, True)])
def test_an_answer_is_sent_in_pieces_and_a_large_one_ends_its_connection(size: int, closes: bool):
    """OpenSSL keeps a buffer of the largest piece."""
    found = Content(body=bytes(range(250)) * (size // 250), media_type="text/plain")
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "path": "/", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    app = EndpointApp("a-server", [Endpoint(path="/", begin=lambda _body, _since: found, quick=True)])
    asyncio.run(app(scope, receive, send))
    head, *pieces = sent
    assert ((b"connection", b"close") in head["headers"]) == closes
    assert b"".join(each["body"] for each in pieces) == found.body
    assert max(len(each["body"]) for each in pieces) <= 16_384
    assert [each["more_body"] for each in pieces] == [True] * (len(pieces) - 1) + [False]


def test_large_bodies_are_answered_one_at_a_time():
    """Their rest, too; whatever is small goes on."""
    go_on, running, most = threading.Event(), [], []

    def slow() -> Content:
        running.append(1)
        most.append(len(running))
        go_on.wait(20)
        running.pop()
        return DONE

    paths = [
        Endpoint(path="/large", begin=lambda _body, _since: slow()),
        Endpoint(path="/later", begin=lambda _body, _since: slow, quick=True),
        Endpoint(path="/small", begin=lambda _body, _since: DONE),
    ]

    async def play() -> None:
        async with serving(*paths) as respond:
            many = [asyncio.ensure_future(respond(each, LARGE)) for each in ("/large", "/later", "/later")]
            await settle()
            assert await respond("/small") == (200, b"done")
            go_on.set()
            assert {status for status, _ in await asyncio.gather(*many)} == {200}

    asyncio.run(play())
    assert most == [1] * 3


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", [], 200),
        ("POST", "/", [], 404),
        ("GET", "/here", [], 405),
        ("POST", "/here", [], 415),
        ("POST", "/here", [(b"content-type", b"text/plain")], 415),
        ("POST", "/here", [(b"content-type", b"Application/JSON; charset=utf-8")], 200),
        ("POST", "/there", [(b"content-type", b"application/json")], 404),
    ],
)
def test_what_is_asked_for(method: str, path: str, headers: list[tuple[bytes, bytes]], status: int):
    async def play() -> int:
        app = EndpointApp("a-server", [Endpoint(path="/here", begin=lambda _body, _since: DONE, quick=True)])
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
        await app(scope, receive, send)
        return int(sent[0]["status"])

    assert asyncio.run(play()) == status
