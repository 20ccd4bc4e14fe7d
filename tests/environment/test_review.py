"""Reviews are answered immediately, after a read of the owner, or later if the answer takes long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.admission.review import Answer, Request
from provisioner.environment.review import OwnerError, judge_pod, review_pod
from provisioner.settings.webhook import WebhookSettings

ALL = WebhookSettings(injection="all")
V5E_4X4 = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
}
LWS = "leaderworkerset.sigs.k8s.io"
ASKS = {"tpu-provisioner.cloud.google.com/inject": "enabled"}


def pod(containers: int = 1, *, selector: dict[str, str] | None = None, size: int = 0) -> dict[str, Any]:
    """Return a pod of a StatefulSet, or, with a `size`, of a group of a LeaderWorkerSet."""
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
    metadata: dict[str, Any] = {"name": "train-3", "ownerReferences": [reference]}
    if size:
        metadata["labels"] = {**ASKS, f"{LWS}/name": "train", f"{LWS}/worker-index": "3", f"{LWS}/group-index": "0"}
        metadata["annotations"] = {f"{LWS}/size": str(size)}
    container = {"resources": {"limits": {"google.com/tpu": "4"}}}
    spec = {"nodeSelector": selector or {}, "subdomain": "train", "containers": [container] * containers}
    return {"metadata": metadata, "spec": spec}


def request(raw: dict[str, Any]) -> Request:
    return Request(operation="CREATE", kind="Pod", namespace="ml", object=raw)


@pytest.mark.parametrize(
    ("containers", "topology", "is_long"),
    [
        pytest.param(1, "8x8x12", False, id="192 names"),
        pytest.param(2, "8x8x12", False, id="two containers, each of which has the names of both"),
        pytest.param(4, "8x8x12", True, id="four containers, and more than a thousand names"),
        pytest.param(1, "16x16x16", True, id="more than a thousand names"),
        pytest.param(1, "", True, id="nobody knows how many"),
    ],
)
def test_answer_with_many_host_names_is_deferred(containers: int, topology: str, *, is_long: bool) -> None:
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
        "cloud.google.com/gke-tpu-topology": topology,
    }
    raw = pod(containers, selector=selector if topology else None, size=1024)
    for container in raw["spec"]["containers"]:
        container["resources"]["limits"]["google.com/tpu"] = 4 // containers
    assert callable(judge_pod(request(raw), lambda *_: None, ALL)) == is_long
    assert review_pod(request(raw), lambda _: pytest.fail("nothing has to be read"), ALL).patch


@pytest.mark.parametrize(
    ("changes", "wish"),
    [({"kind": "Job"}, "enabled"), ({"operation": "UPDATE"}, "enabled"), ({}, "enabled"), ({}, "disabled")],
    ids=["of a Job", "of a pod that is there", "turned off", "of a pod that wants none"],
)
def test_review_that_requests_no_injection_is_admitted_unchanged(changes: dict[str, str], wish: str) -> None:
    settings = WebhookSettings(injection="off") if not changes and wish == "enabled" else ALL
    raw = pod()
    raw["metadata"]["labels"] = dict.fromkeys(ASKS, wish)
    assert judge_pod(replace(request(raw), **changes), lambda *_: None, settings) == Answer()


@pytest.mark.parametrize(
    ("wrong", "injection", "labels", "is_denied"),
    [
        pytest.param("warn", "all", {}, False, id="warnings only"),
        pytest.param("deny", "all", {}, True, id="all pods get variables"),
        pytest.param("deny", "opt-in", ASKS, True, id="the pod asks"),
        pytest.param("deny", "opt-in", {}, False, id="only the owner may ask"),
    ],
)
def test_unreadable_owner_is_reported_without_a_patch(
    wrong: str, injection: str, labels: dict[str, str], *, is_denied: bool
) -> None:
    """In the past, pods of StatefulSets that requested no variables were rejected while the owner could not be read."""
    settings = WebhookSettings(injection=injection, wrong=wrong)
    (raw := pod(selector=V5E_4X4))["metadata"]["labels"] = labels

    def read(_: object) -> None:
        raise OwnerError("away")

    for reads, why in ((read, "away"), (lambda _: None, "it does not exist")):
        answer = review_pod(request(raw), reads, settings)
        assert bool(answer.denied) == is_denied
        assert (answer.denied or answer.warnings[0]) == (
            f"Pod ml/train-3: StatefulSet ml/train could not be read ({why}), so its TPU variables cannot be determined"
        )
        assert not answer.patch


def test_notice_for_the_owner_is_equal_for_all_its_pods() -> None:
    def noted(wrong: str, **metadata: Any) -> Any:
        raw = pod(selector=V5E_4X4)
        raw["metadata"] |= metadata
        settings = WebhookSettings(injection="all", wrong=wrong)
        return review_pod(request(raw), lambda _: {"metadata": {"uid": "u"}}, settings).notice

    found = noted("warn")
    assert (found.about.kind, found.about.namespace, found.about.name, found.about.uid) == (
        *("StatefulSet", "ml", "train", "u"),
    )
    assert found.message.startswith("A pod is created without TPU variables: StatefulSet ml/train has no spec.service")
    assert noted("warn", name="train-2") == found
    assert noted("deny").message.startswith("A pod is rejected: ")
    # There is no notice for a pod without an owner: the user who creates it gets the warnings in the answer.
    assert noted("warn", ownerReferences=[]) is None


@pytest.mark.parametrize("lacks", ["", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"])
def test_pod_with_all_worker_variables_is_never_rejected(lacks: str) -> None:
    """The rule includes pods whose owner cannot be read, and pods of an incomplete slice."""
    raw = pod(selector=V5E_4X4)
    env = [{"name": name, "value": "x"} for name in ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES") if name != lacks]
    raw["spec"]["containers"][0] = {**raw["spec"]["containers"][0], "env": env}
    settings = WebhookSettings(injection="all", wrong="deny")
    odd = {"metadata": {"uid": "u"}, "spec": {"replicas": 5, "serviceName": "s"}}

    def unreadable(_: object) -> dict[str, Any]:
        raise OwnerError("it is away")

    for read in (unreadable, lambda _: None, lambda _: odd):
        assert bool(review_pod(request(raw), read, settings).denied) == bool(lacks)


@pytest.mark.parametrize("kind", ["StatefulSet", "Job", "LeaderWorkerSet"])
def test_pod_without_selector_is_unchanged_unless_it_or_its_stateful_set_asks(kind: str) -> None:
    """Without a selector, each pod may be a server on one VM that its ComputeClass chooses."""
    settings = WebhookSettings(injection="all", wrong="deny")

    def answer(asks: dict[str, str], of_owner: dict[str, str]) -> Answer:
        raw = pod(size=4 if kind == "LeaderWorkerSet" else 0)
        raw["metadata"]["labels"] = {**raw["metadata"].get("labels", {}), **dict.fromkeys(ASKS, ""), **asks}
        if kind == "Job":
            raw["metadata"]["ownerReferences"][0] |= {"apiVersion": "batch/v1", "kind": kind}
        owner = {"metadata": {"uid": "u", "labels": of_owner}, "spec": {"replicas": 4, "serviceName": "s"}}
        return review_pod(request(raw), lambda _: owner, settings)

    assert answer({}, {}) == Answer()
    assert answer(ASKS, {}) != Answer()
    assert (answer({}, ASKS) != Answer()) == (kind == "StatefulSet")


@pytest.mark.parametrize("asks", [True, False])
def test_pod_with_malformed_chips_gets_a_warning_only_if_it_asks(*, asks: bool) -> None:
    raw = pod()
    raw["metadata"]["labels"] = ASKS if asks else {}
    raw["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] = "4.5"
    assert bool(review_pod(request(raw), lambda _: None, ALL).warnings) == asks


def test_pod_of_a_multislice_needs_its_variables_unless_turned_off() -> None:
    """GKE's webhook sets the worker variables of pods of JobSets, but not the variables of the multislice."""
    raw = pod(selector=V5E_4X4)
    raw["metadata"] |= {
        "labels": {"jobset.sigs.k8s.io/jobset-name": "js"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}],
    }
    env = [{"name": name, "value": "x"} for name in ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")]
    raw["spec"]["containers"][0] = {**raw["spec"]["containers"][0], "env": env}
    settings = WebhookSettings(injection="all", wrong="deny")
    assert "does not exist" in review_pod(request(raw), lambda _: None, settings).denied
    raw["spec"]["containers"][0]["env"].append({"name": "MEGASCALE_NUM_SLICES", "value": ""})
    assert review_pod(request(raw), lambda _: None, settings) == Answer()
