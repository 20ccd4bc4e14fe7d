"""Simulated cluster for tests of decisions: pods, a ledger and V-IPU servers, controlled step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import AnsweredCall, AnsweredWrite, WriteFailure
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import (
    Call,
    CreatePartition,
    OpenGate,
    ReadServer,
    RemovePartition,
    SaveLedger,
    TakeBack,
    Write,
)
from provisioner.partitions.planning.decide import Plan, decide
from provisioner.partitions.planning.events import Event
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.planning.memory import Memory, fold
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionState, Reading
from provisioner.settings.partitions import PartitionSettings, Server

CLUSTER = "cluster-uid"
NOW = datetime(2026, 11, 23, tzinfo=UTC)
SERVER, OTHER = Server(host="vipu", port=8090), Server(host="vipu2", port=8090)
BOTH = {server: (Allocation(name="a", ipus=64),) for server in (SERVER, OTHER)}


def make_pod(name: str, *, size: int = 4, age_seconds: float = 0.0, **fields: Any) -> Pod:
    """Return a pod as the webhook prepares it."""
    defaults: dict[str, Any] = {
        "namespace": "team",
        "uid": f"uid-{name}",
        "resource_version": "1",
        "created_at": NOW - timedelta(seconds=age_seconds),
        "injected": True,
        "gated": True,
    }
    pod = Pod(name=name, size=size, **{**defaults, **fields})
    return (
        replace(pod, partition_annotation=names.partition_id(CLUSTER, pod.uid, told))
        if (told := pod.server_annotation)
        else pod
    )


def id_of(pod: Pod, server: Server = SERVER) -> str:
    return names.partition_id(CLUSTER, pod.uid, server.address)


def make_entry(pod: Pod, *, server: Server = SERVER, allocation: str = "a", at: datetime = NOW) -> Entry:
    return Entry(
        id=id_of(pod, server),
        namespace=pod.namespace,
        pod=pod.name,
        pod_uid=pod.uid,
        size=pod.size,
        server=server.address,
        allocation=allocation,
        recorded_at=at,
    )


def make_partition(
    pod: Pod, state: PartitionState = PartitionState.ACTIVE, *, allocation: str = "a", **fields: Any
) -> Partition:
    return Partition(**{"id": id_of(pod), "size": pod.size, "state": state, "allocation": allocation, **fields})


@dataclass
class Story:
    """A simulated cluster and its V-IPU servers."""

    pods: list[Pod] = field(default_factory=list)
    ledger: Ledger | None = field(default_factory=lambda: Ledger(resource_version="1"))
    servers: dict[Server, tuple[Allocation, ...]] = field(
        default_factory=lambda: {SERVER: (Allocation(name="a", ipus=64),)}
    )
    partitions: dict[str, dict[str, Partition]] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    failing: dict[str, Failure] = field(default_factory=dict)
    settings: PartitionSettings = field(default_factory=lambda: PartitionSettings(servers=()))
    memory: Memory = field(default_factory=Memory)
    now: datetime = NOW
    live: frozenset[str] = frozenset()
    plan: Plan | None = None

    def at(self, server: Server = SERVER) -> dict[str, Partition]:
        return self.partitions.setdefault(server.address, {})

    def put(self, *partitions: Partition, server: Server = SERVER) -> None:
        self.at(server).update({partition.id: partition for partition in partitions})

    def record(self, *entries: Entry, unreadable: dict[str, str] | None = None) -> None:
        self.ledger = Ledger(entries=entries, resource_version="1", unreadable=unreadable or {})

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            cluster_uid=CLUSTER,
            pods=tuple(self.pods),
            ledger=self.ledger,
            servers=tuple(
                ServerView(
                    server=server,
                    reading=self.readings.get(server.address),
                    failure=self.failing.get(server.address),
                )
                for server in self.servers
            ),
            live=self.live,
        )

    def decide(self) -> Plan:
        self.plan = decide(self.snapshot(), self.memory, self.settings, self.now)
        self.memory = self.plan.memory
        return self.plan

    def calls(self, kind: type[Any]) -> list[Any]:
        assert self.plan is not None
        return [call for call in (*self.plan.calls, *self.plan.writes) if isinstance(call, kind)]

    def wants(self, kind: type[Any]) -> list[Any]:
        """Decide, and return the calls and writes of a type."""
        self.decide()
        return self.calls(kind)

    def read(self, *, after_seconds: float = 0.0) -> None:
        """Let time pass, decide, and answer all reads with the current state of the servers."""
        self.pass_time(after_seconds)
        for call in self.wants(ReadServer):
            self.answer(call)

    def answer(self, call: Call, failure: FailureKind | None = None, *, kept: str = "") -> None:
        """Answer a call: execute it, let it fail without effect, or do not send it for the reason `kept`."""
        asked_at, self.now = self.now, self.now + timedelta(milliseconds=10)
        failed = Failure(kind=failure, message="no") if failure is not None else None
        reading = None
        at = self.partitions.setdefault(call.server, {})
        if isinstance(call, ReadServer):
            if failed is not None:
                self.failing[call.server] = failed
            else:
                self.failing.pop(call.server, None)
                server = next(candidate for candidate in self.servers if candidate.address == call.server)
                reading = Reading(
                    asked_at=asked_at,
                    at=self.now,
                    allocations=self.servers[server],
                    partitions=tuple(at.values()),
                )
                self.readings[call.server] = reading
        elif failed is None and not kept and isinstance(call, CreatePartition):
            request = call.request
            if request.id in at:
                failed = Failure(kind=FailureKind.ALREADY_EXISTS, message="there already")
            at.setdefault(
                request.id,
                Partition(id=request.id, size=request.size, state=PartitionState.ACTIVE, allocation=request.allocation),
            )
        elif failed is None and not kept and isinstance(call, RemovePartition):
            at.pop(call.id, None)
        self.memory = fold(
            self.memory,
            AnsweredCall(call=call, asked_at=asked_at, at=self.now, result=reading, failure=failed, kept=kept),
        )

    def write(self, write: Write, failure: WriteFailure | None = None) -> None:
        """Answer a write: execute it, or let it fail without effect."""
        self.now += timedelta(milliseconds=10)
        saved = None
        if failure is None and isinstance(write, SaveLedger):
            assert self.ledger is not None
            version = str(int(self.ledger.resource_version or "0") + 1)
            saved = self.ledger = replace(self.ledger, entries=write.entries, resource_version=version)
        if failure is None and isinstance(write, OpenGate):
            told = {"server_annotation": write.server.address, "partition_annotation": write.partition_id}
            self.change(write.pod, gated=False, **told)
        if failure is None and isinstance(write, TakeBack):
            self.change(write.pod, released=True)
        self.memory = fold(self.memory, AnsweredWrite(write=write, at=self.now, failure=failure, result=saved))

    def change(self, pod: Pod, **fields: Any) -> Pod:
        place = next(place for place, candidate in enumerate(self.pods) if candidate.uid == pod.uid)
        changed = replace(self.pods[place], resource_version=f"{self.pods[place].resource_version}+", **fields)
        self.pods[place] = changed
        return changed

    def settle(
        self,
        rounds: int = 30,
        *,
        seconds: float = 1.0,
        fails: Callable[[Call], FailureKind | None] = lambda _: None,
        refused: bool = False,
    ) -> list[Plan]:
        """Decide and execute the plan in a number of rounds; return the plans.

        Calls end with the failure that `fails` returns. With `refused`, all writes are rejected.
        """
        plans = []
        for _ in range(rounds):
            plan = self.decide()
            plans.append(plan)
            assert all("ZeroDivisionError" in fault.error for fault in plan.faults)
            for write in plan.writes:
                self.write(write, WriteFailure.REFUSED if refused else None)
            for call in plan.calls:
                self.answer(call, fails(call))
            self.pass_time(seconds)
        return plans

    def entries(self) -> dict[str, Entry]:
        assert self.ledger is not None
        return {entry.pod: entry for entry in self.ledger.entries}


def held(
    pod: Pod, *others: Pod, state: PartitionState | None = PartitionState.ACTIVE, gone: bool = False, **fields: Any
) -> Story:
    """Return a story with a pod, the pod's entry in the ledger, and a partition in `state`. None means no partition.

    With `gone`, the pod does not exist.
    """
    story = Story(pods=[*others] if gone else [pod, *others], **fields)
    story.record(make_entry(pod))
    if state is not None:
        story.put(make_partition(pod, state))
    return story


def events_of(plans: Iterable[Plan]) -> list[Event]:
    return [event for plan in plans for event in plan.events]


def reasons(plans: Iterable[Plan]) -> list[str]:
    return [event.reason for event in events_of(plans)]
