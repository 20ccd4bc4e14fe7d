"""GKE as a supplier of node pools: the calls of its client, and the workload policies that some pools need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.capacity import NodePool, NodePoolRequest, Operation, OperationName, PoolName
from provisioner.slices.supplier import Blocked, PoolRules
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.policies import Policies
from provisioner.slices.suppliers.gke.protocol import Gke
from provisioner.slices.suppliers.gke.rules import GKE_RULES


@dataclass(slots=True, kw_only=True)
class GkeSupplier:
    """The node pools of one GKE cluster; implements `Supplier`."""

    gke: Gke
    clock: Callable[[], datetime]
    rules: PoolRules = GKE_RULES
    _policies: Policies = field(init=False)

    def __post_init__(self) -> None:
        self._policies = Policies(gke=self.gke, clock=self.clock)

    def list_pools(self) -> tuple[NodePool, ...]:
        """Implement `Supplier.list_pools`: one call however many there are."""
        return self.gke.list_node_pools()

    def get_pool(self, name: PoolName) -> NodePool:
        """Implement `Supplier.get_pool`."""
        return self.gke.get_node_pool(name)

    def create_pool(self, request: NodePoolRequest, blocked: Blocked) -> OperationName:
        """Implement `Supplier.create_pool`: first the workload policy, where the pool needs one."""
        # Asked again after the policy, which may have taken long.
        failure = blocked() or self._policies.ensure(request, blocked) or blocked()
        if failure is not None:
            raise GkeError(failure)
        try:
            operation = self.gke.create_node_pool(request)
        except GkeError as error:
            explained = self._policies.explain(request, error.failure)
            raise GkeError(explained, error.subject, retry_after_seconds=error.retry_after_seconds) from error
        self._policies.succeeded(request)
        return operation

    def delete_pool(self, name: PoolName) -> OperationName:
        """Implement `Supplier.delete_pool`."""
        return self.gke.delete_node_pool(name)

    def get_operation(self, name: OperationName) -> Operation:
        """Implement `Supplier.get_operation`."""
        return self.gke.get_operation(name)
