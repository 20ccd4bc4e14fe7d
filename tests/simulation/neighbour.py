"""A hostile neighbour: pods in another namespace that bear the labels of somebody else's JobSet.

Some wait, and ask for other machines than the JobSet does; some are bound, to nodes of ours or of others. Some are
controlled by a Job that has the name of the JobSet's own. No pool may be charged to the JobSet for them, and none of
its pools may be taken from it. Chance comes from a source of its own: runs without a neighbour stay as they were.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.objects import Claim
from tests.simulation.people import FEASIBLE

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_PRESENT = 0.3
#: A node that is none of ours.
_THEIR_NODE = "their-node"


class Neighbour:
    """Whoever may make pods in one namespace, and sees the labels of pods in the others."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self._rng = random.Random(f"neighbour {simulation.stage.seed}")
        self._present = self._rng.random() < _PRESENT

    def begin(self) -> None:
        """Come, if this run has one."""
        if self._present:
            self.stage.agenda.after(self._rng.uniform(0.5, 10.0), self._act)

    def _act(self) -> None:
        rng, cluster = self._rng, self.simulation.cluster
        if not self.stage.stormy:
            return
        self.stage.agenda.after(rng.uniform(1.0, 15.0), self._act)
        workloads = [each for each in cluster.workloads.values() if each.kind.has_pods]
        victims = [workload for workload in workloads if workload.alive and workload.replicas]
        if not victims:
            return
        victim = rng.choice(victims)
        claim = Claim(workload=victim, job=rng.randrange(victim.replicas), controlled=rng.random() < 0.5)
        self.stage.fault("hostile neighbour", "claims %s", victim.group_name(claim.job))
        node = rng.choice(("", _THEIR_NODE, *cluster.nodes))
        cluster.add_foreign(rng.choice(FEASIBLE), lasting_seconds=rng.uniform(10.0, 100.0), claim=claim, node=node)
