"""Creates texts about the states of workloads, slices and pools, such as why a pool is kept or deleted. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from provisioner.model.capacity import CapacityKind, PoolName, PoolStatus
from provisioner.model.choices import capacity_key
from provisioner.model.fit import misfit
from provisioner.model.wording import clock
from provisioner.model.workloads import Workload, WorkloadKind, WorkloadName, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.messages.waits import OTHER_OPERATIONS, failure_in_words
from provisioner.slices.planning.delete.failing import unready
from provisioner.slices.planning.delete.unneeded import BRAKE_PAUSE
from provisioner.slices.planning.memory.backoff import probing
from provisioner.slices.planning.memory.state import Backoff, CallState, Memory, Phase
from provisioner.slices.planning.plan import DeleteReason, DeleteWait, PoolState
from provisioner.slices.planning.refusals import Refusal
from provisioner.slices.planning.round import OwnedPool

#: Reason of a running slice or pool that needs no attention.
RUNS: Final = "Pods run on it."
WHY_DELETED = {
    DeleteReason.WORKLOAD_GONE: "its workload is gone",
    DeleteReason.WORKLOAD_FINISHED: "its workload has finished",
    DeleteReason.WORKLOAD_SUSPENDED: "its workload is suspended",
    DeleteReason.POOL_FAILED: "it failed",
    DeleteReason.NO_READY_NODES: "not all of its hosts became ready in time",
    DeleteReason.RESERVATION_ENDED: "its reservation has ended",
    DeleteReason.SLICE_STUCK: "the pods of its slice cannot be scheduled on it",
    DeleteReason.SLICE_ELSEWHERE: "the pods of its slice run on other nodes",
    DeleteReason.GIVEN_BACK: "its workload starts with all slices or none, and not all of them could be created",
    DeleteReason.NOT_NEEDED: "its workload does not need it any more",
}
#: Why a delete waits, as users read it.
WHY_LATE = {
    DeleteWait.OPERATIONS: OTHER_OPERATIONS,
    DeleteWait.BRAKE: (
        "its turn: the workloads of many node pools vanished at once, so one node pool every "
        f"{BRAKE_PAUSE.total_seconds():.0f} s is deleted"
    ),
}
WHY_UNUSED = {
    Refusal.TURN: "its workload waits for its turn to start all slices together, or can never start them",
    Refusal.FORGED: "its pods select a label that the provisioner writes for slices of another namespace",
    Refusal.EXPIRED: "it has counted on ready node pools for too long while none of its pods was bound",
    Refusal.IN_USE: "pods that should have ended are still on it",
    Refusal.UNDECIDED: "a workload that is not watched, or a machine type that is not in the catalogue, may use it",
    Refusal.NOT_LENDABLE: "its host or its reservation ends soon, or its nodes do not become ready",
    Refusal.ELSEWHERE: "the pods of the slice run on other nodes",
    Refusal.HOST: "the leader pod selects a node that is not in it",
    Refusal.SIZE: "the number of hosts differs, or it is for another child Job",
    Refusal.MISFIT: "the pods do not fit",
    Refusal.NO_NODES: "it has no nodes, and gets them only for the pods of the slice that it was created for",
    Refusal.SETTINGS: "the pods request other node settings",
    Refusal.ZONE: "all node pools of the workload must be in another zone",
    Refusal.LIMIT: "a limit does not allow its chips for the slice",
}
#: Reasons of Events whose messages explain the state of a slice that has a pool.
_UNBOUND = frozenset(
    {EventReason.HELD_FOR_OTHERS, EventReason.STUCK, EventReason.HOST_MAINTENANCE, EventReason.RESERVATION_ENDS}
)
#: Age from which a ready node without chips and without pods of the slice counts as having lost its chips.
_CHIPS_SHOWN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Data of one round for the texts about its slices and pools."""

    memory: Memory
    now: datetime
    owned: Mapping[PoolName, OwnedPool]
    slices: Mapping[SliceId, Slice]
    uids: Mapping[WorkloadName, WorkloadUid]
    #: Names of nodes with unfinished pods whose grace period has passed.
    lingering: Collection[str]


def of_workload(workload: Workload, *, has_slices: bool) -> str:
    """Return why a workload has no slices; empty if it has slices, or is suspended, finished or being deleted."""
    if has_slices or not workload.lives:
        return ""
    if workload.problem:
        return f"No node pools are created: {'; '.join(workload.problem)}."
    if workload.managed_by:
        return f"spec.managedBy is {workload.managed_by}: another controller runs it, so it gets no node pools here."
    if workload.capacity_request is not None:
        return "The PodTemplate or the workload that it names does not exist."
    return "It has no pods that request TPUs."


def of_slice(slice_: Slice, state: PoolState, events: Mapping[str, str], known: Known) -> str:
    """Return why a slice waits, or the state of its pods and pool; `events` has messages by reason of the Event."""
    owned = known.owned.get(state.name)
    if owned is None:
        return "The create of its node pool is about to be sent."
    words = _of_use(slice_, state, owned, events) or _of_phase(state, owned, known)
    if (last := last_failure(state, known)) is not None:
        about = f"{failure_in_words(last.failure.kind.value)} since {clock(last.since, known.now)}"
        if slice_.leader is not None and slice_.leader.unschedulable_since is not None:
            about += f", unschedulable since {clock(slice_.leader.unschedulable_since, known.now)}"
        words = f"Attempt {last.failures + 1} ({about}): {words}"
    return _with_lost_chips(words, slice_, state, known)


def last_failure(state: PoolState, known: Known) -> Backoff | None:
    """Return the stockout or quota failure in the capacity of a pool that is coming up, unless pools came up since."""
    owned = known.owned.get(state.name)
    if owned is None or state.phase not in (Phase.CREATING, Phase.PROVISIONING):
        return None
    last = probing(known.memory.backoffs, capacity_key(owned.pool))
    return last if last is not None and not last.came_up else None


def of_split(events: Mapping[str, str]) -> str:
    """Return where the pods of a split slice are; `events` has messages by reason of the Event."""
    # `events` contains only Events on leader pods. Without a leader pod, the Event is on the workload.
    unknown = "Pods of this slice, or of one that shares the node pool, are on several node pools."
    return events.get(EventReason.SLICE_SPLIT, unknown)


def _with_lost_chips(words: str, slice_: Slice, state: PoolState, known: Known) -> str:
    """Append a warning if a node has lost its chips, because the kubelet would fail pods that restart there."""
    if state.phase not in (Phase.PROVISIONING, Phase.IN_USE):
        return words
    for node in known.owned[state.name].nodes:
        if not node.ready or node.allocatable_chips:
            continue
        pod = next((f"pod {pod.name}" for pod in slice_.pods if pod.node_name == node.name), "a pod")
        is_new = known.now - node.created_at < _CHIPS_SHOWN and pod == "a pod"
        if not is_new:
            return (
                f"{words.rstrip('.')}. Node {node.name} is ready without its chips, as after maintenance of its host: "
                f'{pod} that is admitted there again fails with "no healthy devices present" until they are back.'
            )
    return words


def _of_use(slice_: Slice, state: PoolState, owned: OwnedPool, events: Mapping[str, str]) -> str:
    """Return how a slice uses its pool; empty if the phase of the pool explains more."""
    leader, workload, nodes = slice_.leader, slice_.workload, {node.name for node in owned.nodes}
    if slice_.id not in state.holders and leader is not None and leader.node_name and leader.node_name not in nodes:
        return (
            f"The leader pod of its slice runs on node {leader.node_name}, which is not known to be in this node pool."
        )
    if state.phase in (Phase.FAILED, Phase.DELETING, Phase.CREATING):
        return ""
    if unbound := next((message for event, message in events.items() if event in _UNBOUND), ""):
        return unbound
    if state.phase is Phase.IN_USE:
        return _of_unbound_pods(slice_, state)
    kind = workload.owner_kind
    if state.phase is Phase.READY and not workload.kind.has_pods:
        whose = "workload that it fits" if slice_.from_buffer else "workload that uses the request"
        return f"All hosts are ready and wait for the pods of the {whose}."
    if workload.suspended:
        return f"The {kind} is suspended, and KEEP_POOLS_OF_SUSPENDED_JOBSETS keeps its node pool."
    if state.phase is Phase.READY and not slice_.pods:
        return f"All hosts are ready. The slice has no pods at the moment; its node pool is kept until the {kind} ends."
    return ""


def _of_unbound_pods(slice_: Slice, state: PoolState) -> str:
    waiting = sorted((pod.name, pod.unschedulable_message) for pod in slice_.pods if not pod.node_name)
    if not waiting:
        return ""
    bound, ends = len(slice_.pods) - len(waiting), sum(pod.deletion_deadline is not None for pod in slice_.pods)
    words = f"{bound} of {len(slice_.pods)} pods are bound to nodes"
    words += f", {ends} are being deleted" if ends else ""
    words += f"; {_hosts_ready(state)}."
    messages = (f" The scheduler's message for {name}: {message}" for name, message in waiting if message)
    return words + next(messages, "")


def of_slice_without_pool(slice_: Slice, policy: ServingPolicy, known: Known) -> tuple[str, ...]:
    """Return why a slice has no pool and none is planned for it, in clauses; the next step is the last of several."""
    workload, leader = slice_.workload, slice_.leader
    if workload.problem:
        *clauses, last = f"No node pools are created: {workload.problem[0]}", *workload.problem[1:]
        return *clauses, f"{last}."
    if workload.suspended:
        return (f"The {workload.kind.value} is suspended.",)
    if leader is not None and leader.node_name:
        return (f"Its leader pod runs on node {leader.node_name}, which is in no node pool of the provisioner.",)
    if (not_served := policy.why_not(workload, slice_.requirements)) is not None:
        *clauses, last = f"The provisioner does not serve it: {not_served.why[0]}", *not_served.why[1:]
        return *clauses, f"{last}."
    if slice_.request:
        request = f"ProvisioningRequest {slice_.request}"
        if WorkloadName(WorkloadKind.PROVISIONING_REQUEST, workload.namespace, slice_.request) not in known.uids:
            unread = "the provisioner cannot read ProvisioningRequests or PodTemplates: see `watch.failed` in its log."
            return (f"{request} may have node pools for it, but {unread}",)
        return f"{request} requests its node pool", "the status of the request says whether it is ready."
    if not workload.kind.has_pods:
        return ("Its node pool serves the pods that use the request.",)
    if leader is None and slice_.pods:
        return ("Its leader pod does not exist or is being deleted.",)
    if leader is None:
        why, *step = _without_pods(slice_)
        return f"It has no pods: they have not been created yet, or they have ended. {why}", *step
    if leader.unschedulable_since is None:
        return "The scheduler has not reported its leader pod as unschedulable", "no node pool is created before that."
    return (f"Its leader pod cannot be scheduled: {leader.unschedulable_message or 'no reason is given'}",)


def _without_pods(slice_: Slice) -> tuple[str, ...]:
    name, group = slice_.workload.name, slice_.group_name
    groups = (job for job in slice_.workload.groups if group.startswith(f"{name}-{job.name}-"))
    if after := next((job.after for job in groups), ""):
        add = "add a node without TPUs for them, because no node pool is created for pods that request no TPUs."
        return (f"Its pods are created once those of replicated job {after} are ready: if these wait for room, {add}",)
    asking = f"{slice_.workload.owner_kind.lower()}/{slice_.workload.owner_name}"
    if slice_.workload.kind is WorkloadKind.JOBSET:
        asking += f" job/{group}"
    if slice_.workload.kind is WorkloadKind.LEADER_WORKER_SET:
        asking += f" statefulset/{name}"
    return "No node pool is created before its leader pod exists", (
        "if the leader pod does not come, see the Events of "
        f"`kubectl describe {asking} --namespace={slice_.workload.namespace}`."
    )


def of_pool(state: PoolState, owner: Slice | None, events: Mapping[str, str], known: Known) -> str:
    """Explain the state of a pool, such as why it is kept; `owner` is a slice of the pool, None without one."""
    owned = known.owned[state.name]
    if state.phase is Phase.IDLE:
        words = _of_idle(state, owned, known)
    else:
        words = of_slice(owner, state, events, known) if owner is not None else _of_phase(state, owned, known)
    held_up = state.delete_reason is not None and not is_kept(state, known.memory)
    return f"{words}{_held_up(state, known)}" if held_up else words


def will_be_deleted(state: PoolState, memory: Memory) -> bool:
    """Return whether a delete is planned and possible: the gate needs the namespace of the workload or stuck slice."""
    known = state.named.namespace != "" or state.delete_reason is DeleteReason.SLICE_STUCK
    return state.delete_reason is not None and known and not is_kept(state, memory)


def is_kept(state: PoolState, memory: Memory) -> bool:
    """Return whether an idle pool is kept, because the API server shows that its workload still needs pools."""
    call = memory.pool(state.name).delete
    return call is not None and call.needed and state.phase is Phase.IDLE


def _of_idle(state: PoolState, owned: OwnedPool, known: Known) -> str:
    if owned.pool.status is PoolStatus.UNKNOWN:
        supplier = owned.rules.supplier_name
        return f"{supplier} gives it a status that this release does not know: it is neither used nor deleted."
    if is_kept(state, known.memory):
        unseen = f", {_unseen(owned)}" if state.undecided else ", as the API server says"
        return f"It is kept for its workload{unseen}: {state.note}."
    if state.undecided:
        return (
            f"It was created for {state.named.text}, {_unseen(owned)}: before it is deleted, the provisioner asks the "
            "API server whether that still exists."
        )
    return f"It is not needed: {_why_unneeded(state, owned, known)}.{_unused(state, owned, known)}"


def _unused(state: PoolState, owned: OwnedPool, known: Known) -> str:
    """Return why a waiting slice of the same accelerator and topology does not use the idle pool; empty without one."""
    if state.unused is None:
        return ""
    slice_id, refusal = state.unused
    slice_, why = known.slices[slice_id], WHY_UNUSED[refusal]
    if refusal is Refusal.MISFIT:
        misfits = (misfit(slice_.requirements, view) for view in (owned.view, *owned.offered))
        why = "; ".join(next(filter(None, misfits), ("too few of its nodes accept pods",)))
    return f" Slice {slice_.shown_id} waits, and does not use it: {why}."


def _unseen(owned: OwnedPool) -> str:
    if owned.unwatched:
        return "whose namespace or kind is not watched"
    return f"and machine type {owned.pool.machine_type} is not in the catalogue"


def _why_unneeded(state: PoolState, owned: OwnedPool, known: Known) -> str:
    if state.delete_reason is None:
        return "nothing needs it"
    why = WHY_DELETED[state.delete_reason]
    if state.delete_reason is DeleteReason.WORKLOAD_GONE:
        named, uid_then, *_ = owned.ownership
        uid = known.uids.get(named)
        if uid is not None and uid_then not in ("", uid):
            return f"{why}, and another {named.kind.value} has its name"
        return "its workload is being deleted" if uid is not None else why
    if state.delete_reason is DeleteReason.NOT_NEEDED and any(node.name in known.lingering for node in owned.nodes):
        return f"{why}; pods that should have ended are still on it"
    return why


def _held_up(state: PoolState, known: Known) -> str:
    words = f" Its deletion waits for {WHY_LATE[state.delete_waits_for]}." if state.delete_waits_for else ""
    call = known.memory.pool(state.name).delete
    if call is None or not call.reason:
        return words
    return f"{words} Its deletion {'waits' if call.postponed_since is None else 'was held up'}: {call.reason}"


def _of_phase(state: PoolState, owned: OwnedPool, known: Known) -> str:
    what, failure = _hosts_ready(state), owned.pool.failure
    match state.phase:
        case Phase.CREATING:
            create, supplier = known.memory.pool(state.name).create, owned.rules.supplier_name
            if create is not None and create.state is CallState.UNKNOWN:
                return (
                    f"The outcome of its create is not known: {supplier} does not list the node pool, and is asked "
                    "about it."
                )
            return "The create has been sent; the node pool is not listed yet."
        case Phase.PROVISIONING:
            return f"{_how_it_comes(owned)} {what}.{f' {failure.message}' if failure is not None else ''}"
        case Phase.READY:
            return "All hosts are ready; its pods have not been bound yet."
        case Phase.IN_USE:
            if state.holders == {None}:
                return "Pods are bound to it whose workload is gone or not watched."
            if state.draining:
                return "Its workload has ended or is suspended; pods are still there."
            return f"Pods are bound to it; {what}." if state.ready_nodes < state.nodes else RUNS
        case Phase.DELETING:
            return f"{_how_it_goes(state, owned, known)}{_still_bound(state)}"
    # The phase is FAILED: `of_pool` handles IDLE, and pools without a sent create have no `owned`.
    lost = unready(owned) if owned.lost else "no reason is given."
    return f"It failed: {failure.message if failure is not None else lost}{_still_bound(state)}"


def _hosts_ready(state: PoolState) -> str:
    return f"{state.ready_nodes} of {state.nodes} hosts are ready"


def _how_it_comes(owned: OwnedPool) -> str:
    status, supplier = owned.pool.status, owned.rules.supplier_name
    if status is PoolStatus.PROVISIONING:
        return f"{supplier} is creating it;"
    if owned.pool.capacity is CapacityKind.FLEX_START and not owned.nodes:
        return f"{supplier} adds its nodes when {owned.pool.capacity.value} capacity is available;"
    return f"{supplier} has created it;" if status is PoolStatus.RUNNING else f"Its status is {status.value};"


def _how_it_goes(state: PoolState, owned: OwnedPool, known: Known) -> str:
    call = known.memory.pool(state.name).delete
    if call is not None and call.state is CallState.UNDER_WAY and owned.pool.status is not PoolStatus.STOPPING:
        again = f" The last attempt was held up: {call.reason}" if call.reason else ""
        return f"The provisioner confirms that nothing needs it, and deletes it then.{again}"
    cause = "; another client or an earlier process requested that" if call is None else ""
    return f"{owned.rules.supplier_name} is deleting it{cause}."


def _still_bound(state: PoolState) -> str:
    return " Unfinished pods are still bound to it." if state.holders else ""
