"""Virtual time: what happens when, and nothing happens in between.

`wait` may be called from inside a callback: whatever is due meanwhile happens then, nested, as other threads and other
machines do things while a call is on its way. Time never goes back.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: Deeper than this a wait passes at once: calls within calls within calls prove nothing more.
_DEEPEST = 6


class Agenda:
    """Callbacks in the order of their times, and of their making where the times are equal."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._depth = 0

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back at a moment, at once where it has passed."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._numbers), callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after some time."""
        self.at(self.now + seconds, callback)

    def wait(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due in it."""
        end = self.now + seconds
        if self._depth >= _DEEPEST:
            return
        self._depth += 1
        heap = self._heap
        try:
            while heap and heap[0][0] <= end:
                when, _, callback = heapq.heappop(heap)
                self.now = max(self.now, when)
                callback()
        finally:
            self._depth -= 1
        self.now = max(self.now, end)

    def wall(self, skew_seconds: float = 0.0) -> datetime:
        """Return the time of day, by a clock that may run wrong."""
        return EPOCH + timedelta(seconds=self.now + skew_seconds)


def seconds_of(moment: datetime) -> float:
    """Return the virtual time of a time of day."""
    return (moment - EPOCH).total_seconds()
