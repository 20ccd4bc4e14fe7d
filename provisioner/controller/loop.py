"""Loop of a controller: rounds of observe, decide, act and report, which start at events and when an action is due."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from provisioner.controller.actor import CallingActor
from provisioner.kube.watches import Watch
from provisioner.model import bounds
from provisioner.runtime.clock import FollowedClock, shifted
from provisioner.runtime.metrics import LoopMetrics

_log = structlog.get_logger(__name__)

#: Minimum seconds between two rounds, so that many events result in few rounds.
GAP_SECONDS = 0.05
#: Maximum seconds between two rounds: even without events, `failures` and conditions that depend on time need rounds.
LONGEST_PAUSE_SECONDS = 15.0
#: Seconds without a completed round after which the loop counts as dead. A round takes less, even if calls time out.
DEAD_AFTER_SECONDS = 300.0
_CRASHED_PAUSE_SECONDS = 1.0
#: Maximum characters of a logged result. Names are at its beginning; the rest may be users' texts.
_SHOWN_CHARACTERS = 200


class Wake(threading.Event):
    """Event that wakes a loop, with the time of the first `set` since the last wake-up. Any thread may set it."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._asked_at: float | None = None

    def set(self) -> None:
        """Wake the loop."""
        # No lock is needed: two threads that set the time at the same moment set almost equal times.
        if self._asked_at is None:
            self._asked_at = self._monotonic()
        super().set()

    def asked_seconds_ago(self) -> float | None:
        """Return the seconds since the first `set` after the last call of this method; None if `set` was not called."""
        asked_at, self._asked_at = self._asked_at, None
        return None if asked_at is None else max(0.0, self._monotonic() - asked_at)


A = TypeVar("A")


@dataclass(slots=True, kw_only=True)
class RoundLoop(ABC, Generic[A]):
    """Runs rounds of a controller until `stopping` is set. Only the thread of `run` uses `memory` and `reporter`."""

    actor: CallingActor[A]
    #: Has the methods `tell(plan, snapshot)` and `tell_answer(answer)`.
    reporter: Any
    metrics: LoopMetrics
    #: State that one decision passes to the next, such as the submitted calls without a recorded result.
    memory: Any
    is_leader: Callable[[], bool]
    clock: FollowedClock
    wake: Wake
    stopping: threading.Event
    monotonic: Callable[[], float] = time.monotonic
    _last_round_monotonic: float = 0.0

    @abstractmethod
    def round(self) -> float:
        """Do one round; return the maximum seconds until the next round if no event occurs."""

    @abstractmethod
    def fold(self, answer: A) -> None:
        """Record the result of a call in the memory."""

    def clock_set(self, by: timedelta) -> None:
        """Add `by`, the change of the machine's clock, to all times in the memory."""
        self.memory = shifted(self.memory, by)

    def begin(self, watches: Mapping[str, Watch[Any]], *, optional: Collection[str] = ()) -> bool:
        """Update metrics of watches, record results, and adopt the clock; return whether this process leads."""
        # The API server may lack the kinds of `optional` watches.
        for name, watch in watches.items():
            if name in optional and watch.missing:
                self.metrics.forget_watch(name)
            else:
                self.metrics.set_watch(
                    name, synced=watch.synced, last_contact=watch.last_contact_monotonic, now=self.monotonic()
                )
        leading = self.is_leader()
        self.metrics.leader.set(leading)
        # Results are recorded before `follow` adopts the machine's clock, because their times are from the old clock.
        while (answer := self.actor.take_answer()) is not None:
            try:
                self.fold(answer)
            except Exception:  # noqa: BLE001 - one answer's boundary; its call remains open
                _log.exception("answer.crashed", answer=bounds.cut(repr(answer), _SHOWN_CHARACTERS))
            self.report(partial(self.reporter.tell_answer, answer))
        if by := self.clock.follow():
            _log.warning("clock.set", by_seconds=round(by.total_seconds(), 3))
            self.clock_set(by)
        return leading

    def carry_out(self, plan: Any, snapshot: Any) -> None:
        """Store a plan's memory. If the snapshot is synced, also submit and report the plan."""
        # If the submission crashes, open calls that were not submitted count as lost after 60 s.
        self.memory = plan.memory
        if not snapshot.not_synced:
            self.actor.carry_out(plan)
            self.report(partial(self.reporter.tell, plan, snapshot))

    def pause_seconds(self, wake_at: datetime | None, *, due_in_seconds: float) -> float:
        """Return the seconds to the next round: the minimum of `due_in_seconds`, time to `wake_at`, and 15 s."""
        moments = [LONGEST_PAUSE_SECONDS, due_in_seconds]
        if wake_at is not None:
            moments.append((wake_at - self.clock()).total_seconds())
        return max(0.0, min(moments))

    def report(self, tell: Callable[[], None]) -> None:
        """Call `tell`, which reports to users. An error in `tell` is logged and otherwise ignored."""
        try:
            tell()
        except Exception:  # noqa: BLE001 - the reporter's boundary
            _log.exception("report.crashed")

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
                # The loop continues after any error, because the next round reads the current state again.
                _log.exception("round.crashed")
                pause, result = _CRASHED_PAUSE_SECONDS, "crashed"
            self._last_round_monotonic = self.monotonic()
            self.metrics.observe_round(
                seconds=self._last_round_monotonic - started, result=result, ended_at_seconds=self.clock().timestamp()
            )
            self.stopping.wait(GAP_SECONDS)
            self.wake.wait(max(0.0, pause - GAP_SECONDS))

    def failures(self) -> Sequence[str]:
        """Return a reason for a restart if no round ended, nor `run` began, in the last DEAD_AFTER_SECONDS."""
        dead = self.monotonic() - self._last_round_monotonic >= DEAD_AFTER_SECONDS
        return ("the loop has stopped making rounds",) if dead else ()
