"""Whatever is in a field of a pod or its owner: an answer without an exception, whose patch applies and is complete.

Real reviews and workloads, in which some values are replaced by any JSON, or taken away.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.admission.review import Answer, Request
from provisioner.environment.first_pod import problems_of_first_pod
from provisioner.environment.pods import read_pod
from provisioner.environment.review import review_pod
from provisioner.kube.fields import MalformedObject
from provisioner.settings.webhook import WebhookSettings
from tests.environment.test_first_pod import job, jobset, leader_worker_set, pod_template, replicated, stateful_set
from tests.support.patches import apply_patch

_Path = tuple[Any, ...]
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
#: What is read of a pod.
_READ = (
    ("metadata", "name"),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("metadata", "ownerReferences"),
    ("spec", "nodeSelector"),
    ("spec", "subdomain"),
    ("spec", "initContainers"),
    ("spec", "containers"),
)
_GONE = object()
_OTHERS: list[Any] = [_GONE, None, True, False, 0, 1, -1, 3, 2**31 - 1, 2**70, 0.5, [], {}, [[]], [None], [{}]]
_OTHERS += ["", "0", "4", "x", "true", "enabled", "localhost", "é\n\x00", "9" * 400]
_OTHERS += [{"a/b~c": 1}, {"name": []}, {"google.com/tpu": 4}]
#: One number makes an example, which is faster than a draw for each choice, and cannot differ from run to run.
_NUMBERS = st.integers(0, 2**32 - 1)


def paths(value: Any, at: _Path = ()) -> list[_Path]:
    """List the paths of all values in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([at] if at else []), *(path for step, child in inner for path in paths(child, (*at, step)))]


def replaced(value: Any, changes: list[tuple[_Path, Any]]) -> Any:
    """Return a copy with other values at some paths, or none."""
    found = copy.deepcopy(value)
    for path, new in changes:
        parent = found
        for step in path[:-1]:
            parent = parent[step] if isinstance(parent, dict) and step in parent else _item(parent, step)
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
            if new is not _GONE:
                parent[path[-1]] = copy.deepcopy(new)
        elif isinstance(parent, list) and isinstance(path[-1], int) and path[-1] < len(parent):
            parent[path[-1]] = None if new is _GONE else copy.deepcopy(new)
    return found


def _item(parent: Any, step: Any) -> Any:
    """Return an item of a list; nothing where an earlier change took it away."""
    return parent[step] if isinstance(parent, list) and isinstance(step, int) and step < len(parent) else None


def changes(chance: random.Random, value: Any, read: tuple[_Path, ...] = ()) -> list[tuple[_Path, Any]]:
    """Choose up to three changes of a value."""
    among = [path for path in paths(value) if not read or path[:2] in read or len(path) == 1]
    return [(chance.choice(among), chance.choice(_OTHERS)) for _ in range(chance.randrange(4))]


def some_settings(chance: random.Random) -> WebhookSettings:
    """Choose settings with which pods get variables."""
    injection = chance.choice(["all", "opt-in"])
    return WebhookSettings(injection=injection, topology=chance.random() < 0.5)


def containers(pod: Any) -> list[Any]:
    """Return all that may be a container, in order."""
    spec = pod["spec"] if isinstance(pod.get("spec"), dict) else {}
    parts = [spec.get(each) for each in ("initContainers", "containers")]
    return [each for part in parts if isinstance(part, list) for each in part]


def with_chips(pod: dict[str, Any]) -> set[str]:
    """Return the pointers of the containers that request chips."""
    try:
        read = read_pod(pod, "ml")
    except MalformedObject:
        return set()
    return {each.pointer for each in read.containers} if read is not None else set()


def answer(pod: dict[str, Any], owner: dict[str, Any] | None, settings_: WebhookSettings) -> Answer:
    """Review a pod."""
    request = Request(operation="CREATE", kind="Pod", namespace="ml", object=pod)
    return review_pod(request, lambda _: owner, settings_)


@settings(max_examples=250)
@given(number=_NUMBERS)
def test_any_pod_and_owner_get_an_answer(number: int) -> None:
    """Containers without chips, and all but the variables, stay as they are; and once is enough."""
    chance = random.Random(number)
    case = chance.choice(_CASES)
    pod, owner = case["review"]["request"]["object"], next(iter(case["owners"].values()), None)
    pod = replaced(pod, changes(chance, pod, _READ))
    owner = owner and replaced(owner, changes(chance, owner))
    settings_ = some_settings(chance)
    first = answer(pod, owner, settings_)
    after = apply_patch(pod, first.patch)
    assert {"/".join(each.path.split("/")[:4]) for each in first.patch} <= with_chips(pod)
    for was, is_ in zip(containers(pod), containers(after), strict=True):
        if was != is_:
            assert {**is_, "env": None} == {**was, "env": None}
    again = answer(after, owner, settings_)
    assert again.patch == ()
    assert set(again.warnings) <= set(first.warnings)


@settings(max_examples=150)
@given(number=_NUMBERS)
def test_any_workload_is_judged_by_its_first_pod(number: int) -> None:
    """Its kind stays, or nothing would be read of it."""
    chance = random.Random(number)
    workload = chance.choice(_WORKLOADS)
    kept = {key: workload[key] for key in ("apiVersion", "kind")}
    raw = {**replaced(workload, changes(chance, workload)), **kept}
    assert all(isinstance(each, str) for each in problems_of_first_pod(raw, some_settings(chance), "ml"))


def test_real_reviews_are_patched() -> None:
    """Else the tests above would change nothing."""
    patched = [case for case in _CASES if "patch" in case["answer"]["response"]]
    assert len(patched) >= 12
