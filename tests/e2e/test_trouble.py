"""Pods that turn up where a pool is to go, and nodes that are lost."""

from __future__ import annotations

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from tests.e2e.kit import Ground, foreign_pod, logged, told

pytestmark = pytest.mark.e2e


def test_a_stranger_on_an_idle_pool(alone: Ground) -> None:
    """A foreign pod with chips on an idle pool keeps it, open for pods, until it ends."""
    process = alone.provisioner()
    alone.apply("host", run_for="6s")
    alone.wait(lambda: alone.runs("host"), "it runs")
    (node,) = (node["metadata"]["name"] for node in alone.nodes())
    alone.api.post(
        collection_path("pods", namespace=alone.namespace), foreign_pod("stranger", alone.namespace, node=node, chips=4)
    )
    alone.wait(lambda: constants.DELETION_FAILED in alone.reasons("JobSet", "host"), "the delete is held up")
    (message, *_) = told(alone, constants.DELETION_FAILED, "host", kind="JobSet")
    assert f"{alone.namespace}/stranger" in message
    assert len(alone.living("host-")) == 1
    alone.wait(lambda: not alone.nodes()[0]["spec"].get("unschedulable"), "its node is open")
    alone.wait(lambda: len(logged(process, "node_pool.delete_postponed")) >= 2, "it is tried more than once")
    assert alone.accepted("nodePools.delete") == 0
    alone.api.delete(f"/api/v1/namespaces/{alone.namespace}/pods/stranger")
    alone.await_gone("host-")


def test_a_preempted_slice_is_replaced(alone: Ground) -> None:
    """A slice that loses its nodes for good gets another pool, and its JobSet runs there."""
    alone.provisioner(environment={"NODEPOOL_READY_TIMEOUT": "10s"})
    alone.apply("flood", run_for="1h", topology="2x2x4", parallelism=4, max_restarts=20)
    alone.wait(lambda: alone.runs("flood", pods=4), "it runs")
    (flood,) = alone.pools("flood-")
    lost = alone.gke.preempt(flood.name)
    # As the control plane does by itself after a minute.
    for pod in alone.pods():
        if pod["spec"].get("nodeName") in lost:
            path = object_path("pods", pod["metadata"]["name"], namespace=alone.namespace)
            alone.api.delete(f"{path}?gracePeriodSeconds=0")
    # The old one has gone before back-off lets the new one come, so that it bears the same name.
    alone.wait(lambda: any(pool.created > flood.created for pool in alone.living("flood-")), "it is replaced", 90)
    alone.wait(lambda: alone.runs("flood", pods=4), "it runs on another pool")
    assert (alone.accepted("nodePools.create"), alone.accepted("nodePools.delete")) == (2, 1)
