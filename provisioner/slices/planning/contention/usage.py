"""Determines the namespaces and the workload that each pool counts for: by its pods, otherwise by its labels. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from provisioner.model.capacity import PoolName
from provisioner.model.placement import MARKS, labels_of, mark_of
from provisioner.model.workloads import Pod, WorkloadName, WorkloadUid
from provisioner.slices.planning.round import OwnedPool, Round


class ScopeKind(StrEnum):
    """Kind of the set that a limit counts: recent creates, all pools, or pools of one object such as a namespace."""

    ALL = "all node pools"
    CREATES = "creates"
    NAMESPACE = "namespace"
    REQUESTS = "requests and buffers of namespace"
    ACCELERATOR = "accelerator"
    WORKLOAD = "workload"


class LimitScope(NamedTuple):
    """Set of pools, or of creates, that one limit counts."""

    kind: ScopeKind
    #: Namespace, accelerator or workload; empty for ALL and CREATES.
    name: str | WorkloadName = ""

    def __str__(self) -> str:
        name = self.name.text if isinstance(self.name, WorkloadName) else self.name
        return f"{self.kind} {name}".rstrip()

    @property
    def counted(self) -> str:
        """Name of the counted objects in messages, such as "namespace ml"."""
        if self.kind is ScopeKind.CREATES:
            return "new node pools within an hour"
        return f"node pools of each {self.name.kind.value}" if isinstance(self.name, WorkloadName) else str(self)

    @property
    def unit(self) -> str:
        """Unit of the limit's amounts in messages."""
        return "node pools" if self.kind in (ScopeKind.CREATES, ScopeKind.WORKLOAD) else "chips"


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit of the settings, and the amount that is used within it."""

    #: The setting, such as MAX_CHIPS.
    name: str
    #: "all", or a key of the setting: a namespace or an accelerator. "*" is the most used object without its own key.
    scope: str
    used: int
    most: int


ALL = LimitScope(ScopeKind.ALL)
CREATES_PER_HOUR = LimitScope(ScopeKind.CREATES)


class Charge(NamedTuple):
    """Namespaces, accelerator and workload that one pool counts for."""

    chips: Mapping[str, int]
    accelerator: str
    workload: WorkloadName
    uid: WorkloadUid

    def amounts(self) -> Iterator[tuple[LimitScope, int]]:
        """Yield each scope that counts the pool, with a number of chips, or with 1 if the scope counts pools."""
        total = 0
        for namespace, chips in self.chips.items():
            yield LimitScope(ScopeKind.NAMESPACE, namespace), chips
            total += chips
        yield ALL, total
        yield LimitScope(ScopeKind.ACCELERATOR, self.accelerator), total
        yield LimitScope(ScopeKind.WORKLOAD, self.workload), 1
        if not self.workload.kind.has_pods:
            yield LimitScope(ScopeKind.REQUESTS, self.workload.namespace), total


def users_of(ctx: Round) -> dict[PoolName, Counter[tuple[str, WorkloadName, WorkloadUid]]]:
    """Return the number of nodes that each workload uses on each pool.

    A node counts for the workload of its oldest unfinished pod that is no guest; an unknown workload has an empty UID.
    """
    pool_of_node = ctx.memory.membership.seen
    first: dict[str, Pod] = {}
    for pod in ctx.snapshot.pods:
        if (name := pool_of_node.get(pod.node_name)) is None or pod.finished:
            continue
        if not is_guest(pod, ctx.owned.get(name)):
            before = first.setdefault(pod.node_name, pod)
            if (pod.created_at, pod.uid) < (before.created_at, before.uid):
                first[pod.node_name] = pod
    users: dict[PoolName, Counter[tuple[str, WorkloadName, WorkloadUid]]] = {}
    for node, pod in first.items():
        uid = ctx.workloads.uid_of(pod) or WorkloadUid("")
        user = (pod.namespace, WorkloadName(pod.kind, pod.namespace, pod.workload_name), uid)
        users.setdefault(pool_of_node[node], Counter())[user] += 1
    return users


def charge_of(pool: OwnedPool, users: Mapping[tuple[str, WorkloadName, WorkloadUid], int]) -> Charge:
    """Return the charge of a pool. Without users, the charge is for the workload that the pool was created for.

    Nodes without a user count for the namespace of the workload that uses the largest number of the pool's nodes.
    """
    accelerator, total = pool.machine[0], pool.chips
    if not users:
        creator, creator_uid, *_ = pool.ownership
        return Charge({creator.namespace: total}, accelerator, creator, creator_uid)
    (_, workload, uid), _ = max(users.items(), key=lambda item: (item[1], item[0][0], item[0][1].name))
    per_node = total // max(1, pool.pool.hosts)
    chips: Counter[str] = Counter()
    for (namespace, _, _), nodes in users.items():
        chips[namespace] += per_node * nodes
    chips[workload.namespace] += total - chips.total()
    return Charge(chips, accelerator, workload, uid)


def is_guest(pod: Pod, pool: OwnedPool | None) -> bool:
    """Whether a pod has no chips, and neither holds the pool of its node nor counts as a user of the pool.

    A pod without chips holds the pool if its marks are the labels of the node or, for a node without labels in `MARKS`,
    if the pool was created for the pod's workload.
    """
    if pod.requirements.has_chips:
        return False
    if pool is None:
        return True
    labels = pool.labels_of_nodes.get(pod.node_name, {})
    if not labels.keys().isdisjoint(MARKS):
        mark = labels_of(mark_of(pod.requirements, pod.namespace), pod.namespace)
        return mark != {key: labels.get(key) for key in MARKS}
    return pool.ownership.workload != (pod.kind, pod.namespace, pod.workload_name)
