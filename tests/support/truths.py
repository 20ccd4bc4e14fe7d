"""Finds false statements in the view of one decision that users get, for any state of the world."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from provisioner import constants
from provisioner.model.workloads import Workloads
from provisioner.slices.messages import waits
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.messages.states import RUNS
from provisioner.slices.planning.contention.waits import WaitKind
from provisioner.slices.planning.plan import DeleteReason, Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.planning.spec.specification import read_ownership
from provisioner.slices.view.types import Host, PoolView, SliceView, State, View

#: Reasons of the notices that explain why a slice waits.
_WAITS = frozenset(
    {
        EventReason.CREATION_WAITING,
        EventReason.CREATION_FAILED,
        EventReason.INVALID_REQUEST,
        EventReason.LIMIT_REACHED,
    }
)
#: Possible states of a slice whose leader is unschedulable, although other pods of the slice are on a pool.
_WAITS_FOR_THE_NEXT = frozenset({State.WAITING, State.CREATING, State.JOINING, State.READY})
#: Possible states of a one-host slice that waits for a free node of a pool on which other pods run.
_WAITS_FOR_A_NODE = frozenset({State.JOINING, State.READY})
#: Tolerance for two times that should be equal but are computed in different ways.
_ROUNDING = timedelta(microseconds=1)
_ABOUT_TO_BE_SENT = "The create of its node pool is about to be sent."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """Pools with the pods that are bound to them, computed from the snapshot, independently of the decision."""

    #: Pools to which unfinished pods of a slice are bound, by slice. Pods in their grace period count.
    pools: Mapping[str, set[str]]
    #: Pools to which unfinished pods of a slice are bound, by slice. Pods that are being deleted do not count.
    staying: Mapping[str, set[str]]
    #: Number of unfinished pods on each pool. Pods in their grace period count.
    pods: Mapping[str, int]


def untrue(snapshot: Snapshot, plan: Plan, view: View) -> Iterator[str]:
    """Yield a text for each false or empty statement in a view."""
    bound = _bound(snapshot, view)
    yield from _untrue_of_all(plan, view)
    for slice_ in view.slices:
        yield from (
            f"slice {slice_.id} ({slice_.state}): {wrong}" for wrong in _untrue_of_slice(slice_, plan, view, bound)
        )
    for pool in view.pools:
        yield from (f"pool {pool.name} ({pool.state}): {wrong}" for wrong in _untrue_of_pool(pool, plan, view, bound))
        yield from (f"pool {pool.name}: {wrong}" for wrong in _false_causes(pool, plan, snapshot))


def _bound(snapshot: Snapshot, view: View) -> _Bound:
    workloads = Workloads.of(snapshot.workloads)
    shown = {pool.name for pool in view.pools}
    # Nodes may still exist after GKE no longer lists their pool.
    pool_of_node = {node.name: node.pool_name for node in snapshot.nodes if node.pool_name in shown}
    owner_of = {pool.name: found.workload for pool in snapshot.pools if (found := read_ownership(pool.labels))}
    label_of_node = {node.name: node.labels.get(constants.SLICE) for node in snapshot.nodes}
    pools: dict[str, set[str]] = defaultdict(set)
    staying: dict[str, set[str]] = defaultdict(set)
    pods: dict[str, int] = defaultdict(int)
    for pod in snapshot.pods:
        name = pool_of_node.get(pod.node_name)
        if pod.finished or name is None or (pod.deletion_deadline is not None and pod.deletion_deadline <= view.at):
            continue
        label, mark = label_of_node[pod.node_name], pod.requirements.node_selector.get(constants.SLICE)
        own = label == mark if label else owner_of.get(name) == (pod.kind, pod.namespace, pod.workload_name)
        if not (own or pod.requirements.has_chips):
            # A pod without chips uses no nodes of another slice, and no unlabelled pool of another workload.
            continue
        pods[name] += 1
        uid = workloads.uid_of(pod)
        if uid is not None and pod.group_key:
            slice_id = f"{workloads.by_uid[uid].full_name.id}/{pod.group_name}"
            pools[slice_id].add(name)
            if pod.deletion_deadline is None:
                staying[slice_id].add(name)
    return _Bound(pools=pools, staying=staying, pods=pods)


def _untrue_of_all(plan: Plan, view: View) -> Iterator[str]:
    created = {state.name: state for state in plan.pools if not state.phase.before_create}
    if {pool.name for pool in view.pools} != created.keys():
        yield f"shown are pools {sorted(pool.name for pool in view.pools)}, there are {sorted(created)}"
    wanting = {id_ for state in plan.pools if state.phase.before_create for id_ in (state.slice_id, *state.seated)}
    waiting = [slice_ for slice_ in view.slices if slice_.state in (State.WAITING, State.REJECTED)]
    # A recreated workload has the id of the old one, which may still be cached; the view then shows one of the two.
    known = plan.round.slices if plan.round is not None else {}
    named = Counter(slice_.shown_id for slice_ in known.values())
    recreated = any(named[known[id_].shown_id] > 1 for id_ in wanting if id_ in known)
    shown = len(waiting), sum(slice_.chips for slice_ in waiting)
    planned = len(wanting), sum(state.chips for state in plan.pools if state.phase.before_create)
    if shown != planned and not recreated:
        yield f"{planned} slices and chips want pools, shown are {shown}: {[slice_.id for slice_ in waiting]}"
    if len({slice_.id for slice_ in view.slices}) != len(view.slices):
        yield f"ids are not unique: {sorted(slice_.id for slice_ in view.slices)}"
    chips = dict.fromkeys(view.capacity.chips, 0)
    for pool in view.pools:
        chips[pool.state.value] += pool.chips
    for state in (State.WAITING, State.REJECTED):
        chips[state.value] += sum(slice_.chips for slice_ in view.slices if slice_.state is state)
    if chips != view.capacity.chips:
        yield f"chips by state are {view.capacity.chips}, those of pools and slices together {chips}"
    for limit in view.capacity.limits:
        if limit.name == "MAX_CHIPS" and limit.used != sum(pool.chips for pool in view.pools):
            yield f"of {limit.name} {limit.used} are used, the pools have {sum(pool.chips for pool in view.pools)}"


def _untrue_of_slice(slice_: SliceView, plan: Plan, view: View, bound: _Bound) -> Iterator[str]:
    if not slice_.reason:
        yield "nothing says why"
    if slice_.since is not None and slice_.since - view.at > _ROUNDING:
        yield f"it is so from {slice_.since} on, which is yet to come"
    if slice_.next_try_at is not None and (
        slice_.next_try_at <= view.at or slice_.state not in (State.WAITING, State.REJECTED)
    ):
        yield f"the next try was at {slice_.next_try_at}"
    pool = next((pool for pool in view.pools if pool.name == slice_.pool), None)
    if slice_.pool and pool is None:
        yield f"it is shown on pool {slice_.pool}, which is not"
    at_home = bound.pools.get(slice_.id, set())
    if slice_.state in (State.RUNNING, State.DRAINING) and slice_.pool not in at_home:
        yield f"it is shown on {slice_.pool}, its pods are on {at_home or 'none'}"
    is_next = slice_.unschedulable_since is not None and slice_.state in _WAITS_FOR_THE_NEXT
    if bound.staying.get(slice_.id) and slice_.pool not in at_home and not is_next:
        yield f"its pods are on {at_home}, it is shown on {slice_.pool or 'none'}"
    # The states of a split slice and its pool may differ. A one-host slice may wait for a free node of a pool in use.
    waits = pool is not None and slice_.id in (pool.slice, *pool.other_slices) and slice_.state in _WAITS_FOR_A_NODE
    waits = waits and slice_.bound_pods == 0 and slice_.hosts == 1
    is_split = State.SPLIT in (slice_.state, pool.state if pool is not None else None)
    if pool is not None and pool.state is not slice_.state and not is_split and not waits:
        yield f"its pool {pool.name} is {pool.state}"
    if slice_.state is State.SPLIT and not at_home and pool is not None:
        yield "it is shown as split, and none of its pods is on a pool"
    if slice_.state is State.RUNNING and len(bound.staying.get(slice_.id, ())) > 1 and _is_one_unit(slice_, plan):
        yield f"it is shown as running, and its pods are on {at_home}"
    if slice_.state is State.RUNNING and slice_.reason == RUNS and slice_.bound_pods < slice_.pods:
        yield f"{slice_.bound_pods} of {slice_.pods} pods are bound, and it is said to run"
    if slice_.state is State.WAITING:
        yield from _untrue_of_waiting(slice_, plan)


def _is_one_unit(slice_: SliceView, plan: Plan) -> bool:
    """Return whether the view shows a multi-host slice that the provisioner serves."""
    chips = math.prod(map(int, slice_.topology.split("x"))) if slice_.topology else 0
    served = {known.shown_id for known in plan.decided.slices.values() if known.served}
    return slice_.hosts > 0 and chips > slice_.chips // slice_.hosts and slice_.id in served


def _untrue_of_waiting(slice_: SliceView, plan: Plan) -> Iterator[str]:
    if slice_.unschedulable_since is None:
        yield "its leader is not unschedulable"
    planned = [state for state in plan.pools if state.phase.before_create and state.slice_id is not None]
    living = sorted(plan.decided.slices.values(), key=lambda known: known.leader is not None)
    ids = {known.shown_id: known.id for known in living}
    slice_id = ids.get(slice_.id)
    named = {state.name for state in planned if slice_id in (state.slice_id, *state.seated)}
    is_sent = any(create.request.name in named for create in plan.creates)
    if is_sent != (slice_.reason == _ABOUT_TO_BE_SENT):
        yield f"its create {'is' if is_sent else 'is not'} sent, the reason is {slice_.reason!r}"
    wait = plan.waits.get(slice_id) if slice_id is not None else None
    if (wait is None) != is_sent:
        yield f"its create {'is' if is_sent else 'is not'} sent, and the record why it waits is {wait}"
    if wait is None:
        return
    note, message = waits.note(wait, plan.decided), waits.message(wait, plan.decided)
    if slice_.reason != note.removesuffix(slice_.next_step).rstrip():
        yield f"the record says {note!r}, the reason is {slice_.reason!r}"
    told = [notice.message for notice in slice_.notices if notice.reason in _WAITS]
    false = [text for text in told if not text.startswith(message.rstrip("."))]
    if false:
        yield f"the record says {message!r}, the Events say {false}"
    if (wait.of == 0) != (wait.position == 0) or wait.position > wait.of or len(wait.ahead) >= max(1, wait.position):
        yield f"its place is {wait.position} of {wait.of}, ahead are {wait.ahead}"
    place = (wait.position, wait.of) if wait.kind in (WaitKind.LIMIT, WaitKind.CHOICES) and wait.of else None
    shown = (slice_.queue.place, slice_.queue.length) if slice_.queue is not None else None
    if shown != place:
        yield f"its place is {place} by the record, shown is {shown}"


def _untrue_of_pool(pool: PoolView, plan: Plan, view: View, bound: _Bound) -> Iterator[str]:
    state = plan.states[pool.name]  # type: ignore[index]
    if not pool.reason:
        yield "nothing says why"
    if pool.since - view.at > _ROUNDING:
        yield f"it is so from {pool.since} on, which is yet to come"
    ready = pool.hosts.count(Host.READY) + pool.hosts.count(Host.RUNNING)
    if len(pool.hosts) < state.nodes or ready != state.ready_nodes:
        yield f"{state.ready_nodes} of {state.nodes} hosts are ready, shown as {pool.hosts!r}"
    pods = bound.pods.get(pool.name, 0)
    if pods and pool.state in (State.IDLE, State.READY, State.CREATING):
        yield f"{pods} pods are on it"
    if not pods and pool.state in (State.RUNNING, State.DRAINING):
        yield "no pods are on it"
    if pods and pool.delete_at is not None and state.delete_reason is not DeleteReason.SLICE_STUCK:
        yield f"it is to be deleted at {pool.delete_at} with {pods} pods on it"
    users = {slice_id for slice_id, pools in bound.staying.items() if pool.name in pools}
    shown = {pool.slice, *pool.other_slices}
    missing = users & {slice_.id for slice_ in view.slices} - shown
    if missing:
        yield f"pods of {missing} are on it, shown are {shown}"
    if pool.state is State.IDLE and pool.slice:
        yield f"it is idle, and shown as that of {pool.slice}"
    if (pool.delete_at is None) != (pool.delete_reason == ""):
        yield f"it goes at {pool.delete_at}, the reason is {pool.delete_reason!r}"
    goes = pool.name in {delete.name for delete in plan.deletes}
    # A decided delete is postponed while the workload that the pool was created for still needs pools.
    is_kept = goes and plan.memory.deletes[pool.name].needed  # type: ignore[index]
    if goes and not is_kept and (pool.delete_at is None or pool.delete_at > view.at):
        yield f"its delete is decided, and shown for {pool.delete_at}"
    if (
        not goes
        and pool.delete_at is not None
        and pool.delete_at <= view.at
        and "Its deletion waits" not in pool.reason
    ):
        yield f"it was to be deleted at {pool.delete_at}, and is not: {pool.reason!r}"


def _false_causes(pool: PoolView, plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    """Yield the reason of an idle pool if the reason contains a false statement about the pool's workload."""
    if pool.state is not State.IDLE:
        return
    owned = plan.decided.owned[pool.name]  # type: ignore[index]
    uid = owned.ownership.workload_uid or Workloads.of(snapshot.workloads).uid_of_name.get(owned.ownership.workload)
    workload = snapshot.workloads.get(uid) if uid else None
    causes = {
        "its workload is gone": workload is None and not owned.unwatched,
        "its workload is being deleted": workload is not None and workload.deleting,
        "its workload has finished": workload is not None and workload.finished,
        "its workload is suspended": workload is not None and workload.suspended,
        "is not watched": owned.unwatched,
    }
    yield from (f"it says {pool.reason!r}" for words, holds in causes.items() if words in pool.reason and not holds)
