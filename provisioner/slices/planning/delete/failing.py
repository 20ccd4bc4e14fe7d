"""Finds pools that fail, hang or never get ready, and slices that are stuck on them; updates back-off. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TypeVar

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import Failure, FailureKind, PoolName, PoolStatus
from provisioner.model.choices import capacity_key, choice_of
from provisioner.model.fit import label_misfit, trusted, view_of_node
from provisioner.model.wording import clock
from provisioner.model.workloads import Pod, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory import backoff
from provisioner.slices.planning.memory.answers import unexplained
from provisioner.slices.planning.memory.state import Backoff, CallState, Memory, Phase
from provisioner.slices.planning.plan import Alert, Notice, notice
from provisioner.slices.planning.round import Round, Supply

#: Maximum time that a pool may have each status. GKE ends a create without capacity within 35 min, Compute Engine as
#: `find_hanging` computes. Flex-start pools wait for capacity with status RUNNING.
_LONGEST: Mapping[PoolStatus, timedelta] = MappingProxyType(
    {
        PoolStatus.PROVISIONING: timedelta(minutes=60),
        PoolStatus.STOPPING: timedelta(minutes=30),
        # A repair, or a change by another client.
        PoolStatus.RECONCILING: timedelta(minutes=30),
        PoolStatus.UNKNOWN: timedelta(minutes=10),
    }
)
#: Maximum time that a group of machines needs to fail after capacity_wait_seconds have passed.
_TO_FAIL = timedelta(minutes=10)
#: A delete that has been postponed for this long is reported as an alert.
_HELD_UP = timedelta(minutes=10)
#: Seconds after its end at which back-off is dropped.
_STALE_BACKOFF_SECONDS = 3600.0
_K = TypeVar("_K")
#: Minimum time in seconds for which pods must be unschedulable, or nodes not ready, before a slice counts as stuck.
_STUCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A slice whose pods cannot run on its pool, or whose pool hangs."""

    slice_id: SliceId
    pool: PoolName
    notice: Notice
    #: Whether all nodes of the pool are ready but the slice cannot run there, and another pool may help.
    replaceable: bool = False


def find_stuck(
    round_: Round, matching: Matching, held: Collection[WorkloadUid], hanging: Mapping[PoolName, datetime]
) -> tuple[Stuck, ...]:
    """Find slices whose pool hangs, or whose pods stay unschedulable on it, except pods of the workloads in `held`."""
    place = {slice_id: name for name, slice_id in matching.claimed.items()}
    place |= {slice_id: min(names) for slice_id, names in matching.held.items()}
    found = []
    for slice_id, name in place.items():
        slice_, pool = round_.slices.get(slice_id), round_.supply.get(name)
        if slice_ is None or pool is None or not slice_.served:
            continue
        if name in hanging:
            message = (
                f"{slice_.title} waits for node pool {name}, or uses it, which "
                f"{how_it_hangs(pool, hanging[name], round_.now)}; the administrator has an alert"
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
    entry = round_.memory.phases.get(name)
    if entry is None or pool.pool.status is PoolStatus.PROVISIONING:
        return None
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
        first = min(waiting, key=lambda pod: pod.name)
        message = (
            f"{len(waiting)} pod(s) of {slice_.title} are unschedulable although node pool {name} is "
            f"ready for them; the scheduler's message for {first.name}: {first.unschedulable_message}"
        )
        # If no node has all selected labels: the labels that the nodes were expected to get, although that was unknown.
        asked = slice_.requirements
        selected = any(not label_misfit(asked, view_of_node(node)) for node in pool.nodes)
        lacking = () if selected else trusted(asked, pool.view)
        if lacking:
            message += f"; its nodes do not have {', '.join(map(bounds.cut, lacking))}: remove that selector"
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


def to_replace(stuck: Iterable[Stuck], round_: Round, matching: Matching) -> dict[PoolName, SliceId]:
    """Return the pools to replace under stuck slices, only a share at a time; ready pools only if a setting says so."""
    settings, supply, given_up = round_.settings, round_.supply, round_.memory.given_up
    lost = {
        name: holder for name in sorted(given_up) for holder in matching.holders.get(name, ()) if holder is not None
    }
    if not settings.replace_stuck_slices:
        return lost
    going = sum(
        each.leaving or each.name in given_up or each.pool.status is PoolStatus.STOPPING for each in supply.values()
    )
    most = max(1, len(supply) * settings.replaced_share_percent // 100)
    ready = [(each.pool, each.slice_id) for each in stuck if each.replaceable]
    return {**lost, **dict(ready[: max(0, most - going)])}


def _status_of(each: Supply) -> PoolStatus:
    """Return the status of a pool, corrected by creates and deletes that its list does not show yet."""
    if each.leaving:
        return PoolStatus.STOPPING
    return each.pool.status if each.listed else PoolStatus.PROVISIONING


def find_hanging(round_: Round) -> dict[PoolName, datetime]:
    """Return the pools that have had a status too long (`_LONGEST`), with the time since which they have had it."""
    stockout = timedelta(seconds=round_.settings.capacity_wait_seconds) + _TO_FAIL
    longest = {**_LONGEST, PoolStatus.PROVISIONING: max(stockout, _LONGEST[PoolStatus.PROVISIONING])}
    since = round_.memory.status_since
    return {name: at for (name, status), at in since.items() if round_.now - at >= longest[status]}


def how_it_hangs(each: Supply, since: datetime, now: datetime) -> str:
    """Return the status of a pool, and the time since which it has it."""
    status = _status_of(each)
    what = "a status that this release does not know" if status is PoolStatus.UNKNOWN else f"status {status.value}"
    return f"has had {what} since {clock(since, now)}"


def alerts_of_pools(
    round_: Round, hanging: Mapping[PoolName, datetime], unneeded: Collection[PoolName]
) -> tuple[Alert, ...]:
    """Report the pools whose delete has been postponed for too long, and those that hang in a status."""
    deletes, supply, now = round_.memory.deletes, round_.supply, round_.now
    messages = {
        name: f"Node pool {name} should be deleted, but is not, since {clock(call.postponed_since, now)}: {call.reason}"
        for name, call in deletes.items()
        if name in unneeded
        and call.postponed_since is not None
        and call.postponed_since <= now - _HELD_UP
        # A workload that is not watched may live without limit: its pool is kept rightly, which needs no alert.
        and not (call.needed and supply[name].undecided)
    }
    for name, since in hanging.items():
        supplier = round_.rules.supplier_name
        messages.setdefault(
            name,
            f"Node pool {name} {how_it_hangs(supply[name], since, now)}; look at it and at its operations in "
            f"{supplier}",
        )
    return tuple(Alert(kind="pool_stuck", pool=name, message=message) for name, message in messages.items())


def give_up(round_: Round, matching: Matching) -> frozenset[PoolName]:
    """Return the pools to give up, which have been unready for too long, at most as many as may be replaced at a time.

    Pools on which pods may run, or whose users are unknown, are excluded. If many pools are unready, the cause is a
    zone or a device plugin, and replacing all pools would make it worse.
    """
    supply, settings = round_.supply, round_.settings
    calls = round_.memory.deletes
    held_up = {name for name, call in calls.items() if call.state is CallState.POSTPONED}
    # Pools that were given up before, unless they are in use again. A pool whose delete is postponed does not count: it
    # must not prevent the replacement of another.
    still = {
        name
        for name in (round_.memory.given_up & supply.keys()) - held_up
        if not supply[name].ready and _is_useless(supply[name], round_, matching)
    }
    waiting = sorted(
        (name in held_up, each.unready_since, name)
        for name, each in supply.items()
        if each.unready_since is not None
        and each.unready_seconds >= settings.ready_timeout_seconds
        and each.pool.hosts > 0
        and not each.leaving
        and name not in still
        and _is_useless(each, round_, matching)
    )
    listed = sum(each.listed for each in supply.values())
    most = max(1, listed * settings.replaced_share_percent // 100)
    return frozenset(still | {name for *_, name in waiting[: max(0, most - len(still))]})


def unschedulable(slice_: Slice) -> tuple[Pod, ...]:
    """Return the unschedulable pods of a slice; none for kinds without pods, whose leader pods are virtual."""
    if not slice_.workload.kind.has_pods:
        return ()
    return tuple(pod for pod in slice_.pods if pod.unschedulable_since is not None and pod.deletion_deadline is None)


def is_one_unit(slice_: Slice) -> bool:
    """Whether the pods of a slice can only run together; the pods of single-host slices run independently."""
    return slice_.shape is not None and slice_.shape.multi_host


def _is_useless(each: Supply, round_: Round, matching: Matching) -> bool:
    """Whether no pod can make progress on a pool that is not completely ready."""
    holders = matching.holders.get(each.name)
    if not holders:
        return each.name in matching.claimed or not each.undecided
    holder, *others = holders
    slice_ = round_.slices.get(holder) if holder is not None else None
    # The pods that are bound wait for those that are unschedulable.
    return not others and slice_ is not None and slice_.served and is_one_unit(slice_) and bool(unschedulable(slice_))


def learn_from_pools(round_: Round, matching: Matching) -> Memory:
    """Return the memory after pools have failed or come up since the last round."""
    memory, supply, now = round_.memory, round_.supply, round_.now
    no_reason = Failure(kind=FailureKind.UNAVAILABLE, message=f"{round_.rules.supplier_name} gives no reason.")
    backoffs = _fresh_backoffs(memory.backoffs, now)
    tallies = backoff.still_counted(memory.tallies, now)
    broken = {
        name
        for name, each in supply.items()
        if each.pool.status is PoolStatus.ERROR or (each.broken and not matching.holders.get(name))
    }
    for name in sorted(broken - memory.failed):
        pool, owner, create = supply[name].pool, round_.made_for.get(name), memory.in_making.get(name)
        lost = Failure(kind=FailureKind.UNAVAILABLE, message=unready(supply[name])) if supply[name].lost else None
        failure = pool.failure or lost or no_reason
        if owner is not None:
            tallies = backoff.create_counted(tallies, owner, supply[name].ownership.workload.namespace, now)
        digest = pool.labels.get(constants.NODEPOOL_HASH, "")
        # The capacity includes choices of the pods that only the request has, as long as its create is remembered.
        capacity = capacity_key(create.request if create is not None else pool)
        backoffs = backoff.pool_failed(backoffs, failure, capacity, digest, now, owner)
    vanished = {place for name, place in memory.places.items() if name not in supply}
    backoffs = backoff.freed(backoffs, vanished, now)
    statuses = ((name, _status_of(each)) for name, each in supply.items())
    in_making = {}
    for name, create in memory.in_making.items():
        if name not in supply:
            continue
        pool = supply[name].pool
        if pool.status in (PoolStatus.RUNNING, PoolStatus.RECONCILING):
            digest = pool.labels.get(constants.NODEPOOL_HASH, "")
            backoffs = backoff.forget(backoff.came_up(backoffs, capacity_key(create.request), now), digest)
        elif pool.status is PoolStatus.PROVISIONING or unexplained(pool):
            in_making[name] = create
    return replace(
        memory,
        backoffs=backoffs,
        slice_backoffs=_fresh_backoffs(memory.slice_backoffs, now),
        tallies=tallies,
        in_making=in_making,
        failed=frozenset(broken | {name for name in memory.failed & supply.keys() if supply[name].going}),
        given_up=give_up(round_, matching),
        places=_places(round_),
        unready_since={name: each.unready_since for name, each in supply.items() if each.unready_since is not None},
        late_since={name: each.late_since for name, each in supply.items() if each.late_since is not None},
        status_since={key: min(now, memory.status_since.get(key, now)) for key in statuses if key[1] in _LONGEST},
    )


def _places(round_: Round) -> dict[PoolName, tuple[str, str]]:
    """Return zone and machine type of the pools that had nodes: when such a pool vanishes, its capacity may be free."""
    known = round_.memory.places
    up = {
        name: (str(each.pool.zones[0]), each.pool.machine_type)
        for name, each in round_.supply.items()
        if each.nodes and each.pool.zones
    }
    return {name: place for name, place in {**known, **up}.items() if name in round_.supply}


def unready(each: Supply) -> str:
    """Return the failure message of a pool that was unready for too long."""
    words = f"Node pool {each.name} was {each.pool.status.value}, but for {each.unready_seconds / 60:.0f} min "
    return f"{words}only {each.ready_nodes} of its {each.pool.hosts} nodes were ready with all their chips."


def _fresh_backoffs(backoffs: Mapping[_K, Backoff], now: datetime) -> Mapping[_K, Backoff]:
    """Drop back-off that ended more than `_STALE_BACKOFF_SECONDS` ago.

    An end further ahead than the maximum wait for its failure was written by a clock that was ahead: it is dropped.
    """
    return {
        key: each
        for key, each in backoffs.items()
        if each.until > now - timedelta(seconds=_STALE_BACKOFF_SECONDS)
        and each.until <= now + timedelta(seconds=backoff.longest_wait_seconds(each.failure))
    }
