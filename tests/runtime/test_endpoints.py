"""Lanes of endpoints: what is slow or large has bounds of its own, and what waited for too long is not begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from provisioner.runtime.endpoints import Later, _Busy, _Lane
from provisioner.runtime.pages import Content

DONE = Content(body=b"done", media_type="text/plain")


async def begun(lane: _Lane, work: Callable[[], Content | Later], size_bytes: int = 0) -> asyncio.Task[Content | Later]:
    task = asyncio.ensure_future(lane.run(work, size_bytes))
    await asyncio.sleep(0)
    return task


def test_a_full_lane_refuses_and_has_room_again():
    async def play() -> None:
        lane, go_on = _Lane("test", threads=1, waiting=1), threading.Event()

        def wait() -> Content:
            go_on.wait(10)
            return DONE

        first, second = await begun(lane, wait), await begun(lane, wait)
        with pytest.raises(_Busy):
            await lane.run(lambda: DONE)
        go_on.set()
        assert await asyncio.gather(first, second) == [DONE, DONE]
        assert await lane.run(lambda: DONE) == DONE

    asyncio.run(play())


def test_large_bodies_wait_within_their_bytes_and_one_of_any_size_is_taken():
    async def play() -> None:
        lane, go_on = _Lane("test", threads=1, waiting=9, most_bytes=100), threading.Event()

        def wait() -> Content:
            go_on.wait(10)
            return DONE

        tasks = [await begun(lane, wait, 60), await begun(lane, wait, 40)]
        with pytest.raises(_Busy):
            await lane.run(lambda: DONE, 1)
        go_on.set()
        assert await asyncio.gather(*tasks) == [DONE, DONE]
        assert await lane.run(lambda: DONE, 1000) == DONE

    asyncio.run(play())


def test_what_waited_for_too_long_is_not_begun():
    async def play() -> None:
        now, go_on = {"now": 0.0}, threading.Event()
        lane = _Lane("test", threads=1, waiting=9, monotonic=lambda: now["now"])

        def wait() -> Content:
            go_on.wait(10)
            return DONE

        first, late = await begun(lane, wait), await begun(lane, lambda: pytest.fail("it was begun"))
        now["now"] = 5.0
        go_on.set()
        assert await first == DONE
        with pytest.raises(_Busy):
            await late

    asyncio.run(play())
