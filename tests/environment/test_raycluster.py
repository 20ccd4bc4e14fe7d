"""Pods of RayClusters get variables, host names, and one node pool for each replica."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provisioner import constants
from provisioner.admission.review import Request
from provisioner.environment.review import review_pod
from provisioner.settings.webhook import WebhookSettings
from tests.support.objects import raw_raycluster
from tests.support.patches import apply_patch

JSON = dict[str, Any]


def worker(host: int = 1, replica: int = 2, **labels: str) -> JSON:
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "uid-of-ray", "controller": True}
    places = {
        constants.RAY_GROUP: "tpus",
        constants.RAY_REPLICA_INDEX: str(replica),
        constants.RAY_REPLICA_NAME: "tpus-abcde",
        constants.RAY_HOST_INDEX: str(host),
    }
    selector = {constants.TPU_ACCELERATOR: "tpu-v4-podslice", constants.TPU_TOPOLOGY: "2x2x2"}
    container = {"name": "ray-worker", "resources": {"limits": {constants.TPU_RESOURCE: "4"}}}
    metadata = {"name": "ray-tpus-worker-x", "labels": {**places, **labels}, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"nodeSelector": selector, "containers": [container]}}


def reviewed(raw: JSON, cluster: JSON | None = None) -> tuple[JSON, tuple[str, ...]]:
    settings = WebhookSettings(injection="all", wrong="warn", topology=False)
    request = Request(operation="CREATE", kind="Pod", namespace="ml", object=raw)
    answer = review_pod(request, lambda _: cluster or raw_raycluster(replicas=3), settings)
    return apply_patch(raw, answer.patch), answer.warnings


def variables(raw: JSON) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in raw["spec"]["containers"][0].get("env", [])}


def test_host_of_a_replica_gets_variables_host_name_and_affinity() -> None:
    pod, warnings = reviewed(worker())
    assert warnings == ()
    assert variables(pod) == {
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "tpus-2-0.ray-headless,tpus-2-1.ray-headless",
        "TPU_NAME": "tpus-2",
    }
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("tpus-2-1", "ray-headless")
    (together,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert together["labelSelector"]["matchExpressions"][0]["values"] == ["tpus-abcde"]
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [expression["operator"] for expression in apart["labelSelector"]["matchExpressions"]] == ["Exists", "NotIn"]
    (unnamed := worker())["metadata"]["labels"].pop(constants.RAY_GROUP)
    assert "TPU_NAME" not in variables(reviewed(unnamed)[0])


def test_fields_that_another_webhook_injected_are_kept() -> None:
    pod, _ = reviewed(worker())
    assert reviewed(pod) == (pod, ())
    placed = worker()
    placed["spec"]["affinity"] = {"nodeAffinity": {}, "podAntiAffinity": {}}
    assert list(reviewed(placed)[0]["spec"]["affinity"]) == ["nodeAffinity", "podAntiAffinity"]
    (near := worker())["spec"]["affinity"] = {"nodeAffinity": {}}
    assert reviewed(near)[0]["spec"]["affinity"].keys() == {"nodeAffinity", "podAffinity", "podAntiAffinity"}
    # Nodes of a group that a user created have no node pool label, so a pod with the affinity could not be scheduled.
    (own := worker())["spec"]["nodeSelector"][constants.NODE_GROUP_NAME] = "slice"
    assert reviewed(own)[0]["spec"].keys() == {"nodeSelector", "containers", "hostname", "subdomain"}
    # Kueue places several slices on one node pool, so a second slice could not be scheduled with the affinity.
    (dynamic := worker())["metadata"]["annotations"] = {constants.SLICE_TOPOLOGY: "2x2x2"}
    assert reviewed(dynamic)[0]["spec"].keys() == {"nodeSelector", "containers", "hostname", "subdomain"}
    for lacks in (constants.RAY_REPLICA_INDEX, constants.RAY_REPLICA_NAME, constants.RAY_HOST_INDEX):
        (lacking := worker())["metadata"]["labels"].pop(lacks)
        assert "affinity" not in reviewed(lacking)[0]["spec"]


def test_replicas_with_multislice_true_form_a_multislice() -> None:
    multislice = {constants.MULTISLICE: "true"}
    pod, _ = reviewed(worker(**multislice))
    found = {key: value for key, value in variables(pod).items() if key.startswith("MEGASCALE")}
    assert found == {
        "MEGASCALE_NUM_SLICES": "3",
        "MEGASCALE_SLICE_ID": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": "tpus-0-0.ray-headless",
        # Ray's metrics have libtpu's default port, 8080.
        "MEGASCALE_PORT": "8081",
    }
    assert reviewed(pod) == (pod, ())


@pytest.mark.parametrize(
    ("given", "label", "added"),
    [
        # From kubernetes-engine-samples, ai-ml/gke-ray/raytrain/maxtext/ray-cluster.tpu-multi-slice.yaml
        ({"NUM_SLICES": "3", "PORT": "9915"}, "", {"SLICE_ID": "2", "COORDINATOR_ADDRESS": "tpus-0-0.ray-headless"}),
        ({"NUM_SLICES": "3"}, "false", {}),
        ({"NUM_SLICES": ""}, "", {}),
        ({"NUM_SLICES": "1"}, "", {}),
        ({"NUM_SLICES": "3", "SLICE_ID": "2", "COORDINATOR_ADDRESS": "own:8080"}, "", {}),
    ],
)
def test_number_of_slices_requests_a_multislice_as_with_kuberays_webhook(
    given: dict[str, str], label: str, added: dict[str, str]
) -> None:
    """In the past, the pods got neither the other variables nor a warning."""
    raw = worker(**{constants.INJECT: "enabled"}, **({constants.MULTISLICE: label} if label else {}))
    own = {f"MEGASCALE_{key}": value for key, value in given.items()}
    raw["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in own.items()]
    pod, warnings = reviewed(raw)
    found = {key: value for key, value in variables(pod).items() if key.startswith("MEGASCALE")}
    assert (found, warnings) == (own | {f"MEGASCALE_{key}": value for key, value in added.items()}, ())


@pytest.mark.parametrize(("replicas", "is_completed"), [(1, True), (2, True), (3, False)])
def test_first_replica_gets_the_number_of_slices_of_its_template(replicas: int, *, is_completed: bool) -> None:
    """In the past, an autoscaler's first replica got neither number nor coordinator, and no warning."""
    raw = worker(replica=0, **{constants.INJECT: "enabled"})
    raw["spec"]["containers"][0]["env"] = [{"name": "MEGASCALE_NUM_SLICES", "value": "2"}]
    pod, warnings = reviewed(raw, raw_raycluster(replicas=replicas))
    found = variables(pod)
    assert (found.get("MEGASCALE_SLICE_ID"), found["MEGASCALE_NUM_SLICES"]) == ("0" if is_completed else None, "2")
    assert bool(warnings) != is_completed


def test_containers_of_a_multislice_get_the_ports_of_kuberays_webhook() -> None:
    raw = worker(**{constants.MULTISLICE: "true"})
    (first,) = raw["spec"]["containers"]
    first["resources"] = {"limits": {constants.TPU_RESOURCE: "2"}}
    raw["spec"]["containers"].append({**first, "name": "second"})
    pod, _ = reviewed(raw)
    found = [{variable["name"]: variable["value"] for variable in one["env"]} for one in pod["spec"]["containers"]]
    assert [environment["MEGASCALE_PORT"] for environment in found] == ["8081", "8082"]
    assert {environment["MEGASCALE_COORDINATOR_ADDRESS"] for environment in found} == {"tpus-0-0.ray-headless:8081"}


@pytest.mark.parametrize(("replicas", "is_beyond"), [(3, False), (2, True), (1, False)])
def test_index_beyond_the_replicas_is_reported_if_they_work_together(replicas: int, *, is_beyond: bool) -> None:
    """In the past, new pods got the ID of a missing slice while an old replica with a lower index ended."""
    cluster = raw_raycluster(replicas=replicas)
    pod, warnings = reviewed(worker(replica=2, **{constants.MULTISLICE: "true"}), cluster)
    assert variables(pod).get("MEGASCALE_NUM_SLICES", "1") == str(replicas)
    assert ["its replica has the index 2, but worker group tpus has 2 replicas" in warning for warning in warnings] == [
        True
    ] * is_beyond
    assert reviewed(worker(replica=2), cluster)[1] == ()


@pytest.mark.parametrize(
    ("own", "called"),
    [
        ({}, "tpus-2-1.ray-headless"),
        ({"subdomain": "own"}, "tpus-2-1.own"),
        ({"hostname": "tpus-2-1"}, "tpus-2-1.ray-headless"),
        ({"hostname": "tpus-2-1", "subdomain": "own"}, "tpus-2-1.own"),
        ({"hostname": "own"}, None),
        ({"hostname": "own", "subdomain": "own"}, None),
    ],
)
def test_listed_host_names_are_those_of_the_pods(own: JSON, called: str | None) -> None:
    """In the past, if the template or a webhook set a host name or subdomain, the list had names that no pod has."""
    raw = worker(**{constants.MULTISLICE: "true"})
    raw["spec"] |= own
    pod, warnings = reviewed(raw)
    if called is None:
        assert ["its host name is 'own'" in warning for warning in warnings] == [True]
        assert pod == raw
        return
    found = variables(pod)
    assert warnings == ()
    assert f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" == called
    assert found["TPU_WORKER_HOSTNAMES"].split(",")[int(found["TPU_WORKER_ID"])] == called
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == f"tpus-0-0.{pod['spec']['subdomain']}"


@pytest.mark.parametrize(
    ("cluster", "lacks", "words"),
    [
        (raw_raycluster(hosts=3), "", "has 2 pods of 4 chips, but there are 3"),
        (raw_raycluster(), constants.RAY_HOST_INDEX, "KubeRay 1.6"),
        (raw_raycluster(hosts=1), constants.RAY_HOST_INDEX, "numOfHosts of its worker group is 1"),
    ],
)
def test_pod_of_an_invalid_worker_group_gets_a_warning(cluster: JSON, lacks: str, words: str) -> None:
    raw = worker(**{constants.INJECT: "enabled"})
    raw["metadata"]["labels"].pop(lacks, None)
    assert [words in warning for warning in reviewed(raw, cluster)[1]] == [True]
    # A pod that does not request variables gets no warning if only its index is missing: another webhook may set it.
    del raw["metadata"]["labels"][constants.INJECT]
    assert bool(reviewed(raw, cluster)[1]) == (not lacks)


@pytest.mark.parametrize("group", [63 * "g", "TPU_v4.slices"])
def test_any_name_of_a_worker_group_gives_a_valid_host_name(group: str) -> None:
    pod, _ = reviewed(worker(host=0, **{constants.RAY_GROUP: group}), raw_raycluster(groupName=group, hosts=2))
    assert variables(pod)["TPU_WORKER_HOSTNAMES"].split(",")[0] == f"{pod['spec']['hostname']}.ray-headless"
    assert re.fullmatch("[a-z0-9][a-z0-9-]{0,61}[a-z0-9]", pod["spec"]["hostname"])
