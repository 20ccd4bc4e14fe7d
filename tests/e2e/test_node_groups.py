"""Tests of the controller of node groups on a real API server; simulated machines join with the controller's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from generators import crds
from provisioner import constants
from provisioner.kube.api import connect
from provisioner.kube.protocol import collection_path, object_path
from provisioner.nodegroups import app
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import API_VERSION, GROUP, Kind
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.bootstrap.tokens import Token
from provisioner.nodegroups.device_plugin import VERSION
from provisioner.nodegroups.reading import API_ROOT, APPS_ROOT
from provisioner.settings.nodegroups import NodeGroupSettings
from rehearsal.demos import Rehearsal
from rehearsal.simulators.compute import ComputeSimulator
from rehearsal.simulators.compute.guests import joining
from rehearsal.simulators.compute.guests.client import Access, HttpsClient
from tests.deploy.kit import Recorder, Right, kubeconfig_of_service_account, rights, try_events
from tests.deploy.mainjob import used_rights
from tests.e2e.kit import NodeGroups, remove_node_group_kinds
from tests.support.compute import QUICK_JOINS
from tests.support.localcluster import Kube
from tests.support.nodegroup_controller import PROJECT, SPEC
from tests.support.waiting import wait_for

pytestmark = pytest.mark.e2e

_NAMESPACE, _GROUP = "slices", "slice"
_PLUGIN = object_path("daemonsets", "tpu-device-plugin", namespace="kube-system", root=APPS_ROOT)
_SECRETS = f"{collection_path('secrets', namespace=tokens.NAMESPACE)}?labelSelector={names.GROUP_NAME}"
_RIGHTS = Path(__file__).parents[2] / "deploy" / "nodegroups" / "rbac"
#: Folders of manifests: the rights, and the device plugin, whose pods need the ServiceAccount in its folder.
_MANIFESTS = (_RIGHTS, _RIGHTS.parent / "device-plugin")
_PATIENCE_SECONDS = 90.0
#: Settings without the address of the API server: the machines get the address that the cluster publishes.
_SETTINGS = NodeGroupSettings(
    project_id=PROJECT,
    device_plugin_image="registry.example.com/plugin:1",
    device_plugin_agent_image="",
    device_plugin_log_image="",
)


class World:
    """The control plane, a Compute Engine, and a controller in a thread."""

    def __init__(
        self, rehearsal: Rehearsal, admin: Kube, compute: ComputeSimulator, recorder: Recorder, kubeconfig: Path
    ) -> None:
        self.rehearsal, self.admin, self.compute, self.kubeconfig = rehearsal, admin, compute, kubeconfig
        self.recorder = recorder
        self.controller: NodeGroups | None = None

    def start(self, **changes: Any) -> NodeGroups:
        settings = replace(_SETTINGS, gce_endpoint=self.compute.url, **changes)
        self.controller = NodeGroups(self.kubeconfig, settings, leader_elect=True)
        return self.controller

    def stop(self) -> None:
        if self.controller is not None:
            self.controller.stop()
            self.controller = None

    def group(self) -> dict[str, Any]:
        return self.admin.get(object_path("tpunodegroups", _GROUP, namespace=_NAMESPACE, root=API_ROOT))

    def ready(self) -> dict[str, Any]:
        conditions = self.group().get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == "Ready"), {})

    def is_ready(self) -> bool:
        return self.ready().get("status") == "True"

    def nodes(self) -> list[dict[str, Any]]:
        found = self.admin.get(f"{collection_path('nodes')}?labelSelector={names.GROUP_NAME}={_GROUP}")
        return list(found["items"])

    def indexes(self) -> list[str]:
        return sorted(raw["metadata"]["labels"].get(names.WORKER_INDEX, "") for raw in self.nodes())

    def left(self) -> list[str]:
        paths = [collection_path(kind.plural, root=API_ROOT) for kind in Kind]
        paths += [_SECRETS, f"{collection_path('nodes')}?labelSelector={names.GROUP_NAME}"]
        found = [item["metadata"]["name"] for path in paths for item in self.admin.get(path)["items"]]
        return found + [machine.name for machine in self.compute.machines]


def install(rehearsal: Rehearsal, directory: Path, server: str) -> Path:
    """Grant the controller its rights; return a kubeconfig whose only credential is its ServiceAccount token."""
    rehearsal.create_namespace(constants.DEFAULT_NAMESPACE)
    for folder in _MANIFESTS:
        rehearsal.kubectl("apply", "--server-side", "-k", str(folder))
    return kubeconfig_of_service_account(rehearsal, directory / "kubeconfig", name=app.LEASE_NAME, server=server)


@pytest.fixture
def world(rehearsal: Rehearsal, tmp_path: Path) -> Iterator[World]:
    """Yield a cluster without the CRDs, and a Compute Engine without resources."""
    admin = Kube(rehearsal.cluster.kubeconfig, tmp_path)
    rehearsal.create_namespace(_NAMESPACE)
    with ComputeSimulator(QUICK_JOINS) as compute, Recorder(rehearsal).recording() as recorder:
        world = World(rehearsal, admin, compute, recorder, install(rehearsal, tmp_path, recorder.url))
        yield world
        world.stop()
    remove_node_group_kinds(rehearsal)
    admin.call("DELETE", _PLUGIN)
    for folder in _MANIFESTS:
        rehearsal.kubectl("delete", "-k", str(folder))
    admin.close()


@pytest.mark.timeout(300)
def test_group_is_served_from_its_create_to_its_complete_delete(world: World) -> None:
    """The test also shows that the rights in the manifests suffice, and that the controller uses each right."""
    controller = world.start()
    wait_for(lambda: any("404" in problem for problem in controller.loop.problems()), what="the definitions are missed")
    world.rehearsal.kubectl("apply", "--server-side", "-k", str(crds.FOLDER))
    wait_for(lambda: controller.loop.problems() == (), what="the definitions are found", seconds=_PATIENCE_SECONDS)
    body = {
        "apiVersion": "tpu.google.com/v1alpha1",
        "kind": "TPUNodeGroup",
        "metadata": {"name": _GROUP},
        "spec": SPEC,
    }
    world.admin.create(collection_path("tpunodegroups", namespace=_NAMESPACE, root=API_ROOT), body)
    wait_for(world.is_ready, what="the group is ready", seconds=_PATIENCE_SECONDS)
    shown = world.rehearsal.kubectl("get", "tpunodegroups", _GROUP, f"--namespace={_NAMESPACE}")
    assert "4/4" in shown
    wait_for(lambda: world.admin.get(_SECRETS)["items"] == [], what="the tokens are deleted", seconds=_PATIENCE_SECONDS)
    wait_for(lambda: world.indexes() == ["0", "1", "2", "3"], what="each node has its number")
    taint = {"key": constants.TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
    assert all(taint in raw["spec"]["taints"] for raw in world.nodes())
    # Another client removes a taint, because only then does the controller use its right to read one node.
    world.admin.merge(object_path("nodes", world.nodes()[0]["metadata"]["name"]), {"spec": {"taints": None}})
    wait_for(lambda: all(taint in raw["spec"].get("taints", []) for raw in world.nodes()), what="it is back")
    version = world.admin.get(_PLUGIN)["metadata"]["annotations"][VERSION]

    world.stop()
    world.start(device_plugin_image="registry.example.com/plugin:2")
    wait_for(
        lambda: world.admin.get(_PLUGIN)["metadata"]["annotations"][VERSION] != version,
        what="the device plugin is applied anew",
        seconds=_PATIENCE_SECONDS,
    )
    images = [container["image"] for container in world.admin.get(_PLUGIN)["spec"]["template"]["spec"]["containers"]]
    assert images == ["registry.example.com/plugin:2"]

    node = world.nodes()[0]["metadata"]["name"]
    resources = {"limits": {constants.TPU_RESOURCE: "4"}, "requests": {constants.TPU_RESOURCE: "4"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train"},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        },
    }
    world.admin.create(collection_path("pods", namespace=_NAMESPACE), pod)
    group = object_path("tpunodegroups", _GROUP, namespace=_NAMESPACE, root=API_ROOT)
    assert world.admin.call("DELETE", group).status_code == 200
    wait_for(lambda: world.left() == [], what="nothing is left", seconds=_PATIENCE_SECONDS)
    wait_for(lambda: world.admin.call("GET", _PLUGIN).status_code == 404, what="the device plugin is gone")
    metrics = world.controller.loop.metrics.exposition().decode() if world.controller is not None else ""
    assert 'result="refused"' not in metrics
    events = world.admin.get(collection_path("events", namespace=_NAMESPACE))["items"]
    reasons = {event["reason"] for event in events if event["involvedObject"]["kind"] == "TPUNodeGroup"}
    assert {"Provisioned", "Cleanup"} <= reasons
    # A repeated Event needs the right to patch Events, but no Event is repeated in this short run.
    try_events(connect(str(world.kubeconfig)))
    everything = yaml.safe_load_all(world.rehearsal.kubectl("kustomize", str(_RIGHTS)))
    documents = [document for document in everything if document["metadata"]["name"] == app.LEASE_NAME]
    # No request uses this right: the API server checks it when the controller approves a certificate request.
    approve = Right("certificates.k8s.io", "signers", "approve", "", tokens.SIGNER)
    assert used_rights(world.recorder, documents) == rights(documents) - {approve}


class Intruder:
    """A user with the token of a machine, as in its startup script, who tries to get the nodes of other machines."""

    def __init__(self, world: World, token: Token) -> None:
        self.world, self.token = world, token
        address = urlsplit(world.admin.url)
        authority = world.rehearsal.cluster.ca_certificate_pem.decode()
        self.access = Access(host=str(address.hostname), port=int(address.port or 0), authority_pem=authority)
        self.key = joining.new_key(token.machine)

    def ask(self, key: joining.NewKey) -> str:
        client = HttpsClient(replace(self.access, token=self.token.value))
        made = client.call("POST", joining.REQUESTS, joining.request_body(key.request_pem))
        client.close()
        return f"{joining.REQUESTS}/{made['metadata']['name']}"

    def register(self, body: dict[str, Any]) -> None:
        path = self.ask(self.key)
        issued = wait_for(lambda: joining.certificate_of(self.world.admin.get(path)), what="the certificate is issued")
        client = HttpsClient(replace(self.access, certificate_pem=issued, key_pem=self.key.key_pem))
        client.call("POST", "/api/v1/nodes", body)
        client.close()


@pytest.mark.timeout(300)
def test_token_of_a_machine_gets_a_certificate_only_for_its_own_node(world: World) -> None:
    """Requests for other nodes are not approved. A Node with another machine's provider ID gets no worker index."""
    world.rehearsal.kubectl("apply", "--server-side", "-k", str(crds.FOLDER))
    definitions = [f"customresourcedefinitions/{kind.plural}.{GROUP}" for kind in Kind]
    world.rehearsal.kubectl("wait", "--for=condition=Established", "--timeout=30s", *definitions)
    world.compute.world.change_settings({"boot_seconds": 3600.0})
    world.start()
    body = {"apiVersion": API_VERSION, "kind": "TPUNodeGroup", "metadata": {"name": _GROUP}, "spec": SPEC}
    world.admin.create(collection_path("tpunodegroups", namespace=_NAMESPACE, root=API_ROOT), body)
    secrets = wait_for(
        lambda: len(found := world.admin.get(_SECRETS)["items"]) == 4 and found, what="each machine has a token"
    )
    own, other, *_ = filter(None, map(tokens.parse_secret, secrets))
    intruder = Intruder(world, own)
    refused = [intruder.ask(joining.new_key(name)) for name in ("control-plane-1", other.machine)]
    place = f"gce://{PROJECT}/{SPEC['nodeLocation']}/{other.machine}"
    intruder.register(
        {
            "metadata": {"name": own.machine, "labels": {names.GROUP_NAMESPACE: _NAMESPACE, names.GROUP_NAME: _GROUP}},
            "spec": {"providerID": place},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
    )
    # The controller saw these requests before the request that it approved, and left them without a status.
    assert [world.admin.get(path).get("status", {}) for path in refused] == [{}, {}]

    world.compute.world.change_settings({"boot_seconds": 0.2})
    group = object_path("tpunodegroups", _GROUP, namespace=_NAMESPACE, root=API_ROOT)
    assert world.admin.call("DELETE", group).status_code == 200
    wait_for(lambda: world.left() == [own.machine], what="the group is gone", seconds=_PATIENCE_SECONDS)
    assert names.WORKER_INDEX not in world.nodes()[0]["metadata"]["labels"]
    world.admin.call("DELETE", object_path("nodes", own.machine))
