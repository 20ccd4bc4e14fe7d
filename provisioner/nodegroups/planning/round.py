"""Input of a decision (snapshot, settings, memory, indexes), and steps, the parts of its result. Pure."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from provisioner.constants import POOL_JOBSET_NAMESPACE, POOL_WORKLOAD_NAMESPACE
from provisioner.model import waits
from provisioner.model.writes import Proposed, WriteFailure
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
from provisioner.nodegroups.compute.records import Link, parse_link
from provisioner.nodegroups.planning.actions import Call, DeleteChild, Proof, Write
from provisioner.nodegroups.planning.memory import Memory, ResourceMemory
from provisioner.settings.nodegroups import NodeGroupSettings

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is a machine of Compute Engine, or has the labels of a group."""

    name: str
    uid: str
    resource_version: str = ""
    #: gce://PROJECT/ZONE/INSTANCE.
    provider_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Whether the node has the taint of TPU nodes. Other taints are not stored, because they may have 262,144 bytes.
    tainted: bool = False
    unschedulable: bool = False
    ready: bool = False
    #: Time of the kubelet's last report if Kubernetes set Ready to Unknown more than 10 minutes later, otherwise None.
    silent_since: datetime | None = None
    created_at: datetime | None = None
    #: google.com/tpu in status.capacity. The next field is the value in status.allocatable.
    capacity_chips: int = 0
    allocatable_chips: int = 0

    @property
    def is_named_as_its_machine(self) -> bool:
        """Whether the node has its machine's name, with or without a domain. If not, its provider id may be forged."""
        machine = self.provider_id.rpartition("/")[2]
        return self.name == machine or self.name.startswith(f"{machine}.")


def zone_of(group: TpuNodeGroup) -> str:
    """Return the project and the zone of a group's machines, as gce://PROJECT/ZONE."""
    return f"gce://{group.spec.project}/{group.spec.node_location}"


def place_of(group: TpuNodeGroup) -> str:
    """Return the common prefix of the provider ids of a group's machines."""
    return f"{zone_of(group)}/{names.child_name(group.meta, Kind.MANAGED_INSTANCE_GROUP)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that is bound to a node."""

    namespace: str
    name: str
    uid: str
    node: str
    #: Number of requested chips; 1 if the pod has ResourceClaims with an unknown number of chips.
    chips: int
    finished: bool = False
    created_at: datetime | None = None
    #: Whether the kubelet has accepted the pod (status.startTime).
    started: bool = True
    #: End of the grace period (metadata.deletionTimestamp). None if the pod is not being deleted.
    deletion_deadline: datetime | None = None
    #: Whether the pod is static or of a DaemonSet. Such a pod ends with its node, and is recreated if it is evicted.
    bound_to_node: bool = False

    def holds_chips(self, proof: Proof | None = None) -> bool:
        """Return whether the pod has started with chips. With `proof`, it must not be newer than the delete request."""
        requested_at = proof.requested_at if proof is not None else None
        # Newer pods, which may tolerate the cordon, could replace each other on the machines and so prevent the delete.
        late = self.created_at is not None and requested_at is not None and self.created_at > requested_at
        return self.chips > 0 and self.started and not late

    def deadline(self, proof: Proof) -> datetime | None:
        """Return the time until which the pod keeps its machine without holding chips, None if it never does."""
        return proof.deadline if self.namespace == proof.namespace and not self.chips else proof.deadline_of_others

    def keeps_machine(self, now: datetime, proof: Proof | None = None) -> bool:
        """Return whether the pod keeps its machine: it has not ended, and holds chips or is before its `deadline`."""
        # Pods that exceed their grace period or are `bound_to_node` count as ended.
        over = self.deletion_deadline is not None and self.deletion_deadline <= now
        deadline = self.deadline(proof) if proof is not None else None
        in_time = self.holds_chips(proof) or (deadline is not None and now < deadline)
        return in_time and not (over or self.finished or self.bound_to_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlugin:
    """The DaemonSet of the device plugin."""

    uid: str
    #: Hash of the last applied manifest; empty if another client created the DaemonSet.
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """UID of the cluster, and the data that machines need to join. A text is empty if it is unknown."""

    uid: str
    #: sha256:HEX of each CA that may have signed the API server's certificate, separated by commas.
    ca_hash: str = ""
    #: HOST:PORT of the API server in cluster-info, at which kubelets reach it.
    api_server: str = ""
    kubernetes_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Content of all caches at one moment. Caches may lag behind each other and behind the controller's writes."""

    cluster: Cluster
    groups: tuple[TpuNodeGroup, ...] = ()
    policies: tuple[WorkloadPolicy, ...] = ()
    templates: tuple[InstanceTemplate, ...] = ()
    managers: tuple[ManagedInstanceGroup, ...] = ()
    nodes: tuple[Node, ...] = ()
    #: Bound, unfinished pods that may be on nodes of groups, except those that are `bound_to_node`.
    pods: tuple[Pod, ...] = ()
    tokens: tuple[Token, ...] = ()
    #: Undecided certificate requests of kubelets, sent with a token of this controller.
    requests: tuple[Request, ...] = ()
    device_plugin: DevicePlugin | None = None
    #: Keys of calls and writes that are in progress, or whose results are not in the memory yet (`Call.key`).
    live: frozenset[str] = frozenset()
    #: Reasons why nothing may be decided, such as a cache that is not synced; empty if decisions are allowed.
    not_synced: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[Child, ...]:
        """All children, also those that belong to no group."""
        return (*self.policies, *self.templates, *self.managers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings(NodeGroupSettings):
    """The administrator's settings, and values derived from them."""

    #: Script with which machines join the cluster (`bootstrap.metadata.startup_script`).
    startup_script: str
    #: Hash of the device plugin's manifest; empty if the controller does not manage the device plugin.
    device_plugin_version: str = ""
    #: Seconds of unused `calls_per_second` that one bucket (`decide.bucket_of`) can save for a burst.
    burst_seconds: float = 10.0
    max_calls: int = 64


#: Seconds after the first decision of this process before ready nodes count as reporting. After a restore of etcd, old
#: nodes are ready for up to a minute, until Kubernetes notices that they do not report.
_STALE_SECONDS = 300.0
#: A zone in which at most this number of nodes is not ready is never doubtful.
_FEW_NODES = 3

GroupKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A call that a step needs. If calls have equal priority, the call with the earliest `due_at` is sent first."""

    call: Call
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Calls, writes and times of a part of a decision. A plan has at most one write of each object."""

    calls: tuple[Wanted, ...] = ()
    writes: tuple[Proposed[Write], ...] = ()
    #: Times at which the next decision is due at the latest.
    moments: tuple[datetime, ...] = ()

    def __add__(self, other: Step) -> Step:
        return merged((self, other))


NOTHING = Step()


def merged(steps: Iterable[Step]) -> Step:
    """Return one step with the calls, writes and times of all steps, in their order."""
    every = [step for step in steps if step is not NOTHING]
    if not every:
        return NOTHING
    return Step(
        calls=tuple([call for step in every for call in step.calls]),
        writes=tuple([write for step in every for write in step.writes]),
        moments=tuple([moment for step in every for moment in step.moments]),
    )


def to_write(write: Write, seen: str = "") -> Step:
    """Return a step with one write; `seen` is the state of the object on which the write is based (`Proposed.seen`)."""
    return Step(writes=(Proposed(write=write, seen=seen),))


def delete_child(child: Child) -> Step:
    """Return a step that requests the deletion of a child."""
    return to_write(DeleteChild(record=child), child.meta.resource_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Input of one decision, with indexes."""

    snapshot: Snapshot
    settings: PlanningSettings
    now: datetime
    memory: Memory
    #: Groups by UID.
    groups: Mapping[str, TpuNodeGroup]
    #: Groups by kind and name of a child. The name has a hash of the group's UID, which users cannot choose.
    parents: Mapping[tuple[Kind, str], TpuNodeGroup]
    #: Children by kind, namespace and name.
    children: Mapping[tuple[Kind, str, str], Child]
    #: ManagedInstanceGroups with finalizers, by namespace and by the policy or template that they use. Empty unless a
    #: WorkloadPolicy or an InstanceTemplate is being deleted.
    users: Mapping[tuple[str, Link | str], ManagedInstanceGroup]
    #: Nodes by provider id. Only nodes with the name of their machine, because a kubelet can set any provider id.
    nodes: Mapping[str, Node]
    #: Nodes by namespace and name of the group in their labels, which any kubelet can set, and by place (`place_of`).
    labelled: Mapping[tuple[str, str, str], Sequence[Node]]
    #: Pods by the name of their node.
    pods: Mapping[str, Sequence[Pod]]
    tokens: Mapping[GroupKey, Sequence[Token]]
    #: Undecided certificate requests by the node that they name.
    requests: Mapping[str, Sequence[Request]] = field(default_factory=dict)
    #: Number of machines that precede a group's machines, by UID (see `manager.machines_before`).
    machines_before: Mapping[str, int] = field(default_factory=dict)
    #: Calls without a response, by `Target.uid`.
    calls: Mapping[str, Sequence[Call]] = field(default_factory=dict)
    #: Zones in which most nodes of most namespaces are not ready although their machines run, as in a network failure.
    doubtful_zones: frozenset[str] = frozenset()
    #: Creation time of the oldest ready node that is not of the control plane; None if unknown (`silent_node`).
    oldest_ready: datetime | None = None
    #: Whether the device plugin is needed: a group may have nodes, also while it is being deleted.
    has_nodes: bool = False

    def labelled_of(self, group: TpuNodeGroup) -> Sequence[Node]:
        """Return the nodes with a group's labels whose provider id is in the group's place (`place_of`)."""
        return self.labelled.get((group.meta.namespace, group.meta.name, place_of(group)), ())

    def parent_of(self, child: Child) -> TpuNodeGroup | None:
        """Return the group of a child, None without a group. Name and namespace decide, not owner references."""
        group = self.parents.get((child.kind, child.meta.name))
        return group if group is not None and group.meta.namespace == child.meta.namespace else None

    def is_set(self, annotation: str, child: Child) -> bool:
        """Return whether an annotation is "true" on a child or its group; false if its group is not being deleted."""
        group = self.parent_of(child)
        if group is not None and not group.meta.deleting:
            return False
        metas = (child.meta,) if group is None else (child.meta, group.meta)
        return any(meta.annotations.get(annotation) == "true" for meta in metas)

    def child_of(self, group: TpuNodeGroup, kind: Kind) -> Child | None:
        """Return the object with the name of a group's child, even if a user created it; None if it does not exist."""
        return self.children.get((kind, group.meta.namespace, names.child_name(group.meta, kind)))

    def known(self, record: Record) -> ResourceMemory:
        """Return the memory of a child's resource, initially from its status, or of the template that a group names."""
        known = self.memory.resources.get(record.meta.uid)
        if known is not None or isinstance(record, TpuNodeGroup):
            return known or ResourceMemory()
        return ResourceMemory(operation=record.status.operation, attempts=record.status.attempts)

    def calling(self, uid: str, *kinds: type[Call]) -> bool:
        """Return whether a call of one of these kinds is in flight for the object with this UID."""
        return any(isinstance(call, kinds) for call in self.calls.get(uid, ()))

    def refused(self, write: Write) -> str:
        """Return why the last write with this key was rejected as forbidden or invalid, otherwise empty."""
        known = self.memory.writes.get(write.key)
        return known.message if known is not None and known.failure is WriteFailure.REFUSED else ""

    def refusal(self, step: Step, kind: type[object] = object) -> str:
        """Return ": OBJECT: REASON" for the first rejected write of type `kind` in a step, otherwise empty."""
        writes = (proposed.write for proposed in step.writes if isinstance(proposed.write, kind))
        return next((f": {write.key}: {why}" for write in writes if (why := self.refused(write))), "")

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects in which resources may be created."""
        return self.settings.projects or (self.settings.project_id,)


def begin_round(snapshot: Snapshot, memory: Memory, settings: PlanningSettings, now: datetime) -> Round:
    """Return the input of a decision, with indexes."""
    named = [node for node in snapshot.nodes if node.is_named_as_its_machine]
    # If several nodes name one machine, the last one is used: the node with the shortest name.
    named.sort(key=lambda node: (-len(node.name), node.ready, node.name))
    nodes, metas = {node.provider_id: node for node in named}, [group.meta for group in snapshot.groups]
    ctx = Round(
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
        users=_users(snapshot),
        nodes=nodes,
        labelled=grouped(sorted(named, key=lambda node: node.name), _labels_and_place),
        pods=grouped(snapshot.pods, lambda pod: pod.node),
        tokens=grouped(
            sorted(snapshot.tokens, key=lambda token: token.name),
            lambda token: (token.group_namespace, token.group_name),
        ),
        requests=grouped(snapshot.requests, lambda request: request.node),
        calls=grouped((sent.call for sent in memory.calls.values()), lambda call: call.target.uid),
        has_nodes=any(names.CLEANUP_NODES in meta.finalizers or not meta.deleting for meta in metas),
    )
    return replace(ctx, doubtful_zones=_doubtful_zones(ctx), oldest_ready=_oldest_ready(ctx))


def grouped(records: Iterable[T], key: Callable[[T], K]) -> Mapping[K, Sequence[T]]:
    """Return the records by key. Records with the same key keep their order."""
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return groups


def _labels_and_place(node: Node) -> tuple[str, str, str]:
    namespace, name = node.labels.get(names.GROUP_NAMESPACE, ""), node.labels.get(names.GROUP_NAME, "")
    return namespace, name, names.manager_of(node.provider_id)


def _users(snapshot: Snapshot) -> Mapping[tuple[str, Link | str], ManagedInstanceGroup]:
    users: dict[tuple[str, Link | str], ManagedInstanceGroup] = {}
    if any(child.meta.deleting for child in snapshot.children if not isinstance(child, ManagedInstanceGroup)):
        for user in snapshot.managers:
            for url in filter(None, (user.spec.workload_policy, user.spec.instance_template)):
                if user.meta.finalizers:
                    users.setdefault((user.meta.namespace, parse_link(url) or url), user)
    return users


def was_whole(group: TpuNodeGroup) -> bool:
    """Return whether the status shows that all nodes have once been ready. Otherwise machines may still be joining."""
    status, ready = group.status, condition_of(group.status.conditions, ConditionType.READY)
    if is_true(ready) or (ready is not None and ready.reason == Reason.NODE_LOST):
        return True
    # Ready may also be false because a node lacks a label, so the counts are compared.
    count, summary = status.node_count, status.node_summary
    return count is not None and summary is not None and summary.ready >= count


def _oldest_ready(ctx: Round) -> datetime | None:
    if waits.after(ctx.memory.began_at, _STALE_SECONDS) > ctx.now:
        return None
    workers = (node for node in ctx.snapshot.nodes if node.ready and names.CONTROL_PLANE not in node.labels)
    return min((node.created_at for node in workers if node.created_at is not None), default=None)


def _doubtful_zones(ctx: Round) -> frozenset[str]:
    stopped = {
        machine.provider_id
        for resource in ctx.memory.resources.values()
        for machine in (resource.listing.machines if resource.listing is not None else ())
        if machine.status not in STARTING_OR_RUNNING
    }
    # For each node, whether it is not ready: by zone, by namespace of the group, and by namespace of the workload.
    zones: defaultdict[str, defaultdict[str, defaultdict[str, list[bool]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for group in filter(was_whole, ctx.snapshot.groups):
        # An exception for one group must not affect other groups. The decision about that group reports it.
        with contextlib.suppress(Exception):
            key = _workload_namespace(group)
            for node in ctx.labelled_of(group):
                if node.provider_id not in stopped:
                    zones[zone_of(group)][group.meta.namespace][key].append(not node.ready)
    return frozenset(zone for zone, namespaces in zones.items() if _is_doubtful(namespaces.values()))


def _workload_namespace(group: TpuNodeGroup) -> str:
    config = group.spec.instance_config
    labels = names.parse_labels(config.metadata.get(names.KUBE_LABELS, "") if config is not None else "")
    return labels.get(POOL_JOBSET_NAMESPACE) or labels.get(POOL_WORKLOAD_NAMESPACE, "")


def _is_doubtful(namespaces: Collection[Mapping[str, list[bool]]]) -> bool:
    """Return whether more than _FEW_NODES nodes are not ready, among them most nodes of most namespaces."""
    # A single tenant of several cannot make a zone doubtful. With PROVIDER=gce, the groups of all slices are in one
    # namespace, so the namespaces of the workloads are counted as well. Users can label only groups of their namespace.
    failing = sum(map(sum, (nodes for workloads in namespaces for nodes in workloads.values())))
    return failing > _FEW_NODES and _most(_most(map(_most, workloads.values())) for workloads in namespaces)


def _most(flags: Iterable[bool]) -> bool:
    flags = tuple(flags)
    return sum(flags) > len(flags) / 2


def want(known: ResourceMemory, kind: str, call: Call, due_at: datetime, ctx: Round) -> Step:
    """Return a step with a call if it is due, otherwise with the due time; NOTHING if the call is in flight."""
    if call.key in ctx.memory.calls:
        return NOTHING
    wait = known.backoffs.get(kind)
    if wait is not None and wait.until > due_at:
        due_at = wait.until
    if due_at > ctx.now:
        return Step(moments=(due_at,))
    return Step(calls=(Wanted(call=call, due_at=due_at),))


def later(moment: datetime, seconds: float, key: str) -> datetime:
    """Return `moment` plus 90 to 100 % of `seconds`, a share that depends on `key`, so that reads are spread."""
    return moment + timedelta(seconds=seconds * (1 - 0.1 * waits.share_of(key)))
