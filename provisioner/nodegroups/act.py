"""Executes plans in threads and queues the answers for the loop. Never waits for an operation of Compute Engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import structlog

from provisioner.controller.actor import NO_LEASE, CallingActor
from provisioner.kube import errors
from provisioner.kube.errors import ClusterError, TooManyRequests
from provisioner.kube.live import why_kept
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import WriteFailure
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.records import Compute, ComputeError, Manager, Resource, ResourcePolicy, Template
from provisioner.nodegroups.gate import Gate
from provisioner.nodegroups.metrics import Metrics
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.planning.decide import Plan
from provisioner.nodegroups.planning.memory import Answer
from provisioner.nodegroups.writing import WRITE_SECONDS, Writer
from provisioner.runtime.repeats import Lasting

_log = structlog.get_logger(__name__)

#: Time-out in seconds of the client for changes. A change is not sent if the lease is valid for a shorter time.
CALL_SECONDS = 10.0
_DRY = "Not done: this is a dry run."
#: Name of a resource in metrics, and its record, by kind.
_SORTS: Mapping[Kind, tuple[str, type[Resource]]] = {
    Kind.WORKLOAD_POLICY: ("policy", ResourcePolicy),
    Kind.INSTANCE_TEMPLATE: ("template", Template),
    Kind.MANAGED_INSTANCE_GROUP: ("manager", Manager),
}


@dataclass(slots=True, kw_only=True)
class Actor(CallingActor[Answer]):
    """Executes plans. Calls and writes have their own keys (`Call.key`, `Write.key`)."""

    compute: Compute
    writer: Writer
    gate: Gate
    executor: Executor
    #: Runs deletes that the gate checks first: for a group of thousands of nodes this takes long.
    gate_executor: Executor
    write_executor: Executor
    metrics: Metrics

    def carry_out(self, plan: Plan) -> None:
        """Submit all calls and writes of a plan without blocking. A failure to submit one does not affect others."""
        for write in plan.writes:
            self.submit(
                functools.partial(self._write, write),
                self.write_executor,
                key=write.key,
                not_sent=functools.partial(self._not_written, write),
            )
        for call in plan.calls:
            gated = isinstance(call, actions.Delete) and call.proof is not None
            self.submit(
                functools.partial(self._call, call),
                self.gate_executor if gated else self.executor,
                key=call.key,
                not_sent=functools.partial(self._not_called, call),
            )

    def _call(self, call: actions.Call) -> actions.CallAnswer:
        if call.sort is actions.Sort.CHANGE and self.lease_seconds() <= CALL_SECONDS:
            return self._not_called(call, NO_LEASE)
        if isinstance(call, actions.Delete) and call.proof is not None:
            kept = why_kept(functools.partial(self.gate.pass_through, call.proof), call=call.key)
            if kept is not None:
                return actions.CallAnswer(call=call, asked_at=self.clock(), at=self.clock(), kept=kept)
            # Checked again, because the gate may have taken long.
            if self.lease_seconds() <= CALL_SECONDS:
                return self._not_called(call, NO_LEASE)
        return self._send(call)

    def _send(self, call: actions.Call) -> actions.CallAnswer:
        asked_at, started = self.clock(), self.monotonic()
        failure, retry_after, code, result = None, None, 200, None
        method = "none"
        try:
            method, send = _exchange(self.compute, call)
            result = send()
        except ComputeError as error:
            failure, retry_after, code = error.failure, error.retry_after_seconds, error.code
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            # The request may have reached Compute Engine, regardless of the exception.
            _log.exception("call.crashed", call=call.key)
            failure, code = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message=repr(error)), 0
        kind = failure.kind if failure is not None else None
        self.metrics.observe_call(method, seconds=self.monotonic() - started, failure=kind, code=code)
        # For a create, NOT_FOUND is a failure: the request refers to a resource that does not exist.
        if kind is FailureKind.NOT_FOUND and not isinstance(call, actions.Insert):
            failure = None
        return actions.CallAnswer(
            call=call,
            asked_at=asked_at,
            at=self.clock(),
            result=result,
            failure=failure,
            retry_after_seconds=retry_after,
        )

    def _not_called(
        self, call: actions.Call, why: str, kind: FailureKind = FailureKind.UNAVAILABLE
    ) -> actions.CallAnswer:
        failure = Failure(kind=kind, message=why)
        return actions.CallAnswer(call=call, asked_at=self.clock(), at=self.clock(), failure=failure)

    def _write(self, write: actions.Write) -> actions.WriteAnswer:
        failure, message = None, ""
        if self.lease_seconds() <= WRITE_SECONDS:
            return self._not_written(write, NO_LEASE)
        try:
            self.writer.write(write)
        except ClusterError as error:
            failure, message = failure_of(write, error), str(error)
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            _log.exception("write.crashed", write=write.key)
            failure, message = WriteFailure.UNAVAILABLE, repr(error)
        return actions.WriteAnswer(write=write, at=self.clock(), failure=failure, message=message)

    def _not_written(self, write: actions.Write, why: str) -> actions.WriteAnswer:
        return actions.WriteAnswer(write=write, at=self.clock(), failure=WriteFailure.UNAVAILABLE, message=why)


@dataclass(slots=True, kw_only=True)
class DryActor(Actor):
    """Executes reads. Logs each change once and rejects it, so that no further step follows."""

    _said: Lasting = field(default_factory=Lasting)

    def carry_out(self, plan: Plan) -> None:
        """Submit the reads, and reject the changes."""
        reads = tuple(call for call in plan.calls if call.sort is not actions.Sort.CHANGE)
        Actor.carry_out(self, replace(plan, writes=(), calls=reads))
        for call in plan.calls:
            if call.sort is actions.Sort.CHANGE:
                self._say(would(call))
                self.put(self._not_called(call, _DRY, FailureKind.PERMISSION), key=call.key)
        for write in plan.writes:
            if not isinstance(write, actions.PatchStatus):
                self._say(would(write))
            refused = actions.WriteAnswer(write=write, at=self.clock(), failure=WriteFailure.REFUSED, message=_DRY)
            self.put(refused, key=write.key)

    def _say(self, action: str) -> None:
        self._said.fails(action, _DRY, lambda: _log.info("dry_run.would", action=action))


def would(change: actions.Call | actions.Write) -> str:
    """Describe a change, without its content: metadata contains tokens."""
    if isinstance(change, actions.Insert | actions.Delete):
        target = change.target
        return f"{type(change).__name__.lower()} {target.name} in {target.scope.path}"
    if isinstance(change, actions.SetMetadata):
        return change.key
    verb = actions.words_of(type(change).__name__)
    if isinstance(change, actions.PatchNode):
        verb = "cordon" if change.cordon else "label or taint"
    return f"{verb}: {change.key}"


def failure_of(write: actions.Write, error: ClusterError) -> WriteFailure:
    """Return the kind of failure of a failed write."""
    if isinstance(write, actions.EvictPod) and isinstance(error, TooManyRequests):
        return WriteFailure.NOT_NOW
    return errors.failure_of(error)


def _exchange(compute: Compute, call: actions.Call) -> tuple[str, Callable[[], actions.Result]]:
    """Return the method of a call, as metrics name it, and a function that sends it."""
    scope, name = call.target.scope, call.target.name
    word, sort = _SORTS[call.target.kind]
    match call:
        case actions.Read():
            return f"get_{word}", lambda: compute.get(sort, scope, name)
        case actions.ListManagers():
            return "list_managers", lambda: compute.list_managers(scope)
        case actions.ListMachines():
            return "list_managed_instances", lambda: compute.list_managed_instances(scope, name)
        case actions.Insert():
            return f"insert_{word}", lambda: compute.insert(scope, call.resource, request_id=call.request_id)
        case actions.Delete():
            return f"delete_{word}", lambda: compute.delete(sort, scope, name, request_id=call.request_id)
        case actions.Poll():
            return "get_operation", lambda: compute.get_operation(scope, call.operation)
        case actions.ReadMachines(machines=machines):
            return "list_instances", lambda: compute.list_instances(scope, [machine.name for machine in machines])
        case actions.SetMetadata():
            return "set_metadata", lambda: compute.set_metadata(
                call.machine.scope,
                call.machine.name,
                call.items,
                fingerprint=call.fingerprint,
                request_id=call.request_id,
            )
