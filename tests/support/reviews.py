"""Reviews without a webhook server, and their versions."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from provisioner.admission.hooks import Hook, endpoint_of
from tests.support.endpoints import answer_of

#: Both have the same fields.
VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


def answer_to(hooks: Iterable[Hook], path: str, review: dict[str, Any]) -> dict[str, Any]:
    """Post a review to the webhook at a path; return the answer with the patch decoded."""
    [hook] = [each for each in hooks if each.path == path]
    content = answer_of(endpoint_of(hook, lambda *_: None), json.dumps(review).encode())
    assert content.status == 200
    answer: dict[str, Any] = json.loads(content.body)
    if "patch" in answer["response"]:
        answer["response"]["patch"] = json.loads(base64.b64decode(answer["response"]["patch"]))
    return answer
