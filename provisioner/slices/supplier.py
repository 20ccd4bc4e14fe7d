"""What is asked of whoever supplies node pools: `Supplier` by the loop, `PoolRules` by planning.

GKE is one supplier; each has a folder in suppliers/. `PoolRules` are pure. The contract of a `Supplier` is held by one
suite of tests, which runs against every supplier (tests/slices/suppliers/conformance.py):

- Every method may be called from many threads, is one short exchange, and never waits for a long operation: a create or
  delete returns as soon as the supplier has taken it, and says nothing about how it will end. `SupplierError` is the
  only exception.
- **Idempotent by name.** A second create of a name ends in ALREADY_EXISTS and changes nothing. A delete of a name that
  is not there ends in NOT_FOUND. So a call whose answer was lost may be sent again, under the same name.
- **UNKNOWN_OUTCOME** is what a changing call ends in that was lost on its way: it may have had its effect, also later.
  Every other failure means that nothing was changed.
- **Listed means all.** `list_pools` returns every pool of the cluster, also those of others, because their names are
  taken; one that cannot be read has status UNKNOWN rather than being left out. A pool is listed from the moment that
  its create was taken until nothing is left of it.
- An operation is known until some time after its end. NOT_FOUND says nothing about how it ended: look at the pool.
- Nothing is sent by a changing call once `blocked` has returned a failure: it is asked right before each request.
- A supplier that takes only so many operations at once answers TOO_MANY_OPERATIONS; planning learns the number from
  that, and counts as operations the pools that are being created or deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from provisioner import tpu
from provisioner.model.capacity import Failure, NodePool, NodePoolRequest, Operation, OperationName, PoolName
from provisioner.model.fit import NodeView
from provisioner.settings import Settings
from provisioner.slices.demand import Slice

#: Says why nothing may be changed now; None: it may.
Blocked = Callable[[], Failure | None]


class SupplierError(Exception):
    """The one exception of a supplier."""

    def __init__(self, failure: Failure, subject: str = "") -> None:
        super().__init__(f"{subject}: {failure.message}" if subject else failure.message)
        self.failure = failure
        #: The object and the call, such as "create of node pool 'a'".
        self.subject = subject


class UnmeetableError(ValueError):
    """No node pool can serve the slice as it is; the message says why and what to change."""


class ImpossibleError(UnmeetableError):
    """No nodes can serve it, whoever makes them: Google sells none like that, or the request contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """The rules that the node pools of a supplier follow. Pure: equal inputs, equal answers."""

    #: As messages name the supplier.
    supplier_name: str
    #: How often the pools are listed while no operation is under way: each list is a call to the supplier.
    idle_seconds: float
    #: Labels of Google or Kubernetes that pods select, and that nodes have only where the pool is asked for them.
    passed_on: frozenset[str]
    #: Labels of Google or Kubernetes that a pod may have copied, beside those: they ask something of the supplier, and
    #: say nothing that others rely on.
    copyable: frozenset[str]
    #: Adds to the facts of a slice what this supplier's pools need beside them, the labels that nodes have only where
    #: the pool is asked for them among it. Raises UnmeetableError where no pool can be had so. Depends on the slice's
    #: shape and on what its pods ask for.
    complete: Callable[[NodePoolRequest, Slice, tpu.Shape, Settings], NodePoolRequest]
    #: Predicts how the scheduler will see a node of a pool.
    expected_node: Callable[[NodePool], NodeView]


class Supplier(Protocol):
    """The node pools of one cluster."""

    @property
    def rules(self) -> PoolRules:
        """The rules that they follow."""
        ...

    def list_pools(self) -> tuple[NodePool, ...]:
        """Return all node pools of the cluster. Changes nothing."""
        ...

    def unknown_sources(self) -> frozenset[str]:
        """Return the names of optional facts about the listed pools that could not be read (`model.sources`)."""
        ...

    def get_pool(self, name: PoolName) -> NodePool:
        """Return one node pool. Changes nothing.

        NOT_FOUND: it is not there now; a create whose outcome is unknown may still be on its way.
        """
        ...

    def create_pool(self, request: NodePoolRequest, blocked: Blocked) -> OperationName:
        """Submit the creation of a node pool, and of what it needs beside it; never retried here."""
        ...

    def delete_pool(self, name: PoolName) -> OperationName:
        """Submit the deletion of a node pool with all its nodes; never retried here.

        OPERATION_IN_THE_WAY also answers a delete of a pool that is already being deleted.
        """
        ...

    def get_operation(self, name: OperationName) -> Operation:
        """Return an operation; done with a failure is a failure, not an exception. Changes nothing."""
        ...
