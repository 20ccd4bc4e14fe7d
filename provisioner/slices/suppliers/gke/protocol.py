"""What the provisioner asks of GKE, in its own types.

The contract is that of a `Supplier` (provisioner/slices/supplier.py): every method is one short HTTP call, and raises
`GkeError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from provisioner.model.capacity import NodePool, NodePoolRequest, Operation, OperationName, PoolName, WorkloadPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster that the client is bound to, as far as it helps to recognise it."""

    name: str
    #: GKE's own word: RUNNING, RECONCILING, DEGRADED, ...; empty when it says nothing we know.
    status: str = ""
    #: RAPID, REGULAR, STABLE, EXTENDED; empty for none. Only on none GKE takes pools without auto-upgrade.
    release_channel: str = ""
    #: The certificate authority of the Kubernetes API server, PEM; empty when GKE gives none.
    ca_certificate_pem: bytes = b""
    #: Instance group managers of all node pools.
    instance_group_urls: tuple[str, ...] = ()
    #: GKE makes and deletes the nodes itself, and takes no node pools from others.
    autopilot: bool = False
    #: Resources with "tpu" in their names that node auto-provisioning may buy; empty where it is off or buys none.
    auto_provisioned_tpus: tuple[str, ...] = ()
    #: PROJECT.svc.id.goog; empty where Workload Identity is off.
    workload_pool: str = ""
    #: Node pools whose pods have the permissions of their node all the same.
    pools_without_identity: tuple[str, ...] = ()


class Gke(Protocol):
    """The node pools of one cluster, and the workload policies of its region. Safe to call from many threads."""

    def get_cluster(self) -> Cluster:
        """Return the cluster itself."""
        ...

    def list_node_pools(self) -> tuple[NodePool, ...]:
        """Return all node pools of the cluster, ours or not, in one call: see `Supplier.list_pools`."""
        ...

    def get_node_pool(self, name: PoolName) -> NodePool:
        """Return one node pool: see `Supplier.get_pool`."""
        ...

    def create_node_pool(self, request: NodePoolRequest) -> OperationName:
        """Submit the creation of a node pool: see `Supplier.create_pool`."""
        ...

    def delete_node_pool(self, name: PoolName) -> OperationName:
        """Submit the deletion of a node pool with all its nodes: see `Supplier.delete_pool`."""
        ...

    def get_operation(self, name: OperationName) -> Operation:
        """Return an operation: see `Supplier.get_operation`; how long GKE remembers it is not documented."""
        ...

    def get_workload_policy(self, name: str) -> WorkloadPolicy:
        """Return a resource policy of the cluster's project and region. PERMISSION: it may be there all the same."""
        ...

    def create_workload_policy(self, policy: WorkloadPolicy) -> None:
        """Submit the creation of a workload policy, which may be used once `get_workload_policy` calls it READY."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation of Compute Engine, as far as it is looked at."""

    name: str
    #: Compute Engine's own word: CREATING, READY, UPDATING, DELETING, INVALID; empty when it says none.
    status: str = ""
    #: How much is reserved, and how much of that is in use; None when it does not say.
    total: int | None = None
    in_use: int | None = None
    #: What these count: whole machines, or chips.
    unit: str = "hosts"


class Inspector(Protocol):
    """What is asked of Google Cloud beside GKE, to find out early what would fail later. Changes nothing.

    Each question may need an API or a permission that the work itself does not: PERMISSION says nothing of the answer.
    """

    def test_project_permissions(self, permissions: Sequence[str]) -> frozenset[str]:
        """Return those of the permissions that the identity has on the project of the cluster."""
        ...

    def test_account_permissions(self, account: str, permissions: Sequence[str]) -> frozenset[str]:
        """Return those of the permissions that the identity has on a service account; NOT_FOUND: there is none."""
        ...

    def get_reservation(self, *, project: str, zone: str, name: str) -> Reservation:
        """Return a reservation of any project."""
        ...
