"""A team that runs plain Jobs, in some runs: it creates, suspends and deletes them, and changes their annotation.

Chance comes from a source of its own, and without the team no controller watches Jobs: other runs stay as they were.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.objects import JobRun

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_PRESENT = 0.2
_MOST_JOBS = 3


class JobTeam:
    """Those who create plain Jobs, as long as the storm lasts."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self._rng = random.Random(f"job team {simulation.stage.seed}")
        # What runs for ever would keep those waiting who take turns at what is left.
        others_wait = simulation.market.scarce or simulation.market.gangs
        self.present = self._rng.random() < _PRESENT and not others_wait
        self._names = 0

    def begin(self) -> None:
        """Come, if this run has a team."""
        if self.present:
            self.stage.agenda.after(self._rng.uniform(0.5, 10.0), self._create)
            self.stage.agenda.after(self._rng.uniform(5.0, 20.0), self._act)

    def _jobs(self) -> list[JobRun]:
        workloads = self.simulation.cluster.workloads.values()
        return [each for each in workloads if isinstance(each, JobRun) and each.runs]

    def _create(self, name: str = "") -> None:
        rng, cluster = self._rng, self.simulation.cluster
        if not self.stage.stormy or len(self._jobs()) >= _MOST_JOBS:
            return
        if not name:
            self._names += 1
            # The name of a JobSet is free for a Job.
            name = f"{rng.choice(('sweep', 'sweep', 'train'))}-{self._names}"
        shape = rng.choice([each for each in self.simulation.people.shapes if each.feasible])
        run = JobRun(
            name=name,
            uid=self.stage.store.new_uid("job"),
            shape=shape,
            fate=rng.choice(("complete", "complete", "complete", "forever", "fail")),
            run_seconds=rng.uniform(5.0, 90.0),
            completions=shape.parallelism * rng.choice((1, 1, 2)),
            failures_left=rng.choice((0, 3, 8)),
            served=rng.random() < 0.8,
            replaces_early=rng.random() < 0.5,
            removed_at_once=rng.random() < 0.3,
            created=self.stage.agenda.now,
        )
        if run.path not in cluster.workloads:
            cluster.create(run)

    def _act(self) -> None:
        rng, jobs = self._rng, self.simulation.cluster.jobs
        if not self.stage.stormy:
            return
        self.stage.agenda.after(rng.uniform(2.0, 25.0), self._act)
        runs = self._jobs()
        if not runs or rng.random() < 0.3:
            self._create()
            return
        run = rng.choice(runs)
        match rng.choice(("delete", "again", "annotate", "annotate", "suspend")):
            case "delete":
                jobs.delete(run, orphaned=rng.random() < 0.3)
            case "again":
                jobs.delete(run, orphaned=False)
                self._create(run.name)
            case "annotate":
                jobs.annotate(run, served=not run.served)
            case _:
                jobs.suspend(run, suspended=True)
                self.stage.agenda.after(rng.uniform(0.5, 60.0), lambda: self._resume(run))

    def _resume(self, run: JobRun) -> None:
        if not run.gone:
            self.simulation.cluster.jobs.suspend(run, suspended=False)
