"""The proof that the kubeconfig and GCP_CLUSTER are one cluster, and what is not done without it."""

from __future__ import annotations

import pytest

from provisioner.cluster.protocol import object_path
from provisioner.gke.protocol import Cluster
from provisioner.model.capacity import FailureKind
from tests.controller.kit import CERTIFICATE, OTHER_CERTIFICATE, World


def test_a_proven_cluster_is_worked_on() -> None:
    """With one certificate authority on both sides, work begins in the first round, and it is proven once."""
    world = World()
    world.put_jobset()
    world.rounds(3, every_seconds=3)
    assert world.gke.counts()["get_cluster"] == 1
    assert world.gke.counts()["create_node_pool"] == 1
    assert world.loop.problems() == ()


def test_nothing_is_touched_while_the_clusters_differ() -> None:
    """With another certificate authority, nothing is even listed, whatever there is to do, and readiness says why."""
    world = World(ca_pem=OTHER_CERTIFICATE)
    world.put_jobset()
    world.rounds(10, every_seconds=20)
    assert set(world.gke.counts()) == {"get_cluster"}
    assert world.calls("PATCH") == world.calls("PUT") == world.calls("POST") == []
    (problem,) = world.loop.problems()
    assert "GCP_CLUSTER" in problem


def test_the_proof_is_tried_again_now_and_then() -> None:
    """A failed proof is tried again every half minute, and no more often, and the round says when."""
    world = World(ca_pem=OTHER_CERTIFICATE)
    pause = world.round()
    assert pause == pytest.approx(15.0)
    world.rounds(5, every_seconds=5)
    assert world.gke.counts()["get_cluster"] == 1
    world.round(after_seconds=10)
    assert world.gke.counts()["get_cluster"] == 2


def test_a_gke_that_does_not_answer_proves_nothing_until_it_does() -> None:
    """A failing GKE is no proof, and its recovery is noticed."""
    world = World()
    world.put_jobset()
    world.gke.fail_next("get_cluster", FailureKind.PERMISSION, message="no permission container.clusters.get")
    world.round()
    assert "container.clusters.get" in world.loop.problems()[0]
    assert world.gke.counts()["create_node_pool"] == 0
    world.round(after_seconds=31)
    assert world.loop.problems() == ()
    assert world.gke.counts()["create_node_pool"] == 1


def test_where_public_roots_are_trusted_a_node_is_the_proof() -> None:
    """Without a certificate authority to compare, a node that lies in the cluster's instance groups proves it."""
    world = World(ca_pem=None)
    world.gke.cluster = Cluster(
        name="test",
        ca_certificate_pem=CERTIFICATE,
        instance_group_urls=(
            "https://compute/projects/p/zones/us-central2-b/instanceGroupManagers/gke-test-default-1f-grp",
        ),
    )
    world.round()
    assert not world.loop.proof.proven
    node = {"metadata": {"name": "n"}, "spec": {"providerID": "gce://p/us-central2-b/gke-test-default-1f-abcd"}}
    world.kube.put_object(object_path("nodes", "n"), node)
    world.round(after_seconds=31)
    assert world.loop.proof.proven


def test_a_follower_does_nothing_and_has_no_problem() -> None:
    """Who does not lead asks GKE nothing, and is ready."""
    world = World()
    world.leading = False
    world.put_jobset()
    world.rounds(3, every_seconds=5)
    assert world.gke.calls == []
    assert world.loop.problems() == ()
