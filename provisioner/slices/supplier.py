"""Interfaces to a supplier of node pools, such as GKE: the loop calls `Supplier`, planning calls `PoolRules`.

Each supplier has a folder in suppliers/. `PoolRules` are pure. The following contract of a `Supplier` is checked for
every supplier by one suite of tests (tests/slices/suppliers/conformance.py):

- Every method may be called from many threads, and never waits for a long operation: a create or delete returns once
  the supplier has accepted it, before its result is known. `SupplierError` is the only exception.
- **Idempotent by name.** A second create of a name fails with ALREADY_EXISTS and changes nothing. A delete of a missing
  pool fails with NOT_FOUND. So a call whose response was lost may be sent again with the same name.
- **UNKNOWN_OUTCOME** means that the response to a changing call was lost: the call may take effect, even later. After
  every other failure, nothing has changed.
- **Complete lists.** `list_pools` returns every pool of the cluster, also pools of other clients, because their names
  are in use. A pool that cannot be parsed is included with status UNKNOWN. A pool is listed from the moment that its
  create was accepted until nothing is left of it.
- `get_operation` finds an operation until some time after its end. NOT_FOUND does not reveal its result: look at the
  pool.
- `create_pool` sends nothing after `blocked` has returned a failure: it calls `blocked` right before each request.
- A supplier that limits concurrent operations raises TOO_MANY_OPERATIONS; planning learns the limit from that, and
  counts each pool that is being created or deleted as an operation.
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
from provisioner.settings import Settings, node_fields
from provisioner.slices.demand import Slice

#: Advice for the reader of a message that a supplier is unavailable.
_AWAY = (
    "The provisioner asks again every few seconds; if the failure lasts, check the provisioner's network and "
    "https://status.cloud.google.com."
)
#: Returns the reason why nothing may be changed now; None if changes are allowed.
Blocked = Callable[[], Failure | None]


class SupplierError(CallError):
    """The only exception of a supplier."""


def with_remedy(error: Exception) -> str:
    """Return the message of an error; if the supplier is unavailable, with advice on what to do."""
    is_away = isinstance(error, CallError) and error.failure.kind is FailureKind.UNAVAILABLE
    return f"{str(error).rstrip('.')}. {_AWAY}" if is_away else str(error)


class UnmeetableError(ValueError):
    """No node pool can serve the slice in its present form; the message contains the reason and the remedy."""


class ImpossibleError(UnmeetableError):
    """No provider's nodes can serve the slice: Google sells no such slice, or the request contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Rules of a supplier's node pools. Their functions are pure."""

    supplier_name: str
    #: Interval in seconds between lists of the pools while no operation is in progress: each list is a call.
    idle_seconds: float
    #: Labels of Google or Kubernetes that pods select, and that nodes only have if the request for the pool has them.
    passed_on: frozenset[str]
    #: Further labels of Google or Kubernetes that a pod may request for its nodes, because they switch on a feature of
    #: the supplier, and no other program relies on them.
    copyable: frozenset[str]
    #: Returns a request with the properties that this supplier's pools need, including labels that nodes only have if
    #: the pool requests them. Depends on the slice's shape and its pods' requirements. Raises UnmeetableError.
    complete: Callable[[NodePoolRequest, Slice, tpu.Shape, Settings], NodePoolRequest]
    #: Predicts how the scheduler will see a node of a pool.
    expected_node: Callable[[NodePool], NodeView]


def informed(rules: PoolRules, nodes: Iterable[Node]) -> PoolRules:
    """Return rules that predict nodes with the allocatable CPU and memory of the newest node of their machine type.

    The newest node is most similar to nodes that are created next, for example in its version. If the amounts have not
    changed since an earlier call, the same object is returned.
    """
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
    """Return the bytes of memory that a node reserves as huge pages."""
    return sum(size for resource, size in amounts if resource.startswith("hugepages-"))


def whole_machine(view: NodeView, pool: NodePool) -> NodeView:
    """Return the view of a node with the whole CPU, memory and boot disk of its machine, without the system's share.

    Huge pages are not changed, because their amount is set exactly by the settings of the node.
    """
    known = tpu.machine_type(pool.machine_type)
    if known is None:
        return view
    _, machine = known
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
        """The rules of these node pools."""

    def list_pools(self) -> tuple[NodePool, ...]:
        """Return all node pools of the cluster. Changes nothing."""

    def unknown_sources(self) -> frozenset[str]:
        """Return the names of optional sources (`model.sources`) whose facts about listed pools could not be read."""

    def get_pool(self, name: PoolName) -> NodePool:
        """Return one node pool. Changes nothing.

        Fails with NOT_FOUND if the pool does not exist now; a create with an unknown outcome may still take effect.
        """

    def create_pool(self, request: NodePoolRequest, blocked: Blocked) -> OperationName:
        """Submit the creation of a node pool, and of the resources that it needs. Does not retry a failed call."""

    def delete_pool(self, name: PoolName) -> OperationName:
        """Submit the deletion of a node pool with all its nodes. Does not retry a failed call.

        Fails with OPERATION_IN_THE_WAY also if the pool is already being deleted.
        """

    def get_operation(self, name: OperationName) -> Operation:
        """Return an operation. A failed operation is a result with a failure, not an exception. Changes nothing."""
