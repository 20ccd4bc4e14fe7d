"""Ties pods and node pools to slices: the key of a group, the marks of its pods, the labels of its nodes. Pure.

Admission marks the pods of a group: it adds a nodeSelector with the key of the group and the namespace of the request.
The provisioner writes the same two labels on the nodes of the pool that it assigns to the slice. Pods without marks get
a node affinity that keeps them off all nodes with these labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from provisioner import constants
from provisioner.model.workloads import Requirements

MARKS = (constants.SLICE, constants.SLICE_NAMESPACE)
#: Labels of a node whose pool is kept free.
FREE: Mapping[str, str] = dict.fromkeys(MARKS, constants.SLICE_FREE)
#: Key of a leader pod that LeaderWorkerSet has not labelled yet: its webhook runs after the admission policies.
UNKNOWN_GROUP = "l-unknown"
#: Key of a replica whose name exceeds a label value; no pool is ever assigned to it.
RAY_NAME_TOO_LONG = "ray-name-too-long"
#: Longest name of a replica: a label value has at most 63 characters, and the key begins with two of its own.
_MAX_RAY_NAME = 61


def slice_key(labels: Mapping[str, str]) -> str:
    """Return the key of the group of a pod by its labels, empty if it has no group.

    The admission policy in deploy/components/placement computes the same. A letter tells the kind, because the hashes
    of JobSet and LeaderWorkerSet can be equal. Keys survive a restart of the workload.
    """
    if job_key := labels.get(constants.JOB_KEY):
        return f"j-{job_key}"
    if group_key := labels.get(constants.LWS_GROUP_KEY):
        return f"l-{group_key}"
    if constants.LWS_NAME in labels:
        return UNKNOWN_GROUP
    if constants.RAY_CLUSTER_NAME in labels and constants.RAY_GROUP in labels:
        # The name of a replica would change when KubeRay recreates it.
        parts = (constants.RAY_CLUSTER_NAME, constants.RAY_GROUP, constants.RAY_REPLICA_INDEX)
        name = ".".join(labels[key] for key in parts if key in labels)
        return f"r-{name}" if len(name) <= _MAX_RAY_NAME else RAY_NAME_TOO_LONG
    controller_uid = labels.get(constants.CONTROLLER_UID)
    return f"b-{controller_uid}" if controller_uid else ""


def labels_of(key: str, namespace: str) -> dict[str, str]:
    """Return the labels of the nodes of a pool that is assigned to a slice."""
    return {constants.SLICE: key, constants.SLICE_NAMESPACE: namespace}


def mark_of(requirements: Requirements, namespace: str) -> str:
    """Return the key that a pod of a namespace is marked with, empty for a pod without marks.

    The mark of another namespace is none: admission never sets one, so it is forged.
    """
    selector = requirements.node_selector
    marked = selector.get(constants.SLICE_NAMESPACE) == namespace
    key = selector.get(constants.SLICE, "") if marked else ""
    return "" if key in (constants.SLICE_FREE, UNKNOWN_GROUP, RAY_NAME_TOO_LONG) else key


def without_marks(requirements: Requirements, namespace: str) -> tuple[Requirements, str]:
    """Return the requirements without marks of a namespace, and the node that a marked pod selects, empty for any node.

    The rest says what machines the pod needs; the provisioner decides about the labels. The affinity that keeps pods
    off the nodes of slices is removed as well. Other pods of a slice select other nodes of its pool by their hostname.
    """
    selector, terms, host = requirements.node_selector, requirements.affinity_terms, ""
    if mark_of(requirements, namespace):
        host = selector.get(constants.HOSTNAME, "")
        selector = {key: value for key, value in selector.items() if key not in (*MARKS, constants.HOSTNAME)}
    kept = tuple(tuple(each for each in term if not _keeps_off(each.key, each.operator)) for term in terms)
    if kept == terms and selector is requirements.node_selector:
        return requirements, host
    # One term suffices, and a term of which nothing is left asks for nothing.
    asks_nothing = any(term and not left for term, left in zip(terms, kept, strict=True))
    return replace(requirements, node_selector=selector, affinity_terms=() if asks_nothing else kept), host


def _keeps_off(key: str, operator: str) -> bool:
    return key == constants.SLICE and operator == "DoesNotExist"
