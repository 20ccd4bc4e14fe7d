"""Tests that concurrent checks share lists for at most 2 s, and that a list that failed is read again."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

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


def test_threads_make_one_read_at_a_time_until_one_succeeds() -> None:
    """A thread whose read fails raises the error, and a waiting thread reads next."""
    lists, lock = SharedLists(), threading.Lock()
    meeting = threading.Barrier(THREADS, timeout=_PATIENCE_SECONDS)
    reads: list[int] = []

    def read() -> int:
        assert lock.acquire(blocking=False)
        reads.append(len(reads))
        lock.release()
        if len(reads) < THREADS // 2:
            raise Unavailable("no answer")
        return len(reads)

    def outcome() -> int | None:
        meeting.wait()
        try:
            return lists.get(0.0, "a", read)
        except Unavailable:
            return None

    with ThreadPoolExecutor(max_workers=THREADS) as threads:
        outcomes = [call.result() for call in [threads.submit(outcome) for _ in range(THREADS)]]
    assert len(reads) == THREADS // 2
    assert Counter(outcomes) == {None: THREADS // 2 - 1, THREADS // 2: THREADS // 2 + 1}


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
    class Large(list[int]):
        """List with weak references."""

    lists = SharedLists()
    kept = weakref.ref(lists.get(0.0, "a", Large))
    lists.forget_expired(2.0)
    assert kept() is not None
    lists.forget_expired(2.1)
    assert kept() is None
