"""What all parts of one run of a simulation share: chance, time, the history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rehearsal.simulators.http.world import BaseWorld
from tests.simulation.agenda import Agenda, seconds_of


class Violated(BaseException):
    """An invariant does not hold; ends the run, so nothing between here and there may catch it."""


class Stage:
    """One run's surroundings."""

    #: How wide the column is in which the history says who did something.
    who_width = 10

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.recording = recording
        self.history: list[str] = []
        #: Faults injected, by kind.
        self.faults: Counter[str] = Counter()
        #: Whether faults may still happen.
        self.stormy = True

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after some time."""
        self.agenda.after(seconds, callback)

    def often(self, seconds: float, act: Callable[[], None]) -> None:
        """Let something happen about this often, until the storm is over."""

        def once() -> None:
            if self.stormy:
                act()
                self.often(seconds, act)

        self.after(self.rng.uniform(0.3, 1.7) * seconds, once)

    def drive(self, world: BaseWorld[Any, Any]) -> None:
        """Let a simulated cloud advance as soon as something is due in it."""
        ticks: set[float] = set()

        def follow() -> None:
            if (due := world.timeline.next_due) is None:
                return
            # Virtual seconds are floats, the world's are microseconds: a little later, never a little early.
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
        """Toss a coin."""
        return self.rng.random() < probability

    def note(self, who: str, what: str, *values: object) -> None:
        """Write a line of history, where somebody is going to read it."""
        if self.recording:
            self.history.append(f"{self.agenda.now:10.3f}  {who:<{self.who_width}} {what % values if values else what}")

    def fault(self, kind: str, what: str, *values: object) -> None:
        """Count a fault."""
        self.faults[kind] += 1
        self.note("fault", f"{kind}: {what}", *values)

    def violate(self, *words: str) -> None:
        """End the run: something that must never happen has happened."""
        text = ": ".join(words)
        self.note("VIOLATION", "%s", text)
        raise Violated(text)
