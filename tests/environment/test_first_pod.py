"""Warnings for workloads whose first pod would get wrong variables or none."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.environment.review import problems_of_first_pod
from provisioner.settings.webhook import WebhookSettings

ALL = WebhookSettings(injection="all")
ASKS = {"labels": {"tpu-provisioner.cloud.google.com/inject": "enabled"}}


def pod_template(topology: str = "4x4", chips: int = 4, **metadata: Any) -> dict[str, Any]:
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": topology,
    }
    container = {"name": "c", "resources": {"limits": {"google.com/tpu": chips}} if chips else {}}
    return {"metadata": metadata, "spec": {"nodeSelector": selector, "containers": [container]}}


def stateful_set(template: dict[str, Any], replicas: int | None = 4, **spec: Any) -> dict[str, Any]:
    spec = {"replicas": replicas, "serviceName": "workers", **spec, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "train"}, "spec": spec}


def job(template: dict[str, Any], pods: int = 4, **spec: Any) -> dict[str, Any]:
    template = {**template, "spec": {**template["spec"], "subdomain": "workers"}}
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, **spec, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def replicated(name: str, template: dict[str, Any], pods: int = 4, replicas: int = 1) -> dict[str, Any]:
    job_spec = {"parallelism": pods, "completions": pods, "template": template}
    return {"name": name, "replicas": replicas, "template": {"spec": job_spec}}


def jobset(*jobs: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js"},
        "spec": {**spec, "replicatedJobs": list(jobs)},
    }


def leader_worker_set(replicas: int = 2, **pods: Any) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve"},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod_template(), **pods}},
    }


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (stateful_set(pod_template(), serviceName=""), "Pod ml/train-0: StatefulSet ml/train has no spec.service"),
        (stateful_set(pod_template(), 6), "has 4 pods of 4 chips, but there are 6"),
        (stateful_set(pod_template(), replicas=None), "has 4 pods of 4 chips, but there are 1"),
        (job(pod_template("3x3"), completions=None, parallelism=None), "topology 3x3 is not valid"),
        (job(pod_template(), completionMode="NonIndexed"), "Pod of Job ml/train: Job ml/train has no completionMode"),
        (
            jobset(replicated("a", pod_template()), network={"enableDNSHostnames": False}),
            "spec.network.enableDNSHostnames",
        ),
        (leader_worker_set(size=5), "Pod ml/serve-0: a tpu-v5-lite-podslice slice of topology 4x4 has 4 pods"),
        (leader_worker_set(size=6, leaderTemplate=pod_template(chips=0)), "Pod ml/serve-0-1: a tpu-v5-lite-podslice"),
    ],
    ids=[
        "no service",
        "replicas that fill no slice",
        "replicas by default",
        "a topology that nobody sells",
        "a Job without index",
        "a JobSet without host names",
        "a group that fills no slice",
        "workers that fill no slice",
    ],
)
def test_workload_whose_first_pod_has_a_problem_gets_one_warning(raw: dict[str, Any], problem: str):
    found = problems_of_first_pod(raw, ALL, "ml")
    assert len([message for message in found if problem in message]) == 1, found


@pytest.mark.parametrize(
    "raw",
    [
        stateful_set(pod_template()),
        stateful_set(pod_template(), ordinals={"start": 3}),
        job(pod_template()),
        jobset(replicated("a", pod_template(), replicas=2), replicated("b", pod_template(chips=0))),
        leader_worker_set(),
        leader_worker_set(size=5, leaderTemplate=pod_template(chips=0)),
        leader_worker_set(leaderTemplate=pod_template(), size=8, subGroupPolicy={"subGroupSize": 4}),
        stateful_set(pod_template(labels={"tpu-provisioner.cloud.google.com/inject": "disabled"}), 5),
        stateful_set({"spec": {"containers": [{"name": "web"}]}}, serviceName=""),
        stateful_set(pod_template(), 0),
        job(pod_template(), 0),
        jobset(replicated("a", pod_template(), replicas=0)),
        leader_worker_set(0, size=5),
        stateful_set({"spec": {"containers": [{"resources": {"limits": {"google.com/tpu": "many"}}}]}}, serviceName=""),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "workers"}},
        {"apiVersion": "example.com/v1", "kind": "StatefulSet", "spec": {"template": pod_template()}},
        {},
    ],
)
def test_correct_or_unserved_workload_gets_no_warning(raw: dict[str, Any]):
    assert problems_of_first_pod(raw, ALL, "ml") == ()


def test_workload_gets_warnings_only_if_the_setting_or_its_label_requests_variables():
    wrong = stateful_set(pod_template(), serviceName="")
    assert problems_of_first_pod(wrong, WebhookSettings(), "ml") == ()
    assert problems_of_first_pod(wrong, WebhookSettings(injection="off"), "ml") == ()
    assert problems_of_first_pod({**wrong, "metadata": {"name": "train", **ASKS}}, WebhookSettings(), "ml") != ()
    assert problems_of_first_pod(stateful_set(pod_template(**ASKS), serviceName=""), WebhookSettings(), "ml") != ()
