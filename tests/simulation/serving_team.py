"""A team that serves with LeaderWorkerSets, in some runs: it makes, scales, updates, restarts and deletes them.

In some of these runs the kind is not installed at first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner.workloads import LEADER_WORKER_SET
from tests.simulation.objects import SetRun
from tests.simulation.team import Team

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_INSTALLED_LATE = 0.2


class ServingTeam(Team[SetRun]):
    """Those who make LeaderWorkerSets."""

    title, presence, creates = "serving team", 0.35, 0.2
    names = ("serve", "serve", "train")

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        #: What this run's sets look like: all pods of a group are the hosts of one slice.
        self._shapes = tuple(
            replace(shape, parallelism=shape.hosts) for shape in simulation.people.shapes if shape.feasible
        )

    def begin(self) -> None:
        """Come, if this run has the team; in some runs only when the kind is installed."""
        if self.present and self._rng.random() < _INSTALLED_LATE:
            self.stage.store.absent.add(LEADER_WORKER_SET.resource)
            self.stage.agenda.after(self._rng.uniform(0.0, 60.0), self._install)
        else:
            super().begin()

    def _install(self) -> None:
        self.stage.note("user", "installs LeaderWorkerSet")
        self.stage.store.absent.discard(LEADER_WORKER_SET.resource)
        self._come()

    def _runs(self) -> list[SetRun]:
        workloads = self.simulation.cluster.workloads.values()
        return [each for each in workloads if isinstance(each, SetRun) and not each.deleting]

    def _make(self, name: str) -> SetRun:
        rng = self._rng
        shape = rng.choice(self._shapes)
        if rng.random() < 0.08:
            shape = replace(shape, parallelism=shape.hosts + 1, feasible=False)
        return SetRun(
            name=name,
            uid=self.stage.store.new_uid("set"),
            shape=shape,
            replicas=rng.choice((1, 1, 2, 3)),
            # With one group more than the limit on pools allows an update would never end.
            surge=rng.choice((0, 0, 1)) if self.simulation.market.max_pools is None else 0,
            created=self.stage.agenda.now,
        )

    def _change(self, run: SetRun) -> None:
        rng, sets = self._rng, self.simulation.cluster.sets
        match rng.choice(("delete", "again", "scale", "scale", "update", "update", "restart", "restart")):
            case "delete":
                sets.delete(run, foreground=rng.random() < 0.3)
            case "again":
                sets.delete(run, foreground=rng.random() < 0.3)
                self._again(run)
            case "scale":
                sets.scale(run, rng.choice((0, 1, 2, 3)))
            case "update":
                sets.update(run, rng.choice((run.shape, *self._shapes)))
            case _:
                sets.restart_group(run, rng.randrange(max(run.replicas, 1)))

    def _again(self, run: SetRun) -> None:
        """Make it again under the same name as soon as it is gone."""
        if run.gone:
            self._create(run.name)
        elif self.stage.stormy:
            self.stage.agenda.after(self._rng.uniform(0.05, 2.0), lambda: self._again(run))
