"""A webhook: a review in, a review out, whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from provisioner.admission.review import (
    Answer,
    Deferred,
    NotAReview,
    Request,
    encode_answer,
    encode_rejection,
    parse_review,
)
from provisioner.runtime.endpoints import Endpoint, Later
from provisioner.runtime.pages import Content

_log = structlog.get_logger(__name__)
_JSON = "application/json"


class Observer(Protocol):
    """Counts what became of reviews."""

    def reviewed(self, hook: str, outcome: str, seconds: float) -> None:
        """One of: admitted, patched, warned, denied, malformed, failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """What answers the reviews of one path; called in threads."""

    name: str
    path: str
    answer: Callable[[Request], Answer | Deferred]
    #: What is answered where that fails.
    strict: bool = False


def endpoint_of(hook: Hook, observer: Observer, *, clock: Callable[[], float] = time.perf_counter) -> Endpoint:
    """Return the endpoint of a webhook: any body gets a valid answer."""

    def begin(body: bytes) -> Content | Later:
        began = clock()
        try:
            request = parse_review(body)
        except NotAReview as error:
            observer.reviewed(hook.name, "malformed", clock() - began)
            return Content(body=encode_rejection(str(error)), media_type=_JSON, status=400)
        # The objects need not wait along.
        head = replace(request, object={}, old_object={})

        def go_on(judge: Callable[[], Answer | Deferred]) -> Content | Later:
            found = _answered(hook, head, judge)
            if callable(found):
                return Later(answer=lambda: go_on(found))
            outcome, encoded = found
            observer.reviewed(hook.name, outcome, clock() - began)
            return Content(body=encoded, media_type=_JSON)

        return go_on(lambda: hook.answer(request))

    return Endpoint(path=hook.path, begin=begin)


def _answered(hook: Hook, request: Request, judge: Callable[[], Answer | Deferred]) -> tuple[str, bytes] | Deferred:
    """Return what becomes of an object and the answer that says so, or the rest of the judgement."""
    try:
        given = judge()
        if callable(given):
            return given
        outcome, given = _judged(given, request)
        return outcome, encode_answer(request, given)
    except Exception:  # noqa: BLE001 - the edge of the process: whatever fails, the API server gets an answer
        _log.exception("webhook.failed", hook=hook.name, kind=request.kind, namespace=request.namespace)
        text = f"tpu-provisioner: the webhook {hook.name} failed, see its log"
        failed = Answer(denied=text) if hook.strict else Answer(warnings=(f"{text}; nothing was changed",))
        return "failed", encode_answer(request, failed)


def _judged(given: Answer, request: Request) -> tuple[str, Answer]:
    """Name what becomes of an object; keep of the answer what applies."""
    if given.denied:
        return "denied", given
    if request.operation == "DELETE" and given.patch:
        # There is nothing to change any more.
        given = replace(given, patch=())
    if given.warnings:
        return "warned", given
    return ("patched" if given.patch else "admitted"), given
