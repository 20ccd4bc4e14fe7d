"""Putting the parts of the controller of partitions together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import provisioner
from provisioner import controller as controllers
from provisioner import kube
from provisioner.admission.files import Files
from provisioner.controller import Candidacy, Controller, make_replica
from provisioner.kube.watches import doubt_of
from provisioner.partitions import names, page
from provisioner.partitions.act import Actor, Line
from provisioner.partitions.board import Board
from provisioner.partitions.board import pages as board_pages
from provisioner.partitions.demand import Server
from provisioner.partitions.gate import Gate
from provisioner.partitions.loop import Loop
from provisioner.partitions.metrics import Metrics
from provisioner.partitions.observe import Known, make_ledger_watch, make_pod_watch
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.planning.settings import PlanningSettings
from provisioner.partitions.reading import parse_pod
from provisioner.partitions.report import Reporter
from provisioner.partitions.rest.api import Sources, make_rest_server
from provisioner.partitions.rest.certificate import ServedFiles
from provisioner.partitions.store import LedgerStore
from provisioner.partitions.vipu.protocol import Vipu
from provisioner.runtime.clock import FollowedClock
from provisioner.runtime.http import HttpServer, parse_address
from provisioner.runtime.status import Probes, Scrapes, make_status_server
from provisioner.settings.partitions import PartitionSettings

#: Creates and removals on one server at once: it makes one after another anyway.
_CHANGES_AT_ONCE = 4
_WRITES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses(controllers.Addresses):
    """Where all that is served is served."""

    #: The REST API in plain HTTP.
    api: str = ":8080"
    #: The same over TLS, where there is a certificate.
    api_tls: str = ":8443"
    certificate: Files | None = None
    metrics: str = ":8082"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The REST API, which every replica serves: in plain HTTP, over TLS, or both, each with bounds of its own."""

    servers: tuple[HttpServer, ...]
    #: None: it is not served over TLS.
    certificate: ServedFiles | None

    def start(self) -> None:
        """Serve; raise ServerError where an address is not free."""
        if self.certificate is not None:
            self.certificate.start()
        for each in self.servers:
            each.start()

    def stop(self) -> None:
        """Serve no more."""
        for each in self.servers:
            each.stop()
        if self.certificate is not None:
            self.certificate.stop()

    def problems(self) -> Sequence[str]:
        """Return what keeps it from being served."""
        return () if self.certificate is None else self.certificate.problems()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The process: its controller, and the REST API."""

    controller: Controller[Loop, Actor]
    rest: Rest


def build(
    settings: PartitionSettings,
    addresses: Addresses,
    api: kube.KubeApi,
    vipu: Mapping[str, Vipu],
    *,
    exit_process: Callable[[int], object] = os._exit,
    lease_clock: Callable[[], float] = time.monotonic,
) -> Parts:
    """Put the parts together; raise ServerError where an address cannot be read.

    `vipu` has the client of each server, by HOST:PORT. A process that loses its lease ends by `exit_process`.
    """
    metrics = Metrics(version=provisioner.__version__)
    candidacy = Candidacy(
        namespace=settings.own_namespace,
        name=settings.own_name,
        elects=addresses.leader_elect,
        leases=(names.LEASE_NAME,),
    )
    replica = make_replica(api, candidacy, exit_process=exit_process, lease_clock=lease_clock)
    clock = FollowedClock()
    planning = planning_settings(settings)
    known = Known(
        api=api,
        store=LedgerStore(api=api, namespace=settings.own_namespace),
        clock=clock,
        servers=servers_of(settings),
    )

    def line(address: str) -> Line:
        return Line(
            vipu=vipu[address],
            changes=ThreadPoolExecutor(_CHANGES_AT_ONCE, thread_name_prefix=f"change {address}"),
            reads=ThreadPoolExecutor(1, thread_name_prefix=f"read {address}"),
        )

    actor = Actor(
        servers={server.address: line(server.address) for server in known.servers},
        api=api,
        store=known.store,
        gate=Gate(api=api, cluster_uid=lambda: known.cluster_uid),
        clock=clock,
        lease_seconds=replica.lease_seconds,
        on_answer=replica.wake.set,
        write_executor=ThreadPoolExecutor(_WRITES_AT_ONCE, thread_name_prefix="write"),
        metrics=metrics,
    )
    loop = Loop(
        settings=planning,
        pods=make_pod_watch(
            api, replica.wake.set, partial(parse_pod, servers=known.servers, largest_size=settings.largest_size)
        ),
        known=known,
        actor=actor,
        reporter=Reporter(recorder=replica.recorder, metrics=metrics),
        metrics=metrics,
        board=Board(release=provisioner.__version__, identity=replica.identity),
        is_leader=replica.is_leader,
        clock=clock,
        wake=replica.wake,
        stopping=replica.stopping,
    )
    ledger = make_ledger_watch(api, settings.own_namespace)
    rest = _make_rest(addresses, api, _sources(loop, ledger, vipu))
    server = make_status_server(
        "tpu-provisioner",
        Scrapes(address=addresses.metrics, exposition=metrics.exposition),
        Probes(
            address=addresses.probes,
            alive=loop.alive,
            problems=lambda: (*loop.problems(), *rest.problems()),
            pages=(*page.pages(), *board_pages(loop.board)),
        ),
    )
    controller = Controller(
        identity=replica.identity,
        loop=loop,
        watches={"pods": loop.pods, "configmaps": ledger},
        actor=actor,
        recorder=replica.recorder,
        server=server,
        elector=replica.elector,
        exit_process=exit_process,
        last=rest.stop,
    )
    return Parts(controller=controller, rest=rest)


def _make_rest(addresses: Addresses, api: kube.KubeApi, sources: Sources) -> Rest:
    plain, encrypted = parse_address(addresses.api), parse_address(addresses.api_tls)
    servers = [make_rest_server(plain, api, sources)] if plain is not None else []
    certificate = None
    if encrypted is not None and addresses.certificate is not None:
        certificate = ServedFiles(addresses.certificate)
        servers.append(make_rest_server(encrypted, api, sources, tls=certificate.context))
    return Rest(servers=tuple(servers), certificate=certificate)


def _sources(loop: Loop, ledger: kube.Watch[Ledger], vipu: Mapping[str, Vipu]) -> Sources:
    """Return what the REST API goes by: what any replica sees, whether it leads or not."""

    def problems() -> Sequence[str]:
        return tuple(filter(None, (doubt_of("pods", loop.pods), doubt_of("configmaps", ledger))))

    return Sources(
        cluster_uid=lambda: loop.known.cluster_uid,
        pod=lambda namespace, name: loop.pods.records().get((namespace, name)),
        # One that is not there is empty: nothing was ever recorded.
        ledger=lambda: next(iter(ledger.records().values()), Ledger()),
        vipu=vipu.get,
        problems=problems,
    )


def servers_of(settings: PartitionSettings) -> tuple[Server, ...]:
    """Return the servers that the settings name."""
    return tuple(Server(host=each.host, port=each.port, node_selector=each.node_selector) for each in settings.servers)


def planning_settings(settings: PartitionSettings) -> PlanningSettings:
    """Return what decisions go by."""
    return PlanningSettings(
        largest_size=settings.largest_size,
        reconfigurable=settings.reconfigurable,
        namespace_limits=dict(settings.namespace_limits),
        namespaces=frozenset(settings.namespaces),
        orphan_seconds=settings.orphan_seconds,
        unscheduled_seconds=settings.unscheduled_seconds,
    )


def run(
    settings: PartitionSettings,
    addresses: Addresses,
    api: kube.KubeApi,
    vipu: Mapping[str, Vipu],
    *,
    exit_process: Callable[[int], object],
) -> int:
    """Run the controller until SIGTERM or SIGINT; return the exit code. `exit_process` is as of `build`.

    Raises ServerError where an address cannot be served.
    """
    parts = build(settings, addresses, api, vipu, exit_process=exit_process)
    parts.rest.start()
    return parts.controller.run(
        api,
        servers=[server.address for server in servers_of(settings)],
        leader_election=addresses.leader_elect,
    )
