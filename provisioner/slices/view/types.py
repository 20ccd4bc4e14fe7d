"""Types of the `View`, which the API returns as JSON, and functions that derive states and ids from a `PoolState`."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from provisioner.slices.planning.contention.usage import LimitUse
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import PoolState


class State(StrEnum):
    """State of a slice or its node pool."""

    #: The slice waits for a pool, and usually gets one only if the workload or a setting is changed.
    REJECTED = "rejected"
    #: The slice waits for a node pool that is not being created yet.
    WAITING = "waiting"
    CREATING = "creating"
    #: The node pool exists; not all of its hosts are ready.
    JOINING = "joining"
    #: All hosts are ready; no pod of the slice is bound yet.
    READY = "ready"
    RUNNING = "running"
    #: A slice of several hosts does not have one node pool to itself, or a node pool has pods of such a slice.
    SPLIT = "split"
    #: The workload has ended or is suspended, but still has pods on the pool.
    DRAINING = "draining"
    IDLE = "idle"
    DELETING = "deleting"
    FAILED = "failed"
    #: The slice has no node pool, and none is planned.
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
    """Reason and message of an Event about a slice or a workload."""

    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """Object that requests TPUs, such as a JobSet."""

    #: Id in the form kind/namespace/name.
    id: str
    kind: str
    namespace: str
    name: str
    uid: str
    created_at: datetime
    #: State of the workload: lives, suspended, completed, failed or deleting.
    state: str
    chips: int
    #: Why the workload has no slices; empty if it has slices, or if `state` is the reason.
    reason: str
    #: Notices about the workload, or about slices without leader.
    notices: tuple[NoticeView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """Place of a slice in the queue for one limit, or for capacity that failed before."""

    #: Limit or capacity that the slices wait for, such as "the limit of all node pools".
    resource: str
    #: Position, 1 for the next slice.
    place: int
    length: int
    #: Ids of at most three slices ahead, the next one first.
    ahead: tuple[str, ...]
    #: At most three workloads that use most of the limit, each with its number of chips or pools.
    users: tuple[str, ...]
    other_users: int
    #: Chips of node pools with a planned delete in the scope of the limit; 0 for scopes that `build._idle` leaves out.
    idle_chips: int
    #: Time of the earliest delete of a node pool in `idle_chips`; None if `idle_chips` is 0.
    idle_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceView:
    """One slice of a workload."""

    #: Id in the form kind/namespace/workload/group.
    id: str
    workload: str
    #: Name of the child Job or group.
    group: str
    state: State
    #: Beginning of the state, or of the leader pod's wait; None if unknown.
    since: datetime | None
    #: Whether the state may be older than `since`, the time at which this process first saw the pool.
    since_start: bool
    reason: str
    #: Why the slice waits or is rejected, in a few words such as "stockout"; empty otherwise.
    cause: str
    #: Cause and next step; empty if `reason` suffices.
    brief: str
    #: What to do; empty if no step is known, or if `reason` contains it.
    next_step: str
    #: Time at which a create is tried again; None if unknown.
    next_try_at: datetime | None
    #: Name of the leader pod; empty if the slice has none.
    leader: str
    #: Time since which the leader pod is unschedulable or gated; None if it is neither.
    unschedulable_since: datetime | None
    #: Name of the slice's node pool; empty if no pool exists or is being created for it.
    pool: str
    accelerator: str
    machine_type: str
    topology: str
    chips: int
    hosts: int
    #: Number of unfinished pods; `bound_pods` of them are bound to nodes.
    pods: int
    bound_pods: int
    notices: tuple[NoticeView, ...] = ()
    #: Place in the queue for a limit or capacity; None if the slice is in no such queue.
    queue: QueueView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Node pool of the provisioner that exists, or whose create has been sent."""

    name: str
    state: State
    since: datetime
    #: Whether the state may be older than `since`, the time at which this process first saw the pool.
    since_start: bool
    #: Explanation of the state.
    reason: str
    #: Id of the first slice that uses or counts on the pool; empty if no slice does.
    slice: str
    #: Ids of the other slices that use, count on or share the pool.
    other_slices: tuple[str, ...]
    #: Id of the workload that uses the pool or, without one, for which it was created; empty if unknown.
    workload: str
    namespace: str
    zone: str
    #: Kind of capacity: on-demand, spot, reservation or flex-start.
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
    #: Earliest time of the delete; None if no delete is planned.
    delete_at: datetime | None
    delete_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffView:
    """Back-off of a capacity, a request or a slice after failures; it ends at `until`."""

    #: Zone, machine type, shape and terms; or the id of a delayed slice, or a failed request.
    capacity: str
    zone: str
    machine_type: str
    #: Topology and hosts, such as "4x4 on 4"; a description of the delayed slices if the request itself failed.
    shape: str
    terms: str
    #: Kind of the failure, such as stockout, quota or permission.
    kind: str
    #: Message of the failure.
    message: str
    failures: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityView:
    """Chips by state, and the limits and back-offs that may prevent creates."""

    #: Number of chips of node pools, and of waiting and rejected slices, by state.
    chips: dict[str, int]
    limits: tuple[LimitUse, ...]
    backoffs: tuple[BackoffView, ...]
    #: Number of node pools in creation or deletion, including those of other clients.
    operations: int
    #: Maximum of the provisioner's own operations, learned from GKE's rejections; None if the last minute had none.
    operations_limit: int | None
    creation_paused: bool
    #: Currency of costs, such as USD; empty if CHIP_HOUR_PRICES names none.
    currency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    """Problem that requires the administrator's attention."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """State of all slices, pools and capacity after one decision."""

    #: Time of the decision.
    at: datetime
    alerts: tuple[AlertView, ...]
    capacity: CapacityView
    workloads: tuple[WorkloadView, ...]
    slices: tuple[SliceView, ...]
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision, or the result of a decision."""

    #: Number of the entry since the process started, from 1.
    number: int
    at: datetime
    #: Kind of the entry: create, delete, pool, notice or alert.
    kind: str
    message: str
    warning: bool
    #: Name of the node pool; empty if the entry is not about one. `workload` is an id or empty.
    pool: str
    workload: str


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

#: Phases in which a split is shown. A failed pool, or a pool that is being deleted, is shown as such.
_WITH_PODS = (Phase.PROVISIONING, Phase.READY, Phase.IN_USE)


def state_of(pool: PoolState) -> State:
    """Return the state of an existing or planned pool; SPLIT if it has pods of a split slice."""
    return State.SPLIT if pool.split and pool.phase in _WITH_PODS else state_of_use(pool)


def state_of_use(pool: PoolState) -> State:
    """Return the state of an existing or planned pool as if no slice were split."""
    return State.DRAINING if pool.draining else STATES[pool.phase]


def workload_of_pool(state: PoolState) -> str:
    """Return the id of the workload that uses a pool or, without one, for which it was created; empty if unknown."""
    return state.named.id if state.named.name else ""


def slice_of_pool(state: PoolState) -> str:
    """Return the id of a pool's slice; empty if the slice or its workload is unknown."""
    return f"{workload_of_pool(state)}/{state.group_name}" if state.slice_id is not None and state.named.name else ""
