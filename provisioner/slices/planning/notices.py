"""Notices about workloads and slices that follow only from the round, not from the decision about their pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import NodePoolRequest, PoolName, expected_pool
from provisioner.model.fit import may_be_there, trusted
from provisioner.model.workloads import Workload, WorkloadUid, workload_ref
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.plan import Notice, notice
from provisioner.slices.planning.round import Round
from provisioner.slices.planning.spec.capacity import Choices, wants_all_or_nothing
from provisioner.slices.planning.spec.specification import labels_left_out
from provisioner.slices.supplier import PoolRules


def underused(slice_: Slice) -> tuple[Notice, ...]:
    """Return the notice that the pods of a slice do not request all of its chips, with a smaller machine if any."""
    shape = slice_.shape
    if not slice_.served or shape is None:
        return ()
    machine, used = shape.machine_type, slice_.parallelism * shape.chips_per_pod
    unused = slice_.nodes * machine.chips - used
    if unused <= 0:
        return ()
    if shape.multi_host:
        message = (
            f"{slice_.title} has {slice_.pods_field} {slice_.parallelism}, its slice of topology {shape.topology} has "
            f"{slice_.nodes} hosts: {slice_.nodes - slice_.parallelism} of them are paid for but not used"
        )
    else:
        smaller = [
            f"; {each.name} (topology {each.single_host_topology}) has {each.chips}"
            for each in sorted(shape.accelerator.machine_types, key=lambda each: each.chips)
            if shape.chips_per_pod <= each.chips < machine.chips and each.single_host_topology
        ]
        message = (
            f"{slice_.title} requests {used} of the {used + unused} chips of its {machine.name}: {unused} of them are "
            f"paid for but not used{smaller[0] if smaller else ''}"
        )
    return (notice(slice_, constants.UNDERUSED, message),)


def too_large(workload: Workload) -> str:
    """Return the message that no pools are created for a workload because of its `problem`."""
    return f"No TPU node pools are created for this {workload.owner_kind}: {workload.problem}"


def notices_of_workloads(round_: Round) -> Iterator[Notice]:
    """Report workloads that get no node pools at all, or never start, with the reason."""
    by_uid, policy = round_.workloads.by_uid, round_.policy
    served = [each for each in by_uid.values() if not each.managed_by and each.keeps_pools(while_suspended=True)]
    for each in served:
        # Suspended workloads are reported as well: their owners can act before the workloads are resumed.
        if each.problem and any(policy.serves(each, group.template) for group in each.groups if group.template.chips):
            yield _of_workload(each, constants.INVALID_REQUEST, too_large(each))
    for each in served:
        if each.lives and policy.leaves_to_slices(each):
            marks = (*each.labels.items(), *each.annotations.items())
            value = next(value for key, value in marks if key == constants.SLICE_AUTOPROVISIONING)
            message = (
                f"No TPU node pools are created for this {each.kind.value}: "
                f"{constants.SLICE_AUTOPROVISIONING}={bounds.cut(value)} requests Slice resources, which this "
                "provisioner does not create yet; remove it to get node pools, or let the Go provisioner (1.0 or "
                f"later, with ENABLE_SLICE_CONTROLLER) serve this {each.kind.value}"
            )
            yield _of_workload(each, constants.SLICES_NOT_SERVED, message)
    waiting = (
        pod for pod in round_.snapshot.pods if not pod.group_key and pod.unschedulable_since and pod.workload_uid
    )
    for uid in dict.fromkeys(filter(None, map(round_.workloads.uid_of, waiting))):
        message = (
            f"No TPU node pools are created for this {by_uid[uid].kind.value}: its pods lack the label "
            f"{constants.RAY_REPLICA_INDEX}; install KubeRay 1.6 or newer, or enable its feature gate "
            "RayMultiHostIndexing"
        )
        yield _of_workload(by_uid[uid], constants.NOT_NUMBERED, message)
    for found in round_.found.values():
        if any(_waits_for_its_followers(each) for each in found.slices.values()):
            message = (
                f"The pods of this {found.workload.kind.value} are never scheduled: {constants.EXCLUSIVE_TOPOLOGY} "
                "holds followers back until their leader is scheduled, and the scheduler holds the leader back until "
                "all pods of its gang exist; remove the annotation, or the gang"
            )
            yield _of_workload(found.workload, constants.NEVER_STARTS, message)


def _of_workload(workload: Workload, reason: str, message: str) -> Notice:
    return Notice(objects=(workload_ref(workload),), reason=reason, message=message)


def _waits_for_its_followers(slice_: Slice) -> bool:
    placed = (slice_.workload.annotations, slice_.requirements.annotations)
    gated = slice_.leader is not None and slice_.leader.gated and slice_.pending
    return gated and any(constants.EXCLUSIVE_TOPOLOGY in annotations for annotations in placed)


def of_create(slice_: Slice, request: NodePoolRequest, choices: Choices, round_: Round) -> list[Notice]:
    """Return the notices about a create."""
    skipped = f"Some choices of capacity are skipped: {'; '.join(choices.left_out)}" if choices.left_out else ""
    reported = (
        (constants.UNLISTED_TOPOLOGY, slice_.shape.warning if slice_.shape is not None else ""),
        (constants.INVALID_REQUEST, labels_left_out(slice_, round_.settings, round_.rules)),
        (constants.INVALID_REQUEST, skipped),
    )
    notices = [notice(slice_, reason, message) for reason, message in reported if message]
    return [*underused(slice_), *notices, *_unknown_selectors(slice_, request, round_.rules)]


def _unknown_selectors(slice_: Slice, request: NodePoolRequest, rules: PoolRules) -> tuple[Notice, ...]:
    """Report selectors of the pod if it is unknown whether the new nodes will have these labels."""
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


def not_marked(round_: Round) -> Iterator[Notice]:
    """Report workloads that should start together, and do not because admission did not mark their pods."""
    waiting = {
        slice_.workload.uid: slice_.workload
        for slice_ in round_.slices.values()
        if slice_.pending
        and slice_.workload.kind.has_pods
        and not slice_.mark
        and slice_.siblings > 1
        and wants_all_or_nothing(slice_, round_.settings)
    }
    for workload in waiting.values():
        message = (
            f"The slices of this {workload.kind.value} do not start together, because admission did not mark its pods: "
            f"install the placement policy, and label namespace {workload.namespace} "
            f"{constants.PLACEMENT}={constants.PLACEMENT_ASSIGN}"
        )
        yield _of_workload(workload, constants.NOT_MARKED, message)


def held_for_others(
    round_: Round, claimed: Mapping[PoolName, SliceId], partial: Mapping[WorkloadUid, tuple[int, int]]
) -> Iterator[Notice]:
    """Report ready pools that are held until all slices of their workload are ready."""
    for name, slice_id in claimed.items():
        slice_ = round_.slices[slice_id]
        if slice_.pending and slice_id.workload_uid in partial and round_.supply[name].ready:
            ready, wanted = partial[slice_id.workload_uid]
            message = (
                f"Node pool {name} is ready and is held until all slices of the {slice_.workload.kind} are ready: "
                f"{ready} of {wanted} are ready"
            )
            yield notice(slice_, constants.HELD_FOR_OTHERS, message, key=name, warning=False)
