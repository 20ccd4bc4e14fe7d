"""Guests of simulated VMs agree with kubeadm, with the kubelet, and with the startup script of node groups."""

from __future__ import annotations

import pytest

from provisioner.nodegroups.api import names
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.bootstrap.metadata import startup_script
from rehearsal import localcluster
from rehearsal.simulators.compute.guests import joining, kubelet
from rehearsal.simulators.compute.guests.startup import allowed_labels, joins, read_invitation
from rehearsal.simulators.compute.names import ZONES, Scope
from rehearsal.simulators.compute.records import MachineView

_HASH = f"sha256:{'0' * 64}"


def test_signature_is_equal_to_that_of_kubeadm() -> None:
    """The expected signature is from the tests of kubeadm's package jws."""
    content = "Hello from the other side. I must have called a thousand times."
    want = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
    assert joining.sign(content, "joshua", "my voice is my passcode") == want


def test_invitation_is_read_from_the_metadata_keys_of_the_startup_script() -> None:
    """The simulator and the startup script define the keys independently."""
    given = {
        metadata.TOKEN: "abcdef.0123456789abcdef",
        metadata.ADDRESS: "10.0.0.2",
        metadata.PORT: "8443",
        metadata.CA_HASH: _HASH,
        metadata.VERSION: "1.34",
        names.KUBE_LABELS: "a=b,kubernetes.io/role=x",
        names.KUBE_TAINTS: "a=b:NoSchedule",
    }
    assert all(key in startup_script() for key in given)
    machine = MachineView(
        scope=Scope("proj", ZONES, "us-east5-a"),
        name="slice-x1b2",
        number=7,
        status="RUNNING",
        boots=1,
        address="10.128.0.9",
        metadata={"startup-script": startup_script(), **given},
        group="slice",
        machine_type="ct6e-standard-4t",
        chips=4,
    )
    assert joins(machine)
    found = read_invitation(machine)
    assert (found.host, found.port, found.token, found.ca_hashes) == (
        "10.0.0.2",
        8443,
        "abcdef.0123456789abcdef",
        (_HASH,),
    )
    assert (found.kubernetes_version, found.labels, found.taints) == ("1.34", {"a": "b"}, (("a", "b", "NoSchedule"),))
    assert "0123456789abcdef" not in repr(found)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("kubernetes.io/role=x,node-role.kubernetes.io/x=y,a.k8s.io/b=c", {}, id="Kubernetes' own"),
        pytest.param(
            "node.kubernetes.io/a=b,x.kubelet.kubernetes.io/c=d,topology.kubernetes.io/zone=z",
            {"node.kubernetes.io/a": "b", "x.kubelet.kubernetes.io/c": "d", "topology.kubernetes.io/zone": "z"},
            id="those of them that are for kubelets",
        ),
    ],
)
def test_labels_that_a_kubelet_may_not_set_are_left_out(text: str, kept: dict[str, str]) -> None:
    """A kubelet that is given one of the removed labels does not start."""
    assert allowed_labels(text) == kept


def test_own_kubelet_annotation_is_the_same_in_simulator_and_local_cluster() -> None:
    """The two packages do not import each other, so both define the annotation."""
    assert kubelet.OWN_KUBELET == localcluster.OWN_KUBELET
