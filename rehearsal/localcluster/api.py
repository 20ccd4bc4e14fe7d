"""A client for the few API calls that set up and check a cluster. Opens a connection for each call; never retries."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.localcluster.ports import HOST

_TIMEOUT_SECONDS = 10.0
_PROBE_TIMEOUT_SECONDS = 2.0
JSON = "application/json"
_APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status of a response, and its body; an empty object if the body is not a JSON object."""

    status: int
    body: Mapping[str, Any]


class ApiError(RuntimeError):
    """The API server rejected a call that must succeed."""


class ApiClient:
    """Sends requests by HTTPS to one port of this machine."""

    def __init__(self, port: int, *, authority: Path, certificate: Path, key: Path) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(certificate, key)

    def call(self, method: str, path: str, *, body: bytes | None = None, content_type: str = JSON) -> Answer:
        """Make one call and return the response, also if it is a rejection. Raises OSError if there is no response."""
        connection = http.client.HTTPSConnection(HOST, self._port, context=self._context, timeout=_TIMEOUT_SECONDS)
        return _exchange(connection, method, path, body=body, content_type=content_type)

    def must(self, method: str, path: str, *, body: bytes | None = None, content_type: str = JSON) -> Mapping[str, Any]:
        """Make one call; return the body of its response. Raises ApiError if it is rejected."""
        return _accepted(method, path, self.call(method, path, body=body, content_type=content_type))

    def apply(self, path: str, manifest: bytes, *, dry_run: bool = False) -> Mapping[str, Any]:
        """Create the object or change it to match the manifest (YAML or JSON); return it. Raises ApiError."""
        return _accepted("apply", path, self.try_apply(path, manifest, dry_run=dry_run))

    def try_apply(self, path: str, manifest: bytes, *, dry_run: bool = False) -> Answer:
        """Apply the manifest like apply(), but return a rejection instead of raising."""
        query = "?fieldManager=localcluster&force=true" + ("&dryRun=All" if dry_run else "")
        return self.call("PATCH", f"{path}{query}", body=manifest, content_type=_APPLY)


def _accepted(method: str, path: str, answer: Answer) -> Mapping[str, Any]:
    if answer.status >= 300:
        raise ApiError(f"{method} {path}: {answer.status}: {answer.body.get('message', 'no reason given')}")
    return answer.body


def answers(port: int, path: str, *, context: ssl.SSLContext | None = None, with_any_status: bool = False) -> bool:
    """Return whether a GET on a port of this machine gets status 200, or any response if `with_any_status`.

    The request uses HTTPS if `context` is given.
    """
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(HOST, port, timeout=_PROBE_TIMEOUT_SECONDS)
    else:
        connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=_PROBE_TIMEOUT_SECONDS)
    try:
        return _exchange(connection, "GET", path).status == 200 or with_any_status
    except (OSError, http.client.HTTPException):
        return False


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    content_type: str = JSON,
) -> Answer:
    try:
        headers = {"Accept": JSON} | ({"Content-Type": content_type} if body is not None else {})
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    return Answer(status=response.status, body=content if isinstance(content, dict) else {})
