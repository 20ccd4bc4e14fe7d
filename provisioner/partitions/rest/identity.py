"""Who asks, by what the API server says of a token, and what it is asked (pure)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from provisioner.kube import fields
from provisioner.partitions import handover

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_BEARER = re.compile(r"Bearer +([-A-Za-z0-9_]+\.[-A-Za-z0-9_]+\.[-A-Za-z0-9_]+) *", re.IGNORECASE)
_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):[^:]+")
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
#: Clocks may differ by so much.
_SKEW_SECONDS = 60.0


class Unproven(Exception):  # noqa: N818 - it names the caller
    """The caller does not prove who it is; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """The pod that a token is bound to. The API server takes no token of a pod that is gone."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A user of the cluster."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    #: None: the token is of no pod.
    pod: PodIdentity | None = None


def token_of(authorization: str, now_seconds: float) -> str:
    """Return the token in a header, unless it is plain that nobody takes it: so no flood of those asks the API server.

    `now_seconds` is the time since 1970. Raises Unproven. What is returned is not checked.
    """
    match = _BEARER.fullmatch(authorization)
    if match is None:
        raise Unproven(f"send a token of a ServiceAccount, made for the audience {handover.AUDIENCE}, as bearer token")
    token = match[1]
    said = _claims(token)
    audiences = said.get("aud")
    if handover.AUDIENCE not in (audiences if isinstance(audiences, list) else [audiences]):
        raise Unproven(f"the token is not made for the audience {handover.AUDIENCE}")
    expires = said.get("exp")
    if not isinstance(expires, (int, float)) or expires + _SKEW_SECONDS < now_seconds:
        raise Unproven("the token has expired")
    return token


def _claims(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    try:
        return fields.mapping(msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))))
    except (binascii.Error, msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Unproven("the token cannot be read") from error


def token_review(token: str) -> dict[str, Any]:
    """Return what the API server is asked about a token."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [handover.AUDIENCE]},
    }


def read_token_review(raw: Mapping[str, Any]) -> Caller:
    """Read the answer; Unproven where the token is none for us."""
    status = fields.mapping(raw.get("status"))
    # An API server that knows no audiences names none, and means its own.
    if status.get("authenticated") is not True or handover.AUDIENCE not in fields.sequence(status.get("audiences")):
        raise Unproven(f"the API server does not take the token for the audience {handover.AUDIENCE}")
    user = fields.mapping(status.get("user"))
    username = fields.text(user.get("username"))
    if not username:
        raise Unproven("the API server does not say whose the token is")
    extra = fields.mapping(user.get("extra"))
    return Caller(
        username=username,
        uid=fields.text(user.get("uid")),
        groups=tuple(each for each in fields.sequence(user.get("groups")) if isinstance(each, str)),
        extra=extra,
        pod=_pod(username, extra),
    )


def _pod(username: str, extra: Mapping[str, Any]) -> PodIdentity | None:
    account = _ACCOUNT.fullmatch(username)
    name, uid = (_only(extra.get(key)) for key in (_POD_NAME, _POD_UID))
    return PodIdentity(namespace=account[1], name=name, uid=uid) if account and name and uid else None


def _only(raw: object) -> str:
    """Read the one text of a list."""
    texts = fields.sequence(raw)
    return fields.text(texts[0]) if len(texts) == 1 else ""


def access_review(caller: Caller, verb: str, namespace: str, pod: str) -> dict[str, Any]:
    """Return what the API server is asked about a right of somebody's to a pod."""
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
    """Read the answer: whether it is allowed."""
    status = fields.mapping(raw.get("status"))
    return status.get("allowed") is True and status.get("denied") is not True
