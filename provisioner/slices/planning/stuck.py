"""Finds slices whose pods cannot run on their pool, or whose hosts or reservation end, and reports them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import Node, PoolName, PoolStatus
from provisioner.model.choices import choice_of
from provisioner.model.fit import label_misfit, tolerated, trusted, view_of_node
from provisioner.model.placement import MARKS
from provisioner.model.wording import clock
from provisioner.model.workloads import Pod, Requirements, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import Notice, notice
from provisioner.slices.planning.round import Round, Supply
from provisioner.slices.planning.seats import is_shared_by

#: Minimum time in seconds for which pods must be unschedulable, or nodes not ready, before a slice counts as stuck.
_STUCK_SECONDS = 600.0
#: Minimum time for which the scheduler must have refused ready and free nodes before their pool is deleted.
REFUSED_AFTER = timedelta(seconds=60)
#: Labels that the provisioner writes on nodes after their creation.
_WRITTEN_LATER = (*MARKS, constants.NAMESPACED_JOB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A slice whose pods cannot run on its pool, or whose pool hangs."""

    slice_id: SliceId
    pool: PoolName
    notice: Notice
    #: Whether all nodes of the pool are ready but the slice cannot run there, and another pool may help.
    replaceable: bool = False
    #: Message of the back-off if the scheduler bound no pod to the pool, which is deleted; empty otherwise.
    refusal: str = ""


def find_stuck(
    round_: Round, matching: Matching, held: Collection[WorkloadUid], hanging: Collection[PoolName]
) -> tuple[Stuck, ...]:
    """Find slices whose pool hangs, or whose pods stay unschedulable on it, except pods of the workloads in `held`."""
    place = {slice_id: name for name, slice_id in matching.claimed.items()}
    place |= {slice_id: name for name, ids in matching.seats.items() for slice_id in ids}
    place |= {slice_id: min(names) for slice_id, names in matching.held.items()}
    found = []
    for slice_id, name in place.items():
        slice_, pool = round_.slices.get(slice_id), round_.supply.get(name)
        if slice_ is None or pool is None or not slice_.served:
            continue
        if name in hanging:
            message = (
                f"{slice_.title} waits for node pool {name}, or uses it, which "
                f"{how_it_hangs(pool, round_.now)}; the administrator has an alert"
            )
            said = notice(slice_, constants.STUCK, message, key=f"hangs {name}")
            found.append(Stuck(slice_id=slice_id, pool=name, notice=said))
        elif slice_.workload.uid not in held and (waiting := unschedulable(slice_)):
            stuck = _stuck(slice_, waiting, pool, round_, matching)
            found += [stuck] if stuck is not None else []
    return tuple(found)


def _stuck(slice_: Slice, waiting: Sequence[Pod], pool: Supply, round_: Round, matching: Matching) -> Stuck | None:
    name, limit = pool.name, round_.now - timedelta(seconds=_STUCK_SECONDS)
    # The entry of the last round has the time of the phase; a phase that begins in this round has just begun.
    entry = round_.memory.pool(name).phase
    if entry is None or pool.pool.status is PoolStatus.PROVISIONING:
        return None
    if _is_refused(slice_, pool, round_, matching):
        refusal, _ = _message_of_ready(slice_, waiting, pool)
        message = f"{refusal}; the node pool is deleted, and another one is tried later"
        said = notice(slice_, constants.STUCK, message, key=name)
        return Stuck(slice_id=slice_.id, pool=name, notice=said, refusal=refusal)
    waiting = [pod for pod in waiting if pod.unschedulable_since and pod.unschedulable_since <= limit]
    if not waiting:
        return None
    # A pool whose nodes became ready just now, or that was just chosen, has not been ready for its pods for long.
    long_ready = pool.ready and entry.phase in (Phase.READY, Phase.IN_USE) and entry.since <= limit
    key: str = name
    replaceable = False
    kind, field = slice_.workload.owner_kind, slice_.pods_field
    if long_ready and is_one_unit(slice_) and slice_.parallelism > slice_.nodes:
        message = (
            f"{slice_.title} now has {field} {slice_.parallelism}, and its slice of topology "
            f"{slice_.requirements.node_selector.get(constants.TPU_TOPOLOGY)} has {slice_.nodes} hosts with one pod "
            f"each; set {field} back to {slice_.nodes}"
        )
        key = f"small {name}"
    elif long_ready and slice_.nodes > pool.pool.hosts:
        message = (
            f"{slice_.title} now has {field} {slice_.parallelism}, for {slice_.nodes} nodes, and its node pool {name} "
            f"has {pool.pool.hosts}; for a {kind} that runs, no node pool is created or resized: set {field} back, or "
            f"suspend the {kind} and resume it when its pods have ended, for a node pool of {slice_.nodes} nodes"
        )
        key = f"small {name}"
    elif long_ready:
        message, lacking = _message_of_ready(slice_, waiting, pool)
        # If the nodes lack a label that nothing sets, each new pool would lack it as well. Pods of single-host slices
        # run without the pods that are unschedulable.
        replaceable = not lacking and (not matching.holders.get(name) or is_one_unit(slice_))
    elif pool.unready_since is not None and pool.unready_since <= limit:
        missing = max(0, pool.pool.hosts - len(pool.nodes))
        message = (
            f"{slice_.title} waits for node pool {name}, which has status {pool.pool.status.value}: only "
            f"{pool.ready_nodes} of {pool.pool.hosts} nodes are ready with all their chips; nodes missing: {missing}"
        )
        key = f"unready {name}"
    else:
        return None
    said = notice(slice_, constants.STUCK, message, key=key)
    return Stuck(slice_id=slice_.id, pool=name, notice=said, replaceable=replaceable)


def _message_of_ready(slice_: Slice, waiting: Sequence[Pod], pool: Supply) -> tuple[str, tuple[str, ...]]:
    """Return that pods are unschedulable on a ready pool, and the selected labels that no node of it has."""
    first = min(waiting, key=lambda pod: pod.name)
    message = (
        f"{len(waiting)} pod(s) of {slice_.title} are unschedulable although node pool {pool.name} is "
        f"ready for them; the scheduler's message for {first.name}: {first.unschedulable_message}"
    )
    # If no node has all selected labels: the labels that the nodes were expected to get, although that was unknown.
    asked = slice_.requirements
    selected = any(not label_misfit(asked, view_of_node(node)) for node in pool.nodes)
    lacking = () if selected else trusted(asked, pool.view)
    if lacking:
        message += f"; its nodes do not have {', '.join(map(bounds.cut, lacking))}: remove that selector"
    return message, lacking


def _is_refused(slice_: Slice, pool: Supply, round_: Round, matching: Matching) -> bool:
    """Whether the scheduler binds no pod of a slice to the ready and free pool that was created for it.

    A minute is enough if the scheduler has looked at the nodes, as a changed message or a younger pod shows, and the
    nodes are prepared; otherwise 10 minutes, because the scheduler retries every unschedulable pod within 5.5 minutes.
    """
    leader, claim = slice_.leader, round_.memory.slice(slice_.id).claim
    own = round_.made_for.get(pool.name) == slice_.id or is_shared_by(pool, slice_)
    is_free = own and pool.ready and not matching.holders.get(pool.name)
    if leader is None or leader.unschedulable_since is None or not is_free:
        return False
    if claim is None or claim.since is None or (claim.pool, claim.has_pods) != (pool.name, True):
        return False
    if any(node.cordoned and not node.cordoned_by_us for node in pool.nodes):
        return False
    looked = claim.looked or leader.unschedulable_since > claim.since
    # The scheduler waits up to 10 minutes for new volumes of a pod, whose last message it keeps.
    soon = looked and leader.requirements.volumes is None
    soon = soon and all(_is_prepared(node, leader.requirements) for node in pool.nodes)
    least = REFUSED_AFTER if soon else timedelta(seconds=_STUCK_SECONDS)
    return round_.now - max(leader.unschedulable_since, claim.since) >= least


def _is_prepared(node: Node, asked: Requirements) -> bool:
    """Whether a node has the labels that the provisioner writes, and no taint, such as that of an agent that starts."""
    taints = (taint for taint in node.taints if taint.effect != "PreferNoSchedule")
    selected = ((key, asked.node_selector[key]) for key in _WRITTEN_LATER if key in asked.node_selector)
    tolerates = all(tolerated(taint, asked.tolerations) for taint in taints)
    return tolerates and all(node.labels.get(key) == value for key, value in selected)


def find_leaderless(round_: Round, matching: Matching) -> tuple[Notice, ...]:
    """Report pods that wait for a pool that is not created, because the leader of their slice does not wait."""
    limit = round_.now - timedelta(seconds=_STUCK_SECONDS)
    have_pools = {*matching.claimed.values()}
    have_pools |= {slice_id for slice_id, names in matching.held.items() if not names.isdisjoint(round_.supply)}
    found = []
    for slice_ in round_.slices.values():
        if slice_.pending or not slice_.served or slice_.id in have_pools:
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
            found.append(notice(slice_, constants.STUCK, message, key="leaderless"))
    return tuple(found)


def find_maintained(round_: Round, matching: Matching) -> tuple[Notice, ...]:
    """Notify the owners of slices whose hosts are taken down for maintenance."""
    found = []
    for name, slice_id in _users(matching):
        node = round_.supply[name].maintenance if name in round_.supply else None
        if node is None or node.maintenance_at is None or slice_id not in round_.slices:
            continue
        now = node.maintenance_at <= round_.now
        when = "is under way" if now else f"begins at {node.maintenance_at:%Y-%m-%d %H:%M} UTC"
        message = f"Maintenance of the host of node {node.name} {when}; the pods on node pool {name} end with it"
        found.append(notice(round_.slices[slice_id], constants.HOST_MAINTENANCE, message, key=f"{name} {when}"))
    return tuple(found)


def find_ending(round_: Round, matching: Matching) -> tuple[Notice, ...]:
    """Notify the owners of slices whose reservation ends soon, or before the deadline of their Job."""
    found = []
    for name, slice_id in _users(matching):
        each, slice_ = round_.supply.get(name), round_.slices.get(slice_id)
        if each is None or slice_ is None or slice_.leader is None or (end := each.pool.ends_at) is None:
            continue
        deadline = slice_.leader.created_at.timestamp() + slice_.deadline_seconds
        early = slice_.deadline_seconds > 0 and deadline > end.timestamp()
        if early or each.ends_soon:
            when = f"{end:%Y-%m-%d %H:%M} UTC{', before activeDeadlineSeconds have passed' if early else ''}"
            message = f"The {choice_of(each.pool)} ends at {when}; the pods on node pool {name} end with it"
            key = f"{name} {when} {each.ends_soon}"
            found.append(notice(slice_, constants.RESERVATION_ENDS, message, key=key))
    return tuple(found)


def _users(matching: Matching) -> Iterator[tuple[PoolName, SliceId]]:
    """Yield the pools that slices count on or hold, each with its slice."""
    yield from matching.claimed.items()
    yield from ((name, slice_id) for slice_id, names in matching.held.items() for name in names)


def unschedulable(slice_: Slice) -> tuple[Pod, ...]:
    """Return the unschedulable pods of a slice; none for kinds without pods, whose leader pods are virtual."""
    if not slice_.workload.kind.has_pods:
        return ()
    return tuple(pod for pod in slice_.pods if pod.unschedulable_since is not None and pod.deletion_deadline is None)


def is_one_unit(slice_: Slice) -> bool:
    """Whether the pods of a slice can only run together; the pods of single-host slices run independently."""
    return slice_.shape is not None and slice_.shape.multi_host


def how_it_hangs(pool: Supply, now: datetime) -> str:
    """Return the status that a pool should not keep, its start, and its reason if known; empty for other statuses."""
    if pool.passing is None:
        return ""
    status, since = pool.passing
    what = "a status that this release does not know" if status is PoolStatus.UNKNOWN else f"status {status.value}"
    reason = f" ({pool.pool.failure.message})" if pool.pool.failure is not None else ""
    return f"has had {what} since {clock(since, now)}{reason}"
