"""What the provisioner remembers between rounds.

The truth lives in GKE and Kubernetes. This is what they do not tell: calls whose effect they do not show yet, since
when a pool is idle, back-off after failures. Losing it is safe; the part worth keeping over a crash is turned into
text by `provisioner.slices.hints`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from provisioner.model.capacity import Failure, NodePoolRequest, OperationName, PoolName, PoolStatus
from provisioner.model.membership import Membership
from provisioner.model.workloads import WorkloadUid
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.line import Stamps


class Phase(Enum):
    """Where a pool is in its life; each round observes it afresh."""

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
    IN_USE = "in_use"
    #: Nothing needs it; the deletion delay runs.
    IDLE = "idle"
    #: The delete is being sent, was taken, or GKE says STOPPING.
    DELETING = "deleting"
    #: GKE says ERROR, or it has no use: hosts that do not come.
    FAILED = "failed"
    GONE = "gone"

    @property
    def before_create(self) -> bool:
        """Whether no create has been sent."""
        return self is Phase.WANTED or self is Phase.BLOCKED

    @property
    def planned(self) -> bool:
        """Whether GKE has not been seen to have the pool."""
        return self.before_create or self is Phase.CREATING


class CallState(Enum):
    """How far a mutating call to GKE has come."""

    #: Being sent; for a delete, its proof and gate included.
    UNDER_WAY = "under_way"
    #: GKE took it; the list of pools may not show it yet.
    ACCEPTED = "accepted"
    #: It may or may not have had its effect.
    UNKNOWN = "unknown"
    #: For a delete: not done; to be tried again.
    POSTPONED = "postponed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCall:
    """A create that the list of pools does not confirm yet: it counts as a pool in the making."""

    slice_id: SliceId
    request: NodePoolRequest
    state: CallState
    #: When the state was entered.
    since: datetime
    operation: OperationName = OperationName("")
    looked_up_at: datetime | None = None
    #: Of the workload.
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCall:
    """A delete under way, accepted, or postponed."""

    state: CallState
    since: datetime
    operation: OperationName = OperationName("")
    #: For POSTPONED: not before this, unless the pool's status has changed from `status`.
    retry_at: datetime | None = None
    status: PoolStatus | None = None
    failures: int = 0
    #: Since when the same delete is held up, and by what, in words.
    postponed_since: datetime | None = None
    reason: str = ""
    #: For POSTPONED: because the workload lives, although the caches do not show it so.
    needed: bool = False
    looked_up_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """No creates of one kind before `until`."""

    failure: Failure
    failures: int
    since: datetime
    until: datetime
    #: Of a slice that was refused reservations: their capacities; none: the slice waits whatever it may ask for.
    capacities: frozenset[str] = frozenset()
    #: Of a request that GKE calls invalid: the slice that asked.
    slice_id: SliceId | None = None
    #: Of a capacity: number of pools that came up since its last failure.
    came_up: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many creates of a workload, or of a namespace, have failed; it falls with time."""

    count: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Which pool a slice without a bound pod counts on."""

    pool: PoolName
    #: Since when on a ready one: its own, or others' one after another; None where it is not ready.
    since: datetime | None
    #: Whether the slice has pods.
    has_pods: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A workload whose slices start together, while some of them are missing."""

    #: Number of slices that have a ready pool, and time since which it has not grown; None while none has one.
    ready: int = 0
    since: datetime | None = None
    #: Whether the workload has released its pools, and waits in line since.
    queues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Right of one workload that starts together to hold pools of one accelerator; after it, a pause."""

    workload: WorkloadUid
    since: datetime
    #: Whether the workload released its pools: until the pause ends, no workload that starts together holds any.
    released: bool = False
    #: Time at which the pause ends; None while the released pools still exist.
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationLimit:
    """How many operations of ours GKE ran when it last rejected one; forgotten after a while without a rejection."""

    #: None: not known.
    limit: int | None = None
    rejected_at: datetime | None = None
    #: It has rejected one since the last decision, at which so many ran.
    rejected: bool = False
    running: int = 0
    #: Of the operations that were tried last, more were deletes than creates; and what GKE accepted last was a delete.
    deletes_tried_last: bool = False
    delete_accepted_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntry:
    """The phase of a pool, existing or planned, and since when."""

    phase: Phase
    since: datetime
    #: It was entered before this process first looked, nobody knows when.
    entered_before: bool = False
    #: Since when pods of ended or suspended workloads alone are on it; None: it is not so.
    draining_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of it. Replaced as a whole by each decision and each answer."""

    creates: Mapping[PoolName, CreateCall] = field(default_factory=dict)
    #: Creates that the list confirmed and whose pool is not up yet: if it vanishes, its operation says why.
    in_making: Mapping[PoolName, CreateCall] = field(default_factory=dict)
    #: Lowest attempt a slice may go on with: an earlier process may have sent it, with an outcome nobody knows.
    attempts: Mapping[SliceId, int] = field(default_factory=dict)
    deletes: Mapping[PoolName, DeleteCall] = field(default_factory=dict)
    #: By capacity, as `choices.capacity_key` names it; by the digest of a request that is invalid or whose pool failed.
    backoffs: Mapping[str, Backoff] = field(default_factory=dict)
    #: Of slices whose own create failed, for what says nothing of any capacity.
    slice_backoffs: Mapping[SliceId, Backoff] = field(default_factory=dict)
    #: Failed creates, by the UID of the workload and by namespace: a changed request does not begin anew.
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    #: When the pools of the last hour were asked for, oldest first.
    created_at: tuple[datetime, ...] = ()
    #: Pools whose failure has been counted.
    failed: frozenset[PoolName] = frozenset()
    #: Since when GKE says that a pool is up although not all its nodes are ready.
    unready_since: Mapping[PoolName, datetime] = field(default_factory=dict)
    #: Since when pools are up without nodes, and wait for capacity that comes late.
    late_since: Mapping[PoolName, datetime] = field(default_factory=dict)
    #: Since when pools have had a status that should pass.
    status_since: Mapping[tuple[PoolName, PoolStatus], datetime] = field(default_factory=dict)
    #: Pools that were unready for too long and are being replaced.
    given_up: frozenset[PoolName] = frozenset()
    #: When the last pool went whose workload had vanished without a trace, while that happened to many.
    braked_delete_at: datetime | None = None
    #: Since when nothing needs the pool.
    unneeded_since: Mapping[PoolName, datetime] = field(default_factory=dict)
    #: The slice whose pods were bound to a pool last, where the labels do not tell: a restart finds its place again.
    last_users: Mapping[PoolName, SliceId] = field(default_factory=dict)
    #: Zone and machine type of each pool: once it has vanished, there may be stock again.
    places: Mapping[PoolName, tuple[str, str]] = field(default_factory=dict)
    phases: Mapping[PoolName, PhaseEntry] = field(default_factory=dict)
    #: How long the last pool took from its create until its nodes were ready; None: not known.
    usual_creation: timedelta | None = None
    gangs: Mapping[WorkloadUid, Gang] = field(default_factory=dict)
    #: By accelerator; only while workloads that start together compete for it.
    holds: Mapping[str, Hold] = field(default_factory=dict)
    stamps: Stamps = field(default_factory=dict)
    claims: Mapping[SliceId, Claim] = field(default_factory=dict)
    operations: OperationLimit = field(default_factory=OperationLimit)
    #: Node pools of the nodes that were seen: an edit of a label does not change them.
    membership: Membership = field(default_factory=Membership)
