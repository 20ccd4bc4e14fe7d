"""RayClusters: their objects, KubeRay, and a team that uses them.

All pods of a replica are created at the same time, and exclusive placement or the policy puts them on one pool. A
missing pod ends the whole replica. The next replica gets another name and the lowest free number, while pods of the old
replica may still be terminating. Scaling down removes random replicas. Heads, the autoscaler, several worker groups and
the upgrades of RayServices are not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from provisioner import constants
from provisioner.kube.protocol import JsonObject
from provisioner.workloads import RAY_CLUSTER
from tests.simulation.objects import PodRun, WorkloadRun
from tests.simulation.sets import ScalingController
from tests.simulation.team import Team
from tests.support.simulations.stage import Agenda


@dataclass(eq=False, slots=True, kw_only=True)
class RayRun(WorkloadRun):
    """A RayCluster, whose replicas do not complete, and get the lowest free numbers."""

    of = RAY_CLUSTER
    fate: str = "forever"
    labels_uid: bool = True
    #: Names of the existing replicas that are not being removed, by number.
    replica_names: dict[int, str] = field(default_factory=dict)

    def slots(self) -> Sequence[int]:
        """Return the numbers of the existing replicas, and the numbers that missing replicas will get."""
        missing = max(0, self.replicas - len(self.replica_names))
        free = (number for number in count() if number not in self.replica_names)
        return sorted((*self.replica_names, *islice(free, missing)))

    def group_name(self, job: int) -> str:
        """Return the name of replica `job`, which may also be the name of a JobSet's child Job."""
        return f"{self.name}-workers-{job}"

    def exclusive_key(self, pod: PodRun) -> object:
        """Return a key that is equal for pods that may share a pool: the replica's name, because numbers are reused."""
        return self, pod.replica

    def raw(self, agenda: Agenda) -> JsonObject:
        group = {"groupName": "workers", "replicas": self.replicas, "numOfHosts": self.shape.parallelism}
        groups = [{**group, "template": self._template()}]
        spec = {"suspend": self.suspended, "headGroupSpec": {}, "workerGroupSpecs": groups}
        return {"metadata": self._metadata(agenda), "spec": spec}

    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        labels = {
            constants.RAY_CLUSTER_NAME: self.name,
            constants.RAY_GROUP: "workers",
            constants.RAY_REPLICA_INDEX: str(job),
        }
        if self.shape.parallelism > 1:
            labels[constants.RAY_HOST_INDEX] = str(index)
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "controller": True}
        marks: JsonObject = {"labels": labels}
        return marks | ({"ownerReferences": [{**owner, "name": self.name, "uid": self.uid}]} if controlled else {})


class RayController(ScalingController):
    """Controller of the replicas of all RayClusters."""

    def delete(self, run: WorkloadRun, *, foreground: bool) -> None:
        """Delete a RayCluster; in the foreground, its pods are removed before its object."""
        if foreground:
            self.cluster.delete(run)
        else:
            super().delete(run, foreground=False)

    def sync(self, run: RayRun) -> None:
        if not run.alive:
            run.replica_names.clear()
            for pod in list(run.pods.values()):
                self.cluster.terminate(pod)
            if run.deleting and not run.pods and not run.gone:
                self.cluster.remove(run)
            return
        hosts = run.shape.parallelism
        for number in list(run.replica_names):
            if sum(owner == number for owner, _ in run.pods) < hosts:
                self._end(run, number, "a host is missing")
        while len(run.replica_names) > run.replicas:
            self._end(run, self.stage.rng.choice(list(run.replica_names)), "there are too many")
        for number in run.slots():
            if number in run.replica_names:
                continue
            replica = run.replica_names[number] = self.cluster.new_name("workers")
            for host in range(hosts):
                self.cluster.add(run, number, host, name=f"{run.name}-{replica}-{host}", replica=replica)

    def pools_of(self, pod: PodRun) -> set[str]:
        return {other.pool for other in self.cluster.pods if other.pool and other.replica == pod.replica}

    def _end(self, run: RayRun, number: int, why: str) -> None:
        replica = run.replica_names.pop(number)
        self.stage.note("kuberay", "removes replica %s of %s, number %d: %s", replica, run.name, number, why)
        run.touch(self.stage.agenda.now, number)
        for pod in [pod for pod in run.pods.values() if pod.replica == replica]:
            self.cluster.terminate(pod)


class RayTeam(Team[RayRun]):
    """Users that create RayClusters."""

    run_type = RayRun
    title, presence, creates = "ray team", 0.25, 0.2
    names = ("ray", "ray", "train")

    def _make(self, name: str) -> RayRun:
        rng = self._rng
        shape = rng.choice(self._shapes)
        # More pods on a single host would not be infeasible: they would request a pool of more nodes.
        if shape.hosts > 1 and rng.random() < 0.1:
            shape = replace(shape, parallelism=shape.hosts + 1, feasible=False)
        namespace = self.simulation.admission.namespace()
        return RayRun(
            name=name,
            namespace=namespace,
            exclusive=self.simulation.admission.exclusive(namespace),
            priority=self.simulation.admission.priority(),
            uid=self.stage.store.new_uid("ray"),
            shape=shape,
            replicas=rng.choice((0, 1, 3, 4)),
            created=self.stage.agenda.now,
        )

    def _act(self) -> None:
        super()._act()
        if not self.stage.stormy:
            for run in self._runs():
                if self._rng.random() < 0.5:
                    self._delete(run)
                else:
                    # If a replica remains, it is a random one, which may have any number.
                    self.simulation.cluster.rays.scale(run, min(run.replicas, 1))

    def _change(self, run: RayRun) -> None:
        match self._rng.choice(("delete", "again", "scale", "scale", "scale", "scale", "suspend")):
            case "delete":
                self._delete(run)
            case "again":
                self._delete(run)
                self._create(run.name)
            case "scale":
                self.simulation.cluster.rays.scale(run, self._rng.randint(0, 4))
            case _:
                self._suspend(run)

    def _delete(self, run: RayRun) -> None:
        self.simulation.cluster.rays.delete(run, foreground=self._rng.random() < 0.3)
