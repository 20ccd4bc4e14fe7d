"""What people are shown for a slice, a workload and a pool: a name that they can read and type, and a state."""

from __future__ import annotations

from provisioner.model.workloads import WorkloadName
from provisioner.slices.demand import Slice
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.view.types import State

STATES = {
    Phase.WANTED: State.WAITING,
    Phase.BLOCKED: State.WAITING,
    Phase.CREATING: State.CREATING,
    Phase.PROVISIONING: State.JOINING,
    Phase.READY: State.READY,
    Phase.IN_USE: State.RUNNING,
    Phase.IDLE: State.IDLE,
    Phase.DELETING: State.DELETING,
    Phase.FAILED: State.FAILED,
}


def state_of(pool: PoolState) -> State:
    """Return the state of one pool, or of the slice that waits for one."""
    return State.DRAINING if pool.draining else STATES[pool.phase]


def workload_id(name: WorkloadName) -> str:
    """Return kind/namespace/name."""
    return f"{name.kind.value}/{name.namespace}/{name.name}"


def id_of_slice(slice_: Slice) -> str:
    """Return kind/namespace/name/group."""
    return f"{workload_id(slice_.workload.full_name)}/{slice_.group_name}"


def workload_of_pool(state: PoolState) -> str:
    """Return the id of the workload that a pool is for, or was created for; empty where nothing tells."""
    return workload_id(state.named) if state.named.name else ""


def slice_of_pool(state: PoolState) -> str:
    """Return the id of the slice that a pool is for; empty where it is for none."""
    return f"{workload_of_pool(state)}/{state.group_name}" if state.slice_id is not None and state.named.name else ""
