"""Decodes requests and encodes responses of the REST API; reads callers from reviews by the API server. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from provisioner.kube import fields
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_BEARER = re.compile(r"Bearer +([-A-Za-z0-9_]+\.[-A-Za-z0-9_]+\.[-A-Za-z0-9_]+) *", re.IGNORECASE)
_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):[^:]+")
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


class Refused(Exception):  # noqa: N818 - it is a verdict on a request
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a pod for its partition."""

    namespace: _Name
    pod: _Name
    uid: _Name
    #: Number of IPUs. Any JSON value is decoded, because an invalid size is answered 422 instead of 400.
    size: Any = None
    #: Whether the partition must be reconfigurable; None if the pod accepts either.
    reconfigurable: bool | None = None


def read_ask(body: bytes) -> Ask:
    """Read the body of a POST. Raises Refused: 400 if the body is invalid, 422 if only the size is invalid."""
    try:
        asked = msgspec.json.decode(body, type=Ask)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body cannot be read: {error}") from error
    size = asked.size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or size & (size - 1):
        raise Refused(422, f"size is {fields.shown(size)}, but must be a number of IPUs that is a power of two")
    return asked


#: Fields of an `Entry` that responses contain under the same names.
_SHOWN = ("id", "namespace", "pod", "size", "server", "allocation", "reconfigurable")


def described(pod: Pod | None, entry: Entry | None, state: str, message: str) -> dict[str, Any]:
    """Return the fields of a response that describe a partition. At least one of `pod` and `entry` is not None."""
    body: dict[str, Any] = {"state": state, "message": message}
    if entry is not None:
        body |= {name: getattr(entry, name) for name in _SHOWN} | {"uid": entry.pod_uid}
    elif pod is not None:
        body |= {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid, "size": pod.size}
    return body


def answer(status: int, body: Mapping[str, Any], *, retry_after_seconds: int | None = None) -> Response:
    """Return a JSON response that must not be cached."""
    headers = {"Cache-Control": "no-store"}
    if retry_after_seconds is not None:
        headers["Retry-After"] = str(retry_after_seconds)
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def refusal(refused: Refused) -> Response:
    """Return the response to a rejected request."""
    response = answer(refused.status, {"error": str(refused)}, retry_after_seconds=refused.retry_after_seconds)
    if refused.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """Identity of a pod, for example of the pod that a token is bound to."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller, as identified by the API server."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    #: Pod that the token is bound to; None if the token is bound to no pod.
    pod: PodIdentity | None = None


def token_of(authorization: str) -> str:
    """Return the token in an Authorization header, without verifying it. Raises Refused if there is no token."""
    match = _BEARER.fullmatch(authorization)
    if match is None:
        raise Refused(401, f"send a token of a ServiceAccount for the audience {names.AUDIENCE}, as bearer token")
    return match[1]


def token_review(token: str) -> dict[str, Any]:
    """Return the TokenReview with which the API server verifies a token."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [names.AUDIENCE]},
    }


def read_token_review(raw: Mapping[str, Any]) -> Caller | str:
    """Return the caller from a reviewed TokenReview, or the reason why the token is not accepted."""
    status = fields.mapping(raw.get("status"))
    # An API server without support for audiences has verified the token only for its own audience, and returns no list.
    if status.get("authenticated") is not True or names.AUDIENCE not in fields.sequence(status.get("audiences")):
        return f"the API server does not accept the token for the audience {names.AUDIENCE}"
    user = fields.mapping(status.get("user"))
    username = fields.text(user.get("username"))
    if not username:
        return "the API server does not say whose the token is"
    extra = fields.mapping(user.get("extra"))
    return Caller(
        username=username,
        uid=fields.text(user.get("uid")),
        groups=tuple(group for group in fields.sequence(user.get("groups")) if isinstance(group, str)),
        extra=extra,
        pod=_pod(username, extra),
    )


def _pod(username: str, extra: Mapping[str, Any]) -> PodIdentity | None:
    account = _ACCOUNT.fullmatch(username)
    name, uid = (_only(extra.get(key)) for key in (_POD_NAME, _POD_UID))
    return PodIdentity(namespace=account[1], name=name, uid=uid) if account and name and uid else None


def _only(raw: object) -> str:
    texts = fields.sequence(raw)
    return fields.text(texts[0]) if len(texts) == 1 else ""


def access_review(caller: Caller, verb: str, namespace: str, pod: str) -> dict[str, Any]:
    """Return the SubjectAccessReview that asks whether a caller may perform a verb on a pod."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": caller.username,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": dict(caller.extra),
            "resourceAttributes": {
                "verb": verb, "group": "", "version": "v1", "resource": "pods", "namespace": namespace, "name": pod,
            },
        },
    }  # fmt: skip


def read_access_review(raw: Mapping[str, Any]) -> bool:
    """Return whether a reviewed SubjectAccessReview allows the access."""
    status = fields.mapping(raw.get("status"))
    return status.get("allowed") is True and status.get("denied") is not True
