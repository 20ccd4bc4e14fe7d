"""Wake: an Event that has the time of the first call of `set`."""

from __future__ import annotations

from provisioner.controller.loop import Wake
from tests.support.clock import FakeClock


def test_time_of_a_wake_is_that_of_the_first_call() -> None:
    """The first call has waited longest, so its time counts."""
    clock = FakeClock()
    wake = Wake(clock)
    assert wake.asked_seconds_ago() is None
    wake.set()
    clock.advance(2)
    wake.set()
    clock.advance(3)
    assert wake.is_set()
    assert wake.asked_seconds_ago() == 5


def test_time_of_a_wake_is_returned_once() -> None:
    """The next round needs the time of its own first event."""
    clock = FakeClock()
    wake = Wake(clock)
    wake.set()
    assert wake.asked_seconds_ago() == 0
    assert wake.asked_seconds_ago() is None
    clock.advance(7)
    wake.set()
    clock.advance(1)
    assert wake.asked_seconds_ago() == 1
