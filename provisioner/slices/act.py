"""Carries out plans: submits calls to the supplier, whose answers the loop takes, and changes of Kubernetes objects.

Each call runs in a thread, and does not wait for the operation that it starts. A failed change of a node, pod or status
is repeated if a later round still plans it, after a pause of at most 60 s.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from provisioner import constants
from provisioner.controller.actor import NO_LEASE, WRITE_SECONDS, WRITE_TIMEOUTS, CallingActor
from provisioner.kube import live
from provisioner.kube.errors import ClusterError, Conflict, NotFound
from provisioner.kube.live import DeletionBlockedError
from provisioner.kube.protocol import Api, object_path
from provisioner.model.capacity import Failure, FailureKind, PoolName
from provisioner.model.waits import doubled_seconds
from provisioner.model.wording import first_of
from provisioner.slices.gate import Gate, SettlingError, WorkloadNeedsPoolError
from provisioner.slices.planning.memory.answers import Answer, CreateAnswer, DeleteAnswer, DeleteResult, LookUpAnswer
from provisioner.slices.planning.memory.state import LookUp
from provisioner.slices.planning.plan import Alert, Assignment, Create, Delete, Plan, PodCost, StatusWrite
from provisioner.slices.supplier import Supplier, SupplierError
from provisioner.workloads import KINDS
from provisioner.workloads.pods import list_pods_on_node

_log = structlog.get_logger(__name__)

#: Time-out in seconds of a call that creates or deletes a pool. The call is not sent if the Lease may end in this time.
CALL_TIMEOUT_SECONDS = 10.0
_NO_LEASE = Failure(kind=FailureKind.UNAVAILABLE, message=NO_LEASE)
#: Pause in seconds after the first failure of a change; doubled by each further failure up to `_MAX_PAUSE_SECONDS`.
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 60.0
#: Time in seconds for which the changes of an object must have failed before an alert is raised.
_ALERT_SECONDS = 600.0
#: Maximum number of unfinished writes of a plan's statuses. More would delay changes of nodes in the same threads.
_MAX_WRITES = 64


class _Rejection(NamedTuple):
    since: float
    failures: int
    retry_at: float
    error: str


@dataclass(slots=True, kw_only=True)
class Actor(CallingActor[Answer]):
    """Carries out plans. The base class identifies a submitted create or delete by its key, the name of the pool."""

    supplier: Supplier
    api: Api
    gate: Gate
    executor: Executor
    #: Runs deletes, so that their long checks delay no create, and no change of a node, pod or status.
    delete_executor: Executor
    change_executor: Executor
    #: Nodes, pods and other objects with an unfinished change, which get no second change.
    _changing: set[str] = field(default_factory=set)
    #: Labels that the last plan writes, by node. Replaced, never changed, because other threads read it.
    _labels: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    #: Failed changes by node, pod or other object. Written by several threads.
    _rejected: dict[str, _Rejection] = field(default_factory=dict)

    def carry_out(self, plan: Plan) -> None:
        """Submit the calls of a plan without waiting. A call that cannot be submitted does not affect other calls."""
        self.gate.forget_all_but(plan.memory.deletes.keys())
        self._labels = {assignment.node: assignment.labels for assignment in reversed(plan.assignments)}
        # Deletes are submitted first, because each pool that is not needed costs money.
        for delete in plan.deletes:
            call = functools.partial(self._delete, delete)
            self._submit(delete.name, call, self.delete_executor, self._delete_failed)
        for create in plan.creates:
            name = create.request.name
            self._submit(name, functools.partial(self._create, create), self.executor, self._create_failed)
        for look_up in plan.look_ups:
            self.submit(functools.partial(self._look_up, look_up), self.executor)
        changes: list[tuple[str, Callable[[], object]]] = [
            *((assignment.node, functools.partial(self._assign, assignment)) for assignment in plan.assignments),
            *((f"Pod {cost.namespace}/{cost.name}", functools.partial(self._set_cost, cost)) for cost in plan.costs),
            *((node, functools.partial(live.uncordon, self.api, node)) for node in plan.uncordons),
            *((node, functools.partial(live.release, self.api, node)) for node in plan.releases),
        ]
        writes = [(write.workload.text, functools.partial(self._write_status, write)) for write in plan.statuses]
        for unwanted in self._rejected.copy().keys() - {target for target, _ in (*changes, *writes)}:
            self._rejected.pop(unwanted, None)
        for target, change in changes:
            self._submit_change(target, change)
        # Later rounds write the statuses beyond _MAX_WRITES: a successful write causes an event, which starts a round.
        free = _MAX_WRITES - len(self._changing & {target for target, _ in writes})
        for target, change in writes:
            free -= free > 0 and self._submit_change(target, change)

    def _submit_change(self, target: str, change: Callable[[], object]) -> bool:
        rejection = self._rejected.get(target)
        if target in self._changing or (rejection is not None and self.monotonic() < rejection.retry_at):
            return False
        self._changing.add(target)
        submitted = self.submit(functools.partial(self._change, change, target), self.change_executor)
        if not submitted:
            self._changing.discard(target)
        return submitted

    def live_calls(self) -> frozenset[PoolName]:
        """Return the pools whose create or delete was submitted, and whose answer has not been processed yet."""
        return frozenset(map(PoolName, self.live()))

    def _submit(
        self,
        name: PoolName,
        call: Callable[[], Answer],
        executor: Executor,
        failed: Callable[[PoolName, Failure], Answer],
    ) -> None:
        def not_sent(reason: str) -> Answer:
            return failed(name, Failure(kind=FailureKind.UNAVAILABLE, message=reason))

        self.submit(call, executor, key=name, not_sent=not_sent)

    def _create_failed(self, name: PoolName, failure: Failure) -> CreateAnswer:
        return CreateAnswer(name=name, at=self.clock(), failure=failure)

    def _delete_failed(self, name: PoolName, failure: Failure, reason: str = "") -> DeleteAnswer:
        result, reason = DeleteResult.FAILED, reason or failure.message
        return DeleteAnswer(name=name, at=self.clock(), result=result, reason=reason, failure=failure)

    def _create(self, create: Create) -> Answer:
        name = create.request.name
        try:
            operation = self.supplier.create_pool(create.request, self._lack_of_lease)
        except SupplierError as error:
            return self._create_failed(name, error.failure)
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            # The supplier may have received the request before the exception, so the outcome is unknown.
            _log.exception("create.crashed", node_pool=name)
            return self._create_failed(name, Failure(kind=FailureKind.UNKNOWN_OUTCOME, message=repr(error)))
        return CreateAnswer(name=name, at=self.clock(), operation=operation)

    def _lack_of_lease(self) -> Failure | None:
        return _NO_LEASE if self.lease_seconds() <= CALL_TIMEOUT_SECONDS else None

    def _delete(self, delete: Delete) -> Answer:
        def answer(result: DeleteResult, **details: Any) -> DeleteAnswer:
            return DeleteAnswer(name=delete.name, at=self.clock(), result=result, **details)

        try:
            if self._lack_of_lease() is None:
                self.gate.verify_deletable(delete)
                # The Lease is checked again, because the checks of the gate may take longer than the Lease lasts.
                if self._lack_of_lease() is None:
                    return answer(DeleteResult.ACCEPTED, operation=self.supplier.delete_pool(delete.name))
        except WorkloadNeedsPoolError as error:
            return answer(DeleteResult.NEEDED, reason=str(error))
        except SettlingError as error:
            return answer(DeleteResult.SETTLING, reason=str(error), wait_seconds=error.wait_seconds)
        except DeletionBlockedError as error:
            return answer(DeleteResult.KEPT, reason=str(error), public=error.public)
        except ClusterError as error:
            failure = Failure(kind=FailureKind.UNAVAILABLE, message=str(error))
            return self._delete_failed(delete.name, failure, f"Kubernetes does not allow the check: {error}")
        except SupplierError as error:
            if error.failure.kind is FailureKind.NOT_FOUND:
                return answer(DeleteResult.GONE)
            return self._delete_failed(delete.name, error.failure)
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            _log.exception("delete.crashed", node_pool=delete.name)
            return self._delete_failed(delete.name, Failure(kind=FailureKind.UNKNOWN_OUTCOME, message=repr(error)))
        return self._delete_failed(delete.name, _NO_LEASE)

    def _look_up(self, look_up: LookUp) -> Answer:
        try:
            if look_up.operation:
                operation = self.supplier.get_operation(look_up.operation)
                return LookUpAnswer(look_up=look_up, at=self.clock(), operation=operation)
            self.supplier.get_pool(look_up.name)
        except SupplierError as error:
            if error.failure.kind is FailureKind.NOT_FOUND:
                return LookUpAnswer(look_up=look_up, at=self.clock())
            return LookUpAnswer(look_up=look_up, at=self.clock(), failure=error.failure)
        return LookUpAnswer(look_up=look_up, at=self.clock(), exists=True)

    def _assign(self, assignment: Assignment) -> None:
        """Write the labels of a node only if the last plan still contains them: no slice may get nodes of two pools.

        Raises Conflict if a pod uses devices of one of the nodes in `verify`.
        """
        for node in assignment.verify:
            pods = list_pods_on_node(self.api, node)
            if using := [f"{pod.namespace}/{pod.name}" for pod in pods if pod.keeps_node(self.clock())]:
                raise Conflict(
                    f"node {assignment.node} is not assigned: unfinished pods are on node {node}: {first_of(using)}"
                )
        # Plans contain the wanted labels until a watch shows them.
        wanted = self._labels.get(assignment.node) == assignment.labels
        # The Lease is checked again, because the live checks may take longer than the Lease lasts.
        if wanted and self.lease_seconds() > WRITE_SECONDS:
            live.label(self.api, assignment.node, assignment.labels, timeouts=WRITE_TIMEOUTS)

    def _set_cost(self, cost: PodCost) -> None:
        """Write the deletion cost of a pod, unless the pod no longer exists or another pod now has its name."""
        annotations = {constants.POD_DELETION_COST: str(cost.cost)}
        body = {"metadata": {"uid": cost.uid, "annotations": annotations}}
        with contextlib.suppress(Conflict, NotFound):
            path = object_path("pods", cost.name, namespace=cost.namespace)
            self.api.patch(path, body, timeouts=WRITE_TIMEOUTS)

    def _write_status(self, write: StatusWrite) -> None:
        """Write a status, unless the object has changed since the decision: a later round then decides again."""
        named, kind = write.workload, KINDS[write.workload.kind]
        path = object_path(kind.resource, named.name, namespace=named.namespace, root=kind.root)
        body = {"metadata": {"resourceVersion": write.resource_version}, "status": dict(write.status)}
        with contextlib.suppress(Conflict, NotFound):
            self.api.patch(f"{path}/status", body, timeouts=WRITE_TIMEOUTS)

    def _change(self, change: Callable[[], object], target: str) -> None:
        try:
            if self.lease_seconds() <= WRITE_SECONDS:
                return
            change()
        except ClusterError as error:
            now = self.monotonic()
            before = self._rejected.get(target, _Rejection(since=now, failures=0, retry_at=now, error=""))
            if not before.failures:
                _log.warning("node.change_failed", node=target, error=str(error))
            failures = before.failures + 1
            retry_at = now + doubled_seconds(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, failures, target)
            self._rejected[target] = _Rejection(before.since, failures, retry_at, str(error))
        else:
            if self._rejected.pop(target, None) is not None:
                _log.info("node.change_recovered", node=target)
        finally:
            self._changing.discard(target)

    def rejected(self) -> Mapping[str, str]:
        """Return the last error of each node, pod or other object whose changes have failed for `_ALERT_SECONDS`."""
        limit = self.monotonic() - _ALERT_SECONDS
        # A copy is read, because other threads may change the dictionary during the loop.
        return {
            target: rejection.error
            for target, rejection in sorted(self._rejected.copy().items())
            if rejection.since <= limit
        }

    def alerts(self) -> tuple[Alert, ...]:
        """Return one alert if the changes of at least one object have failed for `_ALERT_SECONDS`; otherwise none."""
        if not (rejected := self.rejected()):
            return ()
        message = (
            "Kubernetes has rejected each label, cordon, uncordon, removal of a taint, deletion cost or write of a "
            f"status of {len(rejected)} object(s) for {_ALERT_SECONDS / 60:.0f} minutes ({first_of(list(rejected))}): "
            f"{next(iter(rejected.values()))}"
        )
        return (Alert(kind="node_change_rejected", message=message),)
