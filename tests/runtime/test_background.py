"""Work that an event loop waits for."""

from __future__ import annotations

import asyncio

from provisioner.runtime.background import Worker


def test_a_worker_rests_as_long_as_it_has_worked() -> None:
    """What takes long is waited for in vain for half a second at most; what costs nothing costs no pause."""
    spent, rests = [0.0], list[float]()

    def work(seconds: float) -> float:
        spent[0] += seconds
        return seconds

    async def ask() -> list[float]:
        worker = Worker(spent_seconds=lambda: spent[0], rest=rests.append)
        return [await worker.do(lambda seconds=each: work(seconds)) for each in (0.25, 0.0, 7.0, 0.125)]

    assert asyncio.run(ask()) == [0.25, 0.0, 7.0, 0.125]
    assert rests[:3] == [0.25, 0.0, 0.5]


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
