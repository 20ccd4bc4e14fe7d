"""Finds slices whose manifest does not keep their pods on one node pool. Pure.

The cluster's placement policy can also keep the pods on one pool. A manifest does not show whether this policy is
installed, so messages name it as an alternative. Not handled: affinity that webhooks of other products add to pods.
"""

from collections.abc import Mapping
from typing import Any

from provisioner import constants
from provisioner.kube import fields
from provisioner.model.placement import exclusive_annotation
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.demand import Slice
from provisioner.slices.messages.notices import EventReason
from provisioner.workloads.kind import marked

#: Start of the message about a slice whose pods may be bound to several node pools.
NOT_PLACED = "nothing keeps the "
#: Node selectors that keep the pods of a slice on one pool: values differ between node pools or child Jobs.
_OF_ONE_POOL = (constants.NODE_POOL, constants.HOSTNAME, constants.NAMESPACED_JOB, "job-key")
#: Annotations of pod templates with which Kueue's topology-aware scheduling chooses the nodes.
_OF_KUEUE = ("kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-slice-required-topology")


def missing_placement(slice_: Slice, template: Mapping[str, Any]) -> str:
    """Return problem and remedy if a slice lacks a placement that would keep its pods on one pool; otherwise empty."""
    workload = slice_.workload
    if (
        slice_.shape is None
        or not slice_.shape.multi_host
        or not workload.kind.has_pods
        or any(group.jobs > 1 for group in workload.groups)
        or _is_placed(slice_, template)
    ):
        return ""
    condition = (
        f"the placement policy assigns the slices of namespace {workload.namespace} (its label "
        f"{constants.PLACEMENT}={constants.PLACEMENT_ASSIGN})"
    )
    problem = f"{NOT_PLACED}{slice_.parallelism} pods of each slice on one node pool (Event {EventReason.SLICE_SPLIT})"
    if annotation := exclusive_annotation(workload):
        return f"{problem}; add the annotation {annotation}: {constants.NODE_POOL}, unless {condition}"
    if workload.kind is WorkloadKind.RAY_CLUSTER:
        condition += ", or a webhook places the pods of RayClusters"
    return f"{problem}, unless {condition}; ask the administrator"


def _is_placed(slice_: Slice, template: Mapping[str, Any]) -> bool:
    requirements, workload = slice_.requirements, slice_.workload
    if exclusive_annotation(workload) in {**requirements.annotations, **workload.annotations}:
        return True
    if any(key in requirements.node_selector for key in _OF_ONE_POOL):
        return True
    # All pools of a workload have this label, so the selector keeps pods together only if the workload has one slice.
    if slice_.siblings == 1 and requirements.node_selector.get(constants.LEGACY_POOL_ID) == workload.name:
        return True
    # The webhook adds pod affinity to pods of RayClusters that request TPU variables and have no pod (anti-)affinity.
    metadata, affinity = fields.at(template, "metadata"), fields.at(template, "spec", "affinity")
    injects = any(marked(metadata, key) == "enabled" for key in constants.INJECT_KEYS)
    if (
        workload.kind is WorkloadKind.RAY_CLUSTER
        and injects
        and not {"podAffinity", "podAntiAffinity"} & affinity.keys()
    ):
        return True
    if fields.at(affinity, "podAffinity").get("requiredDuringSchedulingIgnoredDuringExecution"):
        return True
    annotations = fields.mapping(metadata.get("annotations"))
    return any(key in annotations for key in _OF_KUEUE)
