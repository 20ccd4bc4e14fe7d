"""Prepares the inputs of one decision: the state of the cluster, the slices, and the provisioner's pools. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType

from provisioner import constants, tpu
from provisioner.model.capacity import CapacityKind, Node, NodePool, PoolName, PoolStatus, expected_pool
from provisioner.model.choices import LAST_OF_RESERVATION
from provisioner.model.fit import NodeView, view_of_node
from provisioner.model.membership import Membership
from provisioner.model.workloads import (
    GroupKey,
    Pod,
    Workload,
    WorkloadKind,
    Workloads,
    WorkloadUid,
    owner_of_name,
)
from provisioner.settings import Settings
from provisioner.slices.demand import Slice, SliceId, group_key
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.capacity_requests import awaiting_request
from provisioner.slices.demand.groups import slices_by_key
from provisioner.slices.demand.slices import Found, all_slices, find_by_workload
from provisioner.slices.planning.memory.refused import find_refused
from provisioner.slices.planning.memory.state import Backoff, CallState, Memory, PoolMemory
from provisioner.slices.planning.spec.specification import Candidates, Ownership, read_ownership
from provisioner.slices.supplier import PoolRules, informed, whole_machine

_UP = frozenset({PoolStatus.RUNNING, PoolStatus.RECONCILING, PoolStatus.RUNNING_WITH_ERROR})
_USABLE = _UP | {PoolStatus.PROVISIONING}
#: Time in a transitional status after which a pool counts as hanging. GKE ends a create without capacity within 35 min;
#: a TPUNodeGroup may wait longer (`failing.find_hanging`). Flex-start pools wait with status RUNNING.
MAX_DURATIONS: Mapping[PoolStatus, timedelta] = MappingProxyType(
    {
        PoolStatus.PROVISIONING: timedelta(minutes=60),
        PoolStatus.STOPPING: timedelta(minutes=30),
        PoolStatus.RECONCILING: timedelta(minutes=30),
        PoolStatus.UNKNOWN: timedelta(minutes=10),
    }
)
#: Maximum `unready_seconds` at which slices may take another slice's pool without a ready node.
_PATIENCE_SECONDS = 120.0
#: Maximum time until GKE has created a pool or reported a failure: 35 minutes, plus a margin.
SLOWEST = timedelta(minutes=45)
#: Usual time from a pool's status RUNNING until its nodes are ready with their chips, plus a margin.
_BOOT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of the cluster: the caches of Kubernetes and the last list of node pools."""

    workloads: Mapping[WorkloadUid, Workload] = field(default_factory=dict)
    #: Names of optional sources (`model.sources`) that were not read: decisions must not depend on their content.
    unknown: frozenset[str] = frozenset()
    #: Kinds whose workloads are not all known, for example because this process cannot read them.
    unknown_kinds: frozenset[WorkloadKind] = frozenset()
    #: Kinds whose CRD has been missing for 24 hours, so that no workload of these kinds can exist.
    absent_kinds: frozenset[WorkloadKind] = frozenset()
    #: Workloads that node pools were created for and whose delete this process has seen.
    deleted_workloads: frozenset[WorkloadUid] = frozenset()
    pods: tuple[Pod, ...] = ()
    nodes: tuple[Node, ...] = ()
    #: All pools of the cluster, including pools of other clients, whose names a new pool must not have.
    pools: tuple[NodePool, ...] = ()
    #: Time at which the request for `pools` was sent.
    pools_listed_at: datetime
    #: Pools with a create or delete that is being sent, or whose response has not been handled yet.
    live_calls: frozenset[PoolName] = frozenset()
    #: Objects whose changes have failed for 10 minutes: node name, "Pod NAMESPACE/NAME", or `WorkloadName.text`.
    rejected: AbstractSet[str] = frozenset()
    #: Labels of namespaces; empty if no opt-in label is configured.
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Time since which a ConfigMap has paused the creation of pools; None without this ConfigMap.
    paused_since: datetime | None = None
    #: Reasons why no decision may be based on this snapshot, such as a cache that is not synced.
    not_synced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Inputs of one decision. If a stage changes the memory, the next stages get a changed copy."""

    snapshot: Snapshot
    settings: Settings
    rules: PoolRules
    now: datetime
    memory: Memory
    workloads: Workloads
    policy: ServingPolicy
    #: Slices by workload, before `awaiting_request` changes them; the next decision reuses unchanged entries.
    found: Mapping[WorkloadUid, Found]
    slices: Mapping[SliceId, Slice]
    #: Back-offs, which may have ended, of slices whose pods the scheduler bound to no ready pool.
    refusals: Mapping[SliceId, Backoff]
    #: Pools of the provisioner: listed pools, and pools whose create was started but that are not listed yet.
    owned: Mapping[PoolName, OwnedPool]
    pools_of: Mapping[SliceId, Sequence[OwnedPool]]
    created_for: Mapping[PoolName, SliceId]
    candidates: Candidates

    def is_refused(self, slice_id: SliceId) -> bool:
        """Whether a slice has to wait because the scheduler bound its pods to no ready pool."""
        last = self.refusals.get(slice_id)
        return last is not None and last.until > self.now


def policy_of(snapshot: Snapshot, settings: Settings) -> ServingPolicy:
    """Return the policy that decides which pods are served."""
    return ServingPolicy(
        namespaces=frozenset(settings.namespaces),
        opt_in_label=settings.opt_in_label,
        namespace_labels=snapshot.namespace_labels,
    )


def begin_round(
    snapshot: Snapshot, memory: Memory, settings: Settings, rules: PoolRules, now: datetime, last: Round | None = None
) -> Round:
    """Prepare a decision: find the slices, the provisioner's pools, and the slice that each pool was created for.

    Slices and pools of the `last` decision are reused if the objects that they depend on have not changed.
    """
    workloads = Workloads.of(snapshot.workloads)
    policy = policy_of(snapshot, settings)
    membership = Membership.of(snapshot.pools, snapshot.nodes, memory.membership)
    snapshot = replace(snapshot, nodes=membership.correct(snapshot.nodes))
    rules = informed(rules, snapshot.nodes)
    owned = find_pools(snapshot, memory, settings, rules, now, last.owned if last is not None else {})
    if not any(entry.phase is not None for entry in memory.pools.values()):
        users = _users_by_labels(owned.values(), workloads)
        memory = memory.with_pools(
            {
                name: memory.pool(name)._replace(last_user=user)
                for name, user in users.items()
                if memory.pool(name).last_user is None
            }
        )
    found = find_by_workload(
        workloads,
        snapshot.pods,
        policy,
        slices_named_by_pools(owned.values(), workloads, memory),
        keep_suspended=settings.keep_suspended,
        # The policy contains the labels of all namespaces, so it is compared once, and not for each workload.
        last=last.found if last is not None and last.policy == policy else {},
    )
    slices = all_slices(found)
    slices |= awaiting_request(slices.values(), workloads.by_uid, snapshot.unknown)
    pools_of = by_owner(slices, owned.values())
    return Round(
        snapshot=snapshot,
        settings=settings,
        rules=rules,
        now=now,
        memory=replace(memory, membership=membership),
        workloads=workloads,
        policy=policy,
        found=found,
        slices=slices,
        refusals=find_refused(slices.values(), memory, settings),
        owned=owned,
        pools_of=pools_of,
        created_for={pool.name: slice_id for slice_id, many in pools_of.items() for pool in many},
        candidates=Candidates(settings, rules),
    )


# The dataclass has no slots, because `cached_property` needs a `__dict__`.
@dataclass(frozen=True, kw_only=True)
class OwnedPool:
    """One pool of the provisioner, and its state at the time of the decision."""

    name: PoolName
    pool: NodePool
    rules: PoolRules
    ownership: Ownership
    nodes: tuple[Node, ...]
    #: Whether the list of pools has the pool. If False, its create was started.
    listed: bool
    #: Whether a delete of the pool is in progress or was accepted.
    leaving: bool
    #: Whether the delete of the pool is postponed. An earlier attempt may have removed nodes permanently.
    half_deleted: bool
    ready_nodes: int
    #: Time since which the pool is known to be up without all its nodes ready; None otherwise, or with `late_since`.
    unready_since: datetime | None
    unready_seconds: float
    #: Time since which a flex-start pool is known to be up without nodes, waiting for capacity; None otherwise.
    late_since: datetime | None
    #: Transitional status (`MAX_DURATIONS`) and the time since which the pool is known to have it; otherwise None.
    passing: tuple[PoolStatus, datetime] | None
    #: Whether the pool was given up because it was unready for too long, and is unready now.
    lost: bool
    #: Whether the pool's reservation has ended, or ends within `LAST_OF_RESERVATION`.
    ends_soon: bool
    ended: bool
    #: Whether the namespace or kind of the pool's workload is not watched, so that the pool looks idle even if in use.
    unwatched: bool

    @cached_property
    def view(self) -> NodeView:
        """Expected node of the pool by its specification, with the CPU and memory of a ready node if there is one."""
        expected = self.rules.expected_node(self.pool)
        node = next((node for node in self.nodes if node.ready and node.allocatable_memory_bytes), None)
        if node is None:
            return expected
        return replace(
            expected, cpu_millicores=node.allocatable_cpu_millicores, memory_bytes=node.allocatable_memory_bytes
        )

    @cached_property
    def largest(self) -> NodeView:
        """Expected node of the pool, with the resources of the whole machine."""
        return whole_machine(self.view, self.pool)

    @cached_property
    def offered(self) -> tuple[NodeView, ...]:
        """Views of the existing nodes, without nodes that a user or another controller cordoned.

        A node that is not ready or has not reported its chips yet has the resources of the specification.
        """
        nodes = (node for node in self.nodes if not node.cordoned or node.cordoned_by_us)
        return tuple(_offer(node, self.view) for node in nodes)

    def is_ready(self, node: Node) -> bool:
        """Whether a node of the pool is ready and has reported all its chips."""
        return node.ready and node.allocatable_chips >= _chips_of_node(self.pool)

    @cached_property
    def in_catalogue(self) -> bool:
        """Whether the catalogue has the machine type; after a restart, types of the cluster may not be read yet."""
        return tpu.machine_type(self.pool.machine_type) is not None

    @property
    def undecided(self) -> bool:
        """Whether the pool may wrongly look idle: its workload is not watched, or its machine type is unknown."""
        return self.unwatched or not self.in_catalogue

    @cached_property
    def machine(self) -> tuple[str, int]:
        """Accelerator and chips of each host, as the nodes report them if the catalogue lacks the machine type."""
        accelerator, chips = tpu.machine_of(self.pool.machine_type)
        if not self.in_catalogue:
            labels = (node.labels.get(constants.TPU_ACCELERATOR, "") for node in self.nodes)
            accelerator = max(labels, default="") or accelerator
            chips = max((node.allocatable_chips for node in self.nodes), default=0) or chips
        return accelerator, chips

    @cached_property
    def labels_of_nodes(self) -> dict[str, Mapping[str, str]]:
        """Labels of the pool's nodes by name of the node."""
        return {node.name: node.labels for node in self.nodes}

    @cached_property
    def missing(self) -> int:
        """Number of hosts without a node."""
        return max(0, self.pool.hosts - len(self.nodes))

    @cached_property
    def assigned_to(self) -> tuple[str, str] | None:
        """Namespace and mark in the labels of most assigned nodes, or of a pool without nodes; None if not assigned.

        A recreated node has the labels of the pool, not of the slice, until the provisioner labels the node.
        """
        created, *marks = (
            (labels.get(constants.SLICE_NAMESPACE, ""), labels.get(constants.SLICE, ""))
            for labels in (self.pool.labels, *(node.labels for node in self.nodes))
        )
        counts = Counter(mark for mark in marks or (created,) if mark[1] not in ("", constants.SLICE_FREE))
        return max(counts, key=lambda mark: (counts[mark], mark != created, mark), default=None)

    @property
    def free(self) -> bool:
        """Whether all nodes have the label of a free pool; True without nodes."""
        return all(node.labels.get(constants.SLICE) == constants.SLICE_FREE for node in self.nodes)

    @cached_property
    def maintenance(self) -> Node | None:
        """Node whose maintenance begins first; None if no maintenance is announced."""
        doomed = [node for node in self.nodes if node.maintenance_at is not None]
        return min(doomed, key=lambda node: (node.maintenance_at, node.name), default=None)

    @property
    def ready(self) -> bool:
        """Whether all nodes of the pool exist and are ready with their chips."""
        return 0 < self.pool.hosts <= self.ready_nodes

    @property
    def usable(self) -> bool:
        """Whether the pool is up or being created, and neither being deleted, broken, nor in an ended reservation."""
        return not (self.leaving or self.broken or self.ended) and self.pool.status in _USABLE

    @property
    def going(self) -> bool:
        """Whether the pool is being deleted."""
        return self.leaving or self.pool.status is PoolStatus.STOPPING

    @property
    def lendable(self) -> bool:
        """Whether slices may take the pool although it was created for another slice."""
        if self.pool.status is PoolStatus.RUNNING_WITH_ERROR and not self.ready:
            # GKE may still repair the nodes, but other slices need not wait for that.
            return False
        doomed = self.maintenance is not None or self.ends_soon
        return not doomed and (self.ready_nodes > 0 or self.unready_seconds <= _PATIENCE_SECONDS)

    @property
    def broken(self) -> bool:
        """Whether the pool has failed. No further slice counts on a broken pool."""
        # GKE also reports RUNNING_WITH_ERROR during repairs, so the status means failure only after a postponed delete.
        half_deleted = self.half_deleted and self.pool.status is PoolStatus.RUNNING_WITH_ERROR and not self.ready
        return self.pool.status is PoolStatus.ERROR or half_deleted or self.lost

    def is_coming(self, now: datetime, stalled_since: datetime, partial_hold: timedelta) -> bool:
        """Whether the pool may soon have more ready nodes: it is being created, new, or waits for flex-start capacity.

        `stalled_since` is the time since which no further slice of its workload or gang has become ready.
        """
        if self.pool.status is PoolStatus.PROVISIONING:
            # The slice may try one choice of capacity after the other without end, so the wait is limited.
            return now - stalled_since < SLOWEST
        if self.late_since is not None:
            return now - self.late_since < partial_hold
        young = all(now - node.created_at < _BOOT for node in self.nodes)
        return self.unready_since is not None and now - self.unready_since < _BOOT and young

    @property
    def chips(self) -> int:
        """Number of chips of the whole pool."""
        return self.pool.hosts * self.machine[1]

    @property
    def attempt(self) -> int:
        """Number of the attempt in the labels of the pool; 0 without a number."""
        text = self.pool.labels.get(constants.POOL_ATTEMPT, "")
        return int(text) if text.isascii() and text.isdigit() else 0


def find_pools(
    snapshot: Snapshot,
    memory: Memory,
    settings: Settings,
    rules: PoolRules,
    now: datetime,
    last_pools: Mapping[PoolName, OwnedPool] = MappingProxyType({}),
) -> dict[PoolName, OwnedPool]:
    """Return `Round.owned`; entries of `last_pools` are reused if they have not changed."""
    nodes_of: dict[PoolName, list[Node]] = defaultdict(list)
    for node in snapshot.nodes:
        nodes_of[node.pool_name].append(node)
    listed = {pool.name: pool for pool in snapshot.pools}
    owned = {}
    unlisted = (expected_pool(call.request) for name, call in memory.creates.items() if name not in listed)
    for pool in (*listed.values(), *unlisted):
        entry = memory.pool(pool.name)
        delete = entry.delete
        here = tuple(nodes_of.get(pool.name, ()))
        before = last_pools.get(pool.name)
        if (
            before is not None
            and delete is None
            and not (before.leaving or before.half_deleted)
            # An `OwnedPool` is not reused if one of its fields depends on the current time.
            and before.unready_since is None
            and before.late_since is None
            and before.passing == _passing(pool, entry, now, listed=before.listed, leaving=False)
            and pool.ends_at is None
            and (before.pool, before.nodes, before.listed) == (pool, here, pool.name in listed)
            and before.rules is rules
            and before.unwatched is _is_unwatched(before.ownership, snapshot, settings)
        ):
            owned[pool.name] = before
            continue
        ownership = read_ownership(pool.labels)
        if ownership is None:
            continue
        chips = _chips_of_node(pool)
        ready_nodes = sum(node.ready and node.allocatable_chips >= chips for node in here)
        unready_since = late_since = None
        if pool.status in _UP and pool.capacity is CapacityKind.FLEX_START and not (here or pool.made):
            late_since = min(now, entry.late_since or now)
        elif pool.status in _UP and ready_nodes < max(1, pool.hosts):
            unready_since = min(now, entry.unready_since or now)
        leaving = delete is not None and delete.state in (CallState.UNDER_WAY, CallState.ACCEPTED)
        owned[pool.name] = OwnedPool(
            name=pool.name,
            pool=pool,
            rules=rules,
            ownership=ownership,
            nodes=here,
            listed=pool.name in listed,
            leaving=leaving,
            half_deleted=delete is not None and not leaving,
            ready_nodes=ready_nodes,
            unready_since=unready_since,
            unready_seconds=(now - unready_since).total_seconds() if unready_since is not None else 0.0,
            late_since=late_since,
            passing=_passing(pool, entry, now, listed=pool.name in listed, leaving=leaving),
            lost=entry.given_up and unready_since is not None,
            ends_soon=pool.ends_at is not None and pool.ends_at - now <= LAST_OF_RESERVATION,
            ended=pool.ends_at is not None and pool.ends_at <= now,
            unwatched=_is_unwatched(ownership, snapshot, settings),
        )
    return owned


def _passing(
    pool: NodePool, entry: PoolMemory, now: datetime, *, listed: bool, leaving: bool
) -> tuple[PoolStatus, datetime] | None:
    """Return `OwnedPool.passing`. An open create counts as PROVISIONING, and an open delete as STOPPING."""
    status = PoolStatus.STOPPING if leaving else pool.status if listed else PoolStatus.PROVISIONING
    if status not in MAX_DURATIONS:
        return None
    before, since = entry.passing or (status, now)
    return status, min(now, since) if before is status else now


def _chips_of_node(pool: NodePool) -> int:
    return max(1, tpu.machine_of(pool.machine_type)[1])


def _is_unwatched(ownership: Ownership, snapshot: Snapshot, settings: Settings) -> bool:
    workload = ownership.workload
    elsewhere = bool(settings.namespaces) and workload.namespace not in settings.namespaces
    # While served Jobs are unknown, their pods have no workload of kind POD (`with_owners`): their pools may look idle.
    owner_kind = owner_of_name(workload.kind, workload.name)[0] if settings.serve_jobs else ""
    return elsewhere or not snapshot.unknown_kinds.isdisjoint((workload.kind, owner_kind))


def _users_by_labels(owned: Iterable[OwnedPool], workloads: Workloads) -> dict[PoolName, SliceId]:
    """Return the slices that node labels name, by pool: after a restart, the `last_user` if the hints name none.

    Suspended workloads are left out: a recreated workload would keep pools of its predecessor without a time limit.
    """
    # For these kinds, the value of a mark is a letter, a hyphen and the key of the group.
    kinds = {"j": WorkloadKind.JOBSET, "l": WorkloadKind.LEADER_WORKER_SET}
    pools = ((pool.name, pool.assigned_to) for pool in owned)
    marks = ((name, *mark) for name, mark in pools if mark is not None and mark[1][:1] in kinds)
    keys = {name: (kinds[mark[:1]], namespace, GroupKey(mark[2:])) for name, namespace, mark in marks}
    slices = slices_by_key(
        (workload for workload in workloads.by_uid.values() if not workload.suspended), keys.values()
    )
    return {name: slices[key] for name, key in keys.items() if key in slices}


def by_owner(slices: Mapping[SliceId, Slice], owned: Iterable[OwnedPool]) -> dict[SliceId, list[OwnedPool]]:
    """Return the pools that were created for each slice, found by the UID in their labels or by the group's name."""
    by_job = {(*slice_.workload.full_name, slice_.group_name): slice_.id for slice_ in slices.values()}
    pools_of: dict[SliceId, list[OwnedPool]] = defaultdict(list)
    for pool in owned:
        workload, uid, key, group_name = pool.ownership
        owner = SliceId(uid, key) if uid else by_job.get((*workload, group_name))
        if owner is not None:
            pools_of[owner].append(pool)
    return pools_of


def slices_named_by_pools(owned: Iterable[OwnedPool], workloads: Workloads, memory: Memory) -> dict[SliceId, str]:
    """Return slices that pools or the memory refer to, each with its group's name, which is empty if unknown."""
    refused = (backoff.slice_id for backoff in memory.backoffs.values() if backoff.slice_id is not None)
    tried = (slice_id for slice_id, entry in memory.slices.items() if entry.attempt)
    users = (entry.last_user for entry in memory.pools.values() if entry.last_user is not None)
    names = dict.fromkeys((*tried, *users, *refused), "")
    for pool in owned:
        workload, uid, key, group_name = pool.ownership
        if uid:
            names[SliceId(uid, key)] = group_name
        elif uid_now := workloads.uid_of_name.get(workload):
            names[SliceId(uid_now, group_key(workload.namespace, group_name))] = group_name
    return names


def _offer(node: Node, expected: NodeView) -> NodeView:
    view = view_of_node(node)
    passing = (*constants.NODE_CONDITION_TAINT_PREFIXES, *constants.HELD_KEYS)
    taints = tuple(taint for taint in view.taints if not taint.key.startswith(passing))
    if not node.ready or node.allocatable_chips < expected.chips:
        return replace(expected, labels=view.labels, taints=taints, name=node.name, predicted=False)
    return replace(view, taints=taints)
