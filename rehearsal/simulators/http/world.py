"""The memory of every simulated service: its settings, its faults, its clock, and what is due when."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from abc import ABC, abstractmethod
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


class BaseWorld(ABC, Generic[Settings, Fault]):
    """Everything that a simulated service knows. It is moved by its clock alone, and knows no sockets.

    Every method first lets happen what is due, so a reader never sees a late state, and `advance` does the same for
    those who only wait. One lock covers all of it. State lives in memory and ends with the process.
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
        """The settings in force."""
        return self._settings

    def _current_settings(self) -> Settings:
        return self._settings

    def change_settings(self, changes: dict[str, Any]) -> Settings:
        """Change the settings that are named, for what begins from now on, and return all."""
        with self._lock:
            self._settings = self._settings.changed(changes)
            return self._settings

    @contextmanager
    def moment(self) -> Iterator[datetime]:
        """Let happen what is due and return the time, at which only the caller changes anything."""
        with self._lock:
            now = self._clock()
            self.timeline.run(now)
            yield now

    def now(self) -> datetime:
        """Let happen what is due and return the time."""
        with self.moment() as now:
            return now

    def advance(self) -> datetime | None:
        """Let happen what is due and return when there will be more."""
        with self.moment():
            return self.timeline.next_due

    @abstractmethod
    def release(self) -> None:
        """Let go on what was held by faults that are no longer in force."""
