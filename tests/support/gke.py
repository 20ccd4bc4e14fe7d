"""Fake of GKE in memory. Unit tests set the state of its pools, inject failures, and read the recorded calls."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from provisioner.model.capacity import (
    ClusterName,
    Failure,
    FailureKind,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    PoolStatus,
    Taint,
    WorkloadPolicy,
    Zone,
)
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.translate import Cluster, Reservation

CLUSTER_NAME = ClusterName(project="p", location="us-east5", cluster="c")
SLICE = NodePoolRequest(
    name=PoolName("js-0123456789"),
    zone=Zone("us-east5-b"),
    machine_type="ct6e-standard-4t",
    hosts=4,
    topology="4x4",
    placement_topology="4x4",
    node={"node_disk_type": "hyperdisk-balanced"},
    # The provisioner requests auto-upgrade in a cluster with a release channel.
    auto_upgrade=True,
    labels={"google.com/nodepool-manager": "tpu-provisioner", "team": "a"},
    taints=(Taint(key="team", value="a"),),
)
METHODS = (
    "get_cluster",
    "list_node_pools",
    "get_node_pool",
    "create_node_pool",
    "delete_node_pool",
    "get_operation",
    "get_workload_policy",
    "create_workload_policy",
    "get_reservation",
)


def failure(kind: FailureKind, message: str = "injected by the test") -> Failure:
    return Failure(kind=kind, message=message)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call: its method, and the name of its pool, operation, policy or reservation; empty if none."""

    method: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Injected:
    failure: Failure
    after_effect: bool


@dataclass
class FakeGke:
    """Methods of a `GkeClient` that call GKE. A create adds a PROVISIONING pool, and a delete makes a pool STOPPING.

    Only methods for tests, such as `finish_create`, change pools in other ways. As in GKE, deletes of STOPPING pools
    fail.
    """

    cluster: Cluster = field(default_factory=lambda: Cluster(name="test", status="RUNNING"))
    calls: list[Recorded] = field(default_factory=list)
    #: Last accepted request for each pool name.
    requests: dict[PoolName, NodePoolRequest] = field(default_factory=dict)
    #: Time at which a reservation ends, by project, zone and name. The project is empty if it is the cluster's.
    ends: dict[tuple[str, str, str], datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._pools: dict[PoolName, NodePool] = {}
        self._policies: dict[str, WorkloadPolicy] = {}
        self._operations: dict[OperationName, Operation] = {}
        self._operation_of: dict[PoolName, OperationName] = {}
        self._injected: dict[str, deque[_Injected]] = defaultdict(deque)
        self._always: dict[str, _Injected] = {}
        self._numbers = itertools.count(1)

    # --- Methods for tests ---

    def fail_next(
        self,
        method: str,
        kind: FailureKind,
        *,
        message: str = "injected by the test",
        times: int = 1,
        after_effect: bool = False,
    ) -> None:
        """Make the next calls of a method fail. With `after_effect`, the call succeeds and its response is lost."""
        assert method in METHODS, method
        injected = _Injected(failure(kind, message), after_effect)
        with self._lock:
            self._injected[method].extend([injected] * times)

    def fail_always(self, method: str, kind: FailureKind, *, message: str = "injected by the test") -> None:
        assert method in METHODS, method
        with self._lock:
            self._always[method] = _Injected(failure(kind, message), after_effect=False)

    def heal(self) -> None:
        with self._lock:
            self._injected.clear()
            self._always.clear()

    def set_pool(self, pool: NodePool) -> None:
        with self._lock:
            self._pools[pool.name] = pool

    def set_policy(self, policy: WorkloadPolicy) -> None:
        with self._lock:
            self._policies[policy.name] = policy

    def remove_pool(self, name: str) -> None:
        with self._lock:
            self._pools.pop(PoolName(name), None)

    def finish_create(self, name: str, *, status: PoolStatus = PoolStatus.RUNNING) -> None:
        with self._lock:
            self.set_pool(replace(self._pools[PoolName(name)], status=status, failure=None))
            self._end_operation(PoolName(name), None)

    def fail_pool(
        self, name: str, kind: FailureKind, *, message: str = "injected by the test", keep: bool = True
    ) -> None:
        """Fail the operation of a pool. The pool is then in ERROR, or is deleted if `keep` is False."""
        why = failure(kind, message)
        with self._lock:
            pool = self._pools.pop(PoolName(name))
            if keep:
                self.set_pool(replace(pool, status=PoolStatus.ERROR, failure=why))
            self._end_operation(PoolName(name), why)

    def finish_delete(self, name: str) -> None:
        with self._lock:
            del self._pools[PoolName(name)]
            self._end_operation(PoolName(name), None)

    @property
    def policies(self) -> Mapping[str, WorkloadPolicy]:
        with self._lock:
            return MappingProxyType(dict(self._policies))

    @property
    def pools(self) -> Mapping[PoolName, NodePool]:
        with self._lock:
            return MappingProxyType(dict(self._pools))

    def names_of(self, method: str) -> list[str]:
        with self._lock:
            return [call.name for call in self.calls if call.method == method]

    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(call.method for call in self.calls)

    # --- GkeClient ---

    def get_cluster(self) -> Cluster:
        with self._lock:
            lost = self._record("get_cluster")
            self._raise(lost)
            return self.cluster

    def list_node_pools(self) -> tuple[NodePool, ...]:
        with self._lock:
            lost = self._record("list_node_pools")
            self._raise(lost)
            return tuple(self._pools.values())

    def get_node_pool(self, name: PoolName) -> NodePool:
        with self._lock:
            lost = self._record("get_node_pool", name)
            self._raise(lost)
            return self._found(name)

    def create_node_pool(self, request: NodePoolRequest) -> OperationName:
        with self._lock:
            lost = self._record("create_node_pool", request.name)
            if request.name in self._pools:
                raise GkeError(
                    failure(FailureKind.ALREADY_EXISTS, f"Already exists: nodePools/{request.name}"),
                    f"create of node pool {request.name!r}",
                )
            self.requests[request.name] = request
            self._pools[request.name] = pool_of(request)
            operation = self._start_operation(request.name)
            self._raise(lost)
            return operation

    def delete_node_pool(self, name: PoolName) -> OperationName:
        with self._lock:
            lost = self._record("delete_node_pool", name)
            pool = self._found(name)
            if pool.status is PoolStatus.STOPPING:
                raise GkeError(
                    failure(
                        FailureKind.OPERATION_IN_THE_WAY,
                        f"Cluster is running incompatible operation {self._operation_of.get(name, '')}.",
                    ),
                    f"delete of node pool {name!r}",
                )
            self._pools[name] = replace(pool, status=PoolStatus.STOPPING)
            operation = self._start_operation(name)
            self._raise(lost)
            return operation

    def get_operation(self, name: OperationName) -> Operation:
        with self._lock:
            lost = self._record("get_operation", name)
            self._raise(lost)
            if name not in self._operations:
                raise GkeError(
                    failure(FailureKind.NOT_FOUND, f"Not found: operations/{name}"), f"get of operation {name!r}"
                )
            return self._operations[name]

    def get_workload_policy(self, name: str) -> WorkloadPolicy:
        with self._lock:
            lost = self._record("get_workload_policy", name)
            self._raise(lost)
            if name not in self._policies:
                raise GkeError(
                    failure(FailureKind.NOT_FOUND, f"The resource 'resourcePolicies/{name}' was not found"),
                    f"get of workload policy {name!r}",
                )
            return self._policies[name]

    def create_workload_policy(self, policy: WorkloadPolicy) -> None:
        with self._lock:
            lost = self._record("create_workload_policy", policy.name)
            if policy.name in self._policies:
                raise GkeError(
                    failure(
                        FailureKind.ALREADY_EXISTS, f"The resource 'resourcePolicies/{policy.name}' already exists"
                    ),
                    f"create of workload policy {policy.name!r}",
                )
            self._policies[policy.name] = policy
            self._raise(lost)

    def get_reservation(self, *, project: str, zone: str, name: str) -> Reservation:
        with self._lock:
            lost = self._record("get_reservation", name)
            self._raise(lost)
            return Reservation(status="READY", ends_at=self.ends.get((project, zone, name)))

    # --- Implementation ---

    def _record(self, method: str, name: str = "") -> _Injected | None:
        """Record a call; raise its injected failure, or return the failure that replaces its response."""
        self.calls.append(Recorded(method, name))
        queue = self._injected[method]
        injected = queue.popleft() if queue else self._always.get(method)
        if injected is not None and not injected.after_effect:
            self._raise(injected)
        return injected

    def _raise(self, injected: _Injected | None) -> None:
        if injected is not None:
            raise GkeError(injected.failure, "fake GKE")

    def _found(self, name: PoolName) -> NodePool:
        if name not in self._pools:
            raise GkeError(
                failure(FailureKind.NOT_FOUND, f'nodePool "{name}" not found'), f"call about node pool {name!r}"
            )
        return self._pools[name]

    def _start_operation(self, pool: PoolName) -> OperationName:
        name = OperationName(f"operation-{next(self._numbers)}")
        self._operations[name] = Operation(name=name, done=False)
        self._operation_of[pool] = name
        return name

    def _end_operation(self, pool: PoolName, why: Failure | None) -> None:
        name = self._operation_of.get(pool)
        if name in self._operations:
            self._operations[name] = Operation(name=name, done=True, failure=why)


def pool_of(request: NodePoolRequest, *, status: PoolStatus = PoolStatus.PROVISIONING) -> NodePool:
    return NodePool(
        name=request.name,
        status=status,
        labels=dict(request.labels),
        taints=request.taints,
        machine_type=request.machine_type,
        hosts=request.hosts,
        zones=(request.zone,),
        topology=request.topology,
        policy_name=request.policy_name,
        capacity=request.capacity,
        reservation=request.reservation,
    )
