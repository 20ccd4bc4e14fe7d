"""The provisioner and the controller of node groups on one cluster, before a simulated Compute Engine, stepped by hand.

Both are their real loops. Pods are bound by the test; machines join by themselves.
"""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.nodegroups.api import names
from provisioner.slices.app import Chosen, choose
from provisioner.slices.suppliers.nodegroup.supplier import groups_path
from rehearsal.simulators.compute.faults import SPOT, Fault, FaultKind
from tests.support import nodegroup_controller
from tests.support.controller import NAMESPACE, World, jobset_path
from tests.support.nodegroup_controller import PROJECT, SPEC, ZONE
from tests.support.objects import pod_spec, raw_jobset, raw_leader, toleration

_THEIRS = "by-hand"
#: The controller of node groups waits a minute or two after a crash until it believes that something is gone.
_SELDOMER = 10
_SPOT_TOLERATION = {"key": constants.SPOT, "operator": "Exists"}


class Cluster(World):
    """A cluster without GKE, with both controllers."""

    def __init__(self, *, crash_every: int = 0) -> None:
        self.groups_world = nodegroup_controller.World()
        self._crash_every, self._steps = crash_every, 0
        super().__init__(
            provider="gce",
            project_id=PROJECT,
            zone=ZONE,
            cluster_location="us-east5",
            node_group_namespace=nodegroup_controller.NAMESPACE,
            node_images=(("*", f"projects/{PROJECT}/global/images/u"),),
            deletion_delay_seconds=2.0,
        )

    def choose(self, ca_pem: bytes | None) -> Chosen:
        """Take the supplier that the settings choose, on the cluster of the other controller."""
        self.kube, self.clock, self.time = self.groups_world.kube, self.groups_world.clock, self.groups_world.time
        return choose(self.settings, self.kube, None, self.time)  # type: ignore[arg-type]

    def step(self) -> None:
        """Let both work, and machines join; now and then both crash."""
        self.groups_world.round(after_seconds=2.0)
        self.groups_world.join()
        self.round()
        self._steps += 1
        if self._crash_every and self._steps % self._crash_every == 0:
            self.start()
            if self._steps % (_SELDOMER * self._crash_every) == 0:
                self.groups_world.start()

    def run(self, until: Any, *, seconds: float = 900.0) -> None:
        end = self.clock.seconds + seconds
        while not until():
            assert self.clock.seconds < end, self.groups_world.state()
            self.step()

    def apply(self, name: str, **annotations: str) -> None:
        """Put a JobSet of a slice of four machines with its leader pod, which cannot be scheduled."""
        metadata = {"annotations": annotations}
        pod = self._pod()
        raw = raw_jobset(name, namespace=NAMESPACE, job="workers", parallelism=4, pod=pod, uid=name, metadata=metadata)
        self.kube.put_object(jobset_path(name), raw)
        self._put_pod(name)

    def nodes_of(self, name: str) -> list[dict[str, Any]]:
        """Return the nodes that are ready for a JobSet."""
        nodes = self.kube.objects(collection_path("nodes"))
        return [raw for raw in nodes if raw["metadata"]["labels"].get(constants.POOL_JOBSET_NAME) == name]

    def use(self, name: str) -> str:
        """Wait for a slice, and bind the leader to it; return its pool."""
        self.run(lambda: len(self.nodes_of(name)) == 4)
        node = self.nodes_of(name)[0]["metadata"]
        self._put_pod(name, node=node["name"])
        self.run(lambda: True)
        return str(node["labels"][constants.NODE_POOL])

    def end(self, name: str) -> None:
        """Let a JobSet complete."""
        self.kube.remove_object(object_path("pods", f"{name}-workers-0-0", namespace=NAMESPACE))
        self.change_jobset(name, status={"terminalState": "Completed"})

    def pools(self) -> dict[str, dict[str, Any]]:
        """Return all groups by name."""
        found = self.kube.objects(groups_path(nodegroup_controller.NAMESPACE))
        return {raw["metadata"]["name"]: raw for raw in found}

    def _put_pod(self, name: str, node: str = "") -> None:
        path = object_path("pods", f"{name}-workers-0-0", namespace=NAMESPACE)
        raw = raw_leader(name, namespace=NAMESPACE, uid=name, job="workers", node=node, spec=self._pod())
        self.kube.put_object(path, raw)

    @staticmethod
    def _pod() -> dict[str, Any]:
        return pod_spec(accelerator="tpu-v6e-slice", topology="4x4", tolerations=[toleration(), _SPOT_TOLERATION])


@pytest.fixture(params=[0, 7], ids=["without crashes", "both crash now and then"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Give one, with a group that somebody made."""
    cluster = Cluster(crash_every=request.param)
    path = f"{groups_path(nodegroup_controller.NAMESPACE)}/{_THEIRS}"
    metadata = {"name": _THEIRS, "namespace": nodegroup_controller.NAMESPACE, "generation": 1}
    cluster.kube.put_object(path, {"metadata": metadata, "spec": SPEC})
    return cluster


# Each of them is minutes of the lives of two controllers.
@pytest.mark.timeout(120)
def test_a_jobset_gets_a_slice_and_gives_it_back(cluster: Cluster) -> None:
    """Nothing is left of it, and the group that somebody made stays as it is."""
    cluster.apply("train")
    pool = cluster.use("train")
    for _ in range(10):
        cluster.step()
    assert set(cluster.pools()) == {pool, _THEIRS}
    cluster.end("train")
    cluster.run(lambda: set(cluster.pools()) == {_THEIRS})
    nodes = cluster.kube.objects(collection_path("nodes"))
    assert {raw["metadata"]["labels"][names.GROUP_NAME] for raw in nodes} == {_THEIRS}
    assert [each for each in cluster.groups_world.resources() if _THEIRS not in each] == []


@pytest.mark.timeout(120)
def test_a_stockout_leads_to_the_next_choice(cluster: Cluster) -> None:
    """The group that got no machines is given back; the next one is of other terms."""
    cluster.groups_world.compute.world.faults.add(Fault(kind=FaultKind.STOCKOUT, model=SPOT))
    cluster.apply("train", **{constants.CAPACITY: "spot, on-demand"})
    pool = cluster.use("train")
    config = cluster.pools()[pool]["spec"]["instanceConfig"]
    assert config["provisioningModel"] == "STANDARD"
    assert names.parse_labels(config["metadata"]["kube-labels"])[constants.PROVISIONING] == "standard"
    cluster.run(lambda: set(cluster.pools()) == {pool, _THEIRS})
    failed = [each.message for each in cluster.recorder.told if each.reason == constants.CREATION_FAILED]
    assert any("ZONE_RESOURCE_POOL_EXHAUSTED" in message for message in failed)


@pytest.mark.timeout(120)
def test_work_keeps_its_slice_whatever_is_said_of_it(cluster: Cluster) -> None:
    """The pod of a JobSet that is gone for the provisioner alone: the gate reads it live."""
    cluster.apply("train")
    pool = cluster.use("train")
    cluster.change_jobset("train", status={"terminalState": "Completed"})
    for _ in range(30):
        cluster.step()
    assert pool in cluster.pools()
    assert "deletionTimestamp" not in cluster.pools()[pool]["metadata"]


@pytest.mark.timeout(120)
def test_a_node_that_says_it_is_of_the_pool_of_others_does_not_keep_that(cluster: Cluster) -> None:
    """Whoever writes a TPUNodeGroup chooses the labels of its nodes, but for one."""
    cluster.apply("train")
    pool = cluster.use("train")
    labels = f"{constants.NODE_POOL}={pool},{constants.NODEPOOL_MANAGER}={constants.MANAGER}"
    spec = {**SPEC, "instanceConfig": {**SPEC["instanceConfig"], "metadata": {names.KUBE_LABELS: labels}}}
    metadata = {"name": "liar", "namespace": "others", "generation": 1}
    cluster.kube.put_object(f"{groups_path('others')}/liar", {"metadata": metadata, "spec": spec})

    def liars() -> list[str]:
        nodes = [raw["metadata"] for raw in cluster.kube.objects(collection_path("nodes"))]
        of_pool = [each for each in nodes if each["labels"].get(constants.NODE_POOL) == pool]
        return [each["name"] for each in of_pool if each["labels"].get(names.GROUP_NAME) == "liar"]

    cluster.run(lambda: bool(liars()))
    cluster.groups_world.put_pod(liars()[0])
    cluster.end("train")
    cluster.run(lambda: pool not in cluster.pools())
