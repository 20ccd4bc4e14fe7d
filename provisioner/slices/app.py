"""Putting the parts together, starting them, and ending in good order or at once."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import structlog

import provisioner
from provisioner import kube
from provisioner.runtime import garbage, signals
from provisioner.runtime.clock import FollowedClock
from provisioner.runtime.http import HttpServer
from provisioner.runtime.last_words import exit_with_last_words
from provisioner.runtime.parallel import Parallel
from provisioner.runtime.status import Probes, Scrapes, make_status_server
from provisioner.runtime.wake import Wake
from provisioner.settings import Settings
from provisioner.slices import api as board_api
from provisioner.slices.act import Actor
from provisioner.slices.board import About, Board
from provisioner.slices.gate import Gate
from provisioner.slices.loop import Loop
from provisioner.slices.meter import Meter
from provisioner.slices.metrics import Metrics
from provisioner.slices.observe import PoolList, make_watches
from provisioner.slices.report import Reporter
from provisioner.slices.suppliers.gke.decorators import InstrumentedGke, RetryingGke
from provisioner.slices.suppliers.gke.identity_check import ClusterProof
from provisioner.slices.suppliers.gke.protocol import Gke
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from provisioner.slices.tracing import make_tracing

_log = structlog.get_logger(__name__)

#: Calls under way at SIGTERM get this long; Kubernetes kills after 30 s.
_DRAIN_SECONDS = 22.0
_LAST_EVENTS_SECONDS = 2.0
#: Calls to the API server at once before deletes: for the nodes of one pool, and for those of all pools together.
_AT_ONCE_PER_POOL = 16
_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where metrics and probes are served, and whether to elect a leader: the command line's part of the settings."""

    metrics: str = ":8080"
    probes: str = ":8081"
    leader_elect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """All parts, put together; nothing runs before `start`."""

    #: This process in the Lease, as the settings or the host name it.
    identity: str
    loop: Loop
    actor: Actor
    recorder: kube.EventRecorder
    server: HttpServer
    #: None where no leader is elected.
    elector: kube.LeaseElector | None
    #: Ends the process at once, with an exit code.
    exit_process: Callable[[int], object]

    def start(self) -> None:
        """Start everything but the loop, which runs in the caller's thread; raise ServerError."""
        self.server.start()
        self.recorder.start()
        for watch in self.loop.watches.named().values():
            watch.start()
        if self.elector is not None:
            self.elector.start()

    def stop(self) -> None:
        """Let the loop end after its round; returns at once."""
        self.loop.stopping.set()
        self.loop.wake.set()

    def shut_down(self) -> None:
        """Once the loop has ended: wait for what is under way, then give the lease back."""
        drained = self.actor.drain(timeout_seconds=_DRAIN_SECONDS)
        self.recorder.flush(timeout_seconds=_LAST_EVENTS_SECONDS)
        for watch in self.loop.watches.named().values():
            watch.stop()
        if self.elector is not None and drained:
            self.elector.release()
        self.recorder.stop()
        if self.loop.tracing is not None:
            self.loop.tracing.stop()
        self.server.stop()
        _log.info("controller.stopped", calls_under_way=not drained)
        if not drained:
            # Threads that hang in a call must not keep the process from ending.
            self.exit_process(0)


def build(
    settings: Settings,
    addresses: Addresses,
    api: kube.KubeApi,
    client: Gke,
    *,
    exit_process: Callable[[int], object] = os._exit,
    lease_clock: Callable[[], float] = kube.boot_clock,
) -> Controller:
    """Put the parts together; raise ServerError where an address cannot be read.

    A process that loses its lease ends by `exit_process` from the elector's own thread, whatever hangs: a round, a
    call, the API server. Somebody else may lead already, and Kubernetes starts it again as a follower.
    """
    metrics = Metrics(version=provisioner.__version__)
    gke = RetryingGke(InstrumentedGke(client, metrics))
    identity = settings.own_name or f"{socket.gethostname()}-{os.getpid()}"
    wake, stopping = Wake(), threading.Event()
    recorder = kube.EventRecorder(api, instance=identity)

    def lose() -> None:
        # No further round begins, even where the process is only told to end.
        stopping.set()
        wake.set()
        exit_with_last_words(exit_process)

    elector = (
        kube.LeaseElector(
            api,
            namespace=settings.own_namespace,
            identity=identity,
            on_started=wake.set,
            on_lost=lose,
            clocks=kube.LeaseClocks(boot=lease_clock),
        )
        if addresses.leader_elect
        else None
    )
    watches = make_watches(api, settings, wake.set)
    clock = FollowedClock()
    supplier = GkeSupplier(gke=gke, clock=clock)
    actor = Actor(
        supplier=supplier,
        api=api,
        gate=make_gate(api, clock, keep_suspended=settings.keep_suspended),
        clock=clock,
        lease_seconds=elector.remaining_seconds if elector is not None else _forever,
        on_answer=wake.set,
        executor=ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="act"),
        slow_executor=ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="delete"),
    )
    board = Board(
        about=About(
            release=provisioner.__version__,
            project=settings.project_id,
            location=settings.cluster_location,
            cluster=settings.cluster,
            identity=identity,
            started_at=clock(),
        ),
        environment=os.environ,
        clock=clock,
        leader=(lambda: elector.leader) if elector is not None else lambda: identity,
        problems=lambda: loop.problems(),  # noqa: PLW0108 - the loop comes later
    )
    loop = Loop(
        settings=settings,
        watches=watches,
        pools=PoolList(supplier=supplier, clock=clock),
        identity=ClusterProof(
            gke=gke,
            api=api,
            trusted_ca_pem=api.ca_certificates_pem(),
            assume=settings.assume_same_cluster,
            auto_upgrade=settings.auto_upgrade,
            clock=clock,
        ),
        actor=actor,
        reporter=Reporter(recorder=recorder, metrics=metrics, journal=board.journal, clock=clock),
        metrics=metrics,
        board=board,
        tracing=make_tracing(os.environ, cluster=settings.cluster),
        store=kube.HintsStore(api, settings.own_namespace),
        is_leader=(lambda: elector.is_leader) if elector is not None else _always,
        clock=clock,
        wake=wake,
        stopping=stopping,
        meter=Meter(settings=settings, metrics=metrics),
        asked_seconds_ago=wake.asked_seconds_ago,
    )
    server = make_status_server(
        "tpu-provisioner",
        Scrapes(address=addresses.metrics, exposition=metrics.exposition),
        Probes(
            address=addresses.probes,
            alive=loop.alive,
            problems=loop.problems,
            pages=board_api.pages(board),
            streams=board_api.streams(board),
        ),
    )
    return Controller(
        identity=identity,
        loop=loop,
        actor=actor,
        recorder=recorder,
        server=server,
        elector=elector,
        exit_process=exit_process,
    )


def make_gate(api: kube.Api, clock: Callable[[], datetime], *, keep_suspended: bool = False) -> Gate:
    """Return the gate before deletes, with threads of its own."""
    gates = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="gate")
    for_each = Parallel(executor=gates, at_once=_AT_ONCE_PER_POOL)
    return Gate(api=api, clock=clock, keep_suspended=keep_suspended, for_each=for_each)


def run(settings: Settings, addresses: Addresses, api: kube.KubeApi, client: Gke) -> int:
    """Run the controller until SIGTERM or SIGINT; return the exit code.

    Raises ServerError where an address cannot be served.
    """
    controller = build(settings, addresses, api, client)

    def stop(signal_name: str) -> None:
        # First of all: a log line whose reader hangs may wait for long.
        controller.stop()
        _log.info("controller.stopping", signal=signal_name)

    signals.on_end(stop)
    garbage.look_less_often()
    controller.start()
    _log.info(
        "controller.started",
        version=provisioner.__version__,
        kubernetes=api.server,
        context=api.context_name,
        cluster=str(settings.cluster_name),
        zone=settings.zone,
        gke=settings.gke_endpoint or "Google",
        leader_election=addresses.leader_elect,
        identity=controller.identity,
    )
    controller.loop.run()
    controller.shut_down()
    return 0


def _forever() -> float:
    return float("inf")


def _always() -> bool:
    return True
