"""Reviews as API servers send them, with the expected answers, for each case of gke-tpu-env-injector.

A file of tests/data/admission has the settings, the owners as the API server shows them, the review and its answer (the
patch decoded), and the variables that each container has afterwards. Files named recorded-* were sent by a control
plane; the others have the same form.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.admission.review import Operation
from provisioner.settings.webhook import WebhookSettings
from provisioner.webhook.app import make_hooks
from tests.support import reviews
from tests.support.kube import FakeKube
from tests.support.patches import apply_patch

CASES = sorted(Path("tests/data/admission").glob("*.json"))


def answer_to(case: dict[str, Any], review: dict[str, Any]) -> dict[str, Any]:
    """Post a review to the hooks of the server; return the answer with the patch decoded."""
    kube = FakeKube()
    for path, owner in case["owners"].items():
        kube.put_object(path, owner)
    hooks = make_hooks(WebhookSettings(**case["settings"]), kube, {})
    return reviews.answer_to(hooks, "/mutate", review)


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of each container: a value, or its source."""
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    return {
        container["name"]: {one["name"]: one.get("value", one.get("valueFrom")) for one in container.get("env") or []}
        for container in containers
    }


@pytest.mark.parametrize("version", reviews.VERSIONS)
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_review_of_each_version_gets_the_expected_answer(path: Path, version: str):
    case = json.loads(path.read_text(encoding="utf-8"))
    review, want = ({**case[part], "apiVersion": version} for part in ("review", "answer"))
    answer = answer_to(case, review)
    assert answer == want
    response, pod = answer["response"], review["request"]["object"]
    assert response["uid"] == review["request"]["uid"]
    after = apply_patch(pod, [Operation(**operation) for operation in response.get("patch", [])])
    if case["variables"] is not None:
        assert environment(after) == case["variables"]
    # The patched pod may be reviewed again: by a second webhook, or after another webhook has changed it.
    again = answer_to(case, {**review, "request": {**review["request"], "object": after}})
    assert "patch" not in again["response"]
    # A complete pod causes no further warnings.
    assert again["response"].get("warnings") in (None, response.get("warnings"))


def test_every_known_mistake_has_a_case():
    """The cases cover the injector's mistakes that a review can show, its table of variables, and facts about GKE."""
    names = {path.stem for path in CASES}
    assert {f"mistake-{number}" for number in range(1, 11)} <= {"-".join(name.split("-")[:2]) for name in names}
    assert any(name.startswith("variables-") for name in names)
    assert any(name.startswith("wish-") for name in names)
    assert {f"gke-{number}" for number in (1, 2, 3, 4, 5, 8)} <= {"-".join(name.split("-")[:2]) for name in names}
