"""The life of a node pool, from wanted to gone.

Each round observes a phase afresh, and finds what must have happened in between where it came late: a pool that goes
from WANTED to IN_USE has been created and was ready on the way.
"""

from __future__ import annotations

from enum import Enum


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


#: What each pool passes while it is created; BLOCKED stands beside WANTED.
_CREATION = (Phase.WANTED, Phase.CREATING, Phase.PROVISIONING, Phase.READY, Phase.IN_USE)


def passage(old: Phase, new: Phase) -> tuple[Phase, ...]:
    """List the phases passed from `old` to `new`, `new` last; empty where it is another pool, or nothing changed."""
    begun = old not in (Phase.WANTED, Phase.BLOCKED, Phase.CREATING)
    if old is new or old is Phase.GONE or (begun and (new.before_create or new is Phase.CREATING)):
        return ()
    after = 1 if old.before_create else _CREATION.index(old) + 1 if old in _CREATION else len(_CREATION)
    if new in _CREATION:
        before = _CREATION.index(new)
    else:
        # A pool that is idle, fails or is deleted has been listed before.
        before = 0 if new is Phase.GONE or new is Phase.BLOCKED else _CREATION.index(Phase.READY)
    return (*_CREATION[after:before], new)
