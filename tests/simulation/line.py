"""Judges the one line of those that wait: a limit serves the highest priority first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rehearsal.simulators.gke.records import Pool
from tests.simulation.objects import WorkloadRun
from tests.simulation.pools import chips_in, is_ours, owner_of

if TYPE_CHECKING:
    from tests.simulation.checks import Checker
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

FIRST = "20 what a limit leaves goes to the highest priority that it suffices for"


class Line:
    """Judges one run."""

    def __init__(self, simulation: Simulation, checker: Checker) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        self._checker = checker

    def created(self, process: Process, pool: Pool) -> None:
        """Judge whether a new pool uses chips for which a slice of higher priority waits."""
        most = self._simulation.market.max_chips
        uid = owner_of(pool.body["config"]["labels"])[0]
        run = next((each for each in self._simulation.cluster.every_workload if each.uid == uid), None)
        if most is None or run is None:
            return
        used = sum(chips_in(each) for each in self._simulation.cloud.pools.values() if is_ours(each))
        for workload, job in self._checker.waiting.waiting():
            shape = workload.shape_of(job)
            chips = shape.hosts * shape.chips
            if (
                workload.priority > run.priority
                and used - chips_in(pool) + chips <= most < used + chips
                and self._waits_for_long(workload, job)
            ):
                name = workload.group_name(job)
                text = f"{process.name} creates {pool.name} of priority {run.priority}, and {name} of priority"
                self._stage.violate(FIRST, f"{text} {workload.priority} waits for {chips} of {most} chips")

    def _waits_for_long(self, workload: WorkloadRun, job: int) -> bool:
        """Whether a slice has waited for longer than a cache may lag, and nothing but the limit is in its way."""
        waiting, leader = self._checker.waiting, workload.leader(job)
        since = leader.waiting_since if leader is not None else None
        seconds = self._stage.agenda.now - max(since or 0.0, self._simulation.disturbed_at)
        return (
            since is not None
            and seconds > self._checker.stale_seconds()
            and not waiting.may_back_off(workload, job)
            and not waiting.on_its_way(workload, job)
            and workload.name != self._simulation.singled.name
            and self._simulation.market.max_pools is None
        )
