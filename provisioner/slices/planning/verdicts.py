"""What the owner of a workload has to know, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, NodePoolRequest, PoolName, PoolStatus
from provisioner.model.choices import QUEUED_NOT_SERVED
from provisioner.model.workloads import Workload, WorkloadUid, pod_ref, workload_ref
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch.specification import expected_pool, expected_view
from provisioner.slices.planning.match.assignment import Matching
from provisioner.slices.planning.match.fit import label_misfit, trusted, view_of_node
from provisioner.slices.planning.match.node_labels import may_be_there
from provisioner.slices.planning.memory.state import PhaseEntry
from provisioner.slices.planning.plan import Verdict
from provisioner.slices.planning.supply import Supply

#: What should not last long and does is told after this time.
_STUCK_SECONDS = 600.0


def verdict(slice_: Slice, reason: str, message: str, *, key: str = "", warning: bool = True) -> Verdict:
    """Say something about a slice, on its leader pod and its JobSet."""
    leader = (pod_ref(slice_.leader),) if slice_.leader is not None else ()
    objects = (*leader, workload_ref(slice_.workload))
    return Verdict(objects=objects, reason=reason, message=message, key=key, warning=warning)


def too_large(workload: Workload) -> Verdict:
    """Say that a JobSet asks for more than is read of one."""
    message = f"No TPU node pools are made for this JobSet: {workload.problem}"
    return Verdict(objects=(workload_ref(workload),), reason=constants.INVALID_REQUEST, message=message)


def left_to_slices(workload: Workload) -> Verdict:
    """Say that a JobSet asks for Slice resources, which nobody makes here."""
    marks = (*workload.labels.items(), *workload.annotations.items())
    value = next(value for key, value in marks if key == constants.SLICE_AUTOPROVISIONING)
    message = (
        f"No TPU node pools are made for this JobSet: {constants.SLICE_AUTOPROVISIONING}={bounds.cut(value)} asks for "
        f"Slice resources, which this provisioner does not make yet; remove it to get node pools, or let the Go "
        f"provisioner (1.0 or later, with ENABLE_SLICE_CONTROLLER) serve this JobSet"
    )
    return Verdict(objects=(workload_ref(workload),), reason=constants.SLICES_NOT_SERVED, message=message)


def underused(slice_: Slice) -> tuple[Verdict, ...]:
    """Say that a slice has more hosts than its job has pods."""
    if slice_.shape is None or not slice_.shape.multi_host or slice_.parallelism >= slice_.nodes:
        return ()
    message = (
        f"job {slice_.group_name} has parallelism {slice_.parallelism}, its slice of topology {slice_.shape.topology} "
        f"has {slice_.nodes} hosts: {slice_.nodes - slice_.parallelism} of them are paid for and not used"
    )
    return (verdict(slice_, constants.UNDERUSED, message),)


def unlisted(slice_: Slice) -> tuple[Verdict, ...]:
    """Say that Google's lists do not have the topology, although it follows their rule."""
    if slice_.shape is None or not slice_.shape.warning:
        return ()
    return (verdict(slice_, constants.UNLISTED_TOPOLOGY, slice_.shape.warning),)


def unknown_selectors(slice_: Slice, request: NodePoolRequest) -> tuple[Verdict, ...]:
    """Say which of the pod's selectors nobody knows of the nodes that are about to be made."""
    asked = slice_.requirements
    if not asked.affinity_terms and not any(map(may_be_there, asked.node_selector)):
        return ()
    found = trusted(asked, expected_view(expected_pool(request)))
    if not found:
        return ()
    message = (
        f"Node pool {request.name} is made, and it is not known whether its nodes will carry what the pod selects: "
        f"{', '.join(map(bounds.cut, found))}. Where GKE does not set such a label, the pods stay unschedulable; check "
        f"the labels of a TPU node of this cluster, or remove the selector"
    )
    return (verdict(slice_, constants.UNKNOWN_SELECTOR, message, key=request.name),)


def not_separate(slice_: Slice) -> tuple[Verdict, ...]:
    """Say that the JobSet's pods may be put on nodes that were held for another one that starts together.

    Whichever leader pod fits is put there once our taint is off, and what pods are on is never given back: both would
    run in part. A selector of its own leaves it its own nodes alone.
    """
    name = slice_.workload.name
    if name in slice_.requirements.node_selector.values():
        return ()
    message = (
        f"the slices of JobSet {name} start together, and its pods fit the nodes of other JobSets too: each may then "
        f"run in part and wait for the other; add the nodeSelector {constants.LEGACY_POOL_ID}: {name} to its pods"
    )
    return (verdict(slice_, constants.NOT_SEPARATE, message),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A slice whose pods stay unschedulable although it has its pool."""

    slice_id: SliceId
    pool: PoolName
    #: All its nodes are ready: nothing that waits for them helps.
    ready: bool
    #: What the pods select and its nodes lack: those of another pool would lack it too.
    lacking: tuple[str, ...] = ()
    verdict: Verdict


def find_stuck(
    slices: Mapping[SliceId, Slice],
    supply: Mapping[PoolName, Supply],
    matching: Matching,
    held: Collection[WorkloadUid],
    entries: Mapping[PoolName, PhaseEntry],
    now: datetime,
) -> tuple[Stuck, ...]:
    """Find pods that stay unschedulable although their slice has its pool, and tell of them in the scheduler's words.

    Slices of JobSets in `held` are kept waiting on purpose. `entries` are the phases of the last round.
    """
    limit = now - timedelta(seconds=_STUCK_SECONDS)
    place = {slice_id: name for name, slice_id in matching.claimed.items()}
    place |= {slice_id: min(names) for slice_id, names in matching.held.items()}
    found = []
    for slice_id, name in place.items():
        slice_, pool, entry = slices.get(slice_id), supply.get(name), entries.get(name)
        if slice_ is None or pool is None or entry is None or not slice_.served or slice_.workload.uid in held:
            continue
        waiting = [pod for pod in slice_.pods if pod.unschedulable_since and pod.unschedulable_since <= limit]
        if not waiting or pool.pool.status is PoolStatus.PROVISIONING:
            continue
        if pool.ready and entry.since <= limit:
            first = min(waiting, key=lambda pod: pod.name)
            message = (
                f"{len(waiting)} pod(s) of job {slice_.group_name} are unschedulable although node pool {name} is "
                f"ready for them; the scheduler says of {first.name}: {first.unschedulable_message}"
            )
            lacking = _lacking(slice_, pool)
            if lacking:
                message += f"; its nodes do not carry {', '.join(map(bounds.cut, lacking))}: remove that selector"
            said = verdict(slice_, constants.STUCK, message, key=name)
            found.append(Stuck(slice_id=slice_id, pool=name, ready=True, lacking=lacking, verdict=said))
        elif pool.unready_since is not None and pool.unready_since <= limit:
            message = (
                f"job {slice_.group_name} waits for node pool {name}, which GKE calls {pool.pool.status.value}: only "
                f"{pool.ready_nodes} of {pool.pool.hosts} nodes are ready with all their chips"
            )
            said = verdict(slice_, constants.STUCK, message, key=f"unready {name}")
            found.append(Stuck(slice_id=slice_id, pool=name, ready=False, verdict=said))
        elif pool.pool.capacity is CapacityKind.QUEUED and not pool.nodes:
            message = (
                f"job {slice_.group_name} waits for node pool {name}, which an earlier release made of queued "
                f"capacity, and {QUEUED_NOT_SERVED}; then delete that node pool"
            )
            said = verdict(slice_, constants.STUCK, message, key=f"queued {name}")
            found.append(Stuck(slice_id=slice_id, pool=name, ready=False, verdict=said))
    return tuple(found)


def _lacking(slice_: Slice, pool: Supply) -> tuple[str, ...]:
    """List what was expected of the nodes without knowing it, where the pod selects none of them as they are."""
    if not all(label_misfit(slice_.requirements, view_of_node(node)) for node in pool.nodes):
        return ()
    return trusted(slice_.requirements, pool.view)
