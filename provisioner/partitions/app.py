"""Controller of IPU partitions: the loop that observes, decides, acts and reports, and the assembly of all parts."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import provisioner
from provisioner.admission.files import Files
from provisioner.controller import process as controllers
from provisioner.controller.loop import RoundLoop
from provisioner.controller.process import Controller, assemble, make_replica
from provisioner.kube.api import KubeApi
from provisioner.kube.watches import Watch, doubt_of
from provisioner.partitions import names
from provisioner.partitions.act import Actor, Line
from provisioner.partitions.board import Board
from provisioner.partitions.demand import Pod, parse_pod
from provisioner.partitions.metrics import Metrics
from provisioner.partitions.observe import Known, make_ledger_watch, make_pod_watch
from provisioner.partitions.planning.actions import Answer
from provisioner.partitions.planning.decide import decide
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.planning.memory import Memory, fold
from provisioner.partitions.report import Reporter
from provisioner.partitions.rest.api import Sources, make_rest
from provisioner.partitions.vipu.cli import VipuCommand
from provisioner.runtime.clock import FollowedClock
from provisioner.runtime.resources import file_pages
from provisioner.settings.partitions import PartitionSettings

_WRITES_AT_ONCE = 8


@dataclass(slots=True, kw_only=True)
class Loop(RoundLoop[Answer]):
    """The loop of partitions. Only its thread uses `memory`."""

    settings: PartitionSettings
    pods: Watch[Pod]
    known: Known
    actor: Actor
    metrics: Metrics
    board: Board
    memory: Memory = field(default_factory=Memory)

    def problems(self) -> tuple[str, ...]:
        """Return why the controller cannot decide, empty if it can. A follower does not decide, and has no problem."""
        return self.known.snapshot(self.pods).not_synced if self.is_leader() else ()

    def round(self) -> float:
        """Do one round; return the maximum pause before the next round, in seconds."""
        leading = self.begin({"pods": self.pods})
        if self.known.due_in_seconds(self.clock(), leading=leading) <= 0:
            self.known.read(leading=leading)
        if not leading:
            self.board.stand_by()
            due = self.known.due_in_seconds(self.clock(), leading=False)
            return self.pause_seconds(None, due_in_seconds=due)
        snapshot = self.known.snapshot(self.pods, self.actor.live())
        # This metric is set here, because the reporter is not called in a round without the ledger.
        self.metrics.ledger_known.set(snapshot.ledger is not None)
        with self.metrics.decide_seconds.time():
            plan = decide(snapshot, self.memory, self.settings, self.clock())
        self.board.publish(plan, snapshot, self.clock())
        self.carry_out(plan, snapshot)
        return self.pause_seconds(plan.wake_at, due_in_seconds=self.known.due_in_seconds(self.clock(), leading=True))

    def fold(self, answer: Answer) -> None:
        """Record the outcome of a call or write in the memory and in the observed state."""
        self.known.fold(answer)
        self.memory = fold(self.memory, answer)

    def clock_set(self, by: timedelta) -> None:
        """Shift the times in the memory and in the observed state after the clock was set."""
        RoundLoop.clock_set(self, by)
        self.known.clock_set(by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses(controllers.Addresses):
    """Addresses of all endpoints of the controller."""

    #: Address of the REST API in plain HTTP.
    api: str = ":8080"
    #: Address of the REST API over TLS; used only if `certificate` is set.
    api_tls: str = ":8443"
    certificate: Files | None = None
    metrics: str = ":8082"


def build(
    settings: PartitionSettings,
    addresses: Addresses,
    api: KubeApi,
    vipu: Mapping[str, VipuCommand],
    *,
    exit_process: Callable[[int], object],
) -> Controller[Loop]:
    """Assemble the controller with the REST API. Raises ServerError if an address is invalid."""
    metrics = Metrics(version=provisioner.__version__)
    replica = make_replica(
        api,
        namespace=settings.own_namespace,
        name=settings.own_name,
        elects=addresses.leader_elect,
        leases=(names.LEASE_NAME,),
        exit_process=exit_process,
        lease_clock=time.monotonic,
    )
    clock = FollowedClock()
    known = Known(api=api, namespace=settings.own_namespace, clock=clock, servers=settings.servers)

    def line(address: str) -> Line:
        return Line(
            vipu=vipu[address],
            changes=ThreadPoolExecutor(settings.max_changes_per_server, thread_name_prefix=f"change {address}"),
            reads=ThreadPoolExecutor(1, thread_name_prefix=f"read {address}"),
        )

    actor = Actor(
        servers={server.address: line(server.address) for server in known.servers},
        api=api,
        namespace=settings.own_namespace,
        cluster_uid=lambda: known.cluster_uid,
        clock=clock,
        lease_seconds=replica.lease_seconds,
        on_answer=replica.wake.set,
        write_executor=ThreadPoolExecutor(_WRITES_AT_ONCE, thread_name_prefix="write"),
        metrics=metrics,
    )
    loop = Loop(
        settings=settings,
        pods=make_pod_watch(
            api, replica.wake.set, partial(parse_pod, servers=known.servers, largest_size=settings.largest_size)
        ),
        known=known,
        actor=actor,
        reporter=Reporter(recorder=replica.recorder, metrics=metrics, clock=clock),
        metrics=metrics,
        board=Board(release=provisioner.__version__, identity=replica.identity),
        is_leader=replica.is_leader,
        clock=clock,
        wake=replica.wake,
        stopping=replica.stopping,
    )
    ledger = make_ledger_watch(api, settings.own_namespace)
    sources = _sources(loop, ledger, vipu)
    servers, certificate = make_rest(addresses.api, addresses.api_tls, addresses.certificate, api, sources)
    return assemble(
        replica,
        loop,
        {"pods": loop.pods, "configmaps": ledger},
        addresses,
        problems=lambda: (*loop.problems(), *(certificate.problems() if certificate is not None else ())),
        pages=(*file_pages("provisioner.partitions"), loop.board.page()),
        parts=(certificate, *servers) if certificate is not None else servers,
    )


def _sources(loop: Loop, ledger: Watch[Ledger], vipu: Mapping[str, VipuCommand]) -> Sources:
    return Sources(
        cluster_uid=lambda: loop.known.cluster_uid,
        pod=lambda namespace, name: loop.pods.records().get((namespace, name)),
        ledger=lambda: next(iter(ledger.records().values()), Ledger()),
        vipu=vipu.get,
        problems=lambda: tuple(filter(None, (doubt_of("pods", loop.pods), doubt_of("configmaps", ledger)))),
    )


def run(
    settings: PartitionSettings,
    addresses: Addresses,
    api: KubeApi,
    vipu: Mapping[str, VipuCommand],
    *,
    exit_process: Callable[[int], object],
) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Raises ServerError if an address cannot be served."""
    return build(settings, addresses, api, vipu, exit_process=exit_process).run(
        api, servers=[server.address for server in settings.servers], leader_election=addresses.leader_elect
    )
