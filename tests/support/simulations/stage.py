"""Common parts of one run of a simulation: random numbers, virtual time, history."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from rehearsal.simulators.http.world import BaseWorld

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: Maximum depth of nested waits; a deeper wait passes without events, because more nesting finds no further bugs.
_DEEPEST = 6


class Agenda:
    """Virtual time: callbacks in the order of their times, or of their creation if the times are equal.

    `wait` may be called in a callback. Callbacks that are due in the meantime then run nested, like other threads and
    machines during a call. The time never decreases.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._depth = 0

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back at a time, or immediately if it has passed."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._numbers), callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after a number of seconds."""
        self.at(self.now + seconds, callback)

    def wait(self, seconds: float) -> None:
        """Advance the time, and run all callbacks that are due."""
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
        """Return the time of day, by a clock that may be wrong."""
        return EPOCH + timedelta(seconds=self.now + skew_seconds)


def seconds_of(moment: datetime) -> float:
    """Return the virtual time of a time of day."""
    return (moment - EPOCH).total_seconds()


class Violated(BaseException):
    """An invariant is violated. Ends the run, so no other code may catch the error."""


class Stage:
    """Environment of one run."""

    #: Width of the column of the actor in the history.
    who_width = 10

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.recording = recording
        self.history: list[str] = []
        #: Number of injected faults by kind.
        self.faults: Counter[str] = Counter()
        #: Whether faults may be injected.
        self.stormy = True

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after a number of seconds."""
        self.agenda.after(seconds, callback)

    def often(self, seconds: float, act: Callable[[], None]) -> None:
        """Call an action at random intervals with this mean, until the storm is over."""

        def once() -> None:
            if self.stormy:
                act()
                self.often(seconds, act)

        self.after(self.rng.uniform(0.3, 1.7) * seconds, once)

    def drive(self, world: BaseWorld[Any, Any]) -> None:
        """Advance a simulated cloud whenever one of its events is due."""
        ticks: set[float] = set()

        def follow() -> None:
            if (due := world.timeline.next_due) is None:
                return
            # Virtual seconds are floats, and the cloud's are microseconds: round up, so that the event is due.
            when = seconds_of(due) + 1e-5
            if when not in ticks:
                ticks.add(when)
                self.agenda.at(when, lambda: tick(when))

        def tick(when: float) -> None:
            ticks.discard(when)
            world.advance()
            follow()

        world.timeline.on_added = follow

    def wall(self) -> datetime:
        """Return the time of day."""
        return self.agenda.wall()

    def chance(self, probability: float) -> bool:
        """Return a random Boolean."""
        return self.rng.random() < probability

    def note(self, who: str, what: str, *values: object) -> None:
        """Write a line of the history if it is recorded."""
        if self.recording:
            self.history.append(f"{self.agenda.now:10.3f}  {who:<{self.who_width}} {what % values if values else what}")

    def note_digest(self, who: str, what: str, *values: object) -> None:
        """Write a line of the history with a hash of values that are too long for it."""
        if self.recording:
            self.note(who, "%s %s", what, hashlib.sha256(repr(values).encode()).hexdigest()[:16])

    def fault(self, kind: str, what: str, *values: object) -> None:
        """Count a fault."""
        self.faults[kind] += 1
        self.note("fault", f"{kind}: {what}", *values)

    def violate(self, *words: str) -> None:
        """End the run because of a violation."""
        text = ": ".join(words)
        self.note("VIOLATION", "%s", text)
        raise Violated(text)
