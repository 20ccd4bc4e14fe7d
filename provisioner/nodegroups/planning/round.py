"""What one decision goes by, put together once: the world as it is seen, sorted by what it belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from provisioner.model.writes import WriteFailure
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Child, Kind, TpuNodeGroup
from provisioner.nodegroups.bootstrap.tokens import Token
from provisioner.nodegroups.planning.actions import Call, DeleteChild, Event, SetFinalizers, Write
from provisioner.nodegroups.planning.memory import Memory, ResourceMemory
from provisioner.nodegroups.planning.snapshot import Node, PlanningSettings, Pod, Snapshot

#: Namespace and name of a group.
GroupKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call that a step wants made; the longer it has been due the sooner its turn comes."""

    call: Call
    due_at: datetime
    #: Nobody waits for it: it comes after all others of its sort.
    patient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A write that a step proposes."""

    write: Write
    #: How the object looks that is written, as far as it tells whether a write has been seen.
    seen: str
    #: What people are told if it is written.
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step comes to. Of several writes to one object the first is made, and the others in later rounds."""

    calls: tuple[Wanted, ...] = ()
    writes: tuple[Proposed, ...] = ()
    #: When it has to be looked at again.
    moments: tuple[datetime, ...] = ()

    def __add__(self, other: Step) -> Step:
        return merged((self, other))


NOTHING = Step()


def merged(steps: Iterable[Step]) -> Step:
    """Put steps together, in their order."""
    # Most steps have nothing to do.
    every = [step for step in steps if step is not NOTHING]
    if len(every) <= 1:
        return every[0] if every else NOTHING
    return Step(
        calls=tuple([call for step in every for call in step.calls]),
        writes=tuple([write for step in every for write in step.writes]),
        moments=tuple([moment for step in every for moment in step.moments]),
    )


def to_write(what: Write, seen: str = "") -> Step:
    """Propose one write; `seen` as `Proposed.seen`."""
    return Step(writes=(Proposed(write=what, seen=seen),))


def of_record(what: DeleteChild | SetFinalizers) -> Step:
    """Propose one write of an object that may not have changed meanwhile."""
    return to_write(what, what.record.meta.resource_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round."""

    snapshot: Snapshot
    settings: PlanningSettings
    now: datetime
    memory: Memory
    #: By UID.
    groups: Mapping[str, TpuNodeGroup]
    #: By kind and name of a child. The names have a hash of the group's UID, which nobody chooses.
    parents: Mapping[tuple[Kind, str], TpuNodeGroup]
    #: By kind, namespace and name.
    children: Mapping[tuple[Kind, str, str], Child]
    #: By provider id: the node that has the machine's name, not any that only says that it is the machine.
    nodes: Mapping[str, Node]
    #: Those that carry the labels of a group.
    labelled: Mapping[GroupKey, Sequence[Node]]
    #: By the name of their node.
    pods: Mapping[str, Sequence[Pod]]
    tokens: Mapping[GroupKey, Sequence[Token]]
    #: By the UID of a managed instance group: how many machines of its namespace have their turn before its own.
    machines_before: Mapping[str, int] = field(default_factory=dict)
    #: By the UID of the object: calls that are not answered.
    calls: Mapping[str, Sequence[Call]] = field(default_factory=dict)

    def parent_of(self, child: Child) -> TpuNodeGroup | None:
        """Return the group of its namespace that a child belongs to by its name, whatever owner somebody wrote."""
        group = self.parents.get((child.kind, child.meta.name))
        return group if group is not None and group.meta.namespace == child.meta.namespace else None

    def is_set(self, annotation: str, child: Child) -> bool:
        """Whether a child that goes for good, or the group that it goes with, has an annotation that is "true"."""
        group = self.parent_of(child)
        if group is not None and not group.meta.deleting:
            return False
        metas = (child.meta,) if group is None else (child.meta, group.meta)
        return any(meta.annotations.get(annotation) == "true" for meta in metas)

    def child_of(self, group: TpuNodeGroup, kind: Kind) -> Child | None:
        """Return the object that has the name of a group's child, whoever made it; None where there is none."""
        return self.children.get((kind, group.meta.namespace, names.child_name(group.meta, kind)))

    def remembered(self, uid: str) -> ResourceMemory | None:
        """Return what is remembered of a resource."""
        return self.memory.resources.get(uid)

    def calling(self, uid: str, *kinds: type[Call]) -> bool:
        """Whether a call of one of these kinds is under way for an object."""
        return any(isinstance(call, kinds) for call in self.calls.get(uid, ()))

    def refused(self, write: Write) -> str:
        """Say why Kubernetes refuses a write; empty where it was not tried, or not refused."""
        known = self.memory.writes.get(write.key)
        return known.message if known is not None and known.failure is WriteFailure.REFUSED else ""

    @property
    def projects(self) -> frozenset[str]:
        """The projects in which resources may be made."""
        return self.settings.projects or frozenset(filter(None, (self.snapshot.cluster.project,)))


def begin_round(snapshot: Snapshot, memory: Memory, settings: PlanningSettings, now: datetime) -> Round:
    """Sort what there is by what it belongs to."""
    nodes: dict[str, Node] = {}
    named = [node for node in snapshot.nodes if node.is_named_as_its_machine]
    # Of several the shortest: no domain follows it.
    for node in sorted(named, key=lambda each: (-len(each.name), each.ready, each.name)):
        nodes[node.provider_id] = node
    labelled: defaultdict[GroupKey, list[Node]] = defaultdict(list)
    for node in sorted(named, key=lambda each: each.name):
        key = (node.labels.get(names.GROUP_NAMESPACE, ""), node.labels.get(names.GROUP_NAME, ""))
        if all(key):
            labelled[key].append(node)
    pods: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        pods[pod.node].append(pod)
    tokens: defaultdict[GroupKey, list[Token]] = defaultdict(list)
    for token in sorted(snapshot.tokens, key=lambda each: each.name):
        tokens[token.group_namespace, token.group_name].append(token)
    calls: defaultdict[str, list[Call]] = defaultdict(list)
    for each in memory.calls.values():
        calls[each.call.target.uid].append(each.call)
    return Round(
        snapshot=snapshot,
        settings=settings,
        now=now,
        memory=memory,
        groups={group.meta.uid: group for group in snapshot.groups},
        parents={
            (kind, names.child_name(group.meta, kind)): group
            for group in snapshot.groups
            for kind in names.CHILD_FINALIZERS
        },
        children={(child.kind, child.meta.namespace, child.meta.name): child for child in snapshot.children},
        nodes=nodes,
        labelled=labelled,
        pods=pods,
        tokens=tokens,
        calls=calls,
    )
