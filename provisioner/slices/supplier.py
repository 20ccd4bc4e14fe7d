"""Defines the interfaces to a supplier of node pools, such as GKE: `Supplier` for the loop, `PoolRules` for planning.

tests/slices/suppliers/conformance.py checks the contract of `Supplier` for each supplier in suppliers/:

- Any thread may call a method. A create or delete returns when the supplier has accepted it, before its result is
  known. A failed create or delete is not sent again, except after a 401. `SupplierError` is the only exception.
- **Idempotent by name.** A second create of a name fails with ALREADY_EXISTS or OPERATION_IN_THE_WAY, and changes
  nothing. A delete of a missing pool fails with NOT_FOUND. So the caller may repeat a call whose response was lost.
- **UNKNOWN_OUTCOME** means that a changing call may have taken effect, or may still do so. After every other failure,
  no pool has changed.
- **Complete lists.** `list_pools` returns every pool of the cluster, including pools of other clients, from the time at
  which its create was accepted until nothing is left of it. A pool that cannot be parsed has status UNKNOWN.
- `get_operation` may fail with NOT_FOUND some time after the end of an operation. Then only the pool shows the result.
- `create_pool` calls `blocked` right before each change, and changes nothing after `blocked` has returned a failure.
- A supplier that limits concurrent operations raises TOO_MANY_OPERATIONS beyond its limit, which planning learns from
  this error. Each pool that is being created or deleted counts as an operation.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from provisioner import constants, tpu
from provisioner.model.capacity import (
    CallError,
    Failure,
    FailureKind,
    Node,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
)
from provisioner.model.fit import NodeView
from provisioner.model.wording import ProblemError
from provisioner.settings import Settings, node_fields
from provisioner.slices.demand import Slice

_AWAY = (
    "The provisioner asks again within 30 s; if the failure lasts, check the provisioner's network and "
    "https://status.cloud.google.com."
)
_NO_CLUSTER = "Correct GCP_PROJECT_ID, GCP_CLUSTER_LOCATION or GCP_CLUSTER."
#: Returns why nothing may be changed now; None if changes are allowed.
Blocked = Callable[[], Failure | None]


class SupplierError(CallError):
    """The only exception that a supplier raises."""


def with_remedy(error: Exception, message: str = "") -> str:
    """Return the message of an error, with what to do if the supplier is unavailable or does not find the cluster."""
    message = message or str(error)
    remedies = {FailureKind.UNAVAILABLE: _AWAY, FailureKind.NOT_FOUND: _NO_CLUSTER}
    remedy = remedies.get(error.failure.kind) if isinstance(error, CallError) else None
    return f"{message.rstrip('.')}. {remedy}" if remedy else message


class UnmeetableError(ProblemError):
    """The slice cannot get the requested node pool, usually until the workload or a setting changes."""


class ImpossibleError(UnmeetableError):
    """No nodes of any provider can serve the slice: Google sells no such slice, or the request is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Rules of a supplier's node pools. All functions are pure."""

    supplier_name: str
    #: Usual interval in seconds between lists of the pools while no operation is in progress.
    idle_seconds: float
    #: Labels of Google or Kubernetes that pods may select, and that nodes have only if the pool's request has them.
    requestable_labels: frozenset[str]
    #: Labels of Google that pods may have copied to nodes: each only enables a feature, and no program relies on it.
    copyable: frozenset[str]
    #: Whether a flex-start pool gets nodes only while pods wait for nodes with the labels of the pool.
    flex_start_needs_pods: bool
    #: Returns a request with all properties that the supplier needs for the slice. Raises UnmeetableError.
    complete: Callable[[NodePoolRequest, Slice, tpu.Shape, Settings], NodePoolRequest]
    expected_node: Callable[[NodePool], NodeView]


def informed(rules: PoolRules, nodes: Iterable[Node]) -> PoolRules:
    """Return rules that predict the CPU and memory of new nodes from the newest ready node of the same machine type."""
    newest: dict[str, Node] = {}
    for node in nodes:
        machine = node.labels.get(constants.INSTANCE_TYPE, "")
        before = newest.get(machine)
        if not (node.ready and machine and node.allocatable_memory_bytes):
            continue
        if before is None or (node.created_at, node.name) > (before.created_at, before.name):
            newest[machine] = node
    offers: dict[str, tuple[int, int]] = {}
    for machine, node in newest.items():
        memory_bytes = node.allocatable_memory_bytes + _huge_pages(node.allocatable_other_bytes)
        offers[machine] = node.allocatable_cpu_millicores, memory_bytes
    return _informed(rules, frozenset(offers.items())) if offers else rules


# The rules are cached, because a round reuses results of the last round only if both have the same rules object.
@lru_cache(maxsize=8)
def _informed(rules: PoolRules, offers: frozenset[tuple[str, tuple[int, int]]]) -> PoolRules:
    by_machine = dict(offers)

    def expected_node(pool: NodePool) -> NodeView:
        view, offer = rules.expected_node(pool), by_machine.get(pool.machine_type)
        if offer is None:
            return view
        memory_bytes = offer[1] - _huge_pages(view.other_bytes.items())
        return replace(view, cpu_millicores=offer[0], memory_bytes=memory_bytes)

    return replace(rules, expected_node=expected_node)


def _huge_pages(amounts: Iterable[tuple[str, int]]) -> int:
    return sum(size for resource, size in amounts if resource.startswith("hugepages-"))


def whole_machine(view: NodeView, pool: NodePool) -> NodeView:
    """Return the view of a node with all CPU, memory and boot disk of its machine, including the share of the system.

    Huge pages are not changed, because node settings set them exactly. Unknown machine types get an unchanged view.
    """
    entry = tpu.machine_type(pool.machine_type)
    if entry is None:
        return view
    _, machine = entry
    other_bytes = dict(view.other_bytes)
    if "ephemeral-storage" in other_bytes:
        other_bytes["ephemeral-storage"] = node_fields.boot_disk_gb(pool.node) << 30
    return replace(
        view,
        cpu_millicores=max(view.cpu_millicores, machine.vcpus * 1000),
        memory_bytes=max(view.memory_bytes, machine.memory_gib << 30),
        other_bytes=other_bytes,
    )


class Supplier(Protocol):
    """The node pools of one cluster."""

    @property
    def rules(self) -> PoolRules:
        """Rules of these node pools."""

    def list_pools(self) -> tuple[NodePool, ...]:
        """Return all node pools of the cluster; with PROVIDER=gce, the TPUNodeGroups of one namespace."""

    def unknown_sources(self) -> frozenset[str]:
        """Return the names of optional sources (`model.sources`) whose data about listed pools could not be read."""

    def get_pool(self, name: PoolName) -> NodePool:
        """Return one node pool. Fails with NOT_FOUND if it does not exist, even if a create may still take effect."""

    def create_pool(self, request: NodePoolRequest, blocked: Blocked) -> OperationName:
        """Submit the creation of a node pool and of the resources that it needs."""

    def delete_pool(self, name: PoolName) -> OperationName:
        """Submit the deletion of a pool and its nodes. A repetition fails with OPERATION_IN_THE_WAY or NOT_FOUND."""

    def get_operation(self, name: OperationName) -> Operation:
        """Return an operation. If the operation failed, the result has the failure, and no exception is raised."""
