"""Executes plans in threads and queues the results for the loop. Never waits for an operation of Compute Engine."""

import functools
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import structlog

from provisioner.controller.actor import Exchange, PlanActor
from provisioner.kube.errors import ClusterError, TooManyRequests
from provisioner.model.capacity import FailureKind
from provisioner.model.writes import WriteFailure
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.gate import Gate
from provisioner.nodegroups.planning import actions
from provisioner.nodegroups.planning.decide import Plan
from provisioner.nodegroups.writing import Writer
from provisioner.runtime.repeats import FailureLog

_log = structlog.get_logger(__name__)

#: Time-out in seconds of a call that changes a resource. The call is not sent if the leader lease may end earlier.
CALL_SECONDS = 10.0
_DRY = "Not done: this is a dry run."
_WORDS = {Kind.WORKLOAD_POLICY: "policy", Kind.INSTANCE_TEMPLATE: "template", Kind.MANAGED_INSTANCE_GROUP: "manager"}


@dataclass(slots=True, kw_only=True)
class Actor(PlanActor[actions.Call, actions.Write]):
    """Makes the calls to Compute Engine and the writes to Kubernetes that plans contain, in threads."""

    compute: ComputeClient
    writer: Writer
    gate: Gate
    executor: Executor
    #: Executor of deletes that the gate checks. A check of thousands of nodes takes long and would delay other calls.
    gate_executor: Executor

    def exchange(self, call: actions.Call) -> Exchange:
        """Return how a call is sent: function, executor, checks. Deletes with a proof are checked by the gate."""
        method, send = _exchange(self.compute, call)
        proof = call.proof if isinstance(call, actions.Delete) else None
        return Exchange(
            method,
            send,
            self.executor if proof is None else self.gate_executor,
            lease_seconds=CALL_SECONDS if call.sort is actions.Sort.CHANGE else None,
            check=functools.partial(self.gate.verify_deletable, proof) if proof is not None else None,
            # For a create, NOT_FOUND is a failure: a resource to which the request refers is missing.
            may_be_absent=not isinstance(call, actions.Insert),
        )

    def write(self, write: actions.Write) -> None:
        """Implement PlanActor.write."""
        self.writer.write(write)

    def failure_of(self, write: actions.Write, error: ClusterError) -> WriteFailure:
        """Return NOT_NOW for an eviction with status 429, usually by a disruption budget, otherwise the usual kind."""
        if isinstance(write, actions.EvictPod) and isinstance(error, TooManyRequests):
            return WriteFailure.NOT_NOW
        return PlanActor.failure_of(self, write, error)


@dataclass(slots=True, kw_only=True)
class DryActor(Actor):
    """Actor of a dry run: makes only reads. Each change gets a failed result and, except for a status, one log line."""

    _said: FailureLog = field(default_factory=FailureLog)

    def carry_out(self, plan: Plan) -> None:
        """Submit the reads of a plan, and reject its changes."""
        reads = tuple(call for call in plan.calls if call.sort is not actions.Sort.CHANGE)
        Actor.carry_out(self, replace(plan, writes=(), calls=reads))
        for call in plan.calls:
            if call.sort is actions.Sort.CHANGE:
                self._say(would(call))
                self.put(self.not_called(call, _DRY, FailureKind.PERMISSION), key=call.key)
        for write in plan.writes:
            if not isinstance(write, actions.PatchStatus):
                self._say(would(write))
            self.put(self.not_written(write, _DRY, WriteFailure.REFUSED), key=write.key)

    def _say(self, action: str) -> None:
        if self._said.fails(action, _DRY):
            _log.info("dry_run.would", action=action)


def would(change: actions.Call | actions.Write) -> str:
    """Return a description of a change, without its content, because metadata contains tokens."""
    if isinstance(change, actions.Insert | actions.Delete):
        target = change.target
        return f"{type(change).__name__.lower()} {target.name} in {target.scope.path}"
    if isinstance(change, actions.SetMetadata):
        return change.key
    verb = actions.words_of(type(change).__name__)
    if isinstance(change, actions.PatchNode):
        verb = "cordon" if change.cordon else "label or taint"
    return f"{verb}: {change.key}"


def _exchange(compute: ComputeClient, call: actions.Call) -> tuple[str, Callable[[], actions.Result]]:
    scope, name, kind = call.target.scope, call.target.name, call.target.kind
    word = _WORDS[kind]
    match call:
        case actions.Read():
            return f"get_{word}", lambda: compute.get(kind, scope, name)
        case actions.ListManagers():
            return "list_managers", lambda: compute.list_managers(scope)
        case actions.ListMachines():
            return "list_managed_instances", lambda: compute.list_managed_instances(scope, name)
        case actions.Insert():
            return f"insert_{word}", lambda: compute.insert(scope, call.child, call.mark, request_id=call.request_id)
        case actions.Delete():
            return f"delete_{word}", lambda: compute.delete(kind, scope, name, request_id=call.request_id)
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
