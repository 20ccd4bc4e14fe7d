"""Plain Jobs: their objects, their controller, and a team that runs them.

A Job creates as many pods as its parallelism allows at the same time; each ends and is replaced independently. Some
Jobs replace a pod while it is still terminating, other Jobs only when the pod is removed. A Job selects nodes labelled
with its name, or leaves placement to the policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from provisioner import constants
from provisioner.kube.protocol import JsonObject
from provisioner.workloads import PLAIN_JOB
from tests.simulation.objects import PodRun, WorkloadRun
from tests.simulation.team import Team
from tests.support.objects import job_reference
from tests.support.simulations.stage import Agenda

if TYPE_CHECKING:
    from tests.simulation.workloads import Cluster


@dataclass(eq=False, slots=True, kw_only=True)
class JobRun(WorkloadRun):
    """A plain Job, which has a single slice."""

    of = PLAIN_JOB
    replicas: int = 1
    labels_uid: bool = True
    run_seconds: float
    completions: int
    failures_left: int
    #: Whether the Job has the annotation that requests pools.
    served: bool
    replaces_early: bool
    removed_at_once: bool
    #: Whether the Job was deleted without its pods.
    orphaned: bool = False
    #: Completion indexes that have succeeded.
    ended: set[int] = field(default_factory=set)

    @property
    def runs(self) -> bool:
        """Whether the Job should have pods, even if the provisioner does not serve it."""
        return not (self.gone or self.deleting or self.suspended or self.terminal)

    @property
    def alive(self) -> bool:
        return self.runs and self.served

    @property
    def separate(self) -> bool:
        return self.exclusive

    def leader(self, job: int) -> PodRun | None:
        """Return the pod with the lowest index that is not being deleted, None if there is no such pod."""
        left = {index: pod for (_, index), pod in self.pods.items() if pod.deadline is None}
        return left[min(left)] if left else None

    def pods_due(self, job: int) -> int:
        """Return the number of pods that a running Job should have: the parallelism, or fewer at the end of the Job."""
        return min(self.shape.parallelism, self.completions - len(self.ended))

    def group_name(self, job: int) -> str:
        return self.name

    def raw(self, agenda: Agenda) -> JsonObject:
        spec = {"parallelism": self.shape.parallelism, "completions": self.completions, "completionMode": "Indexed"}
        return {
            "metadata": {
                **self._metadata(agenda),
                "annotations": {constants.SERVE: "true"} if self.served else {},
            },
            "spec": {**spec, "suspend": self.suspended, "template": self._template()},
            "status": {
                "conditions": [
                    *([{"type": self.terminal, "status": "True"}] if self.terminal else []),
                    *self.suspension(agenda),
                ]
            },
        }

    def marks(self, job: int, index: int, *, controlled: bool = True) -> JsonObject:
        labels = {constants.JOB_NAME: self.name, constants.COMPLETION_INDEX: str(index)}
        marks: JsonObject = {"labels": labels | {constants.CONTROLLER_UID: self.uid}}
        owned = controlled and not self.orphaned
        return marks | ({"ownerReferences": [job_reference(self.name, uid=self.uid)]} if owned else {})


class JobController:
    """Controller of the pods of all plain Jobs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stage = cluster.stage

    def delete(self, run: JobRun, *, orphaned: bool) -> None:
        """Delete a Job; its pods are deleted after it, or remain without an owner if `orphaned`."""
        run.deleting, run.orphaned = True, orphaned
        self.stage.note("user", "deletes %s %s (%s)%s", run.kind, run.name, run.uid, ", not its pods" * orphaned)
        self.cluster.remove(run)
        if not orphaned:
            self.cluster.kick(run)
            return
        for pod in run.pods.values():
            self.cluster.show(pod)

    def annotate(self, run: JobRun, *, served: bool) -> None:
        run.served = served
        run.touch(self.stage.agenda.now)
        self.stage.note("user", "%s %s %s", "annotates" if served else "takes the annotation off", run.kind, run.name)
        self.cluster.write(run)

    def sync(self, run: JobRun) -> None:
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


class JobTeam(Team[JobRun]):
    """Users that create plain Jobs."""

    run_type = JobRun
    title, presence, creates = "job team", 0.2, 0.3
    names = ("sweep", "sweep", "train")

    def _runs(self) -> list[JobRun]:
        return [run for run in super()._runs() if run.runs]

    def _make(self, name: str) -> JobRun:
        rng, admission = self._rng, self.simulation.admission
        shape = rng.choice([candidate for candidate in self.simulation.people.shapes if candidate.feasible])
        namespace = admission.namespace()
        return JobRun(
            name=name,
            namespace=namespace,
            exclusive=admission.exclusive(namespace),
            priority=admission.priority(),
            uid=self.stage.store.new_uid("job"),
            shape=shape,
            fate=rng.choice(("complete", "complete", "complete", "forever", "fail")),
            run_seconds=rng.uniform(5.0, 90.0),
            completions=shape.parallelism * rng.choice((1, 1, 2)),
            failures_left=rng.choice((0, 3, 8)),
            served=rng.random() < 0.8,
            replaces_early=rng.random() < 0.5,
            removed_at_once=rng.random() < 0.3,
            created=self.stage.agenda.now,
        )

    def _change(self, run: JobRun) -> None:
        rng, jobs = self._rng, self.simulation.cluster.jobs
        match rng.choice(("delete", "again", "annotate", "annotate", "suspend")):
            case "delete":
                jobs.delete(run, orphaned=rng.random() < 0.3)
            case "again":
                jobs.delete(run, orphaned=False)
                self._create(run.name)
            case "annotate":
                jobs.annotate(run, served=not run.served)
            case _:
                self._suspend(run)
