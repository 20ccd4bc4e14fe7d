"""The life of a node pool, from wanted to gone, as one table.

Each round observes a phase afresh; the table says which changes are possible, and what must have happened in between
where a round came late: a pool that goes from WANTED to IN_USE has been made and was ready on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Phase(Enum):
    """Where a pool is in its life."""

    #: A slice needs it; the create has not been sent.
    WANTED = "wanted"
    #: A slice needs it, and back-off, a limit or an invalid request is in the way.
    BLOCKED = "blocked"
    #: The create is being sent, or was taken and is not listed yet.
    CREATING = "creating"
    #: Listed; its nodes are not all there.
    PROVISIONING = "provisioning"
    #: All nodes ready, kept for a slice, no pod on it.
    READY = "ready"
    #: Pods run on it.
    IN_USE = "in_use"
    #: Nothing needs it; the deletion delay runs.
    IDLE = "idle"
    #: The delete is being sent, was taken, or GKE says STOPPING.
    DELETING = "deleting"
    #: GKE says ERROR, or it has no use: hosts that do not come.
    FAILED = "failed"
    #: Not there (any more).
    GONE = "gone"

    @property
    def before_create(self) -> bool:
        """Whether the pool is only planned: no create has been sent."""
        return self is Phase.WANTED or self is Phase.BLOCKED


#: phase -> the phases that may follow at once, in the order in which a path is sought.
TRANSITIONS: Mapping[Phase, tuple[Phase, ...]] = MappingProxyType(
    {
        Phase.WANTED: (
            Phase.CREATING,  # the create is sent
            Phase.BLOCKED,  # back-off, limit, refusal
            Phase.GONE,  # the slice found another pool, or needs none any more
        ),
        Phase.BLOCKED: (
            Phase.WANTED,  # what blocked it is over
            Phase.GONE,  # the slice found another pool, or needs none any more
        ),
        Phase.CREATING: (
            Phase.PROVISIONING,  # GKE lists it
            Phase.BLOCKED,  # GKE refused, and it is for long
            Phase.WANTED,  # GKE refused, and it is to be tried again
            Phase.GONE,  # GKE refused, and nobody needs it any more
        ),
        Phase.PROVISIONING: (
            Phase.READY,  # all nodes are ready and show their chips
            Phase.FAILED,  # the operation failed
            Phase.IDLE,  # nobody needs it any more
            Phase.DELETING,  # deleted by somebody else
            Phase.GONE,  # likewise, between two looks
        ),
        Phase.READY: (
            Phase.IN_USE,  # a pod is bound
            Phase.IDLE,  # nobody needs it any more
            Phase.PROVISIONING,  # a node is missing or not ready
            Phase.FAILED,  # GKE says so
            Phase.DELETING,  # deleted by somebody else
            Phase.GONE,  # likewise, between two looks
        ),
        Phase.IN_USE: (
            Phase.READY,  # the pods have ended, the slice may start again
            Phase.IDLE,  # the pods have ended, and nobody needs it any more
            Phase.PROVISIONING,  # the pods have ended with a node
            Phase.FAILED,  # GKE says so
            Phase.DELETING,  # deleted by somebody else
            Phase.GONE,  # likewise, between two looks
        ),
        Phase.IDLE: (
            Phase.DELETING,  # the delay is over
            Phase.READY,  # a slice took it
            Phase.IN_USE,  # a pod was bound to it
            Phase.PROVISIONING,  # a slice took it while its nodes were coming
            Phase.FAILED,  # GKE says so
            Phase.GONE,  # deleted by somebody else
        ),
        Phase.DELETING: (
            Phase.GONE,  # GKE lists it no more
            Phase.IDLE,  # the delete was refused or failed
            Phase.READY,  # it was refused, and a slice took the pool
            Phase.IN_USE,  # it was refused because pods run
            Phase.PROVISIONING,  # it was refused, and a node is missing
            Phase.FAILED,  # it failed half-way
        ),
        Phase.FAILED: (
            Phase.DELETING,  # at once
            Phase.GONE,  # deleted by somebody else
            Phase.READY,  # GKE repaired it
            Phase.PROVISIONING,  # GKE repairs it
            Phase.IN_USE,  # GKE repaired it under its pods
            Phase.IDLE,  # GKE repaired it, and nobody needs it
        ),
        Phase.GONE: (),
    }
)


def passage(old: Phase, new: Phase) -> tuple[Phase, ...]:
    """List the phases passed from `old` to `new`, `new` last; empty where nothing changed or no path exists."""
    if old is new:
        return ()
    queue: deque[tuple[Phase, ...]] = deque([(old,)])
    seen = {old}
    while queue:
        path = queue.popleft()
        for following in TRANSITIONS[path[-1]]:
            if following is new:
                return (*path[1:], new)
            if following not in seen:
                seen.add(following)
                queue.append((*path, following))
    return ()
