"""What is promised of pods that may be on their way to an idle pool, while nothing in the API tells of it.

No delete is decided for a pool that is up and usable while a pending leader that the deciding process knows of, of a
workload that lives, fits one of its ready nodes, and was created, or the pool became idle, less than a minute ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner.model.capacity import PoolStatus
from provisioner.slices.planning.plan import Delete, Plan
from tests.simulation.agenda import seconds_of
from tests.simulation.objects import PodRun

if TYPE_CHECKING:
    from tests.simulation.process import Process

#: A minute, less the part of a second that times in the API do not show.
_PROMISED_SECONDS = 58.0


def broken_promises(process: Process, plan: Plan) -> Iterator[str]:
    """Say which deletes of a plan break the promise, by what the process knows at the moment of its decision."""
    if not plan.deletes or process.clock_ahead_seconds:
        return
    leaders = _pending_leaders(process)
    pools, now = process.loop.pools.by_name(), seconds_of(process.loop.clock())
    for delete in plan.deletes:
        if pools[delete.name].status is not PoolStatus.RUNNING or delete.name in plan.memory.given_up:
            continue
        idle_since = seconds_of(plan.memory.unneeded_since[delete.name])
        for leader in leaders:
            since = max(idle_since, leader.created)
            if now - since < _PROMISED_SECONDS and _fits(process, leader, delete):
                yield (
                    f"{process.name} decides to delete {delete.name}, idle for {now - idle_since:.0f} s, "
                    f"and the pending pod {leader.name}, created {now - leader.created:.0f} s ago, fits it"
                )


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


def _fits(process: Process, pod: PodRun, delete: Delete) -> bool:
    nodes = (each for each in process.loop.watches.nodes.records().values() if each.pool_name == delete.name)
    # One that we have closed may have been open when the scheduler looked at it.
    return any(
        process.simulation.cluster.fits(pod, replace(each, cordoned=each.cordoned and not each.cordoned_by_us))
        for each in nodes
    )
