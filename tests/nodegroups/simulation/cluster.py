"""A small Kubernetes in memory: objects with resource versions and finalizers, nodes, pods, and delayed caches."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from provisioner.model.writes import WriteFailure
from provisioner.nodegroups.api.types import Child, Kind, Record, TpuNodeGroup
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.bootstrap.tokens import Request, Token
from provisioner.nodegroups.planning.actions import (
    ApplyDevicePlugin,
    ApproveRequest,
    CreateChild,
    CreateToken,
    DeleteChild,
    DeleteDevicePlugin,
    DeleteNode,
    DeleteToken,
    EvictPod,
    PatchNode,
    PatchStatus,
    SetFinalizers,
    Write,
)
from provisioner.nodegroups.planning.round import Cluster, DevicePlugin, Node, Pod, Snapshot
from rehearsal.simulators.compute.records import MachineView
from tests.support.simulations.stage import Stage

FACTS = Cluster(
    uid="cluster-uid",
    ca_hash="sha256:0123",
    api_server="10.0.0.2:6443",
    kubernetes_version="1.34",
)
_NOT_READY_SECONDS = 40.0
#: Time in seconds from a user's delete of a node until its pods are deleted. After other deletes, there is no delay.
_ORPHAN_SECONDS = 50.0
_RECORDS = (Kind.WORKLOAD_POLICY, Kind.INSTANCE_TEMPLATE, Kind.MANAGED_INSTANCE_GROUP)
Key = tuple[str, str, str]


class Declined(Exception):  # noqa: N818 - a response
    """Rejection of a write by the API server."""

    def __init__(self, failure: WriteFailure, words: str = "not today") -> None:
        super().__init__(words)
        self.failure = failure


@dataclass(slots=True)
class Kube:
    """The API server, the controllers of Kubernetes, and the caches of the tested controller."""

    stage: Stage
    #: Objects by kind, namespace and name.
    objects: dict[Key, Any] = field(default_factory=dict)
    cached: dict[Key, Any] = field(default_factory=dict)
    #: Maximum delay of the caches in seconds.
    lag_seconds: float = 0.05
    #: Returns the machine with a name, None if it does not exist.
    machine: Callable[[str], MachineView | None] = lambda _name: None
    on_change: Callable[[], None] = lambda: None
    #: Names of pods whose eviction a disruption budget forbids.
    protected: set[str] = field(default_factory=set)
    not_synced: tuple[str, ...] = ()
    #: Number of chips of each node that becomes ready; 0 simulates a missing device plugin.
    chips: int = 4
    refused: tuple[type[Write], ...] = ()
    #: Names of objects that the caches show without a spec, so that decisions about them raise.
    poisoned: set[str] = field(default_factory=set)
    writes: int = 0
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    #: Approved certificates: name of the token, name of the node, and number of the machine.
    approved: set[tuple[str, str, int]] = field(default_factory=set)
    #: Number of the machine that registered a node, by the node's name.
    _joined_as: dict[str, int] = field(default_factory=dict)
    #: Name of the machine that a token was created for, by name of the token; includes deleted tokens.
    _machines_of_tokens: dict[str, str] = field(default_factory=dict)

    def snapshot(self, live: frozenset[str]) -> Snapshot:
        by_kind: defaultdict[str, list[Any]] = defaultdict(list)
        for key in sorted(self.cached):
            cached = self.cached[key]
            by_kind[key[0]].append(replace(cached, spec=None) if key[2] in self.poisoned else cached)

        def of(kind: str) -> tuple[Any, ...]:
            return tuple(by_kind[kind])

        plugin = of("DaemonSet")
        return Snapshot(
            cluster=FACTS,
            groups=of(Kind.TPU_NODE_GROUP),
            policies=of(Kind.WORKLOAD_POLICY),
            templates=of(Kind.INSTANCE_TEMPLATE),
            managers=of(Kind.MANAGED_INSTANCE_GROUP),
            nodes=of("Node"),
            pods=of("Pod"),
            tokens=of("Secret"),
            requests=of("Request"),
            device_plugin=plugin[0] if plugin else None,
            live=live,
            not_synced=self.not_synced,
        )

    def all(self, kind: str) -> list[Any]:
        return [self.objects[key] for key in sorted(key for key in self.objects if key[0] == kind)]

    def group(self, name: str) -> TpuNodeGroup | None:
        found: TpuNodeGroup | None = self.objects.get((Kind.TPU_NODE_GROUP, "default", name))
        return found

    def recache(self) -> None:
        self.cached = dict(self.objects)

    def create_group(self, group: TpuNodeGroup) -> None:
        uid, created_at = f"uid-{next(self._numbers)}", self.stage.wall()
        meta = replace(group.meta, uid=uid, generation=1, created_at=created_at)
        self._put((Kind.TPU_NODE_GROUP, meta.namespace, meta.name), replace(group, meta=meta))

    def annotate(self, name: str, key: str, value: str) -> None:
        group = self.group(name)
        if group is not None:
            meta = replace(group.meta, annotations={**group.meta.annotations, key: value})
            self._put((Kind.TPU_NODE_GROUP, "default", name), replace(group, meta=meta))

    def delete(self, key: Key) -> None:
        """Request the deletion of an object of one of the controller's four kinds."""
        found = self.objects.get(key)
        if found is None or found.meta.deleting:
            return
        self._put(key, replace(found, meta=replace(found.meta, deleted_at=self.stage.wall())))
        self._collect(key)

    def add_pod(self, pod: Pod) -> None:
        """Bind a pod to a node, unless the node is cordoned, not ready or deleted."""
        node = self.objects.get(("Node", "", pod.node))
        if node is not None and not node.unschedulable and node.ready:
            self.put_pod(pod)

    def put_pod(self, pod: Pod) -> None:
        """Bind a pod to a node, even if the node is cordoned or not ready."""
        self._put(("Pod", pod.namespace, pod.name), pod)

    def finish_pods(self, *names: str) -> None:
        for name in names:
            self._drop(("Pod", "default", name))

    def join(self, name: str) -> None:
        """Register the node of a running machine when it has a valid token, or set it to ready after a restart."""
        machine = self.machine(name)
        if machine is None or machine.status != "RUNNING":
            return
        key = ("Node", "", name)
        if key in self.objects and self._joined_as.get(name) == machine.number:
            # The machine was restarted, and needs no token: its disk has the credentials of its node.
            self._put(key, replace(self.objects[key], ready=True, capacity_chips=4, allocatable_chips=4))
            return
        value = machine.metadata.get(metadata.TOKEN, "")
        token = self.objects.get(("Secret", "kube-system", f"bootstrap-token-{value.partition('.')[0]}"))
        good = token is not None and token.value == value and token.expires_at > self.stage.wall()
        # A real machine may take over an earlier machine's node that is not ready; here it waits for the delete.
        if not good or metadata.ADDRESS not in machine.metadata or key in self.objects:
            self.stage.after(5.0, lambda: self.join(name))
            return
        if (token.name, name, machine.number) not in self.approved:
            self.ask(token, name)
            self.stage.after(2.0, lambda: self.join(name))
            return
        self.stage.note("node", "%s joins", name)
        self._joined_as[name] = machine.number
        provider_id = f"gce://{machine.scope.project}/{machine.scope.location}/{name}"
        uid, created_at = f"uid-{next(self._numbers)}", self.stage.wall()
        self._put(key, Node(name=name, uid=uid, provider_id=provider_id, created_at=created_at))
        self.stage.after(self.stage.rng.uniform(1.0, 10.0), lambda: self._ready(key))

    def ask(self, token: Token, node: str) -> None:
        key = ("Request", "", f"{token.name}-{node}")
        if key not in self.objects:
            uid = f"uid-{next(self._numbers)}"
            self._put(key, Request(name=key[2], uid=uid, resource_version="1", token=token.name, node=node))

    def _approve(self, write: ApproveRequest) -> None:
        key = ("Request", "", write.name)
        asked = self.objects.get(key)
        if asked is None or asked.uid != write.uid:
            raise Declined(WriteFailure.CONFLICT)
        if self._machines_of_tokens.get(asked.token) != asked.node:
            self.stage.violate(f"{asked.token} is not of {asked.node}, whose certificate is approved")
        machine = self.machine(asked.node)
        if machine is not None:
            self.approved.add((asked.token, asked.node, machine.number))
        self._drop(key)

    def stop(self, name: str) -> None:
        """Set the node of a stopped machine to not ready after 40 s, unless the machine runs again."""
        self.stage.after(_NOT_READY_SECONDS, lambda: self._not_ready(("Node", "", name)))

    def runs(self, name: str) -> bool:
        """Return whether the machine that registered a node runs. Another machine may have its name now."""
        machine = self.machine(name)
        return machine is not None and machine.status == "RUNNING" and self._joined_as.get(name) == machine.number

    def has_joined(self, name: str) -> bool:
        machine = self.machine(name)
        return machine is not None and self._joined_as.get(name) == machine.number

    def change_node(self, name: str, **changes: Any) -> None:
        key = ("Node", "", name)
        if key in self.objects:
            self._put(key, replace(self.objects[key], **changes))

    def forge_node(self, name: str, machine: MachineView) -> None:
        """Create a node that claims to be a machine of a group, with the group's labels and a pod."""
        place = f"gce://{machine.scope.project}/{machine.scope.location}/{machine.name}"
        true = self.objects.get(("Node", "", machine.name))
        node = Node(name=name, uid=f"uid-{name}", provider_id=place, ready=True, capacity_chips=4, allocatable_chips=4)
        self._put(("Node", "", name), replace(node, labels=true.labels if true is not None else {}))
        self.add_pod(Pod(namespace="evil", name=name, uid=name, node=name, chips=4))

    def drop_node(self, name: str) -> None:
        """Delete a node, as a user may. Its pods are deleted later, unless the node is registered again by then."""
        self._drop(("Node", "", name))
        self.stage.after(_ORPHAN_SECONDS, lambda: self._drop_orphans(name))

    def _drop_orphans(self, node: str) -> None:
        for pod in self.all("Pod"):
            if pod.node == node and ("Node", "", node) not in self.objects:
                self._drop(("Pod", pod.namespace, pod.name))

    def drop_token(self, name: str) -> None:
        self._drop(("Secret", "kube-system", name))

    def drop_finalizers(self, name: str) -> None:
        """Remove the finalizers of a group that is not being deleted, as a user may."""
        group = self.group(name)
        if group is not None and not group.meta.deleting:
            self._put(_key_of(group), replace(group, meta=replace(group.meta, finalizers=())))

    def expire_tokens(self) -> None:
        for token in self.all("Secret"):
            if token.expires_at is not None and token.expires_at <= self.stage.wall():
                self._drop(("Secret", "kube-system", token.name))

    def write(self, write: Write) -> None:
        """Execute a write. Raises Declined if it is rejected."""
        self.writes += 1
        self.stage.note("kube", "%s", _told(write))
        if isinstance(write, self.refused):
            raise Declined(WriteFailure.REFUSED)
        match write:
            case CreateChild():
                self._create_child(write)
            case DeleteChild():
                key = _key_of(write.record)
                found = self.objects.get(key)
                if found is not None and found.meta.uid != write.record.meta.uid:
                    raise Declined(WriteFailure.CONFLICT)
                self.delete(key)
            case SetFinalizers():
                key, found = self._checked(write.record)
                self._put(key, replace(found, meta=replace(found.meta, finalizers=write.finalizers)))
                self._collect(key)
            case PatchStatus():
                key, found = self._checked(write.record)
                self._put(key, replace(found, status=write.new))
            case PatchNode():
                self._patch_node(write)
            case DeleteNode():
                self._delete_if(("Node", "", write.name), write.uid)
            case EvictPod():
                self._evict(write)
            case CreateToken():
                self._create_token(write)
            case DeleteToken():
                self._delete_if(("Secret", "kube-system", write.name), write.uid)
            case ApproveRequest():
                self._approve(write)
            case ApplyDevicePlugin():
                self._put(("DaemonSet", "", "plugin"), DevicePlugin(uid="plugin", version=write.version))
            case DeleteDevicePlugin():
                self._drop(("DaemonSet", "", "plugin"))

    def _checked(self, record: Record) -> tuple[Key, Any]:
        key, meta = _key_of(record), record.meta
        found = self.objects.get(key)
        if found is None or (found.meta.uid, found.meta.resource_version) != (meta.uid, meta.resource_version):
            raise Declined(WriteFailure.CONFLICT)
        return key, found

    def _create_child(self, write: CreateChild) -> None:
        key = _key_of(write.record)
        if key not in self.objects:
            uid, created_at = f"uid-{next(self._numbers)}", self.stage.wall()
            meta = replace(write.record.meta, uid=uid, generation=1, created_at=created_at)
            self._put(key, replace(write.record, meta=meta))

    def _patch_node(self, write: PatchNode) -> None:
        key = ("Node", "", write.name)
        node = self.objects.get(key)
        self._check_own(node)
        if node is None or (node.uid, node.resource_version) != (write.uid, write.resource_version):
            raise Declined(WriteFailure.CONFLICT)
        self._put(
            key,
            replace(
                node,
                labels={**node.labels, **write.labels},
                tainted=node.tainted or write.taint,
                unschedulable=node.unschedulable or write.cordon,
            ),
        )

    def _delete_if(self, key: Key, uid: str) -> None:
        found = self.objects.get(key)
        if found is not None and found.uid != uid:
            raise Declined(WriteFailure.CONFLICT)
        if key[0] == "Node":
            self._check_own(found)
        self._drop(key)
        if key[0] == "Node":
            self._drop_orphans(key[2])

    def _check_own(self, node: Node | None) -> None:
        if node is not None and not node.provider_id.endswith(f"/{node.name}"):
            self.stage.violate(f"node {node.name} is not {node.provider_id}, whatever it says, and is written")

    def _evict(self, write: EvictPod) -> None:
        key = ("Pod", write.namespace, write.name)
        pod = self.objects.get(key)
        if pod is None or pod.uid != write.uid:
            return
        if pod.name in self.protected:
            raise Declined(WriteFailure.NOT_NOW)
        if pod.deletion_deadline is None:
            self.evict(pod, grace=timedelta(seconds=30))
            self.stage.after(self.stage.rng.uniform(1.0, 30.0), lambda: self._end_pod(key))

    def evict(self, pod: Pod, *, grace: timedelta) -> None:
        key = ("Pod", pod.namespace, pod.name)
        self._put(key, replace(pod, deletion_deadline=self.stage.wall() + grace))

    def _end_pod(self, key: Key) -> None:
        pod = self.objects.get(key)
        node = self.objects.get(("Node", "", pod.node)) if pod is not None else None
        if pod is not None and (node is None or node.ready):
            self._drop(key)

    def _create_token(self, write: CreateToken) -> None:
        number = next(self._numbers)
        name = f"bootstrap-token-{number:06d}"
        token = Token(
            name=name,
            uid=f"uid-{number}",
            group_namespace=write.namespace,
            group_name=write.name,
            machine=write.machine,
            machine_id=write.machine_id,
            value=f"{number:06d}.0123456789abcdef",
            expires_at=write.expires_at,
        )
        self._machines_of_tokens[name] = write.machine
        self._put(("Secret", "kube-system", name), token)

    def _ready(self, key: Key) -> None:
        if key in self.objects and self.runs(key[2]):
            chips = self.chips
            self._put(key, replace(self.objects[key], ready=True, capacity_chips=chips, allocatable_chips=chips))

    def _not_ready(self, key: Key) -> None:
        if key in self.objects and not self.runs(key[2]):
            self._put(key, replace(self.objects[key], ready=False))

    def _put(self, key: Key, value: Any) -> None:
        version = str(next(self._numbers))
        if hasattr(value, "meta"):
            value = replace(value, meta=replace(value.meta, resource_version=version))
        elif isinstance(value, Node):
            value = replace(value, resource_version=version)
        self.objects[key] = value
        self._show(key, value)

    def _drop(self, key: Key) -> None:
        if self.objects.pop(key, None) is not None:
            self._show(key, None)

    def _show(self, key: Key, value: Any) -> None:
        """Update the caches after a delay. The changes of one object arrive in order."""
        lag = self.stage.rng.uniform(0.001, self.lag_seconds)

        def shown() -> None:
            # A replaced value is skipped, so that no older change overwrites a newer one in the cache.
            latest = self.objects.get(key)
            if latest is None:
                self.cached.pop(key, None)
            elif latest is value:
                self.cached[key] = value
            self.on_change()

        self.stage.after(lag, shown)

    def _collect(self, key: Key) -> None:
        """Remove a deleted object without finalizers, and request the deletion of the objects that it owned."""
        found = self.objects.get(key)
        if found is None or not found.meta.deleting or found.meta.finalizers:
            return
        self._drop(key)
        for kind in _RECORDS:
            for child in self.all(kind):
                if child.meta.owner is not None and child.meta.owner.uid == found.meta.uid:
                    self.stage.after(1.0, lambda child=child, kind=kind: self._collect_orphan(kind, child))

    def _collect_orphan(self, kind: Kind, child: Child) -> None:
        self.delete((kind, child.meta.namespace, child.meta.name))


def _key_of(record: Record) -> Key:
    return (record.kind, record.meta.namespace, record.meta.name)


def _told(write: Write) -> str:
    if isinstance(write, PatchStatus):
        ready = [
            f"{condition.type}={condition.status} {condition.reason}: {condition.message}"
            for condition in write.new.conditions
        ]
        return f"status of {write.key}: {'; '.join(ready)}"
    return f"{type(write).__name__} {write.key}"
