"""Tests of the validation of created and updated workloads: warnings and rejections."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from provisioner import constants
from provisioner.admission.review import Answer, Request
from provisioner.environment.pods import read_pod
from provisioner.environment.review import inject
from provisioner.model.workloads import WorkloadKind
from provisioner.settings.webhook import WebhookSettings
from provisioner.slices.admission import Judge, Mode, review_workload
from provisioner.slices.offline.forecast import settings_by_object
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.any_json import spoilt
from tests.support.counting import counted
from tests.support.objects import (
    Json,
    job_reference,
    pod_spec,
    raw_job,
    raw_jobset,
    raw_lws,
    raw_pod,
    raw_raycluster,
    raw_stateful_set,
)
from tests.support.patches import apply_patch
from tests.support.settings import settings

pytestmark = pytest.mark.timeout(60)

#: Affinity that keeps all pods of a Job on one node pool.
ON_ONE_POOL: Json = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": constants.NODE_POOL, "matchLabelKeys": [constants.JOB_NAME], "labelSelector": {}}
        ]
    }
}
INJECTED = {constants.INJECT: "enabled"}
ON_DEMAND, SPOT = {constants.CAPACITY: "on-demand"}, {constants.CAPACITY: "spot"}
MULTISLICE = {"annotations": {constants.MULTISLICE: "true"}}
WRONG, CHIPS = pod_spec(topology="2x2x3"), pod_spec(chips=3)
ONE_HOST = pod_spec(topology="2x2x1")
V5P_1T = {
    constants.TPU_ACCELERATOR: "tpu-v5p-slice",
    constants.TPU_TOPOLOGY: "2x2x1",
    constants.INSTANCE_TYPE: "ct5p-hightpu-1t",
}
NO_TOPOLOGY = pod_spec(nodeSelector={constants.TPU_ACCELERATOR: "tpu-v4-podslice"})
NO_ACCELERATOR = pod_spec(nodeSelector={constants.TPU_TOPOLOGY: "2x2x2"})

BY_AFFINITY = pod_spec(
    nodeSelector={},
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": key, "operator": "In", "values": [value]}
                            for key, value in pod_spec()["nodeSelector"].items()
                        ]
                    }
                ]
            }
        }
    },
)


def with_memory(memory: str) -> Json:
    (container,) = ONE_HOST["containers"]
    requests = {**container["resources"]["requests"], "memory": memory}
    return {**ONE_HOST, "containers": [{**container, "resources": {**container["resources"], "requests": requests}}]}


def bare_pod(pod: Json | None = None, **metadata: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try", **metadata}, "spec": pod or pod_spec()}


def made_by(kind: str) -> Json:
    return job_reference("train", apiVersion=WorkloadKind(kind).api_version, kind=kind)


def jobset_of(job: Json) -> Json:
    raw = raw_jobset()
    raw["spec"]["replicatedJobs"][0]["template"]["spec"] |= job
    return raw


def plain_job(**parts: Any) -> Json:
    return raw_job(metadata={"annotations": {}}, **parts)


def parallel(replicas: int = 2, pod: Json | None = None) -> Json:
    """Return a StatefulSet that creates its pods at the same time, by default on one node pool."""
    raw = raw_stateful_set(replicas, pod or pod_spec(affinity=ON_ONE_POOL))
    return {**raw, "spec": {**raw["spec"], "podManagementPolicy": "Parallel"}}


def deployment(replicas: int = 2, pod: Json | None = None, **metadata: Any) -> Json:
    return {**raw_stateful_set(replicas, pod or ONE_HOST, service="", **metadata), "kind": "Deployment"}


def replica_set(pod: Json, owner: str) -> Json:
    raw = deployment(pod=pod, ownerReferences=[job_reference("web", apiVersion="apps/v1", kind=owner)])
    return {**raw, "kind": "ReplicaSet"}


def cron_job(**parts: Any) -> Json:
    job = plain_job(**parts)
    raw = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}}
    return {**raw, "spec": {"schedule": "0 1 * * *", "jobTemplate": {"spec": job["spec"]}}}


def with_marks(raw: Json, *path: str | int, **marks: Json) -> Json:
    """Return an object with labels and annotations on a template, by default its pod template."""
    changed = deepcopy(raw)
    template: Any = changed["spec"]
    for step in path or ("template",):
        template = template[step]
    template["metadata"] = marks
    return changed


def judge_by(**changes: Any) -> Judge:
    effective = settings(serve_jobs=True, **changes)
    return Judge(settings_of=lambda _: effective, rules=GKE_RULES)


USUAL = judge_by()
#: Judge for settings that do not serve pods of other controllers, such as Deployments.
UNSERVED = judge_by(serve_pods="none")
UNSET = Judge(settings_of=settings_by_object({}), rules=GKE_RULES)


def created(raw: Json, mode: Mode = Mode.DENY, by: Judge = USUAL, **request: Any) -> Answer:
    asked = Request(**{"operation": "CREATE", "kind": raw["kind"], "namespace": "ml", "object": raw, **request})
    return review_workload(asked, by, mode)


def updated(old: Json, new: Json, mode: Mode = Mode.DENY, by: Judge = USUAL, **request: Any) -> Answer:
    return created(new, mode, by, operation="UPDATE", old_object=old, **request)


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        pytest.param(
            raw_jobset(pod=WRONG),
            "spec.replicatedJobs[0].template.spec.template.spec.nodeSelector[cloud.google.com/gke-tpu-topology]",
            "nearest valid: 2x2x2, 2x2x4",
            id="a JobSet of an invalid topology, with the nearest ones",
        ),
        pytest.param(
            raw_jobset(parallelism=3),
            "spec.replicatedJobs[0].template.spec.parallelism",
            "set parallelism to 2",
            id="a JobSet of more pods than hosts",
        ),
        pytest.param(
            plain_job(pod=WRONG),
            "spec.template.spec.nodeSelector[cloud.google.com/gke-tpu-topology]",
            "topology 2x2x3 is not valid",
            id="a Job whose nodes somebody else makes",
        ),
        pytest.param(
            plain_job(parallelism=3), "spec.parallelism", "set completions and parallelism to 2", id="a Job of 3 pods"
        ),
        pytest.param(
            cron_job(parallelism=3),
            "spec.jobTemplate.spec.parallelism",
            "set completions and parallelism to 2",
            id="a CronJob of 3 pods",
        ),
        pytest.param(
            deployment(pod=WRONG),
            "spec.template.spec.nodeSelector[cloud.google.com/gke-tpu-topology]",
            "not valid",
            id="a Deployment of an invalid topology",
        ),
        pytest.param(
            deployment(pod=with_memory("9Ti")),
            "spec.template.spec.containers[0].resources.requests.memory",
            "requests 9216Gi memory",
            id="a Deployment of pods that fit no host",
        ),
        pytest.param(
            deployment(pod=with_memory("9Ti"), ownerReferences=[job_reference("llm", kind="InferenceService")]),
            "spec.template.spec.containers[0].resources.requests.memory",
            "requests 9216Gi memory",
            id="a Deployment of a controller that is not validated",
        ),
        pytest.param(
            replica_set(WRONG, "Rollout"),
            "spec.template.spec.nodeSelector[cloud.google.com/gke-tpu-topology]",
            "not valid",
            id="a ReplicaSet of a controller that is not validated",
        ),
        pytest.param(
            bare_pod(ONE_HOST, annotations={constants.CAPACITY: "sopt"}),
            f"metadata.annotations[{constants.CAPACITY}]",
            "'sopt'",
            id="a pod with an invalid annotation",
        ),
        pytest.param(
            raw_stateful_set(pod=CHIPS),
            "spec.template.spec.containers[0].resources.requests[google.com/tpu]",
            "requests 3 chips, and no host of",
            id="a StatefulSet of pods whose chips fit no host",
        ),
        pytest.param(
            bare_pod(WRONG),
            "spec.nodeSelector[cloud.google.com/gke-tpu-topology]",
            "not valid",
            id="a pod without an owner",
        ),
        pytest.param(
            bare_pod(WRONG, ownerReferences=[job_reference("web", kind="ReplicaSet")]),
            "spec.nodeSelector[cloud.google.com/gke-tpu-topology]",
            "not valid",
            id="a pod of an owner that is not validated",
        ),
        pytest.param(
            raw_jobset(pod=WRONG, metadata={"ownerReferences": [job_reference("t", kind="TrainJob")]}),
            "spec.replicatedJobs[0].template.spec.template.spec.nodeSelector[cloud.google.com/gke-tpu-topology]",
            "not valid",
            id="a JobSet of a TrainJob",
        ),
    ],
)
def test_mistake_causes_a_warning_or_a_rejection_depending_on_the_mode(raw: Json, field: str, words: str) -> None:
    warned, denied = created(raw, Mode.WARN), created(raw, Mode.DENY)
    assert (warned.denied, denied.warnings) == ("", ())
    assert [warning for warning in warned.warnings if warning.startswith(field) and words in warning], warned.warnings
    assert denied.denied == "\n".join(warned.warnings)
    assert created(raw, Mode.OFF) == Answer()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_jobset(replicas=3), id="a JobSet"),
        pytest.param(
            raw_jobset(replicas=4, parallelism=1, metadata={"annotations": None}), id="a child Job for each host"
        ),
        pytest.param(raw_lws(), id="a LeaderWorkerSet"),
        pytest.param(raw_job(pod=pod_spec(affinity=ON_ONE_POOL)), id="a Job"),
        pytest.param(plain_job(pod=pod_spec(affinity=ON_ONE_POOL)), id="a Job without the annotation"),
        pytest.param(cron_job(pod=pod_spec(affinity=ON_ONE_POOL)), id="a CronJob"),
        pytest.param(parallel(), id="a StatefulSet"),
        pytest.param(raw_stateful_set(replicas=3, pod=ONE_HOST), id="a StatefulSet of three hosts"),
        pytest.param(raw_stateful_set(replicas=0), id="a StatefulSet of no pods"),
        pytest.param(deployment(), id="a Deployment"),
        pytest.param(deployment(0), id="a Deployment of no pods"),
        pytest.param(bare_pod(ONE_HOST), id="a pod"),
        pytest.param(bare_pod(pod_spec(chips=0)), id="a pod without chips"),
        *(
            pytest.param(
                build(pod_spec(nodeSelector={}), labels={"kueue.x-k8s.io/queue-name": "q"}), id=f"a {what} of a queue"
            )
            for what, build in (("pod", bare_pod), ("Deployment", partial(deployment, 2)))
        ),
        pytest.param(replica_set(WRONG, "Deployment"), id="a ReplicaSet of a Deployment"),
        pytest.param(
            raw_job(pod=WRONG, metadata={"ownerReferences": [job_reference("n", kind="CronJob")]}),
            id="a Job of a CronJob",
        ),
        pytest.param(bare_pod(WRONG, annotations={constants.SLICE_TOPOLOGY: "2x2x3"}), id="a pod of dynamic slicing"),
        pytest.param(
            with_marks(deployment(pod=WRONG), labels={constants.DISABLE: "true"}), id="a Deployment whose pods opt out"
        ),
        pytest.param(
            raw_jobset(pod=WRONG, metadata={"labels": {constants.DISABLE: "true"}}), id="a JobSet that opts out"
        ),
        pytest.param(raw_jobset(pod=NO_ACCELERATOR, spec={"suspend": True}), id="a JobSet that Kueue completes"),
        pytest.param(raw_pod(spec=WRONG), id="a pod of a Job"),
        pytest.param(raw_job(pod=WRONG, metadata={"ownerReferences": [made_by("JobSet")]}), id="a child Job"),
        pytest.param(
            raw_stateful_set(pod=WRONG, ownerReferences=[made_by("LeaderWorkerSet")]),
            id="a StatefulSet of a LeaderWorkerSet",
        ),
        pytest.param(
            plain_job(pod=ONE_HOST, spec={"completions": 9}),
            id="a Job with more completions than parallelism",
        ),
        pytest.param(
            bare_pod(ONE_HOST, labels=INJECTED, annotations={constants.MULTISLICE: "true"}),
            id="keys of the provisioner",
        ),
        pytest.param({"kind": "DaemonSet", "spec": {"template": {"spec": WRONG}}}, id="a kind that is not validated"),
        pytest.param(bare_pod(WRONG, ownerReferences=[made_by("RayCluster")]), id="a pod of a RayCluster"),
        pytest.param(raw_jobset(spec={"replicatedJobs": "none"}), id="an object that the API server rejects"),
    ],
)
def test_valid_or_exempt_object_gets_no_warning(raw: Json) -> None:
    assert created(raw) == Answer()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(plain_job(), id="a Job"),
        pytest.param(plain_job(pod=pod_spec(nodeSelector={})), id="a Job that selects no topology"),
        pytest.param(cron_job(), id="a CronJob"),
        pytest.param(raw_stateful_set(replicas=4), id="a StatefulSet of two slices"),
        pytest.param(deployment(pod=with_memory("9Ti")), id="a Deployment of pods that fit no host of GKE"),
        pytest.param(bare_pod(), id="a pod"),
        pytest.param(bare_pod(pod_spec(nodeSelector={})), id="a pod that selects no topology"),
    ],
)
def test_warnings_that_depend_on_being_served_are_omitted_for_unserved_pods(raw: Json) -> None:
    assert created(raw, by=UNSERVED) == Answer()
    assert created(raw, by=judge_by(serve_pods="annotated")) == Answer()
    assert created(raw) != Answer()


@pytest.mark.parametrize("by", [USUAL, UNSERVED], ids=["served", "unserved"])
@pytest.mark.parametrize("replicas", [0, 1, 2, 300])
def test_deployment_on_several_hosts_gets_the_reason_and_is_admitted(replicas: int, by: Judge) -> None:
    """This Deployment is not rejected, because nodes that the provisioner did not create may run its pods."""
    found = created(deployment(replicas, pod_spec()), by=by)
    (warning,) = found.warnings
    assert found.denied == ""
    assert "pods of a Deployment have no index" in warning
    assert warning.endswith("use a JobSet or a LeaderWorkerSet")


@pytest.mark.parametrize("build", [deployment, raw_stateful_set, parallel], ids=["Deployment", "ordered", "parallel"])
@pytest.mark.parametrize("topology", ["2x2x1", "2x2x2", "2x2x4"])
@pytest.mark.parametrize("replicas", [0, 1, 2, 3, 4, 5, 257, 10_000])
def test_no_number_of_replicas_is_rejected(build: Callable[..., Json], topology: str, replicas: int) -> None:
    """If the number of replicas could be rejected, an autoscaler could not change it."""
    raw = build(replicas, pod_spec(topology=topology))
    assert created(raw, by=judge_by(max_chips=8)).denied == ""


@pytest.mark.parametrize("limited", [judge_by(max_chips=8), judge_by(allowed_namespaces=("prod",))])
@pytest.mark.parametrize("build", [deployment, raw_stateful_set], ids=["Deployment", "StatefulSet"])
def test_update_that_only_scales_is_not_validated(build: Callable[..., Json], limited: Judge) -> None:
    old, new = build(1, ONE_HOST), build(40, ONE_HOST)
    assert created(new, by=limited).warnings
    assert updated(old, new, by=limited) == Answer()
    assert updated(old, build(40, CHIPS), by=limited).denied


def test_slices_without_placement_get_a_warning_and_are_admitted() -> None:
    """The webhook does not know whether the placement policy will keep the pods of each slice on one node pool."""
    jobset = raw_jobset(metadata={"annotations": None})
    doubts = Judge(settings_of=USUAL.settings_of, rules=GKE_RULES, doubts=lambda _raw, _namespace: ("No variables.",))
    for answer in (created(jobset, Mode.WARN), created(jobset, Mode.DENY), created(jobset, Mode.DENY, doubts)):
        assert answer.denied == ""
        assert "nothing keeps the 2 pods of each slice on one node pool" in answer.warnings[0]
    assert "No variables." in created(jobset, by=doubts).warnings[1]
    assert updated(jobset, {**jobset, "spec": {**jobset["spec"], "suspend": False}}) == Answer()


VALID = list(yaml.safe_load_all(Path("tests/data/manifests/valid.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("raw", VALID, ids=lambda raw: f"{raw['kind']} {raw['metadata']['name']}")
@pytest.mark.parametrize("by", [USUAL, UNSET], ids=["set", "unset"])
def test_object_that_other_nodes_can_serve_is_not_rejected(raw: Json, by: Judge) -> None:
    assert created(raw, by=by).denied == ""


@pytest.mark.parametrize("part", ["leaderTemplate", "workerTemplate"])
def test_each_template_of_a_leaderworkerset_is_validated(part: str) -> None:
    raw = raw_lws()
    raw["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {"spec": pod_spec(chips=0)}
    raw["spec"]["leaderWorkerTemplate"][part] = {"spec": WRONG}
    found = created(raw).denied
    assert found.startswith(f"spec.leaderWorkerTemplate.{part}.")
    assert "topology 2x2x3 is not valid" in found


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param({}, id="nothing"),
        pytest.param({constants.NODE_POOL: "tpu-a"}, id="a node pool"),
        pytest.param({constants.QUEUED: "true"}, id="queued nodes"),
        pytest.param({constants.COMPUTE_CLASS: "tpu"}, id="a compute class"),
        pytest.param({constants.SPOT: "true", constants.RESERVATION_NAME: "r1"}, id="a contradiction"),
        pytest.param({constants.TPU_TOPOLOGY: "2x2x3"}, id="an invalid topology"),
    ],
)
@pytest.mark.parametrize("incomplete", [pod_spec(), NO_ACCELERATOR, NO_TOPOLOGY], ids=["", "accelerator", "topology"])
@pytest.mark.parametrize("build", [raw_jobset, plain_job], ids=["JobSet", "Job"])
def test_kueue_may_add_selectors_at_resume_and_remove_them_at_suspend(
    build: Callable[..., Json], incomplete: Json, selector: dict[str, str]
) -> None:
    pod = pod_spec()
    added = {**pod, "nodeSelector": {**pod["nodeSelector"], **selector}}
    suspended, resumed = build(pod=incomplete, spec={"suspend": True}), build(pod=added, spec={"suspend": False})
    for before, after in ((suspended, resumed), (resumed, suspended)):
        found = updated(before, after)
        assert found.denied == ""
        assert not [
            warning for warning in found.warnings if constants.NODE_POOL in warning or constants.QUEUED in warning
        ]


@pytest.mark.parametrize("build", [raw_jobset, raw_job], ids=["JobSet", "Job"])
def test_opt_in_label_with_a_key_of_the_provisioner_causes_no_warning(build: Callable[..., Json]) -> None:
    key = "tpu-provisioner.cloud.google.com/mine"
    raw = build(pod_metadata={"labels": {key: "yes"}}, pod=pod_spec(affinity=ON_ONE_POOL))
    (warning,) = created(raw).warnings
    assert warning.endswith(f"the label {key} is not read; remove it")
    assert created(raw, by=judge_by(opt_in_label=(key, "yes"))) == Answer()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_jobset(pod_metadata={"labels": INJECTED}, metadata={"labels": INJECTED}), id="on both"),
        pytest.param(raw_jobset(pod_metadata={"annotations": INJECTED}), id="on the pod template"),
        pytest.param(raw_stateful_set(pod=ONE_HOST, labels=INJECTED), id="on a StatefulSet"),
        pytest.param(bare_pod(ONE_HOST, labels={constants.INJECT: "disabled"}), id="on a pod"),
        pytest.param(
            with_marks(deployment(annotations=ON_DEMAND), annotations=ON_DEMAND),
            id="a capacity on a Deployment and its pods",
        ),
        pytest.param(bare_pod(ONE_HOST, annotations=ON_DEMAND), id="a capacity on a pod"),
        pytest.param(
            with_marks(cron_job(pod=ONE_HOST), "jobTemplate", annotations={constants.SERVE: "true", **ON_DEMAND}),
            id="a capacity on the served Jobs of a CronJob",
        ),
    ],
)
def test_key_that_is_read_causes_no_warning(raw: Json) -> None:
    assert created(raw) == Answer()


def test_opt_out_that_is_not_read_is_reported_and_hides_no_mistake() -> None:
    found = created(deployment(pod=WRONG, annotations={constants.DISABLE: "true"}))
    assert "2x2x3 is not valid" in found.denied
    (warning,) = found.warnings
    assert warning.endswith(f"{constants.DISABLE} is not read on a Deployment; put it on the pod template")


def test_misspelled_resource_causes_a_warning() -> None:
    pod = {**pod_spec(), "containers": [{"resources": {"limits": {"google.com/tpus": 4}}}]}
    (warning,) = created(raw_jobset(pod=pod)).warnings
    assert warning.endswith("google.com/tpus is not a resource of TPU nodes; write google.com/tpu")


@pytest.mark.parametrize(
    ("resources", "shown"),
    [
        ({"requests": {"google.com/tpu": 4}}, "google.com/tpu is 4, unlike its limit"),
        ({"requests": {"google.com/tpu": "2"}, "limits": {"google.com/tpu": 4}}, "is '2', unlike its limit"),
        ({"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": 4}}, ""),
        ({"limits": {"google.com/tpu": 4}}, ""),
    ],
)
def test_chips_with_another_request_than_limit_cause_a_warning(resources: dict[str, Any], shown: str) -> None:
    """The API server accepts the JobSet, and rejects the pods of its child Jobs."""
    warnings = created(raw_jobset(pod={**pod_spec(), "containers": [{"resources": resources}]})).warnings
    assert [shown in warning for warning in warnings] == [True] * bool(shown)


def test_resumed_jobset_gets_warnings_on_selectors_that_kueue_added() -> None:
    suspended = raw_jobset(pod=NO_ACCELERATOR, spec={"suspend": True})
    assert updated(suspended, raw_jobset()) == Answer()
    assert "2x2x3" in "".join(updated(suspended, raw_jobset(pod=WRONG)).warnings)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_jobset(pod=NO_TOPOLOGY), id="a JobSet without a topology"),
        pytest.param(
            raw_jobset(metadata={"labels": {constants.SLICE_AUTOPROVISIONING: "sync"}}),
            id="a JobSet for a controller of Slice resources",
        ),
        pytest.param(
            raw_jobset(metadata={"annotations": {constants.CAPACITY: "on-demand, on-demand@us-east1-b"}}),
            id="a choice that is skipped",
        ),
        pytest.param(
            raw_jobset(
                pod=pod_spec(nodeSelector={**pod_spec()["nodeSelector"], "cloud.google.com/unheard-of": "x"}),
            ),
            id="a label that nodes may not have",
        ),
        pytest.param(raw_jobset(parallelism=1), id="a JobSet of fewer pods than hosts"),
        pytest.param(
            raw_jobset(pod=pod_spec(nodeSelector={**pod_spec()["nodeSelector"], constants.MAX_RUN_SECONDS: "60"})),
            id="nodes with a maximum duration of 60 s",
        ),
        pytest.param(raw_jobset(replicas=2, parallelism=1), id="a JobSet whose child Jobs may share a slice"),
        pytest.param(plain_job(parallelism=1), id="a Job of fewer pods"),
        pytest.param(plain_job(parallelism=4, pod_metadata=MULTISLICE), id="a Job of a multislice"),
        pytest.param(plain_job(parallelism=5, pod_metadata=MULTISLICE), id="a Job of an incomplete multislice"),
        pytest.param(cron_job(parallelism=4, pod_metadata=MULTISLICE), id="a CronJob of a multislice"),
        pytest.param(raw_stateful_set(1), id="a StatefulSet of fewer pods"),
        pytest.param(raw_stateful_set(5, pod=BY_AFFINITY), id="a StatefulSet that selects its topology by affinity"),
        pytest.param(raw_stateful_set(5), id="a StatefulSet of more pods than hosts"),
        pytest.param(parallel(4), id="a StatefulSet of two slices"),
        pytest.param(bare_pod(), id="a pod on several hosts"),
        pytest.param(bare_pod(pod_spec(nodeSelector={})), id="a pod that selects no topology"),
        pytest.param(cron_job(spec={"completionMode": "NonIndexed"}), id="a CronJob of a slice without indexes"),
        pytest.param(
            plain_job(spec={"completions": 4}, pod=pod_spec(affinity=ON_ONE_POOL)),
            id="a Job that fills its slice twice",
        ),
        *(
            pytest.param(build(pod=pod), id=f"{what} of {of}")
            for of, build in (("a JobSet", raw_jobset), ("a Job", plain_job), ("a StatefulSet", raw_stateful_set))
            for what, pod in (
                ("a later generation", pod_spec(accelerator="tpu8t")),
                ("a machine type that one source lists", pod_spec(nodeSelector=V5P_1T, chips=1)),
                ("an order of axes that one source lists", pod_spec(topology="4x2x2")),
            )
        ),
        pytest.param(plain_job(spec={"completionMode": "NonIndexed"}), id="a Job of a slice without indexes"),
        pytest.param(raw_job(spec={"completionMode": "NonIndexed"}), id="a served Job of a slice without indexes"),
        pytest.param(jobset_of({"completions": 4}), id="a child Job that fills its slice twice"),
        pytest.param(
            raw_jobset(metadata={"annotations": {"tpu-provisioner.cloud.google.com/capcity": "spot"}}),
            id="a misspelled key",
        ),
        pytest.param(
            raw_jobset(pod_metadata={"labels": {constants.ZONES: "us-central2-b"}}), id="a label that is an annotation"
        ),
        pytest.param(
            raw_stateful_set(pod=ONE_HOST, annotations={f"{constants.INJECT}ed": "enabled"}),
            id="a misspelled key of a StatefulSet",
        ),
        *(
            pytest.param({**raw, "metadata": {**raw["metadata"], "labels": labels}}, id=f"the pods' {key} on a {of}")
            for key, labels in (("label", INJECTED), ("old label", {constants.INJECT_KEYS[1]: "enabled"}))
            for of, raw in (
                ("JobSet", raw_jobset()),
                ("LeaderWorkerSet", raw_lws()),
                ("RayCluster", raw_raycluster(template={"spec": pod_spec(affinity=ON_ONE_POOL)})),
                ("Job", plain_job(pod=ONE_HOST)),
                ("CronJob", cron_job(pod=ONE_HOST)),
                ("Deployment", deployment()),
            )
        ),
        *(
            pytest.param({**raw, "metadata": {**raw["metadata"], "annotations": SPOT}}, id=f"a capacity on a {of}")
            for of, raw in (
                ("Job", plain_job(pod=ONE_HOST)),
                ("CronJob", cron_job(pod=ONE_HOST)),
                ("Deployment", deployment()),
                ("StatefulSet", raw_stateful_set(pod=ONE_HOST)),
            )
        ),
        *(
            pytest.param(with_marks(raw, *path, **{part: marks}), id=f"{next(iter(marks))} on a Job template of a {of}")
            for of, raw, path in (
                ("JobSet", raw_jobset(), ("replicatedJobs", 0, "template")),
                ("CronJob", cron_job(pod=ONE_HOST), ("jobTemplate",)),
            )
            for part, marks in (("labels", INJECTED), ("annotations", SPOT), ("labels", {constants.DISABLE: "true"}))
        ),
        pytest.param(raw_jobset(pod_metadata={"labels": {constants.INJECT: "true"}}), id="an unknown value of a label"),
        pytest.param(bare_pod(ONE_HOST, labels={f"{constants.INJECT}s": "enabled"}), id="a misspelled key of a pod"),
        pytest.param(deployment(labels={f"{constants.INJECT}s": "x"}), id="a misspelled key of a Deployment"),
    ],
)
def test_doubtful_object_gets_a_warning_and_is_not_rejected(raw: Json) -> None:
    for mode in (Mode.WARN, Mode.DENY):
        found = created(raw, mode)
        assert (found.denied, len(found.warnings)) == ("", 1)


@pytest.mark.parametrize(
    ("changes", "raw", "words"),
    [
        pytest.param({"max_chips": 16}, raw_jobset(uid="", replicas=3), "MAX_CHIPS", id="more chips than allowed"),
        pytest.param({"allowed_namespaces": ("prod",)}, raw_jobset(), "namespace", id="a namespace without rights"),
        pytest.param(
            {"allowed_reservations": ("r2",)},
            raw_jobset(metadata={"annotations": {constants.CAPACITY: "reservation/r1"}}),
            "r1",
            id="a reservation that is not allowed",
        ),
        pytest.param({"max_creates_per_hour": 1}, raw_jobset(replicas=3), "", id="a limit that time lifts"),
        pytest.param({"pause_creation": True}, raw_jobset(), "", id="a pause"),
        pytest.param({"namespaces": ("prod",)}, raw_jobset(), "", id="a namespace that is not served"),
        pytest.param(
            {"namespaces": ("prod",)},
            raw_jobset(pod=WRONG),
            "2x2x3",
            id="a wrong shape in a namespace that is not served",
        ),
        pytest.param({"max_chips": 8}, deployment(17), "MAX_CHIPS", id="more chips than allowed for a Deployment"),
        pytest.param(
            {"max_chips": 4, "serve_pods": "none"}, raw_stateful_set(), "", id="a limit and pods that are not served"
        ),
    ],
)
def test_object_over_a_permanent_limit_or_outside_an_allow_list_gets_a_warning(
    changes: dict[str, Any], raw: Json, words: str
) -> None:
    found = created(raw, by=judge_by(**changes))
    assert words in "".join((found.denied, *found.warnings))
    assert bool(found.denied or found.warnings) == bool(words)
    # Objects over a limit or outside an allow-list are not rejected, because existing node pools may serve them.
    assert bool(found.denied) == ("2x2x3" in words)


def test_jobs_that_run_one_after_the_other_count_separately_in_limits() -> None:
    raw = raw_jobset(spec={})
    first = raw["spec"]["replicatedJobs"][0]
    raw["spec"]["replicatedJobs"] = [first, {**first, "name": "second"}]
    by = judge_by(max_chips=8)
    assert "MAX_CHIPS" in "".join(created(raw, by=by).warnings)
    raw["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "slice", "status": "Complete"}]
    assert created(raw, by=by) == Answer()


def changed(raw: Json, **metadata: Any) -> Json:
    return {**raw, "metadata": {**raw["metadata"], **metadata}}


OLD = raw_jobset(pod=WRONG, metadata={"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}})


@pytest.mark.parametrize(
    "new",
    [
        pytest.param({**OLD, "spec": {**OLD["spec"], "suspend": True}}, id="suspended"),
        pytest.param(changed(OLD, labels={"team": "a"}), id="labelled"),
        pytest.param(changed(OLD, finalizers=[]), id="without its finalizers"),
        pytest.param({**OLD, "status": {"conditions": []}}, id="with another status"),
    ],
)
def test_update_that_adds_no_mistake_is_accepted_without_warnings(new: Json) -> None:
    assert updated(OLD, new) == Answer()


def test_update_reports_new_mistakes_but_no_old_ones() -> None:
    new = raw_jobset(pod=WRONG, metadata={"annotations": {constants.CAPACITY: "sopt"}})
    found = updated(OLD, new)
    assert "'sopt'" in found.denied
    assert "2x2x3" not in found.denied
    assert updated(new, OLD) == Answer()


def test_update_that_only_adds_an_invalid_annotation_is_rejected() -> None:
    assert "'sopt'" in updated(raw_jobset(), raw_jobset(metadata={"annotations": {constants.CAPACITY: "sopt"}})).denied


def test_an_object_that_is_being_deleted_can_lose_its_finalizers() -> None:
    dying = changed(raw_jobset(pod=WRONG), deletionTimestamp="2026-01-01T00:00:00Z")
    assert updated(raw_jobset(), dying) == Answer()


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"operation": "DELETE", "object": {}}, id="a deletion"),
        pytest.param({"operation": "CONNECT"}, id="a connection"),
        pytest.param({"operation": "UPDATE", "subresource": "status"}, id="its status"),
        pytest.param({"operation": "UPDATE", "subresource": "scale"}, id="its scale"),
        pytest.param({"operation": "CREATE", "subresource": "binding"}, id="a binding"),
    ],
)
def test_other_operations_and_subresources_are_not_validated(request_: dict[str, Any]) -> None:
    assert created(raw_jobset(pod=WRONG), **request_) == Answer()


@pytest.mark.parametrize(
    ("old", "new", "denied"),
    [
        pytest.param(plain_job(parallelism=9), plain_job(parallelism=7), False, id="fewer pods"),
        pytest.param(
            changed(plain_job(parallelism=9), annotations={"kubectl.kubernetes.io/last-applied-configuration": "9"}),
            changed(plain_job(parallelism=7), annotations={"kubectl.kubernetes.io/last-applied-configuration": "7"}),
            False,
            id="fewer pods by kubectl apply",
        ),
        pytest.param(plain_job(parallelism=7), plain_job(parallelism=9), True, id="more pods"),
        pytest.param(
            plain_job(parallelism=9),
            plain_job(parallelism=7, pod=pod_spec(topology="2x2x4")),
            True,
            id="another slice too",
        ),
        pytest.param(plain_job(parallelism=2), plain_job(parallelism=1), False, id="fewer than hosts"),
        pytest.param(
            plain_job(parallelism=9),
            changed(plain_job(parallelism=7), annotations={"a": "b"}),
            True,
            id="another annotation too",
        ),
    ],
)
def test_scaling_down_a_wrong_job_causes_a_warning_and_no_rejection(old: Json, new: Json, *, denied: bool) -> None:
    found = updated(old, new, by=UNSERVED)
    assert bool(found.denied) == denied
    assert bool(found.warnings) != denied


def test_region_is_taken_from_the_object_if_the_settings_have_none() -> None:
    """The webhook may run without a metadata server, and then takes the region from the zones of the object."""
    by = Judge(settings_of=settings_by_object({"MAX_CHIPS": "16"}), rules=GKE_RULES)
    zones = {"annotations": {constants.ZONES: "europe-west4-a, europe-west4-b"}}
    assert created(raw_jobset(metadata=zones), by=by) == Answer()
    assert "MAX_CHIPS" in "".join(created(raw_jobset(metadata=zones, replicas=3), by=by).warnings)
    zones = {"annotations": {constants.ZONES: "europe-west4-a, us-east5-b"}}
    assert "us-east5-b is not in europe-west4" in created(raw_jobset(metadata=zones), by=by).denied


def required(key: str, operator: str, *values: str) -> Json:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_spec(nodeSelector={**pod_spec()["nodeSelector"], constants.REGION: "us-east5"}), id="region"),
        pytest.param(pod_spec(affinity=required(constants.ZONE, "In", "us-east5-b", "us-east5-c")), id="zones"),
        pytest.param(pod_spec(affinity=required(constants.ZONE, "NotIn", "us-east5-b")), id="other zones"),
        pytest.param(pod_spec(affinity=required(constants.REGION, "In", "us-east5")), id="region by affinity"),
    ],
)
def test_any_region_or_zone_is_accepted_without_settings(pod: Json) -> None:
    assert created(raw_jobset(pod=pod), by=UNSET) == Answer()


def test_warning_without_settings_contains_no_placeholder() -> None:
    pod = pod_spec(nodeSelector={**pod_spec()["nodeSelector"], constants.NODE_POOL: "tpu-a"})
    (warning,) = created(raw_jobset(pod=pod), by=UNSET).warnings
    assert "tpu-a" in warning
    assert "your-" not in warning


def test_region_is_taken_from_the_settings_if_they_have_one() -> None:
    variables = {"GCP_CLUSTER_LOCATION": "us-east5", "GCP_ZONE": "us-east5-a"}
    by = Judge(settings_of=settings_by_object(variables), rules=GKE_RULES)
    zones = {"annotations": {constants.ZONES: "europe-west4-a"}}
    assert "europe-west4-a is not in us-east5" in created(raw_jobset(metadata=zones), by=by).denied


def test_statefulset_gets_the_warning_that_its_pod_would_get() -> None:
    owner = raw_stateful_set(replicas=5, uid="u")
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "serve", "uid": "u", "controller": True}
    pod = read_pod(bare_pod(name="serve-4", ownerReferences=[reference]), "ml")
    assert pod is not None
    (of_pod,) = inject(pod, owner, WebhookSettings(injection="all")).problems
    (of_set,) = created(owner, Mode.WARN, UNSERVED).warnings
    assert of_set.endswith(f": {of_pod}")


@pytest.mark.parametrize(
    ("api_version", "kind", "is_judged"),
    [
        ("batch/v1", "Job", False),
        ("jobset.x-k8s.io/v1beta1", "JobSet", False),
        ("apps/v1", "StatefulSet", False),
        ("apps/v1", "ReplicaSet", False),
        ("batch.volcano.sh/v1alpha1", "Job", True),
        ("v1", "ReplicationController", True),
    ],
)
def test_pod_is_validated_unless_its_controller_was_validated(api_version: str, kind: str, *, is_judged: bool) -> None:
    """The webhook does not receive a Job of Volcano, so it must validate the pods of that Job."""
    reference = {"apiVersion": api_version, "kind": kind, "name": "train", "uid": "u", "controller": True}
    assert bool(created(bare_pod(CHIPS, ownerReferences=[reference])).denied) == is_judged


def many_jobs(count: int) -> Json:
    job = raw_jobset(pod=WRONG)["spec"]["replicatedJobs"][0]
    return raw_jobset(spec={"replicatedJobs": [{**job, "name": f"job-{number}"} for number in range(count)]})


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_stateful_set(replicas=10**400), id="more replicas than can be counted"),
        pytest.param(many_jobs(600), id="more templates than are read"),
        pytest.param(bare_pod(pod_spec(topology="9" * 100_000)), id="a topology of 100,000 digits"),
        pytest.param(bare_pod(pod_spec(accelerator="x" * 100_000)), id="an accelerator of 100,000 letters"),
    ],
)
def test_work_is_bounded_by_the_size_of_the_object(raw: Json) -> None:
    found, calls = counted(lambda: updated(raw_jobset(), raw))
    assert calls < 60_000 + 4 * len(json.dumps(raw))
    assert len(found.denied) < 100_000


@pytest.mark.parametrize("memory", ["1Gi", "9000Gi"])
def test_work_is_bounded_for_many_slices_with_many_choices_of_capacity(memory: str) -> None:
    """Reviews of all namespaces share a few threads, and a review that waits for more than 4 s gets 503."""
    raw = raw_jobset(metadata={"annotations": {constants.CAPACITY: "on-demand, spot, reservation/a, reservation/b"}})
    raw["metadata"]["annotations"][constants.ZONES] = ",".join(f"us-central2-{letter}" for letter in "abcdefghijklmnop")
    selectors = ({**ONE_HOST["nodeSelector"], f"own-{number}": "x"} for number in range(60))
    pods = [{"spec": {**with_memory(memory), "nodeSelector": selector}} for selector in selectors]
    raw["spec"]["replicatedJobs"] = [
        {"name": f"job-{number}", "replicas": 60, "template": {"spec": {"template": pod}}}
        for number, pod in enumerate(pods)
    ]
    found, calls = counted(lambda: created(raw))
    assert bool(found.denied) == (memory == "9000Gi")
    assert calls < 1_500_000


WHOLE = (
    *(raw_jobset(uid=""), raw_lws(), raw_job(), plain_job(pod=WRONG), raw_stateful_set(5), bare_pod(), OLD),
    *(deployment(pod=WRONG), cron_job(parallelism=3)),
)


@hypothesis_settings(max_examples=80)
@given(st.data())
def test_any_json_gets_an_answer_without_a_patch(data: st.DataObject) -> None:
    """An update that changes nothing must not be rejected, even if the object is invalid."""
    old, new = (spoilt(data, data.draw(st.sampled_from(WHOLE))) for _ in range(2))
    asked = {"kind": data.draw(st.sampled_from([raw["kind"] for raw in WHOLE])), "namespace": "ml"}
    request = Request(operation="UPDATE", object=new, old_object=old, **asked)
    for mode in (Mode.WARN, Mode.DENY):
        found = review_workload(request, UNSET, mode)
        assert found.denied == "" or mode is Mode.DENY
        assert apply_patch(new, found.patch) == new
    same = Request(operation="UPDATE", object=new, old_object=new, **asked)
    assert review_workload(same, UNSET, Mode.DENY) == Answer()
