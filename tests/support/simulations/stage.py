"""What all parts of one run of a simulation share: chance, time, the history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from tests.simulation.agenda import Agenda


class Violated(BaseException):
    """An invariant does not hold; ends the run, so nothing between here and there may catch it."""


class Stage:
    """One run's surroundings."""

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.recording = recording
        self.history: list[str] = []
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

    def wall(self) -> datetime:
        """Return the time of day."""
        return self.agenda.wall()

    def chance(self, probability: float) -> bool:
        """Toss a coin."""
        return self.rng.random() < probability

    def note(self, who: str, what: str, *values: object) -> None:
        """Write a line of history, where somebody is going to read it."""
        if self.recording:
            self.history.append(f"{self.agenda.now:10.3f}  {who:<10} {what % values if values else what}")

    def fault(self, kind: str, what: str) -> None:
        """Count a fault."""
        self.faults[kind] += 1
        self.note("fault", "%s: %s", kind, what)

    def violate(self, text: str) -> None:
        """End the run: something that must never happen has happened."""
        self.note("VIOLATION", "%s", text)
        raise Violated(text)
