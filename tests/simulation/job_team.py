"""A team that runs plain Jobs, in some runs: it creates, suspends and deletes them, and changes their annotation."""

from __future__ import annotations

from tests.simulation.objects import JobRun
from tests.simulation.team import Team


class JobTeam(Team[JobRun]):
    """Those who create plain Jobs."""

    title, presence, creates = "job team", 0.2, 0.3
    names = ("sweep", "sweep", "train")

    def _runs(self) -> list[JobRun]:
        workloads = self.simulation.cluster.workloads.values()
        return [each for each in workloads if isinstance(each, JobRun) and each.runs]

    def _make(self, name: str) -> JobRun:
        rng = self._rng
        shape = rng.choice([each for each in self.simulation.people.shapes if each.feasible])
        return JobRun(
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

    def _change(self, run: JobRun) -> None:
        rng, jobs = self._rng, self.simulation.cluster.jobs
        match rng.choice(("delete", "again", "annotate", "annotate", "suspend")):
            case "delete":
                jobs.delete(run, orphaned=rng.random() < 0.3)
            case "again":
                jobs.delete(run, orphaned=False)
                self._create(run.name)
            case "annotate":
                jobs.annotate(run, served=not run.served)
            case _:
                self.simulation.cluster.suspend(run, suspended=True)
                self.stage.agenda.after(rng.uniform(0.5, 60.0), lambda: self._resume(run))

    def _resume(self, run: JobRun) -> None:
        if not run.gone:
            self.simulation.cluster.suspend(run, suspended=False)
