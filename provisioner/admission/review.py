"""Decodes AdmissionReviews (v1 and v1beta1) and encodes their answers, in one form for both versions."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.workloads import ObjectRef

_GROUP = "admission.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
#: Maximum number of characters of all warnings of an answer. Above 4,096, API servers cut each warning to 256.
_WARNINGS_CHARACTERS = 4000
_WARNING_CHARACTERS = 1000
_MORE = "there are more warnings than can be shown"
_MESSAGE_CHARACTERS = 8192
_UID_CHARACTERS = 128
#: Maximum number of objects, lists and commas in a body.
_MAX_PARTS = 500_000
#: Number of leading bytes in which version, UID and namespace are searched. API servers write the object after these.
_HEAD_BYTES = 4096
_HEAD = (
    re.compile(rb'"apiVersion": ?"(admission\.k8s\.io/v1(?:beta1)?)"'),
    re.compile(rb'"uid": ?"([0-9A-Za-z-]{1,128})"'),
    re.compile(rb'"namespace": ?"([a-z0-9-]{1,63})"'),
)


class NotAReview(Exception):  # noqa: N818 - it names what the body is
    """The body cannot be decoded as an AdmissionReview; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of a JSON Patch."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: Any = msgspec.UNSET


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer of a path, with its steps escaped."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to review one object."""

    uid: str = ""
    #: admission.k8s.io/v1 or admission.k8s.io/v1beta1; the answer has the same version.
    version: str = _VERSIONS[0]
    operation: str = ""
    kind: str = ""
    #: Name of the subresource, such as "status" or "scale"; empty for the object itself.
    subresource: str = ""
    #: Namespace in the request; an object that is being created may lack its namespace.
    namespace: str = ""
    name: str = ""
    #: Raw new object; empty for a delete.
    object: Mapping[str, Any] = field(default_factory=dict)
    #: Raw object as it is stored; empty for a create.
    old_object: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Message for the users of a reviewed object. They do not see the answer if a controller sent the object."""

    about: ObjectRef
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a review."""

    #: Reason for rejecting the object; empty if it is admitted.
    denied: str = ""
    warnings: tuple[str, ...] = ()
    patch: tuple[Operation, ...] = ()
    notice: Notice | None = None


#: Maximum bytes of an object that a review reads from the API server: next to other reviews, and in a lane with one
#: thread. API servers store objects of up to 1.5 MiB.
READ_BYTES, READ_ALONE_BYTES = 128 * 1024, 2 * 1024 * 1024
#: Finishes a review that reads from the API server or takes long. The argument is the maximum number of bytes to read.
#: A call with READ_BYTES may raise kube's TooLarge; then the review is repeated with READ_ALONE_BYTES.
Deferred = Callable[[int], Answer]


def parse_review(body: bytes) -> Request:
    """Return a decoded review. Fields of wrong types count as absent. Raises NotAReview if the body is invalid."""
    parts = sum(map(body.count, (b"{", b"[", b",")))
    if parts > _MAX_PARTS:
        raise NotAReview(f"the body has {parts:,} values, and at most {_MAX_PARTS:,} are read")
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
        # The namespace is cut because Events and the log contain it.
        namespace=bounds.cut(fields.text(request.get("namespace")), bounds.LABEL_VALUE),
        name=fields.name(request.get("name")),
        object=fields.mapping(request.get("object")),
        old_object=fields.mapping(request.get("oldObject")),
        user=fields.name(fields.mapping(request.get("userInfo")).get("username")),
        dry_run=request.get("dryRun") is True,
    )


def head_of(body: bytes) -> Request:
    """Return version (v1 if missing), UID and namespace (empty if missing) in the first _HEAD_BYTES of a review."""
    found = (pattern.search(body, 0, _HEAD_BYTES) for pattern in _HEAD)
    version, uid, namespace = (match[1].decode() if match is not None else "" for match in found)
    return Request(version=version or _VERSIONS[0], uid=uid, namespace=namespace)


def encode_answer(request: Request, answer: Answer) -> bytes:
    """Return the encoded AdmissionReview that answers a request."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": not answer.denied}
    if answer.denied:
        message = bounds.cut(_plain(answer.denied), _MESSAGE_CHARACTERS)
        response["status"] = {"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_ENCODER.encode(answer.patch)).decode()
    if warnings := list(_shown(answer.warnings)):
        response["warnings"] = warnings
    return _ENCODER.encode({"apiVersion": request.version, "kind": "AdmissionReview", "response": response})


def _shown(warnings: Iterable[str]) -> Iterable[str]:
    """Yield warnings up to the limits of this module; API servers silently omit text beyond their own limits."""
    left = _WARNINGS_CHARACTERS
    for warning in dict.fromkeys(warnings):
        text = bounds.cut(_plain(warning), _WARNING_CHARACTERS)
        left -= len(text)
        if left < len(_MORE):
            yield _MORE
            return
        yield text


def _plain(text: str) -> str:
    """Return a text in one line without control characters, because API servers drop warnings that contain them."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in " ".join(text.split()))


_ENCODER = msgspec.json.Encoder()
#: Python decodes floats, because msgspec blocks all threads for 4 s in 8 MiB of floats near the limits of a double.
_DECODER = msgspec.json.Decoder(float_hook=float)
