"""GKE's refusals and failures, and pods that turn up where a pool is to go."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path
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


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            Fault(kind=FaultKind.HTTP_ERROR, method="nodePools.create", code=0, before_effect=False, count=1),
            id="the connection breaks",
        ),
        pytest.param(
            Fault(kind=FaultKind.HANG, method="nodePools.create", seconds=12.0, before_effect=False, count=1),
            id="the answer comes after the time-out of the call",
        ),
    ],
)
def test_a_lost_answer(ground: Ground, provisioner: ProvisionerProcess, fault: Fault) -> None:
    """A create whose answer is lost after it took effect makes one pool, not two."""
    ground.gke.inject(fault)
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

    alone.wait(done, "all twelve are completed", 150)
    alone.await_gone("queue-")
    assert most <= 5
    # Fewer where one JobSet takes over the pool of another that has ended.
    assert 5 <= alone.accepted("nodePools.create") <= 12
    assert len(logged(process, "node_pool.create_failed")) <= 24


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
