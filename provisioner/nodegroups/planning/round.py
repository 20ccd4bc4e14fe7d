"""What one decision goes by: Kubernetes, the settings and the memory, sorted once by what belongs together."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from provisioner.model import waits
from provisioner.model.writes import WriteFailure
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.statuses import STARTING_OR_RUNNING, ConditionType, Reason, condition_of, is_true
from provisioner.nodegroups.api.types import (
    Child,
    InstanceTemplate,
    Kind,
    ManagedInstanceGroup,
    Record,
    TpuNodeGroup,
    WorkloadPolicy,
)
from provisioner.nodegroups.bootstrap.tokens import Request, Token
from provisioner.nodegroups.planning.actions import Call, DeleteChild, Event, SetFinalizers, Write
from provisioner.nodegroups.planning.memory import Memory, ResourceMemory
from provisioner.settings.nodegroups import NodeGroupSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is a machine of Compute Engine, or that carries a group's labels."""

    name: str
    uid: str
    resource_version: str = ""
    #: As gce://PROJECT/ZONE/INSTANCE.
    provider_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    #: It has the taint of TPU nodes. Others are not kept: the metadata of a machine may have 262,144 bytes of them.
    tainted: bool = False
    unschedulable: bool = False
    #: Its condition Ready is True.
    ready: bool = False
    #: Whether its kubelet had not reported for a long time when Kubernetes found it not ready (`silent_node`).
    silent: bool = False
    #: google.com/tpu in status.capacity and in status.allocatable.
    capacity_chips: int = 0
    allocatable_chips: int = 0

    @property
    def is_named_as_its_machine(self) -> bool:
        """Whether it has its machine's name, short or with a domain: a kubelet may give any provider id."""
        machine = self.provider_id.rpartition("/")[2]
        return self.name == machine or self.name.startswith(f"{machine}.")


def zone_of(provider_id: str) -> str:
    """Return the project and the zone of a machine, as gce://PROJECT/ZONE."""
    return provider_id.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that is bound to one of these nodes."""

    namespace: str
    name: str
    uid: str
    node: str
    #: Chips that it requests; 1 if it has ResourceClaims only.
    chips: int
    #: Succeeded or Failed: it needs its node no more.
    finished: bool = False
    #: metadata.deletionTimestamp: when its grace ends; None while nobody deletes it.
    deletion_deadline: datetime | None = None
    #: Of a DaemonSet or a mirror of a static pod: it ends with its node, and cannot be evicted in a way that helps.
    bound_to_node: bool = False

    def keeps_machine(self, now: datetime, deadline: datetime | None = None) -> bool:
        """Whether it runs within its grace period and, if it has no chips, before the deadline."""
        over = self.deletion_deadline is not None and self.deletion_deadline <= now
        in_time = self.chips > 0 or (deadline is not None and now < deadline)
        return in_time and not (over or self.finished or self.bound_to_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlugin:
    """The DaemonSet of the device plugin."""

    uid: str
    #: Hash of the manifest that it was last applied from; empty for one that we did not make.
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What machines have to know of the cluster; a text that could not be found out is empty."""

    uid: str
    #: As "sha256:<hex>", of the CA that signs the API server's certificate.
    ca_hash: str = ""
    #: HOST:PORT that machines reach the API server at.
    api_server: str = ""
    kubernetes_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The caches, as they were at one moment. Each may be older than the others, and than what was written last."""

    cluster: Cluster
    groups: tuple[TpuNodeGroup, ...] = ()
    policies: tuple[WorkloadPolicy, ...] = ()
    templates: tuple[InstanceTemplate, ...] = ()
    managers: tuple[ManagedInstanceGroup, ...] = ()
    nodes: tuple[Node, ...] = ()
    #: Those on these nodes that may need them: unfinished, and not such as end with their node.
    pods: tuple[Pod, ...] = ()
    tokens: tuple[Token, ...] = ()
    #: Open requests of kubelets that came with one of these.
    requests: tuple[Request, ...] = ()
    device_plugin: DevicePlugin | None = None
    #: Keys of calls and writes that are being sent, or have been answered and the answer not read (`Call.key`).
    live: frozenset[str] = frozenset()
    #: Why nothing may be decided on this snapshot, such as a cache that is not synced; empty: it may.
    not_synced: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[Child, ...]:
        """All children of groups, and such as are nobody's."""
        return (*self.policies, *self.templates, *self.managers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings(NodeGroupSettings):
    """What the administrator decides, and what follows from it."""

    #: What machines that are to join the cluster run at each boot (`bootstrap.script`).
    startup_script: str
    #: Hash of the manifest that the device plugin is to be applied from; empty: it is not our job.
    device_plugin_version: str = ""
    #: So many seconds' worth of `calls_per_second` at once; and calls under way at once.
    burst_seconds: float = 10.0
    most_calls: int = 64


#: So many nodes may fail by themselves, whatever share of all nodes they are.
_FEW_NODES = 3

#: Namespace and name of a group.
GroupKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call that a step wants made; the longer it has been due the sooner its turn comes."""

    call: Call
    due_at: datetime


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
    if not every:
        return NOTHING
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
    #: Where most nodes of all groups are not ready, and their machines run: more likely what they share is broken.
    doubtful_zones: frozenset[str] = frozenset()

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

    def known(self, record: Record) -> ResourceMemory:
        """Return what is remembered of a child's resource, at first what its status says, or of a group's template."""
        known = self.memory.resources.get(record.meta.uid)
        if known is not None or isinstance(record, TpuNodeGroup):
            return known or ResourceMemory()
        return ResourceMemory(operation=record.status.operation, attempts=record.status.attempts)

    def calling(self, uid: str, *kinds: type[Call]) -> bool:
        """Whether a call of one of these kinds is under way for an object."""
        return any(isinstance(call, kinds) for call in self.calls.get(uid, ()))

    def refused(self, write: Write) -> str:
        """Say why Kubernetes refuses a write; empty where it was not tried, or not refused."""
        known = self.memory.writes.get(write.key)
        return known.message if known is not None and known.failure is WriteFailure.REFUSED else ""

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects in which resources may be made."""
        return self.settings.projects or (self.settings.project_id,)


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
        doubtful_zones=_doubtful_zones(snapshot.groups, labelled, memory),
    )


def was_whole(group: TpuNodeGroup) -> bool:
    """Whether all nodes have been ready: else one that is not may never have been, or be about to go."""
    ready = condition_of(group.status.conditions, ConditionType.READY)
    return is_true(ready) or (ready is not None and ready.reason == Reason.NODE_LOST)


def _doubtful_zones(
    groups: Iterable[TpuNodeGroup], labelled: Mapping[GroupKey, Sequence[Node]], memory: Memory
) -> frozenset[str]:
    stopped = {
        machine.provider_id
        for resource in memory.resources.values()
        for machine in (resource.listing.machines if resource.listing is not None else ())
        if machine.status not in STARTING_OR_RUNNING
    }
    zones: defaultdict[str, list[bool]] = defaultdict(list)
    whole = (labelled.get((group.meta.namespace, group.meta.name), ()) for group in groups if was_whole(group))
    for node in itertools.chain.from_iterable(whole):
        if node.provider_id not in stopped:
            zones[zone_of(node.provider_id)].append(not node.ready)
    return frozenset(zone for zone, failing in zones.items() if sum(failing) > max(_FEW_NODES, len(failing) / 2))


def want(known: ResourceMemory, what: str, call: Call, due_at: datetime, round_: Round) -> Step:
    """Ask for a call that is due, unless it is under way or has to wait after a failure."""
    if call.key in round_.memory.calls:
        return NOTHING
    wait = known.backoffs.get(what)
    if wait is not None and wait.until > due_at:
        due_at = wait.until
    if due_at > round_.now:
        return Step(moments=(due_at,))
    return Step(calls=(Wanted(call=call, due_at=due_at),))


def later(moment: datetime, seconds: float, key: str) -> datetime:
    """Return a moment some time later, up to a tenth sooner by the key: what was read together is read apart again."""
    return moment + timedelta(seconds=seconds * (1 - 0.1 * waits.share_of(key)))
