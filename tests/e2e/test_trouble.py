"""GKE's refusals and failures, and pods that turn up where a pool is to go."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.demos import ProvisionerProcess
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.e2e.kit import Ground, await_round, foreign_pod, logged, metrics, moment, told

pytestmark = pytest.mark.e2e


def test_failures_of_operations(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Creates that end in a stockout or a quota are told in GKE's words and tried later; a failed delete is sent again.

    The JobSet that is beyond the quota goes before it would be tried again.
    """
    stockout = "GCE_STOCKOUT: us-central2-b does not have enough resources"
    quota = "GCE_QUOTA_EXCEEDED: Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region us-central2."
    ground.gke.inject(Fault(kind=FaultKind.STOCKOUT, pool="scarce-.*", count=1, after_seconds=0.5, message=stockout))
    ground.gke.inject(Fault(kind=FaultKind.QUOTA_EXCEEDED, pool="beyond-.*", after_seconds=0.5, message=quota))
    ground.gke.inject(Fault(kind=FaultKind.DELETE_FAILS, pool="stubborn-.*", count=1))
    # Shapes of their own: back-off goes by what is out of stock.
    ground.apply("scarce", run_for="1s", accelerator="tpu-v5-lite-podslice", topology="2x4", chips=8)
    ground.apply("beyond", run_for="1s", accelerator="tpu-v5-lite-podslice", topology="1x1", chips=1)
    ground.apply("stubborn", run_for="1s")
    for name, words in (("scarce", stockout), ("beyond", quota)):
        for kind, reason in (("Pod", constants.CREATION_FAILED), ("JobSet", constants.CREATION_WAITING)):
            ground.wait(
                lambda name=name, kind=kind, reason=reason: told(ground, reason, name, kind=kind), f"{reason} is told"
            )
            assert all(words in message for message in told(ground, reason, name, kind=kind))
        ground.wait(lambda name=name: not ground.pools(f"{name}-"), "the failed pool is gone")
    assert 'tpu_provisioner_backoff_active{kind="quota"} 1.0' in metrics(provisioner)
    ground.delete("beyond")
    ground.await_completed("stubborn", "scarce")
    ground.await_gone()
    assert ground.accepted("nodePools.create") == 4
    # Of scarce: the failed pool and the good one; of beyond: the failed one; of stubborn: one pool, twice.
    assert ground.accepted("nodePools.delete") == 5


def test_a_lost_answer(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A create whose answer is lost after it took effect makes one pool, not two."""
    ground.gke.inject(Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=0, before_effect=False, count=1))
    ground.apply("echo", run_for="1h")
    ground.wait(lambda: ground.runs("echo"), "it runs")
    ground.wait(lambda: ground.gke.count("nodePools.create"), "GKE has given its answer up")
    (pool,) = ground.pools("echo-")
    ground.wait(lambda: _lost_creates(provisioner, pool.name), "so has the provisioner")
    (lost,) = _lost_creates(provisioner, pool.name)
    await_round(provisioner, ground.api, after=moment(lost))
    assert (ground.gke.count("nodePools.create"), len(ground.pools())) == (1, 1)
    ground.delete("echo")
    ground.await_gone("echo-")


def _lost_creates(provisioner: ProvisionerProcess, pool: str) -> list[dict[str, Any]]:
    return [
        record
        for record in logged(provisioner, "node_pool.create_failed")
        if (record["node_pool"], record["kind"]) == (pool, "unknown_outcome")
    ]


def test_operations_of_others_that_hang(alone: Ground) -> None:
    """Two pools of somebody else are created without end and take two of three operations: ours share the third."""
    alone.gke.set(operations_quota=3)
    alone.gke.inject(Fault(kind=FaultKind.CREATE_NEVER_ENDS, pool="theirs-.*"))
    for name in ("theirs-1", "theirs-2"):
        alone.make_pool({"name": name, "initialNodeCount": 1, "config": {"machineType": "e2-standard-4"}})
    process = alone.provisioner()
    names = [f"third-{index}" for index in range(4)]
    for name in names:
        alone.apply(name, run_for="1s")
    alone.await_completed(*names, seconds=150)
    alone.await_gone("third-", seconds=150)
    assert any(each["kind"] == "too_many_operations" for each in logged(process, "node_pool.create_failed"))


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
