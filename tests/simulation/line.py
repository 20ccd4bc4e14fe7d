"""Checks the queue of waiting slices: chips of a limit and free pools go to the highest priority first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rehearsal.simulators.gke.records import Pool
from tests.simulation.admission import is_assigned, mark_of
from tests.simulation.asks import QueuedRun
from tests.simulation.objects import WorkloadRun
from tests.simulation.pools import chips_in, fits, is_ours, owner_of

if TYPE_CHECKING:
    from tests.simulation.checks import Checker
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

FIRST = "20 what a limit leaves goes to the highest priority that it suffices for"


class Line:
    """Checks the queue of waiting slices in one run."""

    def __init__(self, simulation: Simulation, checker: Checker) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        self._checker = checker

    def created(self, process: Process, pool: Pool) -> None:
        """Check that a new pool does not use chips for which a slice of higher priority waits."""
        most = self._simulation.market.max_chips
        uid = owner_of(pool.body["config"]["labels"])[0]
        run = next((candidate for candidate in self._simulation.cluster.every_workload if candidate.uid == uid), None)
        if most is None or run is None:
            return
        ours = [existing for existing in self._simulation.cloud.pools.values() if is_ours(existing)]
        used = sum(map(chips_in, self._simulation.administrator.limited_with(pool, ours)))
        per_accelerator = self._simulation.administrator.per_accelerator
        for workload, job in self._checker.waiting.waiting():
            shape = workload.shape_of(job)
            chips = shape.hosts * shape.chips
            if (
                workload.priority > run.priority
                and (not per_accelerator or shape.accelerator == pool.plan.machine.accelerator)
                and used - chips_in(pool) + chips <= most < used + chips
                and self._waits_for_long(workload, job)
            ):
                name = workload.group_name(job)
                text = f"{process.name} creates {pool.name} of priority {run.priority}, and {name} of priority"
                self._stage.violate(FIRST, f"{text} {workload.priority} waits for {chips} of {most} chips")

    def given(self, process: Process, pool: Pool, mark: tuple[str, str]) -> None:
        """Check that no slice gets a free pool while a slice of higher priority waits for such a pool."""
        market, hostile = self._simulation.market, self._simulation.hostile
        asked = self._simulation.admission.granted.get(mark, {})
        if not asked or market.same_zone or market.max_pools is not None or hostile.limited:
            return
        owner = owner_of(pool.body["config"]["labels"])[0]
        if any(owner in _owners(workload) or pool.name in workload.pools for workload in asked):
            # The pool was created for the workload or its ProvisioningRequest, or the workload had pods on it before.
            return
        priority = max(workload.priority for workload in asked)
        for workload, job in self._checker.waiting.waiting():
            leader = workload.leader(job)
            own = mark_of(leader.selector) if leader is not None else ("", "")
            if (
                workload.priority > priority
                and own != mark
                and is_assigned(own)
                and fits(workload, job, pool)
                # A workload with its own service account cannot use the pool of another workload.
                and not workload.service_account
                # The pods of a QueuedRun use the pools of a ProvisioningRequest, and no other free pools.
                and not (isinstance(workload, QueuedRun) and workload.consumes)
                and self._seconds(workload, job) > self._checker.stale_seconds()
                and not self._has_pool(process, workload, job, own)
            ):
                text = f"{process.name} gives {pool.name} to {mark} of priority {priority}, and"
                self._stage.violate(FIRST, f"{text} {workload.group_name(job)} of priority {workload.priority} waits")

    def _has_pool(self, process: Process, workload: WorkloadRun, job: int, mark: tuple[str, str]) -> bool:
        """Whether a pool is assigned to a slice, was created for it, or will be assigned to it."""
        owner = (workload.uid, workload.slice_id(job).group_key)
        pools = self._simulation.cloud.pools
        if any(is_ours(pool) and owner_of(pool.body["config"]["labels"]) == owner for pool in pools.values()):
            return True
        claim = process.loop.memory.slice(workload.slice_id(job)).claim
        claimed = claim is not None and claim.pool in pools
        return claimed or any(mark_of(node.labels) == mark for node in self._simulation.cluster.nodes.values())

    def _seconds(self, workload: WorkloadRun, job: int) -> float:
        leader = workload.leader(job)
        since = leader.waiting_since if leader is not None else None
        since = self._stage.agenda.now if since is None else since
        return self._stage.agenda.now - max(since, self._simulation.disturbed_at)

    def _waits_for_long(self, workload: WorkloadRun, job: int) -> bool:
        """Whether a slice has waited for longer than a cache may lag, and only because of the limit on chips."""
        waiting = self._checker.waiting
        return (
            self._seconds(workload, job) > self._checker.stale_seconds()
            and not waiting.may_back_off(workload, job)
            and not waiting.on_its_way(workload, job)
            and workload.name != self._simulation.singled.name
            and self._simulation.market.max_pools is None
        )


def _owners(workload: WorkloadRun) -> set[str]:
    """Return the UIDs of a workload and of the ProvisioningRequest whose pools it uses."""
    request = workload.request if isinstance(workload, QueuedRun) else None
    return {workload.uid} | ({request.uid} if request is not None else set())
