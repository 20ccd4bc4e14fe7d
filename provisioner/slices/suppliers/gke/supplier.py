"""GKE as a supplier of node pools: the calls of its client, and the workload policies that some pools need.

GKE rejects multi-host pools of tpu7x and tpu7 whose workload policy does not exist. A missing policy is created if the
provisioner chose its name; a policy that a pod names is only checked. No call waits until a policy is usable: the next
attempt to create the pool checks the policy again.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ParamSpec, TypeVar

import structlog

from provisioner import constants
from provisioner.google.errors import status_label
from provisioner.model.capacity import (
    HIGH_THROUGHPUT,
    Failure,
    FailureKind,
    NodePool,
    NodePoolRequest,
    Operation,
    OperationName,
    PoolName,
    WorkloadPolicy,
)
from provisioner.model.choices import LAST_OF_RESERVATION
from provisioner.model.sources import RESERVATIONS
from provisioner.settings.forms import region_of
from provisioner.slices.supplier import Blocked, PoolRules
from provisioner.slices.suppliers.gke.client import GkeClient
from provisioner.slices.suppliers.gke.errors import GkeError, message_names, says_missing
from provisioner.slices.suppliers.gke.reservations import Reservations
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.gke.translate import Cluster

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)

_READY = "READY"
#: Kinds of failures of policy calls that would be mistaken for failures of the create. They become UNAVAILABLE.
_MISLEADING = frozenset({FailureKind.UNKNOWN_OUTCOME, FailureKind.TOO_MANY_OPERATIONS, FailureKind.NOT_FOUND})


@dataclass(slots=True, kw_only=True)
class GkeSupplier:
    """The node pools of one GKE cluster; implements `Supplier`. Used by many threads."""

    gke: GkeClient
    clock: Callable[[], datetime]
    #: Records a call: method, duration in seconds, kind of error (None after a success), HTTP status as a label.
    observe: Callable[..., None] = lambda *_, **__: None
    monotonic: Callable[[], float] = time.monotonic
    rules: PoolRules = GKE_RULES
    #: Names and topologies of the workload policies that are correct and ready.
    _correct: set[tuple[str, str]] = field(default_factory=set)
    #: Whether no read of a workload policy has failed with PERMISSION.
    _may_read: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    reservations: Reservations = field(init=False)

    def __post_init__(self) -> None:
        self.reservations = Reservations(
            get_end=lambda of: self._call(self.gke.get_reservation, **of._asdict()).ends_at, clock=self.clock
        )

    def get_cluster(self) -> Cluster:
        """Return facts about the cluster."""
        return self._call(self.gke.get_cluster)

    def list_pools(self) -> tuple[NodePool, ...]:
        """Implement `Supplier.list_pools` with one call. The provisioner's pools get the ends of their reservations."""
        pools = self._call(self.gke.list_node_pools)
        own_pools = [pool for pool in pools if constants.NODEPOOL_MANAGER in pool.labels]
        self.reservations.follow(own_pools)
        ends = {pool.name: self.reservations.known_end(pool) for pool in own_pools}
        return tuple(replace(pool, ends_at=end) if (end := ends.get(pool.name)) else pool for pool in pools)

    def unknown_sources(self) -> frozenset[str]:
        """Implement `Supplier.unknown_sources`."""
        return frozenset({RESERVATIONS} if self.reservations.are_unknown() else ())

    def get_pool(self, name: PoolName) -> NodePool:
        """Implement `Supplier.get_pool`."""
        return self._call(self.gke.get_node_pool, name)

    def create_pool(self, request: NodePoolRequest, blocked: Blocked) -> OperationName:
        """Implement `Supplier.create_pool`; first check or create the workload policy if the pool needs one."""
        # `blocked` is called again before the create, because the calls in between may take long.
        failure = blocked() or self._ensure_policy(request, blocked) or self._ends_soon(request) or blocked()
        if failure is not None:
            raise GkeError(failure)
        try:
            return self._call(self.gke.create_node_pool, request)
        except GkeError as error:
            raise GkeError(self._with_policy_advice(request, error.failure), error.subject) from error

    def delete_pool(self, name: PoolName) -> OperationName:
        """Implement `Supplier.delete_pool`."""
        return self._call(self.gke.delete_node_pool, name)

    def get_operation(self, name: OperationName) -> Operation:
        """Implement `Supplier.get_operation`."""
        return self._call(self.gke.get_operation, name)

    def _call(self, call: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        started = self.monotonic()
        # Any exception other than GkeError is a bug, and is counted as "unexpected".
        error_kind: str | None = "unexpected"
        code = 0
        try:
            result = call(*args, **options)
            error_kind, code = None, 200
        except GkeError as error:
            error_kind, code = error.failure.kind.value, error.code
            raise
        finally:
            seconds = self.monotonic() - started
            self.observe(call.__name__, seconds=seconds, error_kind=error_kind, code=status_label(code))
        return result

    def _ends_soon(self, request: NodePoolRequest) -> Failure | None:
        end = self.reservations.read(request)
        if end is None or end - self.clock() > LAST_OF_RESERVATION:
            return None
        minutes = LAST_OF_RESERVATION // timedelta(minutes=1)
        message = f"The reservation ends at {end:%Y-%m-%d %H:%M} UTC, and nothing begins in its last {minutes} minutes."
        return Failure(kind=FailureKind.INVALID, message=message)

    def _ensure_policy(self, request: NodePoolRequest, blocked: Blocked) -> Failure | None:
        if not request.policy_name or (request.policy_name, request.topology) in self._correct:
            return None
        try:
            return self._check_policy(request, blocked)
        except GkeError as error:
            problem = error.failure
            return replace(problem, kind=FailureKind.UNAVAILABLE) if problem.kind in _MISLEADING else problem

    def _with_policy_advice(self, request: NodePoolRequest, failure: Failure) -> Failure:
        name = request.policy_name
        if not name or not message_names(failure, name):
            return failure
        with self._lock:
            self._correct.discard((name, request.topology))
        if not says_missing(failure, name):
            return failure
        # With permission to read policies, a retry helps: GKE finds new policies late, and the retry checks the policy.
        kind = FailureKind.OPERATION_IN_THE_WAY if self._may_read else failure.kind
        return Failure(kind=kind, message=f"{failure.message.rstrip('.')}; {_by_hand(request)}")

    def _check_policy(self, request: NodePoolRequest, blocked: Blocked) -> Failure | None:
        try:
            policy = self._call(self.gke.get_workload_policy, request.policy_name)
        except GkeError as error:
            if error.failure.kind is FailureKind.NOT_FOUND:
                self._may_read = True
                return self._create_policy(request, blocked)
            if error.failure.kind is not FailureKind.PERMISSION:
                raise
            if self._may_read:
                _log.warning(
                    "workload_policy.not_checked",
                    policy=request.policy_name,
                    error=str(error),
                    advice="node pools are requested without the check; missing policies are not created",
                )
            self._may_read = False
            return None
        self._may_read = True
        return self._judge_policy(request, policy)

    def _create_policy(self, request: NodePoolRequest, blocked: Blocked) -> Failure | None:
        if constants.POOL_TOPOLOGY in request.labels:
            # Only pools whose pods select a policy by its name have this label, and a user has to create the policy.
            return _invalid(request, f"does not exist; {_by_hand(request)}")
        problem = blocked()
        if problem is not None:
            return problem
        policy = WorkloadPolicy(name=request.policy_name, topology=request.topology)
        try:
            self._call(self.gke.create_workload_policy, policy)
            _log.info("workload_policy.created", policy=policy.name, topology=policy.topology)
        except GkeError as error:
            if error.failure.kind is FailureKind.PERMISSION:
                return replace(error.failure, message=f"{error.failure.message} Or {_by_hand(request)}")
            # After ALREADY_EXISTS, the policy of another thread or process is checked.
            if error.failure.kind is not FailureKind.ALREADY_EXISTS:
                raise
        return self._judge_policy(request, self._call(self.gke.get_workload_policy, policy.name))

    def _judge_policy(self, request: NodePoolRequest, policy: WorkloadPolicy) -> Failure | None:
        if policy.type != HIGH_THROUGHPUT or policy.topology != request.topology:
            shape = f"has type {policy.type} and topology {policy.topology or 'none'}"
            return _invalid(
                request,
                f"{shape if policy.type else 'is not a workload policy'}, but the pool needs type {HIGH_THROUGHPUT} "
                f"and topology {request.topology}. "
                f"Specify another one by the selector {constants.PLACEMENT_POLICY}, or delete this one and "
                f"{_by_hand(request)}",
            )
        if policy.status != _READY:
            return Failure(
                kind=FailureKind.OPERATION_IN_THE_WAY,
                message=f"Workload policy {request.policy_name} is not ready yet: {policy.status or 'unknown status'}.",
            )
        with self._lock:
            self._correct.add((request.policy_name, request.topology))
        return None


def _invalid(request: NodePoolRequest, problem: str) -> Failure:
    region = region_of(request.zone)
    return Failure(kind=FailureKind.INVALID, message=f"Workload policy {request.policy_name} in {region} {problem}")


def _by_hand(request: NodePoolRequest) -> str:
    return (
        f"create it by hand: gcloud compute resource-policies create workload-policy {request.policy_name} "
        f"--type={HIGH_THROUGHPUT} --accelerator-topology={request.topology} --region={region_of(request.zone)}"
    )
