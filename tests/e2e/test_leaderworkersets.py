"""LeaderWorkerSets on a real control plane, with their real controller: each group is a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner import constants, kube
from provisioner.kube.protocol import collection_path, object_path
from provisioner.workloads import LEADER_WORKER_SET
from rehearsal import localcluster
from rehearsal.demos import ProvisionerProcess
from rehearsal.localcluster import recipes
from tests.e2e.kit import Ground, ready
from tests.support.objects import pod_spec, raw_lws

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("leaderworkersets")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "leaderworkerset" / "leaderworkerset.yaml"
_POD = pod_spec(terminationGracePeriodSeconds=1)


def apply(ground: Ground, name: str, **options: Any) -> str:
    """Create a LeaderWorkerSet; return its address."""
    path = collection_path("leaderworkersets", namespace=ground.namespace, root=LEADER_WORKER_SET.root)
    ground.api.post(path, raw_lws(name, namespace=ground.namespace, uid="", pod=_POD, **options))
    return object_path("leaderworkersets", name, namespace=ground.namespace, root=LEADER_WORKER_SET.root)


def running(ground: Ground) -> dict[str, str]:
    """Return the UIDs of the pods that run, by name."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in ground.pods()
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def test_the_life_of_a_leaderworkerset(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """From groups that wait to nothing left; a restart reuses the pool, scaling adds and removes one."""
    path = apply(ground, "serve")
    ground.wait(lambda: len(running(ground)) == 4, "all pods of both groups run")
    pools = {pool.name for pool in ground.living("serve-")}
    assert len(pools) == 2
    for body in ground.sent().values():
        labels = body["config"]["labels"]
        assert (labels[constants.POOL_WORKLOAD_KIND], labels[constants.POOL_WORKLOAD_NAME]) == (
            "LeaderWorkerSet",
            "serve",
        )
    assert constants.CREATION_STARTED in ground.reasons("Pod", "serve-0")

    before = running(ground)["serve-1"]
    ground.api.delete(object_path("pods", "serve-1", namespace=ground.namespace))
    ground.wait(
        lambda: len(running(ground)) == 4 and running(ground).get("serve-1", before) != before, "the group runs again"
    )
    assert {pool.name for pool in ground.living("serve-")} == pools

    ground.api.patch(path, {"spec": {"replicas": 3}})
    ground.wait(lambda: len(running(ground)) == 6, "the third group runs")
    ground.api.patch(path, {"spec": {"replicas": 1}})
    ground.wait(lambda: len(ground.living("serve-")) == 1, "the pools of two groups go")
    assert set(running(ground)) == {"serve-0", "serve-0-1"}

    ground.api.delete(path)
    ground.await_gone("serve-")
    ground.wait(lambda: not ground.nodes(), "all nodes are gone")


def test_a_rolling_update_keeps_the_pools(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Each group is replaced on its own pool."""
    path = apply(ground, "roll")
    ground.wait(lambda: len(running(ground)) == 4, "all pods of both groups run")
    pools, before = {pool.name for pool in ground.living("roll-")}, running(ground)
    template = {"metadata": {"labels": {"version": "2"}}}
    ground.api.patch(path, {"spec": {"leaderWorkerTemplate": {"workerTemplate": template}}})
    ground.wait(
        lambda: len(running(ground)) == 4 and not set(running(ground).values()) & set(before.values()),
        "all pods are replaced",
    )
    assert {pool.name for pool in ground.living("roll-")} == pools
    assert ground.accepted("nodePools.create") == 2


def test_a_group_that_is_no_slice_is_told(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """The Event is on the leader pod and on the set, in its own words."""
    apply(ground, "wide", replicas=1, size=3)
    ground.wait(
        lambda: constants.INVALID_REQUEST in ground.reasons("LeaderWorkerSet", "wide"), "the set is told what is wrong"
    )
    (event,) = [
        each for each in ground.events("LeaderWorkerSet", "wide") if each["reason"] == constants.INVALID_REQUEST
    ]
    assert "group wide-0 has size 3" in event["message"]
    assert not ground.pools("wide-")


def test_the_example(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """It applies to a real API server, and gets a pool of four hosts for each replica."""
    ground.rehearsal.kubectl("apply", "--server-side", "-n", ground.namespace, "-f", str(EXAMPLE))
    ground.wait(lambda: len(running(ground)) == 8, "all pods of both groups run")
    pools = ground.living("serve-v6e-4x4-")
    assert [(pool.machine_type, len(pool.nodes)) for pool in pools] == [("ct6e-standard-4t", 4)] * 2


def test_sets_are_served_from_the_moment_that_their_kind_is_there(alone: Ground) -> None:
    """Without the kind JobSets are served, and nobody is alarmed; a restart is not needed."""
    cluster = alone.rehearsal.cluster
    alone.rehearsal.kubectl("delete", "crd", localcluster.LWS.crd, "--wait=true")
    try:
        process = alone.provisioner()
        alone.apply("meanwhile", run_for="1s")
        alone.await_completed("meanwhile")
        assert ready(process)[0] == 200
        alone.await_gone()
    finally:
        resource, _, group = localcluster.LWS.crd.partition(".")
        manifest = cluster.binaries.manifests[recipes.LWS] / "crd" / "bases" / f"{group}_{resource}.yaml"
        alone.rehearsal.kubectl("apply", "--server-side", "-f", str(manifest))
        alone.wait(lambda: _are_served(alone), "the kind is back")
        cluster.restart(recipes.LWS)
    alone.wait(lambda: _applied(alone, "late"), "a set is taken", 60)
    alone.wait(lambda: len(running(alone)) == 4, "all pods of both groups run", 120)


def _are_served(ground: Ground) -> bool:
    try:
        ground.rehearsal.objects(collection_path("leaderworkersets", root=LEADER_WORKER_SET.root))
    except kube.ClusterError:
        return False
    return True


def _applied(ground: Ground, name: str) -> bool:
    try:
        apply(ground, name)
    except kube.ClusterError:
        return False
    return True
