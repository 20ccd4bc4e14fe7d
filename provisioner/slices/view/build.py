"""From the snapshot and the plan of one round to the view of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from provisioner import tpu
from provisioner.model.capacity import Node
from provisioner.model.choices import choice_of
from provisioner.model.snapshot import Snapshot
from provisioner.model.workloads import ObjectRef, Workload
from provisioner.settings import Settings
from provisioner.settings.prices import Prices
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.lifecycle import Phase
from provisioner.slices.planning.plan import Notice, Plan, PoolState
from provisioner.slices.planning.round import Derived
from provisioner.slices.planning.supply import Supply
from provisioner.slices.usage import cost_per_hour
from provisioner.slices.view import reasons
from provisioner.slices.view.capacity import capacity_view
from provisioner.slices.view.ids import id_of_slice, workload_id, workload_of_pool
from provisioner.slices.view.shortened import shortened
from provisioner.slices.view.states import state_of
from provisioner.slices.view.types import (
    HOST_ABSENT,
    HOST_CHIPS_MISSING,
    HOST_JOINING,
    HOST_READY,
    HOST_RUNNING,
    AlertView,
    NoticeView,
    PoolView,
    SliceView,
    State,
    View,
    WorkloadView,
)

#: Of several pools of one slice the first of these tells its state.
_BEST = (
    State.RUNNING,
    State.DRAINING,
    State.READY,
    State.JOINING,
    State.CREATING,
    State.WAITING,
    State.FAILED,
    State.IDLE,
    State.DELETING,
)
_UNREADY_NODES = 10


def build_view(snapshot: Snapshot, plan: Plan, settings: Settings, now: datetime) -> View:
    """Put together what people see of one round."""
    derived = plan.derived or Derived()
    slices = {slice_id: each for found in derived.found.values() for slice_id, each in found.slices.items()}
    notices = _Notices.of(plan.notices)
    states: dict[SliceId, PoolState] = {}
    for pool in plan.pools:
        if pool.slice_id is not None and _comes_first(pool, states.get(pool.slice_id)):
            states[pool.slice_id] = pool
    policy = derived.policy
    slice_views = [
        _slice_view(each, states.get(each.id), policy.why_not(each.workload, each.requirements), notices)
        for each in slices.values()
    ]
    occupied = {pod.node_name for pod in snapshot.pods if pod.node_name and not pod.finished}
    pools = [
        _pool_view(state, derived.supply[state.name], slices, occupied, settings.prices)
        for state in plan.pools
        if state.name in derived.supply
    ]
    chips: dict[str, int] = defaultdict(int)
    for each in slice_views:
        chips[each.workload] += each.chips
    with_slices = {each.workload.uid for each in slices.values()}
    told = notices.about
    workloads = [
        _workload_view(each, chips[workload_id(each.full_name)], notices)
        for uid, each in snapshot.workloads.items()
        if uid in with_slices or uid in told or any(group.template.chips for group in each.groups)
    ]
    return View(
        at=now,
        alerts=tuple(AlertView(kind=each.kind, message=shortened(each.message)) for each in plan.alerts),
        capacity=capacity_view(snapshot, plan, derived, settings, now),
        workloads=tuple(sorted(workloads, key=lambda each: (each.namespace, each.name, each.kind))),
        slices=tuple(sorted(slice_views, key=lambda each: each.id)),
        pools=tuple(sorted(pools, key=lambda each: each.name)),
    )


class _Notices:
    """Notices by the UID of the objects that they are on."""

    def __init__(self) -> None:
        self.about: dict[str, list[NoticeView]] = defaultdict(list)

    @classmethod
    def of(cls, notices: Iterable[Notice]) -> _Notices:
        """Index them: what is on a pod is about its slice, the rest about the workload."""
        index = cls()
        for each in notices:
            ref: ObjectRef = each.objects[0]
            view = NoticeView(reason=each.reason, message=shortened(each.message), warning=each.warning)
            if view not in index.about[ref.uid]:
                index.about[ref.uid].append(view)
        return index

    def on(self, uid: str) -> tuple[NoticeView, ...]:
        """Return those on one object."""
        return tuple(self.about.get(uid, ()))


def _comes_first(pool: PoolState, before: PoolState | None) -> bool:
    return before is None or _BEST.index(state_of(pool)) < _BEST.index(state_of(before))


def _slice_view(slice_: Slice, state: PoolState | None, why_not_served: str, notices: _Notices) -> SliceView:
    shape, leader, workload = slice_.shape, slice_.leader, workload_id(slice_.workload.full_name)
    found = notices.on(leader.uid) if leader is not None else ()
    created = state is not None and state.phase not in (Phase.WANTED, Phase.BLOCKED)
    return SliceView(
        id=id_of_slice(slice_),
        workload=workload,
        group=slice_.group_name,
        state=state_of(state) if state is not None else State.NONE,
        since=state.since if state is not None else None,
        reason=shortened(reasons.of_slice(slice_, state, why_not_served)),
        next_try_at=state.next_at if state is not None and not created else None,
        leader=leader.name if leader is not None else "",
        unschedulable_since=leader.unschedulable_since if leader is not None else None,
        pool=state.name if state is not None and created else "",
        accelerator=shape.accelerator.label if shape is not None else "",
        machine_type=shape.machine_type.name if shape is not None else "",
        topology=str(shape.topology) if shape is not None else "",
        chips=shape.machine_type.chips * slice_.nodes if shape is not None else 0,
        hosts=slice_.nodes,
        pods=len(slice_.pods),
        bound_pods=sum(pod.node_name != "" for pod in slice_.pods),
        notices=found,
    )


def _pool_view(
    state: PoolState,
    supply: Supply,
    slices: Mapping[SliceId, Slice],
    occupied: Collection[str],
    prices: Prices,
) -> PoolView:
    pool, known = supply.pool, tpu.machine_type(supply.pool.machine_type)
    choice = choice_of(pool)
    owner = slices.get(state.slice_id) if state.slice_id is not None else None
    chips_of_host = max(1, known[1].chips) if known is not None else 1
    hosts = "".join(sorted(_host(node, chips_of_host, occupied) for node in supply.nodes)[::-1])
    unready = sorted(node.name for node in supply.nodes if not _is_ready(node, chips_of_host))
    return PoolView(
        name=state.name,
        state=state_of(state),
        since=state.since,
        reason=shortened(reasons.of_pool(state, supply)),
        slice=id_of_slice(owner) if owner is not None else "",
        workload=workload_of_pool(state),
        namespace=state.namespace,
        zone=choice.zone,
        capacity=choice.kind.value,
        reservation=choice.reservation,
        accelerator=known[0].label if known is not None else "",
        machine_type=pool.machine_type,
        topology=pool.topology,
        chips=state.chips,
        hosts=hosts.ljust(pool.hosts, HOST_ABSENT),
        unready_nodes=tuple(unready[:_UNREADY_NODES]),
        cost_per_hour=cost_per_hour(prices, pool.machine_type, pool.capacity, len(supply.nodes)),
        delete_at=state.next_at if state.delete_reason is not None else None,
        delete_reason=reasons.of_delete(state.delete_reason) if state.delete_reason is not None else "",
    )


def _is_ready(node: Node, chips: int) -> bool:
    return node.ready and node.allocatable_chips >= chips


def _host(node: Node, chips: int, occupied: Collection[str]) -> str:
    if not node.ready:
        return HOST_JOINING
    if node.allocatable_chips < chips:
        return HOST_CHIPS_MISSING
    return HOST_RUNNING if node.name in occupied else HOST_READY


def _workload_view(workload: Workload, chips: int, notices: _Notices) -> WorkloadView:
    return WorkloadView(
        id=workload_id(workload.full_name),
        kind=workload.kind.value,
        namespace=workload.namespace,
        name=workload.name,
        uid=workload.uid,
        created_at=workload.created_at,
        state=_workload_state(workload),
        chips=chips,
        notices=notices.on(workload.uid),
    )


def _workload_state(workload: Workload) -> str:
    if workload.deleting:
        return "deleting"
    if workload.finished:
        return workload.terminal_state.lower()
    return "suspended" if workload.suspended else "lives"
