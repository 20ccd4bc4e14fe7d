"""State of the simulated GKE: clusters, node pools, operations, nodes; and the calls on them.

`World` does not use Kubernetes: it gives the nodes to register or remove to a `NodeSink`, which reports when the
cluster has them. Reservations of Compute Engine have only the fields that clients read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rehearsal.simulators.gke import names, permissions, policies, validation
from rehearsal.simulators.gke.capacity import reservation_names
from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.gke.faults import Fault
from rehearsal.simulators.gke.ledger import Ledger
from rehearsal.simulators.gke.lifecycle import Lifecycle, NodeSink
from rehearsal.simulators.gke.names import ClusterName
from rehearsal.simulators.gke.policies import PolicyBook, RegionName
from rehearsal.simulators.gke.records import (
    Cluster,
    NodeState,
    Operation,
    OperationType,
    Pool,
    PoolStatus,
    PoolView,
    SimulatedNode,
    view_of,
)
from rehearsal.simulators.gke.settings import FULL, SimulatorSettings
from rehearsal.simulators.gke.validation import Failure
from rehearsal.simulators.http import google
from rehearsal.simulators.http.world import BaseWorld, Clock

_DOING = {
    OperationType.CREATE_NODE_POOL: "creating a node pool for",
    OperationType.DELETE_NODE_POOL: "deleting a node pool for",
}


def reservation_body(settings: SimulatorSettings, project: str, zone: str, name: str, now: datetime) -> dict[str, Any]:
    """Return the body of a reservation. Every project is allowed, because reservations can be shared."""
    path = f"projects/{project}/zones/{zone}/reservations/{name}"
    if "compute.reservations.get" in settings.denied_permissions:
        raise ApiError("PERMISSION_DENIED", f"Required 'compute.reservations.get' permission for '{path}'")
    known = settings.reservations
    if settings.has_ended(zone, name, now) or (known is not None and f"{zone}/{name}" not in known):
        raise ApiError("NOT_FOUND", f"The resource '{path}' was not found")
    state = "READY" if known is None else known[f"{zone}/{name}"]
    end = settings.reservation_ends.get(f"{zone}/{name}")
    used = {"specificReservation": {"count": "1", "inUseCount": "1"}} if state == FULL else {}
    return {
        "kind": "compute#reservation",
        "id": str(google.number_of(path)),
        "selfLink": f"{google.COMPUTE_API}/{path}",
        "zone": f"{google.COMPUTE_API}/projects/{project}/zones/{zone}",
        "name": name,
        "status": "READY" if state == FULL else state,
        "specificReservationRequired": True,
        **({"deleteAtTime": end} if end else {}),
        **used,
    }


class World(BaseWorld[SimulatorSettings, Fault]):
    """State of the simulated GKE."""

    def __init__(self, settings: SimulatorSettings, *, clock: Clock, rng: random.Random | None = None) -> None:
        super().__init__(settings, clock=clock, rng=rng)
        self._clusters: dict[ClusterName, Cluster] = {}
        self._policies = PolicyBook(settings=self._current_settings)
        self._ledger = Ledger(settings=self._current_settings, timeline=self.timeline, rng=self._rng)
        self._life = Lifecycle(
            settings=self._current_settings,
            clusters=self._clusters,
            ledger=self._ledger,
            timeline=self.timeline,
            faults=self.faults,
            rng=self._rng,
        )

    @contextmanager
    def moment(self) -> Iterator[datetime]:
        """Run the callbacks that are due, as in `BaseWorld.moment`, and delete the nodes of ended reservations."""
        with super().moment() as now:
            for pool in self._all_pools() if self._settings.reservation_ends else ():
                if pool.plan.reservation and self._has_ended(pool.plan, now):
                    self._life.give_up(pool.nodes)
            yield now

    def _has_ended(self, plan: validation.PoolPlan, now: datetime) -> bool:
        name = reservation_names(plan.reservation)[1]
        return self._settings.has_ended(plan.zones[0], name, now)

    def attach(self, sink: NodeSink) -> None:
        """Send nodes to a sink from now on."""
        self._life.sink = sink

    # -- clusters ------------------------------------------------------------------------------------------------

    def cluster(self, name: ClusterName) -> Cluster:
        """Return a cluster; create it at its first use. Raises ApiError if the settings name another cluster."""
        with self.moment() as now:
            self._check_scope(name.project, "container.clusters.get")
            served = self._settings
            if (served.location or name.location, served.cluster or name.cluster) != (name.location, name.cluster):
                raise ApiError("NOT_FOUND", f"Not found: {name.path}.")
            if name not in self._clusters:
                self._clusters[name] = Cluster(name=name, created=now)
            return self._clusters[name]

    def clusters(self, project: str, location: str) -> list[Cluster]:
        """Return the clusters of a location; "-" means all locations."""
        with self.moment():
            self._check_scope(project, "container.clusters.list")
            served = self._settings
            if served.location and served.cluster and location in ("-", served.location):
                self.cluster(ClusterName(project, served.location, served.cluster))
            return [
                cluster
                for name, cluster in sorted(self._clusters.items())
                if name.project == project and location in ("-", name.location)
            ]

    def _check_scope(self, project: str, permission: str) -> None:
        if self._settings.project not in (None, project) or permission in self._settings.denied_permissions:
            raise ApiError("PERMISSION_DENIED", f'Required "{permission}" permission(s) for "projects/{project}".')

    def _check_changeable(self, project: str) -> None:
        self._check_scope(project, "container.clusters.update")
        if self._settings.autopilot:
            raise ApiError("INVALID_ARGUMENT", "Autopilot node pools cannot be accessed or modified.")

    # -- pools ---------------------------------------------------------------------------------------------------

    def create_pool(self, name: ClusterName, body: dict[str, Any]) -> Operation:
        """Begin to create a pool from canonical JSON."""
        with self.moment() as now:
            cluster = self.cluster(name)
            self._check_changeable(name.project)
            plan = validation.check_pool(body, name, self._settings, self._usable_policies(name, now))
            if plan.reservation and self._has_ended(plan, now):
                raise ApiError("NOT_FOUND", f"The resource '{plan.reservation}' was not found")
            pool_name = body["name"]
            if pool_name in cluster.pools:
                raise ApiError("ALREADY_EXISTS", f"Already exists: {name.pool_path(pool_name)}.")
            self._ledger.check_quota(name)
            operation = self._ledger.begin(OperationType.CREATE_NODE_POOL, name, pool_name, now)
            pool = Pool(
                name=pool_name,
                cluster=name,
                body=body,
                plan=plan,
                groups={zone: names.group_prefix(name.cluster, pool_name, self._rng) for zone in plan.zones},
                status=PoolStatus.PROVISIONING,
                created=now,
                operation=operation,
            )
            cluster.pools[pool_name] = pool
            self._life.set_status(pool, PoolStatus.PROVISIONING)
            self._life.begin_creation(pool, now)
            return operation

    def asked_topology(self, name: ClusterName, body: Mapping[str, Any]) -> str | None:
        """Return the topology that a create requests, without checks; None if it contains none."""
        with self.moment() as now:
            return validation.asked_topology(body, self._usable_policies(name, now))

    def _usable_policies(self, name: ClusterName, now: datetime) -> dict[str, str]:
        return self._policies.usable(RegionName(name.project, names.region_of(name.location)), now)

    def pool(self, name: ClusterName, pool: str) -> Pool:
        """Return one pool. Raises ApiError if it does not exist."""
        with self.moment():
            found = self.cluster(name).pools.get(pool)
            if found is None:
                raise ApiError("NOT_FOUND", f'nodePool "{name.pool_path(pool)}" not found')
            return found

    def peek(self, name: ClusterName, pool: str) -> Pool | None:
        """Return a pool; None if it does not exist."""
        with self.moment():
            cluster = self._clusters.get(name)
            return cluster.pools.get(pool) if cluster is not None else None

    def pools(self, name: ClusterName) -> list[Pool]:
        """Return all pools of a cluster."""
        with self.moment():
            return list(self.cluster(name).pools.values())

    def delete_pool(self, name: ClusterName, pool_name: str) -> Operation:
        """Begin to delete a pool."""
        with self.moment() as now:
            self._check_changeable(name.project)
            pool = self.pool(name, pool_name)
            running = pool.operation
            creating = running.kind is OperationType.CREATE_NODE_POOL and not running.is_done
            if creating and not self._settings.delete_while_creating:
                raise ApiError("FAILED_PRECONDITION", f"Cluster is running incompatible operation {running.name}.")
            if not creating:
                self._check_idle(pool)
            self._ledger.check_quota(name, but=running)
            if creating:
                self._ledger.end(running, now, Failure(status="CANCELLED", message="Operation was cancelled."))
            pool.operation = self._ledger.begin(OperationType.DELETE_NODE_POOL, name, pool_name, now)
            self._life.set_status(pool, PoolStatus.STOPPING, trouble=pool.trouble)
            self._life.begin_deletion(pool, now)
            return pool.operation

    def _check_idle(self, pool: Pool) -> None:
        running = pool.operation
        if not running.is_done:
            raise ApiError(
                "FAILED_PRECONDITION",
                f"Operation {running.name} is currently {_DOING[running.kind]} cluster {pool.cluster.cluster}. "
                "Please wait and try again once it is done.",
            )

    # -- workload policies ---------------------------------------------------------------------------------------

    def policy(self, region: RegionName, name: str) -> dict[str, Any]:
        """Return the body of a resource policy."""
        with self.moment() as now:
            self._check_scope(region.project, "compute.resourcePolicies.get")
            return policies.policy_body(region, self._policies.get(region, name, now), now)

    def insert_policy(self, region: RegionName, body: object) -> dict[str, Any]:
        """Begin to create a workload policy; return the body of the operation."""
        with self.moment() as now:
            self._check_scope(region.project, "compute.resourcePolicies.create")
            return policies.insert_body(region, self._policies.insert(region, body, now))

    # -- reads before a create -----------------------------------------------------------------------------------

    def reservation(self, project: str, zone: str, name: str) -> dict[str, Any]:
        """Return the body of a reservation."""
        with self.moment() as now:
            return reservation_body(self._settings, project, zone, name, now)

    def test_project(self, project: str, body: object) -> dict[str, Any]:
        """Return which permissions the caller has on a project. Raises ApiError for a project that is not served."""
        with self._lock:
            if self._settings.project not in (None, project):
                raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
            return permissions.on_project(body, self._settings.denied_permissions)

    # -- operations ----------------------------------------------------------------------------------------------

    def operation(self, project: str, location: str, name: str) -> Operation:
        """Return one operation."""
        with self.moment():
            self._check_scope(project, "container.operations.get")
            found = self._ledger.find(name)
            if found is None or (found.cluster.project, found.cluster.location) != (project, location):
                path = f"projects/{project}/{names.location_kind(location)}/{location}/operations/{name}"
                raise ApiError("NOT_FOUND", f"Not found: {path}.")
            return found

    def operations(self, project: str, location: str) -> list[Operation]:
        """Return the operations of a location; "-" means all locations."""
        with self.moment():
            self._check_scope(project, "container.operations.list")
            return [
                operation
                for operation in self._ledger.all()
                if operation.cluster.project == project and location in ("-", operation.cluster.location)
            ]

    def all_operations(self) -> list[Operation]:
        """Return all operations that are retained."""
        with self.moment():
            return self._ledger.all()

    # -- nodes ---------------------------------------------------------------------------------------------------

    def node_registered(self, pool: Pool, node: SimulatedNode) -> None:
        """Record that the cluster has the node."""
        with self.moment() as now:
            if node.state is NodeState.DUE:
                node.state = NodeState.REGISTERED
            self._life.try_finish_creation(pool, pool.operation, now)

    def registered_nodes(self) -> list[tuple[Pool, SimulatedNode]]:
        """Return the nodes that the cluster should contain now."""
        with self.moment():
            return [
                (pool, node) for pool in self._all_pools() for node in pool.nodes if node.state is NodeState.REGISTERED
            ]

    def node_vanished(self, pool: Pool, node: SimulatedNode) -> None:
        """Record that another client deleted the node from the cluster."""
        with self.moment() as now:
            if node.state is NodeState.REGISTERED:
                self._life.lose(pool, node, now)

    # -- access for rehearsals -----------------------------------------------------------------------------------

    def release(self) -> None:
        """Resume operations that were delayed by faults that are no longer active."""
        with self.moment() as now:
            in_force = {fault.fault_id for fault in self.faults.all()}
            for pool in self._all_pools():
                operation = pool.operation
                if operation.held_by is not None and operation.held_by not in in_force:
                    operation.held_by = None
                    if operation.kind is OperationType.CREATE_NODE_POOL:
                        self._life.try_finish_creation(pool, operation, now)
                    else:
                        self._life.try_finish_deletion(pool, operation, now)
                if pool.short_of_capacity is not None and pool.short_of_capacity not in in_force:
                    self._life.scale_up(pool)

    def preempt(self, pool_name: str, *, hosts: int | None = None) -> tuple[str, ...]:
        """Take the first `hosts` nodes, by default all, from each pool with that name; return the nodes' names."""
        with self.moment() as now:
            lost: list[str] = []
            for pool in self._named(pool_name):
                for node in [node for node in pool.nodes if node.is_wanted][:hosts]:
                    if self._life.sink is not None:
                        self._life.sink.remove(node.name)
                    self._life.lose(pool, node, now)
                    lost.append(node.name)
                # A create does not wait for a node that was taken from its pool.
                self._life.try_finish_creation(pool, pool.operation, now)
            return tuple(lost)

    def set_status(self, pool_name: str, status: PoolStatus, *, message: str = "") -> None:
        """Set the status of the pools with that name; it lasts until the next change."""
        with self.moment():
            trouble = Failure(status="UNKNOWN", message=message) if message else None
            for pool in self._named(pool_name):
                self._life.set_status(pool, status, trouble=trouble)

    def views(self) -> tuple[PoolView, ...]:
        """Return frozen snapshots of all pools."""
        with self.moment():
            return tuple(view_of(pool) for pool in self._all_pools())

    def _all_pools(self) -> list[Pool]:
        return [pool for cluster in self._clusters.values() for pool in cluster.pools.values()]

    def _named(self, pool_name: str) -> list[Pool]:
        found = [pool for pool in self._all_pools() if pool.name == pool_name]
        if not found:
            raise ApiError("NOT_FOUND", f"no node pool {pool_name!r}; see /simulator/v1/state for the existing ones")
        return found
