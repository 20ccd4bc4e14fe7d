"""LeaderWorkerSets: their objects, their controllers, and a team that serves with them.

With exclusive placement, the workers of a group are created for the pool of their bound leader; otherwise they are
created as soon as the leader exists. A pod is created only after an earlier pod of the same name is removed. A lost
worker restarts its group: the leader is deleted after the last of its workers. If a leader is deleted for another
reason, its workers are deleted later, perhaps after the next leader is created. An update replaces groups one by one,
from the highest; with surge, a group is added first. Restart policies, subgroups and partitions are not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.kube.protocol import JsonObject
from provisioner.workloads import LEADER_WORKER_SET
from tests.simulation.objects import PodRun, Shape, WorkloadRun
from tests.simulation.team import Team
from tests.support.simulations.stage import Agenda

if TYPE_CHECKING:
    from tests.simulation.workloads import Cluster

_LWS = "leaderworkerset.sigs.k8s.io"


@dataclass(eq=False, slots=True, kw_only=True)
class SetRun(WorkloadRun):
    """A LeaderWorkerSet, whose groups do not complete; an update replaces them one by one."""

    of = LEADER_WORKER_SET
    fate: str = "forever"
    labels_uid: bool = False
    #: Number of groups that an update adds first and removes last.
    surge: int = 0
    #: Whether the leaders request no chips, so that they run on a host of a worker.
    leads_without_chips: bool = False
    updating: bool = False
    #: Groups of the old template, and the shapes of existing groups.
    outdated: set[int] = field(default_factory=set)
    shape_of_group: dict[int, Shape] = field(default_factory=dict)
    #: Groups that restart: the leader, whose delete begins first, is removed after the last of its workers.
    restarting_groups: set[int] = field(default_factory=set)

    def slots(self) -> range:
        """Return the numbers of the groups, including the groups that an update adds."""
        return range(self.replicas + (min(self.surge, self.replicas) if self.updating else 0))

    def shape_of(self, job: int) -> Shape:
        return self.shape_of_group.get(job, self.shape)

    def pod_shape(self, job: int, index: int) -> Shape:
        shape = self.shape_of(job)
        return shape if index or not self.leads_without_chips else replace(shape, chips=0)

    def group_name(self, job: int) -> str:
        """Return the name of a group, which is the name of its leader pod."""
        return f"{self.name}-{job}"

    def pod_name(self, job: int, index: int) -> str:
        return f"{self.group_name(job)}-{index}" if index else self.group_name(job)

    def exclusive_key(self, pod: PodRun) -> object:
        """Return a key that is equal for pods that may share a pool, also for a recreated set of the same name."""
        return self.kind, self.namespace, self.group_name(pod.job)

    def raw(self, agenda: Agenda) -> JsonObject:
        leader = {"leaderTemplate": self._template(self.pod_shape(-1, 0))} if self.leads_without_chips else {}
        return {
            "metadata": {
                **self._metadata(agenda),
                "annotations": {constants.LWS_EXCLUSIVE_TOPOLOGY: constants.NODE_POOL} if self.exclusive else {},
            },
            "spec": {
                "replicas": self.replicas,
                "leaderWorkerTemplate": {
                    "size": self.shape.parallelism,
                    "workerTemplate": self._template(),
                    **leader,
                },
                "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": self.surge}},
            },
        }

    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        labels = {
            constants.LWS_NAME: self.name,
            f"{_LWS}/group-index": str(job),
            f"{_LWS}/worker-index": str(index),
            f"{_LWS}/group-key": self.slice_id(job).group_key,
        }
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
        owner |= {"name": self.group_name(job) if index else self.name, "uid": f"sts-{self.uid}-{job if index else ''}"}
        marks: JsonObject = {
            "labels": labels,
            "annotations": {constants.LWS_SIZE: str(self.shape_of(job).parallelism)},
        }
        return marks | ({"ownerReferences": [owner]} if controlled else {})


class ScalingController:
    """Actions of users on workloads that can be scaled."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stage = cluster.stage

    def delete(self, run: WorkloadRun, *, foreground: bool) -> None:
        """Delete a workload; in the background (Kubernetes' default), the object is removed before its pods."""
        run.deleting = True
        run.touch(self.stage.agenda.now)
        how = "in the foreground" if foreground else "in the background"
        self.stage.note("user", "deletes %s %s (%s) %s", run.kind, run.name, run.uid, how)
        if foreground:
            self.cluster.write(run)
        else:
            self.cluster.remove(run)
        self.cluster.kick(run)

    def scale(self, run: WorkloadRun, replicas: int) -> None:
        run.touch(self.stage.agenda.now)
        run.replicas = replicas
        run.touch(self.stage.agenda.now)
        self.stage.note("user", "scales %s %s to %d", run.kind, run.name, replicas)
        self.cluster.write(run)
        self.cluster.kick(run)


class SetController(ScalingController):
    """Controller of the groups of all sets."""

    # --- actions of users

    def update(self, run: SetRun, shape: Shape) -> None:
        """Change the template, so that every group is replaced; its pods may request another shape."""
        run.outdated = set(range(run.replicas))
        for group in run.outdated:
            run.shape_of_group.setdefault(group, run.shape)
        run.shape = shape
        run.updating = True
        run.touch(self.stage.agenda.now)
        self.stage.note("user", "updates %s %s to %s", run.kind, run.name, shape.topology)
        self.cluster.write(run)
        self.cluster.kick(run)

    def restart_group(self, run: SetRun, group: int) -> None:
        """Restart a group whose leader is bound, after the restart of a container or the loss of a worker."""
        leader = run.pods.get((group, 0))
        if leader is None or leader.deadline is not None or not leader.node:
            return
        run.restarting_groups.add(group)
        run.touch(self.stage.agenda.now, group)
        self.stage.note("sets", "restarts group %s", run.group_name(group))
        leader.held = True
        self.cluster.terminate(leader)
        self.cluster.kick(run)

    # --- actions of the controllers

    def sync(self, run: SetRun) -> None:
        if run.deleting:
            self._wind_up(run)
            return
        self._roll(run)
        for group in {group for group, _ in run.pods} - set(run.slots()):
            self._end(run, group)
        for group in run.slots():
            self._start(run, group)

    def lost(self, run: SetRun, pod: PodRun) -> None:
        """Restart the group of a removed worker, unless its leader has been replaced."""
        leader = run.pods.get((pod.job, 0))
        if pod.index and not run.deleting and pod.job in run.slots() and pod.leader is leader:
            self.restart_group(run, pod.job)

    def pools_of(self, group_name: str) -> set[str]:
        return {
            pod.pool
            for pod in self.cluster.pods
            if pod.pool
            and not pod.finished
            and isinstance(pod.workload, SetRun)
            and pod.workload.group_name(pod.job) == group_name
        }

    def _wind_up(self, run: SetRun) -> None:
        for group in {group for group, _ in run.pods}:
            self._end(run, group)
        if not run.pods and not run.gone:
            self.cluster.remove(run)

    def _end(self, run: SetRun, group: int) -> None:
        """Delete the leader of a group, and after its removal the workers."""
        run.restarting_groups.discard(group)
        run.shape_of_group.pop(group, None)
        leader = run.pods.get((group, 0))
        if leader is not None:
            self.cluster.terminate(leader)
            self.cluster.release(leader)
            return
        self._orphans_end(run, group)

    def _orphans_end(self, run: SetRun, group: int) -> None:
        leader = run.pods.get((group, 0))
        for (owner, index), pod in list(run.pods.items()):
            if owner == group and index and pod.leader is not leader:
                self.cluster.terminate(pod)

    def _roll(self, run: SetRun) -> None:
        if not run.updating:
            return
        run.outdated &= set(run.slots())
        waits = [group for group in run.slots() if group not in run.outdated and not self._runs(run, group)]
        if waits:
            return
        if not run.outdated:
            self.stage.note("sets", "%s is updated", run.name)
            run.touch(self.stage.agenda.now)
            run.updating = False
            return
        group = max(run.outdated)
        run.outdated.discard(group)
        run.touch(self.stage.agenda.now, group)
        self.stage.note("sets", "replaces group %s", run.group_name(group))
        self._end(run, group)

    def _runs(self, run: SetRun, group: int) -> bool:
        pods = [pod for (owner, _), pod in run.pods.items() if owner == group]
        whole = len(pods) >= run.shape_of(group).parallelism
        return whole and all(pod.node and pod.deadline is None for pod in pods)

    def _start(self, run: SetRun, group: int) -> None:
        leader = run.pods.get((group, 0))
        workers = [pod for (owner, index), pod in run.pods.items() if owner == group and index]
        if group in run.restarting_groups:
            for pod in workers:
                self.cluster.terminate(pod)
            if workers:
                return
            if leader is not None:
                self.cluster.release(leader)
                return
            run.restarting_groups.discard(group)
        if leader is None:
            if self._free(run, group, 0):
                run.shape_of_group[group] = run.shape if group not in run.outdated else run.shape_of(group)
                self.cluster.add(run, group, 0, name=run.pod_name(group, 0))
            leader = run.pods.get((group, 0))
        self._orphans_end(run, group)
        if leader is None or leader.deadline is not None or (run.exclusive and not leader.node):
            return
        pool = leader.pool if run.exclusive else ""
        for index in range(1, run.shape_of(group).parallelism):
            if self._free(run, group, index):
                self.cluster.add(run, group, index, name=run.pod_name(group, index), pool=pool, leader=leader)

    def _free(self, run: SetRun, group: int, index: int) -> bool:
        """Whether a pod may be created: its name is taken as long as a predecessor exists."""
        name = run.pod_name(group, index)
        if (group, index) in run.pods:
            return False
        taken = any(pod.name == name and pod.namespace == run.namespace for pod in self.cluster.pods)
        if taken:
            self.stage.agenda.after(1.0, lambda: self.cluster.kick(run))
        return not taken


class ServingTeam(Team[SetRun]):
    """Users that create LeaderWorkerSets."""

    run_type = SetRun
    title, presence, creates = "serving team", 0.35, 0.2
    names = ("serve", "serve", "train")
    late_kind = LEADER_WORKER_SET.kind

    def _make(self, name: str) -> SetRun:
        rng = self._rng
        shape = rng.choice(self._shapes)
        if rng.random() < 0.08:
            shape = replace(shape, parallelism=shape.hosts + 1, feasible=False)
        namespace = self.simulation.admission.namespace()
        return SetRun(
            name=name,
            namespace=namespace,
            exclusive=self.simulation.admission.exclusive(namespace),
            priority=self.simulation.admission.priority(),
            uid=self.stage.store.new_uid("set"),
            shape=shape,
            replicas=rng.choice((1, 1, 2, 3)),
            # With a limit on pools, there may be no room for one more group, and an update would never end.
            surge=rng.choice((0, 0, 1)) if self.simulation.market.max_pools is None else 0,
            created=self.stage.agenda.now,
        )

    def _change(self, run: SetRun) -> None:
        rng, sets = self._rng, self.simulation.cluster.sets
        match rng.choice(("delete", "again", "scale", "scale", "update", "update", "restart", "restart")):
            case "delete":
                sets.delete(run, foreground=rng.random() < 0.3)
            case "again":
                sets.delete(run, foreground=rng.random() < 0.3)
                self._again(run)
            case "scale":
                sets.scale(run, rng.choice((0, 1, 2, 3)))
            case "update":
                sets.update(run, rng.choice((run.shape, *self._shapes)))
            case _:
                sets.restart_group(run, rng.randrange(max(run.replicas, 1)))

    def _again(self, run: SetRun) -> None:
        if run.gone:
            self._create(run.name)
        elif self.stage.stormy:
            self.stage.agenda.after(self._rng.uniform(0.05, 2.0), lambda: self._again(run))
