"""Ties pods and node pools to slices: the key of a group, the marks of its pods, the labels of its nodes. Pure.

Admission marks the pods of a group: it adds a nodeSelector with the key of the group and the namespace of the request.
The provisioner writes the same two labels on the nodes of the pool that it assigns to the slice. Pods without marks get
a node affinity that keeps them off all nodes with these labels.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from provisioner import constants
from provisioner.model.capacity import Taint
from provisioner.model.workloads import Requirements, Toleration, Workload, WorkloadKind

MARKS = (constants.SLICE, constants.SLICE_NAMESPACE)
#: Labels of a node whose pool is kept free.
FREE: Mapping[str, str] = dict.fromkeys(MARKS, constants.SLICE_FREE)
#: Key and operator of the node affinity of pods without marks.
_KEEPS_OFF = (constants.SLICE, "DoesNotExist")
_EXCLUSIVE: Mapping[WorkloadKind, str] = {
    WorkloadKind.JOBSET: constants.EXCLUSIVE_TOPOLOGY,
    WorkloadKind.LEADER_WORKER_SET: constants.LWS_EXCLUSIVE_TOPOLOGY,
}
#: Key of a leader pod that LeaderWorkerSet has not labelled yet: its webhook runs after the admission policies.
UNKNOWN_GROUP = "l-unknown"
#: Key of a replica whose name exceeds a label value; no pool is ever assigned to it.
RAY_NAME_TOO_LONG = "ray-name-too-long"
#: Maximum length of a replica's name: a label value has at most 63 characters, and the key begins with "r-".
_MAX_RAY_NAME = 61
#: Taint of nodes for one child Job, with the value that JobSet's script label_nodes.py sets.
_JOB_TAINT = Taint(key=constants.JOB_TAINT, value="true")
#: Toleration that JobSet 0.11 adds to pods that select nodes of their Job.
_JOB_TOLERATION = Toleration(key=constants.JOB_TAINT, operator="Exists", effect="NoSchedule")


def slice_key(labels: Mapping[str, str]) -> str:
    """Return the key of a pod's group by the labels of the pod, empty if it has no group.

    The admission policy in deploy/components/placement computes the same key. A letter identifies the kind, because the
    hashes of JobSet and LeaderWorkerSet can be equal. Keys do not change when the workload restarts.
    """
    if job_key := labels.get(constants.JOB_KEY):
        return f"j-{job_key}"
    if key := labels.get(constants.LWS_SUBGROUP_KEY) or labels.get(constants.LWS_GROUP_KEY):
        return f"l-{key}"
    if constants.LWS_NAME in labels:
        return UNKNOWN_GROUP
    if constants.RAY_CLUSTER_NAME in labels and constants.RAY_GROUP in labels:
        # The index identifies the replica, because its name changes when KubeRay recreates it.
        parts = (constants.RAY_CLUSTER_NAME, constants.RAY_GROUP, constants.RAY_REPLICA_INDEX)
        name = ".".join(labels[key] for key in parts if key in labels)
        return f"r-{name}" if len(name) <= _MAX_RAY_NAME else RAY_NAME_TOO_LONG
    controller_uid = labels.get(constants.CONTROLLER_UID)
    return f"b-{controller_uid}" if controller_uid else ""


def labels_of(key: str, namespace: str) -> dict[str, str]:
    """Return the labels of the nodes of a pool that is assigned to a slice."""
    return {constants.SLICE: key, constants.SLICE_NAMESPACE: namespace}


def exclusive_annotation(workload: Workload) -> str:
    """Return the annotation that keeps each group or subgroup on one node pool; empty if the kind has none."""
    if workload.kind is WorkloadKind.LEADER_WORKER_SET and any(group.name for group in workload.groups):
        return constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY
    return _EXCLUSIVE.get(workload.kind, "")


def mark_of(requirements: Requirements, namespace: str) -> str:
    """Return the key that a pod of a namespace is marked with, empty for a pod without marks.

    A mark with another namespace is ignored: admission never sets one, so it is forged.
    """
    selector = requirements.node_selector
    marked = selector.get(constants.SLICE_NAMESPACE) == namespace
    key = selector.get(constants.SLICE, "") if marked else ""
    return "" if key in (constants.SLICE_FREE, UNKNOWN_GROUP, RAY_NAME_TOO_LONG) else key


def without_marks(requirements: Requirements, namespace: str) -> tuple[Requirements, str]:
    """Return the requirements without marks of a namespace, and the node that a marked pod selects, empty for any node.

    The provisioner chooses the marks, which say nothing about machines. The affinity that keeps pods off the nodes of
    slices is removed as well, and the hostname of a marked pod, because each pod of a slice selects another node.
    """
    selector, terms, host = requirements.node_selector, requirements.affinity_terms, ""
    if mark_of(requirements, namespace):
        host = selector.get(constants.HOSTNAME, "")
        selector = {key: value for key, value in selector.items() if key not in (*MARKS, constants.HOSTNAME)}
    kept = tuple(tuple(each for each in term if (each.key, each.operator) != _KEEPS_OFF) for term in terms)
    if kept == terms and selector is requirements.node_selector:
        return requirements, host
    # A term without remaining expressions matches any node, and one matching term is enough: no term is needed.
    asks_nothing = any(term and not left for term, left in zip(terms, kept, strict=True))
    return replace(requirements, node_selector=selector, affinity_terms=() if asks_nothing else kept), host


def selects_job_nodes(of_jobset: Collection[str], of_job: Collection[str]) -> bool:
    """Return whether JobSet lets the pods of a child Job select nodes that are labelled with the Job's name.

    JobSet requires both annotations on the Job. The Job has those of its template, and those of a JobSet with exclusive
    placement; annotations of the pod template do not count.
    """
    exclusive = constants.EXCLUSIVE_TOPOLOGY
    inherited = {exclusive, constants.NODE_SELECTOR_STRATEGY} & set(of_jobset) if exclusive in of_jobset else set()
    return {exclusive, constants.NODE_SELECTOR_STRATEGY} <= {*of_job, *inherited}


def with_job_nodes(requirements: Requirements, namespace: str, job: str) -> Requirements:
    """Return the requirements of pods to which JobSet adds the selector and the toleration for nodes of their Job."""
    return replace(
        requirements,
        node_selector={**requirements.node_selector, constants.NAMESPACED_JOB: job_label(namespace, job)},
        tolerations=(*requirements.tolerations, _JOB_TOLERATION),
    )


def job_label(namespace: str, job: str) -> str:
    """Return the value of the label of nodes for one child Job."""
    return f"{namespace}_{job}"


def job_taints(requirements: Requirements, namespace: str, job: str) -> tuple[Taint, ...]:
    """Return the taint of the nodes for a child Job, none if its pods do not select nodes of this Job."""
    selected = requirements.node_selector.get(constants.NAMESPACED_JOB)
    return (_JOB_TAINT,) if selected == job_label(namespace, job) else ()


def job_labels(pool_labels: Mapping[str, str], taints: Iterable[Taint]) -> dict[str, str]:
    """Return the label of the nodes of a pool that was created for one child Job; empty for other pools.

    The provisioner writes the label on nodes. Kubelets may not set labels of k8s.io (kubelet flag --node-labels), and
    GKE rejects node pools with such labels (terraform-provider-google issue 6003). The taint has no such limit.
    """
    namespace, job = pool_labels.get(constants.POOL_JOBSET_NAMESPACE), pool_labels.get(constants.PARENT_NAME)
    if not (namespace and job) or all(taint.key != constants.JOB_TAINT for taint in taints):
        return {}
    return {constants.NAMESPACED_JOB: job_label(namespace, job)}
