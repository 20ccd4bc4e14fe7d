"""What the owner of a workload has to know, in words."""

from __future__ import annotations

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import NodePoolRequest, expected_pool
from provisioner.model.fit import may_be_there, trusted
from provisioner.model.workloads import Workload, pod_ref, workload_ref
from provisioner.slices.demand import Slice
from provisioner.slices.planning.plan import Notice
from provisioner.slices.supplier import PoolRules


def notice(slice_: Slice, reason: str, message: str, *, key: str = "", warning: bool = True) -> Notice:
    """Say something about a slice, on its leader pod and its workload."""
    leader = (pod_ref(slice_.leader),) if slice_.leader is not None else ()
    objects = (*leader, workload_ref(slice_.workload))
    return Notice(objects=objects, reason=reason, message=message, key=key, warning=warning)


def too_large(workload: Workload) -> Notice:
    """Say that a workload asks for more than is read of one."""
    message = f"No TPU node pools are created for this {workload.kind.value}: {workload.problem}"
    return Notice(objects=(workload_ref(workload),), reason=constants.INVALID_REQUEST, message=message)


def left_to_slices(workload: Workload) -> Notice:
    """Say that a JobSet asks for Slice resources, which nobody makes here."""
    marks = (*workload.labels.items(), *workload.annotations.items())
    value = next(value for key, value in marks if key == constants.SLICE_AUTOPROVISIONING)
    message = (
        f"No TPU node pools are created for this {workload.kind.value}: "
        f"{constants.SLICE_AUTOPROVISIONING}={bounds.cut(value)} requests Slice resources, which this provisioner does "
        f"not create yet; remove it to get node pools, or let the Go provisioner (1.0 or later, with "
        f"ENABLE_SLICE_CONTROLLER) serve this {workload.kind.value}"
    )
    return Notice(objects=(workload_ref(workload),), reason=constants.SLICES_NOT_SERVED, message=message)


def underused(slice_: Slice) -> tuple[Notice, ...]:
    """Say that a slice has more hosts than its job has pods."""
    if slice_.shape is None or not slice_.shape.multi_host or slice_.parallelism >= slice_.nodes:
        return ()
    message = (
        f"{slice_.title} has {slice_.pods_field} {slice_.parallelism}, its slice of topology {slice_.shape.topology} "
        f"has {slice_.nodes} hosts: {slice_.nodes - slice_.parallelism} of them are paid for but not used"
    )
    return (notice(slice_, constants.UNDERUSED, message),)


def unlisted(slice_: Slice) -> tuple[Notice, ...]:
    """Say that Google's lists do not have the topology, although it follows their rule."""
    if slice_.shape is None or not slice_.shape.warning:
        return ()
    return (notice(slice_, constants.UNLISTED_TOPOLOGY, slice_.shape.warning),)


def unknown_selectors(slice_: Slice, request: NodePoolRequest, rules: PoolRules) -> tuple[Notice, ...]:
    """Say which of the pod's selectors nobody knows of the nodes that are about to be made."""
    asked = slice_.requirements
    if not asked.affinity_terms and not any(map(may_be_there, asked.node_selector)):
        return ()
    found = trusted(asked, rules.expected_node(expected_pool(request)))
    if not found:
        return ()
    message = (
        f"Node pool {request.name} is created, but it is not known whether its nodes will have the labels that the pod "
        "selects: "
        f"{', '.join(map(bounds.cut, found))}. If {rules.supplier_name} does not set such a label, the pods stay "
        f"unschedulable; check the labels of a TPU node of this cluster, or remove the selector"
    )
    return (notice(slice_, constants.UNKNOWN_SELECTOR, message, key=request.name),)


def not_separate(slice_: Slice) -> tuple[Notice, ...]:
    """Say that the workload's pods may be put on nodes that were held for another one that starts together.

    Whichever leader pod fits is put there once our taint is off, and what pods are on is never given back: both would
    run in part. A selector of its own leaves it its own nodes alone.
    """
    name = slice_.workload.name
    if name in slice_.requirements.node_selector.values():
        return ()
    message = (
        f"the slices of {slice_.workload} start together, but its pods also fit the nodes of other workloads: each may "
        f"then run in part and wait for the other; add the nodeSelector {constants.LEGACY_POOL_ID}: {name} to its pods"
    )
    return (notice(slice_, constants.NOT_SEPARATE, message),)
