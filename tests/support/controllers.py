"""Creates unschedulable pods like Kubernetes' controllers, with the fields that the provisioner reads.

Written from documentation and recordings of the controllers, independently of `provisioner.slices.offline.expand`,
which creates only leaders. `tests/e2e/test_offline.py` finds mistakes that both modules have.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from provisioner import constants
from provisioner.model.workloads import group_key
from tests.support.clock import NOW
from tests.support.objects import Json

#: Toleration that GKE's admission adds to every pod that requests chips.
_CHIPS = {"key": constants.TPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}
_UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient google.com/tpu.",
    "lastTransitionTime": NOW.isoformat(),
}
#: Maximum number of pods that are created for a plain Job.
_MOST_OF_A_JOB = 64
#: Maximum number of pods that are created for a child Job of a JobSet.
_MOST_OF_A_GROUP = 3
_JOBSET, _LWS = "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/"


def pods_of(raw: Json) -> Iterator[Json]:
    """Yield pods of each group: usually the leader of a LeaderWorkerSet, and the first pods of a large Job."""
    makers = {"JobSet": _of_jobset, "LeaderWorkerSet": _of_set, "Job": _of_plain_job}
    yield from makers[raw["kind"]](raw)


def _of_jobset(raw: Json) -> Iterator[Json]:
    owner, jobs = raw["metadata"], raw["spec"]["replicatedJobs"]
    before = 0
    total = sum(job.get("replicas", 1) for job in jobs)
    for job in jobs:
        template = job["template"]
        spec = {"completionMode": "Indexed", **template["spec"]}
        for index in range(job.get("replicas", 1)):
            name = f"{owner['name']}-{job['name']}-{index}"
            marks = {
                f"{_JOBSET}jobset-name": owner["name"],
                f"{_JOBSET}jobset-uid": owner["uid"],
                f"{_JOBSET}replicatedjob-name": job["name"],
                f"{_JOBSET}replicatedjob-replicas": str(job.get("replicas", 1)),
                f"{_JOBSET}global-replicas": str(total),
                f"{_JOBSET}job-index": str(index),
                f"{_JOBSET}job-global-index": str(before + index),
                f"{_JOBSET}job-key": group_key(owner["namespace"], name),
                f"{_JOBSET}restart-attempt": "0",
            }
            yield from _of_job(owner["namespace"], name, f"uid-of-{name}", spec, marks)
        before += job.get("replicas", 1)


def _of_plain_job(raw: Json) -> Iterator[Json]:
    owner = raw["metadata"]
    # The provisioner counts the pods of a plain Job: with at most _MOST_OF_A_GROUP pods, a Job would look too small.
    yield from _of_job(owner["namespace"], owner["name"], owner["uid"], raw["spec"], {}, most=_MOST_OF_A_JOB)


def _of_job(
    namespace: str, job: str, uid: str, spec: Json, marks: dict[str, str], most: int = _MOST_OF_A_GROUP
) -> Iterator[Json]:
    parallelism = spec.get("parallelism", 1)
    pods = min(parallelism, spec.get("completions", parallelism))
    indexed = spec.get("completionMode") == "Indexed"
    for index in range(min(pods, most)):
        labels = {"batch.kubernetes.io/job-name": job, "job-name": job, "batch.kubernetes.io/controller-uid": uid}
        own = {"batch.kubernetes.io/job-completion-index": str(index)} if indexed else {}
        yield _pod(
            spec["template"],
            name=f"{job}-{index}-abcde" if indexed else f"{job}-abcd{index}",
            namespace=namespace,
            labels={**marks, **labels, **own},
            annotations={**marks, **own},
            owner={"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid},
        )


def _of_set(raw: Json) -> Iterator[Json]:
    """Yield the leaders of a LeaderWorkerSet, or all of its pods if it has subgroups."""
    owner, groups = raw["metadata"], raw["spec"]["leaderWorkerTemplate"]
    size, policy = groups.get("size", 1), groups.get("subGroupPolicy", {})
    for group in range(raw["spec"].get("replicas", 1)):
        leader = f"{owner['name']}-{group}"
        for worker in range(size if policy else 1):
            name = f"{leader}-{worker}" if worker else leader
            labels = {
                f"{_LWS}name": owner["name"],
                f"{_LWS}worker-index": str(worker),
                f"{_LWS}group-index": str(group),
                f"{_LWS}group-key": group_key(owner["namespace"], leader),
                "apps.kubernetes.io/pod-index": str(worker or group),
                "statefulset.kubernetes.io/pod-name": name,
            }
            annotations = {f"{_LWS}size": str(size)}
            if policy:
                per_slice, policy_type = policy["subGroupSize"], policy.get("subGroupPolicyType", "LeaderWorker")
                annotations |= {f"{_LWS}subgroup-size": str(per_slice)}
                annotations |= {} if worker else {f"{_LWS}subgroup-policy-type": policy_type}
                if worker or policy_type == "LeaderWorker":
                    before = worker - 1 if (size - 1) % per_slice == 0 and worker else worker
                    labels[f"{_LWS}subgroup-index"] = number = str(before // per_slice)
                    labels[f"{_LWS}subgroup-key"] = group_key(leader, number)
            yield _pod(
                groups["workerTemplate"] if worker else groups.get("leaderTemplate") or groups["workerTemplate"],
                name=name,
                namespace=owner["namespace"],
                labels=labels,
                annotations=annotations,
                owner={
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "name": leader if worker else owner["name"],
                    "uid": "uid-of-statefulset",
                },
            )


def _pod(template: Json, *, name: str, namespace: str, labels: Json, annotations: Json, owner: dict[str, Any]) -> Json:
    spec = copy.deepcopy(template["spec"])
    spec["tolerations"] = [*spec.get("tolerations", []), _CHIPS]
    own = template.get("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{namespace}-{name}",
            "creationTimestamp": NOW.isoformat(),
            "labels": {**own.get("labels", {}), **labels},
            "annotations": {**own.get("annotations", {}), **annotations},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [_UNSCHEDULABLE]},
    }
