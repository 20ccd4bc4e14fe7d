"""The actors of the simulated Kubernetes: the JobSet controller, the scheduler, kubelets, the pod garbage collector.

They are small and act a random moment after something changed. Placement is exclusive: one slice's pods per node pool,
followers only after their leader is bound, to its pool. The scheduler takes any pool that fits, at random. What the
real ones do besides (priorities, preemption, success policies, gang admission) is not simulated. In some
runs the scheduler binds at once; in others it decides first, which nobody sees, and binds a moment later, whatever
became of the node meanwhile.
"""

from __future__ import annotations

import functools
import math

from provisioner import constants
from provisioner.kube.parse import parse_node
from provisioner.model.capacity import Node
from tests.simulation.objects import Claim, JobSetRun, PodRun, Shape, raw_jobset, raw_pod
from tests.simulation.stage import Stage
from tests.simulation.store import Change

_GRACES_SECONDS = (1.0, 5.0, 30.0)
#: In how many runs the scheduler's decision and its binding are two steps.
_TWO_STEP_BINDING_CHANCE = 0.5
_DECISION_TO_BINDING_SECONDS = (0.05, 3.0)


class Cluster:
    """All pods, JobSets and nodes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.jobsets: dict[str, JobSetRun] = {}
        self.every_jobset: list[JobSetRun] = []
        self.pods: dict[PodRun, None] = {}
        self.nodes: dict[str, Node] = {}
        #: Whose pod was last bound to a pool or left it, and when.
        self.left_by: dict[str, tuple[str, float]] = {}
        self.registered_at: dict[str, float] = {}
        self.on_node: dict[str, dict[PodRun, None]] = {}
        #: When a pod of somebody else than the slice that it was made for was last on a pool, or a node changed.
        self.pool_changed: dict[str, float] = {}
        self._scheduling = False
        self.two_steps = stage.chance(_TWO_STEP_BINDING_CHANCE)
        self._numbers = 0
        stage.store.listen("nodes", self._see)

    # --- JobSets

    def create(self, jobset: JobSetRun) -> None:
        """Create a JobSet."""
        self.jobsets[jobset.name] = jobset
        self.every_jobset.append(jobset)
        jobset.touch(self.stage.agenda.now)
        self.stage.note(
            "user",
            "creates JobSet %s (%s, %d x %s, %s)",
            jobset.name,
            jobset.uid,
            jobset.replicas,
            jobset.shape.topology,
            jobset.fate,
        )
        self.write(jobset)
        self.kick(jobset)

    def write(self, jobset: JobSetRun) -> None:
        """Bring the object up to date."""
        self.stage.store.put(jobset.path, raw_jobset(jobset, self.stage.agenda))

    def kick(self, jobset: JobSetRun) -> None:
        """Let the JobSet controller look at it soon."""
        if not jobset.sync_due and not jobset.gone:
            jobset.sync_due = True
            self.stage.agenda.after(self.stage.rng.uniform(0.02, 0.8), lambda: self._sync(jobset))

    def suspend(self, jobset: JobSetRun, *, suspended: bool) -> None:
        """Suspend or resume."""
        jobset.suspended = suspended
        jobset.touch(self.stage.agenda.now)
        self.stage.note("user", "%s JobSet %s", "suspends" if suspended else "resumes", jobset.name)
        self.write(jobset)
        self.kick(jobset)

    def delete(self, jobset: JobSetRun) -> None:
        """Delete in the foreground."""
        jobset.deleting = True
        jobset.touch(self.stage.agenda.now)
        self.stage.note("user", "deletes JobSet %s (%s)", jobset.name, jobset.uid)
        self.write(jobset)
        self.kick(jobset)

    def resize(self, jobset: JobSetRun, *, replicas: int, shape: Shape) -> None:
        """Change how many slices there are, or (while it is suspended) what they look like."""
        for job in range(replicas, jobset.replicas):
            for pod in [pod for (owner, _), pod in jobset.pods.items() if owner == job]:
                self.terminate(pod)
            jobset.ended_jobs.discard(job)
        jobset.touch(self.stage.agenda.now)
        jobset.replicas, jobset.shape = replicas, shape
        jobset.touch(self.stage.agenda.now)
        self.stage.note("user", "resizes JobSet %s to %d x %s", jobset.name, replicas, shape.topology)
        if jobset.alive and not jobset.restarting and len(jobset.ended_jobs) >= replicas:
            self._end(jobset, "Completed", "all jobs that are left have")
            return
        self.write(jobset)
        self.kick(jobset)

    def restart(self, jobset: JobSetRun, why: str) -> None:
        """A pod has failed: all pods again, or the end."""
        if not jobset.alive or jobset.restarting:
            return
        jobset.touch(self.stage.agenda.now)
        if jobset.restarts_left == 0:
            self._end(jobset, "Failed", why)
            return
        jobset.restarts_left -= 1
        jobset.restarting = True
        jobset.ended_jobs.clear()
        self.stage.note("jobset", "restarts %s: %s", jobset.name, why)
        self.kick(jobset)

    def _end(self, jobset: JobSetRun, state: str, why: str) -> None:
        jobset.terminal = state
        jobset.touch(self.stage.agenda.now)
        self.stage.note("jobset", "%s has ended: %s, %s", jobset.name, state, why)
        self.write(jobset)
        self.kick(jobset)

    def _sync(self, jobset: JobSetRun) -> None:
        jobset.sync_due = False
        if jobset.gone:
            return
        if not jobset.alive or jobset.restarting:
            for pod in list(jobset.pods.values()):
                self.terminate(pod)
            if jobset.pods:
                return
            if jobset.deleting:
                jobset.gone = True
                jobset.touch(self.stage.agenda.now)
                if self.jobsets.get(jobset.name) is jobset:
                    del self.jobsets[jobset.name]
                self.stage.note("jobset", "%s (%s) is gone", jobset.name, jobset.uid)
                self.stage.store.remove(jobset.path)
                return
            if not jobset.alive:
                return
            jobset.restarting = False
            jobset.attempt += 1
        for job in range(jobset.replicas):
            if job not in jobset.ended_jobs and not self._start(jobset, job) and jobset.ordered:
                break

    def _start(self, jobset: JobSetRun, job: int) -> bool:
        """Make the pods of a child Job that are due; say whether all of them run."""
        leader = jobset.pods.get((job, 0))
        if leader is None:
            if not any(owner == job for owner, _ in jobset.pods):
                self._add(jobset, job, 0)
            return False
        if not leader.node or leader.deadline is not None:
            return False
        missing = [index for index in range(1, jobset.shape.parallelism) if (job, index) not in jobset.pods]
        for index in missing:
            self._add(jobset, job, index, pool=leader.pool)
        return not missing and all(pod.node for (owner, _), pod in jobset.pods.items() if owner == job)

    def _add(self, jobset: JobSetRun, job: int, index: int, *, pool: str = "") -> None:
        selector = jobset.selector() | ({constants.NODE_POOL: pool} if pool else {})
        self._numbers += 1
        pod = PodRun(
            name=f"{jobset.job_name(job)}-{index}-{self._numbers:x}",
            uid=self.stage.store.new_uid("pod"),
            jobset=jobset,
            job=job,
            index=index,
            shape=jobset.shape,
            selector=selector,
            created=self.stage.agenda.now,
        )
        jobset.pods[job, index] = pod
        jobset.touch(self.stage.agenda.now, job)
        self._put(pod)

    def add_foreign(self, shape: Shape, *, lasting_seconds: float, claim: Claim | None = None, node: str = "") -> None:
        """Create a pod that no JobSet made and that asks for chips all the same.

        Bound to `node` by whoever makes it, where that node has room or is none of ours.
        """
        self._numbers += 1
        pod = PodRun(
            name=f"bare-{self._numbers:x}",
            namespace="other",
            uid=self.stage.store.new_uid("pod"),
            jobset=None,
            claim=claim,
            shape=shape,
            selector=shape.selector(),
            created=self.stage.agenda.now,
        )
        self.stage.note("user", "creates pod %s, which no JobSet made", pod.name)
        known = self.nodes.get(node)
        if node and known is None:
            pod.node, pod.phase = node, "Running"
        self._put(pod)
        if known is not None and self.fits(pod, known):
            self._bind(pod, known)
        self.stage.agenda.after(lasting_seconds, lambda: self._remove(pod))

    def _put(self, pod: PodRun) -> None:
        self.pods[pod] = None
        self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))
        self.schedule_soon()

    # --- scheduler

    def schedule_soon(self) -> None:
        """Let the scheduler look at what waits."""
        if not self._scheduling:
            self._scheduling = True
            self.stage.agenda.after(self.stage.rng.uniform(0.02, 0.8), self._schedule)

    def _schedule(self) -> None:
        self._scheduling = False
        waiting = [
            pod for pod in self.pods if not pod.node and not pod.assigned and pod.deadline is None and not pod.finished
        ]
        self.stage.rng.shuffle(waiting)
        for pod in waiting:
            node = self._place(pod)
            if node is not None and self.two_steps:
                self._assign(pod, node)
            elif node is not None:
                self._bind(pod, node)
            elif pod.waiting_since is None:
                pod.waiting_since = self.stage.agenda.now
                self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))

    def _place(self, pod: PodRun) -> Node | None:
        fitting: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if self.fits(pod, node):
                fitting.setdefault(node.pool_name, []).append(node)
        free = [name for name in fitting if pod.jobset is None or not self._taken(name, pod)]
        if not free:
            return None
        return self.stage.rng.choice(fitting[self.stage.rng.choice(free)])

    def fits(self, pod: PodRun, node: Node) -> bool:
        """Whether the scheduler would let a pod on a node."""
        if not node.ready or node.cordoned:
            return False
        if any(node.labels.get(key) != value for key, value in pod.selector.items()):
            return False
        spot = (constants.SPOT,) if pod.shape.spot or pod.shape.tolerant else ()
        tolerated = (constants.TPU_RESOURCE, *spot)
        if any(taint.effect != "PreferNoSchedule" and taint.key not in tolerated for taint in node.taints):
            return False
        used = sum(other.shape.chips for other in self.on_node.get(node.name, ()) if not other.finished)
        return used + pod.shape.chips <= node.allocatable_chips

    def _taken(self, pool: str, pod: PodRun) -> bool:
        """Whether exclusive placement keeps the pod off a pool."""
        return any(
            other.jobset is not None and (other.jobset, other.job) != (pod.jobset, pod.job)
            for other in self.pods
            if other.pool == pool and not other.finished
        )

    def _assign(self, pod: PodRun, node: Node) -> None:
        """Decide on a node. Nothing shows it, and from now on neither a cordon nor the node's end stops the binding."""
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
        self._use(pod)
        self.stage.note("scheduler", "binds %s to %s of %s", pod.name, node.name, node.pool_name)
        self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))
        if pod.jobset is not None:
            pod.jobset.last_pool[pod.job] = pod.pool
            self.kick(pod.jobset)
            self._maybe_running(pod.jobset, pod.job)

    def _use(self, pod: PodRun) -> None:
        now = self.stage.agenda.now
        self.left_by[pod.pool] = (pod.jobset.uid if pod.jobset is not None else "", now)
        self.pool_changed[pod.pool] = now
        if pod.jobset is not None:
            pod.jobset.touch(now, pod.job)

    def _maybe_running(self, jobset: JobSetRun, job: int) -> None:
        members = [pod for (owner, _), pod in jobset.pods.items() if owner == job]
        if len(members) < jobset.shape.parallelism or not all(pod.node for pod in members):
            return
        self.stage.note("kubelet", "all pods of %s run", jobset.job_name(job))
        if jobset.fate != "forever":
            attempt, seconds = jobset.attempt, jobset.run_seconds * self.stage.rng.uniform(0.7, 1.3)
            self.stage.agenda.after(seconds, lambda: self._job_done(jobset, job, attempt))

    def _job_done(self, jobset: JobSetRun, job: int, attempt: int) -> None:
        members = [pod for (owner, _), pod in jobset.pods.items() if owner == job]
        whole = len(members) >= jobset.shape.parallelism and all(pod.node and pod.deadline is None for pod in members)
        if not jobset.alive or jobset.restarting or jobset.attempt != attempt or not whole:
            return
        if jobset.fate == "fail":
            if jobset.restarts_left == 0:
                self._end(jobset, "Failed", "its pods fail")
            else:
                self.restart(jobset, "its pods fail")
            return
        for pod in members:
            pod.phase = "Succeeded"
            del jobset.pods[pod.job, pod.index]
            self._use(pod)
            self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))
            self.stage.agenda.after(self.stage.rng.uniform(1.0, 60.0), functools.partial(self._remove, pod))
        jobset.ended_jobs.add(job)
        self.schedule_soon()
        if len(jobset.ended_jobs) >= jobset.replicas:
            self._end(jobset, "Completed", "all its jobs have")
        else:
            self.kick(jobset)

    # --- the end of pods and nodes

    def terminate(self, pod: PodRun, *, stuck: bool = False) -> None:
        """Delete a pod: at once where it is not bound, else after up to its grace; `stuck`: long after."""
        if pod.deadline is not None or pod.gone:
            return
        rng, now = self.stage.rng, self.stage.agenda.now
        if not pod.node:
            self._remove(pod)
            return
        grace = rng.choice(_GRACES_SECONDS)
        pod.deadline = math.floor(now + grace)
        self._use(pod)
        self.stage.store.put(pod.path, raw_pod(pod, self.stage.agenda))
        if pod.node not in self.nodes:
            self._collect(pod)
        else:
            self.stage.agenda.after(
                rng.uniform(60.0, 200.0) if stuck else rng.uniform(0.0, grace), lambda: self._remove(pod)
            )

    def _collect(self, pod: PodRun) -> None:
        """Remove a pod whose node is gone, as the garbage collector does after a while."""
        self.stage.agenda.after(self.stage.rng.uniform(5.0, 60.0), lambda: self._remove(pod))

    def _remove(self, pod: PodRun) -> None:
        if pod.gone:
            return
        pod.gone = True
        self.pods.pop(pod, None)
        if pod.assigned:
            self.on_node.get(pod.assigned, {}).pop(pod, None)
        if pod.node:
            self.on_node.get(pod.node, {}).pop(pod, None)
            self._use(pod)
        jobset = pod.jobset
        if jobset is not None and jobset.pods.get((pod.job, pod.index)) is pod:
            del jobset.pods[pod.job, pod.index]
            jobset.touch(self.stage.agenda.now, pod.job)
            if pod.node and not pod.finished and pod.job < jobset.replicas:
                self.restart(jobset, f"pod {pod.name} is gone")
            self.kick(jobset)
        self.stage.store.remove(pod.path)
        self.schedule_soon()

    def _see(self, change: Change) -> None:
        name = change.path.rpartition("/")[2]
        known = self.nodes.get(name)
        node = parse_node(change.after) if change.after is not None else None
        pool = node.pool_name if node is not None else known.pool_name if known is not None else ""
        self.pool_changed[pool] = self.stage.agenda.now
        if node is not None:
            if known is None:
                self.registered_at[name] = self.stage.agenda.now
            self.nodes[name] = node
            self.schedule_soon()
            return
        self.nodes.pop(name, None)
        for pod in list(self.on_node.get(name, ())):
            if pod.node and not pod.finished:
                self._collect(pod)

    def pods_on_pool(self, pool: str) -> list[PodRun]:
        """List the pods that are bound to a pool."""
        return [pod for pod in self.pods if pod.pool == pool and pod.node in self.nodes]
