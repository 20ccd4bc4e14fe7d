"""Manifests with the variables of their pods: what a template says is what the webhook would give each pod."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from provisioner import tpu
from provisioner.admission.patch import apply_patch
from provisioner.admission.review import Request
from provisioner.environment import Injection, Settings
from provisioner.environment.controllers import Template, templates_of
from provisioner.environment.manifest import (
    JOB_NAME_VARIABLE,
    Printed,
    inject_manifests,
    pods_of_manifests,
)
from provisioner.environment.review import review_pod
from tests.support.environment import started

ALL = Settings(injection=Injection.ALL, asked=True)
EVERYTHING = Settings(injection=Injection.ALL, topology=True, asked=True)
V5E_4X4 = ("tpu-v5-lite-podslice", "4x4")
V6E_2X2 = ("tpu-v6e-slice", "2x2")
#: Up to so many pods all are compared; of more the first, some and the last.
MOST_PODS = 16
#: Of larger slices the largest are compared, in StatefulSets: they differ in their length alone.
MOST_HOSTS = 64
INDEX_OF_POD = "metadata.labels['apps.kubernetes.io/pod-index']"
INDEX_OF_JOB = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def pod_template(shape: tuple[str, str] = V5E_4X4, *chips: int, **metadata: Any) -> dict[str, Any]:
    accelerator, topology = shape
    containers = [
        {"name": f"c{at}", "resources": {"limits": {"google.com/tpu": each}}} for at, each in enumerate(chips or (4,))
    ]
    selector = {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    return {"metadata": metadata, "spec": {"nodeSelector": selector, "containers": containers}}


def stateful_set(template: dict[str, Any], replicas: int = 4, **spec: Any) -> dict[str, Any]:
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


def leader_worker_set(**pods: Any) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod_template(), **pods}},
    }


def printed(raw: dict[str, Any], settings: Settings = ALL, *others: dict[str, Any]) -> Printed:
    """Return what becomes of the first of some objects; what was given is not changed."""
    before = copy.deepcopy(raw)
    found = inject_manifests([raw, *others], settings, "ml")[0]
    assert raw == before
    return found


def environment(raw: dict[str, Any], template: int = 0) -> list[dict[str, Any]]:
    """Return the variables in a template: a text, or the path of a field."""
    found: Any = raw
    for step in templates_of(raw)[template].path:
        found = found[step]
    return [
        {
            each["name"]: each["value"] if "value" in each else each["valueFrom"]["fieldRef"]["fieldPath"]
            for each in one.get("env", [])
        }
        for one in found["spec"]["containers"]
    ]


def reviewed(template: Template, group: int, number: int, settings: Settings) -> list[dict[str, str]]:
    """Return what the webhook gives a pod."""
    made = template.make(group, number)
    request = Request(operation="CREATE", kind="Pod", namespace="ml", object=made.raw)
    answer = review_pod(request, lambda _: made.owner, settings)
    return started(apply_patch(made.raw, answer.patch))


def assert_the_same(raw: dict[str, Any], settings: Settings = ALL) -> None:
    """Compare the pods of the printed manifest with what the webhook gives those of the one that was given."""
    found = printed(raw, settings)
    assert not found.problems
    [after] = found.objects
    for given, said in zip(templates_of(raw), templates_of(after), strict=True):
        for group in some(range(given.groups)):
            for number in some(given.numbers):
                variables = started(said.make(group, number).raw)
                want = reviewed(given, group, number, settings)
                without_helper = [
                    {name: value for name, value in each.items() if name != JOB_NAME_VARIABLE} for each in variables
                ]
                assert without_helper == want
                assert all(each["TPU_WORKER_ID"] for each in want)


def some(numbers: range) -> Iterable[int]:
    if len(numbers) <= MOST_PODS:
        return numbers
    return sorted({*numbers[:2], numbers[len(numbers) // 3], *numbers[-2:]})


@cache
def shapes(accelerator: str) -> list[tuple[str, int]]:
    """List the slices of several hosts of an accelerator: topology and hosts."""
    offer = tpu.ACCELERATORS[accelerator]
    all_of_them = [shape for grid in offer.topologies() for shape in tpu.shapes_of(offer, grid) if shape.multi_host]
    found = {str(shape.topology): shape.topology.chips // shape.chips_per_pod for shape in all_of_them}
    largest = max(found.values(), default=0)
    return [(topology, hosts) for topology, hosts in found.items() if hosts <= MOST_HOSTS or hosts == largest]


@pytest.mark.parametrize("accelerator", tpu.ACCELERATORS)
def test_the_template_of_each_multi_host_shape_says_what_the_webhook_gives_each_pod(accelerator: str):
    for topology, hosts in shapes(accelerator):
        template = pod_template((accelerator, topology))
        settings = EVERYTHING if hosts <= MOST_PODS else ALL
        assert_the_same(stateful_set(template, hosts), settings)
        if hosts > MOST_HOSTS:
            continue
        assert_the_same(job(template, hosts), settings)
        assert_the_same(jobset(replicated("a", template, hosts, 2), replicated("b", template, hosts)), settings)


def test_every_accelerator_with_slices_of_several_hosts_is_compared():
    with_slices = [label for label in tpu.ACCELERATORS if shapes(label)]
    assert len(with_slices) >= 6
    assert max(hosts for label in with_slices for _, hosts in shapes(label)) >= 1024


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(stateful_set(pod_template(V6E_2X2), 3), id="replicas of one host"),
        pytest.param(
            stateful_set(pod_template(V6E_2X2, annotations={"tpu-provisioner.cloud.google.com/multislice": "true"}), 3),
            id="slices of one host that work together",
        ),
        pytest.param(stateful_set(pod_template(), 0), id="a set that is scaled down"),
        pytest.param(jobset(replicated("a", pod_template(V6E_2X2), 1, 5)), id="child Jobs of one host"),
        pytest.param(
            jobset(replicated("a", pod_template()), replicated("b", pod_template(), replicas=12)), id="twelve slices"
        ),
        pytest.param(
            jobset(replicated("a", pod_template()), network={"subdomain": "elsewhere"}), id="a JobSet's subdomain"
        ),
        pytest.param(job(pod_template(V5E_4X4, 4)), id="a Job"),
        pytest.param(job(pod_template(V6E_2X2, 2, 2), 1), id="two containers of one host"),
    ],
)
def test_the_template_says_what_the_webhook_gives(raw: dict[str, Any]):
    assert_the_same(raw)
    assert_the_same(raw, EVERYTHING)


def test_the_number_of_a_worker_comes_from_the_downward_api():
    [found] = environment(printed(stateful_set(pod_template())).objects[0])
    hosts = ",".join(f"train-{each}.workers" for each in range(4))
    assert found == {"TPU_WORKER_ID": INDEX_OF_POD, "TPU_WORKER_HOSTNAMES": hosts}
    [found] = environment(printed(job(pod_template())).objects[0])
    assert found == {"TPU_WORKER_ID": INDEX_OF_JOB, "TPU_WORKER_HOSTNAMES": hosts}


def test_the_slice_of_a_jobset_comes_from_a_label_where_one_tells_it():
    driver = replicated("driver", {"spec": {"containers": [{"name": "driver"}]}}, 1)
    a, b = replicated("a", pod_template(), replicas=2), replicated("b", pod_template())
    last, first = jobset(a, b), jobset(driver, a)
    [of_a], [of_b] = (environment(printed(last).objects[0], at) for at in range(2))
    assert of_a["MEGASCALE_SLICE_ID"] == "metadata.labels['jobset.sigs.k8s.io/job-global-index']"
    assert of_b["MEGASCALE_SLICE_ID"] == "2"
    # The driver counts among all Jobs, but is no slice.
    [of_driver], [of_a] = (environment(printed(first).objects[0], at) for at in range(2))
    assert of_driver == {}
    assert of_a["MEGASCALE_SLICE_ID"] == "metadata.labels['jobset.sigs.k8s.io/job-index']"
    # One slice, then a Job without chips, then two: no label counts the slices.
    between = jobset(replicated("c", pod_template()), driver, a)
    found = printed(between)
    [of_a] = environment(found.objects[0], 2)
    assert "MEGASCALE_SLICE_ID" not in of_a
    assert of_a["MEGASCALE_NUM_SLICES"] == "3"
    [problem] = found.problems
    assert problem.startswith("JobSet ml/js: replicated job a: MEGASCALE_SLICE_ID differs from pod to pod")
    assert "let the webhook set it" in problem


def test_host_names_of_several_child_jobs_have_the_name_of_the_job_in_them():
    [found] = environment(printed(jobset(replicated("a", pod_template(), replicas=2))).objects[0])
    assert found[JOB_NAME_VARIABLE] == "metadata.labels['batch.kubernetes.io/job-name']"
    assert found["TPU_WORKER_HOSTNAMES"].split(",")[3] == f"$({JOB_NAME_VARIABLE})-3.js"
    # Kubernetes knows what comes before.
    assert list(found).index(JOB_NAME_VARIABLE) < list(found).index("TPU_WORKER_HOSTNAMES")


def test_each_run_of_a_cron_job_has_hosts_of_its_own():
    run = job(pod_template())
    raw = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"jobTemplate": {"spec": run["spec"]}},
    }
    [found] = environment(printed(raw).objects[0])
    assert found["TPU_WORKER_ID"] == INDEX_OF_JOB
    assert found["TPU_WORKER_HOSTNAMES"].startswith(f"$({JOB_NAME_VARIABLE})-0.workers,")


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        (stateful_set(pod_template(), ordinals={"start": 10}), "TPU_WORKER_ID differs"),
        (stateful_set(pod_template(), 8), "TPU_WORKER_ID, TPU_WORKER_HOSTNAMES and MEGASCALE_SLICE_ID differ"),
        (stateful_set(pod_template(V5E_4X4, 2, 2)), "TPU_WORKER_ID differs"),
        (job(pod_template(), completions=8, parallelism=4), "TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, MEGASCALE_NUM"),
    ],
    ids=["ordinals from 10 on", "two slices in one set", "two containers", "a Job that fills its slice twice"],
)
def test_what_a_template_cannot_say_is_left_to_the_webhook(raw: dict[str, Any], names: str):
    found = printed(raw)
    said = [problem for problem in found.problems if "from pod to pod" in problem]
    assert len(said) == 1
    assert names in said[0]
    for each in environment(found.objects[0]):
        assert "TPU_WORKER_ID" not in each


def test_a_variable_that_the_user_sets_is_not_told():
    raw = stateful_set(pod_template(), ordinals={"start": 10})
    own = [{"name": "TPU_WORKER_ID", "value": "$(MINE)"}]
    raw["spec"]["template"]["spec"]["containers"][0]["env"] = own
    found = printed(raw)
    assert not found.problems
    [after] = environment(found.objects[0])
    assert after["TPU_WORKER_ID"] == "$(MINE)"
    assert after["TPU_WORKER_HOSTNAMES"].startswith("train-10.workers,")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            stateful_set(pod_template(), serviceName=""),
            "StatefulSet ml/train: StatefulSet ml/train has no spec.service",
        ),
        (stateful_set(pod_template(), 6), "has 4 pods of 4 chips, and there are to be 6"),
        (stateful_set(pod_template(("tpu-v6e-slice", "3x3"))), "topology 3x3 is not valid"),
        (stateful_set({"spec": {"containers": pod_template()["spec"]["containers"]}}, 0), "there are to be no pods"),
        (stateful_set(pod_template(V5E_4X4, 4.5)), "request a whole number of chips"),  # type: ignore[arg-type]
        (job(pod_template(), completionMode="NonIndexed"), "has no completionMode Indexed"),
        (jobset(replicated("a", pod_template()), network={"enableDNSHostnames": False}), "no subdomain"),
        (
            {**stateful_set(pod_template()), "kind": "Deployment"},
            "owned by a 'ReplicaSet', whose pods are not numbered",
        ),
    ],
    ids=[
        "no service",
        "replicas that fill no slice",
        "a topology that nobody sells",
        "no pods and no topology",
        "half a chip",
        "a Job without index",
        "a JobSet without host names",
        "a Deployment",
    ],
)
def test_what_is_wrong_is_told(raw: dict[str, Any], problem: str):
    found = printed(raw)
    assert len([each for each in found.problems if problem in each]) == 1


def test_a_deployment_of_one_host_needs_no_numbers():
    [found] = environment(printed({**stateful_set(pod_template(V6E_2X2), 3), "kind": "Deployment"}).objects[0])
    assert found == {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}


def test_a_leader_worker_set_sets_its_own_and_gets_the_topology():
    raw = leader_worker_set()
    found = printed(raw)
    assert found.objects == (raw,)
    assert not found.problems
    note = (
        "LeaderWorkerSet ml/serve: its controller sets TPU_WORKER_ID and TPU_WORKER_HOSTNAMES when it creates the pods"
    )
    assert found.notes == (note,)
    [after] = environment(printed(leader_worker_set(leaderTemplate=pod_template()), EVERYTHING).objects[0], 1)
    assert after["TPU_TOPOLOGY"] == "4x4"
    assert "TPU_WORKER_ID" not in after


def test_pods_of_a_leader_worker_set_are_those_that_its_controller_makes():
    """As a control plane has recorded them."""
    recorded = json.loads(Path("tests/data/leaderworkerset/objects.json").read_text(encoding="utf-8"))
    [pods] = pods_of_manifests([leader_worker_set()], ALL, "ml", 100)
    assert [each["metadata"]["name"] for each in pods.objects] == [
        name for group in ("serve-0", "serve-1") for name in (group, *(f"{group}-{worker}" for worker in range(1, 4)))
    ]
    worker = pods.objects[-1]
    labels = {key: value for key, value in worker["metadata"]["labels"].items() if "leaderworkerset" in key}
    assert labels == {
        "leaderworkerset.sigs.k8s.io/name": "serve",
        "leaderworkerset.sigs.k8s.io/group-index": "1",
        "leaderworkerset.sigs.k8s.io/worker-index": "3",
    }
    known = json.dumps(recorded)
    assert all(f'"{key}"' in known for key in labels)
    assert started(worker)[0]["TPU_WORKER_ID"] == "3"
    assert started(worker)[0]["TPU_WORKER_HOSTNAMES"].startswith("serve-1.serve,serve-1-1.serve,")


# --- what is chosen


@pytest.mark.parametrize(
    ("raw", "changed"),
    [
        (stateful_set(pod_template()), False),
        (stateful_set(pod_template(labels={"gke-tpu-env-injector.aaronbatilo.dev/inject": "enabled"})), True),
        (
            {
                **stateful_set(pod_template()),
                "metadata": {"name": "train", "labels": {"tpu-provisioner.cloud.google.com/inject": "enabled"}},
            },
            True,
        ),
    ],
    ids=["nobody asks", "the template asks", "the StatefulSet asks"],
)
def test_with_opt_in_only_those_that_ask(raw: dict[str, Any], changed: bool):
    found = printed(raw, Settings(injection=Injection.OPT_IN))
    assert (found.objects[0] != raw) is changed


@pytest.mark.parametrize(
    "raw",
    [
        stateful_set(pod_template(labels={"tpu-provisioner.cloud.google.com/inject": "disabled"})),
        stateful_set({"spec": {"containers": [{"name": "web"}]}}),
        jobset(replicated("a", pod_template(), replicas=0)),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "workers"}},
        {"apiVersion": "example.com/v1", "kind": "StatefulSet", "spec": {"template": pod_template()}},
        {"apiVersion": "v1"},
        {},
    ],
    ids=["declined", "no chips", "no child Jobs", "a Service", "another StatefulSet", "no kind", "nothing"],
)
def test_what_is_no_concern_stays_the_very_object(raw: dict[str, Any]):
    found = printed(raw)
    assert found == Printed(objects=(raw,))
    assert found.objects[0] is raw
    assert found.problems == ()


def test_doing_it_again_changes_nothing():
    for raw in (stateful_set(pod_template()), jobset(replicated("a", pod_template(), replicas=2))):
        [once] = printed(raw, EVERYTHING).objects
        assert once != raw
        assert printed(once, EVERYTHING).objects == (once,)


# --- pods


def pod(owner: dict[str, Any] | None, name: str = "train-2") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if owner is not None:
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "train", "uid": "u"}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", **pod_template(), "metadata": metadata}


def test_the_owner_of_a_pod_is_found_in_the_files():
    owner = stateful_set(pod_template())
    found = printed(pod(owner), ALL, owner)
    assert started(found.objects[0])[0]["TPU_WORKER_ID"] == "2"
    assert not found.problems


def test_an_owner_that_is_missing_is_told():
    owner = stateful_set(pod_template())
    elsewhere = {**owner, "metadata": {"name": "train", "namespace": "other"}}
    raw = pod(owner)
    found = printed(raw, ALL, elsewhere)
    assert found.objects == (raw,)
    assert "StatefulSet ml/train could not be read (it is not among the files)" in found.problems[0]
    assert "no controller owns it" in printed(pod(None)).problems[0]


def test_pods_are_printed_as_the_webhook_would_change_them_up_to_a_bound():
    owner = stateful_set(pod_template(), 8, ordinals={"start": 1})
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "workers"}}
    found = pods_of_manifests([service, owner, pod(owner, "train-3")], ALL, "ml", 6)
    assert [len(each.objects) for each in found] == [0, 6, 1]
    assert found[1].notes == ("StatefulSet ml/train: the first 6 of its 8 pods are printed",)
    last = found[1].objects[-1]
    assert last["metadata"]["name"] == "train-6"
    assert last["spec"]["hostname"] == "train-6"
    assert last["spec"]["subdomain"] == "workers"
    variables = started(last)[0]
    assert (variables["TPU_WORKER_ID"], variables["MEGASCALE_SLICE_ID"]) == ("1", "1")
    assert started(found[2].objects[0])[0]["TPU_WORKER_ID"] == "2"


def test_replicas_without_bound_take_no_time():
    raw = stateful_set({"spec": {"containers": pod_template()["spec"]["containers"]}}, 2**31 - 1)
    problem = printed(raw).problems[0]
    assert "its slice would have 2,147,483,647 workers" in problem
    assert "its slice would have" in pods_of_manifests([raw], ALL, "ml", 2)[0].problems[0]
    many = jobset(replicated("a", pod_template(), replicas=10**9))
    assert not printed(many).problems
