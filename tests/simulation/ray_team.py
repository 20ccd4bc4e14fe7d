"""A team that has RayClusters, in some runs: it makes, scales, suspends and, in the end, deletes or shrinks them."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.objects import RayRun
from tests.simulation.team import Team


class RayTeam(Team[RayRun]):
    """Those who make RayClusters."""

    title, presence, creates = "ray team", 0.25, 0.2
    names = ("ray", "ray", "train")

    def _runs(self) -> list[RayRun]:
        workloads = self.simulation.cluster.workloads.values()
        return [each for each in workloads if isinstance(each, RayRun) and not each.deleting]

    def _make(self, name: str) -> RayRun:
        rng = self._rng
        shape = rng.choice([each for each in self.simulation.people.shapes if each.feasible])
        # All pods of a replica are the hosts of one slice.
        shape = replace(shape, parallelism=shape.hosts)
        # Several single hosts are a pool of as many nodes.
        if shape.hosts > 1 and rng.random() < 0.1:
            shape = replace(shape, parallelism=shape.hosts + 1, feasible=False)
        return RayRun(
            name=name,
            uid=self.stage.store.new_uid("ray"),
            shape=shape,
            replicas=rng.choice((0, 1, 3, 4)),
            created=self.stage.agenda.now,
        )

    def _act(self) -> None:
        super()._act()
        if not self.stage.stormy:
            for run in self._runs():
                if self._rng.random() < 0.5:
                    self._delete(run)
                else:
                    # What is left may have any numbers.
                    self.simulation.cluster.rays.scale(run, min(run.replicas, 1))

    def _change(self, run: RayRun) -> None:
        match self._rng.choice(("delete", "again", "scale", "scale", "scale", "scale", "suspend")):
            case "delete":
                self._delete(run)
            case "again":
                self._delete(run)
                self._create(run.name)
            case "scale":
                self.simulation.cluster.rays.scale(run, self._rng.randint(0, 4))
            case _:
                self.simulation.cluster.suspend(run, suspended=True)
                self.stage.agenda.after(self._rng.uniform(0.5, 60.0), lambda: self._resume(run))

    def _delete(self, run: RayRun) -> None:
        self.simulation.cluster.rays.delete(run, foreground=self._rng.random() < 0.3)

    def _resume(self, run: RayRun) -> None:
        if not run.gone and not run.deleting:
            self.simulation.cluster.suspend(run, suspended=False)
