"""Resources without a server: what is found, how it is sent, and lanes for what takes its time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from provisioner.runtime import resources
from provisioner.runtime.resources import Busy, Call, Content, Lane, Resource, ResourceApp, text
from tests.support.clock import FakeClock

JSON = (b"content-type", b"application/json")


async def said(call: Call) -> Content:
    """Answer with what is known of a request."""
    return text(f"{call.name} {call.headers.get('x')} {call.body.decode()} {call.client}")


async def busy(_call: Call) -> Content:
    """Have no place."""
    raise Busy


def asked(app: ResourceApp, method: str, path: str, *headers: tuple[bytes, bytes], **scope: Any) -> list[Any]:
    """Return what a request is sent."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "scheme": "http", "method": method, "path": path, "headers": headers, **scope}
    asyncio.run(app(scope, receive, send))
    return sent


APP = ResourceApp(
    [
        Resource(method="GET", path="/things/{name}", answer=said),
        Resource(method="DELETE", path="/things/{name}", answer=said),
        Resource(method="GET", path="/things/{name}/part", answer=said),
        Resource(method="POST", path="/things", answer=said),
        Resource(method="GET", path="/busy", answer=busy),
    ]
)
_PATHS = "/busy /things /things/{name} /things/{name}/part"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "words"),
    [
        pytest.param("GET", "/things/a", [], 200, "a None {} 10.0.0.7", id="a name"),
        pytest.param("HEAD", "/things/a", [], 200, "a None {} 10.0.0.7", id="its head; the server drops the body"),
        pytest.param("GET", "/things/a/part", [(b"x", b"1")], 200, "a 1 {} 10.0.0.7", id="a name in the middle"),
        pytest.param("GET", "/things/a", [(b"x", b"1"), (b"x", b"1")], 200, "a None {} 10.0.0.7", id="a header twice"),
        pytest.param("GET", "/things/a/b", [], 404, f"not found; available: {_PATHS}\n", id="two names"),
        pytest.param("GET", "/things//part", [], 404, "not found; ", id="an empty name"),
        pytest.param("GET", "/things/a/", [], 404, "not found; ", id="a slash behind"),
        pytest.param("GET", "/things/part", [], 200, "part ", id="a name like a part"),
        pytest.param("PUT", "/things/a", [], 405, "only DELETE, GET, HEAD is served here\n", id="another method"),
        pytest.param("GET", "/things", [], 405, "only POST is served here\n", id="a POST is no GET"),
        pytest.param("POST", "/things", [], 415, "the content type must be application/json\n", id="no type"),
        pytest.param("POST", "/things", [(b"content-type", b"text/plain")], 415, "the content type", id="another type"),
        pytest.param("POST", "/things", [JSON, JSON], 415, "the content type", id="two types"),
        pytest.param(
            *("POST", "/things", [(b"content-type", b"Application/JSON; charset=utf-8")], 200, " None {} 10.0.0.7"),
            id="a type with a parameter",
        ),
        pytest.param("GET", "/busy", [], 503, "too many requests at once\n", id="no place"),
    ],
)
def test_what_is_asked_for(method: str, path: str, headers: list[tuple[bytes, bytes]], status: int, words: str) -> None:
    head, body = asked(APP, method, path, *headers, client=("10.0.0.7", 1))
    assert head["status"] == status
    assert body["body"].decode().startswith(words)
    assert (b"allow" in dict(head["headers"])) == (status == 405)


@pytest.mark.parametrize(
    ("size", "scheme", "closes"),
    [(0, "https", False), (60_000, "https", False), (70_000, "https", True), (70_000, "http", False)],
)
def test_an_answer_is_sent_in_pieces_and_a_large_one_over_tls_ends_its_connection(
    size: int, scheme: str, *, closes: bool
) -> None:
    """OpenSSL keeps a buffer of the largest piece."""
    found = Content(body=bytes(range(250)) * (size // 250), media_type="text/plain")

    async def large(_call: Call) -> Content:
        return found

    head, *pieces = asked(ResourceApp([Resource(method="GET", path="/", answer=large)]), "GET", "/", scheme=scheme)
    assert ((b"connection", b"close") in head["headers"]) == closes
    assert b"".join(each["body"] for each in pieces) == found.body
    assert max(len(each["body"]) for each in pieces) <= 16_384
    assert [each["more_body"] for each in pieces] == [True] * (len(pieces) - 1) + [False]


# --- lanes


async def settle() -> None:
    """Let everything that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def held(lane: Lane, go_on: asyncio.Event, weight: int = 1) -> asyncio.Task[None]:
    """Take a place until somebody says so."""

    async def hold() -> None:
        async with lane.place(weight):
            await go_on.wait()

    task = asyncio.ensure_future(hold())
    await settle()
    return task


async def _in_flow(lane: Lane, go_on: asyncio.Event, flow: str) -> None:
    with contextlib.suppress(Busy):
        async with lane.place(1, flow):
            await go_on.wait()


async def _taken(lane: Lane, weight: int = 1) -> None:
    async with lane.place(weight):
        pass


def test_a_full_lane_refuses_has_room_again_and_takes_one_of_any_weight():
    async def play() -> None:
        lane, go_on = Lane(places=1, room=100), asyncio.Event()
        tasks = [await held(lane, go_on, size) for size in (60, 40)]
        with pytest.raises(Busy):
            await _taken(lane)
        go_on.set()
        await asyncio.gather(*tasks)
        await _taken(lane, 1000)

    asyncio.run(play())


def test_what_waits_for_too_long_is_refused_in_time_and_leaves_its_room(monkeypatch: pytest.MonkeyPatch):
    """Whoever has a place may keep it for longer."""
    monkeypatch.setattr(resources, "_PATIENCE_SECONDS", 0.01)

    async def play() -> None:
        lane, go_on = Lane(places=1, room=9), asyncio.Event()
        first, late = await held(lane, go_on), await held(lane, go_on, 8)
        with pytest.raises(Busy):
            await late
        assert lane._taken.total() == 1
        go_on.set()
        await first
        await _taken(lane)

    asyncio.run(play())


def test_who_leaves_while_waiting_gives_the_place_back():
    async def play() -> None:
        lane, go_on = Lane(places=1, room=2), asyncio.Event()
        first, second = await held(lane, go_on), await held(lane, go_on)
        second.cancel()
        first.cancel()
        await asyncio.wait([first, second])
        tasks = [await held(lane, go_on) for _ in range(2)]
        go_on.set()
        await asyncio.gather(*tasks)

    asyncio.run(play())


def test_flows_take_turns():
    """Whoever asks often does not keep the others waiting."""

    async def play() -> None:
        clock, go_on, order = FakeClock(), asyncio.Event(), []
        lane = Lane(places=1, room=100, monotonic=clock)

        async def hold(flow: str) -> None:
            async with lane.place(1, flow):
                order.append(flow)
                await go_on.wait()
                clock.advance(0.125)

        tasks = [asyncio.ensure_future(hold(flow)) for flow in "aaaabbc"]
        await settle()
        # Whoever has gone loses its turn.
        tasks[1].cancel()
        go_on.set()
        await asyncio.wait(tasks)
        assert order == list("abcaba")

    asyncio.run(play())


@pytest.mark.parametrize("flows", [1, 3])
@pytest.mark.parametrize("at_once", [1, 9], ids=["one after the other", "many at once"])
def test_flows_have_the_same_time(at_once: int, flows: int):
    """Whoever has few requests that take long does not keep many that are quick from their turn."""

    async def play() -> None:
        clock, began = FakeClock(), asyncio.Event()
        lane, order = Lane(places=1, room=200, monotonic=clock), []

        async def ask(flow: str, seconds: float, times: int = 1) -> None:
            for _ in range(times):
                async with lane.place(1, flow):
                    await began.wait()
                    order.append(flow)
                    clock.advance(seconds)

        slow = [
            asyncio.ensure_future(ask(f"slow-{flow}", 0.25, 9 // at_once))
            for flow in range(flows)
            for _ in range(at_once)
        ]
        await settle()
        quick = [asyncio.ensure_future(ask("quick", 0.0078125)) for _ in range(96)]
        await settle()
        began.set()
        await asyncio.gather(*quick)
        assert sum(each != "quick" for each in order) <= 4 * flows
        await asyncio.gather(*slow)
        # Nobody is remembered where nobody waits.
        assert not lane._used

    asyncio.run(play())


def test_a_flow_saves_up_no_time_while_it_does_not_wait():
    """Whoever is always there with one request does not keep those with many from their turn later."""

    async def play() -> None:
        clock, order = FakeClock(), []
        lane = Lane(places=10, room=100, monotonic=clock)

        async def hold(flow: str, go_on: asyncio.Event) -> None:
            async with lane.place(1, flow):
                await go_on.wait()
                order.append(flow)
                clock.advance(0.125)

        before, tasks = asyncio.Event(), []
        for _ in range(9):
            after = asyncio.Event()
            # They begin before those before them end.
            tasks += [asyncio.create_task(hold(flow, after)) for flow in ["busy"] * 4 + ["seldom"]]
            await settle()
            clock.advance(1)
            before.set()
            await settle()
            before = after
        go_on = asyncio.Event()
        tasks += [asyncio.create_task(hold(flow, go_on)) for flow in ["busy"] * 5 + ["seldom"] * 5]
        await settle()
        before.set()
        await settle()
        tasks += [asyncio.create_task(hold(flow, go_on)) for flow in ["busy"] * 40 + ["seldom"] * 40]
        await settle()
        order.clear()
        go_on.set()
        await asyncio.gather(*tasks)
        assert 15 <= order[:40].count("busy") <= 25

    asyncio.run(play())


@pytest.mark.parametrize("name", ["{}", ""], ids=["many flows", "what has no name"])
def test_who_takes_the_most_room_leaves_it_to_those_who_take_less(name: str):
    async def play() -> None:
        lane, go_on = Lane(places=1, room=100), asyncio.Event()
        flood = [
            asyncio.ensure_future(_in_flow(lane, go_on, name.format(place))) for place in range(10) for _ in range(20)
        ]
        await settle()
        assert lane._taken.total() == 100
        honest = [asyncio.ensure_future(_in_flow(lane, go_on, "honest")) for _ in range(20)]
        await settle()
        assert lane._taken["honest"] >= 9
        assert lane._taken.total() == 100
        # One leaves in the moment in which it is refused.
        flood[-1].cancel()
        go_on.set()
        await asyncio.wait([*flood, *honest])
        assert not lane._taken
        assert lane._free == 1

    asyncio.run(play())


def test_a_place_rests_for_as_long_as_it_was_taken_within_bounds():
    async def play() -> None:
        clock, loop = FakeClock(), asyncio.get_running_loop()
        lane = Lane(places=1, room=9, longest_rest_seconds=0.2, monotonic=clock)
        async with lane.place():
            clock.advance(7)
        ended = loop.time()
        await _taken(lane)
        assert loop.time() - ended >= 0.19

    asyncio.run(play())
