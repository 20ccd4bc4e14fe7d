"""Checks a pool before its delete: reads its workload, cordons its nodes, and lists the pods on them.

Decisions are based on caches, which may be out of date, so these checks read the API server. A pool in use is not
cordoned. A cordon does not stop a pod for which the scheduler has already chosen a node, and the API does not show that
choice: if there may be such pods, the pool is usually kept cordoned for a minute before its delete. Between the last
check and the delete, usually only pods that tolerate the cordon can be bound. A node that registers after the last
check gets no pod with chips before the delete is sent, because it reports its chips only after several seconds.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import structlog

from provisioner import constants
from provisioner.kube import live
from provisioner.kube.errors import ClusterError, NotFound
from provisioner.kube.live import (
    DeletionBlockedError,
    PoolNode,
    SharedLists,
    find_nodes_of_pool,
    list_nodes_of_pool,
    look_last,
)
from provisioner.kube.protocol import Api
from provisioner.model.capacity import PoolName
from provisioner.model.wording import first_of
from provisioner.model.workloads import Pod, Workload, WorkloadKind
from provisioner.runtime.parallel import ForEach, one_by_one
from provisioner.settings import Settings
from provisioner.slices.demand.capacity_requests import booked_until
from provisioner.slices.planning.plan import Delete, DeleteReason
from provisioner.workloads.pods import BoundPod, get_workload, list_pods_of_workload, list_pods_on_node

_log = structlog.get_logger(__name__)

#: Wait in seconds between cordon and delete if `Delete.settle` is set; longer than the scheduler takes to bind a pod.
BINDING_SECONDS = 60.0
#: Reasons of deletes that are false if the workload still needs pools.
_ENDED = frozenset({DeleteReason.WORKLOAD_GONE, DeleteReason.WORKLOAD_FINISHED, DeleteReason.WORKLOAD_SUSPENDED})


class WorkloadNeedsPoolError(DeletionBlockedError):
    """The workload of the pool still needs pools, although the caches do not show that."""


class SettlingError(DeletionBlockedError):
    """The pool is cordoned, but pods for which the scheduler chose a node before the cordon may still be bound."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(
            f"its nodes are cordoned for {BINDING_SECONDS:.0f} s, in case the scheduler has just placed a pod on them"
        )
        self.wait_seconds = wait_seconds


class _Closed(NamedTuple):
    """Names and UIDs of a pool's nodes, and monotonic time since which all of them are known to be cordoned."""

    nodes: frozenset[tuple[str, str]]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Checks deletes. Raises DeletionBlockedError if a pool must be kept, ClusterError if Kubernetes calls fail."""

    api: Api
    settings: Settings
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    #: Calls a function for each node of a pool, in parallel if possible, because a pool may have thousands of nodes.
    for_each: ForEach = one_by_one
    #: Node with a pod that keeps the pool, by pool. No other node is checked until this node has no such pod.
    _kept_on: dict[PoolName, str] = field(default_factory=dict)
    _closed: dict[PoolName, _Closed] = field(default_factory=dict)
    #: Lists of the cluster and of whole namespaces, which are read before the cordon. All later reads are live.
    _lists: SharedLists = field(default_factory=SharedLists)

    def forget_all_but(self, planned: Collection[PoolName]) -> None:
        """Forget all pools except those in `planned`, whose delete is still planned."""
        for name in {*list(self._kept_on), *list(self._closed)}.difference(planned):
            self._kept_on.pop(name, None)
            self._closed.pop(name, None)
        self._lists.forget_expired(self.monotonic())

    def _share(self, key: str, read: Callable[[], Any]) -> Any:
        return self._lists.get(self.monotonic(), key, read)

    def verify_deletable(self, delete: Delete) -> None:
        """Read the workload, cordon the nodes, and check that no pod on them keeps the pool."""
        living = self._prove(delete)
        kept_on = self._kept_on.get(delete.name)
        if kept_on is not None:
            self._refuse_if_used(delete, [kept_on], living)
            self._kept_on.pop(delete.name, None)
        pool = delete.name, delete.hosts, delete.membership, self.settings.node_namespace
        nodes, unknown = find_nodes_of_pool(self.api, *pool, share=self._share)
        names, checked = [node.name for node in nodes], frozenset((node.name, node.uid) for node in nodes)
        opened = [node.name for node in nodes if node.open]
        # Nodes that an earlier attempt cordoned are also uncordoned if the pool is kept.
        closed = [node.name for node in nodes if not node.open and node.marked]

        def close(name: str) -> None:
            # The node is recorded before the call, because a cordon can take effect although its response is lost.
            closed.append(name)
            live.cordon(self.api, name)

        try:
            self._refuse_if_unknown(delete, unknown, living)
            if opened:
                self._refuse_if_used(delete, names, living)
            self.for_each(close, opened)
            self._let_settle(delete, checked, anew=bool(opened))
            # Pods that tolerate the cordon may have been bound since the first check.
            self._refuse_if_used(delete, names, living)
            self._refuse_if_growing(delete, nodes, checked)
        except SettlingError:
            raise
        except (ClusterError, DeletionBlockedError):
            if closed:
                # If the next attempt ended at the node in `_kept_on`, it would not repeat an uncordon that fails here.
                self._kept_on.pop(delete.name, None)
            self._closed.pop(delete.name, None)
            self.for_each(self._uncordon, closed)
            raise

    def _refuse_if_unknown(self, delete: Delete, unknown: Collection[str], living: Workload | None) -> None:
        """Raise DeletionBlockedError if an `unknown` node has an unfinished pod of `living` outside the stuck slice."""
        if living is None or not unknown:
            return
        # Nodes in `unknown` are not cordoned. A pod may be bound to them after any list, so a live list is not safer.
        for pod in list_pods_of_workload(self.api, *living.full_name, living.uid, share=self._share):
            if pod.node_name in unknown and self._runs(pod) and not _in_replaced_slice(delete, pod):
                label = constants.TRUSTED_GROUP_NAMESPACE if self.settings.node_namespace else constants.NODE_POOL
                raise DeletionBlockedError(
                    f"pod {pod.namespace}/{pod.name} runs on node {pod.node_name}, whose label {label} is missing or "
                    "wrong, so that its node pool is unknown; restore the label"
                )

    def _let_settle(self, delete: Delete, checked: frozenset[tuple[str, str]], *, anew: bool) -> None:
        """If `delete.settle` is set, raise SettlingError until all nodes have been cordoned for BINDING_SECONDS."""
        now, closed = self.monotonic(), self._closed.get(delete.name)
        if anew or closed is None or not checked <= closed.nodes:
            closed = self._closed[delete.name] = _Closed(checked, now)
        wait_seconds = closed.since + BINDING_SECONDS - now
        if delete.settle and wait_seconds > 0:
            raise SettlingError(wait_seconds)

    def _refuse_if_used(self, delete: Delete, names: list[str], living: Workload | None) -> None:
        running = self.for_each(lambda node: self._running_pods(node, living), names)
        # A slice with pods on all hosts of the pool runs, even if it has further pods, which are unschedulable.
        runs = 0 < delete.hosts <= sum(any(_holds_host(delete, pod) for pod in pods) for pods in running)
        pods_by_node = [
            [f"{pod.namespace}/{pod.name} on {node}" for pod in pods if runs or not _in_replaced_slice(delete, pod)]
            for node, pods in zip(names, running, strict=True)
        ]
        blocking = {node: pods for node, pods in zip(names, pods_by_node, strict=True) if pods}
        if blocking:
            self._kept_on[delete.name] = next(iter(blocking))
            pods = [pod for on_node in blocking.values() for pod in on_node]
            own = [pod for pod in pods if pod.startswith(f"{delete.named.namespace}/")]
            raise DeletionBlockedError(
                f"unfinished pods are on it: {first_of(pods)}",
                public=f"unfinished pods are on it: {first_of(own)}" if own else "unfinished pods of others are on it",
            )

    def _refuse_if_growing(self, delete: Delete, nodes: list[PoolNode], checked: frozenset[tuple[str, str]]) -> None:
        """Raise DeletionBlockedError if a node is not cordoned or was not checked, or if the API server is too slow."""
        unlabelled, namespace = [node.name for node in nodes if not node.labelled], self.settings.node_namespace

        def unchecked() -> list[str]:
            current = list_nodes_of_pool(self.api, delete.name, delete.membership, namespace, unlabelled)
            return [node.name for node in current if node.open or (node.name, node.uid) not in checked]

        look_last(unchecked, self.monotonic)

    def _prove(self, delete: Delete) -> Workload | None:
        """Return the workload if it needs pools, else None. Raises DeletionBlockedError if the pool must be kept."""
        if not delete.named.namespace:
            raise DeletionBlockedError("its labels do not say in which namespace its workload is; delete it by hand")
        named = (*delete.named, delete.workload_uid)
        try:
            workload = get_workload(self.api, *named, share=self._share)
        except NotFound:
            if not delete.kind_absent:
                raise
            workload = None
        living = workload
        if living is not None and (delete.workload_uid not in ("", living.uid) or not self._keeps_pools(living)):
            living = None
        if living is not None and delete.reason in _ENDED:
            raise WorkloadNeedsPoolError(
                f"{_name(delete, living)} {'lives' if living.lives else 'is suspended and keeps it'}"
            )
        if delete.reason is DeleteReason.SLICE_STUCK:
            # The list is read live, because the checks after the cordon ignore the pods of the stuck slice.
            of_slice = [pod for pod in list_pods_of_workload(self.api, *named) if _in_replaced_slice(delete, pod)]
            if not any(pod.unschedulable_since is not None and pod.deletion_deadline is None for pod in of_slice):
                raise DeletionBlockedError("no pod of the stuck slice is unschedulable any more")
        return living

    def _keeps_pools(self, workload: Workload) -> bool:
        """Whether a workload needs pools. Requests need them while booked or, without a booking, if they are served."""
        keeps = workload.keeps_pools(while_suspended=self.settings.keep_suspended)
        if workload.capacity_request is None or not keeps:
            return keeps
        now = self.clock()
        until = booked_until(workload.capacity_request, self.settings.booking_seconds, now)
        if until is None:
            # The status of an unserved request or buffer never says that the request or buffer has ended.
            return not self.settings.namespaces or workload.namespace in self.settings.namespaces
        return until > now

    def _running_pods(self, node: str, living: Workload | None) -> list[BoundPod]:
        """Return the unfinished pods on a node that request devices or belong to the workload `living`."""
        pods = list_pods_on_node(self.api, node)
        return [pod for pod in pods if (pod.has_devices or _is_of(living, pod)) and self._runs(pod)]

    def _runs(self, pod: BoundPod | Pod) -> bool:
        return not pod.finished and (pod.deletion_deadline is None or pod.deletion_deadline > self.clock())

    def _uncordon(self, node: str) -> None:
        try:
            live.uncordon(self.api, node)
        except ClusterError as error:
            # If the pool is kept, a later decision finds the provisioner's cordon, and uncordons the node.
            _log.warning("node.uncordon_failed", node=node, error=str(error))


def _in_replaced_slice(delete: Delete, pod: BoundPod | Pod) -> bool:
    """Whether a pod belongs to the stuck slice. Such pods keep the pool only if they are on all its hosts."""
    kind, namespace, _ = delete.named
    of_the_slice = pod.namespace == namespace and pod.group_key in delete.replaced_groups
    # If only the pods of a Job are served, `kind` is POD, but `BoundPod.kind` is not.
    same_kind = pod.kind == kind or (kind is WorkloadKind.POD and pod.workload_uid != "")
    return of_the_slice and same_kind and pod.workload_uid in ("", delete.workload_uid)


def _holds_host(delete: Delete, pod: BoundPod) -> bool:
    return _in_replaced_slice(delete, pod) and pod.has_devices and pod.deletion_deadline is None


def _is_of(living: Workload | None, pod: BoundPod) -> bool:
    if living is None or not pod.group_key:
        return False
    if living.kind is WorkloadKind.POD:
        return (pod.namespace, pod.workload_uid) == (living.namespace, living.uid)
    named = (pod.kind, pod.namespace, pod.workload_name) == (living.kind, living.namespace, living.name)
    return named and pod.workload_uid in ("", living.uid)


def _name(delete: Delete, workload: Workload) -> str:
    name = delete.named.text
    return name if delete.workload_uid else f"{name}, which has the name in the pool's labels and UID {workload.uid},"
