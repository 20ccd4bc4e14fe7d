"""Lists the reasons of Events; creates notices for owners of workloads and alerts for the administrator. Pure."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import NodePoolRequest, PoolName, PoolStatus, expected_pool
from provisioner.model.choices import choice_of
from provisioner.model.fit import may_be_there, trusted
from provisioner.model.placement import exclusive_annotation
from provisioner.model.wording import clock, first_of
from provisioner.model.workloads import Workload, WorkloadUid, workload_ref
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.delete.unneeded import BRAKE_PAUSE
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.plan import Alert, Notice, notice
from provisioner.slices.planning.round import OwnedPool, Round
from provisioner.slices.planning.spec.capacity import Choices, wants_all_or_nothing
from provisioner.slices.planning.spec.specification import uncopied_labels
from provisioner.slices.planning.split import Splits
from provisioner.slices.planning.stuck import STUCK_SECONDS, Stuck, StuckKind, lacking_labels, unschedulable
from provisioner.slices.supplier import PoolRules


class EventReason:
    """Reasons of Events about slices and node pools. `make docs` writes the comments to docs/events.md."""

    #: The create request was accepted.
    CREATION_STARTED = "NodePoolCreationStarted"
    #: All nodes of the pool are ready and report their chips.
    CREATION_SUCCEEDED = "NodePoolCreationSucceeded"
    #: The request was rejected (`GKE rejects node pool`), or the pool failed (`Node pool ... failed`).
    CREATION_FAILED = "NodePoolCreationFailed"
    #: The delete was sent. The message ends with the reason.
    DELETION_STARTED = "NodePoolDeletionStarted"
    #: The pool is no longer listed.
    DELETION_SUCCEEDED = "NodePoolDeletionSucceeded"
    #: A delete was delayed. It is usually retried within 60 s.
    DELETION_FAILED = "NodePoolDeletionFailed"
    #: A user or GKE deleted the pool.
    POOL_NOT_FOUND = "NodePoolNotFound"
    #: No pool can be created, it lacks requested labels, or choices of capacity are skipped. The message names the
    #: mistake, and usually what to change.
    INVALID_REQUEST = "InvalidTPURequest"
    #: The pool cannot be created for now. The message names the obstacle, such as GKE's message with the time of the
    #: next attempt, a limit on operations, failed creates, or the queue.
    CREATION_WAITING = "NodePoolCreationWaiting"
    #: A condition below has lasted for ten minutes, unless it names another time:
    #: - Pods are unschedulable although their pool is ready.
    #: - Not all nodes of the pool are ready, or its status is unknown.
    #: - The pool's creation takes at least 60 minutes, or its deletion or repair 30 minutes.
    #: - The slice has more pods than its pool can run.
    #: - The followers are unschedulable without a pool, and the leader is not.
    #: - For a minute, the scheduler binds no pod to the slice's own ready and empty pool, although the pods have no
    #: PersistentVolumeClaims or gang and tolerate all taints. The pool is deleted; the workload gets another pool after
    #: about 40 minutes, doubled each time up to a day.
    STUCK = "SliceStuck"
    #: Pods of a multi-host slice are on several node pools, or share a node pool with pods of another slice. The
    #: message names up to three of the pools.
    SLICE_SPLIT = "SliceSplit"
    #: The slice has fewer pods than hosts, or its pods request fewer chips than their hosts have.
    UNDERUSED = "SliceUnderused"
    #: The workload requests Slice resources, which the provisioner does not create, by the label or annotation
    #: `tpu-provisioner.cloud.google.com/slice-autoprovisioning`.
    SLICES_NOT_SERVED = "SliceAutoprovisioningNotServed"
    #: A limit or a pause of the administrator does not allow the pool. For a limit, the message usually has its use and
    #: the slice's place.
    LIMIT_REACHED = "NodePoolLimitReached"
    #: The topology follows Google's rule, but is in no list of Google. The pool is created.
    UNLISTED_TOPOLOGY = "TopologyNotListed"
    #: The pool is ready, and its all-or-nothing workload waits for other slices.
    HELD_FOR_OTHERS = "SliceHeldForOthers"
    #: The new nodes may not have a label that the pod selects. The pool is created.
    UNKNOWN_SELECTOR = "SelectorNotKnown"
    #: For at least a minute, the node pools could not be listed, the hints could not be read, or the kubeconfig and
    #: `GCP_CLUSTER` were not proven to be the same cluster. No decisions are made.
    NOT_READY = "ProvisionerNotReady"
    #: The webhook server cannot determine all TPU variables of a pod, or the selectors of a child Job.
    INCOMPLETE_ENVIRONMENT = "IncompleteTPUEnvironment"
    #: Exclusive placement delays followers until their leader is scheduled, and the scheduler delays the leader until
    #: its gang (PodGroup) is complete.
    NEVER_STARTS = "GangNeverStarts"
    #: Google takes a host of the pool down for maintenance, now or at the time in the message, and ends the slice's
    #: pods.
    HOST_MAINTENANCE = "HostMaintenance"
    #: The reservation of the slice ends, with its machines, within 45 minutes, or before the Job's deadline.
    RESERVATION_ENDS = "ReservationEnds"
    #: Worker pods lack KubeRay's label `ray.io/worker-group-replica-index`.
    NOT_NUMBERED = "PodsNotNumbered"
    #: The workload's slices should start together, but admission did not mark their pods. Each slice starts separately.
    NOT_MARKED = "PlacementNotAssigned"


#: Time for which a delete must have been postponed before it counts as overdue.
_HELD_UP = timedelta(minutes=10)


def underused(slice_: Slice) -> tuple[Notice, ...]:
    """Return a notice if a served slice has unused chips; it may name a smaller machine type that suffices."""
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
            f"; {type_.name} (topology {type_.single_host_topology}) has {type_.chips}"
            for type_ in sorted(shape.accelerator.machine_types, key=lambda type_: type_.chips)
            if shape.chips_per_pod <= type_.chips < machine.chips and type_.single_host_topology
        ]
        message = (
            f"{slice_.title} requests {used} of the {used + unused} chips of its {machine.name}: {unused} of them are "
            f"paid for but not used{smaller[0] if smaller else ''}"
        )
    return (notice(slice_, EventReason.UNDERUSED, message),)


def not_created(workload: Workload) -> str:
    """Return the message that no pools are created for a workload with a `problem`."""
    return f"No TPU node pools are created for this {workload.owner_kind}: {'; '.join(workload.problem)}"


def notices_of_workloads(ctx: Round) -> Iterator[Notice]:
    """Yield notices about workloads that get no node pools, or whose pods are never scheduled, until a user acts."""
    by_uid, policy = ctx.workloads.by_uid, ctx.policy
    served = [
        workload
        for workload in by_uid.values()
        if not workload.managed_by and workload.keeps_pools(while_suspended=True)
    ]
    for workload in served:
        # Suspended workloads are reported as well: their owners can act before the workloads are resumed.
        if workload.problem and any(
            policy.serves(workload, group.template) for group in workload.groups if group.template.chips
        ):
            yield _of_workload(workload, EventReason.INVALID_REQUEST, not_created(workload))
    for workload in served:
        if workload.lives and policy.leaves_to_slices(workload):
            marks = (*workload.labels.items(), *workload.annotations.items())
            value = next(value for key, value in marks if key == constants.SLICE_AUTOPROVISIONING)
            message = (
                f"No TPU node pools are created for this {workload.kind.value}: "
                f"{constants.SLICE_AUTOPROVISIONING}={bounds.cut(value)} requests Slice resources, which this "
                "provisioner does not create yet; remove it to get node pools, or let the Go provisioner (1.0 or "
                f"later, with ENABLE_SLICE_CONTROLLER) serve this {workload.kind.value}"
            )
            yield _of_workload(workload, EventReason.SLICES_NOT_SERVED, message)
    waiting = (pod for pod in ctx.snapshot.pods if not pod.group_key and pod.unschedulable_since and pod.workload_uid)
    for uid in dict.fromkeys(filter(None, map(ctx.workloads.uid_of, waiting))):
        message = (
            f"No TPU node pools are created for this {by_uid[uid].kind.value}: its pods lack the label "
            f"{constants.RAY_REPLICA_INDEX}; install KubeRay 1.6 or newer, or enable its feature gate "
            "RayMultiHostIndexing"
        )
        yield _of_workload(by_uid[uid], EventReason.NOT_NUMBERED, message)
    for found in ctx.found.values():
        if any(_waits_for_its_followers(slice_) for slice_ in found.slices.values()):
            message = (
                f"The pods of this {found.workload.kind.value} are never scheduled: {constants.EXCLUSIVE_TOPOLOGY} "
                "holds followers back until their leader is scheduled, and the scheduler holds the leader back until "
                "all pods of its gang exist; remove the annotation, or the gang"
            )
            yield _of_workload(found.workload, EventReason.NEVER_STARTS, message)


def _of_workload(workload: Workload, reason: str, message: str) -> Notice:
    return Notice(objects=(workload_ref(workload),), reason=reason, message=message)


def _waits_for_its_followers(slice_: Slice) -> bool:
    """Return whether a leader pod is gated until its gang exists, but JobSet rejects followers of an unbound leader."""
    placed = (slice_.workload.annotations, slice_.requirements.annotations)
    gated = slice_.leader is not None and slice_.leader.gated and slice_.pending
    return gated and any(constants.EXCLUSIVE_TOPOLOGY in annotations for annotations in placed)


def of_create(slice_: Slice, request: NodePoolRequest, choices: Choices, ctx: Round) -> list[Notice]:
    """Return the notices about a slice whose pool is created."""
    skipped = f"Some choices of capacity are skipped: {'; '.join(choices.rejected)}" if choices.rejected else ""
    reported = (
        (EventReason.UNLISTED_TOPOLOGY, slice_.shape.warning if slice_.shape is not None else "", ""),
        (EventReason.INVALID_REQUEST, uncopied_labels(slice_, ctx.settings, ctx.rules), ""),
        (EventReason.INVALID_REQUEST, skipped, ""),
        (EventReason.UNKNOWN_SELECTOR, _unknown_selectors(slice_, request, ctx.rules), request.name),
    )
    notices = (notice(slice_, reason, message, key=key) for reason, message, key in reported if message)
    return [*underused(slice_), *notices]


def _unknown_selectors(slice_: Slice, request: NodePoolRequest, rules: PoolRules) -> str:
    asked = slice_.requirements
    if not asked.affinity_terms and not any(map(may_be_there, asked.node_selector)):
        return ""
    unknown = trusted(asked, rules.expected_node(expected_pool(request)))
    if not unknown:
        return ""
    return (
        f"Node pool {request.name} is created, but it is not known whether its nodes will have the labels that the pod "
        f"selects: {', '.join(map(bounds.cut, unknown))}. If {rules.supplier_name} does not set such a label, the pods "
        "stay unschedulable; check the labels of a TPU node of this cluster, or remove the selector"
    )


def not_marked(ctx: Round) -> Iterator[Notice]:
    """Report workloads whose slices cannot start together as configured, because admission did not mark their pods."""
    waiting = {
        slice_.workload.uid: slice_.workload
        for slice_ in ctx.slices.values()
        if slice_.pending
        and slice_.workload.kind.has_pods
        and not slice_.mark
        and slice_.siblings > 1
        and wants_all_or_nothing(slice_, ctx.settings)
    }
    for workload in waiting.values():
        message = (
            f"The slices of this {workload.kind.value} do not start together, because admission did not mark its pods: "
            f"install the placement policy, and label namespace {workload.namespace} "
            f"{constants.PLACEMENT}={constants.PLACEMENT_ASSIGN}"
        )
        yield _of_workload(workload, EventReason.NOT_MARKED, message)


def held_for_others(
    ctx: Round, claimed: Mapping[PoolName, SliceId], partial: Mapping[WorkloadUid, tuple[int, int]]
) -> Iterator[Notice]:
    """Report ready pools that are held until all slices of their workload are ready."""
    for name, slice_id in claimed.items():
        slice_ = ctx.slices[slice_id]
        if slice_.pending and slice_id.workload_uid in partial and ctx.owned[name].ready:
            ready, wanted = partial[slice_id.workload_uid]
            message = (
                f"Node pool {name} is ready and is held until all slices of the {slice_.workload.kind} are ready: "
                f"{ready} of {wanted} are ready"
            )
            yield notice(slice_, EventReason.HELD_FOR_OTHERS, message, key=name, warning=False)


def of_splits(ctx: Round, matching: Matching, splits: Splits) -> Iterator[Notice]:
    """Yield one notice for each slice in `Splits.affected`."""
    for slice_id in sorted(splits.affected):
        slice_, pools = ctx.slices[slice_id], sorted(matching.held[slice_id] - {PoolName("")})
        shared = any(name in splits.pools for name in pools)
        remedy = remedy_of_split(slice_, is_split=slice_id in splits.slices)
        message = f"{_where(slice_, pools, shared=shared)}; {remedy}"
        # The key is constant, so that a message with other pools repeats the Event and creates no second one.
        yield notice(slice_, EventReason.SLICE_SPLIT, message, key="split")


def _where(slice_: Slice, pools: list[PoolName], *, shared: bool) -> str:
    if len(pools) == 1:
        return f"The pods of {slice_.title} share node pool {pools[0]} with pods of other slices"
    others = ", which pods of other slices use as well" if shared else ""
    return f"The pods of {slice_.title} are on {len(pools)} node pools: {first_of(pools)}{others}"


def remedy_of_split(slice_: Slice, *, is_split: bool) -> str:
    """Return the next step of a slice without a pool to itself; `is_split` if its pods are on several pools."""
    workload = slice_.workload
    restart = f"restart the {workload.owner_kind}"
    annotation = exclusive_annotation(workload)
    exclusive = annotation in {*workload.annotations, *slice_.requirements.annotations}
    if slice_.mark and not slice_.controlled:
        return "the placement policy knows no group of these pods: use a JobSet or a LeaderWorkerSet"
    if slice_.mark or (exclusive and is_split):
        cause = "the placement policy" if slice_.mark else f"the annotation {annotation}"
        return f"{cause} did not apply to some of these pods, which are older or were bound by hand: {restart}"
    policy = (
        f"install the placement policy and label namespace {workload.namespace} with "
        f"{constants.PLACEMENT}={constants.PLACEMENT_ASSIGN}"
    )
    if exclusive or not annotation:
        return f"{policy}, then {restart}"
    return f"{restart} with the annotation {annotation}: {constants.NODE_POOL}, or {policy} before the restart"


def of_stuck(found: Stuck, ctx: Round) -> Notice:
    """Return the notice about a stuck slice."""
    slice_, pool = ctx.slices[found.slice_id], ctx.owned[found.pool]
    key, message = _key_and_message(found, slice_, pool, ctx)
    return notice(slice_, EventReason.STUCK, message, key=key)


def _key_and_message(found: Stuck, slice_: Slice, pool: OwnedPool, ctx: Round) -> tuple[str, str]:
    kind, field, name = slice_.workload.owner_kind, slice_.pods_field, pool.name
    match found.kind:
        case StuckKind.HANGS:
            how = how_it_hangs(pool, ctx.now)
            waits = (
                f"{slice_.title} waits for node pool {name}, or uses it, which {how}; the administrator has an alert"
            )
            return f"hangs {name}", waits
        case StuckKind.REFUSED:
            return name, f"{refusal(found, ctx)}; the node pool is deleted, and another one is tried later"
        case StuckKind.UNSCHEDULABLE:
            return name, refusal(found, ctx)
        case StuckKind.TOO_MANY_PODS:
            pods = sum(pod.requirements.has_chips and pod.deletion_deadline is None for pod in slice_.pods)
            return f"small {name}", (
                f"{slice_.title} now has {field} {max(pods, slice_.parallelism)}, and its slice of topology "
                f"{slice_.requirements.node_selector.get(constants.TPU_TOPOLOGY)} has {slice_.nodes} hosts with one "
                f"pod each; set {field} back to {slice_.nodes}"
            )
        case StuckKind.OUTGROWN:
            return f"small {name}", (
                f"{slice_.title} now has {field} {slice_.parallelism}, for {slice_.nodes} nodes, and its node pool "
                f"{name} has {pool.pool.hosts}; for a {kind} that runs, no node pool is created or resized: set "
                f"{field} back, or suspend the {kind} and resume it when its pods have ended, for a node pool of "
                f"{slice_.nodes} nodes"
            )
        case StuckKind.UNREADY:
            return f"unready {name}", (
                f"{slice_.title} waits for node pool {name}, which has status {pool.pool.status.value}: only "
                f"{pool.ready_nodes} of {pool.pool.hosts} nodes are ready with all their chips; nodes missing: "
                f"{max(0, pool.pool.hosts - len(pool.nodes))}"
            )


def refusal(found: Stuck, ctx: Round) -> str:
    """Return the message that pods are unschedulable although their pool is ready, for Events and back-off."""
    slice_, first = ctx.slices[found.slice_id], min(found.pods, key=lambda pod: pod.name)
    message = (
        f"{len(found.pods)} pod(s) of {slice_.title} are unschedulable although node pool {found.pool} is "
        f"ready for them; the scheduler's message for {first.name}: {first.unschedulable_message}"
    )
    lacking = lacking_labels(slice_, ctx.owned[found.pool])
    if lacking:
        message += f"; its nodes do not have {', '.join(map(bounds.cut, lacking))}: remove that selector"
    return message


def leaderless(ctx: Round, matching: Matching) -> Iterator[Notice]:
    """Report unschedulable pods that get no pool, because their slice has no unschedulable leader pod."""
    limit = ctx.now - timedelta(seconds=STUCK_SECONDS)
    have_pools = {*matching.claimed.values()}
    have_pools |= {slice_id for slice_id, names in matching.held.items() if any(name in ctx.owned for name in names)}
    for slice_ in ctx.slices.values():
        awaits_request = slice_.request and slice_.leader is not None and not slice_.leader.node_name
        if slice_.pending or not slice_.served or slice_.id in have_pools or awaits_request:
            continue
        waiting = [pod for pod in unschedulable(slice_) if pod.unschedulable_since and pod.unschedulable_since <= limit]
        if waiting:
            first, leader = min(waiting, key=lambda pod: pod.name), slice_.leader
            where = f"is on node {leader.node_name}, of no node pool of it" if leader is not None else "has ended"
            message = (
                f"{len(waiting)} pod(s) of {slice_.title} are unschedulable, and no node pool is created for them: its "
                f"leader pod {where}; the scheduler's message for {first.name}: {first.unschedulable_message}; restart "
                f"the whole {slice_.title} for a node pool"
            )
            yield notice(slice_, EventReason.STUCK, message, key="leaderless")


def maintained(ctx: Round, matching: Matching) -> Iterator[Notice]:
    """Report announced or current maintenance of a host to the owners of its pool's slices."""
    for name, slice_id in _users(matching):
        node = ctx.owned[name].maintenance if name in ctx.owned else None
        if node is None or node.maintenance_at is None or slice_id not in ctx.slices:
            continue
        now = node.maintenance_at <= ctx.now
        when = "is under way" if now else f"begins at {node.maintenance_at:%Y-%m-%d %H:%M} UTC"
        message = f"Maintenance of the host of node {node.name} {when}; the pods on node pool {name} end with it"
        yield notice(ctx.slices[slice_id], EventReason.HOST_MAINTENANCE, message, key=f"{name} {when}")


def ending(ctx: Round, matching: Matching) -> Iterator[Notice]:
    """Report reservations that end soon, or before the deadline of a Job, to the owners of the slices in them."""
    for name, slice_id in _users(matching):
        pool, slice_ = ctx.owned.get(name), ctx.slices.get(slice_id)
        if pool is None or slice_ is None or slice_.leader is None or (end := pool.pool.ends_at) is None:
            continue
        deadline = slice_.leader.created_at.timestamp() + slice_.deadline_seconds
        early = slice_.deadline_seconds > 0 and deadline > end.timestamp()
        if early or pool.ends_soon:
            when = f"{end:%Y-%m-%d %H:%M} UTC{', before activeDeadlineSeconds have passed' if early else ''}"
            message = f"The {choice_of(pool.pool)} ends at {when}; the pods on node pool {name} end with it"
            key = f"{name} {when} {pool.ends_soon}"
            yield notice(slice_, EventReason.RESERVATION_ENDS, message, key=key)


def _users(matching: Matching) -> Iterator[tuple[PoolName, SliceId]]:
    yield from matching.claimed.items()
    yield from ((name, slice_id) for slice_id, names in matching.held.items() for name in names)


def alerts_of_pools(ctx: Round, hanging: Collection[PoolName], unneeded: Collection[PoolName]) -> tuple[Alert, ...]:
    """Return alerts about pools in `hanging`, and about overdue deletes of pools in `unneeded` (`_HELD_UP`)."""
    deletes, owned, now = ctx.memory.deletes, ctx.owned, ctx.now
    messages = {
        name: f"Deletion of node pool {name} is overdue since {clock(call.postponed_since, now)}: {call.reason}"
        for name, call in deletes.items()
        if name in unneeded
        and call.postponed_since is not None
        and call.postponed_since <= now - _HELD_UP
        # The API server has the workload, which the caches cannot show, so the postponement is right.
        and not (call.needed and owned[name].undecided)
    }
    for name in (name for name in owned if name in hanging):
        where = f"look at it and at its operations in {ctx.rules.supplier_name}"
        messages.setdefault(name, f"Node pool {name} {how_it_hangs(owned[name], now)}; {where}")
    return tuple(Alert(kind="pool_stuck", pool=name, message=message) for name, message in messages.items())


def alerts_of_vanished(ctx: Round, vanished: int) -> Iterator[Alert]:
    """Report that the workloads of `vanished` pools disappeared unexpectedly; no alert if 0."""
    if vanished:
        message = (
            f"The workloads of {vanished} of {len(ctx.owned)} node pools are gone, but the provisioner did not see "
            "them being deleted. Check the API server (a restored etcd?). The provisioner confirms each pool by a read "
            f"of its workload, and deletes one pool every {BRAKE_PAUSE.total_seconds():.0f} s."
        )
        yield Alert(kind="mass_disappearance", message=message)


def how_it_hangs(pool: OwnedPool, now: datetime) -> str:
    """Return a phrase with the transitional status of a pool and its start; empty for other statuses."""
    if pool.passing is None:
        return ""
    status, since = pool.passing
    what = "a status that this release does not know" if status is PoolStatus.UNKNOWN else f"status {status.value}"
    reason = f" ({pool.pool.failure.message})" if pool.pool.failure is not None else ""
    return f"has had {what} since {clock(since, now)}{reason}"
