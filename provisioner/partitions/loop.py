"""The loop of partitions: observe, decide, act, and tell people."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from provisioner import kube
from provisioner.partitions.act import Actor
from provisioner.partitions.board import Board
from provisioner.partitions.demand import Pod
from provisioner.partitions.metrics import Metrics
from provisioner.partitions.observe import Known, take_snapshot
from provisioner.partitions.planning import answers
from provisioner.partitions.planning.calls import Answer
from provisioner.partitions.planning.decide import decide
from provisioner.partitions.planning.memory import Memory
from provisioner.partitions.planning.plan import Plan
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.report import Reporter
from provisioner.runtime.clock import shifted
from provisioner.runtime.rounds import LONGEST_PAUSE_SECONDS, RoundLoop


@dataclass(slots=True, kw_only=True)
class Loop(RoundLoop[Answer]):
    """Observe, decide, act, until told to stop. `memory` and all parts belong to the loop's thread."""

    settings: PlanningSettings
    pods: kube.Watch[Pod]
    known: Known
    actor: Actor
    reporter: Reporter
    metrics: Metrics
    board: Board
    is_leader: Callable[[], bool]
    memory: Memory = field(default_factory=Memory)
    last_plan: Plan | None = None

    def problems(self) -> tuple[str, ...]:
        """Say what keeps the controller from its work; a follower that waits for the lease has no problem."""
        snapshot = take_snapshot(self.pods, self.known)
        doubts = snapshot.not_synced if self.is_leader() else ()
        return tuple(each for each in doubts if each)

    def round(self) -> float:
        """Do one round; return how many seconds the next may wait where nothing happens."""
        contact = self.pods.last_contact_monotonic
        age = time.monotonic() - contact if contact is not None else float("inf")
        self.metrics.set_watch("pods", synced=self.pods.synced, last_contact_age_seconds=age)
        leading = self.is_leader()
        self.metrics.set_leader(leading=leading)
        # Answers first: they are stamped by the clock as it was until now.
        self.take_in(self.actor.take_answer, self._fold, self.reporter.tell_answer)
        if by := self.follow_clock():
            self.memory = shifted(self.memory, by)
            self.known.clock_set(by)
        if self.known.due_in_seconds(self.clock(), leading=leading) <= 0:
            self.known.read(leading=leading)
        if not leading:
            self.board.stand_by()
            due = self.known.due_in_seconds(self.clock(), leading=False)
            return max(0.0, min(LONGEST_PAUSE_SECONDS, due))
        snapshot = take_snapshot(self.pods, self.known, self.actor.live())
        # The reporter tells nothing of a round without it.
        self.metrics.set_ledger_known(known=snapshot.ledger is not None)
        started = self.monotonic()
        plan = decide(snapshot, self.memory, self.settings, self.clock())
        self.metrics.observe_decide(seconds=self.monotonic() - started)
        # First what is remembered as being under way.
        self.memory, self.last_plan = plan.memory, plan
        self.board.publish(plan, snapshot, self.clock())
        if not snapshot.not_synced:
            self.actor.carry_out(plan)
            self.report(functools.partial(self.reporter.tell, plan, snapshot, self.clock()))
        return self.pause_seconds(plan.wake_at, due_in_seconds=self.known.due_in_seconds(self.clock(), leading=True))

    def _fold(self, answer: Answer) -> None:
        self.known.fold(answer)
        self.memory = answers.fold(self.memory, answer)
