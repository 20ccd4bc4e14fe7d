"""Calls in threads: each has one result or is logged, no call blocks the caller, and live calls are known by key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import cast

import pytest

from provisioner.controller.actor import CallingActor
from provisioner.runtime.clock import wall_clock


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool of one thread, so that later calls wait."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        yield executor


def actor(on_answer: Callable[[], None] = lambda: None) -> CallingActor[str]:
    return CallingActor(clock=wall_clock, lease_seconds=lambda: 0.0, on_answer=on_answer)


class Full:
    """Thread pool that cannot start a thread. It rejects a call, or queues the call and then raises."""

    def __init__(self, *, queues: bool) -> None:
        self._queues = queues
        self.queued: list[Callable[[], None]] = []

    def submit(self, call: Callable[..., None], *arguments: object) -> None:
        if self._queues:
            self.queued.append(lambda: call(*arguments))
        raise RuntimeError("can't start new thread")


def test_key_is_live_until_its_result_is_taken(thread: ThreadPoolExecutor) -> None:
    woken = threading.Event()
    calls = actor(woken.set)
    assert calls.submit(lambda: "done", thread, key="a")
    assert calls.wait_until_idle(timeout_seconds=10)
    assert (calls.live(), woken.is_set()) == ({"a"}, True)
    assert (calls.take_answer(), calls.take_answer(), calls.live()) == ("done", None, frozenset())


def test_crashed_call_is_not_live_and_does_not_prevent_other_calls(thread: ThreadPoolExecutor) -> None:
    calls = actor()

    def crash() -> str:
        raise ValueError("a mistake")

    calls.submit(crash, thread, key="a")
    calls.submit(lambda: "done", thread, key="b")
    assert calls.wait_until_idle(timeout_seconds=10)
    assert (calls.live(), calls.take_answer(), calls.take_answer()) == ({"b"}, "done", None)


def test_result_is_kept_if_the_listener_raises(thread: ThreadPoolExecutor) -> None:
    """The result is recorded before the listener is called."""

    def crash() -> None:
        raise ValueError("a mistake")

    calls = actor(crash)
    calls.submit(lambda: "done", thread, key="a")
    assert calls.wait_until_idle(timeout_seconds=10)
    assert (calls.live(), calls.take_answer()) == ({"a"}, "done")


@pytest.mark.parametrize("queues", [False, True], ids=["it is not queued", "it is queued all the same"])
def test_call_that_cannot_be_submitted_has_a_result_and_is_never_made(*, queues: bool) -> None:
    """The thread pool may run the queued call later, which must then do nothing."""
    calls = actor()
    full = Full(queues=queues)
    assert not calls.submit(lambda: "made", cast(Executor, full), key="a", not_sent=lambda why: why)
    for late in full.queued:
        late()
    assert calls.wait_until_idle(timeout_seconds=0)
    assert calls.live() == {"a"}
    assert calls.take_answer() == "Not sent: the process could not start a thread for it."
    assert (calls.take_answer(), calls.live()) == (None, frozenset())


def test_drain_drops_calls_that_have_not_begun(thread: ThreadPoolExecutor) -> None:
    entered, release = threading.Event(), threading.Event()
    calls = actor()

    def wait() -> str:
        entered.set()
        assert release.wait(10)
        return "first"

    calls.submit(wait, thread, key="a")
    calls.submit(lambda: "second", thread, key="b")
    assert entered.wait(10)
    assert not calls.drain(timeout_seconds=0.01)
    assert calls.under_way == 2
    release.set()
    assert calls.wait_until_idle(timeout_seconds=10)
    assert (calls.take_answer(), calls.take_answer(), calls.live()) == ("first", None, frozenset())
