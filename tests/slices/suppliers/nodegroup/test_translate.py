"""Tests of the translation of requests into TPUNodeGroups, and of TPUNodeGroups into node pools."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest, PoolName, Taint, Zone, expected_pool
from provisioner.model.choices import CapacityChoice
from provisioner.model.fit import trusted
from provisioner.model.workloads import GroupKey, WorkloadUid
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.shape import resolve
from provisioner.nodegroups.api.types import Kind, TpuNodeGroup
from provisioner.nodegroups.planning.nodes import labels_of
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.spec.specification import Candidates, Specification, pool_name, read_ownership
from provisioner.slices.supplier import UnmeetableError
from provisioner.slices.suppliers import rules_of
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.nodegroup.rules import DERIVED, NODE_GROUP_RULES, derived_labels, expected_node
from provisioner.slices.suppliers.nodegroup.translate import group_document, pool_of
from tests.support.clock import NOW
from tests.support.models import CHIP_TOLERATION, SPOT_TOLERATION, make_jobset, make_requirements, make_slice
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
    node={
        "node_disk_type": "hyperdisk-balanced",
        "node_service_account": "nodes@research-project.iam.gserviceaccount.com",
        "node_oauth_scopes": ("https://www.googleapis.com/auth/cloud-platform",),
        "node_tags": ("tpu",),
    },
)


def made(request: NodePoolRequest) -> dict[str, Any]:
    raw = copy.deepcopy(group_document(request, SETTINGS))
    raw["metadata"] |= {"uid": "1", "resourceVersion": "1", "generation": 1}
    return raw


def pool(raw: dict[str, Any]) -> NodePool:
    return pool_of(parse(TpuNodeGroup, raw), NOW, capacity_wait_seconds=600.0)


def test_nodes_are_named_after_the_managed_instance_group() -> None:
    group = parse(TpuNodeGroup, made(REQUEST))
    manager = names.child_name(group.meta, Kind.MANAGED_INSTANCE_GROUP)
    assert pool(made(REQUEST)).node_prefixes == (names.manager_of(f"{manager}-x1b2"),) == (manager,)


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
def test_group_is_listed_as_the_requested_pool(changes: dict[str, Any]) -> None:
    request = replace(REQUEST, **changes)
    raw = made(request)
    group = parse(TpuNodeGroup, raw)
    assert names.group_name_problem(request.name) == ""
    assert resolve(group.spec, request.machine_type).node_count == request.hosts
    assert pool(raw) == expected_pool(request)


def test_group_has_the_image_disk_and_network_of_the_settings() -> None:
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
        {"email": REQUEST.node["node_service_account"], "scopes": list(REQUEST.node["node_oauth_scopes"])}
    ]
    assert (config["networkTags"], config["diskType"]) == (["tpu"], "hyperdisk-balanced")
    newer = replace(REQUEST, machine_type="tpu7x-standard-4t", topology="2x2x2", hosts=2, node={})
    config = made(newer)["spec"]["instanceConfig"]
    assert config["image"] == "projects/i/global/images/seven"
    assert config["serviceAccounts"][0]["email"] == "default"


def test_machines_register_with_the_labels_that_planning_expects() -> None:
    """At registration, nodes lack only labels that kubelets set on their own or that the controller sets later."""
    labels = {**REQUEST.labels, names.GROUP_NAMESPACE: "slices"}
    request = replace(REQUEST, capacity=CapacityKind.SPOT, labels=labels)
    group, expected = parse(TpuNodeGroup, made(request)), expected_node(expected_pool(request)).labels
    metadata = made(request)["spec"]["instanceConfig"]["metadata"]
    registered = dict(label.split("=", 1) for label in metadata["kube-labels"].split(","))
    set_later = {**labels_of(group, resolve(group.spec, REQUEST.machine_type)), names.TRUSTED_NAMESPACE: "slices"}
    assert (registered | set_later).items() <= expected.items()
    assert expected.keys() - registered.keys() - set_later.keys() == {constants.OS, constants.ARCH}
    assert (registered[constants.NODE_POOL], registered[constants.SPOT]) == (REQUEST.name, "true")
    assert metadata["kube-taints"] == "a=b:NoSchedule,c=:NoExecute"


def test_derived_labels_are_all_among_the_derived_keys() -> None:
    """Otherwise a pool would be listed with labels that were not requested."""
    blocks = "projects/p/reservations/r/reservationBlocks/b/reservationSubBlocks/s"
    for kind in CapacityKind:
        assert derived_labels(expected_pool(replace(REQUEST, capacity=kind, reservation=blocks))).keys() <= DERIVED


def test_owner_of_a_pool_does_not_depend_on_the_labels_of_the_object() -> None:
    """Users may change the labels of the object; the spec is immutable."""
    raw = made(REQUEST)
    raw["metadata"]["labels"] = {}
    assert read_ownership(pool(raw).labels) is not None
    by_hand = {
        "metadata": {"namespace": "slices", "name": "by-hand", "uid": "2", "labels": dict(REQUEST.labels)},
        "spec": SPEC,
    }
    assert read_ownership(pool(by_hand).labels) is None


def test_group_of_a_user_is_listed_with_the_fields_that_it_has() -> None:
    metadata = {"namespace": "slices", "name": "by-hand", "uid": "2"}
    found = pool({"metadata": metadata, "spec": SPEC})
    assert (found.machine_type, found.topology, found.hosts) == ("ct6e-standard-4t", "4x4", 1)
    derived = {"nodeCount": 4, "topology": "4x4", "targetSizePolicyMode": "BULK"}
    assert pool({"metadata": metadata, "spec": SPEC, "status": derived}).hosts == 4
    template = "projects/research-project/global/instanceTemplates/t"
    spec = {"project": "research-project", "nodeLocation": "us-east5-a", "instanceTemplateURI": template}
    assert pool({"metadata": metadata, "spec": spec}).machine_type == ""


ZONE = Zone("us-central2-b")


def specified(
    *, kind: CapacityKind = CapacityKind.ON_DEMAND, accelerator: str = "tpu7x", changes: Any = None, **pod: Any
) -> Specification:
    asked = make_requirements(accelerator=accelerator, **{"tolerations": (CHIP_TOLERATION, SPOT_TOLERATION), **pod})
    slice_ = make_slice(make_jobset("train", template=asked), requirements=asked)
    candidates = Candidates(settings(**{"node_group_namespace": "slices", **(changes or {})}), NODE_GROUP_RULES)
    return candidates.specification(slice_, CapacityChoice(kind=kind, zone=ZONE))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param({"accelerator": "tpu-v4-podslice"}, "no slices of ct4p-hightpu-4t", id="an older generation"),
        pytest.param(
            {"changes": {"node_images": (("tpu-v6e-slice", "i"),)}}, "NODE_GROUP_IMAGES names no image", id="no image"
        ),
        pytest.param(
            {"annotations": {constants.ADDITIONAL_NODE_NETWORKS: "a:b"}}, "what a TPUNodeGroup", id="networks"
        ),
        pytest.param(
            {"labels": {"app.kubernetes.io/name": "x"}, "changes": {"pod_to_node_labels": ("app.kubernetes.io/name",)}},
            "no kubelet set labels",
            id="a label of Kubernetes",
        ),
        pytest.param(
            {"selector": {constants.PLACEMENT_POLICY: "mine"}}, constants.PLACEMENT_POLICY, id="a policy of one's own"
        ),
        pytest.param({"selector": {names.GROUP_NAME: "by-hand"}}, names.GROUP_NAME, id="a group of somebody's"),
        pytest.param({"selector": {names.TRUSTED_NAMESPACE: "team"}}, names.TRUSTED_NAMESPACE, id="groups elsewhere"),
        pytest.param({"tolerations": ()}, "google.com/tpu", id="no toleration, which GKE would add"),
        pytest.param(
            {"kind": CapacityKind.SPOT, "tolerations": (CHIP_TOLERATION,)}, constants.SPOT, id="no toleration for spot"
        ),
    ],
)
def test_slice_that_no_node_group_can_serve_is_not_requested(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UnmeetableError, match=words):
        specified(**parts)


@pytest.mark.parametrize(
    "selector",
    [
        {constants.ZONE: ZONE, constants.GKE_ZONE: ZONE, constants.REGION: "us-central2"},
        {constants.PROVISIONING: "spot", constants.SPOT: "true"},
        dict.fromkeys((names.GROUP_NAMESPACE, names.TRUSTED_NAMESPACE), "slices"),
        {constants.TPU_TOPOLOGY: "2x2x2", constants.ACCELERATOR_COUNT: "4"},
        {constants.OS: "linux", constants.INSTANCE_TYPE: "tpu7x-standard-4t", constants.MACHINE_FAMILY: "tpu7x"},
        {constants.MAX_RUN_SECONDS: "7200"},
    ],
)
def test_labels_that_pods_select_on_gke_are_on_the_nodes(selector: dict[str, str]) -> None:
    kind = CapacityKind.FLEX_START if constants.MAX_RUN_SECONDS in selector else CapacityKind.SPOT
    request = specified(kind=kind, selector=selector).blueprint.request
    assert trusted(make_requirements(selector=selector), expected_node(expected_pool(request))) == ()


def test_settings_of_nodes_apply_to_machines() -> None:
    request = specified(
        changes={
            "node_service_account": "n@p.iam.gserviceaccount.com",
            "node_tags": ("a",),
            "node_disk_type": "hyperdisk-balanced",
            "node_images": (("*", "i"),),
        }
    ).blueprint.request
    names = ("node_service_account", "node_tags", "node_disk_type")
    assert tuple(request.node[name] for name in names) == (
        "n@p.iam.gserviceaccount.com",
        ("a",),
        "hyperdisk-balanced",
    )


@given(
    st.one_of(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True), st.text(max_size=80)),
    st.integers(0, 10**6),
)
def test_pool_name_of_any_workload_is_valid_for_a_group_and_its_resources(name: str, attempt: int) -> None:
    slice_id = SliceId(WorkloadUid("uid"), GroupKey("a" * 40))
    assert names.group_name_problem(pool_name(name, slice_id, attempt)) == ""


@pytest.mark.parametrize(
    ("provider", "want"), [("", GKE_RULES), ("gke", GKE_RULES), ("gce", NODE_GROUP_RULES), (" GCE ", NODE_GROUP_RULES)]
)
def test_provider_determines_the_rules(provider: str, want: object) -> None:
    assert rules_of(provider) is want
