"""Tests of reading the metadata of a VM as the startup script of node groups does; the simulator does not import it."""

from __future__ import annotations

import re

import pytest

from provisioner.nodegroups.api import names
from provisioner.nodegroups.bootstrap import metadata
from provisioner.nodegroups.bootstrap.metadata import startup_script
from rehearsal.simulators.compute.guests.startup import (
    allowed_labels,
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
    ("text", "kept"),
    [
        pytest.param("a=b,c.example/d=", {"a": "b", "c.example/d": ""}, id="labels"),
        pytest.param("kubernetes.io/role=x,node-role.kubernetes.io/x=y,a.k8s.io/b=c", {}, id="Kubernetes' own"),
        pytest.param(
            "node.kubernetes.io/a=b,x.kubelet.kubernetes.io/c=d,topology.kubernetes.io/zone=z",
            {"node.kubernetes.io/a": "b", "x.kubelet.kubernetes.io/c": "d", "topology.kubernetes.io/zone": "z"},
            id="those of them that are for kubelets",
        ),
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
