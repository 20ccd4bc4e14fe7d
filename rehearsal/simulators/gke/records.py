"""The objects in the state of the simulated GKE. Mutable; only the model changes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from rehearsal.simulators.gke import validation
from rehearsal.simulators.gke.capacity import reservation_names
from rehearsal.simulators.gke.faults import Target
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.validation import Failure, PoolPlan


class PoolStatus(StrEnum):
    """Values of NodePool.Status."""

    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    RUNNING_WITH_ERROR = "RUNNING_WITH_ERROR"
    RECONCILING = "RECONCILING"
    STOPPING = "STOPPING"
    ERROR = "ERROR"


class OperationType(StrEnum):
    """Values of Operation.Type that occur for node pools."""

    CREATE_NODE_POOL = "CREATE_NODE_POOL"
    DELETE_NODE_POOL = "DELETE_NODE_POOL"


class OperationStatus(StrEnum):
    """Values of Operation.Status."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"


class NodeState(StrEnum):
    """State of a node, from its plan to its deletion."""

    #: The time of the registration has not come yet.
    WAITING = "waiting"
    #: The node must be registered, but the cluster has not confirmed it.
    DUE = "due"
    REGISTERED = "registered"
    #: A fault prevents the registration of the node.
    NEVER = "never"
    #: The node was preempted, or deleted by another client.
    LOST = "lost"
    #: The pool has deleted the node.
    REMOVED = "removed"


@dataclass(kw_only=True, eq=False)
class SimulatedNode:
    """A VM of a pool."""

    name: str
    zone: str
    chips: int
    state: NodeState = NodeState.WAITING

    @property
    def is_wanted(self) -> bool:
        """Whether the cluster should have a Node object for the VM."""
        return self.state in (NodeState.DUE, NodeState.REGISTERED)


@dataclass(kw_only=True, eq=False)
class Operation:
    """A long-running operation."""

    name: str
    cluster: ClusterName
    kind: OperationType
    pool: str
    started: datetime
    status: OperationStatus
    ended: datetime | None = None
    failure: Failure | None = None
    #: Whether the operation's time is over; it ends unless a fault or a missing node delays it.
    due: bool = False
    #: ID of the fault that prevents the end of the operation; None if there is no such fault.
    held_by: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether the operation has ended, with or without an error."""
        return self.status is OperationStatus.DONE


@dataclass(kw_only=True, eq=False)
class Pool:
    """A node pool; `body` is the body of its create, in canonical JSON."""

    name: str
    cluster: ClusterName
    body: dict[str, Any]
    plan: PoolPlan
    #: Prefix of the names of nodes and instance groups, by zone.
    groups: dict[str, str]
    status: PoolStatus
    created: datetime
    #: The operation that began last on the pool.
    operation: Operation
    nodes: list[SimulatedNode] = field(default_factory=list)
    #: ID of the fault that prevents a pool created empty from getting nodes; None if there is no such fault.
    short_of_capacity: str | None = None
    trouble: Failure | None = None
    etag: str = ""
    #: Cached JSON bodies of the pool; cleared by every change.
    rendered: dict[object, Any] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        """Attributes of the pool that faults can match."""
        plan = self.plan
        return Target(
            pool=self.name,
            zone=plan.zones,
            machine_type=plan.machine.name,
            topology=plan.topology,
            capacity=plan.capacity,
            reservation=reservation_names(plan.reservation),
        )

    def touch(self, etag: str) -> None:
        """Set the etag after a change, and clear the cached bodies."""
        self.etag = etag
        self.rendered.clear()


@dataclass(kw_only=True, eq=False)
class Cluster:
    """A cluster and its pools, in the order of their creation."""

    name: ClusterName
    created: datetime
    pools: dict[str, Pool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """Snapshot of a node for observers."""

    name: str
    zone: str
    state: NodeState
    chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Snapshot of a pool for observers."""

    name: str
    cluster: ClusterName
    status: PoolStatus
    status_message: str
    zones: tuple[str, ...]
    machine_type: str
    topology: str | None
    capacity: str
    #: Whether nodes can pull private images. Real nodes that cannot are Ready, but most pods do not start on them.
    pulls_images: bool
    auto_upgrade: bool
    created: datetime
    operation: str
    nodes: tuple[NodeView, ...]


def view_of(pool: Pool) -> PoolView:
    """Return a frozen snapshot of a pool."""
    return PoolView(
        name=pool.name,
        cluster=pool.cluster,
        status=pool.status,
        status_message=pool.trouble.message if pool.trouble else "",
        zones=pool.plan.zones,
        machine_type=pool.plan.machine.name,
        topology=pool.plan.topology,
        capacity=pool.plan.capacity.value,
        pulls_images=validation.pulls_images(pool.body),
        auto_upgrade=bool(pool.body.get("management", {"autoUpgrade": True}).get("autoUpgrade")),
        created=pool.created,
        operation=pool.operation.name,
        nodes=tuple(
            NodeView(name=node.name, zone=node.zone, state=node.state, chips=node.chips) for node in pool.nodes
        ),
    )
