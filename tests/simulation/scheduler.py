"""Decides on which nodes the simulated scheduler may bind a pod: selectors, affinity, taints, chips. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provisioner import constants
from provisioner.model.capacity import Node
from tests.simulation.objects import SLICE, PodRun


def selects(pod: PodRun, labels: Mapping[str, str]) -> bool:
    if pod.kept_off and SLICE in labels:
        return False
    return all(labels.get(key) == value for key, value in pod.selector.items())


def fits(pod: PodRun, node: Node, there: Iterable[PodRun]) -> bool:
    if not node.ready or node.cordoned or not selects(pod, node.labels):
        return False
    spot = (constants.SPOT,) if pod.shape.spot or pod.shape.tolerant else ()
    tolerated = (constants.TPU_RESOURCE, *spot)
    hard = (taint.key for taint in node.taints if taint.effect != "PreferNoSchedule")
    if not pod.tolerates_all and any(key not in tolerated for key in hard):
        return False
    used = sum(other.shape.chips for other in there if not other.finished)
    return used + pod.shape.chips <= node.allocatable_chips


def is_taken(pool: str, pod: PodRun, pods: Iterable[PodRun]) -> bool:
    """Return whether exclusive placement, of a pod or of the pods on a pool, keeps the pod off the pool."""
    if pod.workload is None:
        return False
    return any(
        other.workload is not None
        and (other.workload.exclusive or pod.workload.exclusive)
        and other.workload.exclusive_key(other) != pod.workload.exclusive_key(pod)
        for other in pods
        if other.pool == pool and not other.finished
    )
