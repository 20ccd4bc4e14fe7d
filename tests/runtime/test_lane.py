"""Lanes: limits on running and waiting requests, and the alternation of flows."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from provisioner.runtime import lanes
from provisioner.runtime.lanes import Busy, Lane


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def held(lane: Lane, go_on: asyncio.Event, weight: int = 1) -> asyncio.Task[None]:
    """Return a task that occupies, or waits for, a place in a lane until `go_on` is set."""

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


def test_full_lane_raises_busy_and_an_empty_one_accepts_any_weight():
    async def play() -> None:
        lane, go_on = Lane(places=1, room=100), asyncio.Event()
        tasks = [await held(lane, go_on, size) for size in (60, 40)]
        with pytest.raises(Busy):
            await _taken(lane)
        go_on.set()
        await asyncio.gather(*tasks)
        await _taken(lane, 1000)

    asyncio.run(play())


def test_request_that_waits_too_long_raises_busy_and_frees_its_weight(monkeypatch: pytest.MonkeyPatch):
    """The limit applies only to waiting requests; a running request may take longer."""
    monkeypatch.setattr(lanes, "_PATIENCE_SECONDS", 0.01)

    async def play() -> None:
        lane, go_on = Lane(places=1, room=9), asyncio.Event()
        first, late = await held(lane, go_on), await held(lane, go_on, 8)
        with pytest.raises(Busy):
            await late
        assert lane._weights.total() == 1
        go_on.set()
        await first
        await _taken(lane)

    asyncio.run(play())


def test_cancelled_request_leaves_no_place_occupied():
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


def test_waiting_flows_alternate():
    async def play() -> None:
        go_on, order = asyncio.Event(), []
        lane = Lane(places=1, room=100)

        async def hold(flow: str) -> None:
            async with lane.place(1, flow):
                order.append(flow)
                await go_on.wait()

        tasks = [asyncio.ensure_future(hold(flow)) for flow in "aaaabbc"]
        await settle()
        # A cancelled request loses its position.
        tasks[1].cancel()
        go_on.set()
        await asyncio.wait(tasks)
        # The first request gets its slot before other requests wait; after it, the flows alternate.
        assert order == list("aabcab")

    asyncio.run(play())


@pytest.mark.parametrize("name", ["{}", ""], ids=["many flows", "one flow without a name"])
def test_full_lane_drops_requests_of_the_heaviest_flow(name: str):
    async def play() -> None:
        lane, go_on = Lane(places=1, room=100), asyncio.Event()
        flood = [
            asyncio.ensure_future(_in_flow(lane, go_on, name.format(place))) for place in range(10) for _ in range(20)
        ]
        await settle()
        assert lane._weights.total() == 100
        honest = [asyncio.ensure_future(_in_flow(lane, go_on, "honest")) for _ in range(20)]
        await settle()
        assert lane._weights["honest"] >= 9
        assert lane._weights.total() == 100
        # The last request of the flood was rejected before, so its cancellation has no effect.
        flood[-1].cancel()
        go_on.set()
        await asyncio.wait([*flood, *honest])
        assert not lane._weights
        assert lane._free == 1

    asyncio.run(play())


def test_place_rests_as_long_as_it_was_used_up_to_a_maximum():
    async def play() -> None:
        lane = Lane(places=1, room=9, max_rest_seconds=0.2)
        for used, rests in ((0.05, 0.05), (0.4, 0.2)):
            async with lane.place():
                await asyncio.sleep(used)
            ended = time.monotonic()
            await _taken(lane)
            assert rests * 0.95 <= time.monotonic() - ended < rests + 0.15
            # Wait until the rest after the short request of `_taken` has ended.
            await asyncio.sleep(0.05)

    asyncio.run(play())
