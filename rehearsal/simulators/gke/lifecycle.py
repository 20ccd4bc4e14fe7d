"""Changes of a node pool between its create and its delete, over time and by faults.

Not thread-safe: the model holds the lock. A scheduled step first checks whether it still applies, because a delete, a
preemption or a cleared fault does not remove the step from the timeline.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from rehearsal.simulators.gke import capacity, names
from rehearsal.simulators.gke.faults import (
    CAPACITY_FAULTS,
    CREATE_FAULTS,
    DELETE_FAULTS,
    NODE_FAULTS,
    Fault,
    FaultKind,
)
from rehearsal.simulators.gke.ledger import Ledger
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.records import (
    Cluster,
    NodeState,
    Operation,
    OperationType,
    Pool,
    PoolStatus,
    SimulatedNode,
)
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.gke.validation import Failure
from rehearsal.simulators.http import google
from rehearsal.simulators.http.faults import FaultBook
from rehearsal.simulators.http.world import Timeline

_INTERNAL = "An internal error has occurred."
#: Interval in seconds at which the autoscaler checks a pool again that cannot get nodes yet.
_NEXT_LOOK_SECONDS = 10.0


class NodeSink(Protocol):
    """Adds and removes nodes. Methods are called while the model's lock is held, so they only record the change."""

    def register(self, pool: Pool, node: SimulatedNode) -> None:
        """Register the node in the cluster, then call `World.node_registered`."""

    def remove(self, node_name: str) -> None:
        """Remove the node from the cluster."""


class Lifecycle:
    """Performs the changes of pools."""

    def __init__(
        self,
        *,
        settings: Callable[[], SimulatorSettings],
        clusters: dict[ClusterName, Cluster],
        ledger: Ledger,
        timeline: Timeline,
        faults: FaultBook[Fault],
        rng: random.Random,
    ) -> None:
        self.sink: NodeSink | None = None
        #: Returns whether pods wait for nodes of a pool that was created empty. The simulator itself has no pods.
        self.is_waited_for: Callable[[Pool], bool] = lambda _pool: True
        self._settings = settings
        self._clusters = clusters
        self._ledger = ledger
        self._timeline = timeline
        self._faults = faults
        self._rng = rng

    # -- create --------------------------------------------------------------------------------------------------

    def begin_creation(self, pool: Pool, now: datetime) -> None:
        """Schedule the steps of a create."""
        settings, operation = self._settings(), pool.operation
        lasting = settings.create_seconds + self._rng.random() * settings.create_jitter_seconds
        # Capacity is not checked for a pool that is created empty, which needs it only for its first nodes.
        later = CAPACITY_FAULTS if pool.plan.scale_up_hosts else ()
        fault = self._fault(pool, *(kind for kind in CREATE_FAULTS if kind not in later))
        if fault is not None and fault.kind is FaultKind.CREATE_NEVER_ENDS:
            operation.held_by = fault.fault_id
        failure = pool.plan.failure
        if failure is None and fault is not None:
            failure = _failure_of(fault, pool)
            if failure is not None and fault.after_seconds is not None:
                lasting = fault.after_seconds
        end = now + timedelta(seconds=lasting)
        if failure is not None:
            reason = failure
            self._timeline.at(end, lambda when: self._fail_creation(pool, operation, reason, when))
            return
        self._add_nodes(pool, pool.plan.hosts_per_zone)
        begin = end - timedelta(seconds=min(lasting, settings.node_stagger_seconds))
        for index, node in enumerate(pool.nodes):
            self._bring_later(pool, node, begin + (end - begin) * (index / len(pool.nodes)))
        self._timeline.at(end, lambda when: self._creation_due(pool, operation, when))

    def _add_nodes(self, pool: Pool, per_zone: int) -> None:
        taken: set[str] = set()
        tpu = pool.plan.machine.is_tpu and not self._settings().pool_in_node_names
        for zone in pool.plan.zones:
            for _ in range(per_zone):
                name = names.node_name(pool.groups[zone], self._rng, tpu=tpu)
                while name in taken:
                    name = names.node_name(pool.groups[zone], self._rng, tpu=tpu)
                taken.add(name)
                pool.nodes.append(SimulatedNode(name=name, zone=zone, chips=pool.plan.machine.chips))
        for kind in NODE_FAULTS if pool.nodes else ():
            fault = self._fault(pool, kind)
            for node in pool.nodes[: fault.hosts] if fault is not None else ():
                if kind is FaultKind.NODES_NEVER_REGISTER:
                    node.state = NodeState.NEVER
                else:
                    node.chips = 0

    def _bring_later(self, pool: Pool, node: SimulatedNode, when: datetime) -> None:
        self._timeline.at(when, lambda _: self._bring(pool, node))

    def _bring(self, pool: Pool, node: SimulatedNode) -> None:
        comes = node.state in (NodeState.WAITING, NodeState.LOST)
        if not comes or pool.status is PoolStatus.STOPPING or not self._is_current(pool):
            return
        if self.sink is None:
            node.state = NodeState.REGISTERED
        else:
            node.state = NodeState.DUE
            self.sink.register(pool, node)

    def _creation_due(self, pool: Pool, operation: Operation, when: datetime) -> None:
        operation.due = True
        self.try_finish_creation(pool, operation, when)

    def try_finish_creation(self, pool: Pool, operation: Operation, when: datetime) -> None:
        """End a create when its time is over and the cluster has every node that will register."""
        creating = operation.kind is OperationType.CREATE_NODE_POOL and not operation.is_done
        if not creating or not operation.due or operation.held_by is not None:
            return
        if any(node.state in (NodeState.WAITING, NodeState.DUE) for node in pool.nodes):
            return
        self.set_status(pool, PoolStatus.RUNNING)
        self._ledger.end(operation, when)
        if pool.plan.scale_up_hosts:
            self._scale_up_later(pool, when, self._settings().scale_up_seconds)

    def _scale_up_later(self, pool: Pool, now: datetime, seconds: float) -> None:
        def look(when: datetime) -> None:
            busy = pool.status in (PoolStatus.RECONCILING, PoolStatus.RUNNING_WITH_ERROR)
            waits = pool.status is PoolStatus.RUNNING and not self.is_waited_for(pool)
            if (busy or waits) and self._is_current(pool):
                # The pool cannot get nodes now, so the autoscaler checks again later.
                self._scale_up_later(pool, when, _NEXT_LOOK_SECONDS)
            else:
                self.scale_up(pool)

        self._timeline.at(now + timedelta(seconds=seconds), look)

    def scale_up(self, pool: Pool) -> None:
        """Add the nodes of a pool that was created empty, unless a fault or an untolerated taint prevents it."""
        if self._is_current(pool) and pool.status is PoolStatus.RUNNING and not pool.nodes:
            if capacity.keeps_autoscaler_off(pool.body):
                return
            fault = self._fault(pool, *CAPACITY_FAULTS)
            pool.short_of_capacity = fault.fault_id if fault is not None else None
            if fault is not None:
                return
            self._add_nodes(pool, pool.plan.scale_up_hosts)
            for node in pool.nodes:
                self._bring(pool, node)

    def _fail_creation(self, pool: Pool, operation: Operation, failure: Failure, when: datetime) -> None:
        if not operation.is_done:
            self.set_status(pool, PoolStatus.ERROR, trouble=failure)
            self._ledger.end(operation, when, failure)

    # -- delete --------------------------------------------------------------------------------------------------

    def begin_deletion(self, pool: Pool, now: datetime) -> None:
        """Schedule the steps of a delete."""
        operation = pool.operation
        fault = self._fault(pool, *DELETE_FAULTS)
        lasting = self._settings().delete_seconds
        if fault is not None and fault.kind is FaultKind.DELETE_NEVER_ENDS:
            operation.held_by = fault.fault_id
        if fault is not None and fault.kind is FaultKind.DELETE_FAILS:
            failure = Failure(status=_rpc_status(fault), message=fault.message or _INTERNAL)
            lasting = lasting if fault.after_seconds is None else fault.after_seconds
            end = now + timedelta(seconds=lasting)
            self._timeline.at(end, lambda when: self._fail_deletion(pool, operation, failure, when))
            return
        # Nodes are deleted before the operation ends, as real nodes are drained and deleted early.
        self._timeline.at(now + timedelta(seconds=lasting / 2), lambda _: self.give_up(pool.nodes))
        self._timeline.at(now + timedelta(seconds=lasting), lambda when: self._deletion_due(pool, operation, when))

    def _deletion_due(self, pool: Pool, operation: Operation, when: datetime) -> None:
        operation.due = True
        self.try_finish_deletion(pool, operation, when)

    def try_finish_deletion(self, pool: Pool, operation: Operation, when: datetime) -> None:
        """End a delete when its time is over and no fault delays it."""
        if operation.due and operation.held_by is None and not operation.is_done:
            self.give_up(pool.nodes)
            self._clusters[pool.cluster].pools.pop(pool.name, None)
            self._ledger.end(operation, when)

    def _fail_deletion(self, pool: Pool, operation: Operation, failure: Failure, when: datetime) -> None:
        self.give_up(pool.nodes[: (len(pool.nodes) + 1) // 2])
        self.set_status(pool, PoolStatus.RUNNING_WITH_ERROR, trouble=failure)
        for node in pool.nodes:
            # The registration of the node may have become due during the delete, when no nodes are registered.
            if node.state is NodeState.WAITING:
                self._bring(pool, node)
            elif node.state is NodeState.LOST:
                self.lose(pool, node, when)
        self._ledger.end(operation, when, failure)

    def give_up(self, nodes: Sequence[SimulatedNode]) -> None:
        """Delete nodes permanently."""
        for node in nodes:
            if node.state is not NodeState.REMOVED:
                node.state = NodeState.REMOVED
                if self.sink is not None:
                    self.sink.remove(node.name)

    # -- shared --------------------------------------------------------------------------------------------------

    def lose(self, pool: Pool, node: SimulatedNode, now: datetime) -> None:
        """Record the loss of a node, and schedule its return if the settings contain a repair time."""
        node.state = NodeState.LOST
        repair_seconds = self._settings().repair_seconds
        if repair_seconds is not None:
            self._bring_later(pool, node, now + timedelta(seconds=repair_seconds))

    def set_status(self, pool: Pool, status: PoolStatus, *, trouble: Failure | None = None) -> None:
        """Change a pool's status, the reason for it, and its etag."""
        pool.status, pool.trouble = status, trouble
        pool.touch(f"{self._rng.getrandbits(64):016x}")

    def _is_current(self, pool: Pool) -> bool:
        return self._clusters[pool.cluster].pools.get(pool.name) is pool

    def _fault(self, pool: Pool, *kinds: FaultKind) -> Fault | None:
        return self._faults.take(kinds, pool.target)


def _rpc_status(fault: Fault) -> str:
    return fault.status if fault.status in google.STATUSES else "UNKNOWN"


def _failure_of(fault: Fault, pool: Pool) -> Failure | None:
    """Return the error with which a create ends under a fault; None if the fault does not fail it."""
    if fault.kind is FaultKind.CREATE_NEVER_ENDS:
        return None
    if fault.kind is FaultKind.CREATE_ERROR:
        return Failure(status=_rpc_status(fault), message=fault.message or _INTERNAL)
    count, zone = pool.plan.hosts_per_zone, pool.plan.zones[0]
    head = (
        f"Google Compute Engine: Not all instances running in IGM after {fault.after_seconds or 35 * 60:.2f}s. "
        f"Expected {count}, running 0, transitioning {count}. Current errors: "
    )
    instance = f"Instance '{pool.groups[zone]}-0000' creation failed: "
    if fault.kind is FaultKind.STOCKOUT and pool.plan.reservation:
        # The code of this failure is unknown, so only its text identifies it.
        text = fault.message or capacity.full_reservation_text(pool.name)
        return Failure(status="INVALID_ARGUMENT", message=text)
    if fault.kind is FaultKind.STOCKOUT:
        condition = "GCE_STOCKOUT"
        cause = (
            f"The zone 'projects/{pool.cluster.project}/zones/{zone}' does not have enough resources available to "
            "fulfill the request. '(resource type:compute)'."
        )
    else:
        condition = "GCE_QUOTA_EXCEEDED"
        cause = f"Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region {names.region_of(zone)}."
    text = fault.message or f"{head}[{condition}]: {instance}{cause}"
    return Failure(status="RESOURCE_EXHAUSTED", message=text, condition=condition)
