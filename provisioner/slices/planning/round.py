"""What one decision goes by, put together once: the world as it is observed, and our pools with their nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from types import MappingProxyType

from provisioner import constants, tpu
from provisioner.model.capacity import CapacityKind, Node, NodePool, PoolName, PoolStatus, expected_pool
from provisioner.model.choices import LAST_OF_RESERVATION
from provisioner.model.fit import NodeView, misfit, room_misfit, view_of_node
from provisioner.model.membership import Membership
from provisioner.model.placement import MARKS, labels_of
from provisioner.model.workloads import GroupKey, Pod, Workload, WorkloadKind, Workloads, WorkloadUid
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId, group_key
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.asks import awaiting_request
from provisioner.slices.demand.slices import Found, all_slices, find_by_workload, slices_by_key
from provisioner.slices.planning.launch.specification import Candidates, Ownership, read_ownership
from provisioner.slices.planning.memory.state import CallState, Memory
from provisioner.slices.supplier import PoolRules

#: GKE holds the pool for made.
_UP = frozenset({PoolStatus.RUNNING, PoolStatus.RECONCILING, PoolStatus.RUNNING_WITH_ERROR})
_SUPPLY = _UP | {PoolStatus.PROVISIONING}
#: A pool of others that came up without nodes is waited for this long, not longer.
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The caches of Kubernetes and the last list of node pools."""

    workloads: Mapping[WorkloadUid, Workload] = field(default_factory=dict)
    #: Names of the optional sources that are unknown (`model.sources`): no decision may depend on them.
    unknown: frozenset[str] = frozenset()
    #: Kinds that the API server does not show us: of their workloads nothing is known.
    unknown_kinds: frozenset[WorkloadKind] = frozenset()
    #: Kinds whose CRD has not been installed for so long that no workload of them exists.
    absent_kinds: frozenset[WorkloadKind] = frozenset()
    #: Of the workloads that pools were made for and that are not there: those that were seen to go.
    deleted_workloads: frozenset[WorkloadUid] = frozenset()
    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    #: All pools of the cluster, foreign ones too: their names are taken.
    pools: tuple[NodePool, ...] = ()
    #: When the request for that list was sent.
    pools_listed_at: datetime
    #: Pools whose create or delete is being sent, or has been answered and the answer not read.
    live_calls: frozenset[PoolName] = frozenset()
    #: Names of the objects whose status Kubernetes has rejected for long (`WorkloadName.text`), and of such nodes.
    rejected: AbstractSet[str] = frozenset()
    #: Labels of namespaces; only where an opt-in label is set.
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Since when somebody has paused the creation of pools; None: nobody has.
    paused_since: datetime | None = None
    #: Why nothing may be decided on this snapshot (a cache not synced or stale, cluster unproven); empty: it may.
    not_synced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round. Each step takes it, and what the steps before it came to."""

    snapshot: Snapshot
    settings: Settings
    rules: PoolRules
    now: datetime
    memory: Memory
    workloads: Workloads
    policy: ServingPolicy
    slices: Mapping[SliceId, Slice]
    #: Our pools: those that are listed, and creates that no list shows yet.
    supply: Mapping[PoolName, Supply]
    #: Slice -> the pools that were made for it.
    owned: Mapping[SliceId, Sequence[Supply]]
    made_for: Mapping[PoolName, SliceId]
    #: Namespace and key of the slice to which each assigned pool is assigned, by the labels of its nodes.
    assigned: Mapping[PoolName, tuple[str, str]]
    candidates: Candidates
    derived: Derived


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What a round found out that follows from single objects: the next takes over what has not changed."""

    #: By which the slices were found.
    policy: ServingPolicy = field(default_factory=ServingPolicy)
    found: Mapping[WorkloadUid, Found] = field(default_factory=dict)
    supply: Mapping[PoolName, Supply] = field(default_factory=dict)


#: Before the first round.
NOT_DERIVED = Derived()


def policy_of(snapshot: Snapshot, settings: Settings) -> ServingPolicy:
    """Say whose pods are served."""
    return ServingPolicy(
        namespaces=frozenset(settings.namespaces),
        opt_in_label=settings.opt_in_label,
        namespace_labels=snapshot.namespace_labels,
    )


def begin_round(
    snapshot: Snapshot,
    memory: Memory,
    settings: Settings,
    rules: PoolRules,
    now: datetime,
    last: Derived,
) -> Round:
    """Find out what there is and what it is for."""
    workloads = Workloads.of(snapshot.workloads)
    policy = policy_of(snapshot, settings)
    membership = Membership.of(snapshot.pools, snapshot.nodes, memory.membership)
    snapshot = replace(snapshot, nodes=membership.correct(snapshot.nodes))
    supply = find_supply(snapshot, memory, settings, rules, now, last.supply)
    if not memory.phases:
        memory = replace(memory, last_users={**_users_by_labels(supply.values(), workloads), **memory.last_users})
    found = find_by_workload(
        workloads,
        snapshot.pods,
        policy,
        referred(supply.values(), workloads, memory),
        keep_suspended=settings.keep_suspended,
        # Compared once: it has the labels of all namespaces.
        last=last.found if last.policy == policy else {},
    )
    slices = all_slices(found)
    slices |= awaiting_request(slices.values(), workloads.by_uid)
    owned = by_owner(slices, supply.values())
    return Round(
        snapshot=snapshot,
        settings=settings,
        rules=rules,
        now=now,
        memory=replace(memory, membership=membership),
        workloads=workloads,
        policy=policy,
        slices=slices,
        supply=supply,
        owned=owned,
        made_for={each.name: slice_id for slice_id, many in owned.items() for each in many},
        assigned={name: mark for name, pool in supply.items() if (mark := pool.assigned_to) is not None},
        candidates=Candidates(settings, rules),
        derived=Derived(policy=policy, found=found, supply=supply),
    )


# Without slots, for what is found out only where somebody asks.
@dataclass(frozen=True, kw_only=True)
class Supply:
    """One pool of ours."""

    name: PoolName
    pool: NodePool
    rules: PoolRules
    ownership: Ownership
    nodes: tuple[Node, ...]
    #: GKE lists it; else it is a create that the list does not confirm yet.
    listed: bool
    #: A delete is under way or was accepted.
    leaving: bool
    #: A delete of it was tried and failed: nodes that it took do not come back.
    half_deleted: bool
    ready_nodes: int
    #: Since when GKE says that it is up although not all its nodes are ready; None: it is not so.
    unready_since: datetime | None
    #: How long that has lasted.
    unready_seconds: float
    #: Since when it is up without nodes, and waits for capacity that comes late; None: it is not so.
    late_since: datetime | None
    #: It was unready for too long and is given up: to be replaced.
    lost: bool
    #: Its reservation ends soon; it has ended.
    ends_soon: bool
    ended: bool
    #: It was made for a workload of a namespace, or a kind, that is not watched: it looks idle whether that lives or
    #: not.
    unwatched: bool

    @cached_property
    def view(self) -> NodeView:
        """What its nodes look like by its specification."""
        return self.rules.expected_node(self.pool)

    @cached_property
    def offered(self) -> tuple[NodeView, ...]:
        """What its nodes offer as they stand; those that somebody cordoned offer nothing.

        Nodes that have not reported their chips yet are expected as specified: GKE calls a pool up before the last of
        them has.
        """
        nodes = (node for node in self.nodes if not node.cordoned or node.cordoned_by_us)
        return tuple(_offer(node, self.view) for node in nodes)

    def is_ready(self, node: Node) -> bool:
        """Whether one of its nodes counts as ready."""
        return node.ready and node.allocatable_chips >= _chips_of_node(self.pool)

    @cached_property
    def in_catalogue(self) -> bool:
        """Whether the catalogue has its machine type: a restart may be without the list of the cluster."""
        return tpu.machine_type(self.pool.machine_type) is not None

    @property
    def undecided(self) -> bool:
        """Whether it looks idle even if it is needed: its workload is not watched, or its machine type is unknown."""
        return self.unwatched or not self.in_catalogue

    @cached_property
    def machine(self) -> tuple[str, int]:
        """Accelerator and chips of each host; those of the nodes if the catalogue lacks the machine type."""
        accelerator, chips = tpu.machine_of(self.pool.machine_type)
        if not self.in_catalogue:
            labels = (node.labels.get(constants.TPU_ACCELERATOR, "") for node in self.nodes)
            accelerator = max(labels, default="") or accelerator
            chips = max((node.allocatable_chips for node in self.nodes), default=0) or chips
        return accelerator, chips

    @cached_property
    def missing(self) -> int:
        """Hosts whose nodes are not there."""
        return max(0, self.pool.hosts - len(self.nodes))

    @cached_property
    def assigned_to(self) -> tuple[str, str] | None:
        """Namespace and key of the slice in the labels of most of its nodes; None if the pool is not assigned.

        A node that was recreated has the labels from the creation of the pool, until it is labelled again.
        """
        labelled = [node.labels for node in self.nodes] or [self.pool.labels]
        marks = [tuple(labels.get(key, "") for key in MARKS) for labels in labelled]
        counts = Counter((namespace, key) for key, namespace in marks if key not in ("", constants.SLICE_FREE))
        return max(counts, key=lambda mark: (counts[mark], mark), default=None)

    @cached_property
    def maintenance(self) -> Node | None:
        """The first of its nodes whose host is taken down for maintenance; None where none is known."""
        doomed = [node for node in self.nodes if node.maintenance_at is not None]
        return min(doomed, key=lambda node: (node.maintenance_at, node.name), default=None)

    @property
    def ready(self) -> bool:
        """Whether all nodes are there and ready."""
        return 0 < self.pool.hosts <= self.ready_nodes

    @property
    def usable(self) -> bool:
        """Whether GKE's status lets pods run there, now or soon, and nothing is about to take it away."""
        return not (self.leaving or self.broken or self.ended) and self.pool.status in _SUPPLY

    @property
    def going(self) -> bool:
        """Whether it is being deleted."""
        return self.leaving or self.pool.status is PoolStatus.STOPPING

    @property
    def lendable(self) -> bool:
        """Whether a slice that it was not made for may take it."""
        if self.pool.status is PoolStatus.RUNNING_WITH_ERROR and not self.ready:
            # Worth waiting for to the slice that it was made for, not to others.
            return False
        doomed = self.maintenance is not None or self.ends_soon
        return not doomed and (self.ready_nodes > 0 or self.unready_seconds <= _PATIENCE_SECONDS)

    @property
    def broken(self) -> bool:
        """Whether it has failed: no pod will get a host there."""
        # GKE may say so too while it repairs nodes; then it is lost like any other, when that lasts for too long.
        half_deleted = self.half_deleted and self.pool.status is PoolStatus.RUNNING_WITH_ERROR and not self.ready
        return self.pool.status is PoolStatus.ERROR or half_deleted or self.lost

    @property
    def chips(self) -> int:
        """Chips of the whole pool."""
        return self.pool.hosts * self.machine[1]

    @property
    def attempt(self) -> int:
        """Which attempt of its slice it was made for; 0 where it does not say."""
        text = self.pool.labels.get(constants.POOL_ATTEMPT, "")
        return int(text) if text.isascii() and text.isdigit() else 0


def find_supply(
    snapshot: Snapshot,
    memory: Memory,
    settings: Settings,
    rules: PoolRules,
    now: datetime,
    last: Mapping[PoolName, Supply] = MappingProxyType({}),
) -> dict[PoolName, Supply]:
    """List our pools: those that GKE lists, and creates that the list does not show yet."""
    nodes_of: dict[PoolName, list[Node]] = defaultdict(list)
    for node in snapshot.nodes:
        nodes_of[node.pool_name].append(node)
    listed = {pool.name: pool for pool in snapshot.pools}
    supply = {}
    unlisted = (expected_pool(call.request) for name, call in memory.creates.items() if name not in listed)
    for pool in (*listed.values(), *unlisted):
        delete = memory.deletes.get(pool.name)
        here = tuple(nodes_of.get(pool.name, ()))
        before = last.get(pool.name)
        if (
            before is not None
            and delete is None
            and not (before.leaving or before.half_deleted)
            # Nothing that it is depends on the time.
            and before.unready_since is None
            and before.late_since is None
            and pool.ends_at is None
            and (before.pool, before.nodes, before.listed) == (pool, here, pool.name in listed)
            and before.rules is rules
            and before.unwatched is _is_unwatched(before.ownership, snapshot, settings)
        ):
            supply[pool.name] = before
            continue
        ownership = read_ownership(pool.labels)
        if ownership is None:
            continue
        chips = _chips_of_node(pool)
        ready_nodes = sum(node.ready and node.allocatable_chips >= chips for node in here)
        unready_since = late_since = None
        if pool.status in _UP and pool.capacity is CapacityKind.FLEX_START and not (here or pool.made):
            late_since = min(now, memory.late_since.get(pool.name, now))
        elif pool.status in _UP and ready_nodes < max(1, pool.hosts):
            unready_since = min(now, memory.unready_since.get(pool.name, now))
        supply[pool.name] = Supply(
            name=pool.name,
            pool=pool,
            rules=rules,
            ownership=ownership,
            nodes=here,
            listed=pool.name in listed,
            leaving=delete is not None and delete.state in (CallState.UNDER_WAY, CallState.ACCEPTED),
            half_deleted=delete is not None and delete.state not in (CallState.UNDER_WAY, CallState.ACCEPTED),
            ready_nodes=ready_nodes,
            unready_since=unready_since,
            unready_seconds=(now - unready_since).total_seconds() if unready_since is not None else 0.0,
            late_since=late_since,
            lost=pool.name in memory.given_up and unready_since is not None,
            ends_soon=pool.ends_at is not None and pool.ends_at - now <= LAST_OF_RESERVATION,
            ended=pool.ends_at is not None and pool.ends_at <= now,
            unwatched=_is_unwatched(ownership, snapshot, settings),
        )
    return supply


def _chips_of_node(pool: NodePool) -> int:
    return max(1, tpu.machine_of(pool.machine_type)[1])


def _is_unwatched(ownership: Ownership, snapshot: Snapshot, settings: Settings) -> bool:
    workload = ownership.workload
    elsewhere = bool(settings.namespaces) and workload.namespace not in settings.namespaces
    return elsewhere or workload.kind in snapshot.unknown_kinds


def _users_by_labels(supply: Iterable[Supply], workloads: Workloads) -> dict[PoolName, SliceId]:
    """Return the slices that pools are assigned to by the labels of their nodes: a new process may have no hints.

    Such a slice may be without pods, between two attempts, and its pool created for another workload.
    """
    # After the letter of the kind, the label has the key of the group.
    keys = {each.name: (mark[0], GroupKey(mark[1][2:])) for each in supply if (mark := each.assigned_to) is not None}
    namespaces = {namespace for namespace, _ in keys.values()}
    slices = slices_by_key(each for each in workloads.by_uid.values() if each.namespace in namespaces)
    return {name: slices[key] for name, key in keys.items() if key in slices}


def by_owner(slices: Mapping[SliceId, Slice], supply: Iterable[Supply]) -> dict[SliceId, list[Supply]]:
    """Group pools by the slice that they were made for; pools of the Go provisioner name the child Job instead."""
    by_job = {(*each.workload.full_name, each.group_name): each.id for each in slices.values()}
    owned: dict[SliceId, list[Supply]] = defaultdict(list)
    for each in supply:
        workload, uid, key, group_name = each.ownership
        owner = SliceId(uid, key) if uid else by_job.get((*workload, group_name))
        if owner is not None:
            owned[owner].append(each)
    return owned


def referred(supply: Iterable[Supply], workloads: Workloads, memory: Memory) -> dict[SliceId, str]:
    """List the slices that pools or the memory refer to, with the name of the child Job where a pool tells it."""
    refused = (each.slice_id for each in memory.backoffs.values() if each.slice_id is not None)
    found = dict.fromkeys((*memory.attempts, *memory.last_users.values(), *refused), "")
    for each in supply:
        workload, uid, key, group_name = each.ownership
        if uid:
            found[SliceId(uid, key)] = group_name
        elif uid_now := workloads.uid_of_name.get(workload):
            found[SliceId(uid_now, group_key(workload.namespace, group_name))] = group_name
    return found


def serves(supply: Supply, slice_: Slice) -> bool:
    """Whether the pool, by its specification, is what the slice needs.

    Nodes as they are do not count here: a slice whose own pool got a strange taint is stuck, and does not buy another.
    """
    asked = slice_.requirements
    fits = not room_misfit(asked, supply.view) and right_size(supply, slice_) and not misfit(asked, supply.view)
    return fits and grows_for(supply, slice_)


def grows_for(supply: Supply, slice_: Slice) -> bool:
    """Whether a pool has nodes, or will get them for the pods of the slice.

    The cluster autoscaler brings the nodes of a flex-start pool only for pods that fit the labels of the pool itself,
    and these labels stay as they were at its create.
    """
    if supply.pool.capacity is not CapacityKind.FLEX_START or supply.nodes or not slice_.workload.kind.has_pods:
        return True
    wanted = labels_of(slice_.mark, slice_.workload.namespace) if slice_.mark else {}
    return all(supply.pool.labels.get(key) == wanted.get(key) for key in MARKS)


def right_size(supply: Supply, slice_: Slice) -> bool:
    """Whether the pool has the topology and the hosts that the slice needs, and is not for another child Job.

    Pods that tolerate every taint fit the nodes of a Job, and do not select them.
    """
    shape, job = slice_.shape, supply.view.labels.get(constants.NAMESPACED_JOB)
    if job is not None and slice_.requirements.node_selector.get(constants.NAMESPACED_JOB) != job:
        return False
    if shape is None or supply.pool.topology != str(shape.topology):
        return False
    if shape.multi_host:
        return supply.pool.hosts == slice_.nodes
    return supply.pool.hosts >= slice_.nodes


def _offer(node: Node, expected: NodeView) -> NodeView:
    view = view_of_node(node)
    passing = (*constants.NODE_CONDITION_TAINT_PREFIXES, *constants.HELD_KEYS)
    taints = tuple(taint for taint in view.taints if not taint.key.startswith(passing))
    if not node.ready or node.allocatable_chips < expected.chips:
        # Of its labels those count that it has.
        return replace(expected, labels=view.labels, taints=taints, name=node.name, predicted=False)
    return replace(view, taints=taints)
