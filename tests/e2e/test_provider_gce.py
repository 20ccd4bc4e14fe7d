"""Tests of workloads without GKE, with the rights of the component provider-gce and a simulated Compute Engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import crds
from provisioner import constants
from provisioner.kube.errors import NotFound
from provisioner.kube.protocol import collection_path, object_path
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind
from provisioner.settings.nodegroups import NodeGroupSettings
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.suppliers.nodegroup.supplier import API_ROOT, groups_path
from rehearsal.demos import Rehearsal
from rehearsal.simulators.compute import ComputeSimulator
from rehearsal.simulators.compute.faults import SPOT, Fault, FaultKind
from rehearsal.simulators.compute.records import MachineView
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, SERVICE_ACCOUNT, kubeconfig_of_service_account
from tests.e2e.conftest import Shared, own_ground
from tests.e2e.kit import PATIENCE_SECONDS, Ground, NodeGroups, ready, remove_node_group_kinds, told
from tests.support.compute import QUICK_JOINS
from tests.support.nodegroup_controller import PROJECT, SPEC, ZONE

pytestmark = pytest.mark.e2e

_PLUGIN = object_path("daemonsets", "tpu-device-plugin", namespace="kube-system", root="/apis/apps/v1")
#: ServiceAccount of the device plugin, the only object of its manifests that the tests need.
_PLUGIN_ACCOUNT = "tpu-device-plugin-sa"
#: Kinds of the manifests that grant rights, or on which rights are granted.
_KINDS = ("ClusterRole", "ClusterRoleBinding", "ConfigMap", "Role", "RoleBinding", "ServiceAccount")
_SETTINGS = {
    "PROVIDER": "gce",
    "GCP_PROJECT_ID": PROJECT,
    "GCP_ZONE": ZONE,
    "GCP_CLUSTER_LOCATION": "us-east5",
    "NODE_GROUP_IMAGES": f"*=projects/{PROJECT}/global/images/u",
    "NODE_GROUP_CAPACITY_WAIT": "3s",
}
_CHIPS = {"key": constants.TPU_RESOURCE, "operator": "Exists"}
_SPOT = {"key": constants.SPOT, "operator": "Exists"}
_SLICE: dict[str, Any] = {
    "accelerator": "tpu-v6e-slice",
    "topology": "4x4",
    "parallelism": 4,
    "tolerations": (_CHIPS, _SPOT),
}


class Cluster:
    """A cluster without GKE, with the provisioner and the controller of node groups."""

    def __init__(self, ground: Ground, compute: ComputeSimulator, kubeconfig: Path) -> None:
        self.ground, self.compute, self._kubeconfig = ground, compute, kubeconfig
        #: Last known state of all machines that were seen, by name.
        self.seen: dict[str, MachineView] = {}
        self._controller: NodeGroups | None = None

    def start(self) -> None:
        settings = NodeGroupSettings(
            project_id=PROJECT, device_plugin_image="registry.example.com/plugin:1", gce_endpoint=self.compute.url
        )
        self._controller = NodeGroups(self.ground.rehearsal.cluster.kubeconfig, settings, leader_elect=False)
        process = self.ground.provisioner(environment=_SETTINGS, kubeconfig=self._kubeconfig, wait=False)
        self.wait(lambda: ready(process)[0] == 200, "the provisioner is ready")

    def stop(self) -> None:
        for process in self.ground.provisioners:
            process.kill()
        if self._controller is not None:
            self._controller.stop()

    def groups(self, name: str, *, label: str = constants.POOL_JOBSET_NAME) -> set[str]:
        """Return the names of the node groups with a label, by default those of a JobSet."""
        found = self.ground.rehearsal.objects(groups_path(constants.DEFAULT_NAMESPACE), labelSelector=f"{label}={name}")
        return {raw["metadata"]["name"] for raw in found}

    def machines(self, jobset: str) -> list[MachineView]:
        return [machine for machine in self.seen.values() if labels(machine).get(constants.POOL_JOBSET_NAME) == jobset]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; record the machines in Compute Engine during the wait."""

        def looked() -> object:
            self.seen |= {machine.name: machine for machine in self.compute.machines}
            return condition()

        self.ground.wait(looked, what)

    def await_completed(self, name: str) -> None:
        def completed() -> bool:
            state = self.ground.state(name)
            assert state != "Failed"
            return state == "Completed"

        self.wait(completed, f"JobSet {name} is completed")
        self.wait(lambda: not self.groups(name), f"the slices of JobSet {name} are given back")

    def left(self) -> list[str]:
        objects = self.ground.rehearsal.objects
        found = [raw for kind in Kind for raw in objects(collection_path(kind.plural, root=API_ROOT))]
        found += objects(collection_path("secrets", namespace="kube-system"), labelSelector=names.GROUP_NAME)
        found += objects(collection_path("nodes"), labelSelector=names.GROUP_NAME)
        resources = [resource.name for resource in self.compute.world.resources()]
        return [raw["metadata"]["name"] for raw in found] + resources


def labels(machine: MachineView) -> dict[str, str]:
    return names.parse_labels(machine.metadata.get(names.KUBE_LABELS, ""))


@pytest.fixture(scope="module")
def cluster(
    rehearsal: Rehearsal, shared: Shared, leaderworkersets: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Yield a cluster on the control plane of all tests; its simulated GKE is not called."""
    directory = tmp_path_factory.mktemp("gce")
    shared.stop()
    with (
        own_ground(rehearsal, shared) as ground,
        _rights(rehearsal, directory) as kubeconfig,
        ComputeSimulator(QUICK_JOINS) as compute,
    ):
        cluster = Cluster(ground, compute, kubeconfig)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@contextlib.contextmanager
def _rights(rehearsal: Rehearsal, directory: Path) -> Iterator[Path]:
    """Install the CRDs of node groups and the provisioner's rights; yield its kubeconfig."""
    rehearsal.create_namespace(constants.DEFAULT_NAMESPACE)
    rehearsal.kubectl("create", "serviceaccount", _PLUGIN_ACCOUNT, "--namespace=kube-system")
    rehearsal.kubectl("apply", "--server-side", "-k", str(crds.FOLDER))
    made = tools.built(directory, "provider-gce", resources=["base"])
    manifests = yaml.safe_dump_all([document for document in made if document["kind"] in _KINDS])
    rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=manifests)
    machines = str(DEPLOY / "nodegroups" / "rbac" / "machines.yaml")
    rehearsal.kubectl("apply", "--server-side", "-f", machines)
    try:
        yield kubeconfig_of_service_account(rehearsal, directory / "provisioner", name=SERVICE_ACCOUNT)
    finally:
        rehearsal.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=manifests)
        rehearsal.kubectl("delete", "-f", machines)
        rehearsal.kubectl("delete", "serviceaccount", _PLUGIN_ACCOUNT, "--namespace=kube-system")
        remove_node_group_kinds(rehearsal)
        # The controller deletes the device plugin with the last group, so it still exists only after a failed test.
        with contextlib.suppress(NotFound):
            rehearsal.api.delete(_PLUGIN)


@pytest.mark.timeout(300)
def test_jobsets_get_slices_that_are_deleted_after_their_end(cluster: Cluster) -> None:
    """A slice whose first choice is out of stock gets its second choice, and a user's own TPUNodeGroup is kept."""
    ground, api = cluster.ground, cluster.ground.api
    by_hand = object_path("tpunodegroups", "by-hand", namespace=constants.DEFAULT_NAMESPACE, root=API_ROOT)
    body = {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {"name": "by-hand"},
        "spec": {**SPEC, "topology": "2x2"},
    }
    api.post(groups_path(constants.DEFAULT_NAMESPACE), body)

    ground.apply("train", replicas=2, run_for="1s", **_SLICE)
    cluster.wait(lambda: len(cluster.groups("train")) == 2, "each slice gets a TPUNodeGroup")
    cluster.await_completed("train")
    machines = cluster.machines("train")
    assert (len(machines), len({labels(machine)[constants.NODE_POOL] for machine in machines})) == (8, 2)

    cluster.compute.inject(Fault(kind=FaultKind.STOCKOUT, model=SPOT))
    ground.apply("fallback", run_for="1s", annotations={constants.CAPACITY: "spot, on-demand"}, **_SLICE)
    cluster.await_completed("fallback")
    assert {labels(machine)[constants.PROVISIONING] for machine in cluster.machines("fallback")} == {"standard"}
    words = " ".join(told(ground, EventReason.CREATION_FAILED, "fallback"))
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in words

    conditions = api.get(by_hand)["status"]["conditions"]
    assert [condition["status"] for condition in conditions if condition["type"] == "Ready"] == ["True"]
    api.delete(by_hand)
    ground.wait(lambda: cluster.left() == [], "nothing is left", PATIENCE_SECONDS)
