"""Golden answers to reviews of pods with IPUs, in both versions of the AdmissionReview API.

A file of tests/data/partitions has the variables of the webhook server, the review, and its answer with the patch
decoded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.admission.review import Operation
from provisioner.settings import SettingsError
from provisioner.settings.webhook import read_webhook_settings
from provisioner.webhook.app import make_hooks
from tests.support import reviews
from tests.support.kube import FakeKube
from tests.support.patches import apply_patch

CASES = sorted(Path("tests/data/partitions").glob("*.json"))


def answer_to(variables: dict[str, str], review: dict[str, Any]) -> dict[str, Any]:
    hooks = make_hooks(read_webhook_settings(variables), FakeKube(), {})
    return reviews.answer_to(hooks, "/mutate/partitions", review)


@pytest.mark.parametrize("version", reviews.VERSIONS)
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_review_gets_the_golden_answer(path: Path, version: str) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    review, want = ({**case[part], "apiVersion": version} for part in ("review", "answer"))
    assert answer_to(case["variables"], review) == want
    # A second review of the patched pod, for example after another webhook, changes nothing.
    patch = [Operation(**operation) for operation in want["response"].get("patch", [])]
    after = apply_patch(review["request"]["object"], patch)
    again = answer_to(case["variables"], {**review, "request": {**review["request"], "object": after}})
    assert "patch" not in again["response"]
    assert again["response"].get("status") == want["response"].get("status")


def test_at_least_13_golden_cases_exist() -> None:
    assert len(CASES) >= 13


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        ({"IPU_INJECTION": "compatible"}, "IPU_INIT_IMAGE is not set"),
        ({"IPU_INJECTION": "some"}, "IPU_INJECTION='some'"),
        ({"IPU_API_URL": "http://it/path"}, "without a path"),
        ({"IPU_API_CA_CONFIG_MAP": "bundle"}, "IPU_API_URL is not an https URL"),
        ({"IPU_API_CA_CONFIG_MAP": "bundle", "IPU_API_URL": "http://it"}, "IPU_API_URL is not an https URL"),
        ({"IPU_API_CA_CONFIG_MAP": "a/b", "IPU_API_URL": "https://it"}, "the name of a ConfigMap"),
        ({"IPU_RDMA_RESOURCE": "hca"}, "the name of an extended resource"),
    ],
)
def test_invalid_ipu_settings_are_rejected(variables: dict[str, str], want: str) -> None:
    with pytest.raises(SettingsError, match=want):
        read_webhook_settings(variables)


def test_init_container_calls_the_service_unless_ipu_api_url_is_set() -> None:
    case = json.loads(Path("tests/data/partitions/compatible.json").read_text(encoding="utf-8"))

    def command(**more: str) -> list[str]:
        patch = answer_to({**case["variables"], **more}, case["review"])["response"]["patch"]
        (containers,) = [operation["value"] for operation in patch if operation["path"] == "/spec/initContainers"]
        found: list[str] = containers[0]["command"]
        return found

    assert "--server=http://tpu-provisioner-partitions.ipus.svc" in command(POD_NAMESPACE="ipus")
    url = "https://ipus.example:8443"
    assert f"--server={url}" in command(IPU_API_URL=url)
    assert not [argument for argument in command(IPU_API_URL=url) if argument.startswith("--ca-file")]
