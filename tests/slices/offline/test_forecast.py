"""Tests of the plan for manifests: its pools are those of a decision, and mistakes are reported with their lines."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants, workloads
from provisioner.cli.manifests import read_documents, read_manifests
from provisioner.model.placement import labels_of
from provisioner.model.workloads import WorkloadKind, group_key
from provisioner.settings import Settings, read_settings
from provisioner.slices.offline.documents import Document, Severity, objects_of
from provisioner.slices.offline.expand import cluster_of
from provisioner.slices.offline.forecast import Forecast, assumed, forecast
from provisioner.slices.offline.reading import MAX_KEYS, MAX_SLICES
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.gke.translate import create_request_json
from tests.support.any_json import spoilt
from tests.support.models import make_pod
from tests.support.objects import (
    job_reference,
    pod_spec,
    raw_buffer,
    raw_job,
    raw_jobset,
    raw_lws,
    raw_pod,
    raw_raycluster,
    raw_request,
    raw_stateful_set,
)
from tests.support.settings import REQUIRED, settings
from tests.support.world import World

pytestmark = pytest.mark.timeout(60)

SUBGROUPS = Path(__file__).parents[2] / "data" / "leaderworkerset" / "subgroups.yaml"
EXAMPLES = Path(__file__).parents[3] / "examples"
#: Line with the kind of a workload; each file of FILES contains exactly one workload.
_KINDS = re.compile(r"(?m)^kind: (JobSet|LeaderWorkerSet|Ray\w+|Job)$")
FILES = sorted(
    file
    for file in EXAMPLES.rglob("*.yaml")
    if _KINDS.search(file.read_text("utf-8")) and file.parent.name not in ("nodegroups", "partitions", "three-teams")
)
SERVING = settings(serve_jobs=True)
#: Labels that depend on the UID of an object.
UNKNOWN = (constants.POOL_JOBSET_UID, constants.POOL_WORKLOAD_UID, constants.NODEPOOL_HASH)


def plan_text(text: str, settings_: Settings = SERVING) -> Forecast:
    documents, problems = read_documents("f", text)
    assert problems == []
    return forecast([object_ for document in documents for object_ in objects_of(document)], settings_, GKE_RULES)


def plan(*raws: dict[str, Any], settings_: Settings = SERVING) -> Forecast:
    return plan_text(yaml.safe_dump_all(raws), settings_)


def bodies(requests: list[Any]) -> list[dict[str, Any]]:
    """Return the request bodies for GKE without the parts that depend on UIDs."""
    found = []
    for request in requests:
        body = create_request_json("projects/p/locations/l/clusters/c", request)
        body["nodePool"]["name"] = re.sub(r"-[0-9a-f]{10}$", "", body["nodePool"]["name"])
        for key in UNKNOWN:
            body["nodePool"]["config"]["labels"].pop(key, None)
        found.append(body)
    return sorted(found, key=lambda body: str(body["nodePool"]["config"]["labels"].items()))


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(EXAMPLES)) for file in FILES])
def test_pools_of_every_example_are_those_of_a_decision(file: Path) -> None:
    documents = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    (raw,) = (candidate for candidate in map(cluster_of, documents) if candidate["kind"] in set(WorkloadKind))
    raw["metadata"] |= {"namespace": "default", "uid": "0b1e7f8a-6f3c-4f0e-9a52-0c8f6a7e1d20"}
    workload = workloads.KINDS[WorkloadKind(raw["kind"])].parse(raw)
    assert workload is not None
    world = World(settings_=SERVING)
    world.workloads[workload.uid] = workload
    for number in range(workload.groups[0].replicas):
        name = "-".join(filter(None, (workload.name, workload.groups[0].name, str(number))))
        group = workload.name if workload.kind is WorkloadKind.JOB else name
        together = constants.ALL_OR_NOTHING in {**workload.annotations, **workload.groups[0].template.annotations}
        pod = make_pod(workload, job=number, group_name=group, group_key=group_key("default", group))
        if together:
            # `plan` assumes that admission adds marks to the pods of all-or-nothing workloads.
            marks = labels_of(f"j-{pod.group_key}", "default")
            selector = {**pod.requirements.node_selector, **marks}
            pod = replace(pod, requirements=replace(pod.requirements, node_selector=selector))
        world.put(pod)
    decided = [create.request for create in world.look().creates]
    found = forecast(read_manifests([str(file)]).documents, SERVING, GKE_RULES)
    assert found.all_served
    assert bodies([pool.request for pool in found.pools]) == bodies(decided)
    assert decided


def test_plan_of_a_set_with_subgroups_has_a_pool_for_each_subgroup() -> None:
    """The leader requests no chips, and runs on a host of subgroup 0."""
    found = forecast(read_manifests([str(SUBGROUPS)]).documents, SERVING, GKE_RULES)
    assert (found.all_served, found.remarks) == (True, ())
    assert [(pool.slice_.group_name, pool.request.hosts, pool.chips) for pool in found.pools] == [
        (f"disaggregated-subgroup-{subgroup}-{group}", 2, 8) for subgroup in (0, 1) for group in (0, 1)
    ]


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        pytest.param("subGroupSize: 2", "subGroupSize: 3", "divides neither its size 5", id="no whole subgroups"),
        pytest.param("subGroupSize: 2", "subGroupSize: 4", "set subGroupSize to 2", id="more pods than hosts"),
        pytest.param("subgroup-exclusive", "exclusive", "binds all subgroups", id="one node pool for all"),
    ],
)
def test_plan_reports_subgroups_that_are_no_slices_at_their_line(change: str, line: str, words: str) -> None:
    text = SUBGROUPS.read_text(encoding="utf-8").replace(change, line)
    found = plan_text(text)
    (remark,) = {(finding.line, finding.message) for finding in found.remarks if words in finding.message}
    marked = text.splitlines()[remark[0] - 1]
    assert any(part in marked for part in (line, "subGroupPolicy"))


def test_example_of_a_buffer_has_a_pool_for_each_slice() -> None:
    found = forecast(read_manifests([str(EXAMPLES / "capacity-buffer")]).documents, SERVING, GKE_RULES)
    assert found.all_served
    assert [(pool.request.topology, pool.request.hosts) for pool in found.pools] == [("4x4", 4)] * 2


def test_jobset_of_the_training_runtime_example_has_a_pool() -> None:
    """Trainer creates the JobSet from the template of the runtime, with the TrainJob's name and a pod per node."""
    text = (EXAMPLES / "kubeflow-trainer" / "training-runtime.yaml").read_text(encoding="utf-8")
    runtime, train_job = yaml.safe_load_all(text)
    template, (job,) = runtime["spec"]["template"], runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["parallelism"] = runtime["spec"]["mlPolicy"]["numNodes"]
    metadata = {**template["metadata"], "name": train_job["metadata"]["name"]}
    found = plan({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", **template, "metadata": metadata})
    assert (found.all_served, found.remarks) == (True, ())
    assert [(pool.request.topology, pool.request.hosts) for pool in found.pools] == [("4x4", 4)]


def test_runtime_of_trainer_without_a_train_job_is_reported() -> None:
    runtime = next(yaml.safe_load_all((EXAMPLES / "kubeflow-trainer" / "training-runtime.yaml").read_text("utf-8")))
    found = plan(runtime)
    assert (found.pools, found.all_served) == ((), True)
    assert [remark.message for remark in found.remarks] == [
        "is a template; each TrainJob that names it gets the node pools"
    ]


def _pod_patch(**spec: Any) -> dict[str, Any]:
    job = {"name": "node", "template": {"spec": {"template": {"spec": spec}}}}
    return {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}


_CAPACITY = {"annotations": {constants.CAPACITY: "spot"}}
_SMALLER = {"nodeSelector": {constants.TPU_TOPOLOGY: "2x4"}}


@pytest.mark.parametrize(
    ("metadata", "spec", "pool"),
    [
        pytest.param({}, {}, ("4x4", "on-demand"), id="unchanged"),
        pytest.param({}, {"runtimePatches": [_pod_patch(**_SMALLER)]}, ("2x4", "on-demand"), id="a patch of selectors"),
        pytest.param(
            {},
            {"runtimePatches": [_pod_patch(nodeSelector={constants.TPU_TOPOLOGY: "x"}), None, _pod_patch(**_SMALLER)]},
            ("2x4", "on-demand"),
            id="the last patch",
        ),
        pytest.param(
            {},
            {"runtimePatches": [{"trainingRuntimeSpec": {"template": {"metadata": _CAPACITY}}}]},
            ("4x4", "spot"),
            id="a patch of annotations",
        ),
        pytest.param(
            {},
            {
                "podTemplateOverrides": [{"targetJobs": [{"name": "node"}, {"name": "x"}], "spec": _SMALLER}],
                **_CAPACITY,
            },
            ("2x4", "spot"),
            id="the form of Trainer 2.1",
        ),
        pytest.param(
            {},
            {"trainer": {"resourcesPerNode": {"limits": {"cpu": 1}}}, "runtimePatches": "x"},
            ("4x4", "on-demand"),
            id="resources of the TrainJob and of its runtime",
        ),
        pytest.param(_CAPACITY, {}, ("4x4", "on-demand"), id="its own annotations, which are reported"),
    ],
)
def test_pool_of_a_train_job_follows_its_runtime_and_its_patches(
    metadata: dict[str, Any], spec: dict[str, Any], pool: tuple[str, str]
) -> None:
    """Trainer does not copy the metadata of a TrainJob to its JobSet."""
    text = (EXAMPLES / "kubeflow-trainer" / "training-runtime.yaml").read_text(encoding="utf-8")
    runtime, train_job = yaml.safe_load_all(text)
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    job["tolerations"] = [{"key": constants.SPOT, "operator": "Exists"}]
    train_job["metadata"] |= metadata
    hosts = {"numNodes": 2 if pool[0] == "2x4" else 4}
    train_job["spec"] |= {**spec, "trainer": {**hosts, **spec.get("trainer", {})}}
    found = plan(runtime, train_job)
    assert [(planned.request.topology, planned.request.hosts) for planned in found.pools] == [
        (pool[0], hosts["numNodes"])
    ]
    assert [str(option.choice).partition(" ")[0] for planned in found.pools for option in planned.options] == [pool[1]]
    assert any("is not read on a TrainJob" in remark.message for remark in found.remarks) == bool(metadata)


def test_workers_of_a_pathways_job_have_its_node_selector() -> None:
    workers = {"type": "ct5lp-hightpu-4t", "topology": "2x4", "nodeSelector": {constants.RESERVATION_NAME: "mine"}}
    raw = {"apiVersion": "pathways-job.pathways.domain/v1", "kind": "PathwaysJob", "metadata": {"name": "a"}}
    found = plan({**raw, "spec": {"workers": [{**workers, "numSlices": 2}]}})
    choices = [str(option.choice) for pool in found.pools for option in pool.options]
    assert choices == ["reservation mine in us-central2-b"] * 2


ONE_HOST = {constants.TPU_ACCELERATOR: "tpu-v6e-slice", constants.TPU_TOPOLOGY: "2x2"}
CONTAINER = {"name": "a", "resources": {"limits": {constants.TPU_RESOURCE: 4}}}
OWN_POD = {"nodeSelector": ONE_HOST, "containers": [CONTAINER]}
THING = {"apiVersion": "a.io/v1", "kind": "Thing", "metadata": {"name": "a"}}


@pytest.mark.parametrize(
    ("spec", "hosts"),
    [
        pytest.param({"replicas": 3, "template": {"spec": OWN_POD}}, [3], id="a runner set"),
        pytest.param({"predictor": {"minReplicas": 2, **OWN_POD}}, [2], id="an InferenceService"),
        pytest.param({"predictor": {"nodeSelector": ONE_HOST, "model": CONTAINER}}, [1], id="a model of KServe"),
        pytest.param({"nodeSelector": ONE_HOST, "templates": [{"container": CONTAINER}]}, [1], id="an Argo Workflow"),
        pytest.param(
            {"roles": [{"replicas": 2, "template": {"spec": OWN_POD}}, {"template": {"spec": deepcopy(OWN_POD)}}]},
            [3],
            id="two roles",
        ),
        pytest.param({"template": {"spec": {"containers": [CONTAINER]}}}, [], id="no selectors"),
        pytest.param({"template": {"spec": pod_spec(topology="4x4", accelerator="tpu-v6e-slice")}}, [], id="two hosts"),
    ],
)
def test_single_host_pods_of_an_unknown_workload_kind_are_planned(spec: dict[str, Any], hosts: list[int]) -> None:
    """The provisioner serves single-host pods of any controller, so reporting them as not served would be wrong."""
    found = plan({**THING, "spec": spec})
    assert [pool.request.hosts for pool in found.pools] == hosts
    assert found.all_served is bool(hosts)
    assert {remark.message.partition(" creates, ")[0] for remark in found.remarks} <= {
        "plan does not know how many pods of this template a Thing",
        "requests chips, but plan does not know which pods a Thing",
    }


@pytest.mark.parametrize(("name", "served"), [("tpu", True), ("other", False)])
def test_pods_of_the_compute_class_of_the_settings_are_served(name: str, *, served: bool) -> None:
    """GKE adds the toleration of the ComputeClass to pods. In the past, `plan` and the webhook rejected the JobSet."""
    mark = f"{constants.COMPUTE_CLASS}=tpu"
    serving = read_settings(REQUIRED | {"GCP_NODE_LABELS": mark, "GCP_NODE_TAINTS": f"{mark}:NoSchedule"})
    found = plan(raw_jobset(pod=selecting(**{constants.COMPUTE_CLASS: name})), settings_=serving)
    assert (len(found.pools), found.all_served) == (int(served), served)


def test_pods_of_a_deployment_for_which_a_limit_leaves_no_node_are_reported() -> None:
    """In the past, the message contained a full pool name, although its last part is unknown before the pod exists."""
    raw = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    found = plan({**raw, "spec": {"replicas": 10, "template": {"spec": OWN_POD}}}, settings_=settings(max_chips=16))
    [remark] = found.remarks
    assert ([pool.request.hosts for pool in found.pools], found.all_served, remark.slices) == ([4], False, 6)
    assert remark.message.startswith("Node pool web-* is not created: Limit of all node pools: 16 of 16 chips in use")


def test_pool_names_are_exact_if_the_object_has_a_uid() -> None:
    """`kubectl get -o yaml` prints the UID and the status; the status does not apply to a new object."""
    raw = raw_jobset(uid="0b1e7f8a-6f3c-4f0e-9a52-0c8f6a7e1d20", replicas=2, status={"terminalState": "Completed"})
    workload = workloads.JOBSET.parse({**raw, "status": {}})
    assert workload is not None
    decided = {create.request.name for create in World(workload).look().creates}
    found = plan(raw)
    assert {pool.shown_name for pool in found.pools} == decided
    assert {pool.shown_name for pool in plan(raw_jobset(uid="")).pools} == {"train-*"}


def selecting(**selector: Any) -> dict[str, Any]:
    spec = pod_spec()
    spec["nodeSelector"] |= selector
    return spec


def asking(key: str, value: Any) -> dict[str, Any]:
    return raw_jobset(metadata={"annotations": {key: value}})


def _jobs_of(**options: Any) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = raw_jobset(**options)["spec"]["replicatedJobs"]
    return jobs


TEMPLATE = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "template", "namespace": "default"}}
FOUR = {"containers": [{"resources": {"limits": {constants.TPU_RESOURCE: "four"}}}]}
MISSPELLED = {"containers": [{"resources": {"limits": {"google.com/tpus": 4}}}]}
#: Object, text of the line with the mistake, and part of the message.
MISTAKES = [
    pytest.param(
        raw_job("my-sweep", pod=pod_spec(topology="2x2x3")), "2x2x3", "topology 2x2x3 is not valid", id="a topology"
    ),
    pytest.param(raw_jobset(pod=pod_spec(chips=3)), "google.com/tpu: '3'", "requests 3 chips, and no host", id="chips"),
    pytest.param(
        raw_jobset(parallelism=5), "parallelism: 5", "has parallelism 5, but a slice of topology", id="parallelism"
    ),
    pytest.param(raw_lws(size=5), "size: 5", "has size 5, but a slice of topology", id="the size of a group"),
    pytest.param(
        raw_jobset(pod=selecting(**{constants.SPOT: "true", constants.FLEX_START: "true"})),
        constants.FLEX_START,
        "no capacity is both",
        id="two kinds of capacity",
    ),
    pytest.param(
        raw_jobset(pod=selecting(**{constants.SPOT: True})),
        "gke-spot: true",
        "in quotes",
        id="a selector without quotes",
    ),
    pytest.param(
        raw_jobset(pod={**pod_spec(), "nodeSelector": {constants.TPU_ACCELERATOR: "tpu-v4-podslice"}}),
        "nodeSelector:",
        "its pods have no nodeSelector cloud.google.com/gke-tpu-topology; ",
        id="no topology",
    ),
    pytest.param(
        raw_jobset(pod={**pod_spec(), "nodeSelector": {}}),
        "nodeSelector:",
        "its pods have no nodeSelector cloud.google.com/gke-tpu-topology and no cloud.google.com/gke-tpu-accelerator",
        id="neither topology nor accelerator",
    ),
    pytest.param(
        raw_jobset(replicas=-1),
        "replicas: -1",
        "JobSet default/train: spec.replicatedJobs[0].replicas is -1; set a whole number from 0",
        id="negative replicas",
    ),
    pytest.param(raw_request("req", -2), "count: -2", "spec.podSets[0].count is -2", id="a negative request"),
    pytest.param({**TEMPLATE, "template": {"spec": FOUR}}, "apiVersion", "not a quantity", id="an amount to request"),
    pytest.param(raw_lws(size="four"), "size: four", "leaderWorkerTemplate.size is 'four'", id="a size in words"),
    pytest.param(raw_job(spec={"completions": -3}), "completions: -3", "spec.completions is -3", id="completions"),
    pytest.param(raw_request(""), "name: ''", "ProvisioningRequest default/: metadata.name is ''; use", id="no name"),
    pytest.param(raw_jobset("Train_1"), "Train_1", "metadata.name is 'Train_1'; use", id="a name with capitals"),
    pytest.param(
        {**raw_jobset(), "apiVersion": "batch/v1"},
        "google.com/tpu",
        "a JobSet of batch/v1 creates, which are served; write kind: JobSet and apiVersion: jobset.x-k8s.io/v1alpha2",
        id="another API group",
    ),
    pytest.param(asking(constants.CAPACITY, "sopt"), "sopt", "'sopt'", id="a choice of capacity"),
    pytest.param(
        raw_jobset(pod_metadata={"annotations": {constants.NODE_SERVICE_ACCOUNT: "me"}}),
        "node-service-account: me",
        "is not the e-mail address",
        id="a service account",
    ),
    pytest.param(raw_jobset(pod={**pod_spec(), **FOUR}), "four", "is not a quantity", id="an amount"),
    pytest.param(
        raw_jobset(pod={**pod_spec(), "overhead": {"cpu": "500"}}),
        "500",
        "500 cpu",
        id="more CPU than a host has",
    ),
    pytest.param(raw_jobset(replicas=5000), "replicas: 5000", "5,000 jobs", id="too many child Jobs"),
    pytest.param(
        raw_jobset(
            spec={"replicatedJobs": [*_jobs_of(replicas=2), {**_jobs_of(parallelism=100_000)[0], "name": "big"}]}
        ),
        "parallelism: 100000",
        "replicated job big: parallelism is 100,000",
        id="more pods than any slice has in the second of two jobs",
    ),
    pytest.param(
        raw_job(spec={"completionMode": "NonIndexed"}), "NonIndexed", "completionMode is not Indexed", id="no index"
    ),
    pytest.param(
        raw_job(metadata={"annotations": {}}, spec={"completions": 3, "parallelism": 3}),
        "parallelism: 3",
        "set completions and parallelism to 2",
        id="a Job with more pods than hosts",
    ),
    pytest.param(
        raw_pod(metadata={"labels": {}, "ownerReferences": []}),
        "gke-tpu-topology",
        "pods without a controller have no index",
        id="a pod on several hosts",
    ),
    pytest.param(
        {**raw_job(), "apiVersion": "apps/v1", "kind": "Deployment"},
        "gke-tpu-topology",
        "pods of a Deployment have no index",
        id="a Deployment on several hosts",
    ),
    pytest.param(
        raw_stateful_set(pod=pod_spec(tolerations=[{"key": f"k{number}"} for number in range(65)])),
        "tolerations",
        "created for this StatefulSet: tolerations has 66 entries, and at most 64 are read; use fewer",
        id="too many tolerations",
    ),
    pytest.param(
        {**raw_job(), "apiVersion": "apps/v1", "kind": "DaemonSet"},
        "google.com/tpu",
        "pods are for existing nodes",
        id="a DaemonSet",
    ),
    pytest.param(
        {**raw_job(), "apiVersion": "a.io/v1", "kind": "Workflow"},
        "google.com/tpu",
        "does not know which pods a Workflow creates",
        id="a kind",
    ),
    pytest.param(
        {**raw_job(), "apiVersion": "batch.volcano.sh/v1alpha1"},
        "google.com/tpu",
        "does not know which pods a Job creates, which are served; plan a pod that it creates",
        id="a Job of another domain",
    ),
    pytest.param(
        {**TEMPLATE, "apiVersion": "kubeai.org/v1", "kind": "Model", "spec": {"resourceProfile": "google-tpu-2x2:4"}},
        "resourceProfile",
        "does not know which pods a Model creates",
        id="a profile of chips",
    ),
    pytest.param(
        raw_jobset(pod=selecting(**{constants.NODE_POOL: "mine"})),
        "gke-nodepool: mine",
        "new node pools get names of their own, so remove the selector",
        id="the name of a node pool",
    ),
    pytest.param(
        raw_jobset(pod=selecting(**{constants.COMPUTE_CLASS: "tpu"})),
        "compute-class: tpu",
        "GKE creates the nodes of a ComputeClass",
        id="a compute class",
    ),
    pytest.param({"a": 1}, "a: 1", "not a Kubernetes object", id="no object"),
    pytest.param(
        raw_jobset(pod=selecting(**{constants.SPOT: "yes"})),
        "gke-spot: 'yes'",
        'write cloud.google.com/gke-spot: "true", or remove it',
        id="a switch that is not true",
    ),
    pytest.param(
        {**raw_jobset(), "apiVersion": "jobset.x-k8s.io/v7"},
        "apiVersion: jobset.x-k8s.io/v7",
        "JobSet default/train: apiVersion jobset.x-k8s.io/v7 is unknown; write jobset.x-k8s.io/v1alpha2",
        id="an unknown version of a known API",
    ),
    *(
        pytest.param(
            raw,
            "google.com/tpus: 4",
            "google.com/tpus is not a resource of TPU nodes; write google.com/tpu",
            id=f"a misspelled resource in a {raw['kind']}",
        )
        for raw in (
            raw_jobset(pod={**pod_spec(), **MISSPELLED}),
            {**raw_job(pod={**pod_spec(), **MISSPELLED}), "apiVersion": "apps/v1", "kind": "DaemonSet"},
        )
    ),
]


@pytest.mark.parametrize(("raw", "marked", "words"), MISTAKES)
def test_mistake_is_reported_with_its_line(raw: dict[str, Any], marked: str, words: str) -> None:
    text = yaml.safe_dump_all([raw_jobset("good"), raw])
    found = plan_text(text)
    told = [(remark.line, remark.message) for remark in found.remarks if remark.severity.refused]
    assert not found.all_served
    assert [pool.slice_.workload.name for pool in found.pools] == ["good"]
    lines = [text.splitlines()[line - 1] for line, message in told if words in message]
    assert any(marked in line for line in lines), (told, lines)
    assert [shown for shown in map(str, found.remarks) if shown.count("default/") > 1] == []


def test_unknown_key_is_reported_except_on_a_namespace() -> None:
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "default", "labels": {"tpu-provisioner.cloud.google.com/validation": "deny"}},
    }
    found = plan(namespace, asking("tpu-provisioner.cloud.google.com/zone", "us-central2-b"))
    assert found.all_served
    [remark] = found.remarks
    assert remark.message.endswith("is not read; did you mean tpu-provisioner.cloud.google.com/zones?")
    [misplaced, unknown] = (
        plan(raw_jobset(**{part: {"labels": {constants.INJECT: value}}})).remarks[0].message
        for part, value in (("metadata", "enabled"), ("pod_metadata", "true"))
    )
    assert misplaced == f"the label {constants.INJECT} is not read on a JobSet; put it on the pod template"
    assert unknown == f"the label {constants.INJECT} is 'true'; write enabled or disabled"
    for key in (constants.MULTISLICE, constants.DISABLE):
        [remark] = plan(raw_jobset(pod_metadata={"labels": {key: "yes"}})).remarks
        assert remark.message == f"the label {key} is 'yes'; write true or false"
    many = {constants.CAPACITY: ""} | {f"tpu-provisioner.cloud.google.com/x-{number}": "" for number in range(MAX_KEYS)}
    told = [finding.message for finding in plan(raw_jobset(metadata={"labels": many})).remarks]
    assert f"the label {constants.CAPACITY} is not read; make it an annotation" in told
    assert len(told) == MAX_KEYS == 100


def test_region_is_not_inferred_from_an_annotation_that_is_not_read() -> None:
    raw = {**raw_stateful_set(annotations={constants.ZONES: "us-east5-b"}), "kind": "Deployment"}
    assert assumed({}, [Document(raw)])["GCP_CLUSTER_LOCATION"] == "your-region1"
    raw["spec"]["template"]["metadata"] = deepcopy(raw["metadata"])
    assert assumed({}, [Document(raw)])["GCP_CLUSTER_LOCATION"] == "us-east5"


def test_plan_reports_several_mistakes_of_one_object() -> None:
    """An Event reports only the first mistake, so users would have to correct one mistake after the other."""
    raw = raw_lws(
        size=5,
        uid="",
        pod=selecting(**{constants.ZONE: "us-east1-b", constants.MAX_RUN_SECONDS: "x", constants.SPOT: True}),
        metadata={"annotations": {constants.CAPACITY: "sopt", constants.SAME_ZONE: "maybe", constants.ZONES: "here"}},
    )
    text = yaml.safe_dump(raw)
    found = plan_text(text, settings(allowed_namespaces=("team-a",)))
    told = [(text.splitlines()[remark.line - 1].strip(), remark.message) for remark in found.remarks]
    for marked, words in (
        ("max-run-duration-seconds", "is not a number of seconds"),
        ("gke-spot", "in quotes"),
        ("capacity: sopt", "'sopt'"),
        ("same-zone: maybe", "is neither true nor false"),
        ("zones: here", "'here'"),
        ("namespace: default", "ALLOWED_NAMESPACES"),
    ):
        assert any(marked in line and words in message for line, message in told), (marked, words, told)
    assert len({message for _, message in told}) == len(told)


def test_missing_key_of_a_node_selector_is_reported_at_the_selector() -> None:
    raw = raw_lws()
    del raw["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["nodeSelector"][constants.TPU_TOPOLOGY]
    assert [remark.path[-1] for remark in plan(raw).remarks] == ["nodeSelector"]


def test_opt_in_label_of_a_namespace_in_the_files_counts() -> None:
    opted = settings(opt_in_label=("tpu", "yes"))
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"tpu": "yes"}}}
    assert plan(space, raw_jobset(), settings_=opted).all_served
    assert plan(raw_jobset(pod_metadata={"labels": {"tpu": "yes"}}), settings_=opted).all_served


@pytest.mark.parametrize(
    ("raw", "version"),
    [
        (raw_raycluster(), "ray.io/v1alpha1"),
        (raw_request(), "autoscaling.x-k8s.io/v1beta1"),
        (raw_buffer(replicas=2), "autoscaling.x-k8s.io/v1alpha1"),
    ],
)
def test_older_version_that_the_api_server_serves_is_planned(raw: dict[str, Any], version: str) -> None:
    found = plan({**raw, "apiVersion": version}, {**TEMPLATE, "template": {"spec": pod_spec()}})
    assert found.all_served
    assert found.pools


@pytest.mark.parametrize(
    ("raw", "words", "pools"),
    [
        pytest.param(raw_jobset(spec={"suspend": True}), "when it is resumed", 1, id="suspended"),
        pytest.param(raw_jobset(metadata={"labels": {constants.DISABLE: "true"}}), "is not served", 0, id="disabled"),
        pytest.param(
            raw_jobset(spec={"managedBy": "kueue.x-k8s.io/multikueue"}), "another controller", 0, id="elsewhere"
        ),
        pytest.param(raw_jobset(parallelism=1), "paid for but not used", 1, id="hosts without pods"),
        pytest.param(raw_pod(), "is a Pod of Job train-slice-0", 0, id="a pod of a workload"),
        pytest.param(
            raw_job(metadata={"annotations": {}, "ownerReferences": [job_reference("train", kind="JobSet")]}),
            "is a Job of JobSet train",
            0,
            id="a child Job",
        ),
    ],
)
def test_remark_without_a_mistake_does_not_count_as_unserved(raw: dict[str, Any], words: str, pools: int) -> None:
    found = plan(raw)
    assert found.all_served
    assert len(found.pools) == pools
    assert any(words in remark.message for remark in found.remarks)


@pytest.mark.parametrize(
    ("refused", "serving"),
    [
        pytest.param(
            raw_job("refused"), settings(max_chips=8, serve_pods="none"), id="a Job that the settings do not serve"
        ),
        pytest.param(
            raw_jobset("refused", metadata={"labels": {"a": True}}), settings(max_chips=8), id="a field of a wrong type"
        ),
    ],
)
def test_rejected_object_does_not_count_in_a_limit(refused: dict[str, Any], serving: Settings) -> None:
    found = plan(refused, raw_jobset("good"), settings_=serving)
    assert [pool.slice_.workload.name for pool in found.pools] == ["good"]
    assert not any("MAX_CHIPS" in str(remark) for remark in found.remarks)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (raw_jobset(parallelism=0), "spec.parallelism is 0"),
        (raw_jobset(replicas=0), "replicas is 0"),
        (raw_job(parallelism=0), "spec.parallelism is 0"),
        (raw_lws(replicas=0), "spec.replicas is 0"),
    ],
)
def test_workload_without_pods_gets_a_remark_and_no_pool(raw: dict[str, Any], words: str) -> None:
    found = plan(raw)
    assert (found.pools, found.all_served) == ((), True)
    assert any(words in remark.message for remark in found.remarks)


def test_jobset_for_dynamic_slicing_is_not_served() -> None:
    """A user who expects node pools must not get exit code 0 from `plan`."""
    found = plan(raw_jobset(pod_metadata={"annotations": {constants.SLICE_TOPOLOGY: "4x4x4"}}))
    assert (found.pools, found.all_served) == ((), False)
    assert any("a controller of dynamic slicing makes their slices" in remark.message for remark in found.remarks)


def test_group_that_is_wrong_and_unserved_gets_both_remarks() -> None:
    """Events would report neither mistake, because unserved workloads get no Events."""
    raw = raw_lws(pod={**pod_spec(), "nodeSelector": {}})
    raw["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {"spec": {**pod_spec(chips=2), "nodeSelector": {}}}
    found = plan(raw)
    told = " ".join(remark.message for remark in found.remarks)
    assert not found.all_served
    assert "have no nodeSelector cloud.google.com/gke-tpu-topology" in told
    assert "leader template requests 2 chips and its worker template 4" in told


def test_requests_and_buffers_are_planned_with_the_templates_of_the_files() -> None:
    asks = (raw_request("req", 4, 2), raw_buffer(replicas=2), raw_request("odd", 3))
    found = plan(*asks, {**TEMPLATE, "template": {"spec": pod_spec()}})
    assert [pool.slice_.workload.name for pool in found.pools] == [*3 * ["req"], *2 * ["warm"]]
    assert ["a multiple of 2" in remark.message for remark in found.remarks if remark.severity.refused] == [True]
    assert [remark.message for remark in plan(asks[0]).remarks] == [
        "the PodTemplate or the object that it names is not in the files; add it"
    ]


@pytest.mark.parametrize("two", [(raw_jobset(uid=""), raw_jobset(uid="", replicas=4)), (raw_request(), raw_request())])
def test_object_that_occurs_twice_is_planned_once(two: tuple[Any, Any]) -> None:
    """`kubectl apply` would update the first object to the second."""
    found = plan(*two, {**TEMPLATE, "template": {"spec": pod_spec()}})
    assert len({pool.slice_.workload.uid for pool in found.pools}) == 1
    assert "occurs twice, first in f:1" in found.remarks[0].message


def test_items_of_a_list_are_planned() -> None:
    """`kubectl get -o yaml` prints several objects as a List."""
    raw = {"apiVersion": "v1", "kind": "List", "items": [raw_jobset("a"), raw_jobset("b")]}
    assert {pool.slice_.workload.name for pool in plan(raw).pools} == {"a", "b"}


def test_choices_are_listed_in_order_including_impossible_ones() -> None:
    """Spot is impossible, because the pod lacks the toleration."""
    raw = raw_jobset(metadata={"annotations": {constants.CAPACITY: "on-demand, spot"}})
    (pool,) = plan(raw).pools
    assert [(str(option.choice), bool(option.problem)) for option in pool.options] == [
        ("on-demand in us-central2-b", False),
        ("spot in us-central2-b", True),
    ]


@pytest.mark.parametrize(("missing", "name", "what"), [("apiVersion", "train", "train"), ("kind", "", "it")])
def test_remark_on_an_incomplete_object_names_the_missing_field(missing: str, name: str, what: str) -> None:
    raw = raw_jobset(name)
    del raw[missing]
    words = f"{what} is not a Kubernetes object: it has no {missing}; add what is missing"
    assert [remark.message for remark in plan(raw).remarks] == [words]


def test_number_of_planned_slices_is_limited() -> None:
    counts = (2500, MAX_SLICES - 2500, 1)
    found = plan(*(raw_jobset(f"a{number}", uid="", replicas=count) for number, count in enumerate(counts)))
    assert ["a2" in str(remark) for remark in found.remarks if "slices are planned at once" in remark.message] == [True]
    assert len(found.pools) == MAX_SLICES


@given(st.data())
def test_field_of_a_wrong_type_causes_no_error(data: st.DataObject) -> None:
    asks, workloads = (
        (raw_request(), raw_buffer(), {**TEMPLATE, "template": {}}),
        (raw_jobset(uid=""), raw_job(uid=""), raw_lws(uid="")),
    )
    thing = {**THING, "spec": {"roles": [{"replicas": 2, "template": {"spec": OWN_POD}}]}}
    raw = spoilt(data, data.draw(st.sampled_from([*asks, *workloads, raw_raycluster(), raw_pod(), thing])))
    documents, problems = read_documents("f", yaml.safe_dump(raw_jobset("good")) + "---\n" + yaml.safe_dump(raw))
    assert isinstance(problems, list)
    found = forecast(documents, SERVING, GKE_RULES)
    assert "good" in [pool.slice_.workload.name for pool in found.pools]
    assert all(str(remark) for remark in found.remarks)


def test_pod_with_the_labels_of_a_jobset_without_its_owner_is_not_served() -> None:
    raw = raw_pod()
    raw["metadata"]["ownerReferences"] = [None]
    (remark,) = plan(raw).remarks
    assert "its labels name a workload such as a JobSet" in remark.message
    assert remark.severity is Severity.NOT_SERVED


def test_template_that_pods_share_is_read_once() -> None:
    """Reading the 2,000 containers for each of the 4,096 pods would exceed the time-out of this test."""
    container = {"resources": {"limits": {constants.TPU_RESOURCE: "4"}}}
    raw = raw_jobset(uid="", replicas=4096, pod={**pod_spec(), "containers": [container] * 2000})
    (remark,) = plan(raw).remarks
    assert "requests 8000 chips" in remark.message
    assert remark.slices == 4096
