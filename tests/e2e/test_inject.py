"""Manifests that `inject` printed, on the real control plane: the pods' labels tell what the webhook would tell."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.admission.patch import apply_patch
from provisioner.admission.review import Request
from provisioner.cli import main
from provisioner.cli.exits import ExitCode
from provisioner.environment import Injection, OwnerKey, Settings
from provisioner.environment.manifest import JOB_NAME_VARIABLE
from provisioner.environment.review import review_pod
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.demos import Rehearsal
from tests.e2e.kit import PATIENCE_SECONDS
from tests.environment.test_manifest import job, jobset, pod_template, replicated, stateful_set
from tests.support.environment import started
from tests.support.waiting import wait_for

pytestmark = pytest.mark.e2e

_NAMESPACE = "injected"
_PODS = 4 + 4 + 8 + 4


def template() -> dict[str, Any]:
    """Return a template that the API server takes."""
    found = pod_template(labels={"app": "train"})
    for each in found["spec"]["containers"]:
        each["image"] = "none"
    return found


def manifests() -> list[dict[str, Any]]:
    """Return a workload of each kind; nobody makes node pools for them."""
    once = {**template(), "spec": {**template()["spec"], "restartPolicy": "Never"}}
    found = [
        stateful_set(template(), selector={"matchLabels": {"app": "train"}}, podManagementPolicy="Parallel"),
        job(once),
        jobset(replicated("a", once, replicas=2), replicated("b", once)),
    ]
    for each in found:
        each["metadata"]["labels"] = {constants.DISABLE: "true"}
    return found


def without(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as it would be if its template had not been changed."""
    found = copy.deepcopy(pod)
    for each in found["spec"]["containers"]:
        each["env"] = [one for one in each["env"] if not one["name"].startswith(("TPU_", "MEGASCALE_"))]
    return found


def test_pods_of_printed_manifests_know_what_the_webhook_would_tell_them(
    rehearsal: Rehearsal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through kubectl, and the controllers of StatefulSets, Jobs and JobSets."""
    rehearsal.create_namespace(_NAMESPACE)
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests()}), encoding="utf-8")
    assert main(["inject", "-f", str(file)]) == ExitCode.OK
    printed = capsys.readouterr().out
    kubectl = ("--namespace", _NAMESPACE)
    rehearsal.kubectl(*kubectl, "apply", "-f", "-", stdin=printed)
    pods_path = collection_path("pods", namespace=_NAMESPACE)
    try:
        wait_for(lambda: len(rehearsal.objects(pods_path)) == _PODS, what=f"{_PODS} pods", seconds=PATIENCE_SECONDS)
        for pod in rehearsal.objects(pods_path):
            # Lists leave out what their items are.
            pod |= {"apiVersion": "v1", "kind": "Pod"}
            assert_as_by_the_webhook(rehearsal, pod)
    finally:
        rehearsal.kubectl(*kubectl, "delete", "--wait=false", "-f", "-", stdin=printed)
        wait_for(lambda: not rehearsal.objects(pods_path), what="no pods are left", seconds=PATIENCE_SECONDS)


def assert_as_by_the_webhook(rehearsal: Rehearsal, pod: dict[str, Any]) -> None:
    """Compare what a pod's container starts with with what the webhook would give it."""

    def read(key: OwnerKey) -> dict[str, Any]:
        return rehearsal.api.get(object_path(key.resource, key.name, namespace=key.namespace, root=key.root))

    bare = without(pod)
    request = Request(operation="CREATE", kind="Pod", namespace=_NAMESPACE, object=bare)
    answer = review_pod(request, read, Settings(injection=Injection.ALL))
    assert not answer.warnings
    [want] = started(apply_patch(bare, answer.patch))
    [found] = started(pod)
    assert {name: value for name, value in found.items() if name != JOB_NAME_VARIABLE} == want
    assert want["TPU_WORKER_HOSTNAMES"].split(",")[int(want["TPU_WORKER_ID"])].startswith(f"{pod['spec']['hostname']}.")
