"""Calls webhooks with reviews, without a server."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from provisioner.admission.hooks import Begin, Hook, begin_of
from provisioner.admission.review import READ_BYTES

#: Versions of AdmissionReview, which have the same fields.
VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


def answer_of(begin: Begin, body: bytes) -> Response:
    content = begin(body, time.perf_counter())
    return content if isinstance(content, Response) else content(READ_BYTES)


def answer_to(hooks: Iterable[Hook], path: str, review: dict[str, Any]) -> dict[str, Any]:
    """Post a review to the webhook at a path; return the response with the decoded patch."""
    [hook] = [hook for hook in hooks if hook.path == path]
    content = answer_of(begin_of(hook, lambda *_: None), json.dumps(review).encode())
    assert content.status_code == 200
    answer: dict[str, Any] = json.loads(content.body)
    if "patch" in answer["response"]:
        answer["response"]["patch"] = json.loads(base64.b64decode(answer["response"]["patch"]))
    return answer
