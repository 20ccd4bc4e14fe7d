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
#: Maximum depth of nested waits. A deeper wait returns immediately, because more nesting has shown no further bugs.
_DEEPEST = 6


class Agenda:
    """Virtual time. Callbacks run in the order of their times, and callbacks of one time in the order of creation.

    A callback may call `wait`, which runs the callbacks that become due, like other threads during a blocking call.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._depth = 0

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Schedule a callback for `when`, or for now if `when` has passed. The callback runs during a `wait`."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._numbers), callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.at(self.now + seconds, callback)

    def wait(self, seconds: float) -> None:
        """Advance the time by `seconds`, and run callbacks that become due; do nothing in `_DEEPEST` nested waits."""
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
        return EPOCH + timedelta(seconds=self.now + skew_seconds)


def seconds_of(moment: datetime) -> float:
    return (moment - EPOCH).total_seconds()


class Violated(BaseException):
    """An invariant is violated. The error ends the run, so no other code may catch it."""


class Stage:
    """Random numbers, virtual time, faults and history of one run."""

    #: Width of the column of the history that names the actor.
    who_width = 10

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.recording = recording
        self.history: list[str] = []
        self.faults: Counter[str] = Counter()
        self.stormy = True

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.agenda.after(seconds, callback)

    def often(self, seconds: float, act: Callable[[], None]) -> None:
        """Call an action at random intervals with a mean of `seconds`, until `stormy` is False."""

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
            # The cloud rounds times to microseconds: 10 µs later, the event is certainly due when `tick` runs.
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
        return self.agenda.wall()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def note(self, who: str, what: str, *values: object) -> None:
        if self.recording:
            self.history.append(f"{self.agenda.now:10.3f}  {who:<{self.who_width}} {what % values if values else what}")

    def note_digest(self, who: str, what: str, *values: object) -> None:
        """Add a line with a hash of the values to the history, because the values are too long for a line."""
        if self.recording:
            self.note(who, "%s %s", what, hashlib.sha256(repr(values).encode()).hexdigest()[:16])

    def fault(self, kind: str, what: str, *values: object) -> None:
        self.faults[kind] += 1
        self.note("fault", f"{kind}: {what}", *values)

    def violate(self, *words: str) -> None:
        text = ": ".join(words)
        self.note("VIOLATION", "%s", text)
        raise Violated(text)
