"""Where KubeRay's pods go: each replica of several hosts on one node pool of its own, and each pod with a host name.

KubeRay leaves both to GKE's Ray add-on, which other clusters do not have. What is there already stays as it is. Nodes
need the label of a node pool, without which no pod with such an affinity is scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner import constants
from provisioner.admission.review import Operation
from provisioner.environment.numbering import ray_host
from provisioner.environment.pods import TpuPod
from provisioner.workloads.raycluster import RAY_CLUSTER_TYPE


def name_of_slice(pod: TpuPod) -> dict[str, str]:
    """Return the variable that names the slice of a pod of a RayCluster, as GKE's Ray add-on does."""
    group, replica = (pod.marks.get(each, "") for each in (constants.RAY_GROUP, constants.RAY_REPLICA_INDEX))
    is_ray = pod.owner is not None and pod.owner.type == RAY_CLUSTER_TYPE
    return {"TPU_NAME": f"{group}-{replica}"} if is_ray and group and replica else {}


def placement(pod: TpuPod) -> Iterator[Operation]:
    """Yield what a pod of a multi-host replica of a RayCluster lacks; nothing for other pods."""
    replica, host = pod.marks.get(constants.RAY_REPLICA_INDEX, ""), pod.marks.get(constants.RAY_HOST_INDEX, "")
    name = pod.marks.get(constants.RAY_REPLICA_NAME, "")
    if pod.owner is None or pod.owner.type != RAY_CLUSTER_TYPE or not (replica and host and name):
        return
    if not (pod.hostname or pod.subdomain):
        hostname, service = ray_host(pod, pod.owner.name, replica, host)
        yield Operation(op="add", path="/spec/hostname", value=hostname)
        yield Operation(op="add", path="/spec/subdomain", value=service)
    if pod.in_node_group:
        return
    wanted = {
        "podAffinity": _required({"key": constants.RAY_REPLICA_NAME, "operator": "In", "values": [name]}),
        "podAntiAffinity": _required(
            {"key": constants.RAY_REPLICA_NAME, "operator": "Exists"},
            {"key": constants.RAY_REPLICA_NAME, "operator": "NotIn", "values": [name]},
        ),
    }
    if pod.affinity is None:
        yield Operation(op="add", path="/spec/affinity", value=wanted)
    elif not wanted.keys() & pod.affinity:
        for part, value in wanted.items():
            yield Operation(op="add", path=f"/spec/affinity/{part}", value=value)


def _required(*expressions: dict[str, Any]) -> dict[str, Any]:
    """Return a term for node pools, over pods of all namespaces: those of others must not share the pool either."""
    term = {
        "labelSelector": {"matchExpressions": list(expressions)},
        "namespaceSelector": {},
        "topologyKey": constants.NODE_POOL,
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
