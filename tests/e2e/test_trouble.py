"""GKE's refusals and failures, and pods that turn up where a pool is to go."""

from __future__ import annotations

import pytest

from provisioner import constants
from provisioner.cluster.protocol import collection_path
from provisioner.rehearsal import ProvisionerProcess
from provisioner.simulator.faults import Fault, FaultKind
from tests.e2e.kit import Ground, foreign_pod, logged

pytestmark = pytest.mark.e2e


def test_failures_of_operations(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A create that ends in a stockout is told in GKE's words and tried later; a delete that fails is sent again."""
    words = "GCE_STOCKOUT: us-central2-b does not have enough resources"
    ground.gke.inject(Fault(kind=FaultKind.STOCKOUT, pool="scarce-.*", count=1, after_seconds=0.5, message=words))
    ground.gke.inject(Fault(kind=FaultKind.DELETE_FAILS, pool="stubborn-.*", count=1))
    # A shape of its own: back-off goes by what is out of stock.
    ground.apply("scarce", run_for="1s", accelerator="tpu-v5-lite-podslice", topology="2x4", chips=8)
    ground.apply("stubborn", run_for="1s")
    for kind, reason in (("Pod", constants.CREATION_FAILED), ("JobSet", constants.CREATION_WAITING)):
        ground.wait(lambda kind=kind, reason=reason: reason in ground.reasons(kind, "scarce"), f"{reason} is told", 15)
        (event,) = (event for event in ground.events(kind, "scarce") if event["reason"] == reason)
        assert words in event["message"]
    ground.await_gone("scarce-", seconds=10)
    ground.await_completed("stubborn", seconds=15)
    ground.await_completed("scarce")
    assert ground.accepted("nodePools.create") == 3
    ground.await_gone()
    # Of scarce: the failed pool and the good one; of stubborn: one pool, twice.
    assert ground.accepted("nodePools.delete") == 4


def test_a_lost_answer(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A create whose answer is lost after it took effect makes one pool, not two."""
    ground.gke.inject(Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=0, before_effect=False, count=1))
    ground.apply("echo", run_for="1s")
    ground.await_completed("echo")
    ground.await_gone("echo-")
    assert ground.gke.count("nodePools.create") == 1


def test_a_lost_request(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A create that never arrived is found out, and sent again."""
    ground.gke.inject(Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=0, count=1))
    ground.apply("mute", run_for="1s")
    ground.await_completed("mute")
    ground.await_gone("mute-")
    assert ground.accepted("nodePools.create") == 1


def test_a_quota_of_operations(alone: Ground) -> None:
    """Twelve JobSets share five operations at a time: all run, never with more than five, and few calls are wasted."""
    alone.gke.set(operations_quota=5)
    process = alone.provisioner()
    names = [f"queue-{index}" for index in range(12)]
    for name in names:
        alone.apply(name, run_for="2s")
    most = 0

    def done() -> bool:
        nonlocal most
        busy = [pool for pool in alone.pools() if pool.status.value in ("PROVISIONING", "STOPPING")]
        most = max(most, len(busy))
        return all(alone.state(name) == "Completed" for name in names)

    alone.wait(done, "all twelve are completed", 90)
    alone.await_gone("queue-")
    assert most <= 5
    # Fewer where one JobSet takes over the pool of another that has ended.
    assert 5 <= alone.accepted("nodePools.create") <= 12
    assert len(logged(process, "node_pool.create_failed")) <= 24


def test_a_refused_delete(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A delete that GKE refuses once is sent again, and told."""
    ground.gke.inject(
        Fault(
            kind=FaultKind.HTTP_ERROR,
            method="nodePools.delete",
            code=400,
            message="Cluster is running incompatible operation operation-1-2.",
            count=1,
        )
    )
    ground.apply("sticky", run_for="1s")
    ground.await_completed("sticky")
    ground.await_gone("sticky-")
    assert (ground.gke.count("nodePools.delete"), ground.accepted("nodePools.delete")) == (2, 1)
    assert constants.DELETION_FAILED in ground.reasons("JobSet", "sticky")


def test_a_stranger_on_an_idle_pool(alone: Ground) -> None:
    """A foreign pod with chips on an idle pool keeps it, open for pods, until it ends."""
    process = alone.provisioner(environment={"NODEPOOL_DELETION_DELAY": "4s"})
    alone.apply("host", run_for="1s")
    alone.await_completed("host")
    (node,) = (node["metadata"]["name"] for node in alone.nodes())
    alone.api.post(
        collection_path("pods", namespace=alone.namespace), foreign_pod("stranger", alone.namespace, node=node, chips=4)
    )
    alone.wait(lambda: constants.DELETION_FAILED in alone.reasons("JobSet", "host"), "the delete is held up")
    (event,) = (event for event in alone.events("JobSet", "host") if event["reason"] == constants.DELETION_FAILED)
    assert f"{alone.namespace}/stranger" in event["message"]
    assert len(alone.living("host-")) == 1
    alone.wait(lambda: not alone.nodes()[0]["spec"].get("unschedulable"), "its node is open")
    alone.wait(lambda: len(logged(process, "node_pool.delete_postponed")) >= 2, "it is tried more than once")
    assert alone.accepted("nodePools.delete") == 0
    alone.api.delete(f"/api/v1/namespaces/{alone.namespace}/pods/stranger")
    alone.await_gone("host-")


def test_preempted(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A spot pool that loses all its nodes under its job leaves nothing behind when the JobSet goes."""
    ground.apply(
        "cheap",
        run_for="1h",
        selector={constants.SPOT: "true"},
        tolerations=[{"key": constants.SPOT, "operator": "Exists"}],
    )
    ground.wait(lambda: ground.runs("cheap"), "it runs")
    (pool,) = ground.pools("cheap-")
    ground.gke.preempt(pool.name)
    ground.delete("cheap")
    ground.await_gone("cheap-")
