"""Tests of the real KubeRay and the webhook on a real control plane: each replica of several hosts is a slice.

kwok simulates the kubelets, so Ray itself does not run: no pod waits for the head, and Ray never reports the state of a
job. A RayJob can therefore end only by the failure of its submitter. These tests run only with `make test-operators`,
which builds KubeRay the first time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.settings.webhook import WebhookSettings
from provisioner.workloads import RAY_CLUSTER
from rehearsal.demos import Rehearsal
from rehearsal.localcluster import FAIL_AFTER
from tests.e2e.assigning import (
    RESTARTS,
    assert_each_on_a_pool_of_its_own,
    await_rival,
    bound,
    nodes_of,
    remove,
    train,
)
from tests.e2e.kit import Ground, registered_webhook, serving_webhook
from tests.support.objects import Json, pod_spec, raw_raycluster

pytestmark = [
    pytest.mark.e2e,
    # The first test includes at least 10 s in which the API server loads KubeRay's schemas.
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("kuberay", "webhook", "head_node", "provisioner"),
]

_ROOT = RAY_CLUSTER.root
_HEAD_NODE = "head"
_HEAD = {"spec": {"containers": [{"name": "head", "image": "none"}]}}


@pytest.fixture(scope="module")
def webhook(rehearsal: Rehearsal, kuberay: None) -> Iterator[None]:
    """Run the webhook, which adds affinity and environment variables to pods."""
    pod = {"metadata": {"generateName": "probe-"}, "spec": pod_spec(accelerator="tpu-v6e-slice", topology="2x2")}
    path = f"{collection_path('pods', namespace='default')}?dryRun=All"

    def admits() -> bool:
        return "env" in rehearsal.api.post(path, pod)["spec"]["containers"][0]

    settings = WebhookSettings(injection="all")
    with registered_webhook(rehearsal, "webhook") as port, serving_webhook(rehearsal, port, settings, admits):
        yield


@pytest.fixture(scope="module")
def head_node(rehearsal: Rehearsal) -> Iterator[None]:
    """Create a node for heads and submitters, because KubeRay submits a RayJob only when the head runs."""
    room = {"cpu": "64", "memory": "256Gi", "pods": "100"}
    status = {"capacity": room, "allocatable": room}
    rehearsal.api.post(collection_path("nodes"), {"metadata": {"name": _HEAD_NODE}, "status": status})
    yield
    rehearsal.api.delete(object_path("nodes", _HEAD_NODE))


class Ray:
    """A RayCluster or a RayJob named "ray" with one group of v6e hosts, and its pods and pools."""

    def __init__(self, ground: Ground, *, replicas: int = 1, hosts: int = 4, topology: str = "4x4") -> None:
        self.ground = ground
        pod = pod_spec(accelerator="tpu-v6e-slice", topology=topology, terminationGracePeriodSeconds=1)
        self._raw = raw_raycluster(replicas=replicas, hosts=hosts, template={"spec": pod})
        self._raw["spec"]["headGroupSpec"] = {"rayStartParams": {}, "template": _HEAD}
        self._raw["spec"]["workerGroupSpecs"][0]["rayStartParams"] = {}
        self._path = ""

    def create(self) -> None:
        self._create("rayclusters", {**self._raw, "metadata": {"name": "ray"}})

    def create_job(self, **spec: Any) -> None:
        """Create a RayJob; KubeRay creates its RayCluster, and deletes the RayCluster when the RayJob ends."""
        spec |= {"entrypoint": "none", "shutdownAfterJobFinishes": True, "rayClusterSpec": self._raw["spec"]}
        self._create(
            "rayjobs", {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "ray"}, "spec": spec}
        )

    def _create(self, resource: str, body: Json) -> None:
        self.ground.api.post(collection_path(resource, namespace=self.ground.namespace, root=_ROOT), body)
        self._path = object_path(resource, "ray", namespace=self.ground.namespace, root=_ROOT)

    def change(self, **spec: Any) -> None:
        self.ground.api.patch(self._path, {"spec": spec})

    def scale(self, replicas: int) -> None:
        self.change(workerGroupSpecs=[{**self._raw["spec"]["workerGroupSpecs"][0], "replicas": replicas}])

    def delete(self) -> None:
        self.ground.api.delete(self._path)

    @property
    def workers(self) -> list[Json]:
        return [
            pod
            for pod in self.ground.pods()
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and constants.RAY_REPLICA_NAME in pod["metadata"]["labels"]
        ]

    @property
    def pools(self) -> dict[str, set[str]]:
        """Pools of the running worker pods, by the name of the replica."""
        pool_of = {
            node["metadata"]["name"]: node["metadata"].get("labels", {}).get(constants.NODE_POOL, "")
            for node in self.ground.nodes()
        }
        found = defaultdict(set)
        for pod in self.workers:
            found[pod["metadata"]["labels"][constants.RAY_REPLICA_NAME]].add(pool_of.get(pod["spec"]["nodeName"], ""))
        return dict(found)

    def await_workers(self, count: int) -> None:
        self.ground.wait(lambda: len(self.workers) == count, f"{count} workers run")

    def await_nothing(self) -> None:
        """Wait until no pod, no pool and no node except that of heads is left."""
        self.ground.wait(lambda: not self.ground.pods(), "no pod is left")
        self.ground.await_gone()
        self.ground.wait(lambda: len(self.ground.nodes()) == 1, "no node is left but that of heads")


def test_group_of_several_hosts_runs_on_one_pool_and_is_deleted_with_it(ground: Ground) -> None:
    ray = Ray(ground)
    ray.create()
    ray.await_workers(4)
    ((pool,),) = ray.pools.values()
    assert [node_pool.name for node_pool in ground.living()] == [pool]
    assert ground.accepted("nodePools.create") == 1
    variables = [
        {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]} for pod in ray.workers
    ]
    assert {environment["TPU_WORKER_ID"] for environment in variables} == {"0", "1", "2", "3"}
    names = {f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}" for pod in ray.workers}
    assert [set(environment["TPU_WORKER_HOSTNAMES"].split(",")) for environment in variables] == [names] * 4
    subdomain = ray.workers[0]["spec"]["subdomain"]
    assert ground.api.get(object_path("services", subdomain, namespace=ground.namespace))["spec"]["clusterIP"] == "None"
    ray.delete()
    ray.await_nothing()


def test_replicas_are_scaled_with_their_pools(ground: Ground) -> None:
    ray = Ray(ground, replicas=0)
    ray.create()
    ray.scale(4)
    ray.await_workers(16)
    assert sorted(map(len, ray.pools.values())) == [1] * 4
    assert len(set().union(*ray.pools.values())) == 4
    assert ground.accepted("nodePools.create") == 4
    ray.scale(1)
    ground.wait(lambda: len(ground.living()) == 1, "the pools of three replicas go")
    ((pool,),) = ray.pools.values()
    assert (len(ray.workers), [node_pool.name for node_pool in ground.living()]) == (4, [pool])
    ray.delete()
    ray.await_nothing()


@pytest.mark.parametrize("lost", ["a pod", "a node"])
def test_replica_that_lost_a_host_is_recreated_on_the_same_pool(ground: Ground, lost: str) -> None:
    """KubeRay recreates the whole replica under another name."""
    ground.gke.set(repair_seconds=1.0)
    ray = Ray(ground)
    ray.create()
    ray.await_workers(4)
    before = ray.pools
    victim = ray.workers[1]
    path = object_path("pods", victim["metadata"]["name"], namespace=ground.namespace)
    if lost == "a node":
        ground.api.delete(object_path("nodes", victim["spec"]["nodeName"]))
        # The controller manager deletes a pod in this way 40 s after the loss of its node.
        path += "?gracePeriodSeconds=0"
    ground.api.delete(path)
    ground.wait(lambda: len(ray.workers) == 4 and not before.keys() & ray.pools.keys(), "the replica is made anew")
    assert list(ray.pools.values()) == list(before.values())
    assert ground.accepted("nodePools.create") == 1
    assert ground.accepted("nodePools.delete") == 0


def test_suspended_rayjob_loses_its_pool_until_it_is_resumed(ground: Ground) -> None:
    """Kueue suspends RayJobs with the field `suspend`."""
    ray = Ray(ground)
    ray.create_job()
    ray.await_workers(4)
    ray.change(suspend=True)
    ray.await_nothing()
    ray.change(suspend=False)
    ray.await_workers(4)
    ray.delete()
    ray.await_nothing()


def test_ended_rayjob_leaves_no_pool(ground: Ground) -> None:
    """KubeRay deletes the RayCluster and its pods when the RayJob has failed."""
    ray = Ray(ground)
    submitter = {"spec": {"restartPolicy": "Never", **_HEAD["spec"]}, "metadata": {"annotations": {FAIL_AFTER: "8s"}}}
    ray.create_job(submitterPodTemplate=submitter, submitterConfig={"backoffLimit": 0})
    ray.await_workers(4)
    ground.wait(lambda: not ground.living(), "its pool goes")
    assert ground.rehearsal.objects(collection_path("rayclusters", namespace=ground.namespace, root=_ROOT)) == []


def test_group_of_256_chips_runs_on_one_pool(ground: Ground) -> None:
    ray = Ray(ground, hosts=64, topology="16x16")
    ray.create()
    ray.await_workers(64)
    assert [len(pools) for pools in ray.pools.values()] == [1]
    assert ground.accepted("nodePools.create") == 1


# --- With the policies of placement: the last test of the file, because the earlier tests have none ---


# Ten restarts take longer than the time-out of the other tests in this file.
@pytest.mark.timeout(300)
def test_replicas_never_share_a_pool_and_keep_it_despite_a_rival(assigned: Ground) -> None:
    """KubeRay recreates a replica under another name, but with the same index, which determines its pool."""
    assigned.provisioner(environment={"MAX_CHIPS": "48"})
    ray, workers = Ray(assigned, replicas=3), {constants.RAY_GROUP: "tpus"}
    ray.create()
    ray.await_workers(12)
    assert_each_on_a_pool_of_its_own(assigned, slices=3, **workers)
    ray.scale(1)
    assigned.wait(lambda: len(assigned.pools()) == 1, "the pools of two replicas are deleted")
    assert_each_on_a_pool_of_its_own(assigned, slices=1, **workers)
    ray.scale(3)
    ray.await_workers(12)
    assert_each_on_a_pool_of_its_own(assigned, slices=3, **workers)
    before = nodes_of(ray.workers)
    assigned.post(train(assigned, "rival", accelerator="tpu-v6e-slice", topology="4x4", hosts=4, exclusive=False))
    await_rival(assigned, "rival")
    for number in range(RESTARTS):
        victim = ray.workers[number % 12]
        name = victim["metadata"]["labels"][constants.RAY_REPLICA_NAME]
        remove(assigned, victim)
        assigned.wait(lambda name=name: len(ray.workers) == 12 and name not in ray.pools, f"{name} is recreated")
        assert nodes_of(ray.workers) == before
    assert bound(assigned, "rival") == []
    assert assigned.accepted("nodePools.create") == 5
