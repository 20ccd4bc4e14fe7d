"""Tests (`make test-versions`) of gangs (Kubernetes 1.37), in-place restarts and elastic JobSets (JobSet 0.12)."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.slices.messages.notices import EventReason
from rehearsal.demos import ProvisionerProcess
from rehearsal.localcluster.recipes import VERSION_VARIABLES
from tests.e2e.kit import EXCLUSIVE, Ground, jobset, told

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("provisioner")]

_GANG = {"schedulingGroup": {"podGroupName": "gang"}}
_TWO_HOSTS = {"topology": "2x2x2", "parallelism": 2, "run_for": "10m"}


def _needs(**versions: str) -> None:
    for module, version in versions.items():
        if os.environ.get(VERSION_VARIABLES[module]) != version:
            pytest.skip(f"it needs {module} {version}: run make test-versions")


def _body(ground: Ground, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    body = jobset("train", ground.namespace, **{**_TWO_HOSTS, **options})
    return body, body["spec"]["replicatedJobs"][0]["template"]["spec"]


def _create_gang(ground: Ground, pods: int) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    root = "/apis/scheduling.k8s.io/v1beta1"
    body = {"apiVersion": root.removeprefix("/apis/"), "kind": "PodGroup", "metadata": {"name": "gang"}, "spec": spec}
    ground.api.post(collection_path("podgroups", namespace=ground.namespace, root=root), body)


def _pools_of_jobs(ground: Ground) -> dict[str, set[str]]:
    pools = {node["metadata"]["name"]: node["metadata"]["labels"][constants.NODE_POOL] for node in ground.nodes()}
    found = defaultdict(set)
    for pod in ground.pods_of("train"):
        if pod["status"].get("phase") == "Running":
            found[pod["metadata"]["labels"][constants.JOB_NAME]].add(pools.get(pod["spec"]["nodeName"], ""))
    return found


def test_gang_of_four_slices_runs_when_all_pools_exist(ground: Ground) -> None:
    """Pod affinity places the pods of each Job on one pool: exclusive placement would hold back pods of the gang."""
    _needs(kubernetes="1.37", jobset="0.12")
    body, job = _body(ground, replicas=4, run_for="5s")
    del body["metadata"]["annotations"][EXCLUSIVE]
    same = {
        "labelSelector": {"matchLabels": {constants.JOBSET_NAME: "train"}},
        "topologyKey": constants.NODE_POOL,
    }
    job["template"]["spec"] |= _GANG
    job["template"]["spec"]["affinity"] = {
        f"pod{kind}": {"requiredDuringSchedulingIgnoredDuringExecution": [{**same, field: [constants.JOB_NAME]}]}
        for kind, field in (("Affinity", "matchLabelKeys"), ("AntiAffinity", "mismatchLabelKeys"))
    }
    ground.post(body)
    # The pools are created although there is no PodGroup yet.
    ground.wait(lambda: len(ground.living("train-")) == 4, "all slices have pools")
    _create_gang(ground, 8)
    ground.wait(lambda: ground.runs("train", pods=8), "the gang runs")
    pools = _pools_of_jobs(ground)
    assert [len(pool) for pool in pools.values()] == [1] * 4
    assert len(set().union(*pools.values())) == 4
    assert EventReason.NEVER_STARTS not in ground.reasons("JobSet")
    ground.await_completed("train")
    ground.await_gone()
    assert ground.accepted("nodePools.create") == 4


def test_gang_with_exclusive_placement_is_reported_on_the_jobset(ground: Ground) -> None:
    """JobSet creates followers only after the leaders are bound, so the gang never has all its pods."""
    _needs(kubernetes="1.37", jobset="0.12")
    body, job = _body(ground, replicas=2)
    job["template"]["spec"] |= _GANG
    _create_gang(ground, 4)
    ground.post(body)
    ground.wait(lambda: told(ground, EventReason.NEVER_STARTS, "train", kind="JobSet"), "the JobSet is told")
    (message,) = told(ground, EventReason.NEVER_STARTS, "train", kind="JobSet")
    assert "remove the annotation, or the gang" in message
    assert len(ground.pods_of("train")) == 2
    assert not any(pod["spec"].get("nodeName") for pod in ground.pods_of("train"))


@pytest.mark.parametrize("lost", ["a node", "the pool"])
def test_in_place_restart_gets_its_lost_node_or_pool_back(ground: Ground, lost: str) -> None:
    """A lost follower waits for the repair of its node. If the pool was deleted, the leader gets another pool."""
    _needs(jobset="0.12")
    ground.gke.set(repair_seconds=3.0)
    body, job = _body(ground)
    body["spec"]["failurePolicy"] = {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"}
    job |= {"completions": 2, "backoffLimit": 2**31 - 1, "podReplacementPolicy": "Failed"}
    ground.post(body)
    ground.wait(lambda: ground.runs("train", pods=2), "the slice runs")
    ((pool,),) = _pools_of_jobs(ground).values()
    leader, follower = sorted(ground.pods_of("train"), key=lambda pod: pod["metadata"]["name"])
    uids = {pod["metadata"]["uid"] for pod in (leader, follower)}
    if lost == "a node":
        ground.api.delete(object_path("nodes", follower["spec"]["nodeName"]))
    else:
        ground.drop_pool(pool)
        ground.wait(lambda: pool not in {node_pool.name for node_pool in ground.living()}, "the pool is gone")
    for pod in (follower,) if lost == "a node" else (leader, follower):
        # The controller manager deletes a pod in this way 40 s after the loss of its node.
        path = object_path("pods", pod["metadata"]["name"], namespace=ground.namespace)
        ground.api.patch(f"{path}/status", {"status": {"phase": "Failed"}})
        ground.api.delete(f"{path}?gracePeriodSeconds=0")
    left = 1 if lost == "a node" else 0

    def runs_again() -> bool:
        now = {pod["metadata"]["uid"] for pod in ground.pods_of("train")}
        return len(now & uids) == left and ground.runs("train", pods=2)

    ground.wait(runs_again, "the slice runs again")
    assert ground.restarts("train") == 0
    assert ground.accepted("nodePools.create") == 2 - left
    assert [len(pools) for pools in _pools_of_jobs(ground).values()] == [1]


def test_elastic_jobset_keeps_its_pool_when_it_is_resized(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Pods beyond the hosts of the topology wait, an idle host is reported, and running pods continue."""
    _needs(jobset="0.12")
    body, job = _body(ground)
    job["completions"] = 2
    ground.post(body)
    ground.wait(lambda: ground.runs("train", pods=2), "the slice runs")
    (pool,) = ground.living("train-")
    jobs = ground.jobset("train")["spec"]["replicatedJobs"]
    for pods in (4, 1):
        jobs[0]["template"]["spec"] |= {"parallelism": pods, "completions": pods}
        ground.api.patch(ground._path("train"), {"spec": {"replicatedJobs": jobs}})
        ground.wait(lambda pods=pods: len(ground.pods_of("train")) == pods, f"it has {pods} pods")
        ground.wait(lambda pods=pods: ground.runs("train", pods=min(pods, 2)), "what has a host runs")
    ground.wait(lambda: told(ground, EventReason.UNDERUSED, "train", kind="JobSet"), "the idle host is told")
    assert [node_pool.name for node_pool in ground.living()] == [pool.name]
    assert (ground.accepted("nodePools.create"), ground.accepted("nodePools.delete")) == (1, 0)
