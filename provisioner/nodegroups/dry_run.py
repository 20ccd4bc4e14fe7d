"""A dry run: what only reads is carried out; of everything else it is said what would be done, and nothing is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from provisioner.model.capacity import Failure, FailureKind
from provisioner.nodegroups.act import Actor
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.planning.calls import Call, CallAnswer, Delete, Insert, SetMetadata
from provisioner.nodegroups.planning.plan import Answer, Plan
from provisioner.nodegroups.planning.writes import (
    ApplyDevicePlugin,
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
    WriteFailure,
)

_log = structlog.get_logger(__name__)

_WHY = "Not done: this is a dry run."
#: What was said is said once; of so much it is known.
_SAID = 10_000
_NOUNS = {
    Kind.WORKLOAD_POLICY: "workload policy",
    Kind.INSTANCE_TEMPLATE: "instance template",
    Kind.MANAGED_INSTANCE_GROUP: "managed instance group",
}


@dataclass(slots=True, kw_only=True)
class DryRun:
    """Takes the place of the actor, and lets it read. Whatever would change something is answered as refused."""

    actor: Actor
    clock: Callable[[], datetime]
    _said: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def carry_out(self, plan: Plan) -> None:
        """Submit what reads, and say what the rest would do."""
        changes = tuple(call for call in plan.calls if isinstance(call, Insert | Delete | SetMetadata))
        self.actor.carry_out(replace(plan, writes=(), calls=tuple(call for call in plan.calls if call not in changes)))
        now = self.clock()
        for call in changes:
            self._say(words_of_call(call))
            failure = Failure(kind=FailureKind.PERMISSION, message=_WHY)
            answer: Answer = CallAnswer(call=call, asked_at=now, at=now, failure=failure)
            self.actor.calls.put(answer, key=call.key)
        for write in plan.writes:
            self._say(words_of_write(write))
            self.actor.calls.put(
                WriteAnswer(write=write, at=now, failure=WriteFailure.REFUSED, message=_WHY), key=write.key
            )

    def live(self) -> frozenset[str]:
        """Return the keys of calls that are submitted, and whose answer nobody has taken yet."""
        return self.actor.live()

    def take_answer(self) -> Answer | None:
        """Return the next answer, None where there is none."""
        return self.actor.take_answer()

    def _say(self, words: str) -> None:
        if not words or words in self._said:
            return
        self._said[words] = None
        if len(self._said) > _SAID:
            self._said.popitem(last=False)
        _log.info("dry_run.would", action=words)


def words_of_call(call: Call) -> str:
    """Say what a call would do; empty for one that changes nothing."""
    target = call.target
    where = f"{_NOUNS.get(target.kind, target.kind.value)} {target.name} in {target.scope.path}"
    match call:
        case Insert():
            return f"create {where}"
        case Delete():
            return f"delete {where}"
        case SetMetadata():
            return f"set {', '.join(sorted(call.items))} in the metadata of {call.machine.provider_id}"
        case _:
            return ""


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
