"""What planning is told of TPUNodeGroups before it asks for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner import constants
from provisioner.model.capacity import CapacityKind, Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.workloads import GroupKey, WorkloadUid
from provisioner.nodegroups.api import names
from provisioner.slices.demand import SliceId
from provisioner.slices.planning.launch.specification import Candidates, Specification
from provisioner.slices.planning.ownership import pool_name
from provisioner.slices.supplier import UnmeetableError
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.nodegroup.rules import NODE_GROUP_RULES
from provisioner.slices.suppliers.rules import rules_of
from tests.support.models import CHIP_TOLERATION, SPOT_TOLERATION, make_jobset, make_requirements, make_slice
from tests.support.settings import settings

ZONE = Zone("us-central2-b")


def specified(
    *, kind: CapacityKind = CapacityKind.ON_DEMAND, accelerator: str = "tpu7x", changes: Any = None, **pod: Any
) -> Specification:
    """Specify a pool for a slice of two machines."""
    asked = make_requirements(accelerator=accelerator, **{"tolerations": (CHIP_TOLERATION, SPOT_TOLERATION), **pod})
    slice_ = make_slice(make_jobset("train", template=asked), requirements=asked)
    candidates = Candidates(settings(**(changes or {})), NODE_GROUP_RULES)
    return candidates.specification(slice_, CapacityChoice(kind=kind, zone=ZONE))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param({"accelerator": "tpu-v4-podslice"}, "no slices of ct4p-hightpu-4t", id="an older generation"),
        pytest.param(
            {"changes": {"node_images": (("tpu-v6e-slice", "i"),)}}, "NODE_GROUP_IMAGES names no image", id="no image"
        ),
        pytest.param(
            {"annotations": {constants.ADDITIONAL_NODE_NETWORKS: "a:b"}}, "networks that a TPUNodeGroup", id="networks"
        ),
        pytest.param(
            {"labels": {"app.kubernetes.io/name": "x"}, "changes": {"pod_to_node_labels": ("app.kubernetes.io/name",)}},
            "no kubelet set labels",
            id="a label of Kubernetes",
        ),
        pytest.param(
            {"selector": {constants.PLACEMENT_POLICY: "mine"}}, constants.PLACEMENT_POLICY, id="a policy of one's own"
        ),
        pytest.param({"tolerations": ()}, "google.com/tpu", id="no toleration, which GKE would add"),
        pytest.param(
            {"kind": CapacityKind.SPOT, "tolerations": (CHIP_TOLERATION,)}, constants.SPOT, id="no toleration for spot"
        ),
    ],
)
def test_what_no_node_group_can_be_is_not_asked_for(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UnmeetableError, match=words):
        specified(**parts)


@pytest.mark.parametrize(
    "selector",
    [
        {constants.ZONE: ZONE},
        {constants.GKE_ZONE: ZONE},
        {constants.REGION: "us-central2"},
        {constants.PROVISIONING: "spot"},
        {constants.SPOT: "true"},
        {constants.TPU_TOPOLOGY: "2x2x2", constants.ACCELERATOR_COUNT: "4"},
        {constants.OS: "linux"},
    ],
)
def test_what_pods_select_on_gke_is_on_the_nodes(selector: dict[str, str]) -> None:
    assert specified(kind=CapacityKind.SPOT, selector=selector)


def test_the_settings_of_nodes_hold_for_machines() -> None:
    request = specified(
        changes={
            "node_service_account": "n@p.iam.gserviceaccount.com",
            "node_tags": ("a",),
            "node_disk_type": "hyperdisk-balanced",
            "node_images": (("*", "i"),),
        }
    ).blueprint.request
    assert (request.service_account, request.tags, request.disk_type) == (
        "n@p.iam.gserviceaccount.com",
        ("a",),
        "hyperdisk-balanced",
    )


@given(
    st.one_of(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True), st.text(max_size=80)),
    st.integers(0, 10**6),
)
def test_any_name_of_a_workload_gives_a_name_that_a_group_and_its_resources_can_have(name: str, attempt: int) -> None:
    slice_id = SliceId(WorkloadUid("uid"), GroupKey("a" * 40))
    assert names.group_name_problem(pool_name(name, slice_id, attempt)) == ""


@pytest.mark.parametrize(
    ("provider", "want"), [("", GKE_RULES), ("gke", GKE_RULES), ("gce", NODE_GROUP_RULES), (" GCE ", NODE_GROUP_RULES)]
)
def test_the_provider_chooses_the_rules(provider: str, want: object) -> None:
    assert rules_of(provider) is want
