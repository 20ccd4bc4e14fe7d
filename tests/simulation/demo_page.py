"""The whole product against the simulated world, at 30 times real speed: 200 slices of four teams.

python -m tests.simulation.demo_page                # http://127.0.0.1:8081, until Ctrl-C
python -m tests.simulation.demo_page --speed 60     # an hour per minute, if the machine is fast enough

The provisioner is real except for its threads. Kubernetes, GKE and the teams are simulated. Violations of invariants
are printed, and do not end the demo.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from provisioner.model.capacity import Zone
from provisioner.model.choices import parse_choices
from provisioner.runtime.http import ServerError
from provisioner.runtime.status import make_status_server
from provisioner.settings.forms import parse_prices
from provisioner.slices import api
from provisioner.slices.board import Board
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.simulation.cloud import ZONE
from tests.simulation.jobs import JobRun
from tests.simulation.market import OTHER_ZONE
from tests.simulation.objects import JobSetRun, Shape, WorkloadRun
from tests.simulation.pools import is_ours
from tests.simulation.run import Simulation, told_to
from tests.simulation.sets import SetRun

#: Seed of a run in which neither `Singled` nor `Environment` lets GKE reject creates.
_SEED = 2
_SLICES = 200
_MINUTE = 60.0
_STEP_SECONDS = 1.0
#: Maximum delay in real seconds that the demo catches up; a longer delay is skipped.
_MAX_BEHIND_SECONDS = 5.0


def _shape(accelerator: str, topology: str, hosts: int, chips: int) -> Shape:
    return Shape(accelerator=accelerator, topology=topology, hosts=hosts, chips=chips, parallelism=hosts, tolerant=True)


_V5P_CUBE = _shape("tpu-v5p-slice", "4x4x4", 16, 4)
_V5P = _shape("tpu-v5p-slice", "2x2x4", 4, 4)
_V6E = _shape("tpu-v6e-slice", "4x4", 4, 4)
_V6E_LARGE = _shape("tpu-v6e-slice", "8x8", 16, 4)
_V6E_HOST = _shape("tpu-v6e-slice", "2x4", 1, 8)
_V5E = _shape("tpu-v5-lite-podslice", "4x4", 4, 4)
_NO_SUCH = replace(_V6E, topology="3x4", feasible=False)
#: Only the JobSets of `Demo._show_trouble` may request this topology and the next one, which have faults.
_NO_STOCK = _shape("tpu-v5p-slice", "2x2x2", 2, 4)
_BROKEN = _shape("tpu-v6e-slice", "4x8", 8, 4)


class Demo(Simulation):
    """A large world without a storm: only everyday faults."""

    def __init__(self, seed: int = _SEED, *, slices: int = _SLICES) -> None:
        super().__init__(seed)
        self.slices = slices
        self.rng = random.Random(f"demo {seed}")
        self.stage.stormy = False
        self.same_cluster = self.labels_uid = True
        self.keeps_suspended = False
        self._elected, self._wanted_processes = False, 1
        self.team.present = self.job_team.present = True
        self.stage.violate = _say  # type: ignore[assignment]
        self.market.stock_chips = 1600
        self._settings = replace(
            self._settings,
            keep_suspended=False,
            serve_jobs=True,
            deletion_delay_seconds=5 * _MINUTE,
            zones=(Zone(ZONE), Zone(OTHER_ZONE)),
            capacity=parse_choices("reservation/research, on-demand, spot"),
            same_zone=True,
            max_chips=3200,
            max_chips_per_namespace=(("vision", 256), ("*", 2000)),
            max_pools_per_jobset=None,
            prices=parse_prices("*/spot=1.2, */reservation=1.9, tpu-v5p-slice=4.2, *=2.7, currency=USD"),
        )
        self.cloud.world.change_settings(
            {
                "create_seconds": 150.0,
                "create_jitter_seconds": 90.0,
                "delete_seconds": 100.0,
                "repair_seconds": 240.0,
                "node_stagger_seconds": 2.0,
            }
        )
        self.cloud.limit_operations(12)
        # The reservation exists only in the first zone, so creates for it in the other zone find no capacity.
        self.cloud.world.faults.add(
            Fault(kind=FaultKind.STOCKOUT, capacity="reservation", zone=OTHER_ZONE, after_seconds=15.0)
        )
        self._numbers = 0
        self._teams: tuple[Callable[[], WorkloadRun], ...] = (self._research, self._vision, self._serving, self._batch)

    def begin(self) -> Board:
        self._start_process()
        (process,) = self.processes
        # Browsers compare times of the page with the real clock, so the board uses the real clock.
        process.board.monotonic = time.monotonic
        process.board.about = dataclasses.replace(process.board.about, cluster="demo", identity="demo-page")
        self._show_trouble()
        self._mistake()
        self._grow()
        for seconds, act in (
            (7 * _MINUTE, self._preempt),
            (11 * _MINUTE, self._run_out),
            (9 * _MINUTE, self._mistake),
            (13 * _MINUTE, self._change_minds),
        ):
            self._every(seconds, act)
        return process.board

    def _show_trouble(self) -> None:
        """Create a JobSet whose slice is out of stock, and a JobSet with a failed pool that GKE does not delete."""
        world = self.cloud.world
        world.faults.add(Fault(kind=FaultKind.STOCKOUT, topology=_NO_STOCK.topology, after_seconds=2.0))
        world.faults.add(Fault(kind=FaultKind.CREATE_ERROR, topology=_BROKEN.topology, count=1, after_seconds=20.0))
        world.faults.add(Fault(kind=FaultKind.DELETE_FAILS, topology=_BROKEN.topology, after_seconds=2.0))
        self.cluster.create(self._jobset("robotics", "no-stock", _NO_STOCK, 1, 600))
        self.cluster.create(self._jobset("robotics", "broken", _BROKEN, 1, 600))

    def _every(self, seconds: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self._every(seconds, act)

        self.stage.agenda.after(seconds * self.rng.uniform(0.6, 1.4), again)

    def _grow(self) -> None:
        """Create a workload if the demo has fewer slices than requested, and repeat this after at most 25 s."""
        there = sum(len(workload.slots()) for workload in self.cluster.workloads.values() if workload.alive)
        # Workloads come faster at the beginning, so that the page fills quickly.
        hurry = 0.1 if there < self.slices / 2 else 1.0
        self.stage.agenda.after(hurry * self.rng.uniform(5.0, 25.0), self._grow)
        if there < self.slices:
            self.cluster.create(self.rng.choices(self._teams, weights=(5, 3, 2, 2))[0]())

    def _name(self, *words: str) -> str:
        self._numbers += 1
        return f"{self.rng.choice(words)}-{self._numbers}"

    def _jobset(self, namespace: str, name: str, shape: Shape, replicas: int, minutes: float) -> JobSetRun:
        return JobSetRun(
            name=name,
            namespace=namespace,
            uid=self.stage.store.new_uid("jobset"),
            shape=shape,
            replicas=replicas,
            run_seconds=minutes * _MINUTE,
            fate="fail" if self.rng.random() < 0.08 else "complete",
            restarts_left=3,
            ordered=False,
            created=self.stage.agenda.now,
            labels_uid=True,
        )

    def _research(self) -> JobSetRun:
        shape = self.rng.choices((_V5P_CUBE, _V5P, _V6E_LARGE, _V6E), weights=(1, 3, 1, 3))[0]
        name = self._name("pretrain", "ablation", "sweep", "distill")
        replicas = self.rng.choice((1, 2, 2, 4, 8)) if shape.hosts < 16 else self.rng.choice((1, 2))
        return self._jobset("research", name, shape, replicas, self.rng.uniform(20, 120))

    def _vision(self) -> JobSetRun:
        name = self._name("segment", "detect", "finetune")
        return self._jobset("vision", name, self.rng.choice((_V5E, _V6E_HOST)), self.rng.choice((1, 1, 2)), 35)

    def _serving(self) -> SetRun:
        return SetRun(
            name=self._name("chat", "embed", "rank"),
            namespace="serving",
            uid=self.stage.store.new_uid("set"),
            shape=self.rng.choice((_V6E, _V6E_HOST)),
            replicas=self.rng.choice((2, 3, 4)),
            surge=1,
            created=self.stage.agenda.now,
        )

    def _batch(self) -> JobRun:
        return JobRun(
            name=self._name("eval", "tokenize", "score"),
            namespace="batch",
            uid=self.stage.store.new_uid("job"),
            shape=_V6E_HOST,
            created=self.stage.agenda.now,
            fate="complete",
            run_seconds=15 * _MINUTE,
            completions=1,
            failures_left=2,
            served=True,
            replaces_early=False,
            removed_at_once=False,
        )

    def _ours(self) -> list[str]:
        return sorted(pool.name for pool in self.cloud.pools.values() if is_ours(pool))

    def _preempt(self) -> None:
        if names := self._ours():
            self.cloud.world.preempt(self.rng.choice(names), hosts=self.rng.choice((1, 2, None)))

    def _run_out(self) -> None:
        shape, zone = self.rng.choice((_V5P, _V6E, _V6E_LARGE)), self.rng.choice((ZONE, OTHER_ZONE))
        fault = self.cloud.world.faults.add(
            Fault(kind=FaultKind.STOCKOUT, zone=zone, topology=shape.topology, after_seconds=20.0)
        )
        self.stage.agenda.after(20 * _MINUTE, lambda: self.cloud.world.faults.remove(fault.fault_id))

    def _mistake(self) -> None:
        run = self._jobset("vision", self._name("oops"), _NO_SUCH, 1, 10)
        self.cluster.create(run)
        self.stage.agenda.after(15 * _MINUTE, lambda: self.cluster.delete(run))

    def _change_minds(self) -> None:
        there = [workload for workload in self.cluster.workloads.values() if workload.alive]
        run = self.rng.choice(there) if there else None
        if isinstance(run, SetRun):
            if self.rng.random() < 0.3:
                self.cluster.sets.delete(run, foreground=False)
            else:
                self.cluster.sets.scale(run, self.rng.choice((1, 2, 4, 5)))
        elif isinstance(run, JobSetRun):
            if self.rng.random() < 0.5:
                self.cluster.restart(run, "somebody wants it")
            else:
                self.cluster.delete(run)


def _say(*words: str) -> None:
    sys.stderr.write(": ".join(words) + "\n")


def serve(demo: Demo, *, address: str, speed: float, seconds: float | None = None) -> None:
    """Serve the page of the demo, which runs at `speed` times the real time, for `seconds` or without end if None.

    Raises ServerError if the address cannot be served.
    """
    board = demo.begin()
    server = make_status_server(
        "tpu-provisioner",
        metrics=address,
        exposition=demo.metrics.exposition,
        probes=address,
        failures=tuple,
        problems=tuple,
        pages=api.pages(board),
    )
    with told_to(demo.stage):
        server.start()
    where = f"http://127.0.0.1:{server.ports[0]}"
    sys.stdout.write(
        f"Status page: {where}/ ({speed:g} times as fast as time passes; Ctrl-C ends it)\n"
        f"Commands: tpu-provisioner status --server {where}\n"
    )
    sys.stdout.flush()
    try:
        with told_to(demo.stage):
            _run(demo, speed=speed, seconds=seconds)
    finally:
        server.stop()


def _run(demo: Demo, *, speed: float, seconds: float | None) -> None:
    agenda, started = demo.stage.agenda, time.monotonic()
    began = started
    while seconds is None or time.monotonic() - started < seconds:
        due = (time.monotonic() - began) * speed
        if due - agenda.now > _MAX_BEHIND_SECONDS * speed:
            began = time.monotonic() - agenda.now / speed
        if agenda.now >= due:
            time.sleep(0.02)
            continue
        agenda.wait(min(_STEP_SECONDS, due - agenda.now))


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.demo_page", description=about)
    parser.add_argument("--address", default="127.0.0.1:8081", help="where the page is served (%(default)s)")
    parser.add_argument("--speed", type=float, default=30.0, help="seconds that pass in one (%(default)s)")
    parser.add_argument("--slices", type=int, default=_SLICES, help="how many slices there are (%(default)s)")
    parser.add_argument("--seconds", type=float, help="end after this time (default: at Ctrl-C)")
    given = parser.parse_args(arguments)
    try:
        serve(Demo(slices=given.slices), address=given.address, speed=given.speed, seconds=given.seconds)
    except ServerError as error:
        sys.stderr.write(f"demo-page: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stdout.write("\nThe demo has ended; nothing is left of it.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
