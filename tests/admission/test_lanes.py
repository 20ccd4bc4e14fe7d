"""Lanes of reviews: quick reviews need no thread; slow, large and waiting reviews have separate limits."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from provisioner.admission.hooks import Begin, Lanes, Later
from provisioner.kube.errors import TooLarge
from provisioner.runtime.lanes import Busy
from tests.support.waiting import wait_for

DONE = PlainTextResponse("done")
pytestmark = pytest.mark.timeout(30)
LARGE = b" " * 200_000

Respond = Callable[..., Awaitable[int]]


def post(body: bytes, media_type: str = "application/json") -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    headers = [(b"content-type", media_type.encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


def test_a_body_of_another_media_type_than_json_is_rejected():
    endpoint = Lanes().endpoint(lambda _body, _since: DONE, lambda _: None, quick=True)
    assert asyncio.run(endpoint(post(b"{}", "text/plain"))).status_code == 415  # type: ignore[arg-type]


@asynccontextmanager
async def serving(busy: Callable[[float], None] = lambda _: None) -> AsyncIterator[Respond]:
    """Yield a function that posts a body and returns the status of the answer."""
    lanes = Lanes()

    async def respond(begin: Begin, body: bytes = b"{}", *, quick: bool = False) -> int:
        try:
            response = await lanes.endpoint(begin, busy, quick=quick)(post(body))
        except Busy:
            return 503
        assert response is DONE
        return response.status_code

    yield respond
    lanes._threads.shutdown()


def refused(tasks: list[asyncio.Future[int]]) -> list[int]:
    """Return the status codes of the refused reviews: the only ones that have ended while the others are blocked."""
    return [task.result() for task in tasks if task.done()]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


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
def test_quick_small_bodies_are_answered_in_the_event_loop(*, quick: bool, body: bytes, in_loop: bool, later: bool):
    """In the event loop, a slow review or a large body would delay other reviews."""
    threads: list[bool] = []

    def note() -> Response:
        threads.append(threading.current_thread() is threading.main_thread())
        return DONE

    def begin(got: bytes, _since: float) -> Response | Later:
        assert got == body
        return (note(), lambda _bytes: note())[1] if later else note()

    async def play() -> None:
        async with serving() as respond:
            assert await respond(begin, body, quick=quick) == 200

    asyncio.run(play())
    assert threads == [in_loop, False][: 1 + later]


def test_duration_starts_before_the_wait_in_a_lane():
    since = []

    def begin(_body: bytes, at: float) -> Response:
        since.append(time.perf_counter() - at)
        return DONE

    async def play() -> None:
        go_on = threading.Event()
        async with serving() as respond:
            slow = [asyncio.ensure_future(respond(lambda _body, _at: (go_on.wait(10), DONE)[1])) for _ in range(4)]
            await settle()
            late = asyncio.ensure_future(respond(begin))
            await asyncio.sleep(0.05)
            go_on.set()
            await asyncio.gather(*slow, late)

    asyncio.run(play())
    assert since[0] >= 0.05


def test_full_lanes_do_not_delay_quick_reviews():
    go_on = threading.Event()

    def slow(_body: bytes, _since: float) -> Response:
        go_on.wait(20)
        return DONE

    def later(body: bytes, since: float) -> Later:
        return lambda _bytes: slow(body, since)

    async def play() -> None:
        async with serving() as respond:
            many = [asyncio.ensure_future(respond(slow)) for _ in range(300)]
            many += [asyncio.ensure_future(respond(slow, LARGE)) for _ in range(130)]
            many += [asyncio.ensure_future(respond(later, quick=True)) for _ in range(400)]
            await settle()
            # The lanes keep 256 slow reviews, 256 waiting reviews, and 24 MiB of large reviews.
            assert refused(many) == [503] * (830 - 256 - 256 - 125)
            assert await respond(lambda _body, _since: DONE, quick=True) == 200
            go_on.set()
            assert sorted(await asyncio.gather(*many)) == [200] * 637 + [503] * 193

    asyncio.run(play())


def test_large_reviews_that_are_not_quick_do_not_delay_large_quick_ones():
    """The validation of a tenant's large JobSet takes seconds, and must not delay pods of other tenants."""
    go_on = threading.Event()

    async def play() -> None:
        async with serving() as respond:
            slow = [asyncio.ensure_future(respond(lambda _body, _since: (go_on.wait(20), DONE)[1], LARGE))]
            slow += [asyncio.ensure_future(respond(lambda _body, _since: DONE, LARGE)) for _ in range(130)]
            await settle()
            assert await respond(lambda _body, _since: DONE, LARGE, quick=True) == 200
            go_on.set()
            await asyncio.gather(*slow)

    asyncio.run(play())


@pytest.mark.parametrize("body", [b"{}", LARGE], ids=["small bodies", "large bodies"])
def test_reviews_that_are_answered_busy_are_counted(body: bytes):
    """With failurePolicy Ignore, the API server admits their objects without a review."""
    go_on, counted = threading.Event(), []

    async def play() -> list[int]:
        async with serving(counted.append) as respond:
            many = [asyncio.ensure_future(respond(lambda _b, _s: (go_on.wait(20), DONE)[1], body)) for _ in range(300)]
            await settle()
            go_on.set()
            return await asyncio.gather(*many)

    statuses = asyncio.run(play())
    assert len(counted) == statuses.count(503) > 0
    assert min(counted) >= 0


def test_waiting_reviews_beyond_the_limit_of_bytes_get_503():
    """A decoded body takes dozens of times its size in memory."""
    go_on = threading.Event()

    def later(_body: bytes, _since: float) -> Later:
        return lambda _bytes: (go_on.wait(20), DONE)[1]

    async def play() -> None:
        async with serving() as respond:
            many = [asyncio.ensure_future(respond(later, b"x" * 60_000, quick=True)) for _ in range(100)]
            await settle()
            assert refused(many) == [503] * 31
            go_on.set()
            await asyncio.gather(*many)

    asyncio.run(play())


def test_reviews_with_large_owners_wait_in_the_lane_of_large_bodies():
    """The pods of a JobSet are created at the same time, so their reviews read the same large owner."""
    go_on = threading.Event()

    def of_large(max_bytes: int) -> Response:
        if max_bytes < 1_500_000:
            raise TooLarge("an owner")
        go_on.wait(20)
        return DONE

    async def play() -> None:
        async with serving() as respond:
            body = json.dumps({"request": {"namespace": "a", "object": "x" * 30_000}}).encode()
            many = [
                asyncio.ensure_future(respond(lambda _body, _since: of_large, body, quick=True)) for _ in range(100)
            ]
            await asyncio.to_thread(go_on.wait, 0.2)
            assert refused(many) == []
            go_on.set()
            assert {*await asyncio.gather(*many)} == {200}

    asyncio.run(play())


def test_reviews_with_a_hidden_namespace_share_the_slots_of_one_namespace():
    """A client can hide the namespace behind a name of any length, and must not get more slots by that."""
    go_on = threading.Event()

    def slow(_body: bytes, _since: float) -> Response:
        go_on.wait(20)
        return DONE

    def review(name: str) -> bytes:
        return json.dumps({"request": {"name": name, "namespace": "a"}}).encode()

    async def play() -> None:
        async with serving() as respond:
            many = [asyncio.ensure_future(respond(slow, review("x" * 5000))) for _ in range(300)]
            await settle()
            honest = [asyncio.ensure_future(respond(slow, review("x"))) for _ in range(100)]
            await settle()
            go_on.set()
            assert {*await asyncio.gather(*honest)} == {200}
            await asyncio.gather(*many)

    asyncio.run(play())


def test_large_bodies_are_answered_one_at_a_time():
    go_on, running, most = threading.Event(), [], []

    def slow() -> Response:
        running.append(1)
        most.append(len(running))
        go_on.wait(20)
        running.pop()
        return DONE

    begins: list[Begin] = [lambda _body, _since: slow(), *[lambda _body, _since: lambda _bytes: slow()] * 2]

    async def play() -> None:
        async with serving() as respond:
            many = [asyncio.ensure_future(respond(begin, LARGE, quick=True)) for begin in begins]
            await settle()
            assert await respond(lambda _body, _since: DONE) == 200
            go_on.set()
            assert {*await asyncio.gather(*many)} == {200}

    asyncio.run(play())
    assert most == [1] * 3


def test_large_owners_are_read_one_at_a_time_without_delaying_small_ones():
    """A decoded owner takes dozens of times its size in memory until its review is answered."""
    go_on, large_ones = threading.Event(), []

    def of_large(max_bytes: int) -> Response:
        if max_bytes < 1_500_000:
            raise TooLarge("an owner")
        large_ones.append(1)
        go_on.wait(20)
        large_ones.append(-1)
        return DONE

    async def play() -> None:
        async with serving() as respond:
            many = [asyncio.ensure_future(respond(lambda _body, _since: of_large, quick=True)) for _ in range(20)]
            small = [respond(lambda _body, _since: lambda _bytes: DONE, quick=True) for _ in range(20)]
            assert {*await asyncio.gather(*small)} == {200}
            go_on.set()
            assert {*await asyncio.gather(*many)} == {200}

    asyncio.run(play())
    assert large_ones == [1, -1] * 20


@pytest.mark.parametrize(
    ("size", "later", "places"),
    [
        pytest.param(0, False, 1, id="what takes its time"),
        pytest.param(200_000, False, 1, id="what is large"),
        pytest.param(0, True, 8, id="what waits for others"),
    ],
)
def test_namespaces_share_a_full_lane_in_turn(*, size: int, later: bool, places: int):
    """A tenant with many pods, or with large owners, does not delay the pods of other tenants."""
    ends, begun = threading.Semaphore(0), []

    def slow(body: bytes, _since: float) -> Response:
        begun.append(json.loads(body)["request"]["namespace"])
        ends.acquire(timeout=20)
        return DONE

    def begin(body: bytes, since: float) -> Response | Later:
        return (lambda _bytes: slow(body, since)) if later else slow(body, since)

    def review(namespace: str) -> bytes:
        return json.dumps({"request": {"namespace": namespace, "object": "x" * size}}).encode()

    async def play() -> None:
        async with serving() as respond:
            tasks = [asyncio.ensure_future(respond(begin, review("a"), quick=later)) for _ in range(40)]
            await settle()
            tasks.append(asyncio.ensure_future(respond(begin, review("b"), quick=later)))
            await settle()
            ends.release(2)
            await asyncio.to_thread(wait_for, lambda: len(begun) == places + 2)
            assert "b" in begun
            ends.release(40)
            assert {*await asyncio.gather(*tasks)} == {200}

    asyncio.run(play())
