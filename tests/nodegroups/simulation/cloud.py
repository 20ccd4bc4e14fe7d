"""A small Compute Engine in memory: resources, operations, machines, and what goes wrong with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from provisioner.model.capacity import Failure, FailureKind, OperationName
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.compute.links import same_resource
from provisioner.nodegroups.compute.records import (
    BULK,
    BulkOperation,
    Instance,
    ManagedInstance,
    Manager,
    Metadata,
    Operation,
    ResourcePolicy,
    Scope,
    Template,
)
from provisioner.nodegroups.planning.calls import Insert, Resource, SetMetadata, Target
from tests.nodegroups.simulation.stage import Stage

_COLLECTIONS = {
    Kind.WORKLOAD_POLICY: "resourcePolicies",
    Kind.INSTANCE_TEMPLATE: "instanceTemplates",
    Kind.MANAGED_INSTANCE_GROUP: "instanceGroupManagers",
}
Key = tuple[Kind, Scope, str]


class Refused(Exception):  # noqa: N818 - what an answer says
    """An answer that is a failure; nothing was done."""

    def __init__(self, kind: FailureKind, message: str = "") -> None:
        super().__init__(message or kind.value)
        self.failure = Failure(kind=kind, message=message or f"Google says {kind.value}.")


@dataclass(slots=True)
class Vm:
    """A machine, or the place of one while `status` is empty."""

    name: str
    scope: Scope
    id: str = ""
    status: str = ""
    action: str = "CREATING"
    failures: tuple[Failure, ...] = ()
    items: dict[str, str] = field(default_factory=dict)
    version: int = 0

    @property
    def provider_id(self) -> str:
        """As its node has it."""
        return f"gce://{self.scope.project}/{self.scope.zone}/{self.name}"


@dataclass(slots=True)
class Held:
    """A resource."""

    resource: Resource
    #: Still in the making, or being deleted.
    busy: str = ""
    vms: dict[str, Vm] = field(default_factory=dict)
    bulk_failures: tuple[Failure, ...] = ()
    created_at: datetime | None = None


@dataclass(slots=True)
class Job:
    """An operation."""

    name: str
    scope: Scope
    done: bool = False
    failure: Failure | None = None


class Cloud:
    """All resources of all projects. Every method is one exchange, and raises Refused."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.held: dict[Key, Held] = {}
        self.jobs: dict[str, Job] = {}
        self._requests: dict[str, str] = {}
        self._numbers = itertools.count(1)
        #: Machines that can be had now, altogether.
        self.capacity = 10_000
        #: Failures that operations end in, by the kind of resource, while they last.
        self.failing: dict[Kind, Failure] = {}
        #: Reading shows what is in the making only when it is made.
        self.shows_early = stage.chance(0.5)
        self.operation_seconds = stage.rng.choice((0.5, 5.0, 20.0))
        self.boot_seconds = stage.rng.choice((5.0, 40.0))
        #: Operations are forgotten so soon after their end.
        self.forgets_seconds = stage.rng.choice((1.0, 3600.0))
        #: Called with what is about to be deleted, and with machines that have started and that stop.
        self.on_delete: Callable[[Target, Held], None] = lambda _target, _held: None
        self.on_running: Callable[[Vm], None] = lambda _vm: None
        self.on_stopped: Callable[[Vm], None] = lambda _vm: None

    # --- resources

    def read(self, target: Target) -> Resource:
        """Return a resource."""
        held = self._find(target)
        if held.busy == "making" and not self.shows_early:
            raise Refused(FailureKind.NOT_FOUND)
        return self._shown(held)

    def insert(self, call: Insert) -> Operation:
        """Begin to make a resource."""
        known = self._requests.get(call.request_id)
        if known is not None:
            return self.operation(known)
        key = _key(call.target)
        if key in self.held:
            raise Refused(FailureKind.ALREADY_EXISTS)
        resource = call.resource
        if isinstance(resource, Manager):
            self._check_references(resource)
        url = f"https://c/compute/v1/{call.target.scope.path}/{_COLLECTIONS[call.target.kind]}/{call.target.name}"
        if isinstance(resource, Manager):
            resource = replace(resource, url=url, id=str(next(self._numbers)))
        else:
            resource = replace(resource, url=url)
        held = Held(resource=resource, busy="making", created_at=self.stage.wall())
        self.held[key] = held
        self.stage.note("cloud", "makes %s", call.target.name)
        job = self._job(call.target.scope, call.request_id)
        self.stage.after(self._seconds(), lambda: self._made(key, held, job))
        return self.operation(job.name)

    def delete(self, target: Target, request_id: str) -> Operation:
        """Begin to delete a resource."""
        known = self._requests.get(request_id)
        if known is not None:
            return self.operation(known)
        held = self._find(target)
        if held.busy:
            raise Refused(FailureKind.OPERATION_IN_THE_WAY, "The resource is not ready.")
        if target.kind is not Kind.MANAGED_INSTANCE_GROUP and self._used(held.resource):
            raise Refused(FailureKind.OPERATION_IN_THE_WAY, "The resource is in use.")
        self.on_delete(target, held)
        self.stage.note("cloud", "deletes %s", target.name)
        held.busy = "deleting"
        for vm in held.vms.values():
            self._stop(vm, "STOPPING")
        job = self._job(target.scope, request_id)
        self.stage.after(self._seconds(), lambda: self._gone(_key(target), job))
        return self.operation(job.name)

    def operation(self, name: str) -> Operation:
        """Return an operation, or that nobody knows it."""
        job = self.jobs.get(name)
        if job is None:
            raise Refused(FailureKind.NOT_FOUND)
        return Operation(name=OperationName(job.name), scope=job.scope, done=job.done, failure=job.failure)

    # --- machines

    def machines(self, target: Target) -> tuple[ManagedInstance, ...]:
        """List the machines of a group."""
        held = self._find(target)
        if held.busy == "making" and not self.shows_early:
            raise Refused(FailureKind.NOT_FOUND)
        return tuple(
            ManagedInstance(
                name=vm.name, scope=vm.scope, status=vm.status, action=vm.action, failures=vm.failures, id=vm.id
            )
            for vm in held.vms.values()
        )

    def instance(self, machine: ManagedInstance) -> Instance:
        """Return a machine."""
        vm = self._vm(machine)
        return Instance(
            name=vm.name,
            status=vm.status,
            metadata=Metadata(items=dict(vm.items), fingerprint=f"{vm.id}-{vm.version}"),
            id=vm.id,
        )

    def set_metadata(self, call: SetMetadata) -> Operation:
        """Replace all items of a machine."""
        known = self._requests.get(call.request_id)
        if known is not None:
            return self.operation(known)
        vm = self._vm(call.machine)
        if call.fingerprint != f"{vm.id}-{vm.version}":
            raise Refused(FailureKind.OPERATION_IN_THE_WAY, "Supplied fingerprint does not match current metadata.")
        vm.items, vm.version = dict(call.items), vm.version + 1
        job = self._job(call.target.scope, call.request_id)
        self._end(job)
        return self.operation(job.name)

    def all_vms(self) -> list[Vm]:
        """List all machines that there are."""
        return [vm for held in self.held.values() for vm in held.vms.values() if vm.status]

    def preempt(self, vm: Vm) -> None:
        """Take a machine away: it stays, stopped."""
        if vm.status in ("PROVISIONING", "STAGING", "RUNNING"):
            self.stage.fault("preempted", vm.name)
            self._stop(vm, "TERMINATED")

    def lose(self, vm: Vm) -> None:
        """Let a machine vanish."""
        self.stage.fault("machine gone", vm.name)
        self._stop(vm, "")
        for held in self.held.values():
            held.vms.pop(vm.name, None)

    def hold(self, target: Target, resource: Resource) -> None:
        """Let somebody else have a resource of a name."""
        self.held[_key(target)] = Held(resource=resource, created_at=self.stage.wall())

    def release(self, target: Target) -> None:
        """Let them delete it."""
        if self.held.pop(_key(target), None) is None:
            self.stage.violate(f"somebody else's {target.name} is gone")

    # --- inside

    def _seconds(self) -> float:
        return self.stage.rng.uniform(0.1, self.operation_seconds)

    def _find(self, target: Target) -> Held:
        held = self.held.get(_key(target))
        if held is None:
            raise Refused(FailureKind.NOT_FOUND)
        return held

    def _vm(self, machine: ManagedInstance) -> Vm:
        for held in self.held.values():
            vm = held.vms.get(machine.name)
            if vm is not None and vm.status:
                return vm
        raise Refused(FailureKind.NOT_FOUND)

    def _shown(self, held: Held) -> Resource:
        resource = held.resource
        if isinstance(resource, ResourcePolicy):
            return replace(resource, status="CREATING" if held.busy == "making" else "READY")
        if isinstance(resource, Template):
            return resource
        waiting = any(not vm.status for vm in held.vms.values()) or len(held.vms) < resource.target_size
        moving = any(vm.action != "NONE" for vm in held.vms.values()) or bool(held.busy)
        bulk = None
        if resource.mode == BULK:
            creating = any(vm.action == "CREATING" and not vm.status for vm in held.vms.values())
            bulk = BulkOperation(
                in_progress=creating or held.busy == "making", checked_at=held.created_at, failures=held.bulk_failures
            )
        return replace(
            resource,
            is_stable=not moving and not (waiting and held.busy == "making"),
            bulk=bulk,
            created_at=held.created_at,
        )

    def _check_references(self, manager: Manager) -> None:
        urls = [held.resource.url for held in self.held.values() if held.busy != "making"]
        for url in filter(None, (manager.template, manager.policy)):
            if not any(same_resource(url, each) for each in urls):
                raise Refused(FailureKind.INVALID, f"The resource {url} was not found.")

    def _used(self, resource: Resource) -> bool:
        return any(
            same_resource(resource.url, url)
            for held in self.held.values()
            if isinstance(held.resource, Manager)
            for url in (held.resource.template, held.resource.policy)
            if url
        )

    def _job(self, scope: Scope, request_id: str) -> Job:
        job = Job(name=f"operation-{next(self._numbers)}", scope=scope)
        self.jobs[job.name] = job
        self._requests[request_id] = job.name
        return job

    def _end(self, job: Job, failure: Failure | None = None) -> None:
        job.done, job.failure = True, failure
        self.stage.after(self.forgets_seconds, lambda: self._forget(job))

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.name, None)
        self._requests = {request: name for request, name in self._requests.items() if name != job.name}

    def _made(self, key: Key, held: Held, job: Job) -> None:
        failure = self.failing.get(key[0])
        if failure is not None:
            self.held.pop(key, None)
            self._end(job, failure)
            return
        held.busy = ""
        self._end(job)
        resource = held.resource
        if isinstance(resource, Manager):
            template = next(
                each.resource
                for each in self.held.values()
                if isinstance(each.resource, Template) and same_resource(each.resource.url, resource.template)
            )
            items = dict(template.metadata) if isinstance(template, Template) else {}
            for number in range(resource.target_size):
                name = f"{resource.name[:20]}-{number:02d}{self.stage.rng.randrange(10_000):04d}"
                held.vms[name] = Vm(name=name, scope=key[1], items=dict(items))
            self._try_capacity(held)

    def _try_capacity(self, held: Held) -> None:
        """Make the machines of a group, if there are enough; else try again later."""
        if held.busy or not any(each is held for each in self.held.values()):
            return
        wanted = [vm for vm in held.vms.values() if not vm.status]
        if len(wanted) > self.capacity:
            failure = Failure(kind=FailureKind.STOCKOUT, message="There are not enough TPUs in this zone.")
            if isinstance(held.resource, Manager) and held.resource.mode == BULK:
                held.bulk_failures = (failure,)
            else:
                for vm in wanted:
                    vm.failures = (failure,)
            self.stage.after(30.0, lambda: self._try_capacity(held))
            return
        held.bulk_failures = ()
        self.capacity -= len(wanted)
        for vm in wanted:
            vm.failures = ()
            self.stage.after(self.stage.rng.uniform(0.1, 3.0), lambda vm=vm: self._provision(held, vm))

    def _provision(self, held: Held, vm: Vm) -> None:
        if held.busy or vm.status:
            return
        vm.id, vm.status = str(next(self._numbers)), "PROVISIONING"
        self.stage.after(self.stage.rng.uniform(1.0, self.boot_seconds), lambda: self._run(vm))

    def _run(self, vm: Vm) -> None:
        if vm.status == "PROVISIONING":
            vm.status, vm.action = "RUNNING", "NONE"
            self.on_running(vm)

    def _stop(self, vm: Vm, status: str) -> None:
        if vm.status:
            self.on_stopped(vm)
            if vm.status not in ("TERMINATED", "STOPPING"):
                self.capacity += 1
        vm.status, vm.action = status, "NONE" if status == "TERMINATED" else "DELETING"

    def _gone(self, key: Key, job: Job) -> None:
        self.held.pop(key, None)
        self.stage.note("cloud", "has deleted %s", key[2])
        self._end(job)


def _key(target: Target) -> Key:
    return target.kind, target.scope, target.name
