"""Memory of the provisioner between decisions.

The memory has facts that the supplier and Kubernetes do not show, such as calls without a visible effect so far, the
time since which each pool is idle, and back-off after failures. Losing the memory is safe. `provisioner.slices.hints`
saves the part of the memory that is useful after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from provisioner.model.capacity import Failure, NodePoolRequest, OperationName, PoolName, PoolStatus
from provisioner.model.choices import CapacityKey
from provisioner.model.membership import Membership
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import SliceId

#: Key in `Backoffs`: a capacity, a slice, or the digest of a request that is invalid or whose pool failed.
BackoffKey = CapacityKey | SliceId | str
#: Resource with a queue: a capacity, an accelerator (for all-or-nothing workloads), or `line.CREATES`.
TurnResource = CapacityKey | str
#: Time of the last grant of a resource, by resource, namespace and workload UID. An empty UID represents any workload.
Stamps = Mapping[tuple[TurnResource, str, str], datetime]


class Phase(Enum):
    """Phase of a pool. Each decision determines the phase again from the observed state."""

    #: A slice needs the pool, and the create may be sent soon.
    WANTED = "wanted"
    #: A slice needs the pool, but the create has to wait, for example because of back-off or a limit.
    BLOCKED = "blocked"
    #: The create has been started, and the pool is not listed yet.
    CREATING = "creating"
    #: A slice needs the pool; it is listed, and not all its nodes are ready.
    PROVISIONING = "provisioning"
    #: All nodes are ready, a slice counts on the pool, and no slice has pods on it.
    READY = "ready"
    IN_USE = "in_use"
    #: No slice needs the pool; it may be deleted after the deletion delay.
    IDLE = "idle"
    #: The delete is being sent or was accepted, or the supplier reports STOPPING.
    DELETING = "deleting"
    #: The supplier reports ERROR, or the pool has failed in another way (`OwnedPool.broken`) and no pod uses the pool.
    FAILED = "failed"
    GONE = "gone"

    @property
    def before_create(self) -> bool:
        """Whether a slice needs the pool, and the create has not been sent."""
        return self is Phase.WANTED or self is Phase.BLOCKED

    @property
    def planned(self) -> bool:
        """Whether the pool is wanted or being created, and not listed yet."""
        return self.before_create or self is Phase.CREATING


class CallState(Enum):
    """Progress of a create or delete."""

    #: The call has no response yet. A delete may still be at the checks or the cordon before it (`slices.gate`).
    UNDER_WAY = "under_way"
    #: The supplier accepted the call, or the pool to delete was not found; the list of pools may not show this yet.
    ACCEPTED = "accepted"
    #: The outcome of the create is unknown: the pool may exist, or may still be created.
    UNKNOWN = "unknown"
    #: The last attempt to delete the pool did not succeed; another one may follow.
    POSTPONED = "postponed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCall:
    """A create whose pool is not listed or not up yet."""

    slice_id: SliceId
    request: NodePoolRequest
    state: CallState
    since: datetime
    operation: OperationName = OperationName("")
    looked_up_at: datetime | None = None
    namespace: str = ""
    #: Message of the error that left the outcome unknown; empty without such an error.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCall:
    """A delete that is in progress, accepted, or postponed."""

    state: CallState
    since: datetime
    operation: OperationName = OperationName("")
    #: Earliest time of the next attempt if POSTPONED, while the pool has `status`.
    retry_at: datetime | None = None
    status: PoolStatus | None = None
    failures: int = 0
    #: Time of the first postponement, not counting the first wait after the cordon; None before that time.
    postponed_since: datetime | None = None
    reason: str = ""
    #: Whether the result of the last attempt was NEEDED (`answers.DeleteResult`).
    needed: bool = False
    looked_up_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """A request to the supplier for the outcome of a create or delete that the list of pools does not show."""

    name: PoolName
    #: Operation to look up; empty to look up the pool itself.
    operation: OperationName = OperationName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Back-off of a capacity, a request, a slice or refused pods: it blocks creates before `until`."""

    failure: Failure
    failures: int
    #: Time of the first of the consecutive failures, or of a stockout or quota failure after other kinds of failures.
    since: datetime
    until: datetime
    #: Reserved capacities for which a permission is missing. If not empty, only creates in these are blocked.
    capacities: frozenset[CapacityKey] = frozenset()
    #: Slice whose request is invalid; None after other failures.
    slice_id: SliceId | None = None
    #: Number of pools that came up in a capacity since its last failure.
    came_up: int = 0


Backoffs = Mapping[BackoffKey, Backoff]


class RefusedPods(NamedTuple):
    """Pods that the scheduler bound to no node of a ready pool. Pods that replace them usually have the same key."""

    namespace: str
    #: UID of the workload; for a Job of a CronJob, its name without the time.
    workload: str
    #: Key of the group; empty for kinds POD and JOB, whose pods may be replaced by pods of other groups.
    group: str
    #: Digest of requirements of the pods (`refused.key_of`).
    requirements: str

    @property
    def family(self) -> tuple[str, str]:
        """Namespace and workload; equal for all refused pods of a workload."""
        return self.namespace, self.workload


Refusals = Mapping[RefusedPods, Backoff]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Number of failed creates of a workload or a namespace at the time `at`. The number decreases with time."""

    count: float
    at: datetime
    failure: Failure


#: Counts by namespace and workload UID. An entry with an empty UID counts all workloads of the namespace.
Tallies = Mapping[tuple[str, str], Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Pool that a slice counts on without holding it, or counted on until it expired (`match.is_expired`)."""

    pool: PoolName
    #: Time since which all pods of the slice could be bound to pools that it counted on; None if they cannot be yet.
    since: datetime | None
    has_pods: bool
    #: The scheduler's last message for the leader pod.
    message: str = ""
    #: Whether `message` has changed since the claim began: then the scheduler has looked at the pod again.
    looked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """State of a workload whose slices start together, until all its slices are ready."""

    #: Maximum number of slices that were ready at the same time; 0 while PARTIAL_HOLD does not apply.
    ready: int = 0
    #: Beginning of PARTIAL_HOLD: usually the time when `ready` last grew; None while PARTIAL_HOLD does not apply.
    since: datetime | None = None
    #: Whether the workload takes pools only in its turn, because it released pools or got a hold before.
    queues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Right of one workload to hold pools of an accelerator, or the pause after the workload released these pools."""

    workload: WorkloadUid
    #: Time at which the workload got the right or, if `released`, released its pools.
    since: datetime
    #: Whether the workload released its pools. Until the pause has ended, no workload in the queue may hold pools.
    released: bool = False
    #: Time at which the pause ends; None before a release, and while the pause waits for deletes of the released pools.
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationLimit:
    """Bound on the provisioner's concurrent operations, dropped 60 s after the last rejection by GKE."""

    #: Maximum number of operations that ran at the same time since the last rejection; None without a bound.
    limit: int | None = None
    rejected_at: datetime | None = None
    #: Whether GKE has rejected an operation since the last decision, because too many operations ran.
    rejected: bool = False
    #: Number of operations that ran at the last decision.
    running: int = 0
    #: Whether the last decision that started calls started more deletes than creates.
    deletes_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntry:
    """Phase of an existing or planned pool, and the time since which it has been in that phase."""

    phase: Phase
    since: datetime
    #: Whether the phase may have begun before `since`, because this process first saw the pool in this phase.
    entered_before: bool = False
    #: Time since which all pods on the pool are of ended or suspended workloads; otherwise None.
    draining_since: datetime | None = None


# A named tuple, because each decision copies the record of each pool, and copies of dataclasses are slower.
class PoolMemory(NamedTuple):
    """Memory of one existing or planned pool. Dropped when the pool no longer exists and no slice wants it."""

    create: CreateCall | None = None
    #: Create of a listed pool that is not up yet. If the pool vanishes, the operation may have the reason.
    coming_up: CreateCall | None = None
    delete: DeleteCall | None = None
    phase: PhaseEntry | None = None
    unneeded_since: datetime | None = None
    #: Time since which the pool has been seen free (`OwnedPool.free`); None otherwise, or if pods should run there.
    free_since: datetime | None = None
    #: Slice that used the pool last, and may return with new pods; None if unknown, or if the pool's labels are enough.
    last_user: SliceId | None = None
    #: Zone and machine type whose creates are retried when the pool vanishes; None before the pool has had nodes.
    place: tuple[str, str] | None = None
    #: `unready_since`, `late_since` and `passing` are copies of the last values of the fields of `OwnedPool`.
    unready_since: datetime | None = None
    late_since: datetime | None = None
    passing: tuple[PoolStatus, datetime] | None = None
    #: Whether the pool has failed, and its failure has been counted.
    failed: bool = False
    given_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceMemory:
    """Memory of one slice. Dropped when the slice no longer exists."""

    #: Minimum number of the next attempt, from the hints: a create of an earlier process is repeated with its number.
    attempt: int = 0
    claim: Claim | None = None


_NO_POOL = PoolMemory()
_NO_SLICE = SliceMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State between decisions. Immutable: a change returns a new instance."""

    pools: Mapping[PoolName, PoolMemory] = field(default_factory=dict)
    slices: Mapping[SliceId, SliceMemory] = field(default_factory=dict)
    backoffs: Backoffs = field(default_factory=dict)
    #: Back-offs after the scheduler bound no pod to a ready pool (`memory/refused.py`).
    refusals: Refusals = field(default_factory=dict)
    #: Counts of failed creates; a changed request does not reset the count of its workload.
    tallies: Tallies = field(default_factory=dict)
    #: Times of the last lasting failure, such as a missing permission, by namespace; kept for an hour.
    lasting_failures: Mapping[str, datetime] = field(default_factory=dict)
    #: Times of the creates of the last hour, without rejected ones; empty without MAX_CREATES_PER_HOUR.
    created_at: tuple[datetime, ...] = ()
    #: Time of the last delete that started while deletes were slowed down because many workloads had vanished.
    braked_delete_at: datetime | None = None
    #: Duration from PROVISIONING to READY of the last pool that became ready; None before the first.
    last_creation_duration: timedelta | None = None
    gangs: Mapping[WorkloadUid, Gang] = field(default_factory=dict)
    #: Holds and pauses by accelerator; empty unless an all-or-nothing workload has released its pools.
    holds: Mapping[str, Hold] = field(default_factory=dict)
    stamps: Stamps = field(default_factory=dict)
    operations: OperationLimit = field(default_factory=OperationLimit)
    membership: Membership = field(default_factory=Membership)

    @property
    def creates(self) -> dict[PoolName, CreateCall]:
        """Creates whose pools are not listed yet."""
        return {name: pool.create for name, pool in self.pools.items() if pool.create is not None}

    @property
    def coming_up(self) -> dict[PoolName, CreateCall]:
        """Creates of listed pools that are not up yet."""
        return {name: pool.coming_up for name, pool in self.pools.items() if pool.coming_up is not None}

    @property
    def deletes(self) -> dict[PoolName, DeleteCall]:
        """Deletes that are in progress, accepted or postponed."""
        return {name: pool.delete for name, pool in self.pools.items() if pool.delete is not None}

    @property
    def given_up(self) -> set[PoolName]:
        """Pools that were given up, because they were unready for too long."""
        return {name for name, pool in self.pools.items() if pool.given_up}

    def pool(self, name: PoolName) -> PoolMemory:
        """Return the entry of a pool, or an empty entry."""
        return self.pools.get(name, _NO_POOL)

    def slice(self, slice_id: SliceId) -> SliceMemory:
        """Return the entry of a slice, or an empty entry."""
        return self.slices.get(slice_id, _NO_SLICE)

    def with_pools(self, changes: Mapping[PoolName, PoolMemory]) -> Memory:
        """Return the memory with the entries of some pools replaced."""
        return replace(self, pools={**self.pools, **changes}) if changes else self

    def with_pool(self, name: PoolName, **changes: Any) -> Memory:
        """Return the memory with some fields of a pool's entry replaced."""
        return self.with_pools({name: self.pool(name)._replace(**changes)})
