"""JobSets and their pools on a real control plane: the examples, strange neighbours, and a pause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import provisioner as package
from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.demos import ProvisionerProcess
from tests.e2e.kit import Ground, foreign_pod, told

pytestmark = pytest.mark.e2e

EXAMPLES = Path(package.__file__).parent.parent / "examples"


def test_every_example_runs(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Each applies to a real API server, and all its pods fit the nodes of its pools."""
    files = sorted(EXAMPLES.glob("*/jobset.yaml"))
    documents = [body for each in files for body in yaml.safe_load_all(each.read_text(encoding="utf-8"))]
    jobs = [job for body in documents for job in body["spec"]["replicatedJobs"]]
    pods = sum(job.get("replicas", 1) * job["template"]["spec"]["parallelism"] for job in jobs)
    paths = [f"--filename={each}" for each in files]
    ground.rehearsal.kubectl("apply", "--server-side", "-n", ground.namespace, *paths)
    ground.wait(lambda: len(ground.pods()) >= pods, "all pods are made")
    ground.wait(lambda: all(pod["spec"].get("nodeName") for pod in ground.pods()), "all pods fit their nodes")


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


def test_a_pause_of_a_running_provisioner(alone: Ground) -> None:
    """A ConfigMap pauses it without a restart, and its end resumes."""
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": constants.PAUSE_CONFIGMAP_NAME}}
    alone.api.post(collection_path("configmaps", namespace=constants.DEFAULT_NAMESPACE), made)
    alone.provisioner()
    alone.apply("new", accelerator="tpu-v5-lite-podslice", topology="2x2", run_for="1s")
    alone.wait(lambda: told(alone, constants.LIMIT_REACHED, "new"), "the new one is told")
    (words, *_) = told(alone, constants.LIMIT_REACHED, "new")
    assert re.search(r"Creation is paused since 20\d\d-\d\d-\d\d \d\d:\d\d UTC, by ConfigMap", words)
    assert alone.accepted("nodePools.create") == 0
    alone.api.delete(object_path("configmaps", constants.PAUSE_CONFIGMAP_NAME, namespace=constants.DEFAULT_NAMESPACE))
    alone.await_completed("new")
    alone.await_gone("new-")
