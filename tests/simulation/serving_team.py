"""A team that serves with LeaderWorkerSets, in some runs: it makes, scales, updates, restarts and deletes them.

In some of these runs the kind is not installed at first. Chance comes from a source of its own, and without the team no
controller knows the kind: other runs stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner.workloads import LEADER_WORKER_SET
from tests.simulation.objects import SetRun

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_PRESENT = 0.35
_MOST_SETS = 3
_INSTALLED_LATE = 0.2


class ServingTeam:
    """Those who make LeaderWorkerSets, as long as the storm lasts."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self._rng = random.Random(f"serving team {simulation.stage.seed}")
        # What serves runs for ever: where others take turns at what is left, it would keep them waiting.
        others_wait = simulation.market.scarce or simulation.market.gangs
        self.present = self._rng.random() < _PRESENT and not others_wait
        #: What this run's sets look like: all pods of a group are the hosts of one slice.
        self._shapes = tuple(
            replace(shape, parallelism=shape.hosts) for shape in simulation.people.shapes if shape.feasible
        )
        self._names = 0

    def begin(self) -> None:
        """Come, if this run has a team."""
        if not self.present:
            return
        if self._rng.random() < _INSTALLED_LATE:
            self.stage.store.absent.add(LEADER_WORKER_SET.resource)
            self.stage.agenda.after(self._rng.uniform(0.0, 60.0), self._install)
        else:
            self._come()

    def _install(self) -> None:
        self.stage.note("user", "installs LeaderWorkerSet")
        self.stage.store.absent.discard(LEADER_WORKER_SET.resource)
        self._come()

    def _come(self) -> None:
        self.stage.agenda.after(self._rng.uniform(0.5, 10.0), self._create)
        self.stage.agenda.after(self._rng.uniform(5.0, 20.0), self._act)

    def _sets(self) -> list[SetRun]:
        workloads = self.simulation.cluster.workloads.values()
        return [each for each in workloads if isinstance(each, SetRun) and not each.deleting]

    def _create(self, name: str = "") -> None:
        rng, cluster = self._rng, self.simulation.cluster
        if not self.stage.stormy or len(self._sets()) >= _MOST_SETS:
            return
        if not name:
            self._names += 1
            # The name of a JobSet is free for a LeaderWorkerSet.
            name = f"{rng.choice(('serve', 'serve', 'train'))}-{self._names}"
        shape = rng.choice(self._shapes)
        if rng.random() < 0.08:
            shape = replace(shape, parallelism=shape.hosts + 1, feasible=False)
        run = SetRun(
            name=name,
            uid=self.stage.store.new_uid("set"),
            shape=shape,
            replicas=rng.choice((1, 1, 2, 3)),
            # With one group more than the limit on pools allows an update would never end.
            surge=rng.choice((0, 0, 1)) if self.simulation.market.max_pools is None else 0,
            created=self.stage.agenda.now,
        )
        if run.path not in cluster.workloads:
            cluster.create(run)

    def _act(self) -> None:
        rng, sets = self._rng, self.simulation.cluster.sets
        if not self.stage.stormy:
            return
        self.stage.agenda.after(rng.uniform(2.0, 25.0), self._act)
        runs = self._sets()
        if not runs or rng.random() < 0.2:
            self._create()
            return
        run = rng.choice(runs)
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
