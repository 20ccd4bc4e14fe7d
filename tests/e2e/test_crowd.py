"""Many JobSets at once, strange neighbours, and who is served."""

from __future__ import annotations

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path
from rehearsal.demos import ProvisionerProcess
from tests.e2e.kit import Ground, foreign_pod, logged

pytestmark = pytest.mark.e2e


def test_strange_neighbours(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Foreign pools, foreign pods and broken JobSets are left alone; a good JobSet is served at once."""
    ground.make_pool({"name": "web", "initialNodeCount": 1, "config": {"machineType": "e2-standard-4"}})
    ground.make_pool(
        {
            "name": "by-hand",
            "initialNodeCount": 1,
            "config": {"machineType": "ct4p-hightpu-4t", "labels": {constants.NODEPOOL_MANAGER: "somebody"}},
        }
    )
    path = collection_path("pods", namespace=ground.namespace)
    ground.api.post(path, foreign_pod("stray", ground.namespace, schedulerName="nobody"))
    ground.apply(
        "no-chips", chips=0, selector={constants.TPU_ACCELERATOR: "", constants.TPU_TOPOLOGY: "", "no": "node"}
    )
    ground.apply("nonsense", topology="2x2x3")
    ground.wait(lambda: all(ground.leader(name) for name in ("no-chips", "nonsense")), "all have pods")
    ground.apply("good", run_for="2s")
    ground.await_completed("good")
    ground.wait(lambda: constants.INVALID_REQUEST in ground.reasons("Pod", "nonsense"), "the nonsense is told")
    (event, *_) = ground.events("Pod", "nonsense")
    assert "2x2x3" in event["message"]
    assert not ground.reasons("Pod", "no-chips") | ground.reasons("Pod", "stray")
    ground.await_gone("good-")
    assert {pool.name for pool in ground.pools()} == {"web", "by-hand"}
    assert ground.accepted("nodePools.create") == 3


def test_opt_in_by_label(alone: Ground) -> None:
    """With OPT_IN_LABEL only pods that carry it, or whose namespace does, are served."""
    willing = alone.new_namespace(tpu="please")
    process = alone.provisioner(environment={"OPT_IN_LABEL": "tpu=please"})
    alone.apply("by-namespace", namespace=willing, run_for="1s")
    alone.apply("by-pod", run_for="1s", pod_labels={"tpu": "please"})
    # Of other shapes, or the scheduler would put them on what was bought for the others.
    alone.apply("neither", run_for="1s", topology="2x2x2", parallelism=2)
    alone.apply("otherwise", run_for="1s", topology="2x2x4", parallelism=4, pod_labels={"tpu": "no"})
    alone.await_completed("by-pod")
    alone.wait(lambda: alone.state("by-namespace", namespace=willing) == "Completed", "the other is completed, too")
    assert alone.accepted("nodePools.create") == 2
    assert not alone.reasons("Pod", "neither")
    assert {record["jobset"] for record in logged(process, "node_pool.phase_changed")} == {"by-namespace", "by-pod"}
    # The namespace may be opened later.
    alone.api.patch(f"/api/v1/namespaces/{alone.namespace}", {"metadata": {"labels": {"tpu": "please"}}})
    alone.await_completed("neither", "otherwise")
    alone.await_gone()
