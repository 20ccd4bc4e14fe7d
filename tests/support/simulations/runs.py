"""Plays one run until it ends, violates an invariant, or reaches its limit of CPU time."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType

from tests.support.simulations.stage import Stage, Violated


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one run."""

    seed: int
    problem: str = ""
    faults: Counter[str]
    #: Measured values, such as seconds; empty if the run has a problem.
    figures: Mapping[str, float] = field(default_factory=dict)
    history: tuple[str, ...] = ()


class _TakesTooLong(BaseException):
    """The run has used up its CPU time."""


def _take_too_long(_number: int, _frame: FrameType | None) -> None:
    raise _TakesTooLong


def outcome_of(story: Callable[[], Mapping[str, float]], stage: Stage, *, cpu_seconds: float) -> Outcome:
    """Call `story`, which plays one run and returns measured values or raises Violated, for at most `cpu_seconds`."""
    figures: Mapping[str, float] = {}
    problem = ""
    before = signal.signal(signal.SIGVTALRM, _take_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
    try:
        figures = story()
    except Violated as violation:
        problem = str(violation)
    except _TakesTooLong:
        problem = f"the run goes round in circles: still at {stage.agenda.now:.0f} s"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
    return Outcome(seed=stage.seed, problem=problem, faults=stage.faults, figures=figures, history=tuple(stage.history))
