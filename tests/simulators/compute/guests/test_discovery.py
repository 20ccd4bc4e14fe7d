"""Tests of the checks with which a VM decides whether to trust a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner.runtime.authority import Authority
from rehearsal.simulators.compute.guests import joining
from rehearsal.simulators.compute.guests.client import JoinError
from rehearsal.simulators.compute.guests.startup import Invitation
from tests.support.kubeadm_cluster import HOST, PORT, TOKEN, KubeadmCluster

CLUSTER = KubeadmCluster()
INVITATION = Invitation(
    host=HOST,
    port=PORT,
    token_id=TOKEN[:6],
    token_secret=TOKEN[7:],
    ca_hashes=(f"sha256:{'0' * 64}", CLUSTER.metadata()["kubeadm-ca-hash"]),
    kubernetes_version="1.34",
    labels={},
)
KEY = f"jws-kubeconfig-{TOKEN[:6]}"


def info(**changes: str) -> dict[str, Any]:
    """Return a ConfigMap cluster-info; an empty value removes a key."""
    data = CLUSTER._cluster_info()["data"] | changes
    return {"data": {key: value for key, value in data.items() if value}}


def test_cluster_with_a_valid_signature_and_a_pinned_key_is_trusted() -> None:
    """One matching hash of several is enough, because an authority may be in the process of replacement."""
    found = joining.trusted_cluster(info(), INVITATION)
    assert (found.host, found.port) == (HOST, PORT)
    assert found.authority_pem == CLUSTER.authority.certificate_pem.decode()


def test_signature_is_equal_to_that_of_kubeadm() -> None:
    """The example is from the tests of kubeadm's package jws."""
    content = "Hello from the other side. I must have called a thousand times."
    told = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
    assert joining.sign(content, "joshua", "my voice is my passcode") == told


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        pytest.param(lambda: info(**{KEY: ""}), "could not find a JWS signature", id="no signature: an old token"),
        pytest.param(
            lambda: info(kubeconfig=info()["data"]["kubeconfig"].replace(HOST, "10.6.6.6")),
            "failed to verify JWS",
            id="another server",
        ),
    ],
)
def test_untrustworthy_cluster_info_is_rejected(changed: Callable[[], dict[str, Any]], problem: str) -> None:
    """Messages are those of kubeadm if they are known."""
    with pytest.raises(JoinError, match=problem):
        joining.trusted_cluster(changed(), INVITATION)


def test_cluster_with_an_unpinned_authority_is_rejected() -> None:
    """A server that has only the token must not be able to pretend to be the cluster."""
    other = Authority("other", now=datetime.now(UTC), valid=timedelta(days=1)).certificate_pem.decode()
    stranger = replace(INVITATION, ca_hashes=tuple(joining.key_hashes(other)))
    with pytest.raises(JoinError, match="cluster CA found in cluster-info ConfigMap is invalid"):
        joining.trusted_cluster(info(), stranger)
