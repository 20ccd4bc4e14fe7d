"""Builds the controller from its parts and runs it."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import provisioner
from provisioner.controller.process import Addresses, Controller, assemble, make_replica
from provisioner.kube.api import KubeApi
from provisioner.kube.protocol import Api
from provisioner.runtime.clock import FollowedClock
from provisioner.runtime.parallel import Parallel
from provisioner.settings import Settings
from provisioner.slices import api as board_api
from provisioner.slices.act import Actor
from provisioner.slices.board import About, Board
from provisioner.slices.gate import Gate
from provisioner.slices.hints import HintsStore
from provisioner.slices.loop import Loop
from provisioner.slices.metrics import Meter, Metrics
from provisioner.slices.observe import PoolList, make_watches
from provisioner.slices.report import Reporter
from provisioner.slices.supplier import Supplier
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.identity_check import ClusterProof
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from provisioner.slices.suppliers.nodegroup.supplier import NodeGroupSupplier

#: Maximum number of concurrent calls to the API server for the checks before the delete of one pool, and maximum number
#: of concurrent changes of nodes, pods and statuses: 16 threads make 160 changes a second of two calls of 50 ms each.
_AT_ONCE_PER_POOL = 16
#: Number of threads that the checks before all deletes share; the thread of each delete also makes calls itself.
_AT_ONCE = 32


def choose(
    settings: Settings,
    api: KubeApi,
    gke: GkeClient | None,
    clock: Callable[[], datetime],
    observe: Callable[..., None] = lambda *_, **__: None,
) -> tuple[Supplier, ClusterProof | None]:
    """Return the supplier that PROVIDER names and, for GKE, a ClusterProof. Raises ValueError if GKE has no client."""
    if settings.on_gce:
        return NodeGroupSupplier(api=api, settings=settings, clock=clock), None
    if gke is None:
        raise ValueError("PROVIDER=gke needs a client of GKE")
    supplier = GkeSupplier(gke=gke, clock=clock, observe=observe)
    proof = ClusterProof(
        get_cluster=supplier.get_cluster,
        api=api,
        trusted_ca_pem=api.ca_pem,
        assume=settings.assume_same_cluster,
        clock=clock,
    )
    return supplier, proof


def build(
    settings: Settings,
    addresses: Addresses,
    api: KubeApi,
    client: GkeClient | None,
    *,
    exit_process: Callable[[int], object] = os._exit,
    lease_clock: Callable[[], float] = time.monotonic,
) -> Controller[Loop]:
    """Build the controller; only the supplier GKE requires `client`. Raises ServerError for invalid addresses."""
    metrics = Metrics(version=provisioner.__version__)
    replica = make_replica(
        api,
        namespace=settings.own_namespace,
        name=settings.own_name,
        elects=addresses.leader_elect,
        exit_process=exit_process,
        lease_clock=lease_clock,
    )
    watches = make_watches(api, settings, replica.wake.set)
    clock = FollowedClock()
    supplier, proof = choose(settings, api, client, clock, metrics.gke.observe)
    actor = Actor(
        supplier=supplier,
        api=api,
        gate=make_gate(api, clock, settings),
        clock=clock,
        lease_seconds=replica.lease_seconds,
        on_answer=replica.wake.set,
        executor=ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="act"),
        delete_executor=ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="delete"),
        change_executor=ThreadPoolExecutor(max_workers=_AT_ONCE_PER_POOL, thread_name_prefix="change"),
    )
    board = Board(
        about=About(
            release=provisioner.__version__,
            project=settings.project_id,
            location=settings.cluster_location,
            cluster=settings.cluster,
            identity=replica.identity,
            started_at=clock(),
        ),
        environment=os.environ,
        clock=clock,
        leader=replica.leader,
        problems=lambda: loop.problems(),  # noqa: PLW0108 - the loop comes later
    )
    loop = Loop(
        settings=settings,
        watches=watches,
        pools=PoolList(supplier=supplier, clock=clock),
        identity=proof,
        actor=actor,
        reporter=Reporter(
            recorder=replica.recorder,
            metrics=metrics,
            meter=Meter(settings=settings, metrics=metrics),
            journal=board.journal,
            clock=clock,
            supplier_name=supplier.rules.supplier_name,
        ),
        metrics=metrics,
        board=board,
        store=HintsStore(api, settings.own_namespace),
        is_leader=replica.is_leader,
        clock=clock,
        wake=replica.wake,
        stopping=replica.stopping,
    )
    pages = board_api.pages(board)
    return assemble(replica, loop, watches.named(), addresses, problems=loop.problems, pages=pages)


def make_gate(api: Api, clock: Callable[[], datetime], settings: Settings) -> Gate:
    """Return the gate, with its own threads for the checks before deletes."""
    gates = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="gate")
    return Gate(
        api=api,
        settings=settings,
        clock=clock,
        for_each=Parallel(executor=gates, at_once=_AT_ONCE_PER_POOL),
    )


def run(settings: Settings, addresses: Addresses, api: KubeApi, client: GkeClient | None) -> int:
    """Run the controller until SIGTERM or SIGINT; return the exit code. Raises ServerError for unusable addresses."""
    on_gce = {"node_groups": settings.node_groups_in} if settings.on_gce else {}
    return build(settings, addresses, api, client).run(
        api,
        cluster=str(settings.cluster_name),
        zone=settings.zone,
        **(on_gce or {"gke": settings.gke_endpoint or "Google"}),
        leader_election=addresses.leader_elect,
    )
