"""What the real LeaderWorkerSet controller makes of a LeaderWorkerSet: the objects that unit tests go by.

To record them anew, for another release of the controller:
RECORD_LEADERWORKERSETS=1 pytest tests/localcluster/test_leaderworkerset.py. What it does in a set's life is shown by
tests/e2e/test_leaderworkersets.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal import localcluster
from tests.support.localcluster import Kube
from tests.support.objects import pod_spec, raw_lws
from tests.support.waiting import wait_for

# The first run on a machine builds the programs.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

OBJECTS = Path(__file__).parents[1] / "data" / "leaderworkerset" / "objects.json"
NAMESPACE = "serving"
KINDS = {
    "LeaderWorkerSet": ("lws", f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets"),
    "StatefulSet": ("statefulset", f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"),
    "Pod": ("pod", f"/api/v1/namespaces/{NAMESPACE}/pods"),
}
POOL = "cloud.google.com/gke-nodepool"
TPU = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "2x4",
}
CAPACITY = {"cpu": "208", "memory": "448Gi", "google.com/tpu": "4", "pods": "110"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[localcluster.LocalCluster]:
    """Give a running cluster with the LeaderWorkerSet controller, and without JobSet's."""
    with localcluster.start(tmp_path_factory.mktemp("lws") / "cluster", jobset=False, lws=True) as cluster:
        yield cluster


def create_pool(kube: Kube, name: str) -> None:
    """Register the two hosts of a 2x4 slice."""
    for index in range(2):
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"{name}-{index}",
                "labels": {POOL: name, "kubernetes.io/hostname": f"{name}-{index}", **TPU},
            },
            "spec": {"taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]},
            "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
        }
        kube.create("/api/v1/nodes", node)


def leaderworkerset() -> dict[str, Any]:
    """Return two groups of two hosts each, each group on a pool of its own."""
    # As recorded: the chips are limits alone.
    container = {"name": "main", "image": "none", "resources": {"limits": {"google.com/tpu": "4"}}}
    pod = pod_spec(nodeSelector=TPU, containers=[container], terminationGracePeriodSeconds=5)
    return raw_lws("serve", namespace="", uid="", pod=pod)


def literal(kube: Kube) -> list[dict[str, Any]]:
    """Return all objects without what differs between two runs: UIDs get names, pools those of their groups."""
    items = [item | {"kind": kind} for kind, (_, path) in KINDS.items() for item in kube.get(path)["items"]]
    text = json.dumps([_trimmed(item) for item in items])
    for item in items:
        metadata = item["metadata"]
        text = text.replace(metadata["uid"], f"uid-of-{KINDS[item['kind']][0]}-{metadata['name']}")
        if item["kind"] == "Pod":
            group = metadata["labels"]["leaderworkerset.sigs.k8s.io/group-index"]
            node = item["spec"]["nodeName"]
            pool = node.rpartition("-")[0]
            text = text.replace(f'"{node}"', f'"a-node-of-group-{group}"')
            text = text.replace(f'"{POOL}": "{pool}"', f'"{POOL}": "pool-of-group-{group}"')
    found: list[dict[str, Any]] = json.loads(text)
    return found


def _trimmed(item: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps(item))
    for key in ("managedFields", "resourceVersion", "creationTimestamp", "generation"):
        kept["metadata"].pop(key, None)
    if item["kind"] == "Pod":
        # Random names, and what the API server gives every pod.
        for key in ("volumes", "enableServiceLinks", "preemptionPolicy", "priority", "securityContext"):
            kept["spec"].pop(key, None)
        for container in kept["spec"]["containers"]:
            container.pop("volumeMounts", None)
        kept["status"] = {
            "phase": item["status"]["phase"],
            "conditions": [
                {"type": one["type"], "status": one["status"]}
                for one in sorted(item["status"]["conditions"], key=lambda one: str(one["type"]))
            ],
        }
    elif item["kind"] == "LeaderWorkerSet":
        for one in kept["status"]["conditions"]:
            del one["lastTransitionTime"]
    return kept


def test_the_objects_are_those_that_were_recorded(kube: Kube) -> None:
    """Each group's leader waits for its pool, and its worker follows it there."""
    kube.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    kube.create(KINDS["LeaderWorkerSet"][1], leaderworkerset())
    pods = KINDS["Pod"][1]

    def leaders_wait() -> bool:
        conditions = [one for pod in kube.get(pods)["items"] for one in pod["status"].get("conditions", [])]
        return [one.get("reason") for one in conditions] == ["Unschedulable", "Unschedulable"]

    def all_run() -> bool:
        return [pod["status"].get("phase") for pod in kube.get(pods)["items"]] == ["Running"] * 4

    wait_for(leaders_wait, what="two leaders to be unschedulable")
    create_pool(kube, "pool-a")
    create_pool(kube, "pool-b")
    wait_for(all_run, what="all pods to run", seconds=90)
    if os.environ.get("RECORD_LEADERWORKERSETS"):
        OBJECTS.write_text(json.dumps(literal(kube), indent=1) + "\n", encoding="utf-8")
    # The status of sets comes a little later than their pods.
    wait_for(
        lambda: literal(kube) == json.loads(OBJECTS.read_text(encoding="utf-8")),
        what="the objects that were recorded; record them again to see what differs",
    )
