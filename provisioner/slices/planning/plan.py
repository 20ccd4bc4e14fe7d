"""What one decision comes to: what is done, what is said, what is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from provisioner.model.capacity import NodePoolRequest, OperationName, PoolName
from provisioner.model.membership import Membership
from provisioner.model.workloads import (
    GroupKey,
    ObjectRef,
    Pod,
    Workload,
    WorkloadKind,
    WorkloadName,
    WorkloadUid,
    pod_ref,
    workload_ref,
)
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.memory.state import Memory, Phase
from provisioner.slices.planning.round import Derived
from provisioner.slices.planning.waits import WaitsFor


class DeleteReason(Enum):
    """Why a pool goes; each is proven live before the delete is sent."""

    WORKLOAD_GONE = "jobset_gone"
    WORKLOAD_FINISHED = "jobset_finished"
    WORKLOAD_SUSPENDED = "jobset_suspended"
    POOL_FAILED = "pool_failed"
    #: GKE holds it for made, and it has been without all its nodes ready for too long.
    NO_READY_NODES = "no_ready_nodes"
    #: Compute Engine deletes its machines.
    RESERVATION_ENDED = "reservation_ended"
    #: Nothing of its slice can run there: pods stay unschedulable, because nodes have not been ready for too long, or
    #: although all are and the settings say to replace such a pool.
    SLICE_STUCK = "slice_stuck"
    #: The slice's pods are bound to another pool.
    SLICE_ELSEWHERE = "slice_elsewhere"
    #: Its workload starts with all slices or none, and they did not all come.
    GIVEN_BACK = "given_back"
    #: The living workload has no such slice any more (resized), or the slice is now of another shape.
    NOT_NEEDED = "not_needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Ask GKE for a pool."""

    slice_id: SliceId
    request: NodePoolRequest
    #: The leader pod and the workload, for Events.
    pod: ObjectRef
    workload: ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Prove the reason, close the gate, delete."""

    name: PoolName
    reason: DeleteReason
    kind: WorkloadKind = WorkloadKind.JOBSET
    namespace: str
    workload_name: str
    #: UID of the workload that the pool was made for; empty where it does not say.
    workload_uid: WorkloadUid
    #: For Events while the workload exists.
    workload: ObjectRef | None
    #: A node of the pool, for Events after that.
    node: ObjectRef | None
    #: Nodes that the pool has if all exist.
    hosts: int = 0
    membership: Membership = field(default_factory=Membership, repr=False, compare=False)
    #: The job whose own pods do not keep the pool: it is stuck.
    spared_group: GroupKey = GroupKey("")
    #: Whether the CRD of the workload's kind has not been installed for so long that the workload counts as deleted.
    kind_absent: bool = False
    #: The scheduler may have chosen its nodes for pods that are not bound yet: it is cordoned for a while first.
    settle: bool = False


class Assignment(NamedTuple):
    """Labels to write on one node, which decide what pods can be bound there."""

    node: str
    #: Values by key, of `placement.MARKS` or of the label for one child Job; None removes a label.
    labels: Mapping[str, str | None]
    #: Names of nodes. The labels are written only if no unfinished pod with chips is on any of these.
    verify: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """Ask GKE what became of a create that the list does not show."""

    name: PoolName
    #: What is asked for; empty: the pool itself.
    operation: OperationName = OperationName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that the owner of a workload has to know: becomes an Event on each object."""

    objects: tuple[ObjectRef, ...]
    reason: str
    message: str
    #: What stays the same when only numbers or times in the message change; empty: the message.
    key: str = ""
    warning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that the administrator has to look at."""

    #: One of a few, for a metric.
    kind: str
    message: str
    #: What it is about; empty where that is not one pool.
    pool: PoolName = PoolName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A pool changed its phase; what was passed in between is reported step by step."""

    pool: PoolName
    old: Phase | None
    new: Phase
    at: datetime
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWrite:
    """The status of a ProvisioningRequest or a CapacityBuffer."""

    kind: WorkloadKind
    namespace: str
    name: str
    #: Of the object that it follows from: a later one is left alone.
    resource_version: str
    #: As JSON; what is left out stays.
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LimitUse:
    """One limit of the settings, and how much of it is used."""

    #: The setting, such as MAX_CHIPS.
    name: str
    #: "all", the namespace or accelerator that the setting names, or "*": of all others the one that uses most.
    scope: str
    used: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One line of the read model: a pool, existing or wanted, and who it is for."""

    name: PoolName
    phase: Phase
    since: datetime
    #: The slice that holds or claims it; of several holders the first.
    slice_id: SliceId | None
    leader: Pod | None
    workload: Workload | None
    #: The workload of that slice; where there is none, the one that the pool was made for. Likewise the group.
    named: WorkloadName
    group_name: str
    machine_type: str
    topology: str
    chips: int
    nodes: int
    ready_nodes: int
    #: Why it is in this phase, in words, where that is not plain.
    note: str = ""
    #: When the create is tried next, or when the pool is due to be deleted; None where no moment is set.
    next_at: datetime | None = None
    #: Why it goes, of a pool that nothing needs.
    delete_reason: DeleteReason | None = None
    #: What its delete waits for beside its delay, in words; empty for nothing.
    delete_waits_for: str = ""
    #: Whether it looks idle even if it is needed: its workload is not watched, or its machine type is unknown.
    undecided: bool = False
    #: Slices with unfinished pods on it. None stands for pods whose slice cannot be told.
    holders: frozenset[SliceId | None] = frozenset()
    #: The slice that counts on it without holding it.
    claimant: SliceId | None = None
    #: Pods are on it, and all of them are of workloads that have ended or are suspended.
    draining: bool = False
    #: Whether a slice of several hosts has pods on it that has pods on other pools as well, or shares this pool.
    split: bool = False
    #: It was in this phase when this process first looked: for longer than since `since`.
    since_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything to do, to say, and to remember."""

    memory: Memory
    creates: tuple[Create, ...] = ()
    deletes: tuple[Delete, ...] = ()
    look_ups: tuple[LookUp, ...] = ()
    #: Nodes that we cordoned and whose pool stays.
    uncordons: tuple[str, ...] = ()
    #: Nodes of flex-start pools whose slices are all ready: the taint that held them is removed.
    releases: tuple[str, ...] = ()
    #: Nodes whose labels have to change.
    assignments: tuple[Assignment, ...] = ()
    notices: tuple[Notice, ...] = ()
    #: Why each slice that wants a pool has none.
    waits: Mapping[SliceId, WaitsFor] = field(default_factory=dict)
    statuses: tuple[StatusWrite, ...] = ()
    alerts: tuple[Alert, ...] = ()
    transitions: tuple[Transition, ...] = ()
    pools: tuple[PoolState, ...] = ()
    #: Slices of several hosts that do not have one pool to themselves.
    split_slices: frozenset[SliceId] = frozenset()
    limits: tuple[LimitUse, ...] = ()
    derived: Derived = field(default_factory=Derived)
    #: How old the list of pools may become before it is fetched again, in seconds.
    poll_seconds: float = 60.0
    #: When to decide again at the latest without any event; None: whenever the list is polled.
    wake_at: datetime | None = None

    @property
    def states(self) -> Mapping[PoolName, PoolState]:
        """The read model by pool."""
        return {state.name: state for state in self.pools}


def notice(slice_: Slice, reason: str, message: str, *, key: str = "", warning: bool = True) -> Notice:
    """Say something about a slice, on its leader pod and its workload."""
    leader = (pod_ref(slice_.leader),) if slice_.leader is not None else ()
    objects = tuple(dict.fromkeys((*leader, workload_ref(slice_.workload))))
    return Notice(objects=objects, reason=reason, message=message, key=key, warning=warning)


def wanted_pool(
    slice_: Slice, name: PoolName, phase: Phase, now: datetime, *, note: str = "", next_at: datetime | None = None
) -> PoolState:
    """Return the line of the read model for a pool that a slice wants and that does not exist."""
    shape, nodes = slice_.shape, slice_.nodes
    return PoolState(
        name=name,
        phase=phase,
        since=now,
        slice_id=slice_.id,
        leader=slice_.leader,
        workload=slice_.workload,
        named=slice_.workload.full_name,
        group_name=slice_.group_name,
        machine_type=shape.machine_type.name if shape is not None else "",
        topology=str(shape.topology) if shape is not None else "",
        chips=shape.machine_type.chips * nodes if shape is not None else 0,
        nodes=nodes,
        ready_nodes=0,
        note=note,
        next_at=next_at,
    )
