"""Measures the use of V-IPU servers in virtual time, and the duration of a decision about partitions."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import AnsweredCall, AnsweredWrite
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import (
    Call,
    CallAnswer,
    CreatePartition,
    ReadServer,
    RemovePartition,
    SaveLedger,
    Write,
)
from provisioner.partitions.planning.decide import decide
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.planning.memory import Memory, fold
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionState, Reading
from provisioner.settings.partitions import PartitionSettings, Server
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import Asked, Phase, VipuRefusalError
from rehearsal.simulators.vipu.settings import IPUS_OF_AGENT, VipuSettings

_PODS = 500
_IPUS = 64
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_SETTINGS = PartitionSettings(servers=())
_SERVER = Server(host="vipu", port=8090)
_READ_SECONDS = 0.3
_WRITE_SECONDS = 0.05
#: Seconds from the removal of a pod's gate until it runs.
_START_SECONDS = 3.0
_ROUND_SECONDS = 0.1
_RUNS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Pods of one measurement."""

    name: str
    #: Sizes of partitions, with their weights.
    sizes: dict[int, int]
    shortest_seconds: float = 120.0
    longest_seconds: float = 1200.0
    #: IPUs of each allocation.
    allocations: tuple[int, ...] = (_IPUS,)
    #: Share of pods with an activeDeadlineSeconds, and this deadline as a multiple of their run time.
    deadlines: float = 1.0
    slack: float = 1.25


_MIXES = (
    Mix(name="4 IPUs each, no deadlines", sizes={4: 1}, deadlines=0.0),
    Mix(name="1 to 16 IPUs, all with deadlines", sizes={1: 30, 2: 25, 4: 20, 8: 15, 16: 10}),
    Mix(
        name="1 to 16 IPUs, all with deadlines, 4 allocations of 16",
        sizes={1: 30, 2: 25, 4: 20, 8: 15, 16: 10},
        allocations=(16,) * 4,
    ),
    Mix(name="1 to 16 IPUs, no deadlines", sizes={1: 30, 2: 25, 4: 20, 8: 15, 16: 10}, deadlines=0.0),
    Mix(name="1 to 4 IPUs, no deadlines", sizes={1: 50, 2: 30, 4: 20}, deadlines=0.0),
    Mix(name="1 to 64 IPUs, all with deadlines", sizes={1: 30, 2: 25, 4: 20, 8: 12, 16: 8, 32: 4, 64: 1}),
)


def measure(say: Callable[..., None]) -> None:
    """Measure the duration of decisions, and the use of the servers."""
    for waiting in (_PODS, 10 * _PODS):
        say(f"one decision, {waiting} pods wait for {_IPUS} IPUs", f"{_decide_milliseconds(waiting):.1f} ms")
    for mix in _MIXES:
        ran = _Run(mix)
        ran.run()
        target = "target: 95 %" if mix is _MIXES[0] else ""
        say(f"{_PODS} pods over {_IPUS} IPUs, {mix.name}: in partitions", f"{ran.share_taken:.1%}", target)
        say("  under pods that run", f"{ran.share_used:.1%}")
        say("  from the first pod to the last", f"{ran.seconds / 3600:.1f} h")


def _decide_milliseconds(waiting: int) -> float:
    """Return the median time in milliseconds of a decision while nearly all IPUs are taken."""
    run = _Run(_MIXES[1], pods=waiting)
    run.advance(600.0)
    seconds = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        decide(run.snapshot(), run.memory, _SETTINGS, run.now)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1000


@dataclass(slots=True)
class _Run:
    """One server, one controller, and pods that all exist from the start."""

    mix: Mix
    pods: int = _PODS
    now: datetime = _BEGIN
    memory: Memory = field(default_factory=Memory)
    ledger: Ledger = field(default_factory=lambda: Ledger(resource_version="1"))
    waiting: dict[str, Pod] = field(default_factory=dict)
    share_taken: float = 0.0
    share_used: float = 0.0
    _reading: Reading | None = None
    _live: set[str] = field(default_factory=set)
    _heap: list[tuple[datetime, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _runs: dict[str, float] = field(default_factory=dict)
    _running: dict[str, int] = field(default_factory=dict)
    _round_at: datetime | None = None
    _world: World = field(init=False)

    def __post_init__(self) -> None:
        """Create all pods, with creation times one second apart."""
        rng = random.Random(17)
        allocations = {
            f"a{number}": {"cluster": "c", "agents": ipus // IPUS_OF_AGENT}
            for number, ipus in enumerate(self.mix.allocations)
        }
        settings = VipuSettings(allocations=allocations, create_seconds=5.0)
        self._world = World(settings, clock=lambda: self.now, rng=random.Random(17))
        for number in range(self.pods):
            seconds = rng.uniform(self.mix.shortest_seconds, self.mix.longest_seconds)
            (size,) = rng.choices(list(self.mix.sizes), weights=list(self.mix.sizes.values()))
            deadline = seconds * self.mix.slack if rng.random() < self.mix.deadlines else None
            uid = f"uid-{number}"
            self.waiting[uid] = Pod(
                namespace="team",
                name=f"pod-{number}",
                uid=uid,
                resource_version="1",
                created_at=_BEGIN - timedelta(seconds=self.pods - number),
                size=size,
                injected=True,
                gated=True,
                active_deadline_seconds=deadline,
            )
            self._runs[uid] = seconds
        self._wake()

    @property
    def seconds(self) -> float:
        """Duration of the run in virtual seconds."""
        return (self.now - _BEGIN).total_seconds()

    def run(self) -> None:
        """Run until all pods have ended; shares are of the time in which at least one pod waits."""
        taken = used = counted = 0.0
        while self._heap and self.waiting:
            when = self._heap[0][0]
            seconds = (when - self.now).total_seconds()
            if self._queue_exists():
                free = sum(allocation.free for allocation in self._world.all_allocations())
                taken += seconds * (_IPUS - free)
                used += seconds * sum(self._running.values())
                counted += seconds
            self._step()
        self.share_taken, self.share_used = taken / counted / _IPUS, used / counted / _IPUS

    def advance(self, seconds: float) -> None:
        """Run until `seconds` after the beginning."""
        while self._heap and self._heap[0][0] <= _BEGIN + timedelta(seconds=seconds):
            self._step()

    def snapshot(self) -> Snapshot:
        """Return the snapshot that the controller would decide on."""
        return Snapshot(
            cluster_uid="cluster",
            pods=tuple(self.waiting.values()),
            ledger=self.ledger,
            servers=(ServerView(server=_SERVER, reading=self._reading),),
            live=frozenset(self._live),
        )

    def _queue_exists(self) -> bool:
        return len(self.waiting) > len(self.ledger.entries)

    def _step(self) -> None:
        when, _, callback = heapq.heappop(self._heap)
        self.now = max(self.now, when)
        callback()

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + timedelta(seconds=seconds), next(self._numbers), callback))

    def _wake(self, seconds: float = _ROUND_SECONDS) -> None:
        due = self.now + timedelta(seconds=max(seconds, _ROUND_SECONDS))
        if self._round_at is None or due < self._round_at:
            self._round_at = due
            self._after(max(seconds, _ROUND_SECONDS), lambda: self._round(due))

    def _round(self, due: datetime) -> None:
        if due != self._round_at:
            return
        self._round_at = None
        plan = decide(self.snapshot(), self.memory, _SETTINGS, self.now)
        self.memory = plan.memory
        for write in plan.writes:
            self._live.add(write.key)
            self._after(_WRITE_SECONDS, partial(self._write, write))
        for call in plan.calls:
            self._live.add(call.key)
            self._begin(call)
        if plan.wake_at is not None:
            self._wake((plan.wake_at - self.now).total_seconds())

    def _write(self, write: Write) -> None:
        saved = None
        if isinstance(write, SaveLedger):
            version = str(int(self.ledger.resource_version) + 1)
            saved = self.ledger = Ledger(entries=write.entries, resource_version=version)
        elif write.pod.uid in self.waiting:
            uid = write.pod.uid
            self._change(uid, gated=False, server_annotation=_SERVER.address)
            self._after(_START_SECONDS, lambda: self._start(uid))
        self._live.discard(write.key)
        self.memory = fold(self.memory, AnsweredWrite(write=write, at=self.now, result=saved))
        self._wake()

    def _change(self, uid: str, **fields: object) -> None:
        pod = self.waiting[uid]
        self.waiting[uid] = replace(pod, resource_version=f"{int(pod.resource_version) + 1}", **fields)  # type: ignore[arg-type]

    def _start(self, uid: str) -> None:
        self._change(uid, node="node", started_at=self.now)
        self._running[uid] = self.waiting[uid].size
        self._after(self._runs[uid], lambda: self._end(uid))
        self._wake()

    def _end(self, uid: str) -> None:
        del self.waiting[uid], self._running[uid]
        self._wake()

    def _begin(self, call: Call) -> None:
        asked_at = self.now
        if isinstance(call, ReadServer):
            self._after(_READ_SECONDS, lambda: self._read(call, asked_at))
            return
        try:
            number = self._world.remove(call.id) if isinstance(call, RemovePartition) else self._create(call)
        except VipuRefusalError as refusal:
            kind = FailureKind.STOCKOUT if refusal.grpc_code == "ResourceExhausted" else FailureKind.UNAVAILABLE
            failure = Failure(kind=kind, message=str(refusal))
            self._after(
                _READ_SECONDS,
                lambda: self._answer(AnsweredCall(call=call, asked_at=asked_at, at=self.now, failure=failure)),
            )
            return
        ends_at = self._world.outcome(number).at or self.now
        self._after(
            (ends_at - self.now).total_seconds() + 0.001,
            lambda: self._answer(AnsweredCall(call=call, asked_at=asked_at, at=self.now)),
        )

    def _create(self, call: CreatePartition) -> int:
        request = call.request
        return self._world.create(Asked(id=request.id, size=request.size, allocation=request.allocation))

    def _read(self, call: ReadServer, asked_at: datetime) -> None:
        self._reading = Reading(
            asked_at=asked_at,
            at=self.now,
            allocations=tuple(
                Allocation(name=allocation.name, cluster=allocation.cluster, ipus=allocation.ipus)
                for allocation in self._world.allocations()
            ),
            partitions=tuple(
                Partition(
                    id=partition.id,
                    size=partition.size,
                    state=PartitionState.ACTIVE if partition.phase is Phase.ACTIVE else PartitionState.OTHER,
                    allocation=partition.allocation,
                )
                for partition in self._world.partitions()
            ),
        )
        self._answer(AnsweredCall(call=call, asked_at=asked_at, at=self.now, result=self._reading))

    def _answer(self, answer: CallAnswer) -> None:
        self._live.discard(answer.call.key)
        self.memory = fold(self.memory, replace(answer, at=self.now))
        self._wake()
