"""Types for clusters, node pools, nodes, requests for node pools, workload policies, operations and failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NewType

from provisioner import constants

PoolName = NewType("PoolName", str)
Zone = NewType("Zone", str)
OperationName = NewType("OperationName", str)
#: Matches generated names of node pools, and names of GKE instances, which contain the names of cluster and pool.
GENERATED_NAME = re.compile(r"(?<![\w-])(gke-[a-z0-9-]+|[a-z0-9][a-z0-9-]{0,60}-[0-9a-f]{10})(?![\w-])")

_UNIX_DIGITS = 10
_UNDER_WAY = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterName:
    """GKE cluster. Its text form is PROJECT/LOCATION/CLUSTER."""

    project: str
    #: Region of a regional cluster, or zone of a zonal cluster.
    location: str
    cluster: str

    @property
    def location_path(self) -> str:
        """Resource name of the location in GKE's API."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def path(self) -> str:
        """Resource name of the cluster in GKE's API."""
        return f"{self.location_path}/clusters/{self.cluster}"

    def __str__(self) -> str:
        return f"{self.project}/{self.location}/{self.cluster}"


class PoolStatus(Enum):
    """Status of a node pool in GKE's API v1. Other suppliers convert their statuses to these values."""

    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    RUNNING_WITH_ERROR = "RUNNING_WITH_ERROR"
    RECONCILING = "RECONCILING"
    STOPPING = "STOPPING"
    ERROR = "ERROR"
    #: Status that is unspecified, unreadable or new in the API. Such a pool gets no further slices, and is not deleted.
    UNKNOWN = "UNKNOWN"


class CapacityKind(Enum):
    """Terms on which Google provides TPUs."""

    RESERVATION = "reservation"
    ON_DEMAND = "on-demand"
    SPOT = "spot"
    #: Dynamic Workload Scheduler: a pool is created without nodes, gets them later, and has them for a limited time.
    FLEX_START = "flex-start"


class FailureKind(Enum):
    """Kind of a failure, which determines the reaction. Each supplier maps the errors of its API to kinds."""

    STOCKOUT = "stockout"
    QUOTA = "quota"
    #: The call is rejected for now, for example because of another operation or because the resource is in use.
    OPERATION_IN_THE_WAY = "operation_in_the_way"
    TOO_MANY_OPERATIONS = "too_many_operations"
    UNKNOWN_OUTCOME = "unknown_outcome"
    INVALID = "invalid"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    #: Temporary or unknown cause, such as an unreachable API. A call that failed in this way took no effect.
    UNAVAILABLE = "unavailable"
    #: The scheduler bound no pod to the ready nodes of a pool.
    UNSCHEDULABLE = "unschedulable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure of a call or of a pool."""

    kind: FailureKind
    message: str

    @property
    def for_all(self) -> Failure:
        """This failure without generated names of pools and instances, which other namespaces' users must not see."""
        return replace(self, message=GENERATED_NAME.sub("…", self.message))


class CallError(Exception):
    """A call to a provider of capacity, such as GKE, failed. Each client raises only its own subclass."""

    def __init__(
        self, failure: Failure, subject: str = "", *, retry_after_seconds: float | None = None, code: int = 0
    ) -> None:
        super().__init__(f"{subject}: {failure.message}" if subject else failure.message)
        self.failure = failure
        #: Name of the call and its object, such as "delete of instance group manager 'a'"; empty if unknown.
        self.subject = subject
        self.retry_after_seconds = retry_after_seconds
        #: HTTP status of the response; 0 if there was no HTTP response.
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Taint of a node. `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Node pool as its supplier lists it."""

    name: PoolName
    status: PoolStatus
    failure: Failure | None = None
    #: Labels in the create request, without the labels that the supplier adds to nodes.
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    machine_type: str = ""
    #: Number of nodes of the complete pool. A flex-start pool is created without nodes.
    hosts: int = 0
    #: Whether all machines of the pool's TPUNodeGroup exist; always False on GKE.
    made: bool = False
    zones: tuple[Zone, ...] = ()
    topology: str = ""
    capacity: CapacityKind = CapacityKind.ON_DEMAND
    #: Name or path of the reservation that the pool names; empty if the pool names none.
    reservation: str = ""
    #: Time at which Compute Engine deletes the reservation with its machines; None if never, or if unknown.
    ends_at: datetime | None = None
    policy_name: str = ""
    #: Values of node settings in the supplier's list, by field (`settings.node_fields`).
    node: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Possible prefixes of the names of the pool's nodes, without the hyphen at the end; empty if unknown.
    node_prefixes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Additional network of the nodes of a pool."""

    network: str
    subnetwork: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoolRequest:
    """Request to create a node pool."""

    name: PoolName
    zone: Zone
    machine_type: str
    hosts: int
    topology: str
    capacity: CapacityKind = CapacityKind.ON_DEMAND
    #: Name, or projects/P/reservations/R[/reservationBlocks/B[/reservationSubBlocks/S]]; empty without a reservation.
    reservation: str = ""
    #: Seconds after which Google deletes the nodes. 0 means 7 days for flex-start, and no limit for other capacity.
    max_run_seconds: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    #: Digest of the node settings and placement policy that the pods choose; empty if the pods choose none.
    own_inputs: str = ""

    # --- fields that only the supplier reads

    #: Topology of COMPACT placement; empty if the pool has no COMPACT placement.
    placement_topology: str = ""
    #: Name of the workload policy, which replaces COMPACT placement; empty if the pool has no workload policy.
    policy_name: str = ""
    node: Mapping[str, Any] = field(default_factory=dict)
    #: Whether the pool has auto-upgrade, which a maintenance exclusion delays until the end of support.
    auto_upgrade: bool = False

    @property
    def digest(self) -> str:
        """Digest of the request in its label NODEPOOL_HASH; empty without the label."""
        return self.labels.get(constants.NODEPOOL_HASH, "")


def expected_pool(request: NodePoolRequest) -> NodePool:
    """Return the pool as a supplier lists it right after accepting the request."""
    return NodePool(
        name=request.name,
        status=PoolStatus.PROVISIONING,
        labels=request.labels,
        taints=request.taints,
        machine_type=request.machine_type,
        hosts=request.hosts,
        zones=(request.zone,),
        topology=request.topology,
        capacity=request.capacity,
        reservation=request.reservation,
        policy_name=request.policy_name,
        node=request.node,
    )


HIGH_THROUGHPUT = "HIGH_THROUGHPUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicy:
    """Resource policy of Compute Engine for multi-host slices. Slices of one topology and region usually share one."""

    name: str
    #: Type of the workload policy; empty for a resource policy of another kind.
    type: str = HIGH_THROUGHPUT
    topology: str
    status: str = "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Long-running operation of an API. A failed operation is `done` and has a `failure`."""

    name: OperationName
    done: bool
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Node of a node pool."""

    name: str
    uid: str = ""
    #: Node pool in the node's annotation or label, later corrected by `model.membership`; empty if unknown.
    pool_name: PoolName
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = False
    cordoned: bool = False
    #: Whether the provisioner cordoned the node, according to its annotation CORDONED.
    cordoned_by_us: bool = False
    allocatable_chips: int = 0
    allocatable_cpu_millicores: int = 0
    allocatable_memory_bytes: int = 0
    #: Bytes of ephemeral storage and of huge pages, by resource. A resource that the node does not report has no entry.
    allocatable_other_bytes: tuple[tuple[str, int], ...] = ()
    provider_id: str = ""
    created_at: datetime

    @property
    def maintenance_at(self) -> datetime | None:
        """Time of the host's maintenance; `datetime.min` if a maintenance has begun or is imminent; None if unknown."""
        ongoing = self.labels.get(constants.ACTIVE_MAINTENANCE) == "ONGOING"
        if ongoing or any(taint.key == constants.IMPENDING_TERMINATION for taint in self.taints):
            return _UNDER_WAY
        text = self.labels.get(constants.SCHEDULED_MAINTENANCE, "")
        seconds = int(text) if text.isascii() and text.isdigit() and len(text) <= _UNIX_DIGITS else 0
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
