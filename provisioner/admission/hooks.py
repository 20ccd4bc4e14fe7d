"""Decodes and answers the reviews of webhooks, in the event loop or in lanes of threads.

The event loop answers small bodies for `quick` hooks, unless the answer is deferred (`review.Deferred`). Other reviews
wait in four lanes with threads: small bodies, large bodies of quick hooks, large bodies of other hooks, and deferred
answers. A request without a place in its lane gets a 503. If a hook raises, the API server still gets an answer.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from provisioner.admission import review
from provisioner.kube.errors import TooLarge
from provisioner.runtime.lanes import Busy, Lane
from provisioner.runtime.repeats import Repeats, place_of
from provisioner.runtime.resources import Endpoint, is_json

_log = structlog.get_logger(__name__)
_JSON = "application/json"
#: Maximum bytes, and number of objects and lists, of a small review. Its decoding takes up to 2 ms and 2 MB of memory.
_SMALL_BYTES = 64 * 1024
_SMALL_PARTS = 1000
#: Threads of each lane for small or large bodies. More are not faster, because Python runs one thread at a time.
_SMALL_AT_ONCE, _LARGE_AT_ONCE = 1, 1
#: Threads for deferred answers. Each thread may hold an object that it has read, so memory limits their number.
_LATER_AT_ONCE = 8
_WAITING, _LARGE_WAITING_BYTES = 256, 24 * 1024 * 1024
#: Maximum bytes of all small bodies with deferred answers. A body counts as at least _LATER_LEAST_BYTES.
_LATER_BYTES = 4 * 1024 * 1024
_LATER_LEAST_BYTES = _LATER_BYTES // _WAITING

_T = TypeVar("_T")
#: Finishes a deferred answer; called like `review.Deferred`.
Later = Callable[[int], Response]
#: Begins the answer to a review. Takes the body and the time of its arrival, as `time.perf_counter` returns it.
Begin = Callable[[bytes, float], Response | Later]
#: Counts a review: the webhook, the outcome (as metrics name it), and the duration in seconds.
Observer = Callable[[str, str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A webhook: answers the reviews of one path."""

    name: str
    path: str
    answer: Callable[[review.Request], review.Answer | review.Deferred]
    #: Whether the object is denied if `answer` raises, or if its review cannot be decoded but has a UID. If false, the
    #: object is admitted with a warning in the first case, and failurePolicy applies in the second case.
    strict: bool = False
    #: Whether `answer` takes no longer than decoding the review.
    quick: bool = False


def begin_of(
    hook: Hook,
    reviewed: Observer,
    *,
    tell: Callable[[review.Notice], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Begin:
    """Return a function that answers bodies posted to a webhook and, except in dry runs, calls `tell` with notices."""
    repeats = Repeats()

    def begin(body: bytes, since: float) -> Response | Later:
        try:
            request = review.parse_review(body)
        except review.NotAReview as error:
            reviewed(hook.name, "malformed", clock() - since)
            head = review.head_of(body)
            denied = review.encode_answer(head, review.Answer(denied=str(error)))
            return Response(denied, 200 if hook.strict and head.uid else 400, media_type=_JSON)
        # The encoder needs only this copy. A deferred answer keeps the reviewed objects only if its hook needs them.
        head = replace(request, object={}, old_object={})

        def go_on(judge: Callable[[], review.Answer | review.Deferred]) -> Response | Later:
            try:
                found = judge()
                if callable(found):
                    # The cast is correct, because an answer is deferred at most once.
                    return cast(Later, lambda max_bytes: go_on(partial(found, max_bytes)))
                outcome, encoded = _outcome_of(found), review.encode_answer(head, found)
                if found.notice is not None and not head.dry_run:
                    tell(found.notice)
            except TooLarge:
                raise
            except Exception as error:  # noqa: BLE001 - the edge of the process: the API server gets an answer
                outcome, encoded = "failed", review.encode_answer(head, _failed(hook, head, error, repeats))
            reviewed(hook.name, outcome, clock() - since)
            return Response(encoded, media_type=_JSON)

        return go_on(partial(hook.answer, request))

    return begin


def _failed(hook: Hook, request: review.Request, error: Exception, repeats: Repeats) -> review.Answer:
    left_out = repeats.left_out(place_of(error))
    if left_out is not None:
        about = {"hook": hook.name, "kind": request.kind, "namespace": request.namespace}
        _log.error("webhook.failed", **about, left_out=left_out, exc_info=error)
    text = f"tpu-provisioner: the webhook {hook.name} failed, see its log"
    return review.Answer(denied=text) if hook.strict else review.Answer(warnings=(f"{text}; nothing was changed",))


def _outcome_of(given: review.Answer) -> str:
    return "denied" if given.denied else "warned" if given.warnings else "patched" if given.patch else "admitted"


class Lanes:
    """Limits the reviews that one server answers at the same time."""

    def __init__(self) -> None:
        threads = _SMALL_AT_ONCE + 2 * _LARGE_AT_ONCE + _LATER_AT_ONCE
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="endpoint")
        self._small = Lane(places=_SMALL_AT_ONCE, room=_WAITING)
        self._large = {quick: Lane(places=_LARGE_AT_ONCE, room=_LARGE_WAITING_BYTES) for quick in (True, False)}
        self._later = Lane(places=_LATER_AT_ONCE, room=_LATER_BYTES)

    def endpoint(self, begin: Begin, busy: Callable[[float], None], *, quick: bool = False) -> Endpoint:
        """Return the endpoint of a webhook. `busy` gets the duration in seconds of a request that is answered 503."""

        async def answer(request: Request) -> Response:
            if not is_json(request):
                return PlainTextResponse(f"the content type must be {_JSON}\n", 415)
            body = await request.body()
            since, flow = time.perf_counter(), review.head_of(body).namespace
            try:
                with contextlib.suppress(TooLarge):
                    if is_small(body):
                        begun = partial(begin, body, since)
                        content = begun() if quick else await self._run(self._small, 1, flow, begun)
                        if isinstance(content, Response):
                            return content
                        weight = max(len(body), _LATER_LEAST_BYTES)
                        return await self._run(self._later, weight, flow, partial(content, review.READ_BYTES))
                # Large bodies wait here undecoded, and so do small bodies for which a read raised TooLarge.
                return await self._run(self._large[quick], len(body), flow, partial(_finished, begin, body, since))
            except Busy:
                busy(time.perf_counter() - since)
                raise

        return answer

    async def _run(self, lane: Lane, weight: int, flow: str, work: Callable[[], _T]) -> _T:
        async with lane.place(weight, flow):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _finished(begin: Begin, body: bytes, since: float) -> Response:
    content = begin(body, since)
    return content if isinstance(content, Response) else content(review.READ_ALONE_BYTES)


def is_small(body: bytes) -> bool:
    """Return whether a body is small enough to be decoded in the event loop."""
    return len(body) <= _SMALL_BYTES and body.count(b"{") + body.count(b"[") <= _SMALL_PARTS
