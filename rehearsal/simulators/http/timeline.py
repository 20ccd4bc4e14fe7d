"""Clocks and the list of what is due when."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]


def system_clock() -> Clock:
    """Return a clock that tells the time of day and never jumps: it advances with the monotonic clock."""
    wall, monotonic = datetime.now(UTC), time.monotonic()
    return lambda: wall + timedelta(seconds=time.monotonic() - monotonic)


class Timeline:
    """Callbacks in the order of their times; not thread-safe, its owner locks."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, Callable[[datetime], None]]] = []
        self._numbers = itertools.count()
        self.on_added: Callable[[], None] = lambda: None
        """Called whenever something was added; it must only take note."""

    def at(self, when: datetime, callback: Callable[[datetime], None]) -> None:
        """Call back once at the time, with that time."""
        heapq.heappush(self._heap, (when, next(self._numbers), callback))
        self.on_added()

    def run(self, now: datetime) -> None:
        """Call back everything that is due; callbacks may add more."""
        while self._heap and self._heap[0][0] <= now:
            when, _, callback = heapq.heappop(self._heap)
            callback(when)

    @property
    def next_due(self) -> datetime | None:
        """When the next callback is due."""
        return self._heap[0][0] if self._heap else None
