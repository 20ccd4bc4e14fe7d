"""Putting the parts together, starting them, and ending in good order."""

from __future__ import annotations

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

import provisioner
from provisioner import cluster
from provisioner.controller.acting import Actor
from provisioner.controller.clocks import FollowedClock
from provisioner.controller.deleting import Gate
from provisioner.controller.guarding import ClusterProof
from provisioner.controller.loop import Loop
from provisioner.controller.observing import PoolList, make_watches
from provisioner.controller.reporting import Reporter
from provisioner.gke.decorators import InstrumentedGke, RetryingGke
from provisioner.gke.protocol import Gke
from provisioner.observability.metrics import Metrics
from provisioner.observability.server import StatusServer
from provisioner.settings import Settings

_log = structlog.get_logger(__name__)

#: Calls under way at SIGTERM get this long; Kubernetes kills after 30 s.
_DRAIN_SECONDS = 22.0
_LAST_EVENTS_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where metrics and probes are served, and whether to elect a leader: the command line's part of the settings."""

    metrics: str = ":8080"
    probes: str = ":8081"
    leader_elect: bool = False


def run(settings: Settings, addresses: Addresses, api: cluster.KubeApi, client: Gke) -> int:
    """Run the controller until SIGTERM or SIGINT; return the exit code.

    Raises ServerError where an address cannot be served.
    """
    metrics = Metrics(version=provisioner.__version__)
    gke = RetryingGke(InstrumentedGke(client, metrics))
    identity = settings.own_name or f"{socket.gethostname()}-{os.getpid()}"
    wake, stopping = threading.Event(), threading.Event()
    recorder = cluster.EventRecorder(api, instance=identity)
    lost = threading.Event()

    def lose() -> None:
        lost.set()
        stopping.set()
        wake.set()

    elector = (
        cluster.LeaseElector(
            api, namespace=settings.own_namespace, identity=identity, on_started=wake.set, on_lost=lose
        )
        if addresses.leader_elect
        else None
    )
    watches = make_watches(api, settings, wake.set)
    clock = FollowedClock()
    actor = Actor(
        gke=gke,
        api=api,
        gate=Gate(api=api, settings=settings, clock=clock),
        clock=clock,
        lease_seconds=elector.remaining_seconds if elector is not None else _forever,
        on_answer=wake.set,
        executor=ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="act"),
    )
    loop = Loop(
        settings=settings,
        watches=watches,
        pools=PoolList(gke=gke, clock=clock),
        proof=ClusterProof(
            gke=gke,
            api=api,
            trusted_ca_pem=api.ca_certificates_pem(),
            assume=settings.assume_same_cluster,
            clock=clock,
        ),
        actor=actor,
        reporter=Reporter(recorder=recorder, metrics=metrics),
        metrics=metrics,
        store=cluster.HintsStore(api, settings.own_namespace),
        is_leader=(lambda: elector.is_leader) if elector is not None else _always,
        clock=clock,
        wake=wake,
        stopping=stopping,
    )
    server = StatusServer(
        metrics_address=addresses.metrics,
        probe_address=addresses.probes,
        exposition=metrics.exposition,
        alive=loop.alive,
        problems=loop.problems,
    )

    def stop(signal_number: int, _frame: object) -> None:
        _log.info("controller.stopping", signal=signal.Signals(signal_number).name)
        stopping.set()
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.start()
    recorder.start()
    for watch in watches.named().values():
        watch.start()
    if elector is not None:
        elector.start()
    _log.info(
        "controller.started",
        version=provisioner.__version__,
        kubernetes=api.server,
        context=api.context_name,
        cluster=f"{settings.project_id}/{settings.cluster_location}/{settings.cluster}",
        zone=settings.zone,
        gke=settings.gke_endpoint or "Google",
        leader_election=addresses.leader_elect,
        identity=identity,
    )
    loop.run()
    return _shut_down(loop, actor, recorder, elector, server, lost=lost.is_set())


def _shut_down(
    loop: Loop,
    actor: Actor,
    recorder: cluster.EventRecorder,
    elector: cluster.LeaseElector | None,
    server: StatusServer,
    *,
    lost: bool,
) -> int:
    if lost:
        # Somebody else may lead already: whatever is under way ends by its own time-out or with the process.
        _log.error("controller.lease_lost", advice="the process ends; Kubernetes starts it again as a follower")
        os._exit(1)
    drained = actor.drain(timeout_seconds=_DRAIN_SECONDS)
    recorder.flush(timeout_seconds=_LAST_EVENTS_SECONDS)
    for watch in loop.watches.named().values():
        watch.stop()
    if elector is not None and drained:
        elector.release()
    server.stop()
    _log.info("controller.stopped", calls_under_way=not drained)
    # Threads that hang in a call must not keep the process from ending.
    os._exit(0) if not drained else None
    return 0


def _forever() -> float:
    return float("inf")


def _always() -> bool:
    return True
