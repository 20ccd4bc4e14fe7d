"""What the API is sent and what it answers, as JSON (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from provisioner.kube import fields
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry
from provisioner.runtime.pages import Content

_JSON = "application/json"
_ENCODER = msgspec.json.Encoder()
_NAMES = ("namespace", "pod", "uid")
_LONGEST_NAME = 253


class Refused(Exception):  # noqa: N818 - it is a verdict on a request
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A pod that asks for its partition."""

    namespace: str
    pod: str
    uid: str
    #: IPUs.
    size: int
    #: None: as the controller makes them.
    reconfigurable: bool | None = None


def read_ask(body: bytes) -> Ask:
    """Read the body of a POST; raise Refused with 400 where it is none, with 422 where the size is none."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise Refused(400, "the body has to be an object with namespace, pod, uid and size")
    for name in _NAMES:
        value = raw.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
            raise Refused(
                400, f"{name} is {fields.shown(value)}, and has to be a text of 1 to {_LONGEST_NAME} characters"
            )
    size, reconfigurable = raw.get("size"), raw.get("reconfigurable")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or size & (size - 1):
        raise Refused(422, f"size is {fields.shown(size)}, and has to be a number of IPUs that is a power of two")
    if not isinstance(reconfigurable, bool | None):
        raise Refused(400, f"reconfigurable is {fields.shown(reconfigurable)}, and has to be true or false")
    return Ask(namespace=raw["namespace"], pod=raw["pod"], uid=raw["uid"], size=size, reconfigurable=reconfigurable)


def described(pod: Pod | None, entry: Entry | None, state: str, message: str) -> dict[str, Any]:
    """Return a partition as people and pods are shown it; at least one of `pod` and `entry` is there."""
    found: dict[str, Any] = {"state": state, "message": message}
    if entry is not None:
        found |= {
            "id": entry.id,
            "namespace": entry.namespace,
            "pod": entry.pod,
            "uid": entry.pod_uid,
            "size": entry.size,
        }
        found |= {"server": entry.server, "allocation": entry.allocation, "reconfigurable": entry.reconfigurable}
    elif pod is not None:
        found |= {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid, "size": pod.size}
    return found


def answer(status: int, body: Mapping[str, Any], *, retry_after_seconds: int | None = None) -> Content:
    """Return an answer; none of them is to be kept by anybody."""
    headers = {"Cache-Control": "no-store"}
    if retry_after_seconds is not None:
        headers["Retry-After"] = str(retry_after_seconds)
    return Content(body=_ENCODER.encode(body), media_type=_JSON, status=status, headers=headers)


def refusal(refused: Refused) -> Content:
    """Return the answer to a request that is refused."""
    content = answer(refused.status, {"error": str(refused)}, retry_after_seconds=refused.retry_after_seconds)
    if refused.status != 401:
        return content
    return Content(
        body=content.body,
        media_type=content.media_type,
        status=content.status,
        headers={**content.headers, "WWW-Authenticate": "Bearer"},
    )


def configuration(text: str) -> Any:
    """Return an IPUoF configuration as a value of JSON; one that is no JSON stays a text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
