"""What is checked of a cluster without GKE: nothing of Google's, and that there can be TPUNodeGroups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.kube import errors
from provisioner.slices import preflight
from provisioner.slices.preflight import Finding, Status
from provisioner.slices.preflight.in_kubernetes import ACCESS_REVIEWS
from provisioner.slices.suppliers.nodegroup.supplier import groups_path
from tests.support.preflight import World

GROUPS = groups_path("slices")


@pytest.fixture
def world() -> World:
    """Give a cluster where all is well."""
    world = World(changes={"provider": "gce", "node_group_namespace": "slices"})
    world.kube.put_object(f"{GROUPS}/a", {"metadata": {"namespace": "slices"}})
    return world


def find(world: World) -> dict[str, Finding]:
    """Make all checks; return the findings by name."""
    subject = replace(world.subject, gke=None, inspector=None, trusted_ca_pem=None)
    return {finding.name: finding for finding in preflight.run_checks(subject)}


def test_where_all_is_well(world: World) -> None:
    """Nothing is said of clusters, pools and permissions of Google's, and nothing is changed."""
    found = find(world)
    assert list(found) == [
        "API server",
        "JobSet",
        "LeaderWorkerSet",
        "rights in Kubernetes",
        "pause",
        "Go provisioner",
        "TPUNodeGroups",
    ]
    assert [str(finding) for finding in found.values() if finding.status is not Status.OK] == []
    assert found["TPUNodeGroups"].message == "1 in namespace slices, where the provisioner makes its own"
    assert {call.method for call in world.kube.calls if call.path != ACCESS_REVIEWS} == {"GET"}


def test_the_definitions_are_missing(world: World) -> None:
    world.kube.uninstall("/apis/tpu.google.com")
    finding = find(world)["TPUNodeGroups"]
    assert (finding.status, finding.message) == (Status.FAILED, "their CRD is not installed")
    assert "deploy/nodegroups" in finding.advice


def test_they_may_not_be_listed(world: World) -> None:
    """As for any other check, the words are the API server's."""
    world.kube.fail("GET", GROUPS, errors.Forbidden("no", status=403))
    assert find(world)["TPUNodeGroups"].status is Status.FAILED


@pytest.mark.parametrize("verb", ["get", "list", "create", "delete"])
def test_a_right_that_is_missing_is_named(world: World, verb: str) -> None:
    world.kube.denied.add((verb, "tpunodegroups"))
    finding = find(world)["rights in Kubernetes"]
    assert finding.status is Status.FAILED
    assert f"{verb} tpunodegroups in slices" in finding.message
