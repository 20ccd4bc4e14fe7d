"""Finds slices whose pods cannot run on their pool. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from provisioner import constants
from provisioner.model.capacity import Node, PoolName, PoolStatus
from provisioner.model.fit import label_misfit, tolerated, trusted, view_of_node
from provisioner.model.placement import MARKS
from provisioner.model.workloads import Pod, Requirements, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.round import OwnedPool, Round
from provisioner.slices.planning.seats import is_shared_by

#: Usual time in seconds for which pods are unschedulable, or nodes not ready, before a slice counts as stuck.
STUCK_SECONDS = 600.0
#: Time without a bound pod after which a ready and free pool may count as refused by the scheduler.
REFUSED_AFTER = timedelta(seconds=60)
#: Labels that the provisioner writes on existing nodes.
_WRITTEN_LATER = (*MARKS, constants.NAMESPACED_JOB)


class StuckKind(Enum):
    """Reason why a slice counts as stuck."""

    HANGS = "hangs"
    #: The scheduler binds no pod to a ready pool that the slice shares or that was created for it. The pool is deleted.
    REFUSED = "refused"
    #: Pods of the slice remain unschedulable although the pool is ready.
    UNSCHEDULABLE = "unschedulable"
    #: The slice has more pods than its topology has hosts. Pods on all its hosts may run, so the pool is kept.
    TOO_MANY_PODS = "too_many_pods"
    #: The slice needs more nodes than its pool has.
    OUTGROWN = "outgrown"
    #: Nodes of the pool have been missing or not ready for too long.
    UNREADY = "unready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A slice whose pods cannot run on its pool, or whose pool hangs."""

    slice_id: SliceId
    pool: PoolName
    kind: StuckKind
    #: Unschedulable pods to name in the message; may be empty.
    pods: tuple[Pod, ...] = ()
    #: Whether a new pool may help, although all nodes of `pool` are ready.
    replaceable: bool = False


def find_stuck(
    ctx: Round, matching: Matching, held: Collection[WorkloadUid], hanging: Collection[PoolName]
) -> tuple[Stuck, ...]:
    """Find slices with a pool in `hanging`, or with pods that remain unschedulable, except pods of `held` workloads."""
    pool_of = {slice_id: name for name, slice_id in matching.claimed.items()}
    pool_of |= {slice_id: name for name, ids in matching.seats.items() for slice_id in ids}
    pool_of |= {slice_id: min(names) for slice_id, names in matching.held.items()}
    found = []
    for slice_id, name in pool_of.items():
        slice_, pool = ctx.slices.get(slice_id), ctx.owned.get(name)
        if slice_ is None or pool is None or not slice_.served:
            continue
        if name in hanging:
            found.append(Stuck(slice_id=slice_id, pool=name, kind=StuckKind.HANGS))
        elif slice_.workload.uid not in held and (waiting := unschedulable(slice_)):
            stuck = _stuck(slice_, waiting, pool, ctx, matching)
            found += [stuck] if stuck is not None else []
    return tuple(found)


def _stuck(slice_: Slice, waiting: Sequence[Pod], pool: OwnedPool, ctx: Round, matching: Matching) -> Stuck | None:
    name, limit = pool.name, ctx.now - timedelta(seconds=STUCK_SECONDS)
    # The phase of the last decision is enough: a phase that begins in this decision has not lasted long.
    entry = ctx.memory.pool(name).phase
    if entry is None or pool.pool.status is PoolStatus.PROVISIONING:
        return None
    if _is_refused(slice_, pool, ctx, matching):
        return Stuck(slice_id=slice_.id, pool=name, kind=StuckKind.REFUSED, pods=tuple(waiting))
    pods = tuple(pod for pod in waiting if pod.unschedulable_since and pod.unschedulable_since <= limit)
    if not pods:
        return None
    # A pool is not `long_ready` if it became ready or was claimed recently, or if its slice waits for its gang.
    claim = matching.claims.get(slice_.id)
    waits = claim is not None and (claim.since is None or claim.since > limit)
    long_ready = pool.ready and entry.phase in (Phase.READY, Phase.IN_USE) and entry.since <= limit and not waits
    scaled_up = long_ready and is_one_unit(slice_) and slice_.parallelism > slice_.nodes
    if scaled_up or not lacks_pods(slice_):
        return Stuck(slice_id=slice_.id, pool=name, kind=StuckKind.TOO_MANY_PODS)
    if long_ready and slice_.nodes > pool.pool.hosts:
        return Stuck(slice_id=slice_.id, pool=name, kind=StuckKind.OUTGROWN)
    if long_ready:
        lacking = lacking_labels(slice_, pool)
        # A new pool does not help if its nodes lack the label as well. A pool with independently running pods is kept.
        may_help = not lacking and (not matching.holders.get(name) or is_one_unit(slice_))
        return Stuck(slice_id=slice_.id, pool=name, kind=StuckKind.UNSCHEDULABLE, pods=pods, replaceable=may_help)
    if pool.unready_since is not None and pool.unready_since <= limit:
        return Stuck(slice_id=slice_.id, pool=name, kind=StuckKind.UNREADY)
    return None


def lacking_labels(slice_: Slice, pool: OwnedPool) -> tuple[str, ...]:
    """Return the selected labels that were not predicted for the pool's nodes; empty if a node has all of them."""
    requirements = slice_.requirements
    selected = any(not label_misfit(requirements, view_of_node(node)) for node in pool.nodes)
    return () if selected else trusted(requirements, pool.view)


def _is_refused(slice_: Slice, pool: OwnedPool, ctx: Round, matching: Matching) -> bool:
    """Whether the scheduler binds no pod of a slice to a ready and free pool that it shares or that was created for it.

    One minute without a bound pod is enough if the pods have no volumes and no gang, all nodes are prepared
    (`_is_prepared`), and the scheduler has tried the leader pod since the slice began to count on the pool. Otherwise
    the time is 10 minutes, because the scheduler retries each pod within 5.5 minutes. For a gang, the time usually
    begins when all its slices have ready pools (`Claim.since`).
    """
    leader, claim = slice_.leader, matching.claims.get(slice_.id)
    for_slice = ctx.created_for.get(pool.name) == slice_.id or is_shared_by(pool, slice_)
    is_free = for_slice and pool.ready and not matching.holders.get(pool.name)
    if leader is None or leader.unschedulable_since is None or not is_free:
        return False
    if claim is None or claim.since is None or (claim.pool, claim.has_pods) != (pool.name, True):
        return False
    if any(node.cordoned and not node.cordoned_by_us for node in pool.nodes):
        return False
    # The scheduler has tried the leader pod if the pod's message or `unschedulable_since` is newer than the claim.
    looked = claim.looked or leader.unschedulable_since > claim.since
    # The scheduler waits up to 10 minutes for volumes, without changing its message. The message for a pod of a gang
    # also changes while other pods of the gang do not fit.
    soon = looked and leader.requirements.volumes is None and not leader.gang
    soon = soon and all(_is_prepared(node, leader.requirements) for node in pool.nodes)
    least = REFUSED_AFTER if soon else timedelta(seconds=STUCK_SECONDS)
    return ctx.now - max(leader.unschedulable_since, claim.since) >= least


def _is_prepared(node: Node, requirements: Requirements) -> bool:
    """Whether a node has the selected labels that the provisioner writes, and no taint that excludes the pods."""
    taints = (taint for taint in node.taints if taint.effect != "PreferNoSchedule")
    selected = ((key, requirements.node_selector[key]) for key in _WRITTEN_LATER if key in requirements.node_selector)
    tolerates = all(tolerated(taint, requirements.tolerations) for taint in taints)
    return tolerates and all(node.labels.get(key) == value for key, value in selected)


def unschedulable(slice_: Slice) -> tuple[Pod, ...]:
    """Return the unschedulable pods of a slice that are not being deleted; empty for kinds whose pods are virtual."""
    if not slice_.workload.kind.has_pods:
        return ()
    return tuple(pod for pod in slice_.pods if pod.unschedulable_since is not None and pod.deletion_deadline is None)


def lacks_pods(slice_: Slice) -> bool:
    """Whether pods that the slice needs are unschedulable.

    If the slice has several hosts, and all of them have pods, it needs no further pods with chips. The indexes of the
    pods do not matter, because the scheduler binds pods in any order.
    """
    bound = [pod for pod in slice_.pods if pod.node_name and pod.deletion_deadline is None]
    full = is_one_unit(slice_) and sum(pod.requirements.has_chips for pod in bound) >= slice_.nodes
    return any(not (full and pod.requirements.has_chips) for pod in unschedulable(slice_))


def is_one_unit(slice_: Slice) -> bool:
    """Whether the pods of a slice can only run together, because the slice has several hosts."""
    return slice_.shape is not None and slice_.shape.multi_host
