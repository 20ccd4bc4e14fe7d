"""KubeRay: the pods of a replica come and go together.

All pods of a replica are created at once, and run on one pool, as the webhook has them do. One that is missing takes
the whole replica with it; its successor has another name and the lowest number that is free, while pods of the old one
may still be terminating. Scaling down removes any replicas. Heads, the autoscaler, several worker groups and the
upgrades of RayServices are not simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.objects import PodRun, RayRun

if TYPE_CHECKING:
    from tests.simulation.workloads import Cluster


class RayController:
    """What happens to the replicas of all RayClusters."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stage = cluster.stage

    # --- what people do

    def delete(self, run: RayRun, *, foreground: bool) -> None:
        """Delete a cluster; in the background, which is the default, the object goes before its pods."""
        if foreground:
            self.cluster.delete(run)
            return
        run.deleting = True
        run.touch(self.stage.agenda.now)
        self.stage.note("user", "deletes %s %s (%s) in the background", run.kind, run.name, run.uid)
        self.cluster.remove(run)
        self.cluster.kick(run)

    def scale(self, run: RayRun, replicas: int) -> None:
        """Change how many replicas there are."""
        run.touch(self.stage.agenda.now)
        run.replicas = replicas
        run.touch(self.stage.agenda.now)
        self.stage.note("user", "scales %s %s to %d", run.kind, run.name, replicas)
        self.cluster.write(run)
        self.cluster.kick(run)

    # --- the controller

    def sync(self, run: RayRun) -> None:
        """Remove the replicas that are not whole or too many, and make those that are missing."""
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
        """List the pools that pods of its replica are on, or about to be."""
        return {each.pool for each in self.cluster.pods if each.pool and each.replica == pod.replica}

    def _end(self, run: RayRun, number: int, why: str) -> None:
        replica = run.replica_names.pop(number)
        self.stage.note("kuberay", "removes replica %s of %s, number %d: %s", replica, run.name, number, why)
        run.touch(self.stage.agenda.now, number)
        for pod in [pod for pod in run.pods.values() if pod.replica == replica]:
            self.cluster.terminate(pod)
