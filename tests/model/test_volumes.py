"""Tests of how PersistentVolumeClaims restrict the nodes of a pod, as in the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.kube.volumes import parse_claim, parse_class, parse_volume
from provisioner.model.volumes import Claim, Storage, StorageClass, with_volumes
from provisioner.model.workloads import Volumes
from tests.support.models import make_jobset, make_pod

BALANCED = StorageClass(waits=True, disk="pd-balanced")
STORAGE = Storage(
    claims={
        ("default", name): claim
        for name, claim in {
            "in-a": Claim(storage_class="balanced", volume="pv-a"),
            "in-ab": Claim(storage_class="", volume="pv-ab"),
            "in-c": Claim(storage_class="", volume="pv-c"),
            "anywhere": Claim(storage_class="gone", volume="bucket"),
            "deleted": Claim(volume="pv-a", problem="is being deleted; create it again"),
            "waiting": Claim(storage_class="balanced"),
            "limited": Claim(storage_class="limited"),
            "immediate": Claim(storage_class="immediate"),
            "no-class": Claim(storage_class="none"),
            "static": Claim(storage_class=""),
            "default": Claim(),
        }.items()
    },
    zones={"pv-a": frozenset("a"), "pv-ab": frozenset("ab"), "pv-c": frozenset("c")},
    classes={
        "balanced": BALANCED,
        "limited": replace(BALANCED, zones=frozenset("bc")),
        "immediate": StorageClass(),
    },
)


def restricted(*claims: str, storage: Storage = STORAGE) -> Volumes:
    pod = make_pod(make_jobset())
    asked = replace(pod.requirements, volumes=Volumes(claims=claims))
    (found,) = with_volumes([replace(pod, requirements=asked)], storage)
    assert found.requirements.volumes is not None
    return found.requirements.volumes


@pytest.mark.parametrize(
    ("claims", "zones", "disks"),
    [
        pytest.param(["in-a"], ("a",), (), id="volume in one zone, with the name of a class"),
        pytest.param(["in-ab"], ("a", "b"), (), id="regional disk"),
        pytest.param(["in-a", "in-ab"], ("a",), (), id="zones in common"),
        pytest.param(["in-a", "in-c"], (), (), id="no zone in common"),
        pytest.param(["anywhere"], None, (), id="volume without zones and class"),
        pytest.param(["waiting"], None, ("pd-balanced",), id="bound when the pod is scheduled"),
        pytest.param(["limited", "in-ab"], ("b",), ("pd-balanced",), id="allowedTopologies"),
    ],
)
def test_claims_restrict_zones_and_disks(
    claims: list[str], zones: tuple[str, ...] | None, disks: tuple[str, ...]
) -> None:
    found = restricted(*claims)
    assert (found.zones, found.disks, found.problem) == (zones, disks, "")


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("missing", "does not exist; create it"),
        ("deleted", "is being deleted; create it again"),
        ("immediate", "is not bound to a volume yet"),
        ("static", "is not bound to a volume yet"),
        ("no-class", "names StorageClass none, which does not exist"),
        ("default", "names no StorageClass, and the cluster has no default; name one"),
    ],
)
def test_claim_that_cannot_be_bound_is_a_problem_only_if_all_objects_are_known(claim: str, words: str) -> None:
    assert restricted("in-a", claim).problem == f"PersistentVolumeClaim default/{claim} {words}"
    # Manifests contain only some of the objects, without status, so a missing object is no problem.
    assert restricted(claim, storage=replace(STORAGE, complete=False)).problem == ""


def test_claim_without_a_class_has_the_default_class() -> None:
    classes = {**(STORAGE.classes or {}), "usual": replace(BALANCED, default=True)}
    found = restricted("default", storage=replace(STORAGE, classes=classes))
    assert (found.problem, found.disks) == ("", ("pd-balanced",))


@pytest.mark.parametrize(
    ("unknown", "claims"),
    [
        ("claims", ["missing", "in-a"]),
        ("zones", ["in-ab"]),
        ("classes", ["no-class", "default", "immediate", "waiting"]),
    ],
)
def test_volumes_restrict_nothing_while_their_source_is_unknown(unknown: str, claims: list[str]) -> None:
    changes: dict[str, Any] = {unknown: None}
    found = restricted(*claims, storage=replace(STORAGE, **changes))
    assert (found.zones, found.disks, found.problem) == (None, (), "")


def _affinity(*terms: Any) -> dict[str, Any]:
    parts = [
        {"matchExpressions": [dict(zip(("key", "operator", "values"), expression, strict=True)) for expression in term]}
        for term in terms
    ]
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": parts}}}}


ZONE, GKE_ZONE = "topology.kubernetes.io/zone", "topology.gke.io/zone"


@pytest.mark.parametrize(
    ("raw", "zones"),
    [
        pytest.param({}, None, id="no affinity"),
        pytest.param(_affinity([(ZONE, "In", ["a"])]), {"a"}, id="one zone"),
        pytest.param(_affinity([(ZONE, "In", ["a"])], [(GKE_ZONE, "In", ["b"])]), {"a", "b"}, id="two terms"),
        pytest.param(_affinity([(ZONE, "In", ["a", "b"]), (GKE_ZONE, "In", ["b"])]), {"b"}, id="two expressions"),
        pytest.param(_affinity([("kubernetes.io/hostname", "In", ["n"])]), None, id="local volume"),
        pytest.param(_affinity([(ZONE, "In", ["a"])], [("rack", "In", ["1"])]), None, id="a term without zones"),
        pytest.param(_affinity([(ZONE, "NotIn", ["a"])]), None, id="another operator"),
        pytest.param({"spec": "x"}, None, id="unreadable"),
    ],
)
def test_zones_of_a_volume_follow_from_its_node_affinity(raw: dict[str, Any], zones: set[str] | None) -> None:
    assert parse_volume(raw) == zones


BOUND = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}


@pytest.mark.parametrize(
    ("raw", "claim"),
    [
        ({"spec": {}}, Claim()),
        ({"spec": {"storageClassName": ""}}, Claim(storage_class="")),
        ({"metadata": BOUND, "spec": {"volumeName": "v"}}, Claim(volume="v")),
        ({"spec": {"volumeName": "v"}}, Claim(volume="v", problem="is not bound to its volume v yet")),
        (
            {"metadata": BOUND, "spec": {"volumeName": "v"}, "status": {"phase": "Lost"}},
            Claim(volume="v", problem="has lost its volume v; create it again"),
        ),
        (
            {"metadata": {**BOUND, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"volumeName": "v"}},
            Claim(volume="v", problem="is being deleted; create it again"),
        ),
    ],
)
def test_claim_is_read_with_its_problem(raw: dict[str, Any], claim: Claim) -> None:
    assert parse_claim(raw) == claim


def test_class_is_read_with_disk_and_zones() -> None:
    raw = {
        "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "pd.csi.storage.gke.io",
        "parameters": {"type": "pd-balanced"},
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": GKE_ZONE, "values": ["a", "b"]}]}],
    }
    want = StorageClass(waits=True, default=True, zones=frozenset("ab"), disk="pd-balanced")
    assert parse_class(raw) == want
    assert parse_class({**raw, "parameters": None}).disk == "pd-standard"
    assert parse_class({**raw, "provisioner": "filestore.csi.storage.gke.io"}).disk == ""
