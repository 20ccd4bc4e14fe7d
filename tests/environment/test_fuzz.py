"""A review with any JSON in fields of the pod or its owner gets an answer, and a second review adds nothing.

The cases are real reviews and workloads in which up to three parts are replaced by any JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from provisioner.admission.review import Answer, Request
from provisioner.environment.pods import read_pod
from provisioner.environment.review import problems_of_first_pod, review_pod
from provisioner.kube.fields import MalformedObject
from provisioner.settings.webhook import WebhookSettings
from tests.environment.test_first_pod import job, jobset, leader_worker_set, pod_template, replicated, stateful_set
from tests.support.any_json import spoilt
from tests.support.patches import apply_patch

_CASES = [
    json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path("tests/data/admission").glob("*-1*-*.json"))
]
_CASES += [
    json.loads(Path(f"tests/data/admission/{name}.json").read_text(encoding="utf-8"))
    for name in (
        "gke-3-a-leader-worker-set",
        "gke-5-localhost-in-a-slice-of-several-hosts",
        "mistake-6-values-of-users-stay",
        "mistake-7-only-containers-with-chips",
        "recorded-job",
        "recorded-jobset",
        "variables-of-a-jobset",
        "variables-of-two-containers",
        "wish-by-the-stateful-set",
    )
]
_WORKLOADS = [
    stateful_set(pod_template(), 8, ordinals={"start": 2}),
    stateful_set(pod_template()),
    job(pod_template()),
    jobset(replicated("a", pod_template(), replicas=2), replicated("b", pod_template()), network={"subdomain": "s"}),
    leader_worker_set(leaderTemplate=pod_template(), subGroupPolicy={"subGroupSize": 2}),
    {**stateful_set(pod_template()), "kind": "Deployment"},
]


def some_settings(data: st.DataObject) -> WebhookSettings:
    return WebhookSettings(injection=data.draw(st.sampled_from(["all", "opt-in"])), topology=data.draw(st.booleans()))


def containers(pod: Any) -> list[Any]:
    spec = pod["spec"] if isinstance(pod.get("spec"), dict) else {}
    parts = [spec.get(key) for key in ("initContainers", "containers")]
    return [container for part in parts if isinstance(part, list) for container in part]


def with_chips(pod: dict[str, Any]) -> set[str]:
    try:
        read = read_pod(pod, "ml")
    except MalformedObject:
        return set()
    return {container.pointer for container in read.containers} if read is not None else set()


def answer(pod: dict[str, Any], owner: dict[str, Any] | None, settings_: WebhookSettings) -> Answer:
    request = Request(operation="CREATE", kind="Pod", namespace="ml", object=pod)
    return review_pod(request, lambda _: owner, settings_)


@given(data=st.data())
def test_any_pod_and_owner_get_an_answer(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(_CASES))
    pod = spoilt(data, case["review"]["request"]["object"])
    owner = spoilt(data, next(iter(case["owners"].values()), None))
    settings_ = some_settings(data)
    first = answer(pod, owner, settings_)
    after = apply_patch(pod, first.patch)
    assert {"/".join(operation.path.split("/")[:4]) for operation in first.patch} <= with_chips(pod)
    for was, is_ in zip(containers(pod), containers(after), strict=True):
        if was != is_:
            assert {**is_, "env": None} == {**was, "env": None}
    again = answer(after, owner, settings_)
    assert again.patch == ()
    assert set(again.warnings) <= set(first.warnings)


@given(data=st.data())
def test_check_of_any_workload_ends_without_an_exception(data: st.DataObject) -> None:
    """The fields `apiVersion` and `kind` are kept, because objects of unknown kinds are not read."""
    workload = data.draw(st.sampled_from(_WORKLOADS))
    kept = {key: workload[key] for key in ("apiVersion", "kind")}
    raw = {**spoilt(data, workload), **kept}
    assert all(isinstance(problem, str) for problem in problems_of_first_pod(raw, some_settings(data), "ml"))


def test_at_least_12_recorded_reviews_get_a_patch() -> None:
    """Without cases that get a patch, the tests above would test nothing."""
    patched = [case for case in _CASES if "patch" in case["answer"]["response"]]
    assert len(patched) >= 12
