"""What one step of a decision comes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from provisioner.partitions.planning.calls import Call, OpenGate, TakeBack
from provisioner.partitions.planning.plan import Event


class Urgency(IntEnum):
    """What is called first."""

    READ = 0
    #: Creates and removals by turns: neither kind, where it hangs, keeps the other waiting.
    CHANGE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call that a step wants made; of equal urgency whatever has been due for longest."""

    call: Call
    urgency: Urgency
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something to tell people of a pod, once."""

    #: Of equal ones of a pod one is told.
    topic: str
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Calls, gates to open, partitions to take back, words, and when to look again."""

    calls: tuple[Wanted, ...] = ()
    gates: tuple[OpenGate, ...] = ()
    returns: tuple[TakeBack, ...] = ()
    notices: tuple[Notice, ...] = ()
    moments: tuple[datetime, ...] = ()


NOTHING = Step()


def merged(steps: Iterable[Step]) -> Step:
    """Put steps together, in their order."""
    every = tuple(steps)
    return Step(
        calls=tuple(each for step in every for each in step.calls),
        gates=tuple(each for step in every for each in step.gates),
        returns=tuple(each for step in every for each in step.returns),
        notices=tuple(each for step in every for each in step.notices),
        moments=tuple(each for step in every for each in step.moments),
    )
