"""Tests of the proof that the Kubernetes client and the GKE client use the same cluster."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest

from provisioner.kube.protocol import object_path
from provisioner.slices.suppliers.gke.identity_check import prove
from provisioner.slices.suppliers.gke.translate import Cluster
from tests.support.kube import FakeKube


def prove_same_cluster(
    *, kubernetes_ca_pem: bytes | None, cluster: Cluster, node_provider_ids: Sequence[str], assume: bool
) -> tuple[bool, str]:
    kube = FakeKube()
    for number, provider_id in enumerate(node_provider_ids):
        node = {"metadata": {"name": str(number)}, "spec": {"providerID": provider_id}}
        kube.put_object(object_path("nodes", str(number)), node)
    return prove(cluster, kube, trusted_ca_pem=kubernetes_ca_pem, assume=assume)


def pem(der: bytes, *, line_end: bytes = b"\n", width: int = 64) -> bytes:
    """Return bytes as PEM; the proof compares bytes and does not parse certificates."""
    text = base64.b64encode(der)
    lines = [text[at : at + width] for at in range(0, len(text), width)]
    return line_end.join([b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""])


OURS, OTHER, THIRD = b"ours" * 40, b"other" * 40, b"third" * 40
GROUP = "https://www.googleapis.com/compute/v1/projects/p/zones/us-east5-b/instanceGroupManagers/gke-c-default-pool-0a1b2c3d-grp"
NODE = "gce://p/us-east5-b/gke-c-default-pool-0a1b2c3d-x1y2"

CERTIFICATES = [
    pytest.param(pem(OURS), pem(OURS), True, id="the same certificate"),
    pytest.param(
        pem(OURS, line_end=b"\r\n", width=76), b"\n\n" + pem(OURS) + b"  \n", True, id="line ends do not matter"
    ),
    pytest.param(b"# a\n" + pem(OTHER) + pem(OURS), pem(OURS), True, id="one of several that the client trusts"),
    pytest.param(pem(OURS), pem(THIRD) + pem(OURS), True, id="one of two while the authority is rotated"),
    pytest.param(pem(OTHER), pem(OURS), False, id="another cluster's certificate"),
    pytest.param(b"rubbish", pem(OURS), False, id="no certificate where there should be one"),
    pytest.param(
        b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----" + pem(OURS),
        pem(OURS),
        True,
        id="a damaged certificate beside the right one",
    ),
    pytest.param(
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        False,
        id="two empty certificates",
    ),
    pytest.param(b"", b"", False, id="nothing on both sides"),
]


@pytest.mark.parametrize(("trusted", "issued", "want"), CERTIFICATES)
def test_shared_certificate_proves_the_same_cluster(trusted: bytes, issued: bytes, *, want: bool) -> None:
    cluster = Cluster(name="c", ca_certificate_pem=issued)
    proven, _why = prove_same_cluster(kubernetes_ca_pem=trusted, cluster=cluster, node_provider_ids=(), assume=False)
    assert proven is want


NODES = [
    pytest.param([NODE], [GROUP], True, id="a node of a group"),
    pytest.param(["", "kind://x", NODE], ["nonsense", GROUP], True, id="one node among strange ones"),
    pytest.param(
        [NODE], [GROUP.replace("instanceGroupManagers", "instanceGroups")], True, id="the older form of the group"
    ),
    pytest.param([], [GROUP], False, id="no nodes"),
    pytest.param([NODE], [], False, id="no groups"),
    pytest.param([NODE.replace("//p/", "//q/")], [GROUP], False, id="another project"),
    pytest.param([NODE.replace("east5-b", "east5-a")], [GROUP], False, id="another zone"),
    pytest.param([NODE.replace("0a1b2c3d", "ffffffff")], [GROUP], False, id="another cluster of the same name"),
    pytest.param([NODE + "-grp"], [GROUP], False, id="a longer name with the same beginning"),
    pytest.param([NODE.removesuffix("-x1y2")], [GROUP], False, id="the group itself"),
]


@pytest.mark.parametrize(("nodes", "groups", "want"), NODES)
def test_node_of_an_instance_group_proves_the_same_cluster(nodes: list[str], groups: list[str], *, want: bool) -> None:
    """If the client trusts public roots, one node in an instance group of the cluster is sufficient."""
    cluster = Cluster(name="c", ca_certificate_pem=pem(OURS), instance_group_urls=tuple(groups))
    proven, _why = prove_same_cluster(kubernetes_ca_pem=None, cluster=cluster, node_provider_ids=nodes, assume=False)
    assert proven is want


def test_nodes_do_not_outweigh_a_wrong_certificate() -> None:
    """A client that trusts another authority uses another cluster, even if its nodes have the expected names."""
    cluster = Cluster(name="c", ca_certificate_pem=pem(OURS), instance_group_urls=(GROUP,))
    proven, _why = prove_same_cluster(
        kubernetes_ca_pem=pem(OTHER), cluster=cluster, node_provider_ids=[NODE], assume=False
    )
    assert proven is False


def test_failed_proof_names_the_settings_to_check() -> None:
    _proven, why = prove_same_cluster(
        kubernetes_ca_pem=pem(OTHER),
        cluster=Cluster(name="c", ca_certificate_pem=pem(OURS)),
        node_provider_ids=(),
        assume=False,
    )
    for word in ("'c'", "GCP_PROJECT_ID", "GCP_CLUSTER_LOCATION", "GCP_CLUSTER", "ASSUME_SAME_CLUSTER=true"):
        assert word in why


def test_assumption_is_used_and_named_only_without_a_proof() -> None:
    proven, why = prove_same_cluster(
        kubernetes_ca_pem=None, cluster=Cluster(name="c"), node_provider_ids=(), assume=True
    )
    assert proven is True
    assert why.startswith("Assumed because ASSUME_SAME_CLUSTER is set.")
    certain = prove_same_cluster(
        kubernetes_ca_pem=pem(OURS),
        cluster=Cluster(name="c", ca_certificate_pem=pem(OURS)),
        node_provider_ids=(),
        assume=True,
    )
    assert "Assumed" not in certain[1]
