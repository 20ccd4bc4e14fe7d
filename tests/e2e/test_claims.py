"""Tests of pods with ResourceClaims on a real control plane: chips from the TPU driver of DRA, not as a resource."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.sources import HINTS, RESOURCE_SLICES
from rehearsal.demos import Rehearsal
from rehearsal.localcluster import RUN_FOR
from tests.deploy import tools
from tests.deploy.kit import SERVICE_ACCOUNT, kubeconfig_of_service_account
from tests.e2e.kit import EXCLUSIVE, Ground, metric, ready, told
from tests.support.objects import pod_spec, raw_jobset, toleration

pytestmark = pytest.mark.e2e

DRA = "/apis/resource.k8s.io/v1"
DRIVER = {constants.TPU_DRA_DRIVER: "true"}


@pytest.fixture
def device_class(alone: Ground) -> Iterator[None]:
    """Create the DeviceClass of the driver's chart, which also serves requests for the resource."""
    selector = {"cel": {"expression": 'device.driver == "tpu.google.com"'}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": constants.TPU_DRIVER_NAME},
        "spec": {"selectors": [selector], "extendedResourceName": constants.TPU_RESOURCE},
    }
    alone.api.post(collection_path("deviceclasses", root=DRA), body)
    yield
    alone.api.delete(object_path("deviceclasses", constants.TPU_DRIVER_NAME, root=DRA))


def claim_template(name: str) -> dict[str, Any]:
    """Return a template of claims for all chips of a node, as in the driver's examples."""
    request = {"name": "tpus", "exactly": {"deviceClassName": constants.TPU_DRIVER_NAME, "allocationMode": "All"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def post_claims(ground: Ground) -> None:
    """Create the JobSet `claims` of two slices whose pods have claims, and start once both slices count as ready."""
    templates = collection_path("resourceclaimtemplates", namespace=ground.namespace, root=DRA)
    ground.api.post(templates, claim_template("all-chips"))
    pod = pod_spec(
        chips=0,
        resourceClaims=[{"name": "tpu", "resourceClaimTemplateName": "all-chips"}],
        tolerations=[toleration()],
    )
    pod["containers"][0]["resources"] = {"claims": [{"name": "tpu"}]}
    ground.post(
        raw_jobset(
            "claims",
            namespace=ground.namespace,
            uid="",
            job="w",
            replicas=2,
            parallelism=2,
            pod=pod,
            pod_metadata={"annotations": {RUN_FOR: "10s"}},
            metadata={"annotations": {EXCLUSIVE: constants.NODE_POOL, constants.ALL_OR_NOTHING: "true"}},
        )
    )


class Rights:
    """The rights of the manifests, of which a test takes some away."""

    def __init__(self, rehearsal: Rehearsal, directory: Path) -> None:
        self._rehearsal = rehearsal
        kinds = ("ClusterRole", "ClusterRoleBinding", "ConfigMap", "Role", "RoleBinding", "ServiceAccount")
        made = tools.built(directory, resources=["base"])
        self._documents = [document for document in made if document["kind"] in kinds]
        self.grant_all_but()
        self.kubeconfig = kubeconfig_of_service_account(rehearsal, directory / "provisioner", name=SERVICE_ACCOUNT)

    def grant_all_but(self, *names: str) -> None:
        """Grant all rules but those of some resources, or of objects with some names."""
        documents = [
            {**each, "rules": [rule for rule in each["rules"] if not _is_of(rule, names)]} if "rules" in each else each
            for each in self._documents
        ]
        self._kubectl("apply", "--server-side", documents)

    def remove(self) -> None:
        """Delete all rights."""
        self._kubectl("delete", "--ignore-not-found", self._documents)

    def _kubectl(self, verb: str, flag: str, documents: list[dict[str, Any]]) -> None:
        self._rehearsal.kubectl(verb, flag, "-f", "-", stdin=yaml.safe_dump_all(documents))


def _is_of(rule: dict[str, Any], names: tuple[str, ...]) -> bool:
    return not {*rule["resources"], *rule.get("resourceNames", [])}.isdisjoint(names)


@pytest.fixture
def rights(alone: Ground, tmp_path: Path) -> Iterator[Rights]:
    """The rights of the manifests."""
    alone.rehearsal.create_namespace(constants.DEFAULT_NAMESPACE)
    granted = Rights(alone.rehearsal, tmp_path)
    try:
        yield granted
    finally:
        granted.remove()


@pytest.mark.usefixtures("device_class")
def test_slices_start_although_rights_are_missing_since_a_restart(alone: Ground, rights: Rights) -> None:
    """After an upgrade of only the image, no node of the TPU driver became ready, and the hints were overwritten."""
    path = object_path("configmaps", constants.HINTS_CONFIGMAP_NAME, namespace=constants.DEFAULT_NAMESPACE)
    first = alone.provisioner(kubeconfig=rights.kubeconfig, environment={"MAX_CREATES_PER_HOUR": "3"})
    alone.apply("before", run_for="1h")
    alone.wait(lambda: alone.runs("before"), "it runs")
    alone.wait(lambda: "creates" in alone.api.get(path).get("data", {}), "the create is stored")
    first.kill()
    stored = alone.api.get(path)["data"]["creates"]
    rights.grant_all_but(RESOURCE_SLICES, constants.HINTS_CONFIGMAP_NAME)
    process = alone.provisioner(kubeconfig=rights.kubeconfig, environment={"MAX_CREATES_PER_HOUR": "3"}, wait=False)
    post_claims(alone)
    alone.wait(lambda: "cannot be read" in ready(process)[1], "readiness says why")
    rounds = metric(process, "rounds_total", result="ok")
    alone.wait(lambda: metric(process, "rounds_total", result="ok") >= rounds + 3, "rounds end")
    assert alone.gke.count("nodePools.create") == 1
    assert alone.api.get(path)["data"]["creates"] == stored
    assert metric(process, "source_unknown", source=HINTS) == 1
    assert metric(process, "source_unknown", source=RESOURCE_SLICES) == 1
    rights.grant_all_but(RESOURCE_SLICES)
    alone.wait(lambda: alone.runs("claims", pods=4), "all pods run")
    assert metric(process, "source_unknown", source=HINTS) == 0
    assert metric(process, "source_unknown", source=RESOURCE_SLICES) == 1
    # The creates of the first process count for the limit.
    alone.apply("after", run_for="1s")
    alone.wait(lambda: told(alone, constants.LIMIT_REACHED, "after"), "the limit is reached")
    alone.delete("after")
    alone.delete("before")
    alone.await_completed("claims")
    alone.await_gone()


@pytest.mark.usefixtures("device_class")
def test_pods_with_claims_run_on_nodes_without_the_resource(alone: Ground) -> None:
    """Each host of a slice gives its chips to one pod, even to a pod that requests them by the name of the resource."""
    alone.provisioner()
    post_claims(alone)
    alone.apply("extended", topology="2x2x2", parallelism=2, run_for="10s", selector=DRIVER)
    for name, pods in (("claims", 4), ("extended", 2)):
        alone.wait(lambda name=name, pods=pods: alone.runs(name, pods=pods), f"all pods of {name} run")
    nodes = {node["metadata"]["name"]: node for node in alone.nodes()}
    used = [nodes[pod["spec"]["nodeName"]] for pod in alone.pods()]
    assert len({node["metadata"]["name"] for node in used}) == 6
    assert all(DRIVER.items() <= node["metadata"]["labels"].items() for node in used)
    assert not any(constants.TPU_RESOURCE in node["status"]["allocatable"] for node in used)
    claims = alone.rehearsal.objects(collection_path("resourceclaims", namespace=alone.namespace, root=DRA))
    assert [len(claim["status"]["allocation"]["devices"]["results"]) for claim in claims] == [4] * 6
    alone.await_completed("claims", "extended")
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 3
