"""The state that people are shown, from the phase of a pool."""

from __future__ import annotations

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
