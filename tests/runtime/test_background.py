"""Work that an event loop waits for."""

from __future__ import annotations

import asyncio

import pytest

from provisioner.runtime.background import Worker


def test_who_asks_all_the_time_gets_half_of_the_time() -> None:
    """Who asks now and then does not wait; nor does anybody wait for long, whatever was done before."""
    spent, now, rests = [0.0], [100.0], list[float]()

    def work(seconds: float) -> None:
        spent[0] += seconds
        now[0] += seconds

    def rest(seconds: float) -> None:
        rests.append(seconds)
        now[0] += seconds

    async def ask(*seconds: float) -> None:
        for each in seconds:
            await worker.do(lambda each=each: work(each))  # type: ignore[misc]

    worker = Worker(spent_seconds=lambda: spent[0], monotonic=lambda: now[0], rest=rest)
    asyncio.run(ask(0.5, 0.0, 0.25))
    assert rests == []
    now[0] += 10
    asyncio.run(ask(*(0.25 for _ in range(100)), 0.0))
    # The first second of it is for nothing.
    assert sum(rests[:-1]) == pytest.approx(25.0 - 2.0, abs=0.5)
    now[0] += 10
    rests.clear()
    asyncio.run(ask(30.0, 0.0))
    assert rests[0] == 0.5


def test_a_worker_goes_on_after_a_failure() -> None:
    """Whoever asked for it hears of it."""

    async def ask() -> list[str]:
        worker, heard = Worker(), []
        for _ in range(3):
            try:
                await worker.do(lambda: 1 / 0)
            except ZeroDivisionError as error:
                heard.append(str(error))
        return heard

    assert asyncio.run(ask()) == ["division by zero"] * 3


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    """It does the rest in turn."""
    done: list[int] = []

    async def ask() -> None:
        worker = Worker()
        go_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def first() -> None:
            done.append(0)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(5)

        tasks = [asyncio.create_task(worker.do(first))]
        tasks += [asyncio.create_task(worker.do(lambda number=each: done.append(number))) for each in range(1, 5)]
        await asyncio.sleep(0)
        for task in tasks[1:4]:
            task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(ask())
    assert done == [0, 4]
