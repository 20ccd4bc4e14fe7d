"""Simulated Kubernetes: the JobSet controller, the scheduler, kubelets, and the pod garbage collector.

The other controllers are in `sets`, `jobs`, `rays` and `deployments`. Each acts a random time after a change. With
exclusive placement, slices of workloads share no node pool, and a JobSet's worker pods are created for the pool of
their bound leader pod. Other JobSets leave placement to the policy and create all pods at the same time. The scheduler
chooses a random pool that fits. In half of the runs it binds up to 3 s after its decision, even if the node has changed
in between. Preemption, success policies and gang admission are not simulated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from provisioner import constants
from provisioner.kube.protocol import object_path
from provisioner.kube.watches import parse_node
from provisioner.model.capacity import Node
from tests.simulation import scheduler
from tests.simulation.admission import Admission
from tests.simulation.deployments import Controller
from tests.simulation.jobs import JobController, JobRun
from tests.simulation.objects import OTHER_NAMESPACE, Claim, JobSetRun, PodRun, Shape, WorkloadRun, raw_pod
from tests.simulation.rays import RayController, RayRun
from tests.simulation.sets import SetController, SetRun
from tests.simulation.store import Change, Stage

_GRACES_SECONDS = (1.0, 5.0, 30.0)
#: Maximum time in seconds between the end of a grace period and the removal of a controller's pod.
LATE_SECONDS = 2.0
#: Probability that the scheduler's decision and its binding are two steps in a run.
_TWO_STEP_BINDING_CHANCE = 0.5
_DECISION_TO_BINDING_SECONDS = (0.05, 3.0)
#: Seconds after which a controller recreates a pod that the API server has rejected.
_REJECTED_AGAIN_SECONDS = 10.0


class Cluster:
    """All pods, workloads and nodes."""

    def __init__(self, stage: Stage, admission: Admission) -> None:
        self.stage = stage
        self.admission = admission
        #: Called for each pod that is bound, before any consequence of the binding.
        self.on_bound: Callable[[PodRun], None] = lambda _pod: None
        #: Called for each pod without a workload that was created, deleted or removed, or has ended.
        self.on_plain: Callable[[PodRun], None] = lambda _pod: None
        self.workloads: dict[str, WorkloadRun] = {}
        self.every_workload: list[WorkloadRun] = []
        self.sets = SetController(self)
        self.jobs = JobController(self)
        self.rays = RayController(self)
        self.pods: dict[PodRun, None] = {}
        self.nodes: dict[str, Node] = {}
        #: UID of the workload whose pod was last bound to each pool or left it, and the time.
        self.left_by: dict[str, tuple[str, float]] = {}
        self.registered_at: dict[str, float] = {}
        #: Time at which each node last returned under its name.
        self.recreated_at: dict[str, float] = {}
        #: Time at which a node of each pool was last lost, not ready or cordoned.
        self.pool_broke_at: dict[str, float] = {}
        self.on_node: dict[str, dict[PodRun, None]] = {}
        #: Time at which a node of each pool last changed, or a pod was last bound to the pool or left the pool.
        self.pool_changed: dict[str, float] = {}
        self._scheduling = False
        self.two_steps = stage.chance(_TWO_STEP_BINDING_CHANCE)
        self._numbers = 0
        stage.store.listen("nodes", self._see)

    def create(self, workload: WorkloadRun) -> None:
        self.workloads[workload.path] = workload
        self.every_workload.append(workload)
        workload.touch(self.stage.agenda.now)
        self.stage.note(
            "user",
            "creates %s %s (%s, %d x %s, %s)",
            workload.kind,
            workload.name,
            workload.uid,
            workload.replicas,
            workload.shape.topology,
            workload.fate,
        )
        self.write(workload)
        self.kick(workload)

    def write(self, workload: WorkloadRun) -> None:
        self.stage.store.put(workload.path, workload.raw(self.stage.agenda))

    def kick(self, workload: WorkloadRun) -> None:
        if not workload.sync_due and (not workload.gone or workload.pods):
            workload.sync_due = True
            self.stage.agenda.after(self.stage.rng.uniform(0.02, 0.8), lambda: self._sync(workload))

    def remove(self, workload: WorkloadRun) -> None:
        workload.gone = True
        workload.touch(self.stage.agenda.now)
        if self.workloads.get(workload.path) is workload:
            del self.workloads[workload.path]
        self.stage.note("jobset", "%s (%s) is gone", workload.name, workload.uid)
        self.stage.store.remove(workload.path)

    def suspend(self, workload: WorkloadRun, *, suspended: bool) -> None:
        workload.suspended = suspended
        if suspended:
            workload.suspended_at = self.stage.agenda.now
            workload.release(self.stage.agenda.now)
        workload.touch(self.stage.agenda.now)
        self.stage.note("user", "%s %s %s", "suspends" if suspended else "resumes", workload.kind, workload.name)
        self.write(workload)
        self.kick(workload)

    def delete(self, workload: WorkloadRun) -> None:
        """Delete a workload in the foreground: its object is removed after its pods."""
        workload.deleting = True
        workload.touch(self.stage.agenda.now)
        self.stage.note("user", "deletes %s %s (%s)", workload.kind, workload.name, workload.uid)
        self.write(workload)
        self.kick(workload)

    def resize(self, workload: JobSetRun, *, replicas: int, shape: Shape) -> None:
        """Change the number of slices, or (while the workload is suspended) their shape."""
        for job in range(replicas, workload.replicas):
            for pod in [pod for (owner, _), pod in workload.pods.items() if owner == job]:
                self.terminate(pod)
            workload.ended_jobs.discard(job)
        workload.touch(self.stage.agenda.now)
        workload.release(self.stage.agenda.now)
        workload.replicas, workload.shape = replicas, shape
        workload.touch(self.stage.agenda.now)
        self.stage.note("user", "resizes JobSet %s to %d x %s", workload.name, replicas, shape.topology)
        if workload.alive and not workload.restarting and len(workload.ended_jobs) >= replicas:
            self._end(workload, "Completed", "all jobs that are left have")
            return
        self.write(workload)
        self.kick(workload)

    def restart(self, workload: JobSetRun, why: str) -> None:
        """Recreate all pods after the failure of a pod, or end the JobSet if no restart is left."""
        if not workload.alive or workload.restarting:
            return
        workload.touch(self.stage.agenda.now)
        if workload.restarts_left == 0:
            self._end(workload, "Failed", why)
            return
        workload.restarts_left -= 1
        workload.restarting = True
        workload.ended_jobs.clear()
        self.write(workload)
        self.stage.note("jobset", "restarts %s: %s", workload.name, why)
        self.kick(workload)

    def _end(self, workload: JobSetRun, state: str, why: str) -> None:
        workload.terminal = state
        workload.touch(self.stage.agenda.now)
        self.stage.note("jobset", "%s has ended: %s, %s", workload.name, state, why)
        self.write(workload)
        self.kick(workload)

    def _sync(self, workload: WorkloadRun) -> None:
        workload.sync_due = False
        if isinstance(workload, SetRun):
            self.sets.sync(workload)
        elif isinstance(workload, JobRun):
            self.jobs.sync(workload)
        elif isinstance(workload, RayRun):
            self.rays.sync(workload)
        elif isinstance(workload, JobSetRun):
            self._sync_jobset(workload)

    def _sync_jobset(self, workload: JobSetRun) -> None:
        if workload.gone:
            return
        if not workload.alive or workload.restarting:
            for pod in list(workload.pods.values()):
                self.terminate(pod)
            if workload.pods:
                return
            if workload.deleting:
                self.remove(workload)
                return
            if not workload.alive:
                return
            workload.restarting = False
            workload.attempt += 1
        for job in workload.slots():
            if job not in workload.ended_jobs and not self._start(workload, job) and workload.ordered:
                break

    def _start(self, workload: JobSetRun, job: int) -> bool:
        """Create the due pods of a child Job; return whether all of them run."""
        if not workload.exclusive:
            for index in range(workload.shape_of(job).parallelism):
                if (job, index) not in workload.pods:
                    self._add(workload, job, index)
            return all(pod.node for (owner, _), pod in workload.pods.items() if owner == job)
        leader = workload.pods.get((job, 0))
        if leader is None:
            if not any(owner == job for owner, _ in workload.pods):
                self._add(workload, job, 0)
            return False
        if not leader.node or leader.deadline is not None:
            return False
        missing = [index for index in range(1, workload.shape_of(job).parallelism) if (job, index) not in workload.pods]
        for index in missing:
            self._add(workload, job, index, pool=leader.pool)
        return not missing and all(pod.node for (owner, _), pod in workload.pods.items() if owner == job)

    def _add(self, workload: JobSetRun, job: int, index: int, *, pool: str = "") -> None:
        self.add(workload, job, index, name=self.new_name(f"{workload.group_name(job)}-{index}"), pool=pool)

    def new_name(self, beginning: str) -> str:
        self._numbers += 1
        return f"{beginning}-{self._numbers:x}"

    def add(
        self,
        workload: WorkloadRun,
        job: int,
        index: int,
        *,
        name: str,
        pool: str = "",
        leader: PodRun | None = None,
        replica: str = "",
    ) -> None:
        """Create a pod of a workload; `pool` adds a selector for the nodes of that pool."""
        pod = PodRun(
            name=name,
            namespace=workload.namespace,
            uid=self.stage.store.new_uid("pod"),
            workload=workload,
            job=job,
            index=index,
            shape=workload.pod_shape(job, index),
            selector=workload.selector(job) | ({constants.NODE_POOL: pool} if pool else {}),
            created=self.stage.agenda.now,
            leader=leader,
            replica=replica,
            priority=workload.priority,
        )
        if not self._review(pod):
            self.stage.agenda.after(_REJECTED_AGAIN_SECONDS, lambda: self.kick(workload))
            return
        workload.pods[job, index] = pod
        workload.touch(self.stage.agenda.now, job)
        self._put(pod)

    def add_foreign(
        self,
        shape: Shape,
        *,
        lasting_seconds: float,
        claim: Claim | None = None,
        node: str = "",
        namespace: str = OTHER_NAMESPACE,
        selector: Mapping[str, str] = MappingProxyType({}),
        tolerates_all: bool = False,
    ) -> PodRun | None:
        """Create a pod without a workload that requests chips; return None if it is rejected or its name is taken.

        The pod is bound to `node` at its creation if it fits that node, or if the cluster has no node of that name.
        """
        self._numbers += 1
        name = f"bare-{self._numbers:x}"
        if claim is not None and isinstance(claim.workload, SetRun):
            # Pods of a LeaderWorkerSet also identify their group by their name, so the forged pod gets such a name.
            name = claim.workload.pod_name(claim.job, 0)
            if self.stage.store.find(object_path("pods", name, namespace=namespace)) is not None:
                return None
        pod = PodRun(
            name=name,
            namespace=namespace,
            uid=self.stage.store.new_uid("pod"),
            workload=None,
            claim=claim,
            shape=shape,
            selector={**shape.selector(), **selector},
            created=self.stage.agenda.now,
            tolerates_all=tolerates_all,
        )
        if not self._review(pod):
            return None
        self.stage.note("user", "creates pod %s, which no JobSet made", pod.name)
        known = self.nodes.get(node)
        if node and known is None:
            pod.node, pod.phase = node, "Running"
        self._put(pod)
        if known is not None and self.fits(pod, known):
            self._bind(pod, known)
        self.stage.agenda.after(lasting_seconds, lambda: self._remove(pod))
        return pod

    def add_plain(self, pod: PodRun) -> bool:
        """Create a pod that was built elsewhere; return whether the API server allows it."""
        if not self._review(pod):
            return False
        self.stage.note("user", "creates pod %s of %s", pod.name, pod.owner.name if pod.owner is not None else "nobody")
        self._put(pod)
        return True

    def _review(self, pod: PodRun) -> bool:
        """Let the API server change a pod that is about to be created; return whether it allows the pod."""
        labels = raw_pod(pod, self.stage.agenda)["metadata"].get("labels", {})
        return self.admission.review(pod, labels)

    def _put(self, pod: PodRun) -> None:
        self.pods[pod] = None
        self._changed(pod)
        self.show(pod)
        self.schedule_soon()

    def _changed(self, pod: PodRun) -> None:
        if pod.workload is None:
            self.on_plain(pod)

    def show(self, pod: PodRun) -> None:
        self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))

    def schedule_soon(self) -> None:
        if not self._scheduling:
            self._scheduling = True
            self.stage.agenda.after(self.stage.rng.uniform(0.02, 0.8), self._schedule)

    def _schedule(self) -> None:
        self._scheduling = False
        waiting = [
            pod for pod in self.pods if not pod.node and not pod.assigned and pod.deadline is None and not pod.finished
        ]
        self.stage.rng.shuffle(waiting)
        # Pods of one controller are alike: if one pod fits no node, the scheduler need not try the other pods.
        unfit: set[Controller] = set()
        for pod in waiting:
            node = self._place(pod) if pod.owner not in unfit else None
            if node is None and pod.owner is not None:
                unfit.add(pod.owner)
            if node is not None and self.two_steps:
                self._assign(pod, node)
            elif node is not None:
                self._bind(pod, node)
            elif pod.waiting_since is None:
                pod.waiting_since = self.stage.agenda.now
                self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))
            elif pod.workload is not None and pod.workload.requests:
                self._refuse(pod, pod.workload.requests)
            elif not pod.bindable:
                self._refuse(pod, pod.requests)

    def _refuse(self, pod: PodRun, requests: Mapping[str, str]) -> None:
        message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient {', '.join(requests)}."
        if message != pod.message:
            pod.message = message
            self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))

    def _place(self, pod: PodRun) -> Node | None:
        if not pod.bindable or (pod.workload is not None and not pod.workload.bindable):
            return None
        fitting: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if self.fits(pod, node):
                fitting.setdefault(node.pool_name, []).append(node)
        free = [name for name in fitting if not scheduler.is_taken(name, pod, self.pods)]
        drawn_to = self._drawn_to(pod)
        free = [name for name in free if name in drawn_to] if drawn_to else free
        if not free:
            return None
        return self.stage.rng.choice(fitting[self.stage.rng.choice(free)])

    def _drawn_to(self, pod: PodRun) -> set[str]:
        """Return the pools to which exclusive placement restricts a pod; empty if the pod may use any pool."""
        if pod.workload is None or not pod.workload.exclusive:
            return set()
        if isinstance(pod.workload, SetRun):
            # Pods of the group that are being deleted also attract its leader.
            return self.sets.pools_of(pod.workload.group_name(pod.job))
        return self.rays.pools_of(pod) if isinstance(pod.workload, RayRun) else set()

    def fits(self, pod: PodRun, node: Node) -> bool:
        return scheduler.fits(pod, node, self.on_node.get(node.name, ()))

    def waits_for(self, labels: Mapping[str, str]) -> bool:
        """Whether an unschedulable pod would run on a node with these labels."""
        waiting = (pod for pod in self.pods if pod.waiting_since is not None and not pod.node)
        return any(scheduler.selects(pod, labels) for pod in waiting)

    def _assign(self, pod: PodRun, node: Node) -> None:
        """Decide on a node; neither a cordon nor the removal of the node stops the later binding."""
        pod.assigned, pod.pool, pod.assigned_at = node.name, node.pool_name, self.stage.agenda.now
        self.on_node.setdefault(node.name, {})[pod] = None
        self.stage.note("scheduler", "decides on %s of %s for %s", node.name, node.pool_name, pod.name)

        def bind() -> None:
            if not pod.gone:
                self._bind(pod, node)
                if node.name not in self.nodes:
                    self._collect(pod)

        self.stage.agenda.after(self.stage.rng.uniform(*_DECISION_TO_BINDING_SECONDS), bind)

    def _bind(self, pod: PodRun, node: Node) -> None:
        pod.node, pod.pool, pod.waiting_since, pod.assigned = node.name, node.pool_name, None, ""
        pod.phase, pod.bound_at = "Running", self.stage.agenda.now
        self.on_node.setdefault(node.name, {})[pod] = None
        self.on_bound(pod)
        self._use(pod)
        self.stage.note("scheduler", "binds %s to %s of %s", pod.name, node.name, node.pool_name)
        self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))
        if pod.owner is not None:
            pod.owner.changed(pod)
        if pod.workload is not None:
            pod.workload.last_pool[pod.job] = pod.pool
            pod.workload.last_bound_at[pod.job] = self.stage.agenda.now
            pod.workload.last_reviewed[pod.job] = pod.reviewed
            pod.workload.pools.add(pod.pool)
            self.kick(pod.workload)
            if isinstance(pod.workload, JobRun):
                self.jobs.bound(pod.workload, pod)
            else:
                self._maybe_running(pod.workload, pod.job)

    def _use(self, pod: PodRun) -> None:
        now = self.stage.agenda.now
        self.left_by[pod.pool] = (pod.workload.uid if pod.workload is not None else "", now)
        self.pool_changed[pod.pool] = now
        if pod.workload is not None:
            pod.workload.touch(now, pod.job)

    def _maybe_running(self, workload: WorkloadRun, job: int) -> None:
        members = [pod for (owner, _), pod in workload.pods.items() if owner == job]
        if len(members) < workload.shape_of(job).parallelism or not all(pod.node for pod in members):
            return
        self.stage.note("kubelet", "all pods of %s run", workload.group_name(job))
        if isinstance(workload, JobSetRun) and workload.fate != "forever":
            attempt, seconds = workload.attempt, workload.run_seconds * self.stage.rng.uniform(0.7, 1.3)
            self.stage.agenda.after(seconds, lambda: self._job_done(workload, job, attempt))

    def _job_done(self, workload: JobSetRun, job: int, attempt: int) -> None:
        members = [pod for (owner, _), pod in workload.pods.items() if owner == job]
        due = workload.shape_of(job).parallelism
        whole = len(members) >= due and all(pod.node and pod.deadline is None for pod in members)
        if not workload.alive or workload.restarting or workload.attempt != attempt or not whole:
            return
        if workload.fate == "fail":
            if workload.restarts_left == 0:
                self._end(workload, "Failed", "its pods fail")
            else:
                self.restart(workload, "its pods fail")
            return
        for pod in members:
            self.end(pod, "Succeeded")
        workload.ended_jobs.add(job)
        workload.release(self.stage.agenda.now, job)
        self.schedule_soon()
        if len(workload.ended_jobs) >= workload.replicas:
            self._end(workload, "Completed", "all its jobs have")
        else:
            self.write(workload)
            self.kick(workload)

    def end(self, pod: PodRun, phase: str) -> None:
        """Let a pod end in a phase; its object is removed within 60 s."""
        pod.phase = phase
        self._changed(pod)
        if pod.workload is not None:
            del pod.workload.pods[pod.job, pod.index]
        self._use(pod)
        self.show(pod)
        self.stage.agenda.after(self.stage.rng.uniform(1.0, 60.0), functools.partial(self._remove, pod))

    def terminate(self, pod: PodRun, *, stuck: bool = False) -> None:
        """Delete a pod; on an existing node, it remains for up to its grace period + 2 s, or 60 to 200 s if `stuck`."""
        if pod.deadline is not None or pod.gone:
            return
        rng, now = self.stage.rng, self.stage.agenda.now
        if not pod.node:
            self._remove(pod)
            return
        grace = rng.choice(_GRACES_SECONDS)
        pod.deadline = math.floor(now + grace)
        # A container that ignores SIGTERM is killed at the end of the grace period, after which its pod is removed.
        grace += LATE_SECONDS if pod.owner is not None else 0.0
        self._use(pod)
        self._changed(pod)
        self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))
        if pod.node not in self.nodes:
            self._collect(pod)
        else:
            self.stage.agenda.after(
                rng.uniform(60.0, 200.0) if stuck else rng.uniform(0.0, grace), lambda: self._remove(pod)
            )

    def release(self, pod: PodRun) -> None:
        """Remove the finalizer of a pod, and the pod itself if it was only kept by the finalizer."""
        pod.held = False
        if pod.due:
            self._remove(pod)

    def _collect(self, pod: PodRun) -> None:
        """After 5 to 60 s, remove a pod whose node no longer exists, as the garbage collector does."""
        self.stage.agenda.after(self.stage.rng.uniform(5.0, 60.0), lambda: self._remove(pod))

    def _remove(self, pod: PodRun) -> None:
        if pod.gone:
            return
        if pod.held:
            pod.due = True
            return
        pod.gone = True
        self.pods.pop(pod, None)
        self._changed(pod)
        if pod.assigned:
            self.on_node.get(pod.assigned, {}).pop(pod, None)
        if pod.node:
            self.on_node.get(pod.node, {}).pop(pod, None)
            self._use(pod)
        workload = pod.workload
        if workload is not None and workload.pods.get((pod.job, pod.index)) is pod:
            del workload.pods[pod.job, pod.index]
            workload.touch(self.stage.agenda.now, pod.job)
            if isinstance(workload, SetRun):
                self.sets.lost(workload, pod)
            elif isinstance(workload, JobSetRun) and pod.node and not pod.finished and pod.job < workload.replicas:
                self.restart(workload, f"pod {pod.name} is gone")
            self.kick(workload)
        self.stage.store.remove(pod.path)
        if pod.owner is not None:
            pod.owner.changed(pod)
        self.schedule_soon()

    def _see(self, change: Change) -> None:
        name = change.path.rpartition("/")[2]
        known = self.nodes.get(name)
        node = parse_node(change.after) if change.after is not None else None
        pool = node.pool_name if node is not None else known.pool_name if known is not None else ""
        self.pool_changed[pool] = self.stage.agenda.now
        if node is not None:
            if known is None:
                if name in self.registered_at:
                    self.recreated_at[name] = self.stage.agenda.now
                self.registered_at[name] = self.stage.agenda.now
            if not node.ready or node.cordoned:
                self.pool_broke_at[pool] = self.stage.agenda.now
            self.nodes[name] = node
            self.schedule_soon()
            return
        self.nodes.pop(name, None)
        self.pool_broke_at[pool] = self.stage.agenda.now
        for pod in list(self.on_node.get(name, ())):
            if pod.node and not pod.finished:
                self._collect(pod)

    def pods_on_pool(self, pool: str) -> list[PodRun]:
        """Return the pods, including finished pods, that are bound to existing nodes of a pool."""
        return [pod for pod in self.pods if pod.pool == pool and pod.node in self.nodes]
