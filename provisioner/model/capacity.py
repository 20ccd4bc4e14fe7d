"""Clusters, node pools and nodes: what there is, what can be asked for, and how a request can fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import NewType

from provisioner import constants

PoolName = NewType("PoolName", str)
Zone = NewType("Zone", str)
OperationName = NewType("OperationName", str)
#: A name that GKE or the provisioner made: instances and their groups have those of cluster and pool in theirs, cut.
GENERATED_NAME = re.compile(r"(?<![\w-])(gke-[a-z0-9-]+|[a-z0-9][a-z0-9-]{0,60}-[0-9a-f]{10})(?![\w-])")

#: Of a time in seconds; a longer one is none.
_UNIX_DIGITS = 10
_UNDER_WAY = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterName:
    """A cluster of GKE; as text as people write it, PROJECT/LOCATION/CLUSTER."""

    project: str
    #: The region of a regional cluster, the zone of a zonal one.
    location: str
    cluster: str

    @property
    def location_path(self) -> str:
        """The resource name of its project and location."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def path(self) -> str:
        """Its resource name in GKE's API."""
        return f"{self.location_path}/clusters/{self.cluster}"

    def __str__(self) -> str:
        return f"{self.project}/{self.location}/{self.cluster}"


class PoolStatus(Enum):
    """How far a node pool is. The words are those of GKE's API, v1; each supplier translates its own into them."""

    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    RUNNING_WITH_ERROR = "RUNNING_WITH_ERROR"
    RECONCILING = "RECONCILING"
    STOPPING = "STOPPING"
    ERROR = "ERROR"
    #: STATUS_UNSPECIFIED, or a status that this release does not know: never supply, never deleted.
    UNKNOWN = "UNKNOWN"


class CapacityKind(Enum):
    """The terms on which Google hands out TPUs."""

    RESERVATION = "reservation"
    ON_DEMAND = "on-demand"
    SPOT = "spot"
    #: Dynamic workload scheduler: a pool is made empty, which is no failure, and has its nodes for a bounded time.
    FLEX_START = "flex-start"


class FailureKind(Enum):
    """What a failure means for what to do next; the boundary's error table gives one to each error."""

    STOCKOUT = "stockout"
    QUOTA = "quota"
    #: Something else is under way that excludes this for now, or still uses what this would delete.
    OPERATION_IN_THE_WAY = "operation_in_the_way"
    TOO_MANY_OPERATIONS = "too_many_operations"
    #: The call may or may not have had its effect.
    UNKNOWN_OUTCOME = "unknown_outcome"
    INVALID = "invalid"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    #: Google or the way to it failed before the call had any effect.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure with Google's own words."""

    kind: FailureKind
    message: str

    @property
    def for_all(self) -> Failure:
        """The same without the names of node pools and instances: those are one tenant's, and others are told too."""
        return replace(self, message=GENERATED_NAME.sub("…", self.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node taint, effect in Kubernetes' spelling (NoSchedule, PreferNoSchedule, NoExecute)."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """A node pool as its supplier lists it."""

    name: PoolName
    status: PoolStatus
    #: Set when the status tells of a failure.
    failure: Failure | None = None
    #: config.labels: what the creator asked for, without the labels that GKE adds to nodes.
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    machine_type: str = ""
    #: Nodes of the whole pool, the ones included that a pool which was made empty has yet to get.
    hosts: int = 0
    #: All its machines were created: without nodes it does not wait for capacity. Told only of TPUNodeGroups.
    made: bool = False
    zones: tuple[Zone, ...] = ()
    #: Topology of the slice that it makes; empty where it cannot be told.
    topology: str = ""
    capacity: CapacityKind = CapacityKind.ON_DEMAND
    #: Name or path of the one reservation, empty for none.
    reservation: str = ""
    #: When Compute Engine deletes that reservation, and its machines with it; None: never, or that is not known.
    ends_at: datetime | None = None
    #: The workload policy that shapes it; empty for none.
    policy_name: str = ""
    #: Empty where it is not known.
    disk_type: str = ""
    #: Part of the names of its nodes before the last hyphen, in all forms; empty if unknown, as in a request.
    node_prefixes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One additional network of the nodes."""

    network: str
    subnetwork: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoolRequest:
    """Everything that a create says: facts of the slice, then what only the supplier that adds it reads."""

    name: PoolName
    zone: Zone
    machine_type: str
    #: Nodes of the whole pool. Of flex-start capacity it is made empty, to grow to this at once.
    hosts: int
    topology: str
    capacity: CapacityKind = CapacityKind.ON_DEMAND
    #: Name, or projects/P/reservations/R, then optionally /reservationBlocks/B and /reservationSubBlocks/S; empty for
    #: none.
    reservation: str = ""
    #: Google takes the nodes away after this; 0: never.
    max_run_seconds: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    #: A fingerprint of what the pods chose in place of the settings, such as networks; empty for nothing.
    own_inputs: str = ""

    # --- what only the supplier reads

    #: COMPACT placement with this topology; empty for none.
    placement_topology: str = ""
    #: A workload policy of the slice's topology, instead of COMPACT placement; empty for none.
    policy_name: str = ""
    #: Empty for GKE's default.
    disk_type: str = ""
    service_account: str = ""
    oauth_scopes: tuple[str, ...] = ()
    #: GKE upgrades the nodes, but not before their version's end of support; off: never.
    auto_upgrade: bool = False
    #: Hosts whose nodes have been idle for this long may be maintained at once; 0: only when Google schedules it.
    idle_maintenance_seconds: int = 0
    tags: tuple[str, ...] = ()
    additional_networks: tuple[Network, ...] = ()
    max_pods_per_node: int = 15
    secure_boot: bool = True
    secondary_boot_disk: str = ""
    confidential_storage: bool = False
    boot_disk_kms_key: str = ""

    @property
    def digest(self) -> str:
        """Its fingerprint, which it bears as a label."""
        return self.labels.get(constants.NODEPOOL_HASH, "")


def expected_pool(request: NodePoolRequest) -> NodePool:
    """Return the pool that a supplier lists right after it accepted the request."""
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
        disk_type=request.disk_type,
    )


#: The type that the slices of a workload policy need.
HIGH_THROUGHPUT = "HIGH_THROUGHPUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPolicy:
    """A resource policy of Compute Engine that shapes multi-host slices; one of a topology serves a whole region."""

    name: str
    #: Empty for a resource policy that is no workload policy.
    type: str = HIGH_THROUGHPUT
    topology: str
    #: Compute Engine's own word: CREATING, READY, DELETING, ...
    status: str = "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A long-running operation; done with a failure is a failure."""

    name: OperationName
    done: bool
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of one of our pools."""

    name: str
    uid: str = ""
    #: Empty if neither the annotation nor the label is set (`provisioner.model.membership`).
    pool_name: PoolName
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = False
    #: spec.unschedulable.
    cordoned: bool = False
    #: Cordoned by the provisioner itself (its annotation is on the node).
    cordoned_by_us: bool = False
    allocatable_chips: int = 0
    allocatable_cpu_millicores: int = 0
    allocatable_memory_bytes: int = 0
    provider_id: str = ""
    created_at: datetime

    @property
    def maintenance_at(self) -> datetime | None:
        """When its host is taken down for maintenance, the earliest moment while it is; None where none is known."""
        ongoing = self.labels.get(constants.ACTIVE_MAINTENANCE) == "ONGOING"
        if ongoing or any(taint.key == constants.IMPENDING_TERMINATION for taint in self.taints):
            return _UNDER_WAY
        text = self.labels.get(constants.SCHEDULED_MAINTENANCE, "")
        seconds = int(text) if text.isascii() and text.isdigit() and len(text) <= _UNIX_DIGITS else 0
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
