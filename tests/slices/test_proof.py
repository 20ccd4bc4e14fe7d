"""Tests of the proof that kubeconfig and GCP_CLUSTER are one cluster, which must precede creates and deletes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from provisioner import constants
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import FailureKind
from provisioner.slices.suppliers.gke.translate import Cluster
from tests.support.controller import CERTIFICATE, OTHER_CERTIFICATE, World


def test_proof_fails_until_gke_returns_the_cluster() -> None:
    world = World()
    world.put_jobset()
    world.gke.fail_next("get_cluster", FailureKind.PERMISSION, message="no permission container.clusters.get")
    world.round()
    assert "container.clusters.get" in world.loop.problems()[0]
    assert world.gke.counts()["create_node_pool"] == 0
    world.round(after_seconds=31)
    assert world.loop.problems() == ()
    assert world.gke.counts()["create_node_pool"] == 1


GROUP_URL = "https://compute/projects/p/zones/us-central2-b/instanceGroupManagers/gke-test-default-1f-grp"


def put_numbered_nodes(world: World, count: int, *, provider_id: str = "", **labels: str) -> None:
    for number in range(count):
        name = f"a-{len(labels)}-{number:05}"
        given = provider_id or f"gce://p/us-central2-b/gke-tpu-{number:08x}-abcd"
        node = {"metadata": {"name": name, "labels": labels}, "spec": {"providerID": given}}
        world.kube.put_object(object_path("nodes", name), node)


def world_without_ca() -> World:
    """Return a world whose kubeconfig trusts public roots, like kubeconfigs for DNS endpoints and Connect gateways."""
    world = World(ca_pem=None)
    world.gke.cluster = Cluster(name="test", ca_certificate_pem=CERTIFICATE, instance_group_urls=(GROUP_URL,))
    node = {"metadata": {"name": "z"}, "spec": {"providerID": "gce://p/us-central2-b/gke-test-default-1f-abcd"}}
    world.kube.put_object(object_path("nodes", "z"), node)
    return world


def test_node_proves_the_cluster_if_the_kubeconfig_trusts_public_roots() -> None:
    world = world_without_ca()
    node = world.kube.object(object_path("nodes", "z"))
    world.kube.remove_object(object_path("nodes", "z"))
    world.round()
    assert not world.proof.proven
    assert node is not None
    world.kube.put_object(object_path("nodes", "z"), node)
    world.round(after_seconds=31)
    assert world.proof.proven


def test_nodes_with_tpus_are_not_listed_for_the_proof() -> None:
    """GKE names TPU nodes gke-tpu-HASH-..., without their cluster, so they prove nothing. The list excludes them."""
    world = world_without_ca()
    put_numbered_nodes(world, 1000, **{constants.TPU_ACCELERATOR: "tpu-v6e-slice"})
    assert world.proof.attempt()
    (asked,) = [call.query for call in world.kube.calls if call.path == "/api/v1/nodes"]
    assert asked["labelSelector"] == f"!{constants.TPU_ACCELERATOR}"


def test_pages_of_nodes_are_read_until_a_node_proves_the_cluster() -> None:
    """Any page may contain the node whose instance group identifies the cluster."""
    world = world_without_ca()
    put_numbered_nodes(world, 350, provider_id="kind://elsewhere")
    assert world.proof.attempt()
    assert world.calls("GET").count("/api/v1/nodes") == 4
    first = world_without_ca()
    put_numbered_nodes(first, 1, provider_id="gce://p/us-central2-b/gke-test-default-1f-wxyz")
    put_numbered_nodes(first, 350, provider_id="kind://elsewhere", app="web")
    assert first.proof.attempt()
    assert first.calls("GET").count("/api/v1/nodes") == 1


def test_proof_reads_at_most_20_pages_of_nodes() -> None:
    world = world_without_ca()
    put_numbered_nodes(world, 2001, provider_id="kind://elsewhere")
    assert not world.proof.attempt()
    assert world.calls("GET").count("/api/v1/nodes") == 20
    assert "none of the 2000 nodes without TPUs" in world.proof.problem


def test_next_attempt_is_15_s_after_the_last_even_if_the_clock_is_set() -> None:
    world = World(ca_pem=OTHER_CERTIFICATE)
    proof, by = world.proof, timedelta(hours=2)
    proof.clock_set(by)
    assert proof.follow() == 15.0
    world.clock.advance(12)
    assert proof.follow() == 3.0
    proof.clock_set(by)
    proof.clock = lambda: world.time() + by
    assert proof.follow() == 3.0
    assert World().proof.follow() == 0.0


def test_round_without_proof_waits_until_the_next_attempt_is_due() -> None:
    world = World(ca_pem=OTHER_CERTIFICATE)
    world.round()
    assert world.round(after_seconds=10) == pytest.approx(5.0)
    assert world.round(after_seconds=4.95) == pytest.approx(0.1)


def test_nodes_are_listed_only_if_the_kubeconfig_has_no_certificate_authority() -> None:
    """The certificate authority of the kubeconfig is the usual proof. Malformed nodes in the list are ignored."""
    world = World()
    world.round()
    assert world.calls("GET").count("/api/v1/nodes") == 0
    public = World(ca_pem=None)
    for name, raw in {"a": {}, "b": {"spec": []}, "c": {"spec": {"providerID": 7}}}.items():
        public.kube.put_object(object_path("nodes", name), {"metadata": {"name": name, "labels": {}}, **raw})
    public.proof.attempt()
    assert "none of the 0 nodes" in public.proof.problem


def test_change_of_the_release_channel_applies_to_later_pools() -> None:
    """GKE requires auto-upgrade for pools of clusters with a release channel. A failed read keeps the known channel."""
    world = World()
    world.put_jobset()
    world.gke.cluster = Cluster(name="test", ca_certificate_pem=CERTIFICATE)
    world.rounds(2, every_seconds=5)
    assert [request.auto_upgrade for request in world.gke.requests.values()] == [False]
    world.gke.cluster = Cluster(name="test", ca_certificate_pem=CERTIFICATE, release_channel="REGULAR")
    world.gke.fail_next("get_cluster", FailureKind.PERMISSION)
    world.round(after_seconds=605)
    assert world.proof.release_channel == ""
    world.round(after_seconds=605)
    world.put_jobset("late")
    world.rounds(2, every_seconds=5)
    assert {request.auto_upgrade for request in world.gke.requests.values()} == {False, True}
    assert world.gke.counts()["get_cluster"] == 3


def test_autopilot_cluster_is_rejected() -> None:
    """Readiness reports the problem and pools are not even listed, regardless of the proof and ASSUME_SAME_CLUSTER."""
    world = World()
    world.gke.cluster = Cluster(name="test", ca_certificate_pem=CERTIFICATE, autopilot=True)
    world.proof.assume = True
    world.put_jobset()
    world.rounds(3, every_seconds=40)
    assert set(world.gke.counts()) == {"get_cluster"}
    (problem,) = world.loop.problems()
    assert "'test' is an Autopilot cluster" in problem
    assert "Standard" in problem


def test_assume_same_cluster_replaces_the_proof() -> None:
    """ASSUME_SAME_CLUSTER is for clusters where neither certificates nor nodes can prove the identity."""
    world = World(ca_pem=OTHER_CERTIFICATE)
    world.proof.assume = True
    world.round()
    assert world.loop.problems() == ()
