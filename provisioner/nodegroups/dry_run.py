"""A dry run: what only reads is carried out; of everything else it is said what would be done, and nothing is.

So that it is said what comes next as well, the decisions see what they would have done: objects as they would be
written, and resources of Compute Engine as they would be created. Machines are never pretended, nor that pods or nodes
go. What changes in the cluster meanwhile takes the place of what was pretended.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import structlog

from provisioner.model.capacity import Failure, FailureKind, OperationName
from provisioner.model.writes import WriteFailure
from provisioner.nodegroups.act import Actor
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind, ObjectMeta
from provisioner.nodegroups.compute.records import READY, Manager, Operation, ResourcePolicy
from provisioner.nodegroups.planning.calls import Call, CallAnswer, Delete, Insert, Read, Resource, SetMetadata, Target
from provisioner.nodegroups.planning.plan import Answer, Plan
from provisioner.nodegroups.planning.snapshot import DevicePlugin, Node, Snapshot
from provisioner.nodegroups.planning.writes import (
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
    WriteAnswer,
)

_log = structlog.get_logger(__name__)

_WHY = "Not done: this is a dry run."
_UID = "dry-run"
#: What was said is said once; of so much it is known.
_SAID = 10_000
_NOUNS = {
    Kind.WORKLOAD_POLICY: "workload policy",
    Kind.INSTANCE_TEMPLATE: "instance template",
    Kind.MANAGED_INSTANCE_GROUP: "managed instance group",
}
_COLLECTIONS = {
    Kind.WORKLOAD_POLICY: "resourcePolicies",
    Kind.INSTANCE_TEMPLATE: "instanceTemplates",
    Kind.MANAGED_INSTANCE_GROUP: "instanceGroupManagers",
}
_ADDRESS = "https://www.googleapis.com/compute/v1"

#: Kind, namespace and name of an object; ("Node", "", name) of a node.
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pretended:
    """An object as it would be."""

    #: Resource version of the one that is there; None for one that would be created.
    base: str | None
    #: A record of one of the four kinds, or a Node.
    record: Any


@dataclass(slots=True, kw_only=True)
class DryRun:
    """Takes the place of the actor, and lets it read."""

    actor: Actor
    clock: Callable[[], datetime]
    _said: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _pretended: dict[_Key, _Pretended] = field(default_factory=dict)
    #: What the last decision saw.
    _seen: dict[_Key, Any] = field(default_factory=dict)
    _device_plugin: DevicePlugin | None = None
    _made: dict[Target, Resource] = field(default_factory=dict)

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """Return what there would be."""
        self._seen = {}
        groups = frozenset(group.meta.uid for group in snapshot.groups)
        for key, each in list(self._pretended.items()):
            if each.base is None and each.record.meta.owner.uid not in groups:
                del self._pretended[key]
        return replace(
            snapshot,
            groups=self._records(Kind.TPU_NODE_GROUP, snapshot.groups),
            policies=self._records(Kind.WORKLOAD_POLICY, snapshot.policies),
            templates=self._records(Kind.INSTANCE_TEMPLATE, snapshot.templates),
            managers=self._records(Kind.MANAGED_INSTANCE_GROUP, snapshot.managers),
            nodes=tuple(
                self._shown_as(("Node", "", node.name), node.resource_version, node) for node in snapshot.nodes
            ),
            device_plugin=self._device_plugin or snapshot.device_plugin,
        )

    def carry_out(self, plan: Plan) -> None:
        """Submit what reads, and say what the rest would do."""
        reads = tuple(call for call in plan.calls if not self._answer_for(call))
        self.actor.carry_out(replace(plan, writes=(), calls=reads))
        for write in plan.writes:
            self._say(words_of_write(write))
            done = self._pretend(write)
            answer = WriteAnswer(
                write=write,
                at=self.clock(),
                failure=None if done else WriteFailure.REFUSED,
                message="" if done else _WHY,
            )
            self.actor.calls.put(answer, key=write.key)

    def live(self) -> frozenset[str]:
        """Return the keys of calls that are submitted, and whose answer nobody has taken yet."""
        return self.actor.live()

    def take_answer(self) -> Answer | None:
        """Return the next answer, None where there is none."""
        return self.actor.take_answer()

    def _records(self, kind: Kind, records: tuple[Any, ...]) -> tuple[Any, ...]:
        found = [self._shown_as(_key(kind, each.meta), each.meta.resource_version, each) for each in records]
        created = (
            each.record
            for key, each in self._pretended.items()
            if each.base is None and key[0] == kind and key not in self._seen
        )
        for record in created:
            self._seen[_key(kind, record.meta)] = record
            found.append(record)
        # One that is deleted goes with its last finalizer.
        return tuple(each for each in found if not each.meta.deleting or each.meta.finalizers)

    def _shown_as(self, key: _Key, version: str, record: Any) -> Any:
        """Return an object as it would be; one that has changed, or is there by now, as it is."""
        pretended = self._pretended.get(key)
        if pretended is not None and pretended.base != version:
            del self._pretended[key]
            pretended = None
        self._seen[key] = record if pretended is None else pretended.record
        return self._seen[key]

    def _pretend(self, write: Write) -> bool:
        """Let a write seem to be made; False for one that is not pretended."""
        match write:
            case CreateChild(kind=kind, child=child):
                meta = replace(
                    child.meta,
                    uid=f"{_UID}-{next(self._versions)}",
                    resource_version=self._version(),
                    generation=1,
                    finalizers=(names.CHILD_FINALIZERS[kind],),
                )
                self._pretended[_key(kind, meta)] = _Pretended(base=None, record=replace(child, meta=meta))
                return True
            case SetFinalizers():
                return self._change(write.kind, write.meta, finalizers=write.finalizers)
            case DeleteChild():
                return self._change(write.kind, write.meta, deleted_at=self.clock())
            case PatchStatus():
                record = self._seen.get(_key(write.kind, write.meta))
                if record is not None:
                    self._seen[_key(write.kind, write.meta)] = replace(record, status=write.new)
                return self._change(write.kind, write.meta)
            case PatchNode():
                return self._change_node(write)
            case ApplyDevicePlugin():
                self._device_plugin = DevicePlugin(uid=_UID, version=write.version)
                return True
            case _:
                return False

    def _change(self, kind: Kind, meta: ObjectMeta, **changes: Any) -> bool:
        key = _key(kind, meta)
        record = self._seen.get(key)
        if record is None:
            return False
        self._put(key, meta.resource_version, replace(record, meta=self._newer(record.meta, **changes)))
        return True

    def _newer(self, meta: ObjectMeta, **changes: Any) -> ObjectMeta:
        return replace(meta, resource_version=self._version(), **changes)

    def _change_node(self, write: PatchNode) -> bool:
        key = ("Node", "", write.name)
        node: Node | None = self._seen.get(key)
        if node is None:
            return False
        changed = replace(
            node,
            resource_version=self._version(),
            labels={**node.labels, **write.labels},
            taints=node.taints if write.taints is None else write.taints,
            unschedulable=node.unschedulable or write.cordon,
        )
        self._put(key, write.resource_version, changed)
        return True

    def _put(self, key: _Key, version: str, record: Any) -> None:
        before = self._pretended.get(key)
        self._pretended[key] = _Pretended(base=before.base if before is not None else version, record=record)

    def _version(self) -> str:
        return f"{_UID}-{next(self._versions)}"

    def _answer_for(self, call: Call) -> bool:
        """Answer a call that must not be made, or that would see what is pretended; False for any other."""
        now = self.clock()
        answer = CallAnswer(call=call, asked_at=now, at=now)
        match call:
            case Insert():
                self._say(words_of_call(call))
                self._made[call.target] = _as_made(call)
                operation = Operation(name=OperationName(_UID), scope=call.target.scope, done=True)
                answer = replace(answer, result=operation)
            case Read() if call.target in self._made:
                answer = replace(answer, result=self._made[call.target])
            case Delete() | SetMetadata():
                self._say(words_of_call(call))
                answer = replace(answer, failure=Failure(kind=FailureKind.PERMISSION, message=_WHY))
            case _:
                return False
        self.actor.calls.put(answer, key=call.key)
        return True

    def _say(self, words: str) -> None:
        if not words or words in self._said:
            return
        self._said[words] = None
        if len(self._said) > _SAID:
            self._said.popitem(last=False)
        _log.info("dry_run.would", action=words)


def _key(kind: Kind, meta: ObjectMeta) -> _Key:
    return (kind, meta.namespace, meta.name)


def _as_made(call: Insert) -> Resource:
    """Return a resource as a read would find it."""
    target = call.target
    url = f"{_ADDRESS}/{target.scope.path}/{_COLLECTIONS[target.kind]}/{target.name}"
    if isinstance(call.resource, ResourcePolicy):
        return replace(call.resource, url=url, status=READY)
    return replace(call.resource, url=url)


def words_of_call(call: Call) -> str:
    """Say what a call would do; empty for one that changes nothing."""
    target = call.target
    where = f"{_NOUNS.get(target.kind, target.kind.value)} {target.name} in {target.scope.path}"
    match call:
        case Insert():
            return f"create {where}{_size(call)}"
        case Delete():
            return f"delete {where}"
        case SetMetadata():
            return f"set {', '.join(sorted(call.items))} in the metadata of {call.machine.provider_id}"
        case _:
            return ""


def _size(call: Insert) -> str:
    return f" with {call.resource.target_size} machines" if isinstance(call.resource, Manager) else ""


def words_of_write(write: Write) -> str:
    """Say what a write would do; empty for one that only takes down what was seen."""
    match write:
        case CreateChild():
            return f"create {write.kind} {write.child.meta}"
        case DeleteChild():
            return f"delete {write.kind} {write.meta}"
        case SetFinalizers():
            return f"set the finalizers of {write.kind} {write.meta} to {', '.join(write.finalizers) or 'none'}"
        case PatchStatus():
            return ""
        case PatchNode():
            return f"{' and '.join(_changes(write))} node {write.name}"
        case DeleteNode():
            return f"delete node {write.name}"
        case EvictPod():
            return f"evict pod {write.namespace}/{write.name}"
        case CreateToken():
            return f"create a token for machine {write.machine} of {write.namespace}/{write.name}"
        case DeleteToken():
            return f"delete Secret {write.name}"
        case ApproveRequest():
            return f"approve CertificateSigningRequest {write.name}"
        case ApplyDevicePlugin():
            return f"apply the device plugin in version {write.version}"
        case DeleteDevicePlugin():
            return "delete the device plugin"


def _changes(write: PatchNode) -> list[str]:
    changes = []
    if write.labels:
        changes.append("label")
    if write.taints is not None:
        changes.append("taint")
    if write.cordon:
        changes.append("cordon")
    return changes
