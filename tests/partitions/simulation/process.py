"""Simulated controller process: the loop around `decide`, the execution of its plans, and faults of the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import AnsweredCall, AnsweredWrite, WriteFailure
from provisioner.partitions import names
from provisioner.partitions.planning import decide as deciding
from provisioner.partitions.planning.actions import (
    Answer,
    Call,
    ReadServer,
    RemovePartition,
    SaveLedger,
    TakeBack,
    Write,
)
from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.events import Event
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.planning.memory import Memory, fold
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.partitions.vipu.records import Reading
from provisioner.runtime.clock import shifted
from provisioner.settings.partitions import PartitionSettings
from tests.partitions.simulation.kube import CLUSTER, Declined, Kube
from tests.partitions.simulation.servers import VipuServer
from tests.support.simulations.stage import Stage

_LONGEST_PAUSE_SECONDS = 30.0
_ROUND_GAP_SECONDS = 0.05
_LEDGER_SECONDS = 60.0
#: Prefix of partition ids of this cluster; computed once, because a planted bug may change `id_prefix`.
_OWN_PREFIX = names.id_prefix(CLUSTER)
_BAD_ANSWERS = (
    FailureKind.UNAVAILABLE,
    FailureKind.PERMISSION,
    FailureKind.INVALID,
    FailureKind.STOCKOUT,
    FailureKind.TOO_MANY_OPERATIONS,
    FailureKind.OPERATION_IN_THE_WAY,
)


class Process:
    """A controller process, which runs until it is killed. The next process starts with an empty memory."""

    def __init__(
        self, stage: Stage, kube: Kube, servers: Mapping[str, VipuServer], settings: PartitionSettings
    ) -> None:
        self.stage, self.kube, self.servers, self.settings = stage, kube, servers, settings
        self.memory = Memory()
        self.alive = True
        self.answers: list[Answer] = []
        self.live: set[str] = set()
        self.sent: Counter[str] = Counter()
        self.events: list[Event] = []
        self.fault_chance = self.loss_chance = self.crash_chance = 0.0
        self.on_plan: Callable[[Snapshot, Plan], None] = lambda _snapshot, _plan: None
        self.on_crash: Callable[[Process], None] = lambda _process: None
        self.skew_seconds = 0.0
        self._ledger: Ledger | None = None
        self._ledger_read_at = 0.0
        self._readings: dict[str, Reading] = {}
        self._failing: dict[str, Failure] = {}
        self._next_round = float("inf")
        self.cache = kube.watch(self.wake)
        self.wake()

    def kill(self) -> None:
        """Stop immediately: requests that were sent take effect, and the memory is lost."""
        self.alive = False
        if self.cache in self.kube.caches:
            self.kube.caches.remove(self.cache)

    def now(self) -> datetime:
        return self.stage.wall() + timedelta(seconds=self.skew_seconds)

    def set_clock(self, seconds: float) -> None:
        """Shift the clock of the process and, as the loop does, all times in its memory."""
        self.skew_seconds += seconds
        by = timedelta(seconds=seconds)
        self.memory, self._readings = shifted(self.memory, by), shifted(self._readings, by)

    def wake(self) -> None:
        self._plan_round(_ROUND_GAP_SECONDS)

    def _plan_round(self, seconds: float) -> None:
        due = self.stage.agenda.now + seconds
        if not self.alive or due >= self._next_round:
            return
        self._next_round = due
        self.stage.after(seconds, lambda: self._round(due))

    def _round(self, due: float) -> None:
        if not self.alive or due != self._next_round:
            return
        self._next_round = float("inf")
        now = self.now()
        while self.answers:
            self._fold(self.answers.pop(0), now)
        if self._ledger is None or self.stage.agenda.now - self._ledger_read_at > _LEDGER_SECONDS:
            # The ledger is read again every 60 s, because a user may have repaired it by hand.
            self._ledger, self._ledger_read_at = self.kube.read_ledger(), self.stage.agenda.now
        snapshot = self._snapshot()
        plan = deciding.decide(snapshot, self.memory, self.settings, now)
        self.on_plan(snapshot, plan)
        self.memory = plan.memory
        self.events.extend(plan.events)
        for event in plan.events:
            self.stage.note("event", "%s %s: %s", event.pod.name, event.reason, event.message)
        for write in plan.writes:
            self._begin(write.key, lambda write=write: self._write(write))
        for call in plan.calls:
            self._begin(call.key, lambda call=call: self._call(call))
        if not self.alive:
            return
        pause = _LONGEST_PAUSE_SECONDS
        if plan.wake_at is not None:
            pause = min(pause, max(_ROUND_GAP_SECONDS, (plan.wake_at - now).total_seconds()))
        self._plan_round(pause)

    def _fold(self, answer: Answer, now: datetime) -> None:
        answer = replace(answer, at=min(answer.at, now))
        if isinstance(answer, AnsweredCall):
            answer = replace(answer, asked_at=min(answer.asked_at, now))
            self.live.discard(answer.call.key)
            if isinstance(answer.call, ReadServer):
                if answer.failure is not None:
                    self._failing[answer.call.server] = answer.failure
                elif answer.result is not None:
                    self._readings[answer.call.server] = answer.result
                    self._failing.pop(answer.call.server, None)
        else:
            self.live.discard(answer.write.key)
            if isinstance(answer.write, SaveLedger):
                self._ledger = answer.result if answer.failure is None else None
        self.memory = fold(self.memory, answer)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            cluster_uid=CLUSTER,
            pods=tuple(self.cache.pods.values()),
            ledger=self._ledger,
            servers=tuple(
                ServerView(
                    server=server.server, reading=self._readings.get(address), failure=self._failing.get(address)
                )
                for address, server in self.servers.items()
            ),
            live=frozenset(self.live),
        )

    def _begin(self, key: str, run: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.stage.stormy and self.stage.chance(self.crash_chance):
            self.stage.fault("crash between calls", key)
            self.on_crash(self)
            return
        if self.stage.stormy and self.stage.chance(self.loss_chance):
            self.stage.fault("call lost inside", key)
            return
        self.live.add(key)
        self.stage.after(self.stage.rng.uniform(0.001, 0.1), lambda: run() if self.alive else None)

    def _latency(self) -> float:
        if self.stage.stormy and self.stage.chance(self.fault_chance):
            return self.stage.rng.choice((1.0, 10.0, 100.0)) * self.stage.rng.random()
        return self.stage.rng.uniform(0.01, 0.3)

    def _fate(self, *fates: str) -> str:
        if not (self.stage.stormy and self.stage.chance(self.fault_chance)):
            return ""
        fate = self.stage.rng.choice(fates)
        self.stage.faults[f"answer {fate}"] += 1
        return fate

    def _call(self, call: Call) -> None:
        self.sent[type(call).__name__] += 1
        if isinstance(call, RemovePartition):
            why = self._kept(call)
            if why:
                self.stage.note("call", "%s is kept: %s", call.key, why)
                answer = AnsweredCall(call=call, asked_at=self.now(), at=self.now(), kept=why)
                self.stage.after(self._latency(), lambda: self._answer(answer))
                return
        asked_at, fate = self.now(), self._fate("before", "after", "bad")
        self.stage.note("call", "%s %s %s", type(call).__name__, call.key, fate)
        self.stage.after(self._latency(), lambda: self._arrive(call, asked_at, fate))

    def _arrive(self, call: Call, asked_at: datetime, fate: str) -> None:
        """Deliver a sent call, even of a killed process. With `fate`, reject it, or lose it or its answer."""
        if fate == "before":
            self._done(call, asked_at, None, _lost(call))
        elif fate == "bad":
            kind = self.stage.rng.choice(_BAD_ANSWERS)
            self._done(call, asked_at, None, Failure(kind=kind, message="The server has a bad day."))
        else:
            self.servers[call.server].send(
                call,
                lambda result, failure: self._done(
                    call, asked_at, None if fate else result, _lost(call) if fate else failure
                ),
            )

    def _done(self, call: Call, asked_at: datetime, result: Any, failure: Failure | None) -> None:
        if not self.alive:
            return
        reading = None
        if isinstance(call, ReadServer) and failure is None:
            reading = Reading(asked_at=asked_at, at=self.now(), allocations=result[0], partitions=result[1])
        answer = AnsweredCall(call=call, asked_at=asked_at, at=self.now(), result=reading, failure=failure)
        self.stage.after(self._latency(), lambda: self._answer(answer))

    def _answer(self, answer: Answer) -> None:
        if self.alive:
            stamped = replace(answer, at=self.now())
            self.answers.append(stamped)
            self.wake()

    def _kept(self, call: RemovePartition) -> str:
        """Return the reason why the live check keeps a partition; empty if the partition may be removed."""
        if call.pod is None:
            pod = self.kube.by_partition(call.id)
        else:
            found = self.kube.pods.get(call.pod[2])
            pod = found if found is not None and (found.namespace, found.name) == call.pod[:2] else None
        if pod is None or pod.finished or pod.released:
            return ""
        if pod.deletion_deadline is not None and pod.deletion_deadline == call.past_deletion:
            return ""
        if call.unused and not pod.begun:
            return ""
        if pod.partition_annotation not in ("", call.id):
            return ""
        return f"pod {pod.name} has not ended"

    def _write(self, write: Write) -> None:
        self.sent[type(write).__name__] += 1
        fate, failure, ledger = self._fate("before", "after"), None, None
        self.stage.note("write", "%s %s", write.key, fate)
        if fate == "before":
            failure = WriteFailure.UNAVAILABLE
        else:
            try:
                if isinstance(write, SaveLedger):
                    ledger = self.kube.save(write)
                elif isinstance(write, TakeBack):
                    self.kube.take_back(write)
                else:
                    self.kube.open_gate(write)
            except Declined as declined:
                failure = declined.failure
            if fate == "after":
                failure, ledger = WriteFailure.UNAVAILABLE, None
        answer = AnsweredWrite(write=write, at=self.now(), failure=failure, message="not today", result=ledger)
        self.stage.after(self._latency(), lambda: self._answer(answer))


def _lost(call: Call) -> Failure:
    kind = FailureKind.UNAVAILABLE if isinstance(call, ReadServer) else FailureKind.UNKNOWN_OUTCOME
    return Failure(kind=kind, message="The connection broke.")


def own(partition_id: str) -> bool:
    return partition_id.startswith(_OWN_PREFIX)
