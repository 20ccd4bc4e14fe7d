"""Tests of Deployments on a real control plane: their pods share node pools, which are deleted when they are empty."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.placement import SHARED, labels_of
from provisioner.slices.messages.notices import EventReason
from rehearsal.localcluster import RUN_FOR
from tests.e2e.kit import Ground
from tests.support.objects import pod_spec

pytestmark = pytest.mark.e2e

_ROOT = "/apis/apps/v1"


def deployment(namespace: str) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels, "annotations": {RUN_FOR: "1h"}},
        "spec": pod_spec(topology="2x2x1", restartPolicy="Always", terminationGracePeriodSeconds=1),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def test_deployment_that_scales_to_40_and_back_gets_few_pools_and_then_none(assigned: Ground) -> None:
    """The pools have one node for each pod. Their number depends on how many pods are pending at the same time."""
    assigned.provisioner()
    path = object_path("deployments", "web", namespace=assigned.namespace, root=_ROOT)
    assigned.api.post(
        collection_path("deployments", namespace=assigned.namespace, root=_ROOT), deployment(assigned.namespace)
    )

    def scale(number: int) -> None:
        assigned.api.patch(path, {"spec": {"replicas": number}})

    def running() -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in assigned.pods())

    try:
        scale(40)
        assigned.wait(lambda: running() == 40, "40 pods are bound")
        assert sum(len(pool.nodes) for pool in assigned.living()) == 40
        assert len(assigned.pools()) <= 6
        marks = labels_of(SHARED, assigned.namespace)
        assert all(marks.items() <= node["metadata"]["labels"].items() for node in assigned.nodes())
        assigned.wait(
            lambda: all(
                constants.POD_DELETION_COST in pod["metadata"].get("annotations", {}) for pod in assigned.pods()
            ),
            "all pods have a deletion cost",
        )
        assert EventReason.CREATION_STARTED in assigned.reasons("Pod", "web")
    finally:
        scale(0)
    assigned.wait(lambda: not assigned.pods(), "all pods have ended")
    assigned.await_gone()
    assigned.api.delete(path)
