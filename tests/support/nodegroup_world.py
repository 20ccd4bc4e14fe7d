"""What tests of the edges of node groups build and pretend: objects of a cluster, and a Compute Engine in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from provisioner import constants
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import Failure, FailureKind, OperationName
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind, ObjectMeta
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.compute.records import (
    ComputeError,
    Instance,
    ManagedInstance,
    Manager,
    Operation,
    R,
    Resource,
    ResourcePolicy,
    Scope,
    Template,
)
from provisioner.nodegroups.planning.actions import Proof, Target
from provisioner.nodegroups.reading import API_ROOT
from rehearsal.simulators.compute.guests import joining
from tests.support.nodegroups import SPECS, raw_object

Json = dict[str, Any]

NAMESPACE = "research"
GROUP = "slice"
PROJECT = "research-project"
ZONE = Scope(project=PROJECT, zone="us-central1-c")
REGION = Scope(project=PROJECT, region="us-central1")
EVERYWHERE = Scope(project=PROJECT)
LABELS = {names.GROUP_NAMESPACE: NAMESPACE, names.GROUP_NAME: GROUP}
MANAGER = "slice-mig-4d7d1bc1"
MANAGER_UID = "uid-of-manager"
TAINT = {"key": constants.TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
#: What metrics call the resources.
WORDS: Mapping[type[Any], str] = {ResourcePolicy: "policy", Template: "template", Manager: "manager"}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def raw_kind(kind: Kind, name: str = GROUP, **metadata: Any) -> Json:
    """Return an object of one of the four kinds with a spec that is valid."""
    return raw_object(
        kind, dict(SPECS[kind]), name=name, metadata={"resourceVersion": "7", "generation": 1, **metadata}
    )


def raw_request(node: str, name: str = "csr-1", **parts: Any) -> Json:
    """Return what a kubelet asks for its certificate with, as the API server gives it; `spec` adds to its spec."""
    body = joining.request_body(joining.new_key(node).request_pem)
    who = {"username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers", tokens.GROUP]}
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "7", **parts.pop("metadata", {})}
    return {**body, "metadata": metadata, "spec": {**body["spec"], **who, **parts.pop("spec", {})}, **parts}


def kind_path(kind: Kind, name: str = GROUP) -> str:
    """Return the address of an object of one of the four kinds."""
    return object_path(kind.plural, name, namespace=NAMESPACE, root=API_ROOT)


def meta(name: str = GROUP, **changes: Any) -> ObjectMeta:
    """Return metadata as the caches show it."""
    return ObjectMeta(**{"namespace": NAMESPACE, "name": name, "uid": "u1", "resource_version": "7", **changes})


def provider_id(machine: str) -> str:
    """Return what the node of a machine has in spec.providerID."""
    return f"gce://{PROJECT}/{ZONE.zone}/{machine}"


def raw_machine_node(name: str, *, labels: Mapping[str, str] | None = None, **parts: Any) -> Json:
    """Return a ready node of a machine, labelled as one of the group's, with its chips, and cordoned unless told."""
    marks = {names.ACCELERATOR: "tpu7x", **LABELS} if labels is None else dict(labels)
    spec = {
        "providerID": provider_id(name),
        "taints": [TAINT],
        "unschedulable": parts.pop("unschedulable", True),
        **parts.pop("spec", {}),
    }
    ready = "True" if parts.pop("ready", True) else "False"
    chips = {constants.TPU_RESOURCE: "4"}
    status = {"capacity": chips, "allocatable": chips, "conditions": [{"type": "Ready", "status": ready}]}
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "7", "labels": marks}
    return {"metadata": {**metadata, **parts.pop("metadata", {})}, "spec": spec, "status": status, **parts}


def raw_pod_on(node: str, name: str = "train-0", *, chips: int = 4, **parts: Any) -> Json:
    """Return a running pod."""
    requests = {constants.TPU_RESOURCE: str(chips)} if chips else {"cpu": "1"}
    spec = {
        "nodeName": node,
        "containers": [{"name": "main", "resources": {"requests": requests}}],
        **parts.pop("spec", {}),
    }
    metadata = {"namespace": NAMESPACE, "name": name, "uid": f"uid-of-{name}", **parts.pop("metadata", {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}, **parts}


def target(kind: Kind, name: str = GROUP, uid: str = "u1") -> Target:
    """Return a resource as calls name it."""
    scopes = {Kind.WORKLOAD_POLICY: REGION, Kind.MANAGED_INSTANCE_GROUP: ZONE}
    return Target(uid=uid, namespace=NAMESPACE, kind=kind, scope=scopes.get(kind, EVERYWHERE), name=name)


def a_proof(machines: Iterable[str] = ("m-0", "m-1"), **changes: Any) -> Proof:
    """Return what has to be proven before the group goes with these machines."""
    values: Json = {
        "namespace": NAMESPACE,
        "name": MANAGER,
        "uid": MANAGER_UID,
        "group_labels": LABELS,
        "place": provider_id("m"),
        "provider_ids": frozenset(map(provider_id, machines)),
    }
    return Proof(**(values | changes))


def a_machine(name: str = "m-0", **changes: Any) -> ManagedInstance:
    """Return a machine that runs."""
    return ManagedInstance(**{"name": name, "scope": ZONE, "status": "RUNNING", "id": f"id-of-{name}", **changes})


@dataclass(slots=True)
class FakeCompute:
    """Compute Engine in memory: changes take effect at once."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    #: By path of the scope and name.
    resources: dict[tuple[str, str], Resource] = field(default_factory=dict)
    machines: dict[str, tuple[ManagedInstance, ...]] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    _faults: list[tuple[str, Exception, bool]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    #: Called at the beginning of each call.
    on_call: Callable[[str], object] = lambda _: None

    def fail(
        self, method: str, kind: FailureKind, message: str = "", *, after_effect: bool = False, **parts: Any
    ) -> None:
        """Make the next call of a method fail, after it had its effect where told so: a lost answer."""
        failure = Failure(kind=kind, message=message or kind.value)
        self._faults.append((method, ComputeError(failure, "a call", **parts), after_effect))

    def crash(self, method: str) -> None:
        """Make the next call of a method raise what is a mistake of ours."""
        self._faults.append((method, TypeError("a mistake"), False))

    def methods(self) -> list[str]:
        """Return the methods that were called, in order."""
        return [method for method, _ in self.calls]

    def get(self, sort: type[R], scope: Scope, name: str) -> R:
        """Implement Compute.get."""
        found: R = self._do(f"get_{WORDS[sort]}", name, lambda: self._existing(scope, name))
        return found

    def insert(self, scope: Scope, resource: Resource, *, request_id: str) -> Operation:
        """Implement Compute.insert."""
        key = (scope.path, resource.name)

        def insert() -> Operation:
            if key in self.resources:
                raise ComputeError(Failure(kind=FailureKind.ALREADY_EXISTS, message="409"), resource.name, code=409)
            self.resources[key] = resource
            return self._begun()

        return self._do(f"insert_{WORDS[type(resource)]}", resource.name, insert)

    def delete(self, sort: type[Resource], scope: Scope, name: str, *, request_id: str) -> Operation:
        """Implement Compute.delete."""

        def delete() -> Operation:
            self._existing(scope, name)
            del self.resources[scope.path, name]
            return self._begun()

        return self._do(f"delete_{WORDS[sort]}", name, delete)

    def list_managed_instances(self, scope: Scope, name: str) -> tuple[ManagedInstance, ...]:
        """Implement Compute.list_managed_instances."""

        def listed() -> tuple[ManagedInstance, ...]:
            self._existing(scope, name)
            return self.machines.get(name, ())

        return self._do("list_managed_instances", name, listed)

    def list_instances(self, scope: Scope, names: Collection[str]) -> tuple[Instance, ...]:
        """Implement Compute.list_instances."""

        def listed() -> tuple[Instance, ...]:
            return tuple(self.instances[name] for name in sorted(names) if name in self.instances)

        listing: tuple[Instance, ...] = self._do("list_instances", ",".join(sorted(names)), listed)
        return listing

    def set_metadata(
        self, scope: Scope, name: str, items: Mapping[str, str], *, fingerprint: str, request_id: str
    ) -> Operation:
        """Implement Compute.set_metadata."""

        def change() -> Operation:
            known = self._instance(name)
            if known.fingerprint != fingerprint:
                raise ComputeError(Failure(kind=FailureKind.OPERATION_IN_THE_WAY, message="412"), name, code=412)
            self.instances[name] = replace(known, items=dict(items), fingerprint=f"{fingerprint}+")
            return Operation(name=OperationName(f"set-metadata-{len(self.calls)}"), scope=ZONE, done=True)

        return self._do("set_metadata", name, change)

    def get_operation(self, scope: Scope, name: OperationName) -> Operation:
        """Implement Compute.get_operation."""
        return self._do("get_operation", name, lambda: self._found(self.operations, name))

    def _do(self, method: str, name: str, effect: Callable[[], Any]) -> Any:
        self.on_call(method)
        with self._lock:
            self.calls.append((method, name))
            fault = next((each for each in self._faults if each[0] == method), None)
            if fault is not None:
                self._faults.remove(fault)
                if fault[2]:
                    effect()
                raise fault[1]
            return effect()

    def _begun(self) -> Operation:
        name = OperationName(f"operation-{len(self.operations) + 1}")
        self.operations[name] = Operation(name=name, scope=ZONE, done=True)
        return Operation(name=name, scope=ZONE, done=False)

    def _existing(self, scope: Scope, name: str) -> Any:
        return self._found(self.resources, (scope.path, name))

    def _instance(self, name: str) -> Instance:
        found: Instance = self._found(self.instances, name)
        return found

    def _found(self, where: Mapping[Any, Any], key: Any) -> Any:
        if key not in where:
            raise ComputeError(Failure(kind=FailureKind.NOT_FOUND, message=f"{key} is not there"), str(key), code=404)
        return where[key]
