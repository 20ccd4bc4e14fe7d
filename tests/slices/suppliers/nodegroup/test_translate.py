"""What a TPUNodeGroup is asked to be, and which node pool it is."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import (
    CapacityKind,
    NodePool,
    NodePoolRequest,
    PoolName,
    Taint,
    Zone,
    expected_pool,
)
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.shape import resolve
from provisioner.nodegroups.api.types import TpuNodeGroup
from provisioner.slices.planning.ownership import is_ours
from provisioner.slices.suppliers.nodegroup.rules import DERIVED, derived_labels, expected_node
from provisioner.slices.suppliers.nodegroup.translate import group_document, pool_of
from tests.support.clock import NOW
from tests.support.nodegroup_controller import SPEC
from tests.support.settings import settings

SETTINGS = settings(
    node_group_namespace="slices",
    project_id="research-project",
    node_images=(("tpu7x", "projects/i/global/images/seven"), ("*", "projects/i/global/images/others")),
    capacity_wait_seconds=600.0,
    node_disk_gb=200,
    node_subnetwork="projects/host/regions/us-east5/subnetworks/tpus",
)
REQUEST = NodePoolRequest(
    name=PoolName("train-0123456789"),
    zone=Zone("us-east5-a"),
    machine_type="ct6e-standard-4t",
    hosts=4,
    topology="4x4",
    labels={constants.NODEPOOL_MANAGER: constants.MANAGER, constants.POOL_JOBSET_NAME: "train", "team": ""},
    taints=(Taint(key="a", value="b"), Taint(key="c", effect="NoExecute")),
    disk_type="hyperdisk-balanced",
    service_account="nodes@research-project.iam.gserviceaccount.com",
    oauth_scopes=("https://www.googleapis.com/auth/cloud-platform",),
    tags=("tpu",),
)


def made(request: NodePoolRequest) -> dict[str, Any]:
    """Return a group as the API server has it right after its create."""
    raw = copy.deepcopy(group_document(request, SETTINGS))
    raw["metadata"] |= {"uid": "1", "resourceVersion": "1", "generation": 1}
    return raw


def pool(raw: dict[str, Any]) -> NodePool:
    """Return the pool that a group is."""
    return pool_of(parse(TpuNodeGroup, raw), NOW, capacity_wait_seconds=600.0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"taints": ()},
        {"capacity": CapacityKind.SPOT},
        {"capacity": CapacityKind.FLEX_START},
        {"capacity": CapacityKind.FLEX_START, "max_run_seconds": 7200},
        {"capacity": CapacityKind.RESERVATION, "reservation": "r1"},
        {
            "capacity": CapacityKind.RESERVATION,
            "reservation": "projects/other/reservations/r1/reservationBlocks/b/reservationSubBlocks/s",
        },
        {"machine_type": "tpu7x-standard-4t", "topology": "2x2x2", "hosts": 2},
        {"machine_type": "tpu7x-standard-4t", "topology": "2x2x1", "hosts": 1},
        {"machine_type": "ct6e-standard-8t", "topology": "2x4", "hosts": 3},
    ],
)
def test_a_group_is_the_pool_that_was_asked_for(changes: dict[str, Any]) -> None:
    """And the API of node groups takes it: every rule of its schema, its names and its shapes."""
    request = replace(REQUEST, **changes)
    raw = made(request)
    group = parse(TpuNodeGroup, raw)
    assert names.group_name_problem(request.name) == ""
    assert resolve(group.spec, request.machine_type).node_count == request.hosts
    assert pool(raw) == expected_pool(request)


def test_what_slices_do_not_say_comes_from_the_settings() -> None:
    spec = made(REQUEST)["spec"]
    config = spec["instanceConfig"]
    assert (spec["project"], spec["nodeLocation"], spec["bootstrapKubernetes"]) == (
        "research-project",
        "us-east5-a",
        {},
    )
    assert (config["image"], config["bootDiskSizeGB"]) == ("projects/i/global/images/others", 200)
    assert config["subnetwork"] == "projects/host/regions/us-east5/subnetworks/tpus"
    assert config["serviceAccounts"] == [
        {
            "email": "nodes@research-project.iam.gserviceaccount.com",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        }
    ]
    assert (config["networkTags"], config["diskType"]) == (["tpu"], "hyperdisk-balanced")
    newer = replace(REQUEST, machine_type="tpu7x-standard-4t", topology="2x2x2", hosts=2, service_account="")
    config = made(newer)["spec"]["instanceConfig"]
    assert config["image"] == "projects/i/global/images/seven"
    assert config["serviceAccounts"][0]["email"] == "default"


def test_machines_register_with_the_labels_that_planning_expects() -> None:
    """All that nodes are expected to carry, but for what each kubelet says of itself."""
    metadata = made(replace(REQUEST, capacity=CapacityKind.SPOT))["spec"]["instanceConfig"]["metadata"]
    registered = dict(each.split("=", 1) for each in metadata["kube-labels"].split(","))
    expected = expected_node(expected_pool(replace(REQUEST, capacity=CapacityKind.SPOT))).labels
    assert registered.items() <= expected.items()
    assert expected.keys() - registered.keys() == {constants.OS, constants.ARCH}
    assert registered[constants.NODE_POOL] == REQUEST.name
    assert registered[constants.SPOT] == "true"
    assert metadata["kube-taints"] == "a=b:NoSchedule,c=:NoExecute"


def test_every_label_that_follows_from_a_group_is_known_as_such() -> None:
    """Else a pool would be listed with labels that nobody asked for."""
    for kind in (CapacityKind.ON_DEMAND, CapacityKind.SPOT, CapacityKind.FLEX_START):
        assert derived_labels(expected_pool(replace(REQUEST, capacity=kind))).keys() <= DERIVED
    reserved = replace(
        REQUEST,
        capacity=CapacityKind.RESERVATION,
        reservation="projects/p/reservations/r/reservationBlocks/b/reservationSubBlocks/s",
    )
    assert derived_labels(expected_pool(reserved)).keys() <= DERIVED


def test_whose_a_pool_is_cannot_be_changed_by_the_labels_of_the_object() -> None:
    """Anybody may write these; the spec is fixed."""
    raw = made(REQUEST)
    raw["metadata"]["labels"] = {}
    assert is_ours(pool(raw))
    by_hand = {
        "metadata": {"namespace": "slices", "name": "by-hand", "uid": "2", "labels": dict(REQUEST.labels)},
        "spec": SPEC,
    }
    assert not is_ours(pool(by_hand))


def test_a_group_that_somebody_made_is_listed_as_far_as_it_says_what_it_is() -> None:
    metadata = {"namespace": "slices", "name": "by-hand", "uid": "2"}
    found = pool({"metadata": metadata, "spec": SPEC})
    assert (found.machine_type, found.topology, found.hosts) == ("ct6e-standard-4t", "4x4", 1)
    derived = {"nodeCount": 4, "topology": "4x4", "targetSizePolicyMode": "BULK"}
    assert pool({"metadata": metadata, "spec": SPEC, "status": derived}).hosts == 4
    template = "projects/research-project/global/instanceTemplates/t"
    spec = {"project": "research-project", "nodeLocation": "us-east5-a", "instanceTemplateURI": template}
    assert pool({"metadata": metadata, "spec": spec}).machine_type == ""
