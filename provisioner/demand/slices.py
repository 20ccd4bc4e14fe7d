"""From JobSets and their pods to slices.

A slice is what one child Job of a living JobSet needs. Child Jobs without chips are no slices. A slice exists from its
JobSet's creation on, but wants a pool only once its leader pod cannot be scheduled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from provisioner import constants, tpu
from provisioner.demand.serving import ServingPolicy
from provisioner.model.workloads import (
    JobKey,
    JobSet,
    JobSets,
    JobSetUid,
    Pod,
    ReplicatedJob,
    Requirements,
    Toleration,
    job_key,
)

#: GKE's API server adds it to every pod that asks for chips; templates do not have it yet.
_CHIP_TOLERATION = Toleration(key=constants.TPU_RESOURCE, operator="Exists")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SliceId:
    """Identifies a slice over restarts of its JobSet, and apart from an earlier JobSet of the same name."""

    jobset_uid: JobSetUid
    job_key: JobKey

    def __str__(self) -> str:
        return f"{self.jobset_uid}/{self.job_key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one child Job needs."""

    id: SliceId
    jobset: JobSet
    #: Name of the child Job.
    job_name: str
    #: The leader pod's requirements, else the template's.
    requirements: Requirements
    #: The unfinished leader pod that is not being deleted.
    leader: Pod | None
    #: All unfinished pods of the child Job, oldest incarnation included.
    pods: tuple[Pod, ...]
    parallelism: int
    #: Slices of its JobSet, itself included.
    siblings: int = 1
    #: May buy.
    served: bool
    #: None where the request is no valid slice.
    shape: tpu.Shape | None
    #: Why there is no shape, for the user.
    shape_problem: str = ""

    @property
    def wanting(self) -> bool:
        """Whether the slice has a leader that is served and cannot be scheduled."""
        return self.served and self.leader is not None and self.leader.unschedulable_since is not None

    @property
    def nodes(self) -> int:
        """Nodes that the slice needs; 0 where it has no shape."""
        return 0 if self.shape is None else self.shape.nodes(self.parallelism)


def find_slices(jobsets: JobSets, pods: Iterable[Pod], policy: ServingPolicy) -> dict[SliceId, Slice]:
    """List the slices of all living JobSets: not finished, not suspended, not being deleted.

    A pod makes no slice by itself: its Job has to be one of those that the JobSet's spec lists. What other pods are
    bound to is still seen by the matching.
    """
    pods_of: dict[SliceId, list[Pod]] = defaultdict(list)
    for pod in pods:
        slice_id = slice_id_of(pod, jobsets)
        if slice_id is not None and not pod.finished:
            pods_of[slice_id].append(pod)
    slices: dict[SliceId, Slice] = {}
    for jobset in jobsets.by_uid.values():
        if not _alive(jobset):
            continue
        for job_name, job in _child_jobs(jobset):
            slice_id = SliceId(jobset_uid=jobset.uid, job_key=job_key(jobset.namespace, job_name))
            members = pods_of.get(slice_id, [])
            # Chips that only a webhook adds show on the pods alone.
            if job.template.chips > 0 or members:
                slices[slice_id] = _slice(slice_id, jobset, job_name, job.template, job.parallelism, members, policy)
    siblings = Counter(slice_id.jobset_uid for slice_id in slices)
    return {
        slice_id: each if siblings[slice_id.jobset_uid] == 1 else replace(each, siblings=siblings[slice_id.jobset_uid])
        for slice_id, each in slices.items()
    }


def slice_id_of(pod: Pod, jobsets: JobSets) -> SliceId | None:
    """Tell which slice a pod belongs to; None where its JobSet cannot be told, or no Job controls it."""
    uid = jobsets.uid_of(pod)
    return SliceId(jobset_uid=uid, job_key=pod.job_key) if uid and pod.job_key else None


def _alive(jobset: JobSet) -> bool:
    run_here = jobset.managed_by in ("", constants.JOBSET_CONTROLLER)
    return run_here and jobset.lives


def _child_jobs(jobset: JobSet) -> Iterator[tuple[str, ReplicatedJob]]:
    for job in jobset.replicated_jobs:
        for index in range(job.replicas):
            yield f"{jobset.name}-{job.name}-{index}", job


def _slice(
    slice_id: SliceId,
    jobset: JobSet,
    job_name: str,
    template: Requirements,
    parallelism: int,
    pods: list[Pod],
    policy: ServingPolicy,
) -> Slice:
    leaders = [pod for pod in pods if pod.completion_index == constants.LEADER_INDEX and pod.deletion_deadline is None]
    # A restart may show two generations for a moment; the one that waits is the one to serve.
    leader = min(leaders, key=lambda pod: (pod.node_name != "", pod.name), default=None)
    requirements = (
        leader.requirements
        if leader is not None
        else replace(template, tolerations=(*template.tolerations, _CHIP_TOLERATION))
    )
    shape, problem = _shape(requirements)
    return Slice(
        id=slice_id,
        jobset=jobset,
        job_name=job_name,
        requirements=requirements,
        leader=leader,
        pods=tuple(pods),
        parallelism=parallelism,
        served=policy.serves(jobset, requirements),
        shape=shape,
        shape_problem=problem,
    )


def _shape(requirements: Requirements) -> tuple[tpu.Shape | None, str]:
    selector = requirements.node_selector
    accelerator = selector.get(constants.TPU_ACCELERATOR)
    if accelerator is None:
        valid = ", ".join(tpu.ACCELERATORS)
        return None, f"the pod has no nodeSelector {constants.TPU_ACCELERATOR}; add it with one of {valid}"
    try:
        shape = tpu.resolve(
            accelerator,
            selector.get(constants.TPU_TOPOLOGY, ""),
            requirements.chips,
            selector.get(constants.INSTANCE_TYPE, ""),
        )
    except tpu.ShapeError as error:
        return None, str(error)
    return shape, ""
