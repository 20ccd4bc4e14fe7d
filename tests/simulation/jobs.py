"""The controller of plain Jobs: all pods at once, each ends by itself and is replaced by itself.

In some Jobs a pod is replaced while it is still terminating, in others when it is gone. Placement is exclusive as for
all other workloads here, although nothing in Kubernetes sees to that for Jobs: each selects nodes of its own pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.objects import JobRun, PodRun

if TYPE_CHECKING:
    from tests.simulation.workloads import Cluster


class JobController:
    """What happens to the pods of all plain Jobs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stage = cluster.stage

    # --- what people do

    def delete(self, run: JobRun, *, orphaned: bool) -> None:
        """Delete a Job: its pods go after it, or stay where they are and belong to nobody."""
        run.deleting, run.orphaned = True, orphaned
        self.stage.note("user", "deletes %s %s (%s)%s", run.kind, run.name, run.uid, ", not its pods" * orphaned)
        self.cluster.remove(run)
        if not orphaned:
            self.cluster.kick(run)
            return
        for pod in run.pods.values():
            self.cluster.show(pod)

    def annotate(self, run: JobRun, *, served: bool) -> None:
        """Ask to be served, or not any more."""
        run.served = served
        run.touch(self.stage.agenda.now)
        self.stage.note("user", "%s %s %s", "annotates" if served else "takes the annotation off", run.kind, run.name)
        self.cluster.write(run)

    # --- the controller

    def sync(self, run: JobRun) -> None:
        """Create the pods that are due, or end all."""
        if run.orphaned:
            return
        if not run.runs:
            for pod in list(run.pods.values()):
                self.cluster.terminate(pod)
            return
        due = [index for index in range(run.completions) if index not in run.ended]
        for index in due[: run.shape.parallelism]:
            pod = run.pods.get((0, index))
            if pod is None or (run.replaces_early and pod.deadline is not None):
                self.cluster.add(run, 0, index, name=self.cluster.new_name(f"{run.name}-{index}"))

    def bound(self, run: JobRun, pod: PodRun) -> None:
        """A pod runs."""
        if run.fate != "forever":
            self.stage.agenda.after(run.run_seconds * self.stage.rng.uniform(0.5, 1.5), lambda: self._done(run, pod))

    def _done(self, run: JobRun, pod: PodRun) -> None:
        if pod.gone or pod.deadline is not None or run.pods.get((0, pod.index)) is not pod or not run.runs:
            return
        fails = run.fate == "fail" or self.stage.rng.random() < 0.1
        self.cluster.end(pod, "Failed" if fails else "Succeeded")
        self.cluster.schedule_soon()
        if not fails:
            run.ended.add(pod.index)
        run.failures_left -= fails
        if run.failures_left < 0 or len(run.ended) == run.completions:
            run.terminal = "Failed" if run.failures_left < 0 else "Complete"
            run.touch(self.stage.agenda.now)
            self.stage.note("job", "%s has ended: %s", run.name, run.terminal)
            self.cluster.write(run)
            if run.removed_at_once:
                self.cluster.remove(run)
        if fails and run.runs:
            self.stage.agenda.after(self.stage.rng.uniform(1.0, 20.0), lambda: self.cluster.kick(run))
        else:
            self.cluster.kick(run)
