"""RayClusters: their worker groups, the groups of their pods, and their slices when they are scaled."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.workloads import Pod
from provisioner.slices.messages.notices import EventReason
from provisioner.workloads.parse_pod import parse_pod
from provisioner.workloads.raycluster import parse_raycluster, replicas_of
from tests.support.objects import pod_spec, raw_raycluster, toleration
from tests.support.world import World

JSON = dict[str, Any]


def raw_worker(replica: str, number: int | None, host: int) -> JSON:
    """Return the pod of one host of a replica in group "tpus"; without a number, as of an old KubeRay."""
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "uid-of-ray", "controller": True}
    labels = {constants.RAY_CLUSTER_NAME: "ray", constants.RAY_GROUP: "tpus"}
    if number is not None:
        places = {constants.RAY_REPLICA_INDEX: number, constants.RAY_HOST_INDEX: host}
        labels |= {constants.RAY_REPLICA_NAME: replica, **{key: str(value) for key, value in places.items()}}
    name = f"ray-tpus-{replica}-{host}"
    metadata = {"name": name, "namespace": "default", "uid": name, "labels": labels, "ownerReferences": [owner]}
    metadata["creationTimestamp"] = "2026-06-01T12:00:00Z"
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"}
    status: JSON = {"phase": "Pending", "conditions": [waits]}
    return {"metadata": metadata, "spec": {**pod_spec(), "tolerations": [toleration()]}, "status": status}


class Ray(World):
    """A world with a RayCluster "ray", whose replicas have two hosts."""

    def scale(self, *replicas: tuple[str, int]) -> None:
        """Set the replicas, by name and number. Add missing pods, and delete the pods of other replicas."""
        self.workloads = {}
        cluster = parse_raycluster(raw_raycluster(replicas=len(replicas)))
        self.workloads[cluster.uid] = cluster
        wanted = {f"ray-tpus-{replica}-{host}" for replica, _ in replicas for host in range(2)}
        self.pods = {uid: pod for uid, pod in self.pods.items() if uid in wanted}
        for replica, number in replicas:
            for host in range(2):
                if f"ray-tpus-{replica}-{host}" not in self.pods:
                    self.put_worker(raw_worker(replica, number, host))

    def put_worker(self, raw: JSON) -> Pod:
        pod = parse_pod(raw)
        assert pod is not None
        self.put(pod)
        return pod

    def bind(self) -> None:
        """Bind the pods of each replica to one pool, as their affinity requires."""
        busy = {pod.node_name.rpartition("-")[0] for pod in self.pods.values() if pod.node_name}
        free = [name for name in sorted({node.pool_name for node in self.nodes.values()}) if f"gke-{name}" not in busy]
        for leader in [pod for pod in self.pods.values() if pod.completion_index == 0 and not pod.node_name]:
            if not free:
                return
            pool, replica = free.pop(0), leader.name.rpartition("-")[0]
            for host in range(2):
                raw = raw_worker(replica.removeprefix("ray-tpus-"), int(leader.group_name.rpartition("-")[2]), host)
                raw["spec"]["nodeName"], raw["status"] = f"gke-{pool}-{host}", {"phase": "Running"}
                self.put_worker(raw)

    def turn(self, rounds: int = 4, seconds: float = 1.0) -> None:
        for _ in range(rounds):
            self.step(seconds=seconds)
            self.finish_creates()
            self.finish_deletes()
            self.bind()


def test_pools_follow_the_number_of_replicas() -> None:
    world = Ray()
    world.scale()
    world.turn()
    assert world.created == []
    world.scale(*((f"tpus-{number}", number) for number in range(4)))
    world.turn()
    assert (len(world.created), sum(bool(pod.node_name) for pod in world.pods.values())) == (4, 8)
    world.scale(("tpus-2", 2))
    world.turn(60)
    (left,) = world.pools
    assert {pod.node_name for pod in world.pods.values()} == {f"gke-{left}-0", f"gke-{left}-1"}
    assert len(world.created) == 4
    world.workloads, world.pods = {}, {}
    world.deleted_workloads.add(parse_raycluster(raw_raycluster()).uid)
    world.turn(60)
    assert world.pools == {}


def test_recreated_replica_gets_the_pool_of_its_predecessor() -> None:
    world = Ray()
    world.scale(("tpus-a", 0), ("tpus-b", 1))
    world.turn()
    world.scale(("tpus-b", 1))
    world.turn(3)
    world.scale(("tpus-c", 0), ("tpus-b", 1))
    world.turn(3)
    assert sum(bool(pod.node_name) for pod in world.pods.values()) == 4
    assert (len(world.created), world.deleted) == (2, [])


def test_pods_of_an_old_kuberay_cause_an_event_on_the_cluster() -> None:
    world = Ray()
    world.scale()
    world.put_worker(raw_worker("tpus-a", None, 0))
    world.run(2)
    assert world.created == []
    (said, *_) = world.told(EventReason.NOT_NUMBERED)
    assert (said.objects[0].kind, "KubeRay 1.6" in said.message) == ("RayCluster", True)


@pytest.mark.parametrize(
    ("fields", "replicas"),
    [
        ({"replicas": 3}, 3),
        ({}, 0),
        ({"minReplicas": 2}, 2),
        ({"replicas": 9, "maxReplicas": 4}, 4),
        ({"replicas": 3, "suspend": True}, 0),
    ],
)
def test_replicas_of_a_group_are_within_its_bounds(fields: JSON, replicas: int) -> None:
    assert replicas_of(fields) == replicas
    assert [group.parallelism for group in parse_raycluster(raw_raycluster(numOfHosts=None)).groups] == [1]


def test_cluster_that_is_suspended_or_managed_elsewhere_has_no_demand() -> None:
    raw = raw_raycluster(replicas=1)
    assert parse_raycluster({**raw, "spec": {**raw["spec"], "suspend": True}}).suspended
    managed = {**raw["spec"], "managedBy": "kueue.x-k8s.io/multikueue"}
    assert parse_raycluster({**raw, "spec": managed}).managed_by
    assert not parse_raycluster({**raw, "spec": {**raw["spec"], "managedBy": constants.RAY_CONTROLLER}}).managed_by
