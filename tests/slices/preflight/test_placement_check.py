"""Tests of the findings about the placement policy, and about namespaces without its label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.admission.review import Request as Review
from provisioner.kube import errors
from provisioner.kube.protocol import JsonObject, Request, collection_path, object_path
from provisioner.slices.marking import review_placement
from provisioner.slices.observe import DEVICES
from provisioner.slices.preflight import Finding, Status
from provisioner.slices.preflight.in_kubernetes import (
    ADMISSION_GROUP,
    PLACEMENT_POLICY,
    PLACEMENT_WEBHOOKS,
)
from provisioner.slices.preflight.in_placement import check_placement
from provisioner.workloads import JOBSET
from tests.support.kube import FakeKube
from tests.support.objects import pod_spec, raw_jobset
from tests.support.patches import apply_patch
from tests.support.settings import settings

_ROOT = f"/apis/{ADMISSION_GROUP}/v1"
_MANIFEST = Path("deploy/components/placement/placement-policy.yaml")
_OPTIONAL = _MANIFEST.parents[1] / "placement-all-namespaces" / "kustomization.yaml"


class Cluster(FakeKube):
    """A fake API server that adds marks to the pods of dry-run creates, as the policy does."""

    def __init__(self, *, marks: bool = True) -> None:
        super().__init__()
        self._marks = marks

    def exchange(self, request: Request) -> JsonObject:
        if request.method == "POST" and request.path.endswith("/pods"):
            assert request.query == {"dryRun": "All"}
            with self._call("POST", request.path):
                body = request.body or {}
            namespace = request.path.split("/")[-2]
            review = Review(kind="Pod", operation="CREATE", namespace=namespace, object=body)
            patch = review_placement(review, assigned=True).patch
            patched: JsonObject = apply_patch(body, patch if self._marks else ())
            return patched
        return super().exchange(request)

    def namespace(self, name: str, label: str = "", *, jobset: bool = True, chips: int = 4) -> None:
        labels = {constants.PLACEMENT: label} if label else {}
        self.put_object(object_path("namespaces", name), {"metadata": {"name": name, "labels": labels}})
        if jobset:
            path = object_path("jobsets", "train", namespace=name, root=JOBSET.root)
            self.put_object(path, raw_jobset(namespace=name, pod=pod_spec(chips=chips)))

    def install(self, *documents: dict[str, Any]) -> Cluster:  # type: ignore[override]
        for document in documents or tuple(yaml.safe_load_all(_MANIFEST.read_text(encoding="utf-8"))):
            kind = document["kind"]
            plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
            self.put_object(object_path(plural, document["metadata"]["name"], root=_ROOT), document)
        return self


def _check(cluster: FakeKube, **changes: Any) -> Finding:
    return check_placement(cluster, settings(**changes))


def test_policy_that_marks_a_trial_is_ok_if_namespaces_with_workloads_are_labelled() -> None:
    """A trial is a dry-run create of a pod, which shows whether the policy adds marks."""
    cluster = Cluster().install()
    cluster.namespace("research", constants.PLACEMENT_ASSIGN)
    cluster.namespace("web", jobset=False)
    cluster.namespace("cpu", chips=0)
    finding = _check(cluster)
    assert finding.status is Status.OK
    assert finding.message == (
        f"the policy {PLACEMENT_POLICY} marks pods, as a trial in namespace research shows; the provisioner assigns "
        "node pools in 1 of 3 namespaces"
    )


def test_identity_without_the_right_to_create_pods_makes_no_trial() -> None:
    cluster = Cluster(marks=False).install()
    cluster.namespace("research", constants.PLACEMENT_ASSIGN)
    cluster.denied = {("create", "pods")}
    finding = _check(cluster)
    assert (finding.status, finding.message) == (
        Status.OK,
        f"the policy {PLACEMENT_POLICY} is installed; the provisioner assigns node pools in 1 of 1 namespaces",
    )
    assert not [call for call in cluster.calls if call.path.endswith("/pods")]


def test_policy_that_does_not_mark_a_trial_is_reported() -> None:
    cluster = Cluster(marks=False).install()
    cluster.namespace("research", constants.PLACEMENT_ASSIGN)
    finding = _check(cluster)
    assert finding.status is Status.WARNING
    assert "a trial pod of a group in namespace research is not marked" in finding.message


def test_trial_that_fails_is_reported() -> None:
    cluster = Cluster().install()
    cluster.namespace("research", constants.PLACEMENT_ASSIGN)
    cluster.fail("POST", "/pods$", errors.Forbidden("exceeded quota", status=403))
    assert "a trial in namespace research failed: exceeded quota" in _check(cluster).message


@pytest.mark.parametrize("missing", ["policy", "binding", "kind"])
def test_missing_policy_is_reported_with_its_remedy(missing: str) -> None:
    cluster = Cluster()
    policy, binding = yaml.safe_load_all(_MANIFEST.read_text(encoding="utf-8"))
    if missing == "kind":
        for plural in ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"):
            cluster.uninstall(f"{_ROOT}/{plural}")
    else:
        cluster.install(binding if missing == "policy" else policy)
    finding = _check(cluster)
    assert finding.status is Status.WARNING
    assert "no admission policy assigns node pools" in finding.message
    assert "Enable the component placement; before Kubernetes 1.36" in finding.advice


def _webhook(*names: str) -> tuple[str, JsonObject]:
    path = object_path("mutatingwebhookconfigurations", PLACEMENT_WEBHOOKS, root=_ROOT)
    return path, {"webhooks": [{"name": f"{name}.tpu-provisioner.example"} for name in names]}


def test_webhook_replaces_the_policy() -> None:
    cluster = Cluster()
    cluster.put_object(*_webhook("environment", "placement"))
    cluster.namespace("research", constants.PLACEMENT_ASSIGN)
    finding = _check(cluster)
    assert finding.status is Status.OK
    assert f"the webhook of {PLACEMENT_WEBHOOKS} marks pods" in finding.message
    cluster.put_object(*_webhook("environment"))
    assert "no admission policy" in _check(cluster).message


def test_webhook_without_the_right_to_create_pods_is_reported_as_not_tried() -> None:
    """Private GKE clusters need a firewall rule to reach the webhook, so the advice names its port."""
    cluster = Cluster()
    cluster.put_object(*_webhook("placement"))
    cluster.namespace("research", constants.PLACEMENT_ASSIGN)
    cluster.denied = {("create", "pods")}
    finding = _check(cluster)
    assert finding.status is Status.WARNING
    assert f"the webhook of {PLACEMENT_WEBHOOKS} is installed (not tried): this identity" in finding.message
    assert "kubectl run trial" in finding.advice
    assert "TCP 8443" in finding.advice


def test_missing_label_is_reported_for_the_webhook_with_the_setting_instead() -> None:
    cluster = Cluster()
    cluster.put_object(*_webhook("placement"))
    cluster.namespace("research")
    finding = _check(cluster)
    assert "is installed (not tried), but research" in finding.message
    assert finding.message.endswith("unless PLACEMENT_NAMESPACES=all is set")


def test_namespaces_with_workloads_that_lack_the_label_are_named() -> None:
    cluster = Cluster().install()
    cluster.namespace("research", constants.PLACEMENT_ASSIGN)
    for number in range(6):
        cluster.namespace(f"team-{number}", constants.PLACEMENT_OFF if number == 0 else "")
    cluster.namespace("idle", jobset=False)
    finding = _check(cluster)
    assert finding.status is Status.WARNING
    assert "but team-0, team-1, team-2, team-3, team-4 and 1 more (of 6 namespaces with workloads)" in finding.message
    assert finding.advice.endswith(
        "kubectl label namespace team-0 team-1 team-2 team-3 team-4 tpu-provisioner/placement=assign"
    )
    assert "lack" not in _check(cluster, namespaces=("research", "idle")).message


def test_policy_of_all_namespaces_needs_no_label() -> None:
    policy, binding = yaml.safe_load_all(_MANIFEST.read_text(encoding="utf-8"))
    (patch,) = yaml.safe_load(_OPTIONAL.read_text(encoding="utf-8"))["patches"]
    *_, replaced = yaml.safe_load(patch["patch"])
    policy["spec"]["variables"][0]["expression"] = replaced["value"]
    cluster = Cluster().install(policy, binding)
    cluster.namespace("research")
    assert _check(cluster).status is Status.OK
    cluster.namespace("vision", constants.PLACEMENT_OFF)
    assert "but vision (of 1 namespaces" in _check(cluster).message


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"{_ROOT}/mutatingadmissionpolicies", "not known: no. Grant permission to get the policy"),
        ("/namespaces$", "is installed, but no. Grant permission to list namespaces"),
    ],
    ids=["policy", "namespaces"],
)
def test_placement_that_may_not_be_read_is_unknown(path: str, words: str) -> None:
    cluster = Cluster().install()
    cluster.fail("GET", path, errors.Forbidden("no"))
    finding = _check(cluster)
    assert finding.status is Status.WARNING
    assert words in str(finding)


@pytest.mark.parametrize(
    ("resource", "driver", "reported"),
    [
        ("example.com/tpu", constants.TPU_DRIVER_NAME, True),
        ("example.com/any", "", True),
        ("example.com/gpu", "gpu.example.com", False),
        (constants.TPU_RESOURCE, constants.TPU_DRIVER_NAME, False),
        ("", constants.TPU_DRIVER_NAME, False),
    ],
    ids=["another name", "devices of all drivers", "another driver", "name of chips", "no name"],
)
def test_device_class_of_tpus_with_another_resource_name_is_reported(
    resource: str, driver: str, reported: bool
) -> None:
    """Admission does not mark pods that request this resource, so they may run on pools of other slices."""
    cluster = Cluster().install()
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}] if driver else []
    spec = {"selectors": selectors, **({"extendedResourceName": resource} if resource else {})}
    path = object_path("deviceclasses", "fast", root=DEVICES.root)
    cluster.put_object(path, {"metadata": {"name": "fast"}, "spec": spec})
    finding = _check(cluster)
    assert ("DeviceClasses fast offer TPUs" in finding.message) is reported
    assert finding.status is (Status.WARNING if reported else Status.OK)
    # A missing right is reported by the check of rights, so this check remains OK.
    cluster.fail("GET", "/deviceclasses$", errors.Forbidden("no"))
    assert _check(cluster).status is Status.OK


def test_kind_that_is_not_served_has_no_workloads() -> None:
    cluster = Cluster().install()
    cluster.namespace("research")
    cluster.uninstall(collection_path("jobsets", root=JOBSET.root))
    assert _check(cluster).status is Status.OK
