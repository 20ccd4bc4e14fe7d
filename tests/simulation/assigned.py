"""Checks placement by the policy: the pods of a group are on one pool, and no other pod is on that pool.

Placement is checked when a pod is bound, and when a process creates a pool or changes the labels of a node. A wrong
binding is excused:

- if one of the pods was created before the policy was installed;
- before, or at most `EDITED_SECONDS` after, a user edits labels of the pool;
- shortly after GKE recreates the node, which has the labels from the pool's creation until a process labels it;
- if the pool is being deleted;
- if a process changed a label at about the same time, when its caches may not show the pod or the node yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from provisioner.model.capacity import Node, PoolName
from rehearsal.simulators.gke.records import Pool, PoolStatus
from tests.simulation.admission import FREE, MARKS, is_assigned, is_shared, mark_of
from tests.simulation.objects import JobSetRun, PodRun, WorkloadRun
from tests.simulation.pools import are_ours, fits_shape, is_ours, namespace_of

if TYPE_CHECKING:
    from tests.simulation.checks import Checker
    from tests.simulation.process import Process
    from tests.simulation.run import Simulation

PLACED = "14 with the policy the pods of a group are on one pool, and no other pods are there"
KEPT = "15 no pool is taken from a slice whose pods are on it, or that restarts"
LABELS = "16 labels of nodes name the slice whose pool it is"
CORDONS = "17 no node is cordoned except before the deletion of its pool"
#: Seconds for which wrong bindings to a pool are excused after a user edited labels of the pool.
EDITED_SECONDS = 300.0
#: Seconds after the last change of a slice for which its last pool must be kept for its restart.
_RESTART_SECONDS = 300.0

#: Key that is equal for all pods of a group: the mark, the exclusive key, or (without a workload) the pod itself.
_Group = object


class Assigned:
    """Checks the placement of pods in one run."""

    def __init__(self, simulation: Simulation, checker: Checker) -> None:
        self._simulation, self._stage = simulation, simulation.stage
        self._cluster, self._checker = simulation.cluster, checker
        #: Time of the last edit of labels by a user, by pool.
        self._edited_at: dict[str, float] = {}
        #: Time at which a pod that the policy has not reviewed was last bound to each pool; no label keeps it off.
        self._taken_at: dict[str, float] = {}
        #: Time of the last change of labels by a process, by node.
        self._labelled_at: dict[str, float] = {}

    def edited(self, pool: str) -> None:
        self._edited_at[pool] = self._stage.agenda.now

    def bound(self, pod: PodRun) -> None:
        """Check that a pod which was just bound is on the pool of its group, and that no other group is on the pool."""
        now = self._stage.agenda.now
        if not pod.reviewed:
            if not pod.is_guest:
                self._taken_at[pod.pool] = now
            return
        for other in self._cluster.pods:
            # A pod whose node has been removed uses no chips, although its object still exists.
            if other is pod or not other.reviewed or not other.blocks(now) or other.node not in self._cluster.nodes:
                continue
            if _group(other) == _group(pod):
                alone = not is_shared(mark_of(pod.selector))
                stays = alone and other.workload is pod.workload and other.deadline is None
                if stays and _is_marked(pod) and other.pool != pod.pool and not self._is_excused(pod, other):
                    text = f"pod {pod.name} is bound on {pod.pool}, and {other.name} of its slice is on {other.pool}"
                    self._stage.violate(PLACED, text)
                continue
            marked = other.pool == pod.pool and (_is_marked(pod) or _is_marked(other))
            if marked and not self._is_excused(pod, other) and not self._crossed(pod, other):
                text = f"pod {pod.name} is bound on {pod.pool}, where {other.name} of another slice is"
                self._stage.violate(PLACED, text)
        pool = self._simulation.cloud.pools.get(pod.pool)
        if pool is None:
            return
        for workload in self._cluster.workloads.values():
            if isinstance(workload, JobSetRun) and workload is not pod.workload and workload.alive:
                for job in self._restarting(workload, pool):
                    pods = [member for (owner, _), member in workload.pods.items() if owner == job]
                    if pods and all(member.waiting_since is not None and _is_marked(member) for member in pods):
                        text = f"pod {pod.name} takes {pool.name} from {workload.group_name(job)}, which restarts"
                        self._stage.violate(KEPT, text)

    def before_labels(self, process: Process, node: Node, labels: Mapping[str, str | None]) -> None:
        now, pool = self._stage.agenda.now, self._simulation.cloud.pools.get(node.pool_name)
        before = mark_of(node.labels)
        after = mark_of({key: value for key, value in {**node.labels, **labels}.items() if value is not None})
        process.note("labels %s of %s: %s/%s", node.name, node.pool_name, after[1] or "-", after[0] or "-")
        if labels.keys() != {*MARKS} or not are_ours(node.labels) or bool(after[0]) is not bool(after[1]):
            self._stage.violate(LABELS, f"{process.name} sets {dict(labels)} on {node.name} of {node.pool_name}")
        if before == after or pool is None or pool.status is PoolStatus.STOPPING:
            return
        for pod in self._cluster.pods_on_pool(node.pool_name):
            # If GKE recreates a node soon, its pods survive; they hold no pool until the node is back.
            seen_since = max(pod.bound_at, self._cluster.recreated_at.get(pod.node, pod.bound_at))
            known = now - seen_since > self._checker.stale_seconds()
            if not (known and _is_marked(pod) and pod.blocks(now + process.clock_ahead_seconds)):
                continue
            own = mark_of(pod.selector)
            # A shared pool may be labelled free although pods are on it: the next pod may use another pool.
            lost = own == before and (is_assigned(after) or not is_shared(own))
            if lost or (own != after and is_assigned(after) and not self._was_edited(pod)):
                text = f"{process.name} labels {node.name} of {node.pool_name} with {after}, and {pod.name} is there"
                self._stage.violate(KEPT, text)
        # The pool of a restarting slice may be labelled free: it is assigned again when the slice has a pod.
        takes = is_assigned(before) and after[0] != FREE
        if takes and all(pod.is_guest for pod in self._cluster.pods_on_pool(pool.name)):
            for workload in self._simulation.admission.granted.get(before, {}):
                for job in self._restarting(workload, pool) if workload.alive else ():
                    if before[0].endswith(workload.slice_id(job).group_key):
                        text = f"{process.name} labels {node.name} of {pool.name} with {after}, and {before} restarts"
                        self._stage.violate(KEPT, text)
        if is_assigned(after):
            self._judge_assignment(process, pool, after)
            if not any(pod.blocks(now) for pod in self._cluster.pods_on_pool(pool.name)):
                self._checker.line.given(process, pool, after)
        self._labelled_at[node.name] = now

    def created(self, process: Process, pool: Pool) -> None:
        labels = pool.body["config"]["labels"]
        mark = mark_of(labels)
        if bool(mark[0]) is not bool(mark[1]) or (is_assigned(mark) and mark[1] != namespace_of(labels)):
            self._stage.violate(LABELS, f"{process.name} creates {pool.name} with {mark}")
        if is_assigned(mark):
            self._judge_assignment(process, pool, mark)

    def _is_excused(self, *pods: PodRun) -> bool:
        return any(self._was_edited(pod) or self._was_recreated(pod) or self._is_going(pod.pool) for pod in pods)

    def _was_edited(self, pod: PodRun) -> bool:
        edited_at = self._edited_at.get(pod.pool, float("-inf"))
        return pod.bound_at - EDITED_SECONDS < edited_at

    def _was_recreated(self, pod: PodRun) -> bool:
        recreated_at = self._cluster.recreated_at.get(pod.node, float("-inf"))
        return pod.bound_at - recreated_at < self._checker.stale_seconds()

    def _is_going(self, name: str) -> bool:
        pool = self._simulation.cloud.pools.get(name)
        return pool is None or pool.status is PoolStatus.STOPPING

    def _crossed(self, pod: PodRun, other: PodRun) -> bool:
        """Whether a process labelled the node of a pod when its caches may have lacked one of the two bindings."""
        seconds = self._checker.stale_seconds()
        changed = (self._labelled_at.get(placed.node, float("-inf")) for placed in (pod, other))
        return any(at - seconds < other.bound_at and pod.bound_at - at < seconds for at in changed)

    def _judge_assignment(self, process: Process, pool: Pool, mark: tuple[str, str]) -> None:
        """Check that a pool fits the slice to which it is assigned, and that the slice has no other pool."""
        asked = self._simulation.admission.granted.get(mark, {})
        plan = pool.plan
        shapes = [shape for workload in asked for shape in workload.shapes]
        # A pod without a workload may select the mark of a group in its own namespace.
        shapes += self._simulation.admission.granted_alone[mark]
        kinds = {(shape.accelerator, shape.topology) for shape in shapes}
        if (plan.machine.accelerator, plan.topology) not in kinds:
            self._stage.violate(LABELS, f"{process.name} gives {pool.name} to {mark}, and no such slice asks for it")
        now, seconds = self._stage.agenda.now, self._checker.stale_seconds()
        if is_shared(mark):
            return
        going = process.loop.memory.deletes
        for node in self._cluster.nodes.values():
            other = self._simulation.cloud.pools.get(node.pool_name)
            if other is None or other is pool or mark_of(node.labels) != mark or PoolName(other.name) in going:
                continue
            since = max(self._labelled_at.get(node.name, 0.0), self._cluster.registered_at.get(node.name, 0.0))
            # A slice may leave a pool if its LeaderWorkerSet got another shape, or if its pods are not bindable.
            fits_still = any(workload.bindable and fits_shape(workload, workload.shape, other) for workload in asked)
            settled_at = max(since, self._edited_at.get(other.name, 0.0), self._simulation.disturbed_at)
            # A pod from before the policy may use the other pool, whose labels are then kept.
            taken = any(not (pod.reviewed or pod.is_guest) for pod in self._cluster.pods_on_pool(other.name))
            known = fits_still and not taken and now - settled_at > seconds
            if known and self._checker.healthy(other) and other.status is PoolStatus.RUNNING:
                text = f"{process.name} gives {pool.name} to {mark}, which has {other.name} for {now - since:.0f} s"
                self._stage.violate(LABELS, text)

    def _restarting(self, workload: WorkloadRun, pool: Pool) -> Iterator[int]:
        """Yield the restarting slices whose last pool was `pool`, if nothing else disturbed the slice or the pool."""
        now, disturbed_at = self._stage.agenda.now, (self._edited_at, self._taken_at, self._cluster.pool_broke_at)
        for job in workload.slots():
            bound_at = workload.last_bound_at.get(job, 0.0)
            if workload.last_pool.get(job) != pool.name or job in workload.ended_jobs:
                continue
            undisturbed = (
                workload.last_reviewed[job]
                and workload.released_at.get(job, -1.0) < bound_at
                and now - workload.changed.get(job, 0.0) < _RESTART_SECONDS
                and all(at.get(pool.name, 0.0) < bound_at for at in disturbed_at)
                and (not workload.gang or self._checker.complete(workload))
            )
            if undisturbed and self._checker.healthy(pool) and fits_shape(workload, workload.shape_of(job), pool):
                yield job

    def unsettled(self) -> Iterator[tuple[str, str]]:
        """Yield reports on pools whose labels do not name the slice of their pods, or name a slice that has ended."""
        if not self._simulation.admission.present:
            return
        now = self._stage.agenda.now
        living = {
            mark_of(pod.selector) for pod in self._cluster.pods if pod.workload is not None and pod.workload.alive
        }
        if self._simulation.keeps_suspended:
            granted = self._simulation.admission.granted.items()
            living |= {
                mark for mark, many in granted if any(workload.suspended and not workload.gone for workload in many)
            }
        for pool in self._simulation.cloud.pools.values():
            if not is_ours(pool) or pool.status is not PoolStatus.RUNNING:
                continue
            pods = [pod for pod in self._cluster.pods_on_pool(pool.name) if pod.blocks(now)]
            marks = {mark_of(node.labels) for node in self._cluster.nodes.values() if node.pool_name == pool.name}
            groups = {mark_of(pod.selector) for pod in pods}
            # Pods of a Job that was deleted without them have no slice, so their pool keeps its labels.
            living_pods = any(pod.workload is None or not pod.workload.gone for pod in pods)
            if living_pods and len(groups) == 1 and all(map(_is_marked, pods)) and marks != groups:
                yield LABELS, f"{pool.name} has labels {sorted(marks)}, and pods of {groups} are on it"
            dead = {mark for mark in marks if is_assigned(mark)} - living
            if not pods and dead:
                yield LABELS, f"{pool.name} has labels of {sorted(dead)}, which do not exist any more"


def _is_marked(pod: PodRun) -> bool:
    return is_assigned(mark_of(pod.selector)) and not pod.kept_off


def _group(pod: PodRun) -> _Group:
    if _is_marked(pod):
        return mark_of(pod.selector)
    return pod.workload.exclusive_key(pod) if pod.workload is not None else pod
