"""Checks the waits of slices after the storm: creates are sent within minutes, and few of their pools are deleted.

The bound on creates does not apply after a create of the slice or of the same capacity has failed. If GKE rejects the
creates of a slice for a temporary cause, the bound begins when the cause is corrected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rehearsal.simulators.gke.records import Pool, PoolStatus
from tests.simulation.objects import HOSTILE_NAMESPACE, Shape, WorkloadRun
from tests.simulation.pools import fits, hosts, is_ours, owner_of

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

#: Maximum time in seconds for which an unschedulable leader has no pool on its way and no create is sent.
CREATE_WITHIN_SECONDS = 120.0
#: Maximum number of pools that are deleted while the slice that they were created for waits for a pool.
_MAX_TAKEN_AWAY = 4
_UP = (PoolStatus.PROVISIONING, PoolStatus.RUNNING)

_SliceKey = tuple[str, str]
#: Accelerator, topology and hosts.
_Kind = tuple[str, str | None, int]


class Waiting:
    """Waiting slices, the start times of their waits, and failures that may excuse the waits."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._failed: set[_SliceKey] = set()
        #: Slices whose creates GKE rejected for a cause that is corrected later.
        self._refused: set[_SliceKey] = set()
        self._failed_kinds: set[_Kind] = set()
        #: Time since which no pool has been on its way to each waiting slice, and no create was sent.
        self._since: dict[_SliceKey, float] = {}
        self._taken_away: Counter[_SliceKey] = Counter()

    def create_sent(self, body: dict[str, Any]) -> None:
        self._since.pop(_owner(body), None)

    def create_failed(self, body: dict[str, Any], *, of_capacity: bool) -> None:
        """Record a create with a fault; `of_capacity` if the fault concerns the capacity."""
        owner = _owner(body)
        self._failed.add(owner)
        if of_capacity:
            known = (workload for workload in self._simulation.cluster.every_workload if workload.uid == owner[0])
            self._failed_kinds |= {_kind_of(shape) for workload in known for shape in workload.shapes}

    def refused_for_a_while(self, body: dict[str, Any]) -> None:
        """Record a create that GKE rejects until the cause is corrected; then the create is due again."""
        self._refused.add(_owner(body))

    def look_at_pools(self) -> None:
        """Record failed pools. Called at each plan, which suffices: processes plan as long as a failed pool exists."""
        for pool in self._simulation.cloud.pools.values():
            if not is_ours(pool) or self._simulation.hostile.is_private(pool):
                continue
            if pool.trouble is not None or pool.status not in (*_UP, PoolStatus.STOPPING):
                plan = pool.plan
                self._failed_kinds.add((plan.machine.accelerator, plan.topology, hosts(pool)))

    def taken_away(self, pool: Pool) -> str:
        """Record the delete of a pool; return the reason why the delete is wrong, empty if none."""
        owner = owner_of(pool.body["config"]["labels"])
        for workload, job in self.waiting():
            if _key(workload, job) == owner and not self._simulation.stage.stormy:
                self._taken_away[owner] += 1
                if self._taken_away[owner] > _MAX_TAKEN_AWAY:
                    return f"slice {workload.group_name(job)} waits, and pool after pool is made for it and deleted"
        return ""

    def overdue(self) -> Iterator[str]:
        """Yield reports on slices whose creates have been due for too long; called every few seconds."""
        now, before = self._simulation.stage.agenda.now, self._since
        self._since = {}
        for workload, job in self.waiting():
            key = _key(workload, job)
            within_seconds = self.within_seconds(workload, job)
            if within_seconds is None or self.on_its_way(workload, job):
                continue
            self._since[key] = before.get(key, now)
            seconds = now - self._since[key]
            if seconds > within_seconds:
                name = f"{workload.group_name(job)} ({workload.uid})"
                yield f"slice {name} has waited for {seconds:.0f} s, no create was sent"

    def waiting(self) -> Iterator[tuple[WorkloadRun, int]]:
        """Yield feasible slices whose leader is unschedulable; not of hostile tenants or slices that start together."""
        for workload in self._simulation.cluster.workloads.values():
            hostile = workload.namespace == HOSTILE_NAMESPACE
            if workload.alive and not workload.restarting and not workload.gang and not hostile:
                for job in workload.slots():
                    if not workload.shape_of(job).feasible:
                        continue
                    leader = workload.leader(job)
                    if leader is not None and leader.waiting_since is not None and leader.deadline is None:
                        yield workload, job

    def within_seconds(self, workload: WorkloadRun, job: int) -> float | None:
        """Return the seconds within which a create has to be sent, None if there is an excuse."""
        market, environment, singled = self._simulation.market, self._simulation.environment, self._simulation.singled
        key = _key(workload, job)
        excused = (
            market.scarce
            or self._simulation.administrator.delays
            or self._simulation.hostile.limited
            or market.max_pools is not None
            or workload.name == singled.name
            or singled.outranks(workload.priority, workload.shape_of(job))
            or self.may_back_off(workload, job)
        )
        if excused or (key in self._refused and not environment.mended):
            return None
        return environment.again_within_seconds if key in self._refused else CREATE_WITHIN_SECONDS

    def may_back_off(self, workload: WorkloadRun, job: int) -> bool:
        """Whether a create of the slice, or of the same capacity, has failed."""
        return _key(workload, job) in self._failed or _kind_of(workload.shape_of(job)) in self._failed_kinds

    def could_use(self, workload: WorkloadRun, job: int, pool: Pool) -> bool:
        """Whether a pool fits a slice that has no pod on a node yet."""
        return fits(workload, job, pool) and not any(
            owner == job and pod.node for (owner, _), pod in workload.pods.items()
        )

    def on_its_way(self, workload: WorkloadRun, job: int) -> bool:
        """Whether a fitting pool was created for a slice, or has no unfinished pods of other slices."""

        def is_used(pool: Pool) -> bool:
            pods = self._simulation.cluster.pods_on_pool(pool.name)
            return any(not pod.finished and (pod.workload, pod.job) != (workload, job) for pod in pods)

        return any(
            is_ours(pool)
            and pool.status in _UP
            and fits(workload, job, pool)
            and (owner_of(pool.body["config"]["labels"]) == _key(workload, job) or not is_used(pool))
            for pool in self._simulation.cloud.pools.values()
        )


def _key(workload: WorkloadRun, job: int) -> _SliceKey:
    return workload.uid, workload.slice_id(job).group_key


def _owner(body: dict[str, Any]) -> _SliceKey:
    return owner_of(body["nodePool"]["config"]["labels"])


def _kind_of(shape: Shape) -> _Kind:
    return shape.accelerator, shape.topology, shape.hosts
