"""Users of JobSets: create, suspend, resume, resize, restart, delete and recreate them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.asks import QueuedRun
from tests.simulation.objects import JobSetRun, Shape

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

FEASIBLE = (
    Shape(accelerator="tpu-v4-podslice", topology="2x2x1", hosts=1, chips=4, parallelism=1),
    Shape(accelerator="tpu-v4-podslice", topology="2x2x2", hosts=2, chips=4, parallelism=2),
    Shape(accelerator="tpu-v4-podslice", topology="2x2x2", hosts=2, chips=4, parallelism=2, spot=True),
    Shape(accelerator="tpu-v6e-slice", topology="4x4", hosts=4, chips=4, parallelism=4),
    Shape(accelerator="tpu-v6e-slice", topology="4x4", hosts=4, chips=4, parallelism=3),
    Shape(accelerator="tpu-v5-lite-podslice", topology="2x4", hosts=1, chips=8, parallelism=1),
)
INFEASIBLE = (
    Shape(accelerator="tpu-v4-podslice", topology="3x3x3", hosts=1, chips=4, parallelism=1, feasible=False),
    Shape(accelerator="tpu-v4-podslice", topology="2x2x2", hosts=2, chips=4, parallelism=3, feasible=False),
    Shape(accelerator="tpu-v9-slice", topology="2x2x1", hosts=1, chips=4, parallelism=1, feasible=False),
    Shape(accelerator="", topology="2x2x4", hosts=1, chips=4, parallelism=1, feasible=False),
)

_NOT_ON_FLEX_START = ("tpu-v4-podslice",)
_MAX_JOBSETS = 7
_LATECOMERS = 2
#: Minimum delays in seconds of late JobSets, one for each run: short, or in the long back-off of rejected JobSets.
_LATE_SECONDS = (5.0, 280.0)


class People:
    """Users of JobSets, who act during the storm; in some runs, more JobSets come later."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        rng = self.stage.rng
        # A run has few shapes, so that JobSets often use each other's pools.
        shapes = rng.choices(FEASIBLE, k=rng.choice((1, 1, 2, 3)))
        # With several choices of capacity, no shape requires spot, because spot may be out of stock permanently.
        pins = not simulation.market.choices
        tolerant = simulation.market.spot_listed

        def as_here(some: Iterable[Shape]) -> tuple[Shape, ...]:
            return tuple(replace(shape, tolerant=tolerant, spot=shape.spot and pins) for shape in some)

        feasible = FEASIBLE
        if simulation.market.flex_start_alone:
            feasible = tuple(shape for shape in FEASIBLE if shape.accelerator not in _NOT_ON_FLEX_START)
            shapes = [shape for shape in shapes if shape in feasible] or [feasible[0]]
        self.shapes = as_here(shapes)
        self.late_shapes = (*self.shapes, *as_here(feasible))
        if simulation.environment.late:
            # Late JobSets have one shape, so that all of them request the same capacity as the rejected JobSet.
            self.late_shapes = (simulation.environment.rng.choice(self.late_shapes),)
        self._names = 0
        #: Number of late JobSets that are scheduled, but not created yet.
        self.still_to_come = 0

    def begin(self) -> None:
        rng, agenda = self.stage.rng, self.stage.agenda
        for _ in range(rng.randint(1, 5)):
            agenda.after(rng.choice((1.0, 1.0, rng.uniform(0.0, 30.0))), self.create)
        agenda.after(rng.uniform(5.0, 20.0), self.act)

    def come_late(self) -> None:
        """Create a few JobSets after the storm, while GKE may still reject creates of earlier JobSets."""
        rng, earliest = self.stage.rng, self.stage.rng.choice(_LATE_SECONDS)
        for number in range(1, _LATECOMERS + 1):
            self.still_to_come += 1
            self.stage.agenda.after(earliest + rng.uniform(0.0, 115.0), functools.partial(self._come_late, number))

    def _come_late(self, number: int) -> None:
        self.still_to_come -= 1
        self.create(f"late-{number}", late=True)

    def create(self, name: str = "", *, late: bool = False) -> None:
        """Create a JobSet unless its name is taken; without `late`, only in the storm and up to `_MAX_JOBSETS`."""
        if not (self.stage.stormy or late):
            return
        rng = self.stage.rng
        if not name:
            self._names += 1
            name = f"train-{self._names}"
        if any(jobset.name == name for jobset in self._jobsets()):
            return
        if len(self._jobsets()) >= _MAX_JOBSETS and not late:
            return
        shapes = self.late_shapes if late else self.shapes
        shape = rng.choice(INFEASIBLE) if rng.random() < 0.08 else rng.choice(shapes)
        # With scarce capacity, no JobSet runs forever, because other JobSets wait for its pools.
        fate = rng.choices(("complete", "fail", "forever"), weights=(6, 1, 0 if self.simulation.market.scarce else 3))[
            0
        ]
        restarts = rng.choice((0, 2, 50)) if shape.feasible else 50
        admission = self.simulation.admission
        namespace = admission.namespace()
        together = self.simulation.market.gangs and name != self.simulation.singled.name
        together = together and admission.stays(namespace) and rng.random() < 0.7
        self.simulation.cluster.create(
            JobSetRun(
                name=name,
                namespace=namespace,
                exclusive=admission.exclusive(namespace),
                priority=admission.priority(),
                uid=self.stage.store.new_uid("jobset"),
                shape=shape,
                replicas=rng.choice((1, 1, 1, 2, 3)),
                run_seconds=rng.uniform(5.0, 90.0),
                fate=fate,
                restarts_left=min(restarts, 3) if fate == "fail" else restarts,
                ordered=rng.random() < 0.2,
                created=self.stage.agenda.now,
                labels_uid=self.simulation.labels_uid,
                service_account=self.simulation.environment.account_of(name),
                together=together,
                gang=together and admission.marks(namespace),
            )
        )

    def act(self) -> None:
        if not self.stage.stormy:
            return
        rng, cluster = self.stage.rng, self.simulation.cluster
        self.stage.agenda.after(rng.uniform(2.0, 25.0), self.act)
        jobsets = [jobset for jobset in self._jobsets() if not jobset.deleting and not jobset.gone]
        if not jobsets or rng.random() < 0.3:
            self.create()
            return
        workload = rng.choice(jobsets)
        match rng.choice(("delete", "delete", "again", "suspend", "suspend", "resize", "restart")):
            case "delete":
                cluster.delete(workload)
            case "again":
                cluster.delete(workload)
                self._again(workload)
            case "suspend" if not workload.terminal:
                cluster.suspend(workload, suspended=not workload.suspended)
            case "resize" if not workload.terminal and not workload.restarting:
                shape = workload.shape
                if workload.suspended and not workload.pods:
                    shape = rng.choice(self.shapes)
                cluster.resize(workload, replicas=rng.choice((1, 2, 3)), shape=shape)
            case "restart":
                cluster.restart(workload, "somebody wants it")
            case _:
                pass

    def _jobsets(self) -> list[JobSetRun]:
        workloads = self.simulation.cluster.workloads.values()
        return [
            workload
            for workload in workloads
            if isinstance(workload, JobSetRun) and not isinstance(workload, QueuedRun)
        ]

    def _again(self, workload: JobSetRun) -> None:
        if workload.gone:
            self.create(workload.name)
        elif self.stage.stormy:
            self.stage.agenda.after(self.stage.rng.uniform(0.05, 2.0), lambda: self._again(workload))
