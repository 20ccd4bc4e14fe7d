"""Interfaces to a supplier of node pools: the loop calls `Supplier`, planning calls `PoolRules`.

GKE is one supplier; each has a folder in suppliers/. `PoolRules` are pure. The following contract of a `Supplier` is
checked for every supplier by one suite of tests (tests/slices/suppliers/conformance.py):

- Every method may be called from many threads, is one short exchange, and never waits for a long operation: a create or
  delete returns once the supplier has accepted it, before its result is known. `SupplierError` is the only exception.
- **Idempotent by name.** A second create of a name fails with ALREADY_EXISTS and changes nothing. A delete of a missing
  pool fails with NOT_FOUND. So a call whose response was lost may be sent again with the same name.
- **UNKNOWN_OUTCOME** means that the response to a changing call was lost: the call may take effect, even later. After
  every other failure, nothing has changed.
- **Complete lists.** `list_pools` returns every pool of the cluster, also pools of other clients, because their names
  are in use. A pool that cannot be parsed is included with status UNKNOWN. A pool is listed from the moment that its
  create was accepted until nothing is left of it.
- An operation is known until some time after its end. NOT_FOUND does not reveal its result: look at the pool.
- A changing call sends nothing after `blocked` has returned a failure: it calls `blocked` right before each request.
- A supplier that limits concurrent operations raises TOO_MANY_OPERATIONS; planning learns the limit from that, and
  counts each pool that is being created or deleted as an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from provisioner import tpu
from provisioner.model.capacity import CallError, Failure, NodePool, NodePoolRequest, Operation, OperationName, PoolName
from provisioner.model.fit import NodeView
from provisioner.settings import Settings
from provisioner.slices.demand import Slice

#: Returns the reason why nothing may be changed now; None if changes are allowed.
Blocked = Callable[[], Failure | None]


class SupplierError(CallError):
    """The only exception of a supplier."""


class UnmeetableError(ValueError):
    """No node pool can serve the slice in its present form; the message contains the reason and the remedy."""


class ImpossibleError(UnmeetableError):
    """No provider's nodes can serve it: Google sells no such slice, or the request contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Rules of a supplier's node pools. Pure: equal inputs, equal results."""

    #: Name of the supplier in messages.
    supplier_name: str
    #: Interval in seconds between lists of the pools while no operation is in progress: each list is a call.
    idle_seconds: float
    #: Labels of Google or Kubernetes that pods select, and that nodes have only if they are requested for the pool.
    passed_on: frozenset[str]
    #: Further labels of Google or Kubernetes that a pod may have copied: they request a feature of the supplier, and no
    #: other program relies on them.
    copyable: frozenset[str]
    #: Completes a request with the properties that this supplier's pools need, including labels that nodes have only if
    #: the pool requests them. Depends on the slice's shape and its pods' requirements. Raises UnmeetableError.
    complete: Callable[[NodePoolRequest, Slice, tpu.Shape, Settings], NodePoolRequest]
    #: Predicts how the scheduler will see a node of a pool.
    expected_node: Callable[[NodePool], NodeView]


class Supplier(Protocol):
    """The node pools of one cluster."""

    @property
    def rules(self) -> PoolRules:
        """The rules of these node pools."""
        ...

    def list_pools(self) -> tuple[NodePool, ...]:
        """Return all node pools of the cluster. Changes nothing."""
        ...

    def unknown_sources(self) -> frozenset[str]:
        """Return the names of optional facts about the listed pools that could not be read (`model.sources`)."""
        ...

    def get_pool(self, name: PoolName) -> NodePool:
        """Return one node pool. Changes nothing.

        NOT_FOUND: the pool does not exist now; a create with an unknown outcome may still take effect.
        """
        ...

    def create_pool(self, request: NodePoolRequest, blocked: Blocked) -> OperationName:
        """Submit the creation of a node pool, and of the resources that it needs. Never retried here."""
        ...

    def delete_pool(self, name: PoolName) -> OperationName:
        """Submit the deletion of a node pool with all its nodes. Never retried here.

        Fails with OPERATION_IN_THE_WAY also if the pool is already being deleted.
        """
        ...

    def get_operation(self, name: OperationName) -> Operation:
        """Return an operation. A failed operation is a result with a failure, not an exception. Changes nothing."""
        ...
