"""Tests of the node pool requests for slices, and of the nodes that are expected to result from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import (
    CapacityKind,
    Network,
    NodePool,
    NodePoolRequest,
    PoolName,
    PoolStatus,
    expected_pool,
)
from provisioner.model.fit import misfit
from provisioner.slices.demand import Slice
from provisioner.slices.planning.spec import specification
from provisioner.slices.planning.spec.capacity import choices_of
from provisioner.slices.planning.spec.specification import pool_name, uncopied_labels
from provisioner.slices.supplier import UnmeetableError
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from tests.support.models import make_jobset, make_requirements, make_slice, pool_request, slice_of
from tests.support.settings import settings

V4 = "tpu-v4-podslice"
NETWORKS = constants.ADDITIONAL_NODE_NETWORKS
POD_ACCOUNT = "pod@p.iam.gserviceaccount.com"


def fingerprint(slice_: Slice, **changes: Any) -> str:
    """Return the digest of a slice's request, after `changes` to the request that the supplier completes."""
    rules = replace(GKE_RULES, complete=lambda *given: replace(GKE_RULES.complete(*given), **changes))
    choice = choices_of(slice_, settings()).open[0]
    plan = specification.blueprint(slice_, settings(), rules, choice, {})
    return specification.specify(slice_, plan, settings(), rules).digest


def request_of(slice_: Slice, attempt: int = 0, **changes: Any) -> NodePoolRequest:
    return pool_request(slice_, settings(**changes), attempt)


def refusal(slice_: Slice, **changes: Any) -> str:
    with pytest.raises(UnmeetableError) as caught:
        request_of(slice_, **changes)
    return str(caught.value)


def test_labels_of_a_request_identify_the_owner_of_the_pool() -> None:
    slice_ = slice_of()
    labels = request_of(slice_, 3).labels
    assert dict(labels) == {
        constants.NODEPOOL_MANAGER: "tpu-provisioner",
        constants.PARENT_KIND: "job",
        constants.PARENT_NAME: "train-slice-0",
        constants.PARENT_NAMESPACE: "default",
        constants.POOL_JOBSET_NAME: "train",
        constants.POOL_JOBSET_NAMESPACE: "default",
        constants.POOL_JOBSET_UID: "uid-of-default-train",
        constants.POOL_JOB_KEY: slice_.id.group_key,
        constants.NODEPOOL_HASH: labels[constants.NODEPOOL_HASH],
        constants.POOL_ATTEMPT: "3",
    }


def test_request_contains_the_node_settings() -> None:
    changes: dict[str, Any] = {
        "node_service_account": "n@p.iam.gserviceaccount.com",
        "node_tags": ("a",),
        "node_additional_networks": (Network(network="v", subnetwork="s"),),
        "max_pods_per_node": 16,
        "node_secure_boot": False,
        "node_secondary_disk": "images",
        "node_confidential_storage": True,
        "node_boot_disk_kms_key": "key",
        "node_disk_type": "pd-ssd",
    }
    made = request_of(slice_of(), **changes)
    assert not changes.pop("node_secure_boot")
    assert changes.items() <= made.node.items()
    assert "node_secure_boot" not in made.node
    assert made.zone == "us-central2-b"


def test_annotations_of_the_pod_override_settings() -> None:
    annotations = {constants.NODE_SERVICE_ACCOUNT: POD_ACCOUNT, constants.ADDITIONAL_NODE_NETWORKS: "v1:s1, v2:s2"}
    made = request_of(slice_of(annotations=annotations), node_service_account="settings@p.iam")
    assert made.node["node_service_account"] == POD_ACCOUNT
    assert [network.network for network in made.node["node_additional_networks"]] == ["v1", "v2"]


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "placement", "want_topology", "want_policy"),
    [
        pytest.param(V4, "2x2x2", 4, False, "2x2x2", "", id="multi-host"),
        pytest.param(V4, "2x2x1", 4, False, "", "", id="single-host"),
        pytest.param(V4, "2x2x1", 4, True, "2x2x1", "", id="single-host with the setting"),
        pytest.param("tpu7x", "4x4x4", 4, False, "", "tpu-provisioner-4x4x4", id="multi-host tpu7x"),
        pytest.param("tpu7", "2x2x2", 4, True, "", "tpu-provisioner-2x2x2", id="multi-host tpu7"),
        pytest.param("tpu7x", "2x2x1", 4, False, "", "", id="single-host tpu7x"),
    ],
)
def test_request_has_the_placement_that_gke_accepts_for_the_shape(
    *, accelerator: str, topology: str, chips: int, placement: bool, want_topology: str, want_policy: str
) -> None:
    """GKE rejects other combinations of placement topology and policy (docs/develop/reality.md)."""
    slice_ = slice_of(
        accelerator=accelerator, topology=topology, chips=chips, parallelism=16 if topology == "4x4x4" else 1
    )
    made = request_of(slice_, single_host_placement=placement)
    assert (made.placement_topology, made.policy_name, made.topology) == (want_topology, want_policy, topology)
    assert expected_pool(made).topology == topology
    assert misfit(slice_.requirements, GKE_RULES.expected_node(expected_pool(made))) == ()


def test_nodes_have_the_cloud_platform_scope_unless_the_setting_has_others() -> None:
    """Nodes of a pool without OAuth scopes cannot pull private images."""
    assert request_of(slice_of()).node["node_oauth_scopes"] == ("https://www.googleapis.com/auth/cloud-platform",)
    other = ("https://www.googleapis.com/auth/devstorage.read_only",)
    assert request_of(slice_of(), node_oauth_scopes=other).node["node_oauth_scopes"] == other


@pytest.mark.parametrize(
    ("setting", "channel", "want"),
    [
        pytest.param(None, "", False, id="auto without a channel"),
        pytest.param(None, "REGULAR", True, id="auto on a channel"),
        pytest.param(False, "REGULAR", False, id="off"),
        pytest.param(True, "", True, id="on"),
    ],
)
def test_auto_upgrade_follows_the_setting_and_the_channel(*, setting: bool | None, channel: str, want: bool) -> None:
    """GKE rejects pools without auto-upgrade if the cluster is on a release channel."""
    on_channel = settings(auto_upgrade=setting).on_channel(channel)
    assert pool_request(slice_of(), on_channel, 0).auto_upgrade is want


def test_pool_of_a_reservation_has_the_affinity_label_that_the_pod_selects() -> None:
    """GKE does not set the label for reservation affinity; the client that creates the pool has to."""
    slice_ = slice_of(selector={constants.RESERVATION_NAME: "r1", constants.RESERVATION_AFFINITY: "specific"})
    assert request_of(slice_).labels[constants.RESERVATION_AFFINITY] == "specific"
    assert constants.RESERVATION_AFFINITY not in request_of(slice_of()).labels


def test_workload_policy_that_the_pod_selects_is_used() -> None:
    """The name of the user's policy does not contain the topology, so a label of the pool contains the topology."""
    slice_ = slice_of(
        accelerator="tpu7x", topology="4x4x4", selector={constants.PLACEMENT_POLICY: "mine"}, parallelism=16
    )
    made = request_of(slice_)
    assert made.policy_name == "mine"
    assert expected_pool(made).topology == "4x4x4"


@pytest.mark.parametrize(
    ("requirements", "changes", "words"),
    [
        pytest.param(
            {"selector": {constants.SPOT: "true"}},
            {"force_on_demand": True},
            "GCP_FORCE_ON_DEMAND is set",
            id="spot where on-demand is forced",
        ),
        pytest.param({"topology": "3x3x3"}, {}, "3x3x3", id="a shape that does not exist"),
        pytest.param({"tolerations": ()}, {}, "google.com/tpu=present:NoSchedule", id="a pod that tolerates no TPU"),
        pytest.param({"selector": {constants.NODE_POOL: "static"}}, {}, "static", id="a pool that the pod names"),
        pytest.param({"memory_bytes": 2**50}, {}, "1048576Gi memory", id="more memory than the machine has"),
        pytest.param({}, {"node_disk_type": "pd-extreme"}, "pd-standard, pd-balanced", id="a disk that GKE rejects"),
        pytest.param(
            {
                "annotations": {constants.COPY_LABELS: constants.POOL_JOBSET_NAME},
                "labels": {constants.POOL_JOBSET_NAME: "somebody-else"},
            },
            {},
            f"label {constants.POOL_JOBSET_NAME} identifies the owner of the pool",
            id="a copied label that forges the owner",
        ),
        pytest.param(
            {"labels": {f"k{index}": "v" * 60 for index in range(20)}},
            {"pod_to_node_labels": tuple(f"k{index}" for index in range(20))},
            "GKE allows 1024",
            id="more labels than GKE accepts",
        ),
    ],
)
def test_slice_that_no_pool_can_serve_raises_an_error_with_the_reason(
    requirements: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    assert words in refusal(slice_of(**requirements), **changes)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        pytest.param(NETWORKS, "vpc", "has 'vpc'", id="a network without subnet"),
        pytest.param(NETWORKS, "Out of stock:s", "'Out of stock' is not the name of a network", id="text for a name"),
        pytest.param(
            NETWORKS, "v:projects/p-project/regions/r/s", "is not the name of a subnetwork", id="another path"
        ),
        pytest.param(NETWORKS, ",".join(["v:s"] * 17), "has 17 networks, and at most 16 are read", id="many networks"),
        pytest.param(
            constants.NODE_SERVICE_ACCOUNT,
            "RESOURCE_EXHAUSTED@p.iam",
            "is not the e-mail address of a Google service account",
            id="a service account with a text for a name",
        ),
        pytest.param(
            constants.COPY_LABELS,
            ",".join(map(str, range(65))),
            f"annotation {constants.COPY_LABELS} has 65 labels, and at most 64 are read",
            id="too many labels to copy",
        ),
    ],
)
def test_invalid_annotation_of_a_pod_is_an_error_that_quotes_it(key: str, value: str, words: str) -> None:
    assert words in refusal(slice_of(annotations={key: value}))


def test_pods_that_select_the_first_pool_of_their_slice_by_its_name_get_no_other_pool() -> None:
    """In the past, one pool after the other was created, because each attempt has another name."""
    workload = make_jobset()
    name = pool_name(workload.name, make_slice(workload).id, 0)
    slice_ = make_slice(workload, requirements=make_requirements(selector={constants.NODE_POOL: name}))
    assert "remove the selector" in refusal(slice_)


def test_labels_that_pods_select_or_copy_are_in_the_request() -> None:
    """GKE itself sets the labels of Google, except for a few that the request has to contain."""
    slice_ = slice_of(
        selector={
            "team": "ml",
            constants.ICI_RESILIENCY: "false",
            constants.LOCATION_HINT: "here",
            constants.COLLECTION: "serving",
            constants.NETWORK_PROFILE: "auto",
            constants.TPU_DRA_DRIVER: "true",
            constants.OS: "linux",
        },
        labels={"cost": "7", "tier": "gold", "else": "x"},
        annotations={constants.COPY_LABELS: "cost , missing"},
    )
    labels = request_of(slice_, pod_to_node_labels=("tier",)).labels
    copied = {key: value for key, value in labels.items() if key not in constants.OWNER_LABELS}
    assert copied == {
        "team": "ml",
        "cost": "7",
        "tier": "gold",
        constants.ICI_RESILIENCY: "false",
        constants.LOCATION_HINT: "here",
        constants.COLLECTION: "serving",
        constants.NETWORK_PROFILE: "auto",
        constants.NETWORKING_DRA_DRIVER: "true",
        constants.TPU_DRA_DRIVER: "true",
    }


@pytest.mark.parametrize(
    ("key", "changes", "copied"),
    [
        pytest.param("node-restriction.kubernetes.io/team", {}, False, id="a label that Kubernetes guards"),
        pytest.param("kubernetes.io/hostname", {}, False, id="a label of Kubernetes"),
        pytest.param("jobset.sigs.k8s.io/x", {}, False, id="a label of a domain below k8s.io"),
        pytest.param("addon.gke.io/x", {}, False, id="a label of GKE's add-ons"),
        pytest.param("cloud.google.com/machine-family", {}, False, id="a label of Google"),
        pytest.param("kueue.x-k8s.io/queue-name", {}, True, id="a label of a domain that only ends alike"),
        pytest.param(constants.LOCATION_HINT, {}, True, id="a label of Google that is for users"),
        pytest.param(constants.AUTO_RESTART, {}, True, id="another label of Google that is for users"),
        pytest.param("a.k8s.io/b", {"pod_to_node_labels": ("a.k8s.io/b",)}, True, id="a label that the settings copy"),
        pytest.param("a.k8s.io/b", {"allowed_label_keys": ("a.k8s.io/b",)}, True, id="a label that the settings allow"),
        pytest.param(
            "a.k8s.io/b", {"allowed_label_keys": ("*",)}, False, id="a label that a pattern of the settings allows"
        ),
    ],
)
def test_labels_of_google_and_kubernetes_are_not_copied_to_nodes(
    key: str, changes: dict[str, Any], *, copied: bool
) -> None:
    slice_ = slice_of(labels={key: "forged"}, annotations={constants.COPY_LABELS: f"{key},missing.k8s.io/x"})
    assert (request_of(slice_, **changes).labels.get(key) == "forged") is copied
    told = uncopied_labels(slice_, settings(**changes), GKE_RULES)
    assert told == "" if copied else f"{constants.COPY_LABELS} names {key}:" in told


def test_long_names_are_cut_to_valid_label_values() -> None:
    labels = request_of(slice_of(name="a" * 62 + "-" + "b" * 20)).labels
    assert labels[constants.POOL_JOBSET_NAME] == labels[constants.PARENT_NAME] == "a" * 62


@pytest.mark.parametrize(
    ("accelerator", "topology", "setting", "want"),
    [
        (V4, "2x2x2", "", ""),
        ("tpu-v5p-slice", "2x2x2", "", "pd-balanced"),
        ("tpu-v6e-slice", "4x4", "", "hyperdisk-balanced"),
        ("tpu-v6e-slice", "4x4", "hyperdisk-balanced", "hyperdisk-balanced"),
    ],
)
def test_boot_disk_type_is_accepted_by_the_machine_type(
    accelerator: str, topology: str, setting: str, want: str
) -> None:
    """The disk type is empty if the machine accepts GKE's default."""
    made = request_of(slice_of(accelerator=accelerator, topology=topology), node_disk_type=setting)
    assert made.node.get("node_disk_type", "") == want


def test_equal_requests_have_equal_fingerprints_over_attempts() -> None:
    slice_ = slice_of()
    first, second = request_of(slice_), request_of(slice_, 1)
    assert first.name != second.name
    assert first.labels[constants.NODEPOOL_HASH] == second.labels[constants.NODEPOOL_HASH] == fingerprint(slice_)


@pytest.mark.parametrize(
    "changes",
    [
        {"zone": "us-central2-a"},
        {"machine_type": "other"},
        {"hosts": 3},
        {"placement_topology": "2x2x4"},
        {"policy_name": "p"},
        {"capacity": CapacityKind.SPOT},
        {"reservation": "r"},
        {"node": {"node_disk_type": "pd-ssd"}},
        {"labels": {"a": "b"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_each_field_of_a_request_changes_its_fingerprint(changes: dict[str, Any]) -> None:
    """The Go provisioner's hash left out topology, node count and zone."""
    assert fingerprint(slice_of(), **changes) != fingerprint(slice_of())


def test_expected_node_of_an_unknown_machine_type_has_no_chips() -> None:
    pool = NodePool(name=PoolName("p"), status=PoolStatus.RUNNING, machine_type="e2-standard-4", labels={"a": "b"})
    view = GKE_RULES.expected_node(pool)
    assert (view.chips, view.labels) == (0, {"a": "b"})
    assert pool.topology == ""
