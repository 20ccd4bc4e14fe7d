"""Types of the view, which the API returns as JSON, and functions for the state, slice and workload of a pool."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from provisioner.slices.planning.contention.usage import LimitUse
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import PoolState


class State(StrEnum):
    """State of a slice or its node pool."""

    #: The slice gets no node pool unless its workload or a setting is changed.
    REJECTED = "rejected"
    #: The leader pod cannot be scheduled, and there is no node pool yet.
    WAITING = "waiting"
    #: The create has been sent.
    CREATING = "creating"
    #: The node pool exists; not all of its hosts are ready.
    JOINING = "joining"
    #: All hosts are ready; no pod is bound yet.
    READY = "ready"
    RUNNING = "running"
    #: A slice of several hosts does not have one node pool to itself, or a node pool has pods of such a slice.
    SPLIT = "split"
    #: The workload has ended or is suspended, but still has pods on the pool.
    DRAINING = "draining"
    #: Nothing needs the node pool.
    IDLE = "idle"
    DELETING = "deleting"
    FAILED = "failed"
    #: A slice neither has nor wants a node pool.
    NONE = "none"


class Host(StrEnum):
    """Letter of a host in `PoolView.hosts`."""

    ABSENT = "."
    JOINING = "j"
    CHIPS_MISSING = "c"
    READY = "r"
    RUNNING = "R"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeView:
    """Message for the owner of a workload, with the text of the Event."""

    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """Object whose pods request TPUs, such as a JobSet."""

    #: Id in the form kind/namespace/name.
    id: str
    kind: str
    namespace: str
    name: str
    uid: str
    created_at: datetime
    #: State of the workload: lives, suspended, completed, failed, deleting.
    state: str
    #: Chips of the workload's slices.
    chips: int
    #: Why the workload has no slices; empty if it has slices, or if `state` is the reason.
    reason: str
    #: Notices about the workload as a whole.
    notices: tuple[NoticeView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """Place of a slice in the line for one limit, or for capacity that failed before."""

    #: The limit with its scope, such as "the limit of all node pools"; or the capacity.
    resource: str
    #: Position in the line; 1 is next. Slices that start together have the same place.
    place: int
    length: int
    #: Ids of the first slices ahead in the line.
    ahead: tuple[str, ...]
    #: Workloads whose node pools use most of the limit, with their chips.
    users: tuple[str, ...]
    #: Number of further workloads whose node pools use the limit.
    other_users: int
    #: Chips of unneeded node pools that count against the limit.
    idle_chips: int
    #: Earliest time at which an unneeded node pool that counts against the limit is deleted; None without such a pool.
    idle_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceView:
    """One slice of a workload."""

    #: Id in the form kind/namespace/workload/group.
    id: str
    #: Id of the slice's workload.
    workload: str
    #: Name of the child Job or group.
    group: str
    state: State
    #: Time at which the state was entered; None if unknown.
    since: datetime | None
    #: Whether the slice was in this state when the process first saw it, so that the state began before `since`.
    since_start: bool
    #: Sentence with the reason of the state.
    reason: str
    #: Why the slice waits or is rejected, in a few words such as "stockout"; empty in other states.
    cause: str
    #: What to do apart from waiting; empty if nothing helps, or if the reason contains it.
    next_step: str
    #: Time of the next attempt to create a pool; None if none is planned.
    next_try_at: datetime | None
    #: Name of the leader pod; empty if no leader pod exists.
    leader: str
    #: Time since which the scheduler cannot place the leader pod; None if it can.
    unschedulable_since: datetime | None
    #: Name of the slice's node pool, if the pool exists or is being created; otherwise empty.
    pool: str
    accelerator: str
    machine_type: str
    topology: str
    chips: int
    hosts: int
    #: Number of unfinished pods, and number of bound pods among them.
    pods: int
    bound_pods: int
    notices: tuple[NoticeView, ...] = ()
    #: Place in the line for a limit or for capacity that failed before; None if the slice waits for neither.
    queue: QueueView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Node pool of the provisioner that exists, or whose create has been sent."""

    name: str
    state: State
    since: datetime
    #: Whether the pool was in this state when the process first saw it, so that the state began before `since`.
    since_start: bool
    #: Sentence with the reason why the pool is kept or deleted.
    reason: str
    #: Id of the first slice that uses or counts on the pool; empty if no slice does.
    slice: str
    #: Ids of the other slices that use, count on or share the pool.
    other_slices: tuple[str, ...]
    #: Id of the workload that the pool is for, or was created for; empty if unknown.
    workload: str
    #: Namespace of `workload`.
    namespace: str
    zone: str
    #: Kind of capacity: on-demand, spot, reservation, flex-start.
    capacity: str
    #: Name or path of the reservation; empty if the pool is in no reservation.
    reservation: str
    accelerator: str
    machine_type: str
    topology: str
    chips: int
    #: One letter for each host: "." absent, "j" joining or not ready, "c" chips missing, "r" ready, "R" running pods.
    hosts: str
    #: Names of the first ten nodes that are not ready or do not show all their chips.
    unready_nodes: tuple[str, ...]
    #: Cost of the existing hosts per hour, in the currency of CHIP_HOUR_PRICES; None without a price.
    cost_per_hour: float | None
    #: Earliest time of the delete, and its reason; None and empty if no delete is planned.
    delete_at: datetime | None
    delete_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffView:
    """Choice of capacity, or request, that failed and is not tried again before `until`."""

    #: Zone, machine type, shape and terms as one text; the slice's id if only one slice is delayed.
    capacity: str
    zone: str
    machine_type: str
    #: Topology and hosts; if a request failed for other reasons than capacity, the slices that are delayed.
    shape: str
    terms: str
    #: Kind of the failure: stockout, quota, permission, ...
    kind: str
    #: Message of GKE or Compute Engine.
    message: str
    failures: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityView:
    """Chips by state, and the limits and back-offs that prevent creates."""

    #: Chips by state; states without chips are included.
    chips: dict[str, int]
    limits: tuple[LimitUse, ...]
    backoffs: tuple[BackoffView, ...]
    #: Node pool operations in progress in the cluster.
    operations: int
    #: Learned maximum of `operations`; None a minute after GKE's last rejection.
    operations_limit: int | None
    creation_paused: bool
    #: Currency of amounts, such as USD; empty if CHIP_HOUR_PRICES does not name it.
    currency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    """Problem that requires the administrator's attention."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The whole read model at one time."""

    #: Time of the decision that the view shows.
    at: datetime
    alerts: tuple[AlertView, ...]
    capacity: CapacityView
    workloads: tuple[WorkloadView, ...]
    slices: tuple[SliceView, ...]
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision, or the result of a decision."""

    #: Number of the entry, counted from 1 since the process started.
    number: int
    at: datetime
    #: Kind of the entry: create, delete, pool, notice, alert.
    kind: str
    message: str
    warning: bool
    #: Node pool and workload (kind/namespace/name) of the entry; either may be empty.
    pool: str
    workload: str


#: State that users see, by phase of the pool.
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

#: Phases in which a split is shown. In other phases, a pool has no pods yet, or it is more important that it ends.
_WITH_PODS = (Phase.PROVISIONING, Phase.READY, Phase.IN_USE)


def state_of(pool: PoolState) -> State:
    """Return the state of a pool that exists or is planned; SPLIT if it has pods of a split slice."""
    return State.SPLIT if pool.split and pool.phase in _WITH_PODS else state_of_use(pool)


def state_of_use(pool: PoolState) -> State:
    """Return the state of a pool that exists or is planned, without regard to split slices."""
    return State.DRAINING if pool.draining else STATES[pool.phase]


def workload_of_pool(state: PoolState) -> str:
    """Return the id of the workload that a pool is for, or was created for; empty if unknown."""
    return state.named.id if state.named.name else ""


def slice_of_pool(state: PoolState) -> str:
    """Return the id of the slice that a pool is for; empty if the pool is for no slice."""
    return f"{workload_of_pool(state)}/{state.group_name}" if state.slice_id is not None and state.named.name else ""
