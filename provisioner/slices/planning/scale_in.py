"""Decides the deletion costs of pods, so that a Deployment that scales in empties one pool before the next. Pure.

A ReplicaSet first deletes pods that are not ready, then the pods with the lowest cost. The cost depends only on the
pool, and is written only to pods without a cost: frequent updates would load the API server (KEP-2255).
"""

from collections import defaultdict
from zlib import crc32

from provisioner import constants
from provisioner.model.capacity import NodePool, PoolName
from provisioner.model.workloads import Pod, WorkloadKind
from provisioner.slices.planning.plan import PodCost
from provisioner.slices.planning.round import Round

#: Maximum number of pods to which one decision writes a cost, not counting pods whose writes Kubernetes rejected.
_MAX_WRITES = 32
#: Number of different costs for each number of hosts from 0 to 1,000, so that a cost is below Kubernetes' 2^31 - 1.
_COSTS = 1_000_000


def deletion_costs(ctx: Round) -> tuple[PodCost, ...]:
    """Return the costs to write: for pods without a cost whose ReplicaSet has pods on several node pools."""
    if not ctx.settings.pod_deletion_cost:
        return ()
    placed: dict[str, list[tuple[Pod, PoolName]]] = defaultdict(list)
    for pod in ctx.snapshot.pods:
        if pod.kind is WorkloadKind.POD and pod.owner is not None and pod.owner.kind == "ReplicaSet":
            name = ctx.memory.membership.seen.get(pod.node_name, PoolName(""))
            if name in ctx.owned and not pod.finished and pod.deletion_deadline is None:
                placed[pod.workload_uid].append((pod, name))
    costs = [
        PodCost(pod.namespace, pod.name, pod.uid, _cost_of(ctx.owned[name].pool))
        for pods in placed.values()
        if len({name for _, name in pods}) > 1
        for pod, name in pods
        if constants.POD_DELETION_COST not in pod.requirements.annotations
    ]
    costs.sort()
    rejected = {cost for cost in costs if f"Pod {cost.namespace}/{cost.name}" in ctx.snapshot.rejected}
    # Rejected writes remain in the plan, so that the actor repeats them at growing intervals.
    return (*[cost for cost in costs if cost not in rejected][:_MAX_WRITES], *sorted(rejected))


def _cost_of(pool: NodePool) -> int:
    """Return the cost of the pods on a pool. Small pools are emptied first; a hash of the name orders equal pools."""
    return min(pool.hosts, 1000) * _COSTS + crc32(pool.name.encode()) % _COSTS
