"""Teams of users that create workloads of one kind, such as LeaderWorkerSets, in some runs during the storm.

Each team has its own random source, so that runs without it do not change.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from provisioner.model.workloads import WorkloadKind
from provisioner.workloads import KINDS
from tests.simulation.objects import WorkloadRun

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

_R = TypeVar("_R", bound=WorkloadRun)
_MOST = 3
_INSTALLED_LATE = 0.2


class Team(ABC, Generic[_R]):
    """A team of one run."""

    run_type: type[_R]
    #: Name of the team; the seed of its random source contains it.
    title: ClassVar[str]
    #: Probability of the team unless other workloads have to wait, and minimum share of creates among its actions.
    presence: ClassVar[float]
    creates: ClassVar[float]
    #: Prefixes of workload names. A JobSet and a workload of another kind may have the same name.
    names: ClassVar[tuple[str, ...]]
    #: Kind whose CRD is installed late in some runs; None if the CRD always exists.
    late_kind: ClassVar[WorkloadKind | None] = None

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.stage = simulation.stage
        self._rng = random.Random(f"{self.title} {simulation.stage.seed}")
        # Workloads of most teams may never end, so these teams do not come if other workloads wait for capacity.
        others_wait = simulation.market.scarce or simulation.market.gangs or simulation.hostile.present
        self.present = self._rng.random() < self.presence and not others_wait
        self._names = 0
        #: Feasible shapes of the run, with one pod per host.
        self._shapes = tuple(
            replace(shape, parallelism=shape.hosts) for shape in simulation.people.shapes if shape.feasible
        )

    def begin(self) -> None:
        """Start the team, if the run has it; in some runs only after the CRD of its kind is installed."""
        if not self.present:
            return
        if self.late_kind is None or self._rng.random() >= _INSTALLED_LATE:
            self._come()
            return
        self.stage.store.absent.add(KINDS[self.late_kind].resource)
        self.stage.agenda.after(self._rng.uniform(0.0, 60.0), self._install)

    def _install(self) -> None:
        self.stage.note("user", "installs %s", self.late_kind)
        if self.late_kind is not None:
            self.stage.store.absent.discard(KINDS[self.late_kind].resource)
        self._come()

    def _runs(self) -> list[_R]:
        workloads = self.simulation.cluster.workloads.values()
        return [workload for workload in workloads if isinstance(workload, self.run_type) and not workload.deleting]

    @abstractmethod
    def _make(self, name: str) -> _R:
        """Return a new workload."""

    @abstractmethod
    def _change(self, run: _R) -> None:
        """Change a workload."""

    def _come(self) -> None:
        self.stage.agenda.after(self._rng.uniform(0.5, 10.0), self._create)
        self.stage.agenda.after(self._rng.uniform(5.0, 20.0), self._act)

    def _create(self, name: str = "") -> None:
        if not self.stage.stormy or len(self._runs()) >= _MOST:
            return
        if not name:
            self._names += 1
            name = f"{self._rng.choice(self.names)}-{self._names}"
        run, cluster = self._make(name), self.simulation.cluster
        if run.path not in cluster.workloads:
            cluster.create(run)

    def _suspend(self, run: _R) -> None:
        self.simulation.cluster.suspend(run, suspended=True)
        self.stage.agenda.after(self._rng.uniform(0.5, 60.0), lambda: self._resume(run))

    def _resume(self, run: _R) -> None:
        if not run.gone and not run.deleting:
            self.simulation.cluster.suspend(run, suspended=False)

    def _act(self) -> None:
        rng = self._rng
        if not self.stage.stormy:
            return
        self.stage.agenda.after(rng.uniform(2.0, 25.0), self._act)
        runs = self._runs()
        if not runs or rng.random() < self.creates:
            self._create()
        else:
            self._change(rng.choice(runs))
