"""Defines the result of one decision: the changes, the reports, and the memory. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from provisioner.model.capacity import NodePoolRequest, PoolName
from provisioner.model.membership import Membership
from provisioner.model.workloads import (
    GroupKey,
    ObjectRef,
    Pod,
    Workload,
    WorkloadName,
    WorkloadUid,
    pod_ref,
    workload_ref,
)
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.contention.usage import LimitUse
from provisioner.slices.planning.contention.waits import WaitsFor
from provisioner.slices.planning.memory.state import LookUp, Memory, Phase
from provisioner.slices.planning.refusals import Refusal
from provisioner.slices.planning.round import Round


class DeleteReason(Enum):
    """Reason for deleting a pool. Before the delete, the gate verifies WORKLOAD_* and SLICE_STUCK live."""

    #: The workload (of any kind) is deleted, or the machine type is unknown.
    WORKLOAD_GONE = "jobset_gone"
    #: The workload completed or failed.
    WORKLOAD_FINISHED = "jobset_finished"
    #: The workload is suspended, and `KEEP_POOLS_OF_SUSPENDED_JOBSETS` is not set.
    WORKLOAD_SUSPENDED = "jobset_suspended"
    #: The pool has status ERROR.
    POOL_FAILED = "pool_failed"
    #: The pool's nodes were never all ready during `NODEPOOL_READY_TIMEOUT`.
    NO_READY_NODES = "no_ready_nodes"
    #: The pool's reservation has ended.
    RESERVATION_ENDED = "reservation_ended"
    #: Pods of the slice remained unschedulable: the pool's nodes were not ready in time, or the scheduler bound no pod
    #: to them, or `REPLACE_STUCK_SLICES` is set.
    SLICE_STUCK = "slice_stuck"
    #: The pods of the slice run on other nodes.
    SLICE_ELSEWHERE = "slice_elsewhere"
    #: The workload is all-or-nothing, and did not get all its slices.
    GIVEN_BACK = "given_back"
    #: Any other cause, such as an ended slice.
    NOT_NEEDED = "not_needed"


class DeleteWait(Enum):
    """Cause, other than the deletion delay, for which a delete waits."""

    #: The maximum number of concurrent operations or calls is reached (`contention.operations`).
    OPERATIONS = "operations"
    #: The workloads of many pools vanished, so these pools are deleted one at a time (`unneeded.BRAKE_PAUSE`).
    BRAKE = "brake"


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """A pool to request from the supplier. The Event about the create is sent on `pod`, the leader pod."""

    slice_id: SliceId
    request: NodePoolRequest
    pod: ObjectRef
    workload: ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """A pool to delete after the checks of `slices.gate`, which also cordons the nodes."""

    name: PoolName
    reason: DeleteReason
    #: Workload and UID in the pool's labels or, for SLICE_STUCK, of the stuck slice. The UID is empty if it is unknown.
    named: WorkloadName
    workload_uid: WorkloadUid
    #: Workload for Events; None if it does not exist or is unknown.
    workload: ObjectRef | None
    #: Node for Events if `workload` is None; None if the pool has no nodes.
    node: ObjectRef | None
    hosts: int = 0
    membership: Membership = field(default_factory=Membership, repr=False, compare=False)
    #: Groups of the stuck slice's pods, several if child Jobs are one slice; empty for other reasons than SLICE_STUCK.
    replaced_groups: frozenset[GroupKey] = frozenset()
    #: Whether the CRD of `named` has been missing for 24 hours, so that the workload counts as deleted.
    kind_absent: bool = False
    #: Whether the cordon must last `gate.BINDING_SECONDS`: the scheduler may have chosen a node for a pod.
    settle: bool = False


class Assignment(NamedTuple):
    """Labels to write on one node; they decide which pods can be bound there."""

    node: str
    #: Values of labels by key (`placement.MARKS`, or the label for a child Job); None removes a label.
    labels: Mapping[str, str | None]
    #: Nodes to check live: the labels are written only if none of them has an unfinished pod with chips.
    verify: tuple[str, ...] = ()


class PodCost(NamedTuple):
    """Deletion cost to write on one pod."""

    namespace: str
    name: str
    uid: str
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Information for the owner of a workload; it becomes an Event on each of `objects`."""

    objects: tuple[ObjectRef, ...]
    reason: str
    message: str
    #: Identity of the Event: notices with equal object, reason and key are one Event. Empty if the message is the key.
    key: str = ""
    warning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A problem for the administrator."""

    #: Value of a metric's label, so there are only a few kinds.
    kind: str
    message: str
    #: Pool with the problem; empty if the problem does not concern one pool.
    pool: PoolName = PoolName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of a pool's phase. A pool that passes READY or GONE between two decisions may have two transitions."""

    pool: PoolName
    #: Phase before the change; None for a new pool.
    old: Phase | None
    new: Phase
    at: datetime
    #: Time at which a decision first found the pool in the phase `old`; None if `old` is None.
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWrite:
    """A status to write on a ProvisioningRequest or a CapacityBuffer."""

    workload: WorkloadName
    #: Version of the object from which the status was computed. A newer version is not overwritten.
    resource_version: str
    #: Fields as JSON; other fields are not changed.
    status: Mapping[str, Any]


class PoolState(NamedTuple):
    """State of one existing or wanted pool and of its slice, for the web page, the API and metrics."""

    name: PoolName
    phase: Phase
    since: datetime
    #: Slice that holds the pool (one of several), otherwise counts on it, otherwise the slice that it was created for.
    slice_id: SliceId | None
    leader: Pod | None
    workload: Workload | None
    #: Workload of the slice or, without a slice, in the pool's labels. `group_name` has the same source.
    named: WorkloadName
    group_name: str
    machine_type: str
    topology: str
    chips: int
    nodes: int
    ready_nodes: int
    #: Why the pool is in this phase; empty if this needs no explanation, or if `Plan.waits` has the reason.
    note: str = ""
    #: Time at which the create is retried or the delete is due, if known.
    next_at: datetime | None = None
    delete_reason: DeleteReason | None = None
    delete_waits_for: DeleteWait | None = None
    #: Whether the pool may be needed although it looks idle: its workload or its machine type is unknown.
    undecided: bool = False
    #: Slices whose pods use the pool; None represents pods of an unknown slice.
    holders: frozenset[SliceId | None] = frozenset()
    #: Slice that counts on the pool and has no pods on it.
    claimant: SliceId | None = None
    #: Slices that share the pool and wait for one of its nodes.
    seated: frozenset[SliceId] = frozenset()
    #: A waiting slice with the accelerator and topology of the idle pool, and why the slice may not have the pool.
    unused: tuple[SliceId, Refusal] | None = None
    #: Whether the pool has pods, all of them of workloads that have ended or are suspended.
    draining: bool = False
    #: Whether a slice of several hosts has pods on this pool and on other pools, or shares it with another slice.
    split: bool = False
    #: Whether the phase may have begun before `since`, the time at which this process first saw the pool.
    since_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Result of one decision: the changes, the reports, and the next memory."""

    memory: Memory
    creates: tuple[Create, ...] = ()
    deletes: tuple[Delete, ...] = ()
    look_ups: tuple[LookUp, ...] = ()
    #: Nodes to uncordon: the provisioner cordoned them, but their pool is kept for now.
    uncordons: tuple[str, ...] = ()
    #: Nodes that lose the taint that keeps pods off until all slices of the workload are ready.
    releases: tuple[str, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    costs: tuple[PodCost, ...] = ()
    notices: tuple[Notice, ...] = ()
    #: Reasons why slices that want a pool have none.
    waits: Mapping[SliceId, WaitsFor] = field(default_factory=dict)
    statuses: tuple[StatusWrite, ...] = ()
    alerts: tuple[Alert, ...] = ()
    transitions: tuple[Transition, ...] = ()
    pools: tuple[PoolState, ...] = ()
    #: Slices of several hosts without a pool to themselves; the value is True if their pods are on several pools.
    split_slices: Mapping[SliceId, bool] = field(default_factory=dict)
    limits: tuple[LimitUse, ...] = ()
    #: Inputs of this decision or, if no decision was possible, the argument `last` of `decide`.
    round: Round | None = field(default=None, repr=False, compare=False)
    #: Interval in seconds between lists of the pools. Lists that take long are fetched less often.
    poll_seconds: float = 60.0
    #: Time at which a decision is due even without an event; None if no such time is known.
    wake_at: datetime | None = None

    @property
    def decided(self) -> Round:
        """The value of `round`. Raises ValueError if it is None."""
        if self.round is None:
            raise ValueError("the caches have never been synced, so nothing has been decided")
        return self.round

    @property
    def states(self) -> Mapping[PoolName, PoolState]:
        """States of all pools, by name."""
        return {state.name: state for state in self.pools}


def notice(slice_: Slice, reason: str, message: str, *, key: str = "", warning: bool = True) -> Notice:
    """Return a notice about a slice, for its leader pod and its workload."""
    leader = (pod_ref(slice_.leader),) if slice_.leader is not None else ()
    objects = tuple(dict.fromkeys((*leader, workload_ref(slice_.workload))))
    return Notice(objects=objects, reason=reason, message=message, key=key, warning=warning)


def wanted_pool(
    slice_: Slice,
    name: PoolName,
    phase: Phase,
    now: datetime,
    *,
    sharers: Iterable[Slice] = (),
    next_at: datetime | None = None,
) -> PoolState:
    """Return the state of a pool that does not exist yet; `sharers` are further slices that share the pool."""
    shape = slice_.shape
    return PoolState(
        name=name,
        phase=phase,
        since=now,
        slice_id=slice_.id,
        seated=frozenset(sharer.id for sharer in sharers),
        leader=slice_.leader,
        workload=slice_.workload,
        named=slice_.workload.full_name,
        group_name=slice_.group_name,
        machine_type=shape.machine_type.name if shape is not None else "",
        topology=str(shape.topology) if shape is not None else "",
        chips=slice_.chips,
        nodes=slice_.nodes,
        ready_nodes=0,
        next_at=next_at,
    )
