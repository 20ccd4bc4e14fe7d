"""What is promised of pods that may be on their way to an idle pool, while nothing in the API tells of it.

No delete is sent for a pool to which the scheduler is binding a leader, where the pool had not failed, and the process
knew of a node of it that takes pods, and of the pending leader, of a workload that lives, when it decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.model.capacity import PoolName, PoolStatus
from provisioner.slices.planning.plan import Plan
from tests.simulation.objects import PodRun

if TYPE_CHECKING:
    from tests.simulation.process import Process


def expect(process: Process, plan: Plan) -> None:
    """Note of each delete which pending leaders the process knows of at the moment of its decision."""
    if not plan.deletes:
        return
    leaders = frozenset(pod.uid for pod in _pending_leaders(process))
    pools = process.loop.pools.by_name()
    nodes = process.loop.watches.nodes.records().values()
    with_nodes = {
        each.pool_name for each in nodes if not any(taint.key in constants.HELD_KEYS for taint in each.taints)
    }
    for delete in plan.deletes:
        promised = delete.name in with_nodes and pools[delete.name].status is not PoolStatus.ERROR
        process.expected[delete.name] = leaders if promised else frozenset()


def is_expected(process: Process, pod: PodRun) -> bool:
    """Whether the process has to wait for a pod before it deletes the pool that the pod is assigned to."""
    return pod.uid in process.expected.get(PoolName(pod.pool), ())


def on_their_way(process: Process, pool: str) -> list[PodRun]:
    """List the pods that the process has to wait for and that are assigned to a pool, and not bound yet."""
    pods = process.simulation.cluster.pods
    return [pod for pod in pods if pod.assigned and pod.pool == pool and is_expected(process, pod)]


def _pending_leaders(process: Process) -> list[PodRun]:
    watches, living = process.loop.watches, process.simulation.cluster.pods
    watched = watches.workloads.values()
    living_workloads = {each.uid: each for watch in watched for each in watch.records().values() if each.lives}
    pending = {
        each.uid
        for each in watches.pods.records().values()
        if not each.node_name and not each.finished and each.deletion_deadline is None
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
