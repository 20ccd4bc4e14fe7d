"""A loop that works in rounds: a woken one starts at once; without events one is made when something is due."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, TypeVar

import structlog

from provisioner.model import bounds
from provisioner.runtime.clock import FollowedClock
from provisioner.runtime.metrics import LoopMetrics

_log = structlog.get_logger(__name__)

#: Rounds are at least this far apart, so that a storm of events becomes a few rounds.
GAP_SECONDS = 0.05
#: Without any event, a round at least this often: the heartbeat, and a look at what only time changes.
LONGEST_PAUSE_SECONDS = 15.0
#: Without a round for this long the loop counts as dead; longer than all time-outs of one round together.
DEAD_AFTER_SECONDS = 300.0
_CRASHED_PAUSE_SECONDS = 1.0
#: Of an answer, which says first what it answers; users write the rest.
_SHOWN_CHARACTERS = 200


class Wake(threading.Event):
    """Wakes a loop, and remembers when it was first asked to. Set from any thread; taken by the loop's own."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._asked_at: float | None = None

    def set(self) -> None:
        """Wake the loop."""
        # Two threads at once differ by less than anybody measures.
        if self._asked_at is None:
            self._asked_at = self._monotonic()
        super().set()

    def asked_seconds_ago(self) -> float | None:
        """Return how long ago it was set first since this was last asked; None: it was not."""
        asked_at, self._asked_at = self._asked_at, None
        return None if asked_at is None else max(0.0, self._monotonic() - asked_at)


A = TypeVar("A")


@dataclass(slots=True, kw_only=True)
class RoundLoop(ABC, Generic[A]):
    """Makes rounds until told to stop. All parts belong to the loop's thread."""

    metrics: LoopMetrics
    #: The one that all parts go by.
    clock: FollowedClock
    #: Set by whatever asks for a round.
    wake: Wake
    stopping: threading.Event
    monotonic: Callable[[], float] = time.monotonic
    _last_round_monotonic: float = 0.0

    @abstractmethod
    def round(self) -> float:
        """Do one round; return how many seconds the next may wait where nothing happens."""

    def run(self) -> None:
        """Run rounds until `stopping` is set."""
        self._last_round_monotonic = self.monotonic()
        while not self.stopping.is_set():
            lag_seconds = self.wake.asked_seconds_ago()
            if lag_seconds is not None:
                self.metrics.loop_lag_seconds.observe(lag_seconds)
            self.wake.clear()
            started = self.monotonic()
            try:
                pause = self.round()
                result = "ok"
            except Exception:  # noqa: BLE001 - the loop's boundary
                # Whatever it was, the next round starts from the world as it is.
                _log.exception("round.crashed")
                pause, result = _CRASHED_PAUSE_SECONDS, "crashed"
            self._last_round_monotonic = self.monotonic()
            self.metrics.observe_round(
                seconds=self._last_round_monotonic - started,
                result=result,
                ended_at_seconds=self.clock().timestamp(),
            )
            self.stopping.wait(GAP_SECONDS)
            self.wake.wait(max(0.0, pause - GAP_SECONDS))

    def alive(self) -> bool:
        """Whether rounds are made."""
        return self.monotonic() - self._last_round_monotonic < DEAD_AFTER_SECONDS

    def follow_clock(self) -> timedelta:
        """Return by how much somebody set the clock, zero where nobody did; what is remembered moves along."""
        by = self.clock.follow()
        if by:
            _log.warning("clock.set", by_seconds=round(by.total_seconds(), 3))
        return by

    def pause_seconds(self, wake_at: datetime | None, *, due_in_seconds: float) -> float:
        """Return how long the next round may wait: until `wake_at` or what else is due, or until the heartbeat."""
        moments = [LONGEST_PAUSE_SECONDS, due_in_seconds]
        if wake_at is not None:
            moments.append((wake_at - self.clock()).total_seconds())
        return max(0.0, min(moments))

    def take_in(self, take: Callable[[], A | None], fold: Callable[[A], None], tell: Callable[[A], None]) -> None:
        """Remember what answers say, and tell people; an answer that cannot be taken in stays open."""
        while (answer := take()) is not None:
            try:
                fold(answer)
            except Exception:  # noqa: BLE001 - one answer's boundary
                _log.exception("answer.crashed", answer=bounds.cut(repr(answer), _SHOWN_CHARACTERS))
            self.report(partial(tell, answer))

    def report(self, tell: Callable[[], None]) -> None:
        """Tell people something; what cannot be told keeps nothing from being done."""
        try:
            tell()
        except Exception:  # noqa: BLE001 - the reporter's boundary
            _log.exception("report.crashed")
