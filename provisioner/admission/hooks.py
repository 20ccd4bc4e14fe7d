"""A webhook: a review in, a review out, whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import structlog

from provisioner.admission.review import (
    Answer,
    Deferred,
    NotAReview,
    Notice,
    Request,
    encode_answer,
    encode_rejection,
    parse_review,
)
from provisioner.runtime.endpoints import Endpoint, Later
from provisioner.runtime.pages import Content
from provisioner.runtime.repeats import Repeats, place_of

_log = structlog.get_logger(__name__)
_JSON = "application/json"


#: Counts what became of a review: the webhook, one of admitted, patched, warned, denied, malformed and failed, and the
#: seconds that it took.
Observer = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """What answers the reviews of one path."""

    name: str
    path: str
    answer: Callable[[Request], Answer | Deferred]
    #: What is answered where that fails.
    strict: bool = False
    #: As of `Endpoint`: it takes no longer than reading the review does.
    quick: bool = False
    #: Says to people what an answer notes, unless the review is of a trial.
    tell: Callable[[Notice], None] = lambda _: None


def endpoint_of(hook: Hook, reviewed: Observer, *, clock: Callable[[], float] = time.perf_counter) -> Endpoint:
    """Return the endpoint of a webhook: any body gets a valid answer."""
    repeats = Repeats()

    def begin(body: bytes, since: float) -> Content | Later:
        try:
            request = parse_review(body)
        except NotAReview as error:
            reviewed(hook.name, "malformed", clock() - since)
            return Content(body=encode_rejection(str(error)), media_type=_JSON, status=400)
        # The objects need not wait along.
        head = replace(request, object={}, old_object={})

        def end(judge: Callable[[], Answer]) -> Content:
            try:
                outcome, given = _judged(judge(), head)
                encoded = encode_answer(head, given)
                if given.notice is not None and not head.dry_run:
                    hook.tell(given.notice)
            except Exception as error:  # noqa: BLE001 - the edge of the process: the API server gets an answer
                outcome, encoded = "failed", encode_answer(head, _failed(hook, head, error, repeats))
            reviewed(hook.name, outcome, clock() - since)
            return Content(body=encoded, media_type=_JSON)

        try:
            given = hook.answer(request)
        except Exception as error:  # noqa: BLE001 - as above
            return end(partial(_raise, error))
        return partial(end, given) if callable(given) else end(lambda: given)

    return Endpoint(path=hook.path, begin=begin, quick=hook.quick)


def _raise(error: Exception) -> NoReturn:
    raise error


def _failed(hook: Hook, request: Request, error: Exception, repeats: Repeats) -> Answer:
    """Log a failure unless it repeats; return what is answered then."""
    left_out = repeats.left_out(place_of(error))
    if left_out is not None:
        about = {"hook": hook.name, "kind": request.kind, "namespace": request.namespace}
        _log.error("webhook.failed", **about, left_out=left_out, exc_info=error)
    text = f"tpu-provisioner: the webhook {hook.name} failed, see its log"
    return Answer(denied=text) if hook.strict else Answer(warnings=(f"{text}; nothing was changed",))


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
