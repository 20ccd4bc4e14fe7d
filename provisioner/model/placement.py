"""Defines the labels and node selectors by which the pods of a group run only on the node pool of their slice. Pure.

In namespaces with assigned pools, admission adds two node selectors, called marks, to pods that can be served: the key
of the group, and the namespace. The provisioner writes the same labels on the nodes of the pool that it assigns to the
slice. Other pods with chips get a node affinity that excludes all nodes with these labels.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from provisioner import constants
from provisioner.model.capacity import Taint
from provisioner.model.workloads import Requirements, Toleration, Workload, WorkloadKind

#: Keys of the marks (node selectors) of pods, and of the labels of nodes.
MARKS = (constants.SLICE, constants.SLICE_NAMESPACE)
#: Labels of the nodes of a free pool, to which no pods with chips can be bound.
FREE: Mapping[str, str] = dict.fromkeys(MARKS, constants.SLICE_FREE)
#: Key and operator of the node affinity that admission adds to pods with chips but without marks.
_KEEPS_OFF = (constants.SLICE, "DoesNotExist")
_EXCLUSIVE: Mapping[WorkloadKind, str] = {
    WorkloadKind.JOBSET: constants.EXCLUSIVE_TOPOLOGY,
    WorkloadKind.LEADER_WORKER_SET: constants.LWS_EXCLUSIVE_TOPOLOGY,
}
#: Key of pods without a group, such as pods of a Deployment. All pods with this key in a namespace may share pools.
SHARED = "pods"
#: Key of a LeaderWorkerSet's leader without its group label, which a webhook adds after admission policies have run.
UNKNOWN_GROUP = "l-unknown"
#: Key of a RayCluster's replica whose name is too long for a label value. No pool is assigned to this key.
RAY_NAME_TOO_LONG = "ray-name-too-long"
#: Maximum characters of a replica's name in a key: a label value has at most 63, of which "r-" takes 2.
_MAX_RAY_NAME = 61
#: Taint of nodes for one child Job, as JobSet's script label_nodes.py sets it.
_JOB_TAINT = Taint(key=constants.JOB_TAINT, value="true")
#: Toleration that JobSet 0.11 adds to pods that select the nodes of their child Job.
_JOB_TOLERATION = Toleration(key=constants.JOB_TAINT, operator="Exists", effect="NoSchedule")


def slice_key(labels: Mapping[str, str], stateful_set: str = "") -> str:
    """Return the key of a pod's group; SHARED if the pod has no group.

    `stateful_set` is the UID of the StatefulSet of a pod with fewer chips than its slice; otherwise empty. The
    admission policy in deploy/components/placement computes the same key. Keys begin with a letter for the kind of
    workload, because hashes of JobSet and LeaderWorkerSet can be equal. A restart of a workload keeps the key.
    """
    if job_key := labels.get(constants.JOB_KEY):
        return f"j-{job_key}"
    if key := labels.get(constants.LWS_SUBGROUP_KEY) or labels.get(constants.LWS_GROUP_KEY):
        return f"l-{key}"
    if constants.LWS_NAME in labels:
        return UNKNOWN_GROUP
    if constants.RAY_CLUSTER_NAME in labels and constants.RAY_GROUP in labels:
        # Use the replica's index, because KubeRay gives a recreated replica another name.
        parts = (constants.RAY_CLUSTER_NAME, constants.RAY_GROUP, constants.RAY_REPLICA_INDEX)
        name = ".".join(labels[key] for key in parts if key in labels)
        return f"r-{name}" if len(name) <= _MAX_RAY_NAME else RAY_NAME_TOO_LONG
    controller_uid = labels.get(constants.CONTROLLER_UID)
    if controller_uid and constants.COMPLETION_INDEX in labels:
        return f"b-{controller_uid}"
    return f"s-{stateful_set}" if stateful_set else SHARED


def labels_of(key: str, namespace: str) -> dict[str, str]:
    """Return the node labels of a pool that is assigned to a slice. The pods of the slice select these labels."""
    return {constants.SLICE: key, constants.SLICE_NAMESPACE: namespace}


def exclusive_annotation(workload: Workload) -> str:
    """Return the key of the annotation that keeps a group or subgroup on one node pool; empty if the kind has none."""
    if workload.kind is WorkloadKind.LEADER_WORKER_SET and any(group.name for group in workload.groups):
        return constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY
    return _EXCLUSIVE.get(workload.kind, "")


def mark_of(requirements: Requirements, namespace: str) -> str:
    """Return the key of the group in a pod's marks; empty if the pod has no valid marks."""
    # Admission writes the namespace of the pod. Marks with another namespace are from a user, and are ignored.
    selector = requirements.node_selector
    marked = selector.get(constants.SLICE_NAMESPACE) == namespace
    key = selector.get(constants.SLICE, "") if marked else ""
    return "" if key in (constants.SLICE_FREE, UNKNOWN_GROUP, RAY_NAME_TOO_LONG) else key


def without_marks(requirements: Requirements, namespace: str) -> tuple[Requirements, str]:
    """Return requirements without marks, and the host that a marked pod selects; empty if unmarked or without host.

    The affinity that excludes the nodes of slices is also removed: like marks, it does not restrict the machine type.
    A marked pod loses the selector of its host, because each pod of a slice may select another host.
    """
    selector, terms, host = requirements.node_selector, requirements.affinity_terms, ""
    if mark_of(requirements, namespace):
        host = selector.get(constants.HOSTNAME, "")
        selector = {key: value for key, value in selector.items() if key not in (*MARKS, constants.HOSTNAME)}
    kept = tuple(
        tuple(expression for expression in term if (expression.key, expression.operator) != _KEEPS_OFF)
        for term in terms
    )
    if kept == terms and selector is requirements.node_selector:
        return requirements, host
    # A term that lost all its expressions matches any node, and terms are alternatives, so no term restricts the pod.
    asks_nothing = any(term and not kept_term for term, kept_term in zip(terms, kept, strict=True))
    return replace(requirements, node_selector=selector, affinity_terms=() if asks_nothing else kept), host


def selects_job_nodes(of_jobset: Collection[str], of_job: Collection[str]) -> bool:
    """Return whether JobSet lets the pods of a child Job select nodes that are labelled with the name of the Job.

    The arguments are the annotations of the JobSet and of the Job's template. The Job needs EXCLUSIVE_TOPOLOGY and
    NODE_SELECTOR_STRATEGY. It inherits them from the JobSet only if the JobSet has EXCLUSIVE_TOPOLOGY.
    """
    exclusive = constants.EXCLUSIVE_TOPOLOGY
    inherited = {exclusive, constants.NODE_SELECTOR_STRATEGY} & set(of_jobset) if exclusive in of_jobset else set()
    return {exclusive, constants.NODE_SELECTOR_STRATEGY} <= {*of_job, *inherited}


def with_job_nodes(requirements: Requirements, namespace: str, job: str) -> Requirements:
    """Return requirements with the selector and the toleration that JobSet adds for the nodes of a child Job."""
    return replace(
        requirements,
        node_selector={**requirements.node_selector, constants.NAMESPACED_JOB: job_label(namespace, job)},
        tolerations=(*requirements.tolerations, _JOB_TOLERATION),
    )


def job_label(namespace: str, job: str) -> str:
    """Return the value of NAMESPACED_JOB on the nodes for one child Job."""
    return f"{namespace}_{job}"


def job_taints(requirements: Requirements, namespace: str, job: str) -> tuple[Taint, ...]:
    """Return the taint of the nodes for a child Job; empty if the pods of the Job do not select these nodes."""
    selected = requirements.node_selector.get(constants.NAMESPACED_JOB)
    return (_JOB_TAINT,) if selected == job_label(namespace, job) else ()


def job_labels(pool_labels: Mapping[str, str], taints: Iterable[Taint]) -> dict[str, str]:
    """Return the node label NAMESPACED_JOB for a pool that was created for one child Job; empty for other pools.

    The provisioner writes this label on nodes, because kubelets may not set labels of k8s.io (kubelet flag
    --node-labels) and GKE rejects node pools with them (terraform-provider-google issue 6003).
    """
    namespace, job = pool_labels.get(constants.POOL_JOBSET_NAMESPACE), pool_labels.get(constants.PARENT_NAME)
    if not (namespace and job) or all(taint.key != constants.JOB_TAINT for taint in taints):
        return {}
    return {constants.NAMESPACED_JOB: job_label(namespace, job)}
