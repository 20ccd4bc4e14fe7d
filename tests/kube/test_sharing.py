"""Tests that concurrent checks share lists for at most 2 s, and that after a failure a later check lists again."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from provisioner.kube.errors import Unavailable
from provisioner.kube.live import SharedLists, unshared

_PATIENCE_SECONDS = 10.0
THREADS = 8


class Source:
    """Counts reads; each read returns its number."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.reads


class Large(list[int]):
    """List with weak references."""


@pytest.mark.parametrize(
    ("calls", "want"),
    [
        pytest.param([(0.0, "a"), (0.0, "a"), (2.0, "a")], [1, 1, 1], id="within 2 s"),
        pytest.param([(0.0, "a"), (2.1, "a"), (4.0, "a"), (4.2, "a")], [1, 2, 2, 3], id="after 2 s"),
        pytest.param([(0.0, "a"), (0.0, "b"), (0.0, "a")], [1, 2, 1], id="other list"),
        # Another thread may have read the clock earlier.
        pytest.param([(1.0, "a"), (0.9, "a")], [1, 1], id="earlier time"),
    ],
)
def test_list_is_shared_for_2_s_after_its_request(calls: list[tuple[float, str]], want: list[int]) -> None:
    lists, read = SharedLists(), Source()
    assert [lists.get(now, key, read) for now, key in calls] == want


def test_unshared_list_is_read_each_time() -> None:
    read = Source()
    assert [unshared("a", read), unshared("a", read)] == [1, 2]


def test_list_that_failed_is_read_again() -> None:
    lists, read = SharedLists(), Source()

    def fails() -> int:
        raise Unavailable("no answer")

    with pytest.raises(Unavailable, match="no answer"):
        lists.get(0.0, "a", fails)
    assert [lists.get(0.0, "a", read), lists.get(0.0, "a", read)] == [1, 1]


def test_failed_list_leaves_no_cycle_in_memory() -> None:
    """The traceback of the error refers to the objects that were read before the failure."""
    lists, kept = SharedLists(), list[weakref.ref[Large]]()

    def fails() -> None:
        objects = Large()
        kept.append(weakref.ref(objects))
        raise Unavailable("no answer")

    gc.disable()
    try:
        with contextlib.suppress(Unavailable):
            lists.get(0.0, "a", fails)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_threads_that_wait_for_a_read_share_its_result_or_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each waiting thread read again, a list that hangs would keep all threads for a time-out each, in turn."""
    threads, entered = [threading.Event() for _ in range(THREADS)], iter(range(THREADS))

    class Watched:
        """Lock that records each thread before the thread waits for it."""

        def __init__(self) -> None:
            self._lock = threading.RLock()

        def __enter__(self) -> None:
            threads[next(entered)].set()
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    lists, reads = SharedLists(), Source()
    monkeypatch.setattr("provisioner.kube.live.threading", SimpleNamespace(RLock=Watched))

    def fails() -> int:
        for thread in threads:
            assert thread.wait(_PATIENCE_SECONDS)
        raise Unavailable(f"no answer to read {reads()}")

    def outcome() -> str:
        with pytest.raises(Unavailable) as raised:
            lists.get(0.0, "a", fails)
        return str(raised.value)

    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        outcomes = {call.result() for call in [pool.submit(outcome) for _ in range(THREADS)]}
    assert (outcomes, reads.reads) == ({"no answer to read 1"}, 1)


def test_nested_call_of_the_reading_thread_reads_again() -> None:
    lists, read = SharedLists(), Source()
    assert lists.get(0.0, "a", lambda: lists.get(0.0, "a", read) + read()) == 1
    assert read.reads == 2


def test_at_most_16_lists_are_kept_and_the_oldest_is_dropped() -> None:
    lists, read = SharedLists(), Source()
    first = [lists.get(number / 100, str(number), read) for number in range(17)]
    assert [lists.get(0.2, str(number), read) for number in range(1, 17)] == first[1:]
    assert lists.get(0.2, "0", read) == 18


def test_expired_list_is_released() -> None:
    lists = SharedLists()
    kept = weakref.ref(lists.get(0.0, "a", Large))
    lists.forget_expired(2.0)
    assert kept() is not None
    lists.forget_expired(2.1)
    assert kept() is None
