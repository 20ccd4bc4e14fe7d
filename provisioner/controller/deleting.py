"""The way to a delete: the reason proven live, the nodes cordoned, the pods on them listed live.

What was decided on caches is not enough to end a pool: every delete reads the API server itself. Between the last look
and the delete no pod can be bound, because the nodes are cordoned; a node that registers after that look takes no pod
before the delete has reached GKE, because it reports its chips only several seconds later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from provisioner import cluster
from provisioner.model.capacity import Node
from provisioner.model.workloads import JobSet, Pod
from provisioner.planning.plan import Delete, DeleteReason
from provisioner.settings import Settings

_log = structlog.get_logger(__name__)

#: How many pods a message names.
_NAMED_PODS = 3


#: The last look at the nodes is worth this long: a process that was frozen since looks again.
_LAST_LOOK_SECONDS = 2.0


class KeptError(Exception):
    """The pool must not be deleted now; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Lets a delete through, or raises KeptError. Raises ClusterError where Kubernetes does not answer."""

    api: cluster.Api
    settings: Settings
    clock: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic

    def pass_through(self, delete: Delete) -> None:
        """Prove the reason, close the pool for new pods, and make sure that none is on it."""
        self._prove(delete)
        nodes = cluster.list_nodes_of_pool(self.api, delete.name, chip_resource=self.settings.chip_resource)
        # Cordons that an earlier try left behind are ours too.
        closed = [node for node in nodes if node.cordoned and node.cordoned_by_us]
        try:
            for node in nodes:
                if not node.cordoned:
                    # Noted before the call: a cordon whose answer is lost has to be undone as well.
                    closed.append(node)
                    cluster.cordon(self.api, node.name)
            self._refuse_if_used(delete, nodes)
            self._refuse_if_growing(delete)
        except (cluster.ClusterError, KeptError):
            self._uncordon(closed)
            raise

    def _refuse_if_used(self, delete: Delete, nodes: list[Node]) -> None:
        blocking = [pod for node in nodes for pod in self._blocking_pods(delete, node)]
        if blocking:
            names = ", ".join(blocking[:_NAMED_PODS])
            more = f" and {len(blocking) - _NAMED_PODS} more" if len(blocking) > _NAMED_PODS else ""
            raise KeptError(f"unfinished pods that ask for chips are on it: {names}{more}")

    def _refuse_if_growing(self, delete: Delete) -> None:
        # All that went before may have taken long: a node may have come, or come again under its old name.
        began = self.monotonic()
        for node in cluster.list_nodes_of_pool(self.api, delete.name, chip_resource=self.settings.chip_resource):
            if not node.cordoned:
                raise KeptError(f"node {node.name} has registered or been opened meanwhile")
        if self.monotonic() - began > _LAST_LOOK_SECONDS:
            raise KeptError("the last look at its nodes took too long to be relied on")

    def _prove(self, delete: Delete) -> None:
        if delete.reason is DeleteReason.POOL_FAILED:
            # GKE's own list of this very round says so; the pods on it count all the same.
            return
        jobset = cluster.get_jobset(
            self.api, delete.namespace, delete.jobset_name, chip_resource=self.settings.chip_resource
        )
        same = jobset is not None and delete.jobset_uid in ("", jobset.uid)
        holds = _still_holds(delete.reason, jobset if same else None)
        if delete.reason is DeleteReason.SLICE_STUCK:
            holds = self._still_stuck(delete)
        if holds:
            return
        raise KeptError(
            f"the reason ({delete.reason.value.replace('_', ' ')}) is not confirmed: JobSet {delete.namespace}/"
            f"{delete.jobset_name} {_describe(jobset, same=same)}"
        )

    def _blocking_pods(self, delete: Delete, node: Node) -> list[str]:
        now = self.clock()
        pods = cluster.list_pods_on_node(self.api, node.name, chip_resource=self.settings.chip_resource)
        return [
            f"{pod.namespace}/{pod.name} on {node.name}"
            for pod in pods
            if pod.chips > 0
            and not pod.finished
            and (pod.deletion_deadline is None or pod.deletion_deadline > now)
            and not _spared(delete, pod)
        ]

    def _still_stuck(self, delete: Delete) -> bool:
        pods = cluster.list_pods_of_jobset(
            self.api, delete.namespace, delete.jobset_name, chip_resource=self.settings.chip_resource
        )
        return any(
            pod.unschedulable_since is not None and pod.deletion_deadline is None
            for pod in pods
            if _spared(delete, pod)
        )

    def _uncordon(self, nodes: list[Node]) -> None:
        for node in nodes:
            try:
                cluster.uncordon(self.api, node.name)
            except cluster.ClusterError as error:
                # The next round sees a pool that is kept with a cordon of ours, and tries again.
                _log.warning("node.uncordon_failed", node=node.name, error=str(error))


def _spared(delete: Delete, pod: cluster.BoundPod | Pod) -> bool:
    """Whether the pod is of the stuck job that the pool is replaced for; only an explicit setting leads here."""
    of_the_job = bool(delete.spared_job) and (pod.namespace, pod.job_key) == (delete.namespace, delete.spared_job)
    return of_the_job and pod.jobset_uid in ("", delete.jobset_uid)


def _still_holds(reason: DeleteReason, jobset: JobSet | None) -> bool:
    match reason:
        case DeleteReason.JOBSET_GONE:
            return jobset is None or jobset.deleting
        case DeleteReason.JOBSET_FINISHED:
            return jobset is None or jobset.finished
        case DeleteReason.JOBSET_SUSPENDED:
            return jobset is None or jobset.suspended or jobset.finished
        case _:
            # The JobSet may well live: the slice does not count on this pool, and the pods on it are looked at next.
            return True


def _describe(jobset: JobSet | None, *, same: bool) -> str:
    if jobset is None:
        return "does not exist"
    if not same:
        return f"exists with another UID, {jobset.uid}"
    if jobset.finished:
        return f"has ended ({jobset.terminal_state})"
    return "is suspended" if jobset.suspended else "lives"
