"""Tests of pods with ResourceClaims, whose nodes offer chips by the DRA driver instead of google.com/tpu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.localcluster import RUN_FOR
from tests.e2e.kit import EXCLUSIVE, Ground
from tests.support.objects import pod_spec, raw_jobset, toleration

pytestmark = pytest.mark.e2e

DRA = "/apis/resource.k8s.io/v1"
DRIVER = {constants.TPU_DRA_DRIVER: "true"}


@pytest.fixture
def device_class(alone: Ground) -> Iterator[None]:
    """Create the DeviceClass of the driver's chart, which also serves pods that request google.com/tpu."""
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
    """Create the JobSet `claims` of two slices whose pods have claims; it starts when both slices are ready."""
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


@pytest.mark.usefixtures("device_class")
def test_pods_with_claims_run_on_nodes_without_the_resource(alone: Ground) -> None:
    """Each host gives its chips to one pod, even if the pod requests google.com/tpu instead of a claim."""
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
