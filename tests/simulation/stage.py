"""What all parts of one run share: the one source of chance, the agenda, the objects, the history, the counts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from tests.simulation.agenda import Agenda
from tests.simulation.store import Store


class Violated(BaseException):
    """An invariant does not hold; ends the run, so nothing between here and there may catch it."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history."""

    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.3f}  {self.who:<12} {self.what}"


class Stage:
    """One run's surroundings."""

    def __init__(self, seed: int, *, recording: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.agenda = Agenda()
        self.store = Store()
        self.recording = recording
        self.history: list[Entry] = []
        #: Faults injected, by kind.
        self.faults: Counter[str] = Counter()
        #: Whether faults may still happen.
        self.stormy = True

    def note(self, who: str, what: str, *values: object) -> None:
        """Write a line of history, where somebody is going to read it."""
        if self.recording:
            self.history.append(Entry(at=self.agenda.now, who=who, what=what % values if values else what))

    def fault(self, kind: str, what: str, *values: object) -> None:
        """Count a fault."""
        self.faults[kind] += 1
        self.note("fault", f"{kind}: {what}", *values)

    def chance(self, probability: float) -> bool:
        """Toss a coin."""
        return self.rng.random() < probability

    def violate(self, invariant: str, text: str) -> None:
        """End the run: something that must never happen has happened."""
        self.note("VIOLATION", "%s: %s", invariant, text)
        raise Violated(invariant, text)
