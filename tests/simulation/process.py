"""One process of the provisioner: its real parts, driven by the agenda instead of threads.

Rounds, calls and lease renewals are entries: each runs to its end. While an entry waits for a response, other entries,
other processes and the world run in nested calls. A crash ends all entries of a process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from provisioner import constants
from provisioner.controller.loop import Wake
from provisioner.kube import errors
from provisioner.kube.lease import LeaseElector
from provisioner.kube.protocol import PAGE_SIZE, Api, JsonObject, Page, Request, Stream, Timeouts
from provisioner.kube.reflector import WatchOptions
from provisioner.kube.watches import CombinedWatch, ListWatch, Watch
from provisioner.model.capacity import ClusterName, PoolName
from provisioner.model.workloads import ObjectRef
from provisioner.runtime.clock import FollowedClock
from provisioner.settings import Settings
from provisioner.slices.act import Actor
from provisioner.slices.gate import Gate
from provisioner.slices.hints import HintsStore
from provisioner.slices.loop import Loop
from provisioner.slices.observe import PoolList, make_watches
from provisioner.slices.planning.plan import Plan
from provisioner.slices.report import Reporter
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.identity_check import ClusterProof
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from tests.simulation.cloud import CLUSTER, Wire
from tests.simulation.feeds import Feed
from tests.support.board import make_board
from tests.support.selectors import merged

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

T = TypeVar("T")
_DRAIN_SECONDS = 22.0
#: Maximum seconds until a process notices that its clock was set: at the beginning of its next round.
_CLOCK_SEEN_SECONDS = 60.0
#: Objects per page: few enough to split a list into many pages, or the usual number.
_PAGE_SIZES = (2, 7, PAGE_SIZE)


class Crash(BaseException):
    """The process has ended at this point; nothing in the product may catch this exception."""


class LostError(Exception):
    """An exception between a decision and its calls, which loses the decision."""


class _Actor(Actor):
    """The real actor, except that a run may lose a plan before its calls."""

    process: Process

    def carry_out(self, plan: Plan) -> None:
        self.process.simulation.checker.decided(self.process, plan)
        if (plan.creates or plan.deletes) and self.process.calls.loses("decision lost", self.process):
            raise LostError
        Actor.carry_out(self, plan)


class Process:
    """A process of the provisioner from its start to its end."""

    def __init__(self, simulation: Simulation, name: str, *, settings: Settings, elected: bool, ca_pem: bytes) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self.calls = simulation.calls
        self.name = name
        self.dead = False
        self.started_at = self.stage.agenda.now
        self.decisions = 0
        self.skew_seconds = 0.0
        #: Time at which the nodes of each pool were last listed.
        self.looked_at: dict[str, float] = {}
        #: Time at which the pods of each node were last listed.
        self.pods_listed_at: dict[str, float] = {}
        #: UIDs of the pending leader pods that may be bound to a pool, as known at the decision on its last delete.
        self.expected: dict[PoolName, frozenset[str]] = {}
        #: Time at which the clock was last set, and error of the clock before that time in seconds.
        self.skewed_before = (0.0, 0.0)
        self.paused_until = 0.0
        self._in_round = False
        self._round_at: float | None = None
        self._gap_until = 0.0
        self._stopping = False
        api = KubeView(self)
        client = GkeClient(
            ClusterName(project=CLUSTER.project, location=CLUSTER.location, cluster=CLUSTER.cluster),
            endpoint="http://127.0.0.1:1",
        )
        client._session.mount("http://", Wire(simulation.cloud, self, simulation.calls, simulation.checker))
        metrics = simulation.metrics
        self.elector = (
            LeaseElector(
                api,
                namespace=settings.own_namespace,
                identity=name,
                on_started=self.wake,
                on_lost=self._lose,
                clock=self._monotonic,
                now=self.now,
                rng=self.stage.rng,
            )
            if elected
            else None
        )
        elector = self.elector
        clock = FollowedClock(self.now, self._monotonic)
        supplier = GkeSupplier(gke=client, clock=clock)
        supplier.reservations.submit = _Executor(self, simulation.hostile.threads).submit
        self.actor = _Actor(
            supplier=supplier,
            api=api,
            gate=Gate(api=api, settings=settings, clock=clock, monotonic=self._monotonic),
            clock=clock,
            lease_seconds=elector.remaining_seconds if elector is not None else lambda: float("inf"),
            on_answer=self.wake,
            executor=_Executor(self, simulation.hostile.threads),  # type: ignore[arg-type]
            delete_executor=_Executor(self, simulation.hostile.threads),  # type: ignore[arg-type]
            change_executor=_Executor(self, simulation.hostile.threads),  # type: ignore[arg-type]
            monotonic=self._monotonic,
        )
        self.actor.process = self
        watches = make_watches(
            api,
            settings,
            self.wake,
            kinds=simulation.kinds,
            options=WatchOptions(
                clock=self._monotonic, rng=self.stage.rng, page_size=self.stage.rng.choice(_PAGE_SIZES)
            ),
        )
        # MachineConfigs and devices are empty, and watched only in runs that reject reads of optional resources.
        if not simulation.administrator.pauses:
            watches = replace(watches, pause=None)
        if not simulation.chaos.refuses_sources:
            watches = replace(watches, machine_configs=None, devices=None)
        self.feeds = tuple(Feed(self, part) for watch in watches.named().values() for part in _parts(watch))
        self.board = make_board(clock, self._monotonic)
        self.loop = Loop(
            settings=settings,
            watches=watches,
            pools=PoolList(supplier=supplier, clock=clock, processor_seconds=lambda: 0.0),
            identity=ClusterProof(
                get_cluster=supplier.get_cluster,
                api=api,
                trusted_ca_pem=ca_pem,
                assume=False,
                clock=clock,
            ),
            actor=self.actor,
            reporter=Reporter(
                recorder=_Recorder(self),
                metrics=metrics,
                journal=self.board.journal,
                clock=clock,
                monotonic=self._monotonic,
            ),
            metrics=metrics,
            board=self.board,
            store=HintsStore(api, settings.own_namespace),
            is_leader=(lambda: elector.is_leader) if elector is not None else lambda: True,
            clock=clock,
            wake=Wake(),
            stopping=threading.Event(),
            monotonic=self._monotonic,
        )
        self.note("starts")
        if elector is not None:
            self.stage.agenda.after(self.stage.rng.uniform(0.0, 1.0), self._step_lease)
        self.wake()

    def _monotonic(self) -> float:
        return self.stage.agenda.now

    def now(self) -> datetime:
        return self.stage.agenda.wall(self.skew_seconds)

    @property
    def clock_ahead_seconds(self) -> float:
        """Maximum seconds by which the clock of the process may have been ahead at its recent decisions."""
        set_at, before = self.skewed_before
        recent = before if self.stage.agenda.now - set_at < _CLOCK_SEEN_SECONDS else 0.0
        return max(0.0, self.skew_seconds, recent)

    def note(self, what: str, *values: object) -> None:
        self.stage.note(self.name, what, *values)

    @property
    def leads(self) -> bool:
        return not self.dead and (self.elector is None or self.elector.is_leader)

    def enter(self, entry: Callable[[], None]) -> None:
        """Run a step of this process, now or when its pause is over."""
        if self.dead:
            return
        if self.stage.agenda.now < self.paused_until:
            self.stage.agenda.at(self.paused_until, lambda: self.enter(entry))
            return
        try:
            entry()
        except Crash:
            self.die()

    def travel(self, extra_seconds: float, *, may_pause: bool = True, delicate: bool = False) -> None:
        """Wait for a response, and perhaps a pause, while the world goes on. Raises Crash if the process has ended."""
        agenda = self.stage.agenda
        agenda.wait(self.calls.latency_seconds() + extra_seconds)
        if may_pause and not self.dead:
            self.paused_until = max(self.paused_until, agenda.now + self.calls.pause_seconds(self, delicate=delicate))
            if agenda.now < self.paused_until:
                agenda.wait(self.paused_until - agenda.now)
        if self.dead or self.calls.crashes(self):
            raise Crash

    def wake(self) -> None:
        self._round_by(self._gap_until)

    def _round_by(self, when: float) -> None:
        when = max(when, self.stage.agenda.now)
        if not self.dead and (self._round_at is None or when < self._round_at):
            self._round_at = when
            self.stage.agenda.at(when, lambda: self._round_if_due(when))

    def _round_if_due(self, when: float) -> None:
        if self._round_at == when:
            self.enter(lambda: self._round(when))

    def _round(self, when: float) -> None:
        if self._round_at != when or self._stopping:
            return
        self._round_at = None
        if self._in_round:
            self._gap_until = self.stage.agenda.now + 0.05
            self._round_by(self._gap_until)
            return
        self._in_round = True
        try:
            pause = self.loop.round()
        except LostError:
            # The real loop also catches exceptions here, and pauses.
            pause = 1.0
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.stage.violate("0 no round crashes", f"{type(error).__name__}: {error}")
            return
        finally:
            self._in_round = False
        now = self.stage.agenda.now
        self._gap_until = now + self.stage.rng.uniform(0.05, 0.4)
        self._round_by(now + max(pause, 0.05))

    def _step_lease(self) -> None:
        elector = self.elector

        def step() -> None:
            if elector is not None and not self._stopping:
                elector.step()
                self.stage.agenda.after(elector.pause_seconds(), self._step_lease)

        self.enter(step)

    def _lose(self) -> None:
        if not self._stopping:
            self.note("has lost the lease")
            self.stage.agenda.after(self.stage.rng.uniform(0.0, 3.0), self.die)

    def stop(self) -> None:
        """End gracefully, as on SIGTERM."""
        if self.dead or self._stopping:
            return
        self.note("is asked to end")
        self._stopping = True
        self.actor.drain(timeout_seconds=0)
        deadline = self.stage.agenda.now + _DRAIN_SECONDS

        def look() -> None:
            if self._in_round:
                self.stage.agenda.after(0.2, lambda: self.enter(look))
                return
            drained = self.actor.under_way == 0
            if not drained and self.stage.agenda.now < deadline:
                self.stage.agenda.after(0.2, lambda: self.enter(look))
                return
            if self.leads:
                self.loop._save_hints(force=True)
            if self.elector is not None and drained:
                self.elector.release()
            self.die()

        self.enter(look)

    def die(self) -> None:
        if self.dead:
            return
        self.dead = True
        self.note("has ended")
        for feed in self.feeds:
            feed.close()
        self.simulation.process_ended(self)


class _Executor:
    """Starts calls after random delays; at most `threads` calls run at the same time."""

    def __init__(self, process: Process, threads: float) -> None:
        self._process = process
        self._threads = threads
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = 0

    def submit(self, call: Callable[..., None], *arguments: object) -> None:
        process = self._process
        if process.calls.loses("call not submitted", process):
            raise RuntimeError("can't start new thread")
        self._waiting.append(lambda: call(*arguments))
        self._start()

    def _start(self) -> None:
        process = self._process
        if self._waiting and self._busy < self._threads:
            self._busy += 1
            call = self._waiting.popleft()
            process.stage.agenda.after(
                process.calls.start_delay_seconds(), lambda: process.enter(lambda: self._run(call))
            )

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            self._busy -= 1
            self._start()


class _Recorder:
    """Passes Events to the checks."""

    dropped_total = 0

    def __init__(self, process: Process) -> None:
        self._process = process

    def emit(self, ref: ObjectRef, reason: str, message: str, *, warning: bool = False, key: str = "") -> None:
        self._process.simulation.checker.saw_event(self._process, ref, reason, message)


class KubeView(Api):
    """API server as one process reaches it; `Feed` replaces its watches."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._store = process.stage.store

    def exchange(self, request: Request) -> JsonObject:
        body, path = request.body or {}, request.path
        if request.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        return self._travel(request.method, path, lambda: self._done(request.method, path, body))

    def _done(self, method: str, path: str, body: JsonObject) -> JsonObject:
        if method == "POST":
            if self._store.find(path) is not None:
                raise errors.Conflict(f"{path} already exists", status=409, reason="AlreadyExists")
            return self._store.put(path, body)
        if method == "GET":
            return self._store.get(path)
        path = path.removesuffix("/status")
        if "status" in body and self._process.simulation.checker.asked.refuses(path):
            raise errors.Invalid(f"{path}: admission denied", status=422, reason="Invalid")
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != self._store.get(path)["metadata"]["resourceVersion"]:
            raise errors.Conflict(f"{path} was modified", status=409, reason="Conflict")
        if method == "PUT":
            self._store.get(path)
            return self._store.put(path, body)
        assert method == "PATCH", f"nothing here deletes {path}"
        self._process.simulation.checker.before_patch(self._process, path, body)
        return self._store.put(path, merged(self._store.get(path), body))

    def list_page(self, request: Request, *, limit: int = PAGE_SIZE, continue_token: str = "") -> Page:
        path, query = request.path, request.query

        def read() -> Page:
            key, _, pool = query.get("labelSelector", "").partition("=")
            if key == constants.NODE_POOL:
                self._process.looked_at[pool] = self._process.stage.agenda.now
            field, _, rest = query.get("fieldSelector", "").partition("=")
            if field == "spec.nodeName":
                self._process.pods_listed_at[rest.partition(",")[0]] = self._process.stage.agenda.now
            page = self._store.page(path, query, limit=limit, continue_token=continue_token)
            if not request.metadata_only:
                return page
            return replace(page, items=[{"metadata": raw["metadata"]} for raw in page.items])

        return self._travel("GET", path, read)

    def stream(self, path: str, query: Mapping[str, str], *, timeouts: Timeouts) -> Stream:
        raise AssertionError(f"nobody here watches {path}")

    def _travel(self, method: str, path: str, effect: Callable[[], T]) -> T:
        process = self._process
        fault = process.calls.kube_fault(process, method, path)
        delicate = "/pods" in path or "/nodes" in path
        process.travel(fault.delay_seconds if fault is not None else 0.0, delicate=delicate)
        if fault is not None and fault.code is not None and fault.before_effect:
            raise errors.Unavailable(fault.text, status=fault.code)
        result = effect()
        process.travel(0.0, delicate=delicate)
        if fault is not None and fault.code is not None:
            raise errors.Unavailable(fault.text, status=fault.code)
        return result


def _parts(watch: Watch[Any]) -> Sequence[ListWatch[Any]]:
    if isinstance(watch, CombinedWatch):
        return watch.parts
    assert isinstance(watch, ListWatch)
    return (watch,)
