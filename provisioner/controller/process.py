"""Process of a controller: starts and ends its parts in order, with leader election among its replicas."""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

import provisioner
from provisioner import constants
from provisioner.admission.files import CertificateLoop
from provisioner.controller.loop import RoundLoop, Wake
from provisioner.kube.api import KubeApi
from provisioner.kube.events import EventRecorder
from provisioner.kube.lease import LeaseElector
from provisioner.kube.watches import Watch
from provisioner.runtime import process
from provisioner.runtime.http import HttpServer
from provisioner.runtime.resources import Page
from provisioner.runtime.status import make_status_server

_log = structlog.get_logger(__name__)

#: Maximum wait in seconds for calls in progress after SIGTERM. Kubernetes kills the process after 30 s.
_DRAIN_SECONDS = 22.0
_LAST_EVENTS_SECONDS = 2.0
#: Maximum wait in seconds for the last log line after the loss of the lease: writing may block.
_LAST_WORDS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Identity and leadership of this process, and the objects that all parts of the controller share."""

    identity: str
    recorder: EventRecorder
    wake: Wake
    stopping: threading.Event
    #: None without leader election.
    elector: LeaseElector | None
    exit_process: Callable[[int], object]

    def is_leader(self) -> bool:
        """Return whether this process leads."""
        return self.elector is None or self.elector.is_leader

    def leader(self) -> str:
        """Return the leader, usually the name of its pod, as of the last read of the Lease; empty if unknown."""
        return self.elector.leader if self.elector is not None else self.identity

    def lease_seconds(self) -> float:
        """Return the guaranteed seconds of leadership; infinite without leader election."""
        return self.elector.remaining_seconds() if self.elector is not None else float("inf")


def make_replica(
    api: KubeApi,
    *,
    namespace: str,
    name: str,
    elects: bool,
    exit_process: Callable[[int], object],
    lease_clock: Callable[[], float],
    leases: Sequence[str] = (constants.LEASE_NAME, constants.ORIGINAL_LEASE_NAME),
) -> Replica:
    """Create a replica without starting its parts. Without a `name`, the identity is host name and process id.

    The first of `leases`, in `namespace`, is this controller's; a further lease must be held only if it exists. If
    `elects` is False, this process always leads. If the lease is lost, another process may lead: the elector's thread
    then calls `exit_process`, even if a round, a call or the API server hangs.
    """
    identity = name or f"{socket.gethostname()}-{os.getpid()}"
    wake, stopping = Wake(), threading.Event()
    elector = (
        LeaseElector(
            api,
            namespace=namespace,
            identity=identity,
            on_started=wake.set,
            on_lost=_ending(stopping, wake, exit_process),
            leases=leases,
            clock=lease_clock,
        )
        if elects
        else None
    )
    recorder = EventRecorder(api, instance=identity)
    return Replica(
        identity=identity, recorder=recorder, wake=wake, stopping=stopping, elector=elector, exit_process=exit_process
    )


LoopT = TypeVar("LoopT", bound=RoundLoop[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Settings that are command-line options: addresses of metrics and probes, and whether to elect a leader."""

    metrics: str = ":8080"
    probes: str = ":8081"
    leader_elect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller(Generic[LoopT]):
    """All parts of a controller. No thread runs before `start`."""

    replica: Replica
    loop: LoopT
    watches: Mapping[str, Watch[Any]]
    server: HttpServer
    #: Further parts, which start first and end after the wait for calls in progress.
    parts: Sequence[HttpServer | CertificateLoop] = ()

    def start(self) -> None:
        """Start all parts except the loop. Raises ServerError if an address cannot be served."""
        for part in (*self.parts, self.server):
            part.start()
        self.replica.recorder.start()
        for watch in self.watches.values():
            watch.start()
        if self.replica.elector is not None:
            self.replica.elector.start()

    def stop(self) -> None:
        """Request the end of the loop after its current round, without waiting."""
        self.loop.stopping.set()
        self.loop.wake.set()

    def shut_down(self) -> None:
        """End all parts after the loop. Waits for calls in progress, and releases the lease if no call is left."""
        drained = self.loop.actor.drain(timeout_seconds=_DRAIN_SECONDS)
        self.replica.recorder.flush(timeout_seconds=_LAST_EVENTS_SECONDS)
        for watch in self.watches.values():
            watch.stop()
        if self.replica.elector is not None and drained:
            self.replica.elector.release()
        self.replica.recorder.stop()
        for part in (*self.parts, self.server):
            part.stop()
        _log.info("controller.stopped", calls_under_way=not drained)
        if not drained:
            # Threads that hang in a call must not prevent the end of the process.
            self.replica.exit_process(0)

    def run(self, api: KubeApi, **told: object) -> int:
        """Run until SIGTERM or SIGINT; return the exit code. `told` is logged. Raises ServerError like `start`."""

        def stop(signal_name: str) -> None:
            # The stop comes before the log line, which may block if the output is not read.
            self.stop()
            _log.info("controller.stopping", signal=signal_name)

        process.on_end(stop)
        process.collect_garbage_rarely()
        self.start()
        _log.info(
            "controller.started",
            version=provisioner.__version__,
            kubernetes=api.server,
            context=api.context_name,
            identity=self.replica.identity,
            **told,
        )
        self.loop.run()
        self.shut_down()
        return 0


def assemble(
    replica: Replica,
    loop: LoopT,
    watches: Mapping[str, Watch[Any]],
    addresses: Addresses,
    *,
    problems: Callable[[], Sequence[str]],
    pages: Sequence[Page] = (),
    parts: Sequence[HttpServer | CertificateLoop] = (),
) -> Controller[LoopT]:
    """Combine parts with a server of metrics and probes. Raises ServerError for an invalid address."""
    server = make_status_server(
        "tpu-provisioner",
        metrics=addresses.metrics,
        exposition=loop.metrics.exposition,
        probes=addresses.probes,
        failures=lambda: [failure for part in (loop, *parts) for failure in part.failures()],
        problems=problems,
        pages=pages,
    )
    return Controller(replica=replica, loop=loop, watches=watches, server=server, parts=parts)


def _ending(stopping: threading.Event, wake: Wake, exit_process: Callable[[int], object]) -> Callable[[], None]:

    def lose() -> None:
        # No further round begins, even if `exit_process` does not end the process immediately.
        stopping.set()
        wake.set()
        try:
            words = threading.Thread(target=_say_lease_lost, name="last-words", daemon=True)
            words.start()
            words.join(_LAST_WORDS_SECONDS)
        finally:
            exit_process(1)

    return lose


def _say_lease_lost() -> None:
    # The logger flushes each line, so the exit of the process does not lose this line.
    _log.error("controller.lease_lost", advice="the process ends; Kubernetes restarts it as a follower")
