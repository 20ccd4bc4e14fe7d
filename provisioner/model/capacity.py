"""Clusters, node pools and nodes: their state, requests for node pools, and kinds of failures."""

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
#: Matches names that GKE or the provisioner generated. Names of instances contain the cluster's and the pool's name.
GENERATED_NAME = re.compile(r"(?<![\w-])(gke-[a-z0-9-]+|[a-z0-9][a-z0-9-]{0,60}-[0-9a-f]{10})(?![\w-])")

#: Maximum digits of a Unix time; a longer label value is ignored.
_UNIX_DIGITS = 10
#: Time of a maintenance that has begun.
_UNDER_WAY = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterName:
    """GKE cluster. Its text form is PROJECT/LOCATION/CLUSTER."""

    project: str
    #: Region of a regional cluster, zone of a zonal one.
    location: str
    cluster: str

    @property
    def location_path(self) -> str:
        """Resource name of the project's location."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def path(self) -> str:
        """Resource name in GKE's API."""
        return f"{self.location_path}/clusters/{self.cluster}"

    def __str__(self) -> str:
        return f"{self.project}/{self.location}/{self.cluster}"


class PoolStatus(Enum):
    """Status of a node pool, in the terms of GKE's API v1. Each supplier converts its own terms."""

    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    RUNNING_WITH_ERROR = "RUNNING_WITH_ERROR"
    RECONCILING = "RECONCILING"
    STOPPING = "STOPPING"
    ERROR = "ERROR"
    #: STATUS_UNSPECIFIED or a new status. Such a pool never counts as supply and is never deleted.
    UNKNOWN = "UNKNOWN"


class CapacityKind(Enum):
    """Terms on which Google provides TPUs."""

    RESERVATION = "reservation"
    ON_DEMAND = "on-demand"
    SPOT = "spot"
    #: Dynamic workload scheduler: a pool is created without nodes, and keeps its nodes for a limited time.
    FLEX_START = "flex-start"


class FailureKind(Enum):
    """Kind of a failure, which determines the reaction. Tables of Google's errors map each error to a kind."""

    STOCKOUT = "stockout"
    QUOTA = "quota"
    #: Another operation excludes this one for now, or still uses the resource to be deleted.
    OPERATION_IN_THE_WAY = "operation_in_the_way"
    TOO_MANY_OPERATIONS = "too_many_operations"
    #: Whether the call took effect is unknown.
    UNKNOWN_OUTCOME = "unknown_outcome"
    INVALID = "invalid"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    #: Google or the connection failed before the call took effect, or a pool failed without a known reason.
    UNAVAILABLE = "unavailable"
    #: The scheduler bound no pod to the ready nodes of a pool.
    UNSCHEDULABLE = "unschedulable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure with Google's message."""

    kind: FailureKind
    message: str

    @property
    def for_all(self) -> Failure:
        """This failure without names of node pools and instances, which other tenants must not see."""
        return replace(self, message=GENERATED_NAME.sub("…", self.message))


class CallError(Exception):
    """A failed call to a supplier of capacity. Each supplier's interface raises only its own subclass."""

    def __init__(
        self, failure: Failure, subject: str = "", *, retry_after_seconds: float | None = None, code: int = 0
    ) -> None:
        super().__init__(f"{subject}: {failure.message}" if subject else failure.message)
        self.failure = failure
        #: Call and object, such as "delete of instance group manager 'a'".
        self.subject = subject
        #: Pause in seconds that the supplier requested; None if it requested no pause.
        self.retry_after_seconds = retry_after_seconds
        #: HTTP status of the response; 0 without a response.
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Taint of a node; `effect` in Kubernetes' spelling (NoSchedule, PreferNoSchedule, NoExecute)."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Node pool as listed by its supplier."""

    name: PoolName
    status: PoolStatus
    #: Failure that the status reports; None without a failure.
    failure: Failure | None = None
    #: config.labels: the labels in the create request, without those that GKE adds to nodes.
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    machine_type: str = ""
    #: Number of nodes of the whole pool, including nodes that a pool created without nodes has yet to get.
    hosts: int = 0
    #: Whether all machines exist, so that a pool without nodes does not wait for capacity. Set only for TPUNodeGroups.
    made: bool = False
    zones: tuple[Zone, ...] = ()
    #: Topology of the slice; empty if unknown.
    topology: str = ""
    capacity: CapacityKind = CapacityKind.ON_DEMAND
    #: Name or path of the only reservation; empty if none.
    reservation: str = ""
    #: Time at which Compute Engine deletes the reservation and its machines; None if never or unknown.
    ends_at: datetime | None = None
    #: Workload policy of the pool; empty if none.
    policy_name: str = ""
    #: Known values of node settings by field (`settings.node_fields`).
    node: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Prefixes of the names of the pool's nodes, without the last hyphen; empty if unknown, as in a request.
    node_prefixes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Additional network of the nodes."""

    network: str
    subnetwork: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoolRequest:
    """Complete request for a node pool: the properties of the slice, then fields that only the supplier reads."""

    name: PoolName
    zone: Zone
    machine_type: str
    #: Number of nodes of the whole pool. A flex-start pool is created without nodes and then grows to this number.
    hosts: int
    topology: str
    capacity: CapacityKind = CapacityKind.ON_DEMAND
    #: Name, or projects/P/reservations/R[/reservationBlocks/B[/reservationSubBlocks/S]]; empty if none.
    reservation: str = ""
    #: Time in seconds after which Google deletes the nodes; 0 for Google's default: 7 days with flex-start, or never.
    max_run_seconds: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    #: Digest of the values, such as networks, by which pods override the settings; empty if none.
    own_inputs: str = ""

    # --- fields that only the supplier reads

    #: Topology of COMPACT placement; empty if not used.
    placement_topology: str = ""
    #: Workload policy of the slice's topology, instead of COMPACT placement; empty if not used.
    policy_name: str = ""
    #: Values of the node settings by field (`settings.node_fields`), without absent ones.
    node: Mapping[str, Any] = field(default_factory=dict)
    #: Whether GKE may upgrade the nodes when the support of their version ends; otherwise GKE never upgrades them.
    auto_upgrade: bool = False

    @property
    def digest(self) -> str:
        """Digest of the request, which is also a label of the pool."""
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


#: Type of the workload policies of slices.
HIGH_THROUGHPUT = "HIGH_THROUGHPUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicy:
    """Resource policy of Compute Engine for multi-host slices. All slices of a topology and region share a policy."""

    name: str
    #: Type of the workload policy; empty for a resource policy of another kind.
    type: str = HIGH_THROUGHPUT
    topology: str
    #: Status in Compute Engine: CREATING, READY, DELETING, ...
    status: str = "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Long-running operation. It has failed if `done` and `failure` are set."""

    name: OperationName
    done: bool
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Node of a node pool."""

    name: str
    uid: str = ""
    #: Empty if neither the annotation nor the label is set (`provisioner.model.membership`).
    pool_name: PoolName
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = False
    #: Whether spec.unschedulable is true.
    cordoned: bool = False
    #: Whether the node has the annotation by which the provisioner records that it cordoned the node.
    cordoned_by_us: bool = False
    allocatable_chips: int = 0
    allocatable_cpu_millicores: int = 0
    allocatable_memory_bytes: int = 0
    #: Bytes of ephemeral storage and of huge pages by resource; without a resource that the node does not report.
    allocatable_other_bytes: tuple[tuple[str, int], ...] = ()
    provider_id: str = ""
    created_at: datetime

    @property
    def maintenance_at(self) -> datetime | None:
        """Time of the host's maintenance, or `datetime.min` if that has begun or is imminent; None if unknown."""
        ongoing = self.labels.get(constants.ACTIVE_MAINTENANCE) == "ONGOING"
        if ongoing or any(taint.key == constants.IMPENDING_TERMINATION for taint in self.taints):
            return _UNDER_WAY
        text = self.labels.get(constants.SCHEDULED_MAINTENANCE, "")
        seconds = int(text) if text.isascii() and text.isdigit() and len(text) <= _UNIX_DIGITS else 0
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
