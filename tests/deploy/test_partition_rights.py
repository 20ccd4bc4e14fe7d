"""Tests that the manifests grant the controller of partitions exactly the rights that its calls need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from provisioner.kube.events import EventRecorder
from provisioner.kube.lease import LeaseElector
from provisioner.model.workloads import ObjectRef
from provisioner.partitions import names
from provisioner.partitions.observe import make_ledger_watch, make_pod_watch
from provisioner.slices.preflight.in_kubernetes import Right
from tests.deploy.kit import DEPLOY, NAMESPACE, granted_by, only, right_of, rights
from tests.support.kube import Call, FakeKube
from tests.support.partitions import SYSTEM, Controller
from tests.support.partitions_api import Ground, ReviewingKube

_FOLDER = DEPLOY / "partitions"
_METHODS = {"WATCH": "GET"}


@pytest.fixture(name="documents", scope="module")
def _documents() -> list[dict[str, Any]]:
    files = ("cluster-role.yaml", "role.yaml", "service-account.yaml")
    return [document for file in files for document in yaml.safe_load_all((_FOLDER / file).read_text(encoding="utf-8"))]


@pytest.fixture(name="ground")
def _ground() -> Iterator[Ground]:
    ground = Ground().start()
    yield ground
    ground.end()


def _lead(api: FakeKube) -> None:
    elector = LeaseElector(
        api,
        namespace=SYSTEM,
        identity="trial",
        on_started=lambda: None,
        on_lost=lambda: None,
        leases=(names.LEASE_NAME,),
    )
    elector.step()
    assert elector.is_leader
    elector.release()


def _watch(api: FakeKube) -> None:
    watches = (make_pod_watch(api, lambda: None), make_ledger_watch(api, SYSTEM))
    for watch in watches:
        watch.start()
    assert api.wait_for_streams(len(watches))
    for watch in watches:
        watch.stop()


def _serve_a_pod(controller: Controller) -> None:
    seconds = 0.0
    recorder = EventRecorder(controller.kube, instance="trial", clock=lambda: seconds)
    recorder.start()
    controller.loop.reporter = replace(controller.loop.reporter, recorder=recorder)
    made = controller.create_pod("train")
    controller.rounds(12)
    assert not controller.is_gated("train")
    assert made in controller.vipu.partitions
    controller.delete("train")
    controller.rounds(30, seconds=10.0)
    assert not controller.vipu.partitions
    # An Event is patched only if it is repeated minutes later, so the clock of the recorder is advanced by 400 s.
    about = ObjectRef(api_version="v1", kind="Pod", namespace="ml", name="train", uid="uid-train")
    for _ in range(2):
        recorder.emit(about, "Trial", "trial")
        assert recorder.flush(timeout_seconds=5.0)
        seconds += 400.0
    recorder.stop()
    assert not recorder.dropped_total


def _answer_requests(ground: Ground) -> None:
    pod = ground.add_pod()
    made = ground.place(pod)
    assert ground.ask(pod).status == 200
    ground.kube.rights.add(("ada", "get", pod.namespace))
    ada = ground.kube.token_of_person("ada")
    assert ground.send("GET", f"{names.ROOT}/{made}", ada).status == 200
    assert ground.send("DELETE", f"{names.ROOT}/{made}", ground.token(pod)).status == 202


def _needed(call: Call) -> Right:
    query = {**call.query, "watch": "true"} if call.method == "WATCH" else call.query
    found = right_of(_METHODS.get(call.method, call.method), f"{call.path}?{urlencode(query)}")
    assert found is not None
    return replace(found, namespace=NAMESPACE) if found.namespace == SYSTEM else found


def test_rights_of_partitions_equal_the_needs_of_their_calls(documents: list[dict[str, Any]], ground: Ground) -> None:
    controller = Controller()
    _lead(controller.kube)
    _watch(controller.kube)
    _serve_a_pod(controller)
    _answer_requests(ground)
    assert isinstance(ground.kube, ReviewingKube)
    reviews = [Call(method="POST", path=path) for path in ground.kube.reviews]
    needed = {_needed(call) for call in (*controller.kube.calls, *ground.kube.calls, *reviews)}
    granted = rights(documents)
    assert [str(right) for right in sorted(needed) if granted_by(granted, right) is None] == []
    assert {granted_by(granted, right) for right in needed} == granted


def test_roles_of_partitions_are_bound_only_to_the_service_account_of_the_deployment(
    documents: list[dict[str, Any]],
) -> None:
    deployment = yaml.safe_load((_FOLDER / "deployment.yaml").read_text(encoding="utf-8"))
    account = only(documents, "ServiceAccount")["metadata"]
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]
    for kind in ("ClusterRole", "Role"):
        binding = only(documents, f"{kind}Binding")
        assert binding["roleRef"]["kind"] == kind
        assert binding["roleRef"]["name"] == only(documents, kind)["metadata"]["name"]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        ]
