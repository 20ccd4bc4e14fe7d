"""Builds the view of all slices, pools and capacity from the snapshot and the plan of one decision. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from provisioner.model import bounds
from provisioner.model.capacity import Node, Zone
from provisioner.model.choices import CapacityKey, choice_of
from provisioner.model.wording import clock
from provisioner.model.workloads import Pod, Workload
from provisioner.settings import Settings
from provisioner.settings.forms import Prices
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.slices import selected_machines
from provisioner.slices.messages import states as texts
from provisioner.slices.messages import waits
from provisioner.slices.messages.notices import remedy_of_split
from provisioner.slices.planning.contention.usage import ALL, LimitScope, ScopeKind
from provisioner.slices.planning.contention.waits import WaitKind, WaitsFor
from provisioner.slices.planning.memory.answers import operations_under_way
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import Notice, Plan, PoolState
from provisioner.slices.planning.round import OwnedPool, Round, Snapshot, begin_round
from provisioner.slices.view.types import (
    AlertView,
    BackoffView,
    CapacityView,
    Host,
    NoticeView,
    PoolView,
    QueueView,
    SliceView,
    State,
    View,
    WorkloadView,
    state_of,
    state_of_use,
    workload_of_pool,
)
from provisioner.tpu import ACCELERATORS

#: States in order of precedence for a slice with several pools (`_rank`).
_BEST = (
    *(State.SPLIT, State.RUNNING, State.DRAINING, State.READY, State.JOINING, State.CREATING),
    *(State.WAITING, State.FAILED, State.IDLE, State.DELETING),
)
#: States of pools with pods. A slice that shares such a pool and has no pod on it yet is shown as joining or ready.
_WITH_PODS = (State.RUNNING, State.DRAINING)
#: Notices by the UID of their first object.
_Notices = Mapping[str, tuple[NoticeView, ...]]
#: Chips of the pools with a planned delete, and time of the first of these deletes, by scope of a limit.
_Idle = Mapping[LimitScope, tuple[int, datetime]]
_MAX_UNREADY_NODES = 10
#: Maximum number of characters of a reason without `SliceView.brief`; longer headlines exceed three lines.
_MAX_REASON = 140
#: Maximum number of characters of a message in the view: twice the maximum of an Event.
_MAX_CHARACTERS = 2048
#: Maximum number of characters of an invalid topology: the limit for values of labels.
_MAX_TOPOLOGY = 63
#: Phases in which a pool without pods is still shown as the pool of the slice that it was created for.
_ENDING = (Phase.FAILED, Phase.DELETING)
_FAILED_REQUEST = "a request whose node pool failed"
_ALIKE = "all slices that ask for the same"


def _idle(pools: Iterable[PoolView]) -> _Idle:
    found: dict[LimitScope, tuple[int, datetime]] = {}
    named = (ScopeKind.NAMESPACE, ScopeKind.ACCELERATOR)
    for pool in pools:
        if pool.delete_at is None:
            continue
        for scope in (ALL, *map(LimitScope, named, (pool.namespace, pool.accelerator))):
            chips, until = found.get(scope, (0, pool.delete_at))
            found[scope] = chips + pool.chips, min(until, pool.delete_at)
    return found


def _queue(wait: WaitsFor, slices: Mapping[SliceId, Slice], idle: _Idle) -> QueueView | None:
    scope = wait.scope
    if wait.kind not in (WaitKind.LIMIT, WaitKind.CHOICES) or not wait.of:
        return None
    idle_chips, idle_until = idle.get(scope, (0, None)) if scope is not None else (0, None)
    return QueueView(
        resource=f"the limit of {scope}" if scope is not None else "capacity that failed before",
        place=wait.position,
        length=wait.of,
        ahead=tuple(slices[slice_id].shown_id for slice_id in wait.ahead if slice_id in slices),
        users=tuple(f"{name}: {used} {scope.unit if scope is not None else 'chips'}" for name, used in wait.users),
        other_users=wait.other_users,
        idle_chips=idle_chips,
        idle_until=idle_until,
    )


def _chips(slices: Iterable[SliceView], pools: Iterable[PoolView]) -> dict[str, int]:
    chips = {state.value: 0 for state in State if state is not State.NONE}
    views: list[SliceView | PoolView] = [*pools]
    views += (slice_ for slice_ in slices if slice_.state in (State.WAITING, State.REJECTED))
    for view in views:
        chips[view.state.value] += view.chips
    return chips


def _backoffs(plan: Plan, slices: Mapping[SliceId, Slice], now: datetime) -> Iterable[BackoffView]:
    names = {slice_id: slice_.shown_id for slice_id, slice_ in slices.items()}
    for key, wait in (*plan.memory.backoffs.items(), *plan.decided.refusals.items()):
        if wait.until <= now:
            continue
        slice_id = key if isinstance(key, SliceId) else wait.slice_id
        alike = _ALIKE if isinstance(key, str) else ""
        capacity = key if isinstance(key, CapacityKey) else CapacityKey(Zone(""), "", alike, "")
        about = str(key) if key is capacity else _FAILED_REQUEST
        yield BackoffView(
            capacity=about if slice_id is None else names.get(slice_id, str(slice_id)),
            zone=capacity.zone,
            machine_type=capacity.machine_type,
            shape=capacity.shape,
            terms=capacity.terms,
            kind=wait.failure.kind.value,
            message=_shortened(wait.failure.message),
            failures=wait.failures,
            since=wait.since,
            until=wait.until,
        )


def build_view(snapshot: Snapshot, plan: Plan, settings: Settings, now: datetime) -> View:
    """Build the view of one decision; while `snapshot` is not synced, of the last decision with the current slices."""
    decided, notices = plan.decided, _by_object(plan.notices)
    slices, undecided = decided.slices, ""
    if snapshot.not_synced:
        current = begin_round(snapshot, plan.memory, settings, decided.rules, now, decided)
        slices, undecided = {**slices, **current.slices}, "; ".join(snapshot.not_synced)
    ctx = _Round(
        slices=slices,
        decided=decided,
        notices=notices,
        policy=decided.policy,
        prices=settings.prices,
        occupied={pod.node_name for pod in snapshot.pods if not pod.finished and pod.requirements.has_chips},
        split=plan.split_slices,
        memory=plan.memory,
        undecided=undecided,
        now=now,
        owned=decided.owned,
        uids={workload.full_name: uid for uid, workload in snapshot.workloads.items()},
        lingering={
            pod.node_name
            for pod in snapshot.pods
            if pod.deletion_deadline is not None and pod.deletion_deadline <= now and not pod.finished
        },
    )
    states = _states_of_slices(plan.pools, slices)
    pools = [ctx.pool_view(state) for state in plan.pools if state.name in decided.owned]
    waits_of, idle = plan.waits, _idle(pools)
    # A slice of a recreated StatefulSet may have the `shown_id` of an older slice: the slice with a leader is shown.
    leaders_last = sorted(slices.values(), key=lambda slice_: slice_.leader is not None)
    shown = {slice_.shown_id: slice_ for slice_ in leaders_last}.values()
    slice_views = [ctx.slice_view(slice_, states.get(slice_.id), waits_of.get(slice_.id), idle) for slice_ in shown]
    chips: dict[str, int] = defaultdict(int)
    for view in slice_views:
        chips[view.workload] += view.chips
    with_slices = {slice_.workload.uid for slice_ in slices.values()}
    workloads = [
        _workload_view(workload, chips[workload.full_name.id], notices, has_slices=uid in with_slices)
        for uid, workload in snapshot.workloads.items()
        if uid in with_slices or uid in notices or any(group.template.chips for group in workload.groups)
    ]
    return View(
        at=now,
        alerts=tuple(AlertView(kind=alert.kind, message=_shortened(alert.message)) for alert in plan.alerts),
        capacity=CapacityView(
            chips=_chips(slice_views, pools),
            limits=plan.limits,
            backoffs=tuple(sorted(_backoffs(plan, slices, now), key=lambda backoff: (backoff.until, backoff.capacity))),
            operations=len(operations_under_way(snapshot.pools, plan.memory)),
            operations_limit=plan.memory.operations.limit,
            creation_paused=settings.pause_creation or snapshot.paused_since is not None,
            currency=settings.prices.currency,
        ),
        workloads=tuple(sorted(workloads, key=lambda workload: (workload.namespace, workload.name, workload.kind))),
        slices=tuple(sorted(slice_views, key=lambda view: view.id)),
        pools=tuple(sorted(pools, key=lambda pool: pool.name)),
    )


def _by_object(notices: Iterable[Notice]) -> _Notices:
    about: dict[str, dict[NoticeView, None]] = defaultdict(dict)
    for notice in notices:
        view = NoticeView(reason=notice.reason, message=_shortened(notice.message), warning=notice.warning)
        about[notice.objects[0].uid][view] = None
    return {uid: tuple(views) for uid, views in about.items()}


def _states_of_slices(pools: Iterable[PoolState], slices: Mapping[SliceId, Slice]) -> dict[SliceId, PoolState]:
    """Return, for each slice that has or wants a pool, the pool that determines the state of the slice."""
    states: dict[SliceId, PoolState] = {}
    for pool in pools:
        users = _users(pool)
        if not users and pool.phase in _ENDING and not pool.holders and pool.slice_id is not None:
            # An unused pool that failed or is being deleted is shown for the slice that it was created for.
            users = (pool.slice_id,)
        for slice_id in users:
            leader = slices[slice_id].leader if slice_id in slices else None
            bound = leader is not None and leader.node_name and leader.requirements.has_chips
            elsewhere = bound and slice_id not in pool.holders
            before = states.get(slice_id)
            better = before is None or _rank(pool, slice_id, leader) < _rank(before, slice_id, leader)
            if better and not elsewhere:
                states[slice_id] = pool
    return states


def _rank(pool: PoolState, slice_id: SliceId, leader: Pod | None) -> tuple[bool, int, bool]:
    is_next = pool.phase.before_create or (pool.claimant == slice_id and pool.phase not in _ENDING)
    # A slice whose leader pod is not bound has left its old pools, even if pods still terminate there.
    left = leader is not None and not leader.node_name and not is_next
    return left, _BEST.index(state_of(pool)), slice_id not in pool.holders


def _users(pool: PoolState) -> tuple[SliceId, ...]:
    """Return the slices that have pods on a pool, count on it, or want it."""
    if pool.phase.before_create:
        return (pool.slice_id, *sorted(pool.seated)) if pool.slice_id is not None else ()
    found = {slice_id for slice_id in (*pool.holders, *pool.seated) if slice_id is not None}
    if pool.claimant is not None:
        found.add(pool.claimant)
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round(texts.Known):
    decided: Round
    notices: _Notices
    policy: ServingPolicy
    prices: Prices
    #: Names of nodes with unfinished pods that request chips.
    occupied: Collection[str]
    split: Mapping[SliceId, bool]
    #: Why this snapshot led to no decision; empty if it led to one.
    undecided: str

    def slice_view(self, slice_: Slice, state: PoolState | None, wait: WaitsFor | None, idle: _Idle) -> SliceView:
        """Return the view of a slice; `state` is the pool that determines its state."""
        shape, leader, now, brief = slice_.shape, slice_.leader, self.now, ""
        selected, topology, _ = selected_machines(slice_.requirements)
        created = state is not None and not state.phase.before_create
        wait = wait if state is not None and not created else None
        cause = waits.cause(wait) if wait is not None else ""
        if slice_.id in self.split:
            shown, reason = State.SPLIT, texts.of_split(self._events_of(slice_))
            brief = waits.joined("", remedy_of_split(slice_, is_split=self.split[slice_.id]))
        elif state is not None:
            shown = State.REJECTED if wait is not None and wait.final else state_of_use(state)
            if shown in _WITH_PODS and slice_.share is not None and slice_.id not in state.holders:
                shown = State.READY if state.ready_nodes >= state.nodes else State.JOINING
            if wait is not None:
                reason, brief = waits.note(wait, self.decided), waits.brief(wait)
            else:
                reason = texts.of_slice(slice_, state, self._events_of(slice_), self)
        elif self.undecided and slice_.pending:
            cause, brief = f"no decision since {clock(now, now)}", f"no decision since {clock(now, now)}."
            shown, reason = State.WAITING, f"Nothing has been decided since {clock(now, now)}: {self.undecided}"
        else:
            clauses = texts.of_slice_without_pool(slice_, self.policy, self)
            shown, reason, brief = State.NONE, "; ".join(clauses), waits.in_short(clauses)
        last = texts.last_failure(state, self) if state is not None else None
        failed = last.failure if last is not None else None
        step = waits.next_step(wait) if wait is not None else waits.next_step_after(failed)
        waiting_since = leader.unschedulable_since if leader is not None and cause else None
        since = state.since if state is not None else waiting_since
        since_start = state is not None and state.since_start
        if state is not None and since is not None and leader is not None:
            if leader.node_name and since < leader.created_at:
                # An earlier leader pod used the pool, so the state begins with the current leader pod.
                since, since_start = min(now, leader.created_at), False
            if not created and leader.unschedulable_since is not None:
                # `state.since` restarts if the planned pool gets another name, but the leader pod has waited longer.
                since = min(now, leader.unschedulable_since)
        return SliceView(
            id=slice_.shown_id,
            workload=slice_.workload.full_name.id,
            group=slice_.group_name,
            state=shown,
            since=since,
            since_start=since_start,
            reason=_shortened(reason.removesuffix(step).rstrip()),
            cause=cause,
            brief=_shortened(brief) if step or len(reason) > _MAX_REASON else "",
            next_step=step,
            next_try_at=state.next_at if state is not None and not created and not self.undecided else None,
            leader=leader.name if leader is not None and leader.kind.has_pods else "",
            unschedulable_since=leader.unschedulable_since if leader is not None else None,
            pool=state.name if state is not None and created else "",
            accelerator=shape.accelerator.label if shape is not None else selected if selected in ACCELERATORS else "",
            machine_type=shape.machine_type.name if shape is not None else "",
            topology=str(shape.topology) if shape is not None else bounds.cut(topology, _MAX_TOPOLOGY),
            chips=slice_.chips,
            hosts=slice_.nodes,
            pods=len(slice_.pods),
            bound_pods=sum(pod.node_name != "" for pod in slice_.pods),
            notices=self._notices_of(slice_),
            queue=_queue(wait, self.slices, idle) if wait is not None else None,
        )

    def pool_view(self, state: PoolState) -> PoolView:
        owned = self.owned[state.name]
        pool, choice, (accelerator, host_chips) = owned.pool, choice_of(owned.pool), owned.machine
        cost = self.prices.per_hour(accelerator, pool.capacity, host_chips * len(owned.nodes))
        users = [self.slices[user] for user in _users(state) if user in self.slices]
        owner = users[0] if users else None
        hosts = "".join(sorted(_host(node, owned, self.occupied) for node in owned.nodes)[::-1])
        unready = sorted(node.name for node in owned.nodes if not owned.is_ready(node))
        goes = texts.will_be_deleted(state, self.memory) and not self.undecided
        split = next((user for user in users if user.id in self.split), None)
        if state_of(state) is State.SPLIT:
            reason = texts.of_split(self._events_of(split))
        else:
            reason = texts.of_pool(state, owner, self._events_of(owner), self)
        return PoolView(
            name=state.name,
            state=state_of(state),
            since=state.since,
            since_start=state.since_start,
            reason=_shortened(reason),
            slice=owner.shown_id if owner is not None else "",
            other_slices=tuple(user.shown_id for user in users[1:]),
            workload=workload_of_pool(state),
            namespace=state.named.namespace,
            zone=choice.zone,
            capacity=choice.kind.value,
            reservation=choice.reservation,
            accelerator=accelerator,
            machine_type=pool.machine_type,
            topology=pool.topology,
            chips=state.chips,
            hosts=hosts.ljust(pool.hosts, Host.ABSENT),
            unready_nodes=tuple(unready[:_MAX_UNREADY_NODES]),
            cost_per_hour=cost,
            delete_at=state.next_at if goes else None,
            delete_reason=texts.WHY_DELETED[state.delete_reason] if goes and state.delete_reason is not None else "",
        )

    def _notices_of(self, slice_: Slice | None) -> tuple[NoticeView, ...]:
        leader = slice_.leader if slice_ is not None else None
        return self.notices.get(leader.uid, ()) if leader is not None else ()

    def _events_of(self, slice_: Slice | None) -> dict[str, str]:
        events: dict[str, str] = {}
        for notice in self._notices_of(slice_):
            events.setdefault(notice.reason, notice.message)
        return events


def _host(node: Node, owned: OwnedPool, occupied: Collection[str]) -> str:
    if not node.ready:
        return Host.JOINING
    if not owned.is_ready(node):
        return Host.CHIPS_MISSING
    return Host.RUNNING if node.name in occupied else Host.READY


def _workload_view(workload: Workload, chips: int, notices: _Notices, *, has_slices: bool) -> WorkloadView:
    state = "suspended" if workload.suspended else "lives"
    if workload.deleting:
        state = "deleting"
    elif workload.finished:
        state = workload.terminal_state.lower()
    return WorkloadView(
        id=workload.full_name.id,
        kind=workload.owner_kind,
        namespace=workload.namespace,
        name=workload.owner_name,
        uid=workload.uid,
        created_at=workload.created_at,
        state=state,
        chips=chips,
        reason=texts.of_workload(workload, has_slices=has_slices),
        notices=notices.get(workload.uid, ()),
    )


def _shortened(text: str) -> str:
    return bounds.cut(text, _MAX_CHARACTERS)
