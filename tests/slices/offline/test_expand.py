"""Tests of the predicted pods of workloads: they have the fields of the real pods that the provisioner reads."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Pod, WorkloadKind, group_key
from provisioner.slices.offline.expand import leaders_of, templates_of
from provisioner.workloads import KINDS
from provisioner.workloads.parse_pod import parse_pod
from tests.support.objects import pod_spec, raw_job, raw_jobset, raw_lws

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RECORDED = Path(__file__).parents[2] / "data" / "leaderworkerset" / "objects.json"
#: Labels that depend on the text of templates and do not identify the owner of the pod.
HASHES = ("controller-revision-hash", "leaderworkerset.sigs.k8s.io/template-revision-hash")


def leaders(kind: WorkloadKind, raw: dict[str, Any], *, place: int = 0) -> list[Pod]:
    workload = KINDS[kind].parse(raw)
    assert workload is not None
    return list(leaders_of(workload, raw, templates_of(kind, raw)[place], NOW))


def test_leaders_of_a_leaderworkerset_equal_the_recorded_pods() -> None:
    """The pods were recorded on a cluster. Names, labels, annotations and owners are compared."""
    objects = json.loads(RECORDED.read_text(encoding="utf-8"))
    recorded = [
        object_
        for object_ in objects
        if object_["kind"] == "Pod" and object_["metadata"]["name"] in ("serve-0", "serve-1")
    ]
    made = leaders(WorkloadKind.LEADER_WORKER_SET, objects[0])
    assert len(made) == len(recorded) == 2
    for real, ours in zip(recorded, made, strict=True):
        wanted = parse_pod(real)
        assert wanted is not None
        labels = {key: value for key, value in wanted.requirements.labels.items() if key not in HASHES}
        assert ours.requirements.labels == labels
        same = {
            field: getattr(wanted, field)
            for field in (
                "uid",
                "phase",
                "node_name",
                "created_at",
                "requirements",
                "unschedulable_since",
                "unschedulable_message",
            )
        }
        assert replace(ours, **same) == wanted
        assert replace(ours.requirements, labels={}, tolerations=()) == replace(
            wanted.requirements, labels={}, tolerations=()
        )


def two_jobs(**annotations: str) -> dict[str, Any]:
    raw = raw_jobset("train", namespace="team", uid="u1", job="a", replicas=2, metadata={"annotations": annotations})
    (first,) = raw["spec"]["replicatedJobs"]
    raw["spec"]["replicatedJobs"] = [first, {**first, "name": "b", "replicas": 3}]
    return raw


def test_leader_of_a_child_job_has_the_labels_of_jobset() -> None:
    """The expected labels are those that JobSet 0.11 sets for the last of five child Jobs."""
    pod = leaders(WorkloadKind.JOBSET, two_jobs(), place=1)[2]
    labels = pod.requirements.labels
    prefix = "jobset.sigs.k8s.io/"
    assert {key.removeprefix(prefix): value for key, value in labels.items() if key.startswith(prefix)} == {
        "jobset-name": "train",
        "jobset-uid": "u1",
        "replicatedjob-name": "b",
        "replicatedjob-replicas": "3",
        "global-replicas": "5",
        "restart-attempt": "0",
        "job-index": "2",
        "job-key": group_key("team", "train-b-2"),
        "job-global-index": "4",
        "group-name": "default",
        "group-replicas": "5",
        "job-group-index": "4",
    }
    assert (pod.workload_uid, pod.group_name, pod.completion_index) == ("u1", "train-b-2", 0)
    assert pod.unschedulable_since is not None
    assert labels[constants.JOB_NAME] == labels["job-name"] == "train-b-2"


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({}, None, id="without exclusive placement"),
        pytest.param(
            {"alpha.jobset.sigs.k8s.io/exclusive-topology": constants.NODE_POOL}, None, id="placed by affinity to pods"
        ),
        pytest.param(
            {
                "alpha.jobset.sigs.k8s.io/exclusive-topology": constants.NODE_POOL,
                "alpha.jobset.sigs.k8s.io/node-selector": "true",
            },
            "team_train-a-1",
            id="placed by a selector",
        ),
    ],
)
def test_exclusive_placement_adds_a_selector_only_with_the_node_selector_strategy(
    annotations: dict[str, str], want: str | None
) -> None:
    """Pod affinity, the default, adds no selector. The strategy adds a selector on a node label that names the Job."""
    of_job = two_jobs()
    of_job["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"annotations": annotations}
    for raw in (two_jobs(**annotations), of_job):
        pod = leaders(WorkloadKind.JOBSET, raw)[1]
        assert pod.requirements.node_selector.get("alpha.jobset.sigs.k8s.io/namespaced-job") == want
        taints = [toleration.key for toleration in pod.requirements.tolerations]
        assert ("alpha.jobset.sigs.k8s.io/no-schedule" in taints) == (want is not None)


def test_leaders_of_workloads_without_indexes_have_no_completion_index() -> None:
    """The default completion mode is Indexed for JobSets, and NonIndexed for Jobs."""
    plain = raw_jobset()
    plain["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] = "NonIndexed"
    without = [*leaders(WorkloadKind.JOBSET, plain), *leaders(WorkloadKind.JOB, raw_job(spec={"completionMode": None}))]
    assert [leader.completion_index for leader in without] == [None, None]
    (pod,) = leaders(WorkloadKind.JOB, raw_job())
    assert pod.completion_index == 0
    assert (pod.kind, pod.group_name, pod.workload_name) == (WorkloadKind.JOB, "sweep", "sweep")


def test_pods_tolerate_the_taint_of_tpu_nodes() -> None:
    """The API server adds the toleration at admission, but not to pods that only have resource claims."""
    own = [{"key": "own", "operator": "Exists"}]
    specs = pod_spec(tolerations=own), pod_spec(tolerations=own, chips=0, resourceClaims=[{"name": "tpu"}])
    pods = [pod for spec in specs for pod in leaders(WorkloadKind.JOBSET, raw_jobset(pod=spec))]
    assert [[toleration.key for toleration in pod.requirements.tolerations] for pod in pods] == [
        ["own", constants.TPU_RESOURCE],
        ["own"],
    ]


def test_missing_size_replicas_and_parallelism_count_as_1() -> None:
    """The API server sets all three values to 1 if they are missing."""
    (template,) = templates_of(WorkloadKind.JOB, raw_job(parallelism=None))
    assert template.pods == 1
    raw = raw_lws()
    del raw["spec"]["leaderWorkerTemplate"]["size"]
    assert len(leaders(WorkloadKind.LEADER_WORKER_SET, raw)) == 2
    del raw["spec"]["replicas"]
    assert len(leaders(WorkloadKind.LEADER_WORKER_SET, raw)) == 1
