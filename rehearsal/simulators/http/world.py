"""Base of the state of all simulated services: settings, faults, clock, and scheduled callbacks."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from rehearsal.simulators.http.faults import BaseFault, FaultBook
from rehearsal.simulators.http.settings import BaseSettings

Settings = TypeVar("Settings", bound=BaseSettings)
Fault = TypeVar("Fault", bound=BaseFault)


Clock = Callable[[], datetime]


def system_clock() -> Clock:
    """Return a clock that begins with the current time, and never jumps, because it follows the monotonic clock."""
    wall, monotonic = datetime.now(UTC), time.monotonic()
    return lambda: wall + timedelta(seconds=time.monotonic() - monotonic)


class Timeline:
    """Callbacks in the order of their times. Not thread-safe: the owner holds a lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, Callable[[datetime], None]]] = []
        self._numbers = itertools.count()
        #: Called after each added callback. Must not block, because the owner holds its lock.
        self.on_added: Callable[[], None] = lambda: None

    def at(self, when: datetime, callback: Callable[[datetime], None]) -> None:
        """Schedule one call of a callback, whose argument is the scheduled time."""
        heapq.heappush(self._heap, (when, next(self._numbers), callback))
        self.on_added()

    def run(self, now: datetime) -> None:
        """Run all callbacks that are due; callbacks may add more."""
        while self._heap and self._heap[0][0] <= now:
            when, _, callback = heapq.heappop(self._heap)
            callback(when)

    @property
    def next_due(self) -> datetime | None:
        """Time of the next callback; None if nothing is scheduled."""
        return self._heap[0][0] if self._heap else None


class BaseWorld(Generic[Settings, Fault]):
    """State of a simulated service. It changes only by calls and with its clock, and has no sockets.

    Each call of the API first runs the callbacks that are due, so it sees the current state. One lock protects the
    state, which is only in memory.
    """

    def __init__(self, settings: Settings, *, clock: Clock, rng: random.Random | None = None) -> None:
        self.faults: FaultBook[Fault] = FaultBook()
        self.timeline = Timeline()
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - names, places and jitter, no secrets
        self._lock = threading.RLock()

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self._settings

    def _current_settings(self) -> Settings:
        return self._settings

    def change_settings(self, changes: dict[str, Any]) -> Settings:
        """Change the named settings, for operations that begin from now on; return all settings."""
        with self._lock:
            self._settings = self._settings.changed(changes)
            return self._settings

    @contextmanager
    def moment(self) -> Iterator[datetime]:
        """Run the callbacks that are due and return the time; the lock is held until the context ends."""
        with self._lock:
            now = self._clock()
            self.timeline.run(now)
            yield now

    def now(self) -> datetime:
        """Run the callbacks that are due and return the time."""
        with self.moment() as now:
            return now

    def advance(self) -> datetime | None:
        """Run the callbacks that are due and return the time of the next one."""
        with self.moment():
            return self.timeline.next_due

    def release(self) -> None:
        """Resume operations that removed faults delayed. The default does nothing."""
