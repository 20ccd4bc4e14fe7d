"""The loop of node groups: observe, decide, act, and tell people."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from provisioner.nodegroups.act import Actor
from provisioner.nodegroups.metrics import Metrics
from provisioner.nodegroups.observe import ClusterReader, Watches, not_synced, take_snapshot
from provisioner.nodegroups.planning import answers
from provisioner.nodegroups.planning.decide import Plan, decide
from provisioner.nodegroups.planning.memory import Memory
from provisioner.nodegroups.planning.snapshot import PlanningSettings, Snapshot
from provisioner.nodegroups.report import Reporter
from provisioner.runtime.clock import shifted
from provisioner.runtime.rounds import LONGEST_PAUSE_SECONDS, RoundLoop


@dataclass(slots=True, kw_only=True)
class Loop(RoundLoop[answers.Answer]):
    """Observe, decide, act, until told to stop. `memory` and all parts belong to the loop's thread."""

    settings: PlanningSettings
    watches: Watches
    cluster: ClusterReader
    actor: Actor
    reporter: Reporter
    metrics: Metrics
    is_leader: Callable[[], bool]
    memory: Memory = field(default_factory=Memory)
    last_plan: Plan | None = None

    def problems(self) -> tuple[str, ...]:
        """Say what keeps the controller from its work; a follower that waits for the lease has no problem."""
        doubt = self.cluster.doubt() if self.is_leader() else ""
        return (*not_synced(self.watches), *((doubt,) if doubt else ()))

    def round(self) -> float:
        """Do one round; return how many seconds the next may wait where nothing happens."""
        for name, watch in self.watches.named().items():
            contact = watch.last_contact_monotonic
            age = time.monotonic() - contact if contact is not None else float("inf")
            self.metrics.set_watch(name, synced=watch.synced, last_contact_age_seconds=age)
        leading = self.is_leader()
        self.metrics.set_leader(leading=leading)
        if not leading:
            return LONGEST_PAUSE_SECONDS
        # Answers first: they are stamped by the clock as it was until now.
        self.take_in(self.actor.take_answer, self._fold, self.reporter.tell_answer)
        if by := self.follow_clock():
            # What was concluded by the old time is concluded anew.
            self.memory, self.last_plan = shifted(self.memory, by), None
        if self.cluster.due_in_seconds(self.clock()) <= 0:
            self.cluster.read()
        snapshot, plan = self._decide()
        # First what is remembered as being under way. Should it fail as a whole, what is no live call of the actor
        # counts a minute later as a call whose outcome nobody knows.
        self.memory, self.last_plan = plan.memory, plan
        if not snapshot.not_synced:
            self.actor.carry_out(plan)
            self.report(functools.partial(self.reporter.tell, plan, snapshot))
        return self.pause_seconds(plan.wake_at, due_in_seconds=self.cluster.due_in_seconds(self.clock()))

    def _fold(self, answer: answers.Answer) -> None:
        self.memory = answers.fold(self.memory, answer)

    def _decide(self) -> tuple[Snapshot, Plan]:
        snapshot = take_snapshot(self.watches, self.cluster, self.actor.live())
        started = self.monotonic()
        last = self.last_plan.units if self.last_plan is not None else {}
        plan = decide(snapshot, self.memory, self.settings, self.clock(), last)
        self.metrics.observe_decide(seconds=self.monotonic() - started)
        return snapshot, plan
