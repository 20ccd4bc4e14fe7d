"""What decisions on partitions go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: In the limits: those that are not named.
ANY_NAMESPACE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings:
    """The part of the settings that decisions read."""

    #: Partitions of more IPUs are not served.
    largest_size: int = 64
    reconfigurable: bool = True
    #: IPUs that the pods of a namespace may have at once; "*" is for those that are not named. Empty: no limits.
    namespace_limits: Mapping[str, int] = field(default_factory=dict)
    #: Namespaces whose pods are served; empty: all.
    namespaces: frozenset[str] = frozenset()
    #: A server is read so often while something is under way or waits, and otherwise.
    busy_read_seconds: float = 5.0
    idle_read_seconds: float = 60.0
    #: A partition with our prefix that no ledger and no pod knows is removed after it was seen for so long.
    orphan_seconds: float = 120.0
    #: Past the end of its grace a pod that is being deleted keeps its partition for so long.
    past_grace_seconds: float = 30.0
    #: A pod that has its partition and no node gives it back after so long, where others wait; 0: never.
    unscheduled_seconds: float = 900.0
    #: What a pod may take, at most, besides its activeDeadlineSeconds and its grace: until it runs, and until its
    #: partition is removed. A younger pod passes an older one only where it is gone in time even so.
    backfill_allowance_seconds: float = 120.0
    #: A partition that no pod uses yet, and that is not active after so long, is made anew; one that is not there by
    #: then, as while its server is down, is given up, and its pod waits again.
    stuck_seconds: float = 900.0
    #: A pod that its server refuses although enough IPUs are free holds up others for so long, where no deadlines tell
    #: when there is more room.
    crowded_seconds: float = 3600.0
    #: Partitions made and removed at once on one server.
    most_changes_per_server: int = 4

    def limit_of(self, namespace: str) -> int | None:
        """Return the IPUs that the pods of a namespace may have at once; None: as many as there are."""
        return self.namespace_limits.get(namespace, self.namespace_limits.get(ANY_NAMESPACE))
