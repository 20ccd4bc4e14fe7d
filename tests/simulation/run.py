"""Runs the simulation of one seed until the world has settled, or until an invariant is violated."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import structlog

from provisioner.model.capacity import Zone
from provisioner.model.workloads import WorkloadKind
from provisioner.settings import Settings
from provisioner.slices.metrics import Metrics
from provisioner.workloads import JOBSET, KINDS, LEADER_WORKER_SET, PLAIN_JOB, RAY_CLUSTER, Kind
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.simulation import checks
from tests.simulation.administrator import Administrator
from tests.simulation.admission import Admission
from tests.simulation.asks import BUFFER, REQUEST, BufferTeam, asked_in
from tests.simulation.calls import Calls
from tests.simulation.chaos import Chaos
from tests.simulation.checks import Checker
from tests.simulation.cloud import CA_PEM, CLUSTER, ZONE, Cloud
from tests.simulation.environment import Environment, Singled
from tests.simulation.guests import Guests
from tests.simulation.hostile import Hostile, Neighbour
from tests.simulation.jobs import JobTeam
from tests.simulation.kueue import Kueue
from tests.simulation.market import Market
from tests.simulation.people import People
from tests.simulation.planted import BUGS
from tests.simulation.podteam import PodTeam
from tests.simulation.process import Process
from tests.simulation.rays import RayTeam
from tests.simulation.sets import ServingTeam
from tests.simulation.store import Stage
from tests.simulation.workloads import Cluster
from tests.support.simulations.bugs import planted
from tests.support.simulations.runs import Outcome, outcome_of

#: Log events that report an unexpected exception.
_CRASHES = frozenset(
    {
        "call.crashed",
        "create.crashed",
        "delete.crashed",
        "lease.step_failed",
        "lease.listener_failed",
        "watch.step_failed",
        "watch.listener_failed",
    }
)
#: Maximum seconds until the world has settled, from the end of the storm or of the phase with tenants that follows it.
SETTLED_WITHIN_SECONDS = 1800.0
#: `SETTLED_WITHIN_SECONDS` of runs with hostile tenants, or in which slices may wait for each other or failed capacity.
SCARCE_SETTLED_WITHIN_SECONDS = 10_800.0
#: Seconds for which the world must remain settled, without a create or delete of a pool, before the run ends.
QUIET_SECONDS = 130.0
_STEP_SECONDS = 5.0
#: Seconds for which the pools of a ProvisioningRequest are kept for its pods, in runs with even and with odd seeds.
BOOKING_SECONDS = (90.0, 600.0)
#: Maximum seconds for which hostile tenants stay after the storm, even if honest JobSets have not ended.
_HOSTILE_SECONDS = 8 * 3600.0
#: Maximum CPU seconds of a run; a longer run counts as an endless loop.
_CPU_SECONDS = 150.0
_OTHER_CA_PEM = b"-----BEGIN CERTIFICATE-----\nWFla\n-----END CERTIFICATE-----\n"


class Simulation:
    """All parts of one run."""

    def __init__(self, seed: int, *, recording: bool = False, storm: Collection[str] = ()) -> None:
        #: Names of the kinds of faults from which chaos.py chooses; empty if the seed draws the kinds.
        self.storm = storm
        self.stage = stage = Stage(seed, recording=recording)
        rng = stage.rng
        self.metrics = _metrics()
        self.storm_seconds = rng.uniform(40.0, 240.0)
        self.same_cluster = not stage.chance(0.03)
        self.labels_uid = not stage.chance(0.1)
        self.asks = asked_in(seed)
        self.pods = PodTeam(self)
        self.hostile = Hostile(self)
        if self.hostile.rivals.has_buffer:
            self.asks = (BUFFER,)
        self.market = Market(self)
        self.administrator = Administrator(self)
        # With scarce capacity, pools that are kept for suspended workloads could block other workloads permanently.
        self.keeps_suspended = seed % 5 == 3 and not self.market.scarce and not self.hostile.present
        self._settings = Settings(
            keep_suspended=self.keeps_suspended,
            project_id=CLUSTER.project,
            cluster_location=CLUSTER.location,
            zone=Zone(ZONE),
            cluster=CLUSTER.cluster,
            deletion_delay_seconds=rng.choice((0.0, 10.0, 30.0, 30.0)),
            node_min_lifespan_seconds=rng.choice((0.0, 10.0)),
            concurrency=min(16, self.hostile.threads),
            booking_seconds=BOOKING_SECONDS[seed % 2],
            **self.market.settings(),
        )
        self._elected = stage.chance(0.5)
        self._wanted_processes = 2 if self._elected and stage.chance(0.8) else 1
        self.admission = Admission(stage)
        self.cluster = Cluster(stage, self.admission)
        self.cloud = Cloud(
            stage,
            SimulatorSettings(
                project=CLUSTER.project,
                location=CLUSTER.location,
                cluster=CLUSTER.cluster,
                create_seconds=rng.choice((5.0, 20.0, 60.0)),
                create_jitter_seconds=rng.choice((0.0, 30.0)),
                delete_seconds=rng.choice((2.0, 10.0, 40.0)),
                node_stagger_seconds=rng.choice((0.0, 4.0)),
                delete_while_creating=rng.random() < 0.5,
                repair_seconds=rng.choice((5.0, 40.0)),
                release_channel=(None, "REGULAR")[stage.seed % 2],
                # The controller orders nodes by name: with other names, other seeds would find the planted bugs.
                pool_in_node_names=True,
            ),
            quota=rng.choice((None, None, 1, 3, 5)),
        )
        self.cloud.on_repaired = self._restock
        self.cloud.on_looking_for_pods = self.cluster.waits_for
        self.market.open()
        self.singled = Singled(self)
        self.singled.begin()
        self.environment = Environment(self)
        self.environment.begin()
        self.calls = Calls(stage)
        self.people = People(self)
        self.chaos = Chaos(self)
        self.neighbour = Neighbour(self)
        self.team = ServingTeam(self)
        self.job_team = JobTeam(self)
        self._settings = replace(self._settings, serve_jobs=self.job_team.present)
        self.ray_team = RayTeam(self)
        self.guests = Guests(self)
        self.kueue = Kueue(self)
        self.buffer_team = BufferTeam(self)
        self.checker = Checker(self)
        self.processes: list[Process] = []
        self._started = 0
        #: Time of the last start of a process. Its caches are empty then, so checks count durations from this time.
        self.disturbed_at = 0.0

    def run(self) -> dict[str, float]:
        """Run until the world has settled; return the duration and the maximum call rate. Raises Violated."""
        agenda, stage = self.stage.agenda, self.stage
        # JobSets may wait for each other's chips, or release incomplete sets of pools and try again later.
        takes_turns = self.market.scarce or (self.market.gangs and bool(self.market.choices))
        # After the `Singled` JobSet finds no capacity, all creates of this capacity wait for up to 30 minutes.
        slow = takes_turns or self.singled.of_capacity
        bound_seconds = SCARCE_SETTLED_WITHIN_SECONDS if slow else SETTLED_WITHIN_SECONDS
        bound_seconds += self.administrator.delay_seconds if self.administrator.delays else 0.0
        for _ in range(self._wanted_processes):
            self._start_process()
        if not self.hostile.present:
            self.people.begin()
        self.hostile.begin()
        stage.stormy = not self.hostile.quiet
        if stage.stormy:
            self.chaos.begin()
            self.administrator.begin()
        self.neighbour.begin()
        self.team.begin()
        self.job_team.begin()
        self.ray_team.begin()
        self.kueue.begin()
        self.buffer_team.begin()
        self.pods.begin()
        self.guests.begin()
        agenda.wait(self.storm_seconds)
        self.chaos.end()
        self.guests.leave()
        self._stay_with_the_pods()
        if self.hostile.present:
            bound_seconds = SCARCE_SETTLED_WITHIN_SECONDS
            self._stay_with_the_hostile()
        calm_since = agenda.now
        if self.singled.met or self.environment.late:
            self.people.come_late()
        settled_at: float | None = None
        while True:
            unsettled = self.checker.unsettled()
            if unsettled:
                settled_at = None
                if agenda.now - calm_since > bound_seconds:
                    invariant, text = unsettled[0]
                    stage.violate(invariant, f"{text}, {bound_seconds:.0f} s after the last fault")
            elif settled_at is None or self.checker.changed_at > settled_at:
                settled_at = agenda.now
                if agenda.now - calm_since > bound_seconds:
                    stage.violate(checks.LEAK, "the controller goes on making and deleting pools in a settled world")
            elif agenda.now - settled_at > QUIET_SECONDS:
                self.checker.settled()
                return {
                    "seconds from the storm until the world has settled": settled_at - calm_since,
                    "calls to GKE by one process within a minute": self.checker.max_calls_per_minute,
                }
            agenda.wait(_STEP_SECONDS)

    def _stay_with_the_pods(self) -> None:
        """Wait until the team of Deployments and the hostile pods are done; then remove the hostile pods."""
        if not self.pods.present:
            return
        self.pods.begin_calm()
        while not self.pods.done:
            self.stage.agenda.wait(_STEP_SECONDS)
            self.pods.look()
        self.pods.intruders.leave()

    def _stay_with_the_hostile(self) -> None:
        """Check waits until `Hostile.done`, for at most `_HOSTILE_SECONDS`; then remove the hostile tenants."""
        agenda, fairness = self.stage.agenda, self.checker.fairness
        self.hostile.begin_calm()
        most = agenda.now + _HOSTILE_SECONDS
        while not self.hostile.done and agenda.now < most:
            agenda.wait(_STEP_SECONDS)
            fairness.look_at_waiting()
            fairness.look_at_pools()
            self.hostile.misfits.look()
        fairness.look_at_hostile()
        self.hostile.leave()

    @property
    def kinds(self) -> Mapping[WorkloadKind, Kind]:
        """Kinds of workloads that the processes of this run watch."""
        # Kinds that no tenant uses are not watched, so that a new kind does not change the histories of other runs.
        there = {
            JOBSET.kind: True,
            LEADER_WORKER_SET.kind: self.team.present or self.guests.present,
            PLAIN_JOB.kind: self.job_team.present,
            REQUEST: self.kueue.present,
            BUFFER: self.buffer_team.present or self.hostile.rivals.has_buffer,
            RAY_CLUSTER.kind: self.ray_team.present,
        }
        return {kind: served for kind, served in KINDS.items() if there.get(kind)}

    def _restock(self) -> None:
        """Add the lasting faults again after a repair of all faults."""
        self.market.restock()
        self.hostile.restock()
        self.singled.begin()

    def _start_process(self) -> None:
        self._started += 1
        ca_pem = CA_PEM if self.same_cluster else _OTHER_CA_PEM
        self.disturbed_at = self.stage.agenda.now
        self.processes.append(
            Process(self, f"process-{self._started}", settings=self._settings, elected=self._elected, ca_pem=ca_pem)
        )

    def process_ended(self, process: Process) -> None:
        self.processes.remove(process)
        self.stage.agenda.after(self.stage.rng.uniform(0.5, 15.0), self._start_process)


_METRICS: list[Metrics] = []


def _metrics() -> Metrics:
    """Return one set of metrics for all runs, because creating metrics takes longer than a round."""
    if not _METRICS:
        _METRICS.append(Metrics(version="simulation"))
    return _METRICS[0]


@contextmanager
def told_to(stage: Stage) -> Iterator[None]:
    """Log into a run's history; a crash that the product caught is a violation."""

    def take(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        name = event.pop("event")
        crashed = event.pop("exc_info", None)
        if stage.recording:
            stage.note("log", "%s %s", name, " ".join(f"{key}={value!r}" for key, value in event.items()))
        if name in _CRASHES:
            error = sys.exc_info()[1]
            stage.violate("0 no round crashes", f"{name}: {crashed and type(error).__name__}: {error}")
        raise structlog.DropEvent

    level = logging.INFO if stage.recording else logging.ERROR
    before = structlog.get_config()
    structlog.configure(
        processors=[take], wrapper_class=structlog.make_filtering_bound_logger(level), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def run_seed(seed: int, *, bug: str = "", recording: bool = False) -> Outcome:
    with planted(BUGS, bug) as storm:
        simulation = Simulation(seed, recording=recording, storm=storm)
        with told_to(simulation.stage):
            return outcome_of(simulation.run, simulation.stage, cpu_seconds=_CPU_SECONDS)
