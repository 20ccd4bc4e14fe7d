"""Checks deletes: no deleted pool has pods, is the only pool that a slice counts on, or is about to get pods.

A pool is about to get a leader pod if the scheduler has chosen one of the pool's nodes, but has not bound the pod yet.
A delete in that time is wrong if the process could know at its decision that the pod was pending and that the pool had
a node for pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.slices.planning.plan import Plan
from rehearsal.simulators.gke import records
from rehearsal.simulators.gke.records import Pool
from tests.simulation.objects import PodRun, WorkloadRun
from tests.simulation.pools import fits, is_ours, owner_of

if TYPE_CHECKING:
    from tests.simulation.checks import Checker
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

KEEP = "1 no pool is deleted under work, or under a JobSet that counts on it"
#: Maximum time in seconds from the gate's last check (valid for 2 s) to the effect of the delete (time-out of 10 s).
LOOK_TO_EFFECT_SECONDS = 12.0
_UP = (records.PoolStatus.PROVISIONING, records.PoolStatus.RUNNING)


class Deletes:
    """Checks the deletes of one run."""

    def __init__(self, simulation: Simulation, checker: Checker) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        self._checker = checker

    def expect(self, process: Process, plan: Plan) -> None:
        """Record for each delete the pending leaders that the process knows; none if the pool cannot take pods."""
        if not plan.deletes:
            return
        leaders = frozenset(pod.uid for pod in _pending_leaders(process))
        pools = process.loop.pools.by_name()
        nodes = process.loop.watches.nodes.records().values()
        with_nodes = {
            node.pool_name for node in nodes if not any(taint.key in constants.HELD_KEYS for taint in node.taints)
        }
        for delete in plan.deletes:
            promised = delete.name in with_nodes and pools[delete.name].status is not PoolStatus.ERROR
            process.expected[delete.name] = leaders if promised else frozenset()

    def judge(self, process: Process, pool: Pool, *, healthy: bool) -> None:
        now = self._stage.agenda.now
        # If the clock of a process is ahead, grace periods end too early for the process, which is no violation.
        ahead = process.clock_ahead_seconds
        unseen = self._unseen_since(process, pool)
        opened = self._checker.opened_by_hand.get(pool.name, float("-inf")) > unseen
        for pod in self._simulation.cluster.pods_on_pool(pool.name):
            # The process cannot see pods on a node that is uncordoned or returns after the last check of the gate.
            came_back = pod.bound_at < self._simulation.cluster.registered_at.get(pod.node, 0.0) > unseen
            bound_behind = self._bound_behind(process, pod) and not _is_expected(process, pod)
            excused = opened or came_back or bound_behind or self._waits_for_lost_nodes(pod, pool)
            if pod.blocks(now + ahead) and not excused:
                self._stage.violate(KEEP, f"{process.name} deletes {pool.name} under pod {pod.name}")
        for pod in _on_their_way(process, pool.name):
            if not opened and pod.assigned_at < unseen:
                self._stage.violate(KEEP, f"{process.name} deletes {pool.name}, and pod {pod.name} is on its way there")
        if not healthy or any(self._simulation.cluster.pods_on_pool(pool.name)):
            return
        for workload, job in self._checker.slices():
            if not workload.bindable:
                # A slice whose pods are never bound loses its claim, so its pool may be deleted.
                continue
            if workload.gang and not self._checker.complete(workload):
                # A workload whose slices start together may release unused pools until all its slices have pools.
                continue
            unchanged = self._unchanged_for(workload, job, pool)
            if self._counts_on(workload, job, pool) and unchanged > self._checker.stale_seconds():
                slice_ = workload.group_name(job)
                text = f"{process.name} deletes {pool.name}, on which {slice_} has counted for {unchanged:.0f} s"
                self._stage.violate(KEEP, text)

    def _bound_behind(self, process: Process, pod: PodRun) -> bool:
        """Whether the gate listed the pods of a node after the scheduler chose the node, but before the binding."""
        listed_at = process.pods_listed_at.get(pod.node, float("inf"))
        return 0.0 < pod.assigned_at < listed_at < pod.bound_at

    def _waits_for_lost_nodes(self, pod: PodRun, pool: Pool) -> bool:
        """Whether the pool of a pod lacks nodes, and some pods of its multi-host slice are unschedulable."""
        nodes = [self._simulation.cluster.nodes.get(node.name) for node in pool.nodes]
        whole = all(node is not None and node.ready and node.allocatable_chips for node in nodes)
        if whole or pod.workload is None or pod.shape.hosts <= 1:
            return False
        of_slice = [
            other
            for other in self._simulation.cluster.pods
            if (other.workload, other.job) == (pod.workload, pod.job) and other.shape.chips
        ]
        bound = sum(other.node != "" and other.deadline is None for other in of_slice)
        return bound < pod.shape.hosts and any(other.waiting_since is not None for other in of_slice)

    def _unseen_since(self, process: Process, pool: Pool) -> float:
        """Return the time of the gate's last check of the pool's nodes; infinite if the check is not recent."""
        looked_at = process.looked_at.get(pool.name, float("inf"))
        return looked_at if self._stage.agenda.now - looked_at < LOOK_TO_EFFECT_SECONDS else float("inf")

    def _counts_on(self, workload: WorkloadRun, job: int, pool: Pool) -> bool:
        """Whether a pool that was created for or last used by an unbound slice is the only pool that fits the slice."""
        if self._checker.pods_bound(workload, job) or not fits(workload, job, pool):
            return False
        made_for = owner_of(pool.body["config"]["labels"]) == (workload.uid, workload.slice_id(job).group_key)
        if not made_for and workload.last_pool.get(job) != pool.name:
            return False
        others = [other for other in self._simulation.cloud.pools.values() if other is not pool and is_ours(other)]
        return not any(fits(workload, job, other) and other.status in _UP for other in others)

    def _unchanged_for(self, workload: WorkloadRun, job: int, pool: Pool) -> float:
        changed = max(workload.changed.get(job, 0.0), self._simulation.cluster.pool_changed.get(pool.name, 0.0))
        return self._stage.agenda.now - max(changed, self._simulation.disturbed_at)


def _is_expected(process: Process, pod: PodRun) -> bool:
    """Whether the process knew a pod as pending when it last decided to delete the pod's pool (`expected`)."""
    return pod.uid in process.expected.get(PoolName(pod.pool), ())


def _on_their_way(process: Process, pool: str) -> list[PodRun]:
    """Return the pods for which the scheduler chose a node of a pool without binding them yet, if `_is_expected`."""
    pods = process.simulation.cluster.pods
    coming = (pod for pod in pods if pod.assigned and pod.pool == pool and not pod.is_guest)
    return [pod for pod in coming if _is_expected(process, pod)]


def _pending_leaders(process: Process) -> list[PodRun]:
    watches, living = process.loop.watches, process.simulation.cluster.pods
    watched = watches.workloads.values()
    living_workloads = {record.uid: record for watch in watched for record in watch.records().values() if record.lives}
    pending = {
        record.uid
        for record in watches.pods.records().values()
        if not record.node_name and not record.finished and record.deletion_deadline is None
    }
    return [
        pod
        for pod in living
        if pod.uid in pending
        and pod.index == 0
        and pod.workload is not None
        and pod.workload.alive
        and pod.workload.uid in living_workloads
        and pod.job < max(group.replicas + group.surge for group in living_workloads[pod.workload.uid].groups)
    ]
