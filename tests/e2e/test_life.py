"""Tests of JobSets on a real control plane: the examples get pools, and a pause prevents creates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import provisioner as package
from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.slices.messages.notices import EventReason
from rehearsal.demos import ProvisionerProcess
from tests.e2e.kit import Ground, told

pytestmark = pytest.mark.e2e

FILES = sorted((Path(package.__file__).parent.parent / "examples").glob("*/jobset.yaml"))


def test_every_example_is_accepted_by_the_api_server(ground: Ground) -> None:
    """tests/docs/test_examples.py shows the pools of each example, and a test at night runs the examples."""
    options = ("apply", "--server-side", "--dry-run=server", "-n", ground.namespace)
    ground.rehearsal.kubectl(*options, *(f"--filename={file}" for file in FILES))


@pytest.mark.nightly
def test_every_example_applies_and_its_pods_fit_their_pools(ground: Ground, provisioner: ProvisionerProcess) -> None:
    documents = [body for file in FILES for body in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    jobs = [job for body in documents if body["kind"] == "JobSet" for job in body["spec"]["replicatedJobs"]]
    pods = sum(job.get("replicas", 1) * job["template"]["spec"]["parallelism"] for job in jobs)
    paths = [f"--filename={file}" for file in FILES]
    ground.rehearsal.kubectl("apply", "--server-side", "-n", ground.namespace, *paths)
    ground.wait(lambda: len(ground.pods()) >= pods, "all pods are made")
    ground.wait(lambda: all(pod["spec"].get("nodeName") for pod in ground.pods()), "all pods fit their nodes")


def test_pause_by_configmap_stops_creates_until_it_is_deleted(alone: Ground) -> None:
    """The provisioner notices the delete of the ConfigMap without a restart."""
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": constants.PAUSE_CONFIGMAP_NAME}}
    alone.api.post(collection_path("configmaps", namespace=constants.DEFAULT_NAMESPACE), made)
    alone.provisioner()
    alone.apply("new", accelerator="tpu-v5-lite-podslice", topology="2x2", run_for="1s")
    alone.wait(lambda: told(alone, EventReason.LIMIT_REACHED, "new"), "the new one is told")
    (words, *_) = told(alone, EventReason.LIMIT_REACHED, "new")
    assert re.search(r"Creation is paused since 20\d\d-\d\d-\d\d \d\d:\d\d UTC, by ConfigMap", words)
    assert alone.accepted("nodePools.create") == 0
    alone.api.delete(object_path("configmaps", constants.PAUSE_CONFIGMAP_NAME, namespace=constants.DEFAULT_NAMESPACE))
    alone.await_completed("new")
    alone.await_gone("new-")
