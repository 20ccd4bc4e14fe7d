"""AdmissionReview, v1 and v1beta1: what the API server asks, and what it is answered, equal for both."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.workloads import ObjectRef

_GROUP = "admission.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
#: The API server shows 4,096 characters of all warnings of a request; when there are more, 256 of each.
_WARNINGS_CHARACTERS = 4000
_WARNING_CHARACTERS = 1000
_MORE = "there are more warnings than can be shown"
_MESSAGE_CHARACTERS = 8192
_UID_CHARACTERS = 128
#: Objects, lists and commas in a body: more than the largest object has before and after an update together.
_MOST_PARTS = 500_000


class NotAReview(Exception):  # noqa: N818 - it names what the body is
    """The body is not an AdmissionReview; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a patch."""

    op: Literal["add", "replace", "remove"]
    #: A JSON pointer (RFC 6901).
    path: str
    #: Of "add" and "replace".
    value: Any = msgspec.UNSET


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer of a path."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of one object."""

    uid: str = ""
    #: admission.k8s.io/v1 or admission.k8s.io/v1beta1: that of the answer, too.
    version: str = _VERSIONS[0]
    #: CREATE, UPDATE, DELETE or CONNECT.
    operation: str = ""
    #: Of the object, without its group.
    kind: str = ""
    #: Such as "status" and "scale"; empty for the object itself.
    subresource: str = ""
    #: The request's, for an object that is created may not say.
    namespace: str = ""
    name: str = ""
    #: The object as it is to be, raw; empty where there is none.
    object: Mapping[str, Any] = field(default_factory=dict)
    #: The object as it was; empty where there was none.
    old_object: Mapping[str, Any] = field(default_factory=dict)
    #: Who sent it: userInfo.username.
    user: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What is to be known of the controller that sent the object: people do not see what it is answered."""

    about: ObjectRef
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is done with the object."""

    #: Why it is rejected; empty: it is admitted.
    denied: str = ""
    #: Shown to whoever sent the object, one line each.
    warnings: tuple[str, ...] = ()
    #: RFC 6902.
    patch: tuple[Operation, ...] = ()
    notice: Notice | None = None


#: What reviews may read of one object, of several at once and alone; the API server stores up to 1.5 MiB.
READ_BYTES, READ_ALONE_BYTES = 128 * 1024, 2 * 1024 * 1024
#: The rest of a review, which reads from the API server, or takes its time. Called with READ_BYTES it raises kube's
#: TooLarge for an object of more, and is then called with READ_ALONE_BYTES.
Deferred = Callable[[int], Answer]


def parse_review(body: bytes) -> Request:
    """Read a review; raise NotAReview where it is none. Fields of wrong types count as absent."""
    parts = sum(map(body.count, (b"{", b"[", b",")))
    if parts > _MOST_PARTS:
        raise NotAReview(f"the body has {parts:,} values, and at most {_MOST_PARTS:,} are read")
    try:
        raw = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAReview(f"the body is not JSON: {error}") from error
    review = fields.mapping(raw)
    if review.get("kind") != "AdmissionReview" or review.get("apiVersion") not in _VERSIONS:
        raise NotAReview(f"the body is not an AdmissionReview of {' or '.join(_VERSIONS)}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise NotAReview("the AdmissionReview has no request")
    return Request(
        uid=fields.text(request.get("uid"))[:_UID_CHARACTERS],
        version=fields.text(review["apiVersion"]),
        operation=fields.text(request.get("operation")),
        kind=fields.name(fields.mapping(request.get("kind")).get("kind")),
        subresource=fields.name(request.get("subResource")),
        # Events and the log keep it.
        namespace=bounds.cut(fields.text(request.get("namespace")), bounds.LABEL_VALUE),
        name=fields.name(request.get("name")),
        object=fields.mapping(request.get("object")),
        old_object=fields.mapping(request.get("oldObject")),
        user=fields.name(fields.mapping(request.get("userInfo")).get("username")),
        dry_run=request.get("dryRun") is True,
    )


def encode_answer(request: Request, answer: Answer) -> bytes:
    """Return the review that answers a request."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": not answer.denied}
    if answer.denied:
        status = HTTPStatus.FORBIDDEN
        response["status"] = {
            "status": "Failure",
            "message": bounds.cut(_plain(answer.denied), _MESSAGE_CHARACTERS),
            "reason": "Forbidden",
            "code": status.value,
        }
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_ENCODER.encode(answer.patch)).decode()
    if warnings := list(_shown(answer.warnings)):
        response["warnings"] = warnings
    return _ENCODER.encode({"apiVersion": request.version, "kind": "AdmissionReview", "response": response})


def _shown(warnings: Iterable[str]) -> Iterable[str]:
    """Keep within what the API server shows: it would leave out the rest without a word."""
    left = _WARNINGS_CHARACTERS
    for each in dict.fromkeys(warnings):
        text = bounds.cut(_plain(each), _WARNING_CHARACTERS)
        left -= len(text)
        if left < len(_MORE):
            yield _MORE
            return
        yield text


def _plain(text: str) -> str:
    """Return a text in one line without control characters: API servers drop warnings that have some."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))


_ENCODER = msgspec.json.Encoder()
#: Of a number near the least or the largest, msgspec takes 10 us itself, and no other thread runs: 8 MiB took it 4 s.
_DECODER = msgspec.json.Decoder(float_hook=float)
