"""Why a slice waits and why a node pool stays or goes, in one sentence each."""

from __future__ import annotations

from provisioner.slices.demand import Slice
from provisioner.slices.planning.lifecycle import Phase
from provisioner.slices.planning.plan import DeleteReason, PoolState
from provisioner.slices.planning.supply import Supply

_DELETES = {
    DeleteReason.WORKLOAD_GONE: "its workload is gone",
    DeleteReason.WORKLOAD_FINISHED: "its workload has finished",
    DeleteReason.WORKLOAD_SUSPENDED: "its workload is suspended",
    DeleteReason.POOL_FAILED: "it failed",
    DeleteReason.NO_READY_NODES: "not all of its hosts became ready in time",
    DeleteReason.SLICE_STUCK: "the pods of its slice cannot be scheduled on it",
    DeleteReason.SLICE_ELSEWHERE: "the pods of its slice run on another node pool",
    DeleteReason.GIVEN_BACK: "its workload starts with all slices or none, and not all of them could be created",
    DeleteReason.NOT_NEEDED: "its workload does not need it any more",
}


def of_delete(reason: DeleteReason) -> str:
    """Say why a pool goes."""
    return _DELETES[reason]


def of_slice(slice_: Slice, state: PoolState | None, why_not_served: str) -> str:
    """Say why a slice waits, or what it has."""
    if state is None:
        return _of_slice_without_pool(slice_, why_not_served)
    if state.phase in (Phase.WANTED, Phase.BLOCKED):
        return state.note or "The create of its node pool is about to be sent."
    return _of_phase(state)


def _of_slice_without_pool(slice_: Slice, why_not_served: str) -> str:
    workload, leader = slice_.workload, slice_.leader
    if workload.problem:
        return f"No node pools are created: {workload.problem}."
    if workload.suspended:
        return f"The {workload.kind.value} is suspended."
    if why_not_served:
        return f"The provisioner does not serve it: {why_not_served}."
    if leader is None:
        return (
            "Its leader pod does not exist or is being deleted."
            if slice_.pods
            else "It has no pods: they have not been created yet, or they have ended."
        )
    if leader.node_name:
        return f"Its leader pod runs on node {leader.node_name}, which is not in a node pool of the provisioner."
    if leader.unschedulable_since is None:
        return "The scheduler has not reported its leader pod as unschedulable; no node pool is created before that."
    return f"Its leader pod cannot be scheduled: {leader.unschedulable_message or 'no reason is given'}"


def of_pool(state: PoolState, supply: Supply) -> str:
    """Say why a pool stays, or why it goes."""
    if state.phase is Phase.IDLE:
        why = _DELETES[state.delete_reason] if state.delete_reason is not None else "nothing needs it"
        words = f"It is not needed: {why}."
        return f"{words} Its delete was held up: {state.note}" if state.note else words
    if state.phase is Phase.FAILED:
        failure = supply.pool.failure
        return f"It failed: {failure.message if failure is not None else state.note or 'no reason is given'}"
    return _of_phase(state)


def _of_phase(state: PoolState) -> str:
    what = f"{state.ready_nodes} of {state.nodes} hosts are ready"
    match state.phase:
        case Phase.CREATING:
            return "The create has been sent; the node pool is not listed yet."
        case Phase.PROVISIONING:
            return f"{what}. {state.note}" if state.note else f"{what}."
        case Phase.READY:
            return "All hosts are ready; its pods have not been bound yet."
        case Phase.IN_USE if state.slice_id is not None and state.workload is None:
            return "Its workload has ended or is suspended; pods are still there."
        case Phase.IN_USE if state.ready_nodes < state.nodes:
            return f"Pods are bound to it; {what}."
        case Phase.IN_USE:
            return "Pods run on it."
        case Phase.DELETING:
            return f"It is being deleted. {state.note}" if state.note else "It is being deleted."
        case Phase.IDLE:
            return "Nothing needs it."
        case _:
            return state.note
