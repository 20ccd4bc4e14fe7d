"""The types of the read model, which as JSON are the API's, and the names that people are shown and can type."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from provisioner.model.workloads import WorkloadName
from provisioner.slices.demand import Slice
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import LimitUse, PoolState


class State(StrEnum):
    """Where a slice or its node pool is."""

    #: A leader pod that cannot be scheduled, and no node pool yet.
    WAITING = "waiting"
    #: The create has been sent.
    CREATING = "creating"
    #: The node pool exists; not all of its hosts are ready.
    JOINING = "joining"
    #: All hosts are ready; no pod is bound yet.
    READY = "ready"
    RUNNING = "running"
    #: Of a slice of several hosts: its pods do not have one node pool to themselves. Of a node pool: it has such pods.
    SPLIT = "split"
    #: Pods of a workload that has ended, or is suspended, are still there.
    DRAINING = "draining"
    #: Nothing needs the node pool.
    IDLE = "idle"
    DELETING = "deleting"
    FAILED = "failed"
    #: Of a slice: it neither has nor wants a node pool.
    NONE = "none"


#: The letters of `PoolView.hosts`.
HOST_ABSENT: Final = "."
HOST_JOINING: Final = "j"
HOST_CHIPS_MISSING: Final = "c"
HOST_READY: Final = "r"
HOST_RUNNING: Final = "R"
#: The reason of what runs and needs nobody to look.
RUNS: Final = "Pods run on it."


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeView:
    """Something that the owner of a workload has to know: the words of the Event."""

    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """An object whose pods ask for TPUs, such as a JobSet."""

    #: kind/namespace/name.
    id: str
    kind: str
    namespace: str
    name: str
    uid: str
    created_at: datetime
    #: lives, suspended, completed, failed, deleting.
    state: str
    #: Of its slices.
    chips: int
    #: Why it has no slices; empty where it has some, or where its state says why.
    reason: str
    #: Those about the workload as a whole.
    notices: tuple[NoticeView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The place of a slice in the line of those that wait for one limit."""

    #: What is limited: all pools together, a namespace, an accelerator, or creates.
    limit: str
    #: 1 is next. Slices that start together have one place.
    place: int
    length: int
    #: The first ids of slices ahead of it.
    ahead: tuple[str, ...]
    #: Workloads whose node pools use most of the limit, with their chips; then how many more there are.
    users: tuple[str, ...]
    other_users: int
    #: Chips of node pools that nothing needs, and when the first of them is due to be deleted.
    idle_chips: int
    idle_until: datetime | None
    #: What to do apart from waiting.
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceView:
    """One slice of a workload."""

    #: kind/namespace/workload/group.
    id: str
    #: The id of its workload.
    workload: str
    #: The name of the child Job or group.
    group: str
    state: State
    #: When the state was entered; None: unknown.
    since: datetime | None
    #: It was already in this state at `since`, when the process started.
    since_start: bool
    #: One sentence: why it is in this state.
    reason: str
    #: When the next create is tried.
    next_try_at: datetime | None
    #: Its leader pod; empty where there is none.
    leader: str
    #: Since when the scheduler cannot place the leader pod.
    unschedulable_since: datetime | None
    #: The node pool that it has, or that is created for it.
    pool: str
    accelerator: str
    machine_type: str
    topology: str
    chips: int
    hosts: int
    #: Unfinished pods, and those of them that are bound to a node.
    pods: int
    bound_pods: int
    notices: tuple[NoticeView, ...] = ()
    #: None: it waits for no limit.
    queue: QueueView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One node pool of the provisioner that exists, or whose create has been sent."""

    name: str
    state: State
    since: datetime
    #: It was already in this state at `since`, when the process started.
    since_start: bool
    #: One sentence: why it stays, or why it is deleted.
    reason: str
    #: The id of the slice that has it; empty where none does.
    slice: str
    #: The ids of other slices that have pods on it.
    other_slices: tuple[str, ...]
    #: The id of the workload that it is for, or was created for; empty if unknown.
    workload: str
    #: Of the workload that it is for, or was created for.
    namespace: str
    zone: str
    #: on-demand, spot, reservation, flex-start.
    capacity: str
    #: The reservation's name or path; empty for none.
    reservation: str
    accelerator: str
    machine_type: str
    topology: str
    chips: int
    #: One letter for each host: "." absent, "j" joining or not ready, "c" chips missing, "r" ready, "R" running pods.
    hosts: str
    #: Nodes that are not ready or do not show all their chips: the first ten.
    unready_nodes: tuple[str, ...]
    #: The cost of its existing hosts an hour, in the currency of CHIP_HOUR_PRICES; None: without a price.
    cost_per_hour: float | None
    #: When it is deleted at the earliest, and why; None and empty while something needs it.
    delete_at: datetime | None
    delete_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffView:
    """A choice of capacity that was not available, and is not tried before `until`."""

    #: Zone, machine type, shape and terms as one text; for a single slice, or a rejected request of it, the slice's id.
    capacity: str
    zone: str
    machine_type: str
    #: Topology and hosts; for a rejected request or a failed pool, what it delays.
    shape: str
    terms: str
    #: stockout, quota, permission, ...
    kind: str
    #: The message of GKE or Compute Engine.
    message: str
    failures: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityView:
    """Chips by state, and what prevents more."""

    #: By state, including those that are 0.
    chips: dict[str, int]
    limits: tuple[LimitUse, ...]
    backoffs: tuple[BackoffView, ...]
    #: Node pool operations in progress in the cluster, and how many GKE accepts at once; None: unknown.
    operations: int
    operations_limit: int | None
    creation_paused: bool
    #: Of amounts, such as USD; empty where CHIP_HOUR_PRICES does not say it.
    currency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    """Something that the administrator has to look at."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything at one moment."""

    #: The time of the decision that this shows.
    at: datetime
    alerts: tuple[AlertView, ...]
    capacity: CapacityView
    workloads: tuple[WorkloadView, ...]
    slices: tuple[SliceView, ...]
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision, or one result of a decision."""

    #: Counts up from 1 since the process started.
    number: int
    at: datetime
    #: create, delete, pool, notice, alert.
    kind: str
    message: str
    warning: bool
    #: The node pool and the workload (kind/namespace/name) that it is about; empty for none.
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

#: In the others, the end of the pool matters more than what its pods lack.
_WITH_PODS = (Phase.PROVISIONING, Phase.READY, Phase.IN_USE)


def state_of(pool: PoolState) -> State:
    """Return the state of one pool, or of the slice that waits for one."""
    return State.SPLIT if pool.split and pool.phase in _WITH_PODS else state_of_use(pool)


def state_of_use(pool: PoolState) -> State:
    """Return the state of a pool, as a slice that is not split sees it."""
    return State.DRAINING if pool.draining else STATES[pool.phase]


def workload_id(name: WorkloadName) -> str:
    """Return kind/namespace/name."""
    return f"{name.kind.value}/{name.namespace}/{name.name}"


def id_of_slice(slice_: Slice) -> str:
    """Return kind/namespace/name/group."""
    return f"{workload_id(slice_.workload.full_name)}/{slice_.group_name}"


def workload_of_pool(state: PoolState) -> str:
    """Return the id of the workload that a pool is for, or was created for; empty if unknown."""
    return workload_id(state.named) if state.named.name else ""


def slice_of_pool(state: PoolState) -> str:
    """Return the id of the slice that a pool is for; empty where it is for none."""
    return f"{workload_of_pool(state)}/{state.group_name}" if state.slice_id is not None and state.named.name else ""
