"""A controller process: the loop around `decide`, calls and writes, and faults of calls and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import AnsweredCall, AnsweredWrite, WriteFailure
from provisioner.nodegroups import gate
from provisioner.nodegroups.compute.records import ComputeError
from provisioner.nodegroups.planning import decide as deciding
from provisioner.nodegroups.planning import memory
from provisioner.nodegroups.planning.actions import (
    Call,
    CallAnswer,
    Delete,
    Event,
    Insert,
    PatchStatus,
    Proof,
    SetMetadata,
    Write,
    WriteAnswer,
)
from provisioner.nodegroups.planning.decide import Crashed
from provisioner.nodegroups.planning.memory import Memory
from provisioner.nodegroups.planning.nodes import silent_node
from provisioner.nodegroups.planning.round import PlanningSettings
from tests.nodegroups.simulation.cloud import Cloud
from tests.nodegroups.simulation.cluster import Declined, Kube
from tests.support.simulations.stage import Stage

#: Maximum seconds between two rounds. The 15 s of the real loop would hide a step that does not request its round.
_LONGEST_PAUSE_SECONDS = 60.0
#: Maximum number of rounds in a minute. A controller that makes more never comes to rest.
_MAX_ROUNDS_A_MINUTE = 600
_BAD_ANSWERS = (
    FailureKind.UNAVAILABLE,
    FailureKind.PERMISSION,
    FailureKind.QUOTA,
    FailureKind.INVALID,
    FailureKind.OPERATION_IN_THE_WAY,
    FailureKind.TOO_MANY_OPERATIONS,
)


class Process:
    """A process that runs until it is killed. The next process starts with an empty memory."""

    def __init__(self, stage: Stage, kube: Kube, cloud: Cloud, settings: PlanningSettings) -> None:
        self.stage, self.kube, self.cloud, self.settings = stage, kube, cloud, settings
        self.memory = Memory()
        self.alive = True
        self.answers: list[CallAnswer | WriteAnswer] = []
        self.live: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.events: list[Event] = []
        self.crashed: list[Crashed] = []
        self._rounds: Counter[int] = Counter()
        self.on_call: Callable[[Call], None] = lambda _call: None
        self._next_round = float("inf")
        #: Seconds from an event to the round that handles it. Events within this time are decided on together.
        self.round_gap_seconds = stage.rng.choice((0.05, 0.25, 1.0))
        self.fault_chance = 0.0
        self.loss_chance = 0.0
        #: Number of rounds until the process dies and calls `on_death`.
        self.rounds_left = float("inf")
        self.on_death: Callable[[], None] = lambda: None
        kube.recache()
        self.wake()

    def kill(self) -> None:
        """End immediately: requests that were sent take effect, and the memory is lost."""
        self.alive = False

    def wake(self) -> None:
        self._plan_round(self.round_gap_seconds)

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
        self._check_rest()
        while self.answers:
            answer = self.answers.pop(0)
            key = answer.call.key if isinstance(answer, AnsweredCall) else answer.write.key
            self.live.discard(key)
            self.memory = memory.fold(self.memory, answer)
        now = self.stage.wall()
        snapshot = self.kube.snapshot(frozenset(self.live))
        plan = deciding.decide(snapshot, self.memory, self.settings, now)
        self.memory = plan.memory
        self.crashed.extend(plan.crashed)
        events = [event for write in plan.writes if isinstance(write, PatchStatus) for event in write.events]
        self.events.extend(events)
        for event in events:
            self.stage.note("event", "%s %s: %s", event.object.name, event.reason, event.message)
        for call in plan.calls:
            self._begin(call.key, lambda call=call: self._call(call))
        for write in plan.writes:
            self._begin(write.key, lambda write=write: self._write(write))
        pause = _LONGEST_PAUSE_SECONDS
        if plan.wake_at is not None:
            pause = min(pause, max(self.round_gap_seconds, (plan.wake_at - now).total_seconds()))
        self._plan_round(pause)
        self.rounds_left -= 1
        if self.rounds_left == 0:
            # The process dies after up to 0.2 s, so only some calls of its last round are sent.
            self.stage.after(self.stage.rng.uniform(0.0, 0.2), self._die)

    def _die(self) -> None:
        if self.alive:
            self.kill()
            self.on_death()

    def _check_rest(self) -> None:
        minute = int(self.stage.agenda.now // 60)
        self._rounds[minute] += 1
        if self._rounds[minute] > _MAX_ROUNDS_A_MINUTE:
            self.stage.violate(f"the controller goes round in circles: {_MAX_ROUNDS_A_MINUTE} rounds in a minute")

    def _begin(self, key: str, run: Callable[[], None]) -> None:
        if self.stage.stormy and self.stage.chance(self.loss_chance):
            # A fault inside the process: the call or write is never sent, and the process gets no answer.
            self.stage.fault("call lost inside", key)
            return
        self.live.add(key)
        self.stage.after(self.stage.rng.uniform(0.001, 0.1), lambda: run() if self.alive else None)

    def _latency(self) -> float:
        slow = self.stage.stormy and self.stage.chance(self.fault_chance)
        return self.stage.rng.uniform(1.0, 10.0) if slow else self.stage.rng.uniform(0.01, 0.3)

    def _call(self, call: Call) -> None:
        sent_at, fate = self.stage.wall(), ""
        if self.stage.stormy and self.stage.chance(self.fault_chance):
            fate = self.stage.rng.choice(("before", "after", "bad"))
        self.calls[type(call).__name__] += 1
        self.stage.note("call", "%s%s", call.key, f" ({fate})" if fate else "")
        self.stage.after(self._latency(), lambda: self._arrive(call, sent_at, fate))

    def _arrive(self, call: Call, sent_at: Any, fate: str) -> None:
        """Execute a sent call, even if its process is dead by now. `fate` makes the call or its answer fail."""
        result, failure, kept = None, None, ""
        if fate == "before":
            failure = self._lost(call)
        elif fate == "bad":
            failure = Failure(kind=self.stage.rng.choice(_BAD_ANSWERS), message="Google has a bad day.")
            self.stage.faults[f"answer {failure.kind.value}"] += 1
        else:
            self.on_call(call)
            try:
                if isinstance(call, Delete) and call.proof is not None:
                    kept = self._prove(call.proof)
                result = None if kept else self.cloud.call(call)
            except ComputeError as error:
                absent = error.failure.kind is FailureKind.NOT_FOUND and not isinstance(call, Insert)
                failure = None if absent else error.failure
            if fate == "after":
                result, failure = None, self._lost(call)
        answer = AnsweredCall(
            call=call, asked_at=sent_at, at=self.stage.wall(), result=result, failure=failure, kept=kept
        )
        self.stage.after(self._latency(), lambda: self._answer(answer))

    def _lost(self, call: Call) -> Failure:
        kind = FailureKind.UNAVAILABLE
        if isinstance(call, Insert | Delete | SetMetadata):
            kind = FailureKind.UNKNOWN_OUTCOME
        self.stage.faults["answer lost"] += 1
        return Failure(kind=kind, message="The connection broke.")

    def _answer(self, answer: CallAnswer | WriteAnswer) -> None:
        if self.alive:
            self.answers.append(answer)
            self.wake()

    def _prove(self, proof: Proof) -> str:
        """Return the reason why a delete must not be sent, empty if none. Reads the objects, not the caches."""
        found = next((child for child in self.kube.all("ManagedInstanceGroup") if child.meta.uid == proof.uid), None)
        if found is None or not found.meta.deleting:
            return "it is not being deleted"
        every = self.kube.all("Node")
        if doubt := silent_node((node for node in every if gate._is_of(node, proof)), proof.oldest_ready):
            return doubt
        nodes = [node for node in every if gate._counts(node, proof)]
        if any(not node.unschedulable for node in nodes):
            return "a node is not cordoned"
        machines = {provider_id.rpartition("/")[2] for provider_id in proof.provider_ids}
        on, now = {node.name for node in nodes} | (machines - {node.name for node in every}), self.stage.wall()
        for pod in self.kube.all("Pod"):
            if pod.node in on and pod.keeps_machine(now, proof):
                return f"pod {pod.name} is on node {pod.node}"
        return ""

    def _write(self, write: Write) -> None:
        fate = ""
        if self.stage.stormy and self.stage.chance(self.fault_chance):
            fate = self.stage.rng.choice(("before", "after"))
        self.writes[type(write).__name__] += 1
        failure, words = None, "not today"
        if fate == "before":
            failure = WriteFailure.UNAVAILABLE
        else:
            try:
                self.kube.write(write)
            except Declined as declined:
                failure, words = declined.failure, str(declined)
            if fate == "after":
                failure = WriteFailure.UNAVAILABLE
        answer = AnsweredWrite(write=write, at=self.stage.wall(), failure=failure, message=words)
        self.stage.after(self._latency(), lambda: self._answer(answer))
