"""Decides about managed instance groups, which create the machines. A group that waits for capacity is kept. Pure.

Before a group is deleted without the annotation `force`, its nodes are cordoned and the pods on them are evicted. Pods
that have started with chips, and are older than the delete request, keep the machines until they end or exceed their
grace period. Other pods keep the machines until a deadline. A short deadline applies to pods of other namespaces, other
pods with chips, and slices that cannot work. The gate checks this (`actions.Proof`).
"""

import contextlib
from collections import defaultdict
from datetime import UTC, datetime, timedelta

from provisioner.kube.fields import format_time
from provisioner.model import waits
from provisioner.model.capacity import FailureKind
from provisioner.model.wording import first_of
from provisioner.nodegroups.api import names, shape
from provisioner.nodegroups.api.specs import SizePolicyMode
from provisioner.nodegroups.api.statuses import Condition, ConditionType, Reason, condition_of, created, not_ready
from provisioner.nodegroups.api.types import Child, ManagedInstanceGroup, TpuNodeGroup
from provisioner.nodegroups.compute.records import Manager
from provisioner.nodegroups.planning.actions import EvictPod, Insert, ListMachines, PatchNode, Proof, target_of
from provisioner.nodegroups.planning.memory import INSERT, LIST, LONG_AGO, ResourceMemory
from provisioner.nodegroups.planning.nodes import Fleet, fleet_of, running
from provisioner.nodegroups.planning.ownership import is_ours, names_others, not_served
from provisioner.nodegroups.planning.repair import recreating
from provisioner.nodegroups.planning.resource import difference
from provisioner.nodegroups.planning.round import NOTHING, Node, Round, Step, later, merged, to_write, want

#: Interval in seconds between reads of a group whose machines are all ready.
SETTLED_SECONDS = 900.0
#: Interval between reads while machines are awaited: share of the group's age, within the next two limits.
_SHARE_OF_AGE = 0.05
_SOONEST_SECONDS = 10.0
_LATEST_SECONDS = 60.0
#: Age in seconds after which a stable group that is not ready is only read every 300 s. Watches show changes of nodes.
_LONG_SECONDS = 3600.0
_LATEST_AFTER_LONG_SECONDS = 300.0
#: Interval in seconds between lists of machines while their group is being drained.
_LIST_WHILE_DRAINED_SECONDS = 30.0
#: Maximum of the short deadline (see the module docstring), in seconds after the delete request.
_SHORT_DRAIN_SECONDS = 60.0
#: Minimum interval in seconds between lists of a group that waits for capacity and has no machine yet.
_LIST_PLACEHOLDERS_SECONDS = 30.0
_REFUSALS = frozenset({FailureKind.INVALID, FailureKind.PERMISSION, FailureKind.QUOTA})
#: Reasons of the condition Ready of groups that get no machines until a user or an administrator changes something.
_NOT_SERVED = (Reason.NOT_ALLOWED, Reason.INVALID_SPEC, Reason.REQUEST_REJECTED)
_MAX_FAILURES = 2
_LATE = datetime.max.replace(tzinfo=UTC)


def not_to_be_made(child: ManagedInstanceGroup, ctx: Round) -> Condition | None:
    """Return a refusal if a new group would use resources that it must not use, or exceed its namespace's limit."""
    refusal = _names_others(child, ctx)
    return refusal or no_room(child.meta.uid, child.meta.namespace, child.spec.target_size, ctx)


def sight(
    child: ManagedInstanceGroup, known: ResourceMemory, resource: Manager, ctx: Round
) -> tuple[Condition, float, Step]:
    """Return the condition, the interval between reads in seconds, and a step that lists the machines if due."""
    fleet = fleet_of(child, ctx)
    again = _again_seconds(resource, fleet, ctx.now)
    if fleet is None:
        due_at = known.changed_at
    else:
        making = resource.bulk is not None and resource.bulk.in_progress
        only_waits = making and not any(member.machine.has_machine for member in fleet.members)
        seconds = max(again, _LIST_PLACEHOLDERS_SECONDS) if only_waits else again
        due_at = later(fleet.asked_at, seconds, child.meta.uid)
    step = want(known, LIST, ListMachines(target=target_of(child)), due_at, ctx)
    return _condition(child, resource, fleet), again, step


def _condition(child: ManagedInstanceGroup, resource: Manager, fleet: Fleet | None) -> Condition:
    failures = tuple(
        (member.machine.name, failure)
        for member in (fleet.members if fleet is not None else ())
        if not member.machine.has_machine
        for failure in member.machine.failures
    )
    bulk, size, wanted = resource.bulk, resource.target_size, child.spec.target_size
    if size != wanted:
        change = f"resize --size={wanted}" if size < wanted else "delete-instances --instances=MACHINE"
        message = (
            f"the managed instance group was resized from {wanted} to {size} machines. Undo that: gcloud compute "
            f"instance-groups managed {change} --zone={child.spec.location} {child.meta.name}"
        )
        return not_ready(Reason.RECONCILE_ERROR, message)
    if bulk is not None and bulk.failures and (bulk.in_progress or not resource.is_stable):
        cause = "; ".join(dict.fromkeys(failure.message for failure in bulk.failures[:_MAX_FAILURES]))
        return not_ready(
            Reason.INSTANCES_CREATION_FAILED, f"waiting for capacity{_since(resource.created_at)}, Google says: {cause}"
        )
    if failures:
        name, failure = failures[0]
        return not_ready(Reason.INSTANCES_CREATION_FAILED, f"machine {name} is not created: {failure.message}")
    if not resource.is_stable or (bulk is not None and bulk.in_progress):
        since = _since(resource.created_at)
        return not_ready(Reason.UNSTABLE, f"Compute Engine is creating {resource.target_size} machines{since}")
    return created(difference(child, resource))


def drain(manager: ManagedInstanceGroup, known: ResourceMemory, ctx: Round) -> tuple[Condition | Proof | None, Step]:
    """Return the reason to wait or the proof for the delete (None if forced), and a step that prepares the delete."""
    if ctx.is_set(names.FORCE, manager):
        return None, NOTHING
    fleet = fleet_of(manager, ctx)
    listing = ListMachines(target=target_of(manager))
    if fleet is None:
        step = want(known, LIST, listing, known.changed_at, ctx)
        return _draining("its machines are being listed", step, ctx)
    group = ctx.parent_of(manager)
    labels = {} if group is None else names.group_labels(group.meta)
    nodes = running(fleet, group, ctx)
    step = want(known, LIST, listing, fleet.asked_at + timedelta(seconds=_LIST_WHILE_DRAINED_SECONDS), ctx)
    step += merged(to_write(_cordon(node, labels), node.resource_version) for node in nodes if not node.unschedulable)
    began_at, seconds = manager.meta.deleted_at or ctx.now, ctx.settings.drain_seconds
    short = waits.after(began_at, min(seconds, _SHORT_DRAIN_SECONDS))
    proof = Proof(
        namespace=manager.meta.namespace,
        name=manager.meta.name,
        uid=manager.meta.uid,
        group_labels=labels,
        provider_ids=frozenset(member.machine.provider_id for member in fleet.members if member.runs),
        place=f"gce://{manager.spec.project}/{manager.spec.location}/{manager.meta.name}",
        requested_at=manager.meta.deleted_at,
        deadline=short if _is_broken(manager, fleet, group) else waits.after(began_at, seconds),
        deadline_of_others=short,
        oldest_ready=ctx.oldest_ready,
    )
    waiting = []
    for node in nodes:
        for pod in ctx.pods.get(node.name, ()):
            if pod.finished or pod.bound_to_node:
                continue
            if node.unschedulable and pod.deletion_deadline is None:
                # A deletionTimestamp shows that the eviction has succeeded. Until then, the eviction is repeated.
                step += to_write(EvictPod(namespace=pod.namespace, name=pod.name, uid=pod.uid))
            if pod.keeps_machine(ctx.now, proof):
                waiting.append(pod)
                ends = (pod.deletion_deadline, None if pod.holds_chips(proof) else pod.deadline(proof))
                step += Step(moments=tuple(moment for moment in ends if moment is not None))
    if waiting:
        listed = sorted(f"{pod.namespace}/{pod.name} on {pod.node}" for pod in waiting)
        words = f"unfinished pods keep its machines: {first_of(listed)}"
        if group is None or group.meta.deleting:
            words = f'{words}. The annotation {names.FORCE}: "true" deletes them anyway'
        return _draining(words, step, ctx)
    if any(not node.unschedulable for node in nodes):
        return _draining("its nodes are being cordoned", step, ctx)
    return proof, step


def _is_broken(manager: ManagedInstanceGroup, fleet: Fleet, group: TpuNodeGroup | None) -> bool:
    """Return whether the machines cannot work: they are being recreated, or a machine of their slice does not run."""
    if group is not None and recreating(group):
        return True
    whole = len(fleet.members) >= manager.spec.target_size and all(member.runs for member in fleet.members)
    return manager.spec.effective_mode is SizePolicyMode.BULK and not whole


def _draining(message: str, step: Step, ctx: Round) -> tuple[Condition, Step]:
    return not_ready(Reason.DRAINING_NODES, f"{message}{ctx.refusal(step)}"), step


def _cordon(node: Node, labels: dict[str, str]) -> PatchNode:
    """Return a patch that cordons a node and adds labels, which identify the node after its machine was deleted."""
    missing = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    return PatchNode(name=node.name, uid=node.uid, resource_version=node.resource_version, labels=missing, cordon=True)


def machines_before(ctx: Round) -> dict[str, int]:
    """Return for each group the number of machines that precede its own machines under the limit of its namespace.

    The key is the UID of the ManagedInstanceGroup or, if none exists, of the TPUNodeGroup. The order is: groups that
    exist in Compute Engine; recreated slices; other groups by age; groups that Compute Engine rejected, by time of
    the rejection. Groups that cannot be created are not counted.
    """
    limit = ctx.settings.machines_per_namespace
    without = {uid: group for uid, group in ctx.groups.items() if not group.meta.deleting}
    turns: list[tuple[bool, datetime, bool, datetime, str, str, str, int]] = []
    for child in ctx.snapshot.managers:
        group = ctx.parent_of(child)
        living = without.pop(group.meta.uid, None) if group is not None else None
        is_anew = living is not None and bool(living.status.recreated_at)
        try:
            made, size = _is_made(child, ctx), child.spec.target_size
            has_turn = made or (size <= limit and (is_anew or _waits(child, ctx)))
        except Exception:  # noqa: BLE001 - the decision about this group reports the error
            has_turn = False
        if has_turn:
            meta, uid = (group or child).meta, child.meta.uid
            refused_at = LONG_AGO if made else _refused_at(child, ctx)
            age = meta.created_at or _LATE
            turns.append((not made, refused_at, not is_anew, age, meta.uid, uid, meta.namespace, size))
    for uid, group in without.items():
        size = _size_of(group)
        ready = condition_of(group.status.conditions, ConditionType.READY)
        if 0 < size <= limit and not (ready is not None and ready.reason in _NOT_SERVED):
            age = group.meta.created_at or _LATE
            children = [ctx.child_of(group, kind) for kind in names.CHILD_FINALIZERS]
            refused_at = max(
                (_refused_at(existing, ctx) for existing in children if existing is not None), default=LONG_AGO
            )
            is_new = not group.status.recreated_at
            turns.append((True, refused_at, is_new, age, uid, uid, group.meta.namespace, size))
    counts: defaultdict[str, int] = defaultdict(int)
    before = {}
    for *_, uid, namespace, size in sorted(turns):
        before[uid] = counts[namespace]
        counts[namespace] += size
    return before


def _size_of(group: TpuNodeGroup) -> int:
    with contextlib.suppress(Exception):
        config = group.spec.instance_config
        if config is not None:
            return shape.resolve(group.spec, config.machine_type).node_count
        return group.status.node_count or 0
    return 0


def _is_made(child: ManagedInstanceGroup, ctx: Round) -> bool:
    """Return whether the machines of a group exist, or may exist until the group is read again."""
    known = ctx.known(child)
    if known.operation is not None or ctx.calling(child.meta.uid, Insert):
        return True
    if known.reading is None or known.reading.asked_at < known.changed_at:
        return bool(child.status.url or known.attempts or known.unsure_at)
    resource = known.reading.resource
    return resource is not None and is_ours(child, resource, ctx)


def _waits(child: ManagedInstanceGroup, ctx: Round) -> bool:
    """Return whether a group does not exist, and nothing except the limit of its namespace forbids its creation."""
    reading = ctx.known(child).reading
    if child.meta.deleting or (reading is not None and reading.resource is not None):
        return False
    return (not_served(child, ctx) or _names_others(child, ctx)) is None


def _refused_at(child: Child, ctx: Round) -> datetime:
    wait = ctx.known(child).backoffs.get(INSERT)
    return wait.at if wait is not None and wait.failure.kind in _REFUSALS else LONG_AGO


def _names_others(child: ManagedInstanceGroup, ctx: Round) -> Condition | None:
    addresses = {"instanceTemplate": child.spec.instance_template, "workloadPolicy": child.spec.workload_policy}
    return names_others(child.meta.namespace, addresses, ctx)


def no_room(uid: str, namespace: str, size: int, ctx: Round) -> Condition | None:
    """Return a refusal if `size` machines and the machines before them exceed the limit of the namespace."""
    limit, others = ctx.settings.machines_per_namespace, ctx.machines_before.get(uid, 0)
    if not limit or others + size <= limit:
        return None
    if size > limit:
        message = (
            f"{size} machines are more than namespace {namespace} may have by the setting MAX_MACHINES_PER_NAMESPACE: "
            f"{limit}. Create a smaller group, or ask the administrator to raise the limit"
        )
        return not_ready(Reason.NOT_ALLOWED, message)
    # The number of other machines is not in the message: each delete would change the status of all waiting groups.
    message = (
        f"{size} machines are more than the setting MAX_MACHINES_PER_NAMESPACE leaves: namespace {namespace} may have "
        f"{limit}, and others are in use or ahead of these. They are created when there is room"
    )
    return not_ready(Reason.LIMIT_REACHED, message)


def _again_seconds(resource: Manager, fleet: Fleet | None, now: datetime) -> float:
    whole = fleet is not None and len(fleet.members) == resource.target_size and resource.is_stable and fleet.made
    if fleet is not None and whole and fleet.ready == resource.target_size:
        return SETTLED_SECONDS
    age = (now - resource.created_at).total_seconds() if resource.created_at is not None else 0.0
    if age > _LONG_SECONDS and resource.is_stable:
        return _LATEST_AFTER_LONG_SECONDS
    if whole:
        return _LATEST_SECONDS
    return min(_LATEST_SECONDS, max(_SOONEST_SECONDS, age * _SHARE_OF_AGE))


def _since(moment: datetime | None) -> str:
    return "" if moment is None else f" since {format_time(moment)}"
