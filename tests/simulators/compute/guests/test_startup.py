"""Tests of reading the metadata of a VM as the startup script of node groups does; the simulator does not import it."""

from __future__ import annotations

import re

import pytest

from provisioner.nodegroups.api import names
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.bootstrap.metadata import startup_script
from rehearsal.simulators.compute.guests.client import JoinError
from rehearsal.simulators.compute.guests.startup import (
    allowed_labels,
    allowed_taints,
    joins,
    provider_id,
    read_invitation,
)
from rehearsal.simulators.compute.names import ZONES, Scope
from rehearsal.simulators.compute.records import MachineView
from tests.support.kubeadm_cluster import HOST, PORT, SCRIPT, TOKEN, KubeadmCluster

CLUSTER = KubeadmCluster()
HASHES = CLUSTER.metadata()["kubeadm-ca-hash"]


def machine(**changes: str) -> MachineView:
    """Return a running VM with the metadata of the cluster and these changes."""
    return MachineView(
        scope=Scope("proj", ZONES, "us-east5-a"),
        name="slice-x1b2",
        number=7,
        status="RUNNING",
        boots=1,
        address="10.128.0.9",
        metadata=CLUSTER.metadata(**changes),
        group="slice",
        machine_type="ct6e-standard-4t",
        chips=4,
    )


def test_invitation_contains_all_values_of_the_metadata() -> None:
    """The port is the default one, and only labels that a kubelet may set are kept."""
    found = read_invitation(machine(kube_taints="a=b:NoSchedule"))
    assert found.taints == (("a", "b", "NoSchedule"),)
    assert (found.host, found.port, found.token, found.kubernetes_version) == (HOST, PORT, TOKEN, "1.34")
    assert found.ca_hashes == (HASHES,)
    assert found.labels == {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}
    assert provider_id(machine()) == "gce://proj/us-east5-a/slice-x1b2"
    assert TOKEN[7:] not in repr(found)


@pytest.mark.parametrize(
    ("changes", "host", "port"),
    [
        pytest.param({"kubeadm_control_plane_port": "443"}, HOST, 443, id="another port"),
        pytest.param({"kubeadm_control_plane_ip": "[2001:db8::1]"}, "2001:db8::1", PORT, id="IPv6"),
        pytest.param(
            {"kubeadm_control_plane_port": "443", "startup_script": SCRIPT.replace("kubeadm-control-plane-port", "")},
            HOST,
            PORT,
            id="a port that the script does not read",
        ),
    ],
)
def test_invitation_has_the_address_and_port_of_the_api_server(changes: dict[str, str], host: str, port: int) -> None:
    """Brackets of an IPv6 address are removed."""
    found = read_invitation(machine(**changes))
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"kubeadm_join_token": ""}, "there is no kubeadm-join-token in the metadata yet", id="no token"),
        pytest.param({"kubeadm_join_token": "abcdef"}, "kubeadm-join-token in the metadata cannot be read", id="half"),
        pytest.param({"kubeadm_control_plane_ip": ""}, "there is no kubeadm-control-plane-ip", id="no address"),
        pytest.param({"kubeadm_ca_hash": "sha256:12"}, "kubeadm-ca-hash in the metadata cannot be read", id="no hash"),
        pytest.param({"kubeadm_kubernetes_version": "latest"}, "kubeadm-kubernetes-version in", id="no version"),
        pytest.param({"kubeadm_control_plane_port": "https"}, "kubeadm-control-plane-port in", id="no port"),
    ],
)
def test_missing_or_invalid_value_of_the_metadata_is_named(changes: dict[str, str], problem: str) -> None:
    """The machine then waits for other metadata."""
    with pytest.raises(JoinError, match=problem):
        read_invitation(machine(**changes))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("a=b,c.example/d=", {"a": "b", "c.example/d": ""}, id="labels"),
        pytest.param("a,=b,a=b c,-a=b", {}, id="what are none"),
        pytest.param("kubernetes.io/role=x,node-role.kubernetes.io/x=y,a.k8s.io/b=c", {}, id="Kubernetes' own"),
        pytest.param(
            "node.kubernetes.io/a=b,x.kubelet.kubernetes.io/c=d,topology.kubernetes.io/zone=z",
            {"node.kubernetes.io/a": "b", "x.kubelet.kubernetes.io/c": "d", "topology.kubernetes.io/zone": "z"},
            id="those of them that are for kubelets",
        ),
        pytest.param("mykubernetes.io/a=b", {"mykubernetes.io/a": "b"}, id="a domain that only ends alike"),
    ],
)
def test_labels_that_a_kubelet_may_not_set_are_left_out(text: str, kept: dict[str, str]) -> None:
    """A kubelet with such labels would not start."""
    assert allowed_labels(text) == kept


def test_metadata_keys_are_those_of_the_startup_script_of_node_groups() -> None:
    """The simulator and the startup script define them independently, so this test detects differences."""
    script = startup_script()
    keys = [metadata.TOKEN, metadata.ADDRESS, metadata.PORT, metadata.CA_HASH, metadata.VERSION]
    keys += [names.KUBE_LABELS, names.KUBE_TAINTS]
    assert sorted(set(re.findall(r"kubeadm-[a-z-]+[a-z]|kube-labels|kube-taints", SCRIPT))) == sorted(keys)
    assert all(key in script for key in keys)
    assert joins(machine(startup_script=script))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("", (), id="none"),
        pytest.param(
            "c.example/d=e:NoSchedule,a:NoExecute,b=:PreferNoSchedule",
            (("c.example/d", "e", "NoSchedule"), ("a", "", "NoExecute"), ("b", "", "PreferNoSchedule")),
            id="taints",
        ),
        pytest.param("a=b,a=b:Never,-a=b:NoSchedule,a=b=c:NoSchedule", (), id="none that are taints"),
    ],
)
def test_invalid_taints_are_left_out(text: str, kept: tuple[tuple[str, str, str], ...]) -> None:
    """A kubelet with such a taint would not start."""
    assert allowed_taints(text) == kept
