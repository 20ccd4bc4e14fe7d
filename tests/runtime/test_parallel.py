"""Many small calls at the same time: limited, in order, and complete after a failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from provisioner.runtime.parallel import ForEach, Parallel, one_by_one

_PATIENCE_SECONDS = 10.0


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=8) as threads:
        yield threads


def test_results_are_in_the_order_of_the_items(executor: ThreadPoolExecutor) -> None:
    for_each: tuple[ForEach, ...] = (one_by_one, Parallel(executor=executor, at_once=3))
    for run in for_each:
        assert run(lambda number: number * number, range(20)) == [number * number for number in range(20)]
        assert run(str, []) == []


def test_number_of_concurrent_calls_is_limited(executor: ThreadPoolExecutor) -> None:
    meeting = threading.Barrier(3, timeout=_PATIENCE_SECONDS)
    lock, now, most = threading.Lock(), 0, 0

    def call(_item: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        meeting.wait()
        with lock:
            now -= 1

    Parallel(executor=executor, at_once=3)(call, range(12))
    assert most == 3


def test_slow_call_does_not_delay_other_calls(executor: ThreadPoolExecutor) -> None:
    last = threading.Event()

    def call(item: int) -> bool:
        if item == 9:
            last.set()
        return item > 0 or last.wait(_PATIENCE_SECONDS)

    assert all(Parallel(executor=executor, at_once=2)(call, range(10)))


def test_failed_call_prevents_new_calls_and_waits_for_calls_in_progress(executor: ThreadPoolExecutor) -> None:
    """After the error, no call may interfere with the caller's clean-up."""
    begun, ended = [], []
    both, failed = threading.Barrier(2, timeout=_PATIENCE_SECONDS), threading.Event()

    def call(item: int) -> None:
        begun.append(item)
        if item == 0:
            both.wait()
            failed.set()
            raise ValueError("no answer")
        if item == 1:
            both.wait()
            assert failed.wait(_PATIENCE_SECONDS)
            ended.append(item)

    with pytest.raises(ValueError, match="no answer"):
        Parallel(executor=executor, at_once=2)(call, range(100))
    assert ended == [1]
    assert len(begun) < 100
