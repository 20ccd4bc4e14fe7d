"""Assembles the controller of node groups, and runs its loop: observe, decide, act, report."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields

import provisioner
from provisioner.controller.loop import LONGEST_PAUSE_SECONDS, RoundLoop
from provisioner.controller.process import Addresses, Controller, assemble, make_replica
from provisioner.kube.api import KubeApi
from provisioner.nodegroups.act import Actor, DryActor
from provisioner.nodegroups.bootstrap.metadata import startup_script
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.device_plugin import manifest, version_of
from provisioner.nodegroups.gate import Gate
from provisioner.nodegroups.metrics import Metrics
from provisioner.nodegroups.observe import ClusterReader, Watches, make_watches, not_synced, take_snapshot
from provisioner.nodegroups.planning.actions import Answer
from provisioner.nodegroups.planning.decide import decide
from provisioner.nodegroups.planning.memory import Memory, fold
from provisioner.nodegroups.planning.round import PlanningSettings
from provisioner.nodegroups.report import Reporter
from provisioner.nodegroups.writing import Writer
from provisioner.runtime.clock import FollowedClock
from provisioner.runtime.parallel import Parallel
from provisioner.settings.nodegroups import NodeGroupSettings

LEASE_NAME = "tpu-provisioner-nodegroups"
#: Maximum number of nodes of one group about which the gate sends requests at the same time.
_AT_ONCE_PER_GROUP = 16
#: Maximum number of nodes of all groups about which the gate sends requests at the same time.
_AT_ONCE = 32


@dataclass(slots=True, kw_only=True)
class Loop(RoundLoop[Answer]):
    """The loop of node groups. Only its thread uses `memory`."""

    settings: PlanningSettings
    watches: Watches
    cluster: ClusterReader
    actor: Actor
    metrics: Metrics
    memory: Memory = field(default_factory=Memory)

    def problems(self) -> tuple[str, ...]:
        """Return the problems that prevent decisions. Only the leader needs the data about the cluster."""
        doubt = self.cluster.doubt() if self.is_leader() else ""
        return (*not_synced(self.watches), *((doubt,) if doubt else ()))

    def round(self) -> float:
        """Do one round; return the maximum pause before the next round, in seconds."""
        if not self.begin(self.watches.named()):
            return LONGEST_PAUSE_SECONDS
        if self.cluster.due_in_seconds(self.clock()) <= 0:
            self.cluster.read()
        snapshot = take_snapshot(self.watches, self.cluster, self.actor.live())
        with self.metrics.decide_seconds.time():
            plan = decide(snapshot, self.memory, self.settings, self.clock())
        self.carry_out(plan, snapshot)
        return self.pause_seconds(plan.wake_at, due_in_seconds=self.cluster.due_in_seconds(self.clock()))

    def fold(self, answer: Answer) -> None:
        """Record the result of a call or a write in the memory."""
        self.memory = fold(self.memory, answer)


def build(
    settings: NodeGroupSettings,
    addresses: Addresses,
    api: KubeApi,
    compute: ComputeClient,
    *,
    exit_process: Callable[[int], object] = os._exit,
    lease_clock: Callable[[], float] = time.monotonic,
) -> Controller[Loop]:
    """Assemble the controller. Raises ServerError if an address is invalid."""
    metrics = Metrics(version=provisioner.__version__)
    replica = make_replica(
        api,
        namespace=settings.own_namespace,
        name=settings.own_name,
        # A dry run changes nothing, so it runs without the lease, even next to a leader.
        elects=addresses.leader_elect and not settings.dry_run,
        leases=(LEASE_NAME,),
        exit_process=exit_process,
        lease_clock=lease_clock,
    )
    clock = FollowedClock()
    plugin = device_plugin_of(settings)
    gates = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="gate")

    def threads(prefix: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix=prefix)

    actor = (DryActor if settings.dry_run else Actor)(
        compute=compute,
        writer=Writer(api=api, device_plugin=plugin or {}),
        gate=Gate(api=api, clock=clock, for_each=Parallel(executor=gates, at_once=_AT_ONCE_PER_GROUP)),
        clock=clock,
        lease_seconds=replica.lease_seconds,
        on_answer=replica.wake.set,
        executor=threads("call"),
        gate_executor=threads("delete"),
        write_executor=threads("write"),
        metrics=metrics,
    )
    loop = Loop(
        settings=planning_settings(settings, plugin),
        watches=make_watches(api, replica.wake.set, served=settings.served_namespaces),
        cluster=ClusterReader(api=api, clock=clock, kubernetes_version=settings.kubernetes_version),
        actor=actor,
        reporter=Reporter(recorder=replica.recorder, metrics=metrics, dry_run=settings.dry_run, clock=clock),
        metrics=metrics,
        is_leader=replica.is_leader,
        clock=clock,
        wake=replica.wake,
        stopping=replica.stopping,
    )
    return assemble(replica, loop, loop.watches.named(), addresses, problems=loop.problems)


def device_plugin_of(settings: NodeGroupSettings) -> dict[str, object] | None:
    """Return the DaemonSet of the device plugin, None if the controller does not manage it."""
    if not settings.device_plugin_image:
        return None
    return manifest(
        settings.device_plugin_image, agent=settings.device_plugin_agent_image, log=settings.device_plugin_log_image
    )


def planning_settings(settings: NodeGroupSettings, plugin: dict[str, object] | None) -> PlanningSettings:
    """Return the settings for decisions, with the startup script and the version of the device plugin."""
    return PlanningSettings(
        **{field_.name: getattr(settings, field_.name) for field_ in fields(settings)},
        startup_script=startup_script(settings.packages),
        device_plugin_version=version_of(plugin) if plugin is not None else "",
    )


def run(settings: NodeGroupSettings, addresses: Addresses, api: KubeApi, compute: ComputeClient) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Raises ServerError if an address cannot be served."""
    return build(settings, addresses, api, compute).run(
        api,
        project=settings.project_id,
        compute=settings.gce_endpoint or "Google",
        leader_election=addresses.leader_elect,
        dry_run=settings.dry_run,
    )
