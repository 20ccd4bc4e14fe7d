"""Reads RayClusters of KubeRay. A slice is one replica of a worker group, with a pod for each host.

KubeRay labels pods with the number of their replica since release 1.6, or in 1.5 with the feature gate
RayMultiHostIndexing; pods without the label are not served. A replica that is recreated after the loss of a host gets
the number that became free, so it is the same slice.
"""

from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import PodGroup, Workload, WorkloadKind
from provisioner.workloads.kind import Claim, Kind, begin, controller_of, entries_of, marked, template_of, too_much

RAY_CLUSTER_TYPE = (WorkloadKind.RAY_CLUSTER.api_version, WorkloadKind.RAY_CLUSTER.value)
#: Kinds that create RayClusters, and the field of their spec with the spec of the RayCluster.
MAKERS = {"RayJob": "rayClusterSpec", "RayService": "rayClusterConfig"}


def parse_raycluster(raw: object) -> Workload:
    """Read a RayCluster, which ends only when it is deleted. Raises MalformedObject."""
    workload, reader = begin(WorkloadKind.RAY_CLUSTER, raw, controller=constants.RAY_CONTROLLER)
    title = f"RayCluster {workload.namespace}/{workload.name}"
    spec = fields.at(raw, "spec")
    groups = []
    for entry in entries_of("spec.workerGroupSpecs", spec.get("workerGroupSpecs"), reader):
        replicas = replicas_of(entry)
        groups.append(
            PodGroup(
                name=fields.name(entry.get("groupName")),
                replicas=replicas,
                surge=max(0, bounds.CHILD_JOBS - replicas),
                any_number=True,
                parallelism=fields.count(entry.get("numOfHosts")),
                template=template_of(title, entry.get("template"), podspec.reader_of_pod(within=reader)),
            )
        )
    problem = reader.problem or too_much(workload.kind, groups, part="worker group")
    return replace(workload, groups=tuple(groups), terminal_state="", problem=problem)


def replicas_of(entry: dict[str, Any]) -> int:
    """Return the desired number of replicas of a worker group, within its minimum and maximum; 0 if suspended."""
    if entry.get("suspend") is True:
        return 0
    least, most = fields.count(entry.get("minReplicas"), default=0), entry.get("maxReplicas")
    replicas = max(least, fields.count(entry.get("replicas"), default=least))
    return replicas if most is None else min(replicas, fields.count(most, default=replicas))


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Read a pod's RayCluster, group and index; None unless a RayCluster controls the pod."""
    owner = controller_of(metadata, RAY_CLUSTER_TYPE)
    if owner is None or not (owner.name and owner.uid):
        return None
    group = marked(metadata, constants.RAY_GROUP)
    replica = fields.index(marked(metadata, constants.RAY_REPLICA_INDEX))
    # Groups of single hosts have no host index.
    host = fields.index(marked(metadata, constants.RAY_HOST_INDEX) or "0")
    return Claim(
        kind=WorkloadKind.RAY_CLUSTER,
        name=owner.name,
        uid=owner.uid,
        group_name=f"{owner.name}-{group}-{replica}" if group and replica is not None else "",
        index=host if replica is not None else None,
    )


RAY_CLUSTER = Kind(
    kind=WorkloadKind.RAY_CLUSTER,
    pod_label=constants.RAY_CLUSTER_NAME,
    installation="https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/kuberay-operator-installation.html",
    parse=parse_raycluster,
    templates="workerGroupSpecs",
    claim_of=claim_of,
    optional=True,
)
